"""Operators inside models: options that follow from the data, and sums of operators by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ..arguments import refuse_kind
from ..domain import Domain
from ..errors import OptionError
from ..integral import (
    IntegralOperator,
    Kernel,
    LatticeKernel,
    Strategy,
    create_operator,
    register_operator,
)
from ..integral.addition import SumKernel
from .baselines import list_baselines, make_baseline


def position_options(
    name: str,
    position_dim: int,
    options: Mapping[str, Any],
    *,
    causal: bool = False,
) -> dict[str, Any]:
    """Return the options of :func:`fredholm.operators.create_operator` for a registered operator,
    with those that follow from the data as ``from_data``.

    Args:
        name: of the operator.
        position_dim: dimension of the positions.
        options: the operator's own, which come first.
        causal: whether points are in an order. Only a sum has this option: its convolutions then
            read the past alone.
    """
    from_data: dict[str, Any] = {"position_dim": position_dim}
    if name == SUM:
        from_data["causal"] = causal
    return {"from_data": from_data, **options}


# Keys of options: a value per block, and the parts of a sum of operators.
PER_BLOCK = "blocks"
PARTS = "parts"


def of_block(options: Mapping[str, Any], block: int) -> dict[str, Any]:
    """Return the options of block number ``block``, counted from 0.

    A value ``{"blocks": [a, b, c]}`` gives a to the first block, b to the next, c to the third, and
    then a again. The same holds among the options of the parts of a sum.

    Raises:
        OptionError: ``blocks`` without a list, or with an empty one.

    Example:
        >>> doubling = {"taps": 3, "dilation": {"blocks": [1, 2, 4]}}
        >>> of_block(doubling, 1), of_block(doubling, 3)
        ({'taps': 3, 'dilation': 2}, {'taps': 3, 'dilation': 1})
    """
    return {key: _value_of_block(key, value, block) for key, value in options.items()}


def _value_of_block(key: str, value: Any, block: int) -> Any:
    """Return one option's value for a block."""
    if key == PARTS and isinstance(value, (list, tuple)):
        # A part is an operator's name, or a mapping with its name and options.
        parts = []
        for part in value:
            if isinstance(part, Mapping):
                part = of_block(part, block)
            parts.append(part)
        return parts
    if not isinstance(value, Mapping) or set(value) != {PER_BLOCK}:
        return value
    values = value[PER_BLOCK]
    if not isinstance(values, (list, tuple)) or not values:
        needed = "a list of a value for each block"
        raise OptionError(refuse_kind(f"{key}.{PER_BLOCK}", values, needed))
    return values[block % len(values)]


def make_operator(
    name: str,
    dim: int,
    heads: int,
    *,
    position_dim: int,
    ordered: bool = False,
    from_data: Mapping[str, Any] | None = None,
    **options: Any,
) -> nn.Module:
    """Create a registered operator for positions of this dimension.

    Args:
        name, dim, heads: see :func:`fredholm.operators.create_operator`.
        position_dim: dimension of the positions.
        ordered: whether points are in an order, see :func:`position_options`.
        from_data: further options that follow from the data.
        options: the operator's own.

    Raises:
        OptionError: an unknown name, a baseline's, or an option the operator does not have.
    """
    if name in list_baselines():
        raise OptionError(
            f"operator: expected an operator on any domain, got the baseline {name!r}; give it to "
            "a body of the kind 'backbone' (model=backbone_nano), or make it a part of a sum"
        )
    options = position_options(name, position_dim, options, causal=ordered)
    if from_data is not None:
        options["from_data"] |= from_data
    return create_operator(name, dim, heads, **options)


SUM = "sum"


