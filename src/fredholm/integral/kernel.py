"""The kernel K(x, y, u(x), u(y)), what interacts: what each has, whatever its definition."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..arguments import Checked
from ..domain import Domain
from ..errors import ConversionError, OptionError
from .capabilities import lacking
from .problem import Layout, Problem

# What a kernel may define, and the base class that makes a definition of it.
DEFINITIONS = {
    "WeightedKernel": ("weights", "value_map"),
    "HiddenKernel": ("hidden", "readout"),
    "PairKernel": ("forward",),
    "MatrixKernel": ("matrix",),
}


class Kernel(nn.Module, metaclass=Checked):
    r"""A matrix-valued kernel: heads, widths, where it lives, and the forms that integrate it.

    Concrete kernels derive from one of four definitions, each of which says in its own way what
    ``matrix`` is: :class:`PairKernel` (a function of two ends), :class:`HiddenKernel` (a linear
    readout of hidden units), :class:`WeightedKernel` (a scalar weight times a value map) and
    :class:`MatrixKernel` (all pairs at once). Capabilities (:mod:`fredholm.integral.capabilities`)
    stand beside the definition and allow faster forms.

    Args:
        heads: number of heads H.
        d_in: features a head reads of u: ``dim // heads`` (a slice each), or ``dim`` where
            ``whole``.
        d_out: features a head writes.

    Attributes:
        whole: every head reads all of u instead of its own slice.
        reads_query: the kernel depends on u(x), so that queries on another domain need features.
        sums: each key counts by its mass, and no normaliser of the kernel's own divides it away.
        forms: the algorithms that may integrate the kernel, best first; see
            :class:`fredholm.integral.forms.Form`. A subclass inherits its base's.

    Raises:
        OptionError: a class without one of the four definitions.
    """

    whole = False
    reads_query = True
    sums = False
    forms: ClassVar[tuple[type[Any], ...]] = ()

    def __init__(self, heads: int, d_in: int, d_out: int | None = None):
        super().__init__()
        if not self.forms:
            raise OptionError(_lacks_definition(type(self)))
        self.heads, self.d_in, self.d_out = heads, d_in, d_out or d_in

    def __init_subclass__(cls, **options) -> None:
        super().__init_subclass__(**options)
        slip = lacking(cls)
        if slip is not None:
            capability, methods = slip
            raise OptionError(
                f"{cls.__name__} defines {', '.join(methods)} but does not inherit "
                f"{capability.__name__}, so its faster form would never be taken; write "
                f"class {cls.__name__}({cls.__mro__[1].__name__}, {capability.__name__})"
            )

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """The kernel at all pairs, (B, H, Nq, Nk, d_out, d_in), densities against the measure.
        O(Nq·Nk).
        """
        raise NotImplementedError(f"{type(self).__name__} must define matrix(problem)")

    def offset(self, problem: Problem) -> Tensor | None:
        """Response to a constant channel, broadcastable to (B, H, Nq, d_out), where the layer is
        affine; None otherwise.
        """
        return None

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        """Raise :class:`fredholm.errors.DomainError` for a domain on which the kernel means
        nothing. By default every domain is accepted.
        """

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        """The domain of n points that an operator assumes when it is given none."""
        return Domain.line(n, device=device, dtype=dtype)

    def output_domain(self, domain: Domain) -> Domain | None:
        """Where the output lives when no query domain is given: None for ``domain`` itself, else
        another (a strided grid).
        """
        return None

    def extra_repr(self) -> str:
        return f"heads={self.heads}, d_in={self.d_in}, d_out={self.d_out}"


def _lacks_definition(kind: type) -> str:
    """What to tell the author of a kernel that derives from :class:`Kernel` itself."""
    defined = {name for base in kind.__mro__[: kind.__mro__.index(Kernel)] for name in vars(base)}
    for base, methods in DEFINITIONS.items():
        if defined.issuperset(methods):
            return (
                f"{kind.__name__} defines {' and '.join(methods)} but derives from Kernel, which "
                f"no form integrates; derive it from fredholm.kernels.{base}"
            )
    bases = ", ".join(f"{base} ({', '.join(methods)})" for base, methods in DEFINITIONS.items())
    return (
        f"{kind.__name__} has no definition; derive it from one of fredholm.kernels' bases and "
        f"define its methods: {bases}"
    )


def head_width(dim: int, heads: int) -> int:
    """dim / heads, or an OptionError."""
    if heads < 1 or dim % heads:
        raise OptionError(f"heads must divide the width: {heads} does not divide {dim}")
    return dim // heads


def split_heads(u: Float[Tensor, "b n d"], heads: int) -> Float[Tensor, "b h n c"]:
    """(B, N, H·c) to (B, H, N, c)."""
    return u.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(u: Float[Tensor, "b h n c"]) -> Float[Tensor, "b n d"]:
    """(B, H, N, c) to (B, N, H·c)."""
    return u.transpose(1, 2).flatten(2)


def check_dropout(training: bool, rate: float) -> None:
    """ConversionError where dropout is active: such a layer is random, and no integral operator."""
    if training and rate:
        raise ConversionError(
            f"dropout={rate} is active in training mode, where the layer is random and no integral "
            "operator; "
            "call .eval(), or set the dropout to 0 to train without it"
        )


def own_parameter(x: Tensor) -> nn.Parameter:
    """The very same Parameter, or a new one: a Parameter that is wrapped again would be trained
    apart from its layer.
    """
    return x if isinstance(x, nn.Parameter) else nn.Parameter(x)


def identity(heads: int, dim: int) -> Tensor:
    """One identity matrix a head, (H, dim, dim)."""
    return torch.eye(dim).repeat(heads, 1, 1)
