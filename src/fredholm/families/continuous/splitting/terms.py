"""Smooth terms: an operator over the tokens, networks and linear maps over the features,
convolutions over the grid.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....domain import Domain
from ....errors import OptionError, suggest
from ....integral import Part, create_operator
from ....ops.backend import at_least_single, cast, full_precision, promoted
from ....stochastic_depth import StochasticDepth
from .term import EXPLICIT, STEP_ERROR, SubstepError, Term, mix

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "tanh": torch.tanh,
}


def _dropped(dropout: nn.Dropout, u: Tensor) -> Tensor:
    """Return features after dropout, without a call where it drops none."""
    if dropout.training and dropout.p:
        return dropout(u)
    return u


def _normed(norm: nn.Module | None, u: Tensor) -> Tensor:
    """Return features after the norm of a pre-norm scheme, where there is one."""
    if norm is None:
        return u
    return norm(u)


class OperatorTerm(Term):
    r"""Term I: an integral operator, :math:`A(u) = T(\mathrm{LN}\,u)` or :math:`A(u) = T u`,
    without a skip connection.

    Args:
        operator: maps (B, N, D) on a domain to (B, N, D); any registered operator, or any other
            module.
        dim: D; by default ``operator.dim``.
        norm: None, or a map of the features before the operator (the pre-norm scheme), such as
            ``nn.LayerNorm(dim)``.
        dropout, drop_path: of the rate, in training.

    An implicit substep would solve a nonlinear system in all tokens at once, and is refused.

    Reference: continuous transformer, Eq. 16, 23, 51.

    Example:
        >>> term = OperatorTerm.of("softmax", 8, heads=2)
        >>> term(torch.zeros(1, 4, 8), Domain.line(4), 0.5).shape
        torch.Size([1, 4, 8])
    """

    norm = Part()
    operator = Part()
    dropout = Part()
    drop_path = Part()

    def __init__(
        self,
        operator: nn.Module,
        dim: int | None = None,
        *,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        substep: str = "auto",
    ):
        if dim is None:
            dim = getattr(operator, "dim", None)
        super().__init__(dim, substep)
        if dim is None:
            raise OptionError(
                f"expected an operator with a width, got {type(operator).__name__} without dim; "
                "pass dim=..."
            )
        self.norm = norm
        self.operator = operator
        self.dropout = nn.Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path)

    @classmethod
    def of(
        cls,
        name: str,
        dim: int,
        heads: int = 1,
        *,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        substep: str = "auto",
        **options,
    ) -> OperatorTerm:
        """Return the term of a registered operator; ``options`` go to the operator."""
        operator = create_operator(name, dim, heads, **options)
        return cls(
            operator,
            dim,
            norm=norm,
            dropout=dropout,
            drop_path=drop_path,
            substep=substep,
        )

    def refusal(self, substep: str) -> str | None:
        if substep in ("implicit", "trapezoid", "exact"):
            return "that needs the solution of a nonlinear system that couples all tokens"
        return None

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        signal = _normed(self.norm, u)
        out = self.operator(signal, domain)
        out = _dropped(self.dropout, out)
        return self.drop_path(out, domain.shards)


class FeedForwardTerm(Term):
    r"""Term III as one operator: :math:`A(u) = N(u)` or :math:`N(\mathrm{LN}\,u)`, N a pointwise
    network d → d_ff → ... → d, no skip.

    Args:
        dim: d.
        hidden: d_ff, or the widths of several hidden layers; J is their number plus one.
        activation: after all layers but the last: a name or a module.
        bias: of every layer.
        norm: None, or a map of the features before the network (the pre-norm scheme).
        dropout: after every activation and after the last layer, in training.
        drop_path: of the rate, in training.

    The substep ``relaxed`` is the paper's Eq. 18-20, :math:`\tfrac12(u + N(u))`, for h = 1 only.

    Reference: continuous transformer, Eq. 18-20, 42, 43.

    Example:
        >>> term = FeedForwardTerm(8, 32, activation="gelu")
        >>> term(torch.zeros(1, 4, 8), Domain.line(4), 1.0).shape
        torch.Size([1, 4, 8])
    """

    serves: ClassVar[tuple[str, ...]] = (*EXPLICIT, "relaxed")
    norm = Part()
    layers = Part()
    dropout = Part()
    drop_path = Part()

    def __init__(
        self,
        dim: int,
        hidden: int | tuple[int, ...],
        *,
        activation: str | nn.Module = "relu",
        bias: bool = True,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        substep: str = "auto",
    ):
        super().__init__(dim, substep)
        if isinstance(activation, str) and activation not in ACTIVATIONS:
            raise OptionError(
                f"unknown activation {activation!r}{suggest(activation, ACTIVATIONS)}, or pass a "
                "module"
            )
        if isinstance(hidden, int):
            hidden = (hidden,)
        widths = (dim, *hidden, dim)
        if min(widths) < 1:
            raise OptionError(f"expected positive widths of a network, got {widths}")
        self.norm = norm
        layers = [nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)]
        self.layers = nn.ModuleList(layers)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.drop_path = StochasticDepth(drop_path)
        for layer in self.layers:
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            if bias:
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]

    def refusal(self, substep: str) -> str | None:
        if substep in ("implicit", "trapezoid", "exact"):
            return "that needs the solution of a nonlinear system; a LinearTerm has a closed form"
        return None

    def _activate(self, u: Tensor) -> Tensor:
        if isinstance(self.activation, str):
            return ACTIVATIONS[self.activation](u)
        return self.activation(u)

    def network(self, u: Tensor) -> Tensor:
        """Return N(u)."""
        # The modules by name: a list of modules takes ten times as long to search by number.
        *inner, last = self.layers._modules.values()
        for layer in inner:
            u = self._activate(layer(u))  # type: ignore[misc]
            u = _dropped(self.dropout, u)
        return _dropped(self.dropout, last(u))  # type: ignore[misc]

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        signal = _normed(self.norm, u)
        out = self.network(signal)
        return self.drop_path(out, domain.shards)

    def relaxed(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        if abs(h - 1.0) > STEP_ERROR:
            why = "the relaxation is the network's only skip and belongs to a step of 1"
            raise SubstepError(
                f"FeedForwardTerm cannot serve substep='relaxed' over {h}: {why}; use euler"
            )
        rate = self.rate(u, domain)
        return mix(u, rate, 0.5)

    def stages(
        self,
        u: Tensor,
        domain: Domain,
        substep: str,
    ) -> list[tuple[str, Tensor]]:
        """Return the J layers and the relaxation, for the substep ``relaxed``."""
        if substep != "relaxed":
            return []
        start = u
        states = []
        u = _normed(self.norm, u)
        for number, layer in enumerate(self.layers, 1):
            u = layer(u)
            if number < len(self.layers):
                u = self._activate(u)
            states.append((f"layer {number}", u))
        relaxed = mix(start, u, 0.5)
        return [*states, ("relaxation", relaxed)]


class LinearTerm(Term):
    r"""An affine term over the features, :math:`A(u) = W u + b`, or with ``rectify``
    :math:`W u + b - \partial I_{S_2}(u)`.

    Substeps over h: ``euler`` :math:`(I + hW)u + hb`, the layer I + W_j of the paper at h = 1;
    ``implicit`` solves
    :math:`(I - hW)v = u + hb`; ``trapezoid`` :math:`(I - \tfrac h2 W)v = (I + \tfrac h2 W)u + hb`;
    ``exact`` is
    :math:`e^{hW}u + h\varphi_1(hW)b`, and the second-order choice. With ``rectify`` there is one,
    ``semi-implicit``: explicit in W, implicit in the constraint, :math:`\max(u + h(Wu + b), 0)`.

    Reference: continuous transformer, Eq. 18, 19, 30, 42, 43.

    Example:
        >>> term = LinearTerm(3)
        >>> u = torch.ones(1, 2, 3)
        >>> bool(torch.allclose(term(u, Domain.line(2), 1.0, "exact"), u))  # W and b start at zero
        True
    """

    serves: ClassVar[tuple[str, ...]] = (
        *EXPLICIT,
        "implicit",
        "trapezoid",
        "exact",
        "semi-implicit",
    )
    automatic: ClassVar[tuple[str, str]] = ("euler", "exact")

    def __init__(
        self,
        dim: int,
        *,
        bias: bool = True,
        rectify: bool = False,
        substep: str = "auto",
    ):
        self.rectify = rectify
        super().__init__(dim, substep)
        self.weight = nn.Parameter(torch.zeros(dim, dim))
        self.bias: nn.Parameter | None = None
        if bias:
            self.bias = nn.Parameter(torch.zeros(dim))

    def check(self, substep: str) -> str:
        # One substep belongs to the rectified term alone, and no other does.
        if self.rectify:
            possible = ["semi-implicit"]
        else:
            possible = [name for name in self.serves if name != "semi-implicit"]
        if substep in self.serves and substep not in possible:
            raise SubstepError(
                f"LinearTerm with rectify={self.rectify} cannot serve substep={substep!r}; it "
                f"serves {', '.join(possible)}"
            )
        return super().check(substep)

    def resolve(self, order: int) -> str:
        if self.rectify:
            return "semi-implicit"
        return super().resolve(order)

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        if self.rectify:
            # Raises, since the constraint has no rate.
            self.check("euler")
        return F.linear(u, self.weight, self.bias)

    # The three below compute the change of u, and add it: many short substeps then round as those
    # of Euler's method do.

    def implicit(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        return self._solve(u, h, h)

    def trapezoid(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        return self._solve(u, h, h / 2)

    def exact(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        change = self._change(h)
        shift = None
        if self.bias is not None:
            shift = change[:, -1]
        matrix = change[:, : len(change)]
        return u + F.linear(u, matrix, shift)

    def _change(self, h: float) -> Tensor:
        """Return e^{hW} - I, and h φ₁(hW) b beside it where there is a bias."""
        # In double precision, of which the difference from I leaves enough digits. Apple's GPUs
        # have none.
        double = torch.float64
        if self.weight.device.type == "mps":
            double = self.weight.dtype
        generator = h * self.weight.to(double)
        if self.bias is not None:
            # One more coordinate, which is always one: its row of the generator is zero.
            column = h * self.bias.to(double)
            generator = torch.cat([generator, column[:, None]], 1)
            generator = F.pad(generator, (0, 0, 0, 1))
        flow = torch.linalg.matrix_exp(generator)
        identity = torch.eye(
            len(flow),
            dtype=flow.dtype,
            device=flow.device,
        )
        change = (flow - identity)[: len(self.weight)]
        return change.to(self.weight.dtype)

    def semi_implicit(
        self,
        u: Tensor,
        domain: Domain,
        h: float,
    ) -> Tensor:
        rate = F.linear(u, self.weight, self.bias)
        after = torch.add(u, rate, alpha=h)
        return F.relu(after)

    def _solve(
        self,
        u: Tensor,
        h: float,
        part: float,
    ) -> Tensor:
        """Return u + h (I - part · W)⁻¹ (W u + b)."""
        dtype = at_least_single(promoted(u.dtype, self.weight.dtype))
        with full_precision(u):
            weight = cast(self.weight, dtype)
            bias = None
            if self.bias is not None:
                bias = cast(self.bias, dtype)
            rate = F.linear(cast(u, dtype), weight, bias)
            identity = torch.eye(
                len(weight),
                dtype=dtype,
                device=u.device,
            )
            matrix = identity - part * weight

            # One system for all points: their rates are the columns of the right side.
            right = rate.flatten(0, -2).mT
            columns = torch.linalg.solve(matrix, right)
            change = columns.mT.reshape(u.shape)
            after = torch.add(cast(u, dtype), change, alpha=h)
            return cast(after, u.dtype)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rectify={self.rectify}"