@register_operator(SUM)
class OperatorSum(IntegralOperator):
    r"""A sum of operators by name, :math:`(Tu)(x) = \sum_i (T_i u)(x)`; see
    :class:`fredholm.kernels.SumKernel`.

    All parts integrate over the same domain. A convolution is a sum over points, so beside one the
    domain needs the measure ``"counting"``. An operator with a normaliser (softmax, luna) gives
    the same result on this measure as on a mean.

    Args:
        dim: width of u.
        heads: number of heads of every part that has heads.
        parts: names of registered operators or baselines, or mappings of a name and options:
            ``["luna", {"name": "convolution", "depthwise": True}]``.
        position_dim: dimension of the positions.
        causal: convolutions read only the past.
        strategy: of all parts; with ``"auto"`` each part uses the strategy in its options.
        out_dim: width of the output.

    Shape: (B, N, dim) to (B, N, out_dim).

    Raises:
        OptionError: no parts, an unknown name or option, or a baseline that imposes an order on
            points.

    Reference: LUNA §5.4, attention and a depthwise convolution.

    Example:
        >>> import torch
        >>> names = ["softmax", {"name": "convolution", "depthwise": True, "taps": 3}]
        >>> operator, line = OperatorSum(8, 2, parts=names), Domain.line(5, measure="counting")
        >>> u, (first, second) = torch.randn(1, 5, 8), operator.parts
        >>> torch.allclose(operator(u, line), first(u, line) + second(u, line), atol=1e-6)
        True
        >>> operator.plan(line).path
        "fused attention + the layer's own form"
    """

    def __init__(
        self,
        dim: int,
        heads: int = 1,
        *,
        parts: Sequence[str | Mapping[str, Any]],
        position_dim: int = 1,
        causal: bool = False,
        strategy: Strategy | str | Mapping[str, Any] = "auto",
        out_dim: int | None = None,
    ):
        if isinstance(parts, (str, Mapping)) or not isinstance(parts, Sequence):
            raise OptionError(refuse_kind("parts", parts, "a list of names or of their options"))
        place: dict[str, Any] = {"position_dim": position_dim, "causal": causal}
        built = [_part(part, dim, heads, place, out_dim) for part in parts]
        super().__init__(
            dim,
            heads,
            kernel=SumKernel(built, heads),
            strategy=strategy,
            out_dim=out_dim,
            residual=False,
            projection=False,
        )

    @property
    def parts(self) -> list[IntegralOperator]:
        """The operators that are added."""
        kernel: Any = self.kernel
        return list(kernel.parts)


def _part(
    part: str | Mapping[str, Any],
    dim: int,
    heads: int,
    place: dict[str, Any],
    out_dim: int | None,
) -> IntegralOperator:
    """Create one part of a sum, a name or a mapping of a name and options.

    ``place`` has the position dimension and whether points are in an order.
    """
    name: Any = part
    options: dict[str, Any] = {}
    if isinstance(part, Mapping):
        options = dict(part)
        name = options.pop("name", None)
    if not isinstance(name, str):
        raise OptionError(
            f"parts: expected a name, or a mapping with a name and options, got {part!r}"
        )

    if name in list_baselines():
        if out_dim not in (None, dim):
            raise OptionError(
                f"out_dim: expected {dim}, the width that the baseline {name!r} keeps, got "
                f"{out_dim}; leave it out"
            )
        return make_baseline(name, dim, heads, **place, **options)

    options = position_options(
        name,
        place["position_dim"],
        options,
        causal=place["causal"],
    )
    if out_dim is not None:
        options = {"out_dim": out_dim} | options
    return create_operator(name, dim, heads, **options)


# --- the measure that an operator is defined for --------------------------------------------------


def suited(operator: nn.Module, domain: Domain) -> Domain:
    """Return the domain with the measure that an operator is defined for.

    One whose default domain counts points sums over them, or over the time they stand for; all
    others take means.
    """
    if not isinstance(operator, IntegralOperator):
        return domain
    if counts(operator, domain):
        return counting(domain)
    return averaging(domain)


def counting(domain: Domain) -> Domain:
    """Return the domain with a mass of one per point, where its masses are equal."""
    if domain.kind != "uniform":
        return domain
    return domain.replace(measure=torch.ones_like(domain.measure), kind="counting")


def averaging(domain: Domain) -> Domain:
    """Return the domain with masses that are renormalised over what a query sees."""
    means = {"counting": "uniform", "spacing": "probability"}
    return domain.replace(kind=means.get(domain.kind, domain.kind))


def counts(operator: nn.Module, domain: Domain) -> bool:
    """Return whether an operator is defined for a mass of one per point, on the device of a
    domain.
    """
    return isinstance(operator, IntegralOperator) and _counts(operator.kernel, domain)


def _counts(kernel: Kernel, domain: Domain) -> bool:
    """Return whether a kernel is defined for a mass of one per point."""
    if isinstance(kernel, SumKernel):
        return any(_counts(part.kernel, domain) for part in kernel.parts)
    if isinstance(kernel, LatticeKernel):
        return True
    # Every forward asks. On another device than the kernel's a default domain would copy the
    # kernel's tensors there, and wait for a GPU.
    default = kernel.default_domain(
        2,
        device=domain.positions.device,
        dtype=domain.positions.dtype,
    )
    return default.kind == "counting"
