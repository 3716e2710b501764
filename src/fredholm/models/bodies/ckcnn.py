"""Body of a CKCNN: residual blocks of two continuous kernel convolutions each."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from ...configuration import check_counts, check_known, check_rates
from ...domain import Domain
from ...errors import OptionError
from ...integral import CausalState, create_operator
from ...integral.registry import operator_factory
from ...ops.backend import at_least_single, cast
from ..encoders import Encoder, EncoderConfig
from .body import Body, BodyConfig, register_body

NORMS = ("paper", "released")


@register_body("ckcnn")
@dataclass(frozen=True)
class CKCNNConfig(BodyConfig):
    """Residual blocks of two continuous kernel convolutions each, over sequences, texts or images.

    Attributes:
        widths: channels of each block.
        norm: ``paper``: layer norm over the channels of each point; ``released``: the authors'
            code, one norm over all channels and real points. It leaks the future to every point,
            and is refused if the encoder is causal.
        operator, operator_options: the convolution and its further options: ``omega``, ``width``,
            ``activation``, ``preset``, …
        dropout, input_dropout: after every activation, and after the input or embedding.
    """

    any_width = True

    widths: tuple[int, ...] = (30, 30)
    norm: str = "paper"
    operator: str = "ckconv"
    operator_options: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.0
    input_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_known(self, norm=NORMS)
        check_counts(self, "widths")
        check_rates(self, "dropout", "input_dropout")

    @property
    def width(self) -> int:
        return self.widths[-1]

    def build(self, encoder: Encoder, config: EncoderConfig) -> CKCNNBody:
        if self.norm == "released" and config.causal:
            raise OptionError(
                "norm: expected 'paper' beside encoder.causal=True, got 'released', which reads "
                "the whole sequence at every point; change one of the two"
            )
        first: Any = encoder.dim
        widths = pairwise([first, *self.widths])
        blocks = [self._block(config, encoder.position_dim, *pair) for pair in widths]
        return CKCNNBody(blocks, input_dropout=self.input_dropout)

    def _block(
        self,
        data: EncoderConfig,
        position_dim: int,
        d_in: int,
        d_out: int,
    ) -> CKBlock:
        """Return one block, of kernels as long as the training input."""
        known = inspect.signature(operator_factory(self.operator)).parameters
        if "out_dim" not in known or "length" not in known:
            raise OptionError(
                "operator: expected a convolution with out_dim and length, got "
                f"{self.operator!r}; choose one such as 'ckconv'"
            )
        options: dict[str, Any] = {"length": data.points}
        if position_dim > 1:
            options["position_dim"] = position_dim
        if not data.causal:
            # Without an order a kernel reads both sides of its point.
            options["origin"] = "centre"
        spacing = getattr(data, "spacing", 1.0)
        if spacing < 1:
            # Samples finer than in training would alias.
            options["blur"] = spacing
        options |= self.operator_options

        operators: list[nn.Module] = []
        norms: list[nn.Module] = []
        for dim in (d_in, d_out):
            operators.append(create_operator(self.operator, dim, 1, out_dim=d_out, **options))
            if self.norm == "paper":
                norms.append(nn.LayerNorm(d_out))
            else:
                norms.append(WholeNorm(d_out))
        return CKBlock(operators, norms, self.dropout)


class WholeNorm(nn.GroupNorm):
    """One mean and variance over all channels and real points, one gain and bias per channel:
    (B, N, D) to (B, N, D), zero at padding.

    Reference: the authors' released code, whose layer norm this is.
    """

    def __init__(self, dim: int):
        super().__init__(1, dim, eps=1e-12)

    def forward(self, input: Tensor, valid: Tensor | None = None) -> Tensor:
        if valid is None:
            return super().forward(input.mT).mT
        # Padding counts neither for the mean nor for the variance.
        real = valid[..., None]
        u = torch.where(real, cast(input, at_least_single(input.dtype)), 0.0)
        count = (real.sum((1, 2), keepdim=True) * input.shape[2]).clamp(min=1)
        mean = u.sum((1, 2), keepdim=True) / count
        centred = torch.where(real, u - mean, 0.0)
        variance = centred.square().sum((1, 2), keepdim=True) / count
        out = centred * (variance + self.eps).rsqrt() * self.weight + self.bias
        return cast(torch.where(real, out, 0.0), input.dtype)


class CKBlock(nn.Module):
    r"""A residual block: twice convolution, norm, ReLU, dropout; then the sum with the input and a
    last ReLU.

    Shape: (B, N, dim) and a domain to (B, N, out_dim).

    Reference: CKConv Fig. 8.

    Example:
        >>> import torch
        >>> from fredholm.operators import CKConv
        >>> convolutions = [CKConv(3, out_dim=5, length=9), CKConv(5, length=9)]
        >>> block = CKBlock(convolutions, [nn.LayerNorm(5), nn.LayerNorm(5)])
        >>> block(torch.randn(2, 9, 3), Domain.line(9, causal=True, measure="counting")).shape
        torch.Size([2, 9, 5])
    """

    def __init__(
        self,
        operators: list[nn.Module],
        norms: list[nn.Module],
        dropout: float = 0.0,
    ):
        super().__init__()
        first: Any = operators[0]
        self.operators = nn.ModuleList(operators)
        self.norms = nn.ModuleList(norms)
        self.dropout = nn.Dropout(dropout)
        self.skip = None
        if first.dim != first.out_dim:
            # Another width needs a linear map on the way around.
            self.skip = nn.Linear(first.dim, first.out_dim)
            nn.init.kaiming_normal_(self.skip.weight)
            nn.init.zeros_(self.skip.bias)

    def forward(self, u: Float[Tensor, "b n d"], domain: Domain) -> Float[Tensor, "b n o"]:
        out = u
        for operator, norm in zip(self.operators, self.norms):
            out = operator(out, domain)
            if isinstance(norm, WholeNorm):
                out = norm(out, domain.valid)
            else:
                out = norm(out)
            out = self.dropout(functional.relu(out))
        return self._with_input(out, u)

    def _with_input(self, out: Tensor, u: Tensor) -> Tensor:
        """Return the block's output ReLU(out + u), where ``out`` is that of the branch and u the
        input, mapped to its width.
        """
        if self.skip is not None:
            u = self.skip(u)
        return functional.relu(out + u)

    def advance(
        self,
        u: Float[Tensor, "b ... d"],
        states: list[CausalState],
        move: str,
    ) -> tuple[Float[Tensor, "b ... o"], list[CausalState]]:
        """Advance by the next point or stretch, by the convolutions' ``step`` or ``prefill``, and
        return the block's output there and both convolutions' states after it.
        """
        out = u
        after = []
        for operator, norm, state in zip(self.operators, self.norms, states):
            out, new = getattr(operator, move)(out, state)
            out = self.dropout(functional.relu(norm(out)))
            after.append(new)
        return self._with_input(out, u), after


class CKCNNBody(Body):
    """Blocks of two :class:`fredholm.operators.CKConv` each, on a counting measure: they sum.

    Cost: O(N log N) per layer on a regular grid, O(N²) time and O(N) memory on timestamps.

    Reference: CKConv §5, Fig. 8, Tables 8 and 9.

    Example:
        >>> import torch
        >>> from fredholm.models import create_model
        >>> model = create_model("ckcnn_small")
        >>> model(torch.zeros(2, 784, 1)).shape, sum(p.numel() for p in model.parameters())
        (torch.Size([2, 10]), 98286)
    """

    def __init__(self, blocks: list[CKBlock], *, input_dropout: float = 0.0):
        super().__init__()
        self.input_dropout = nn.Dropout(input_dropout)
        self.blocks: Any = nn.ModuleList(blocks)

    @property
    def operators(self) -> list[nn.Module]:
        """The first convolution of each block."""
        return [block.operators[0] for block in self.blocks]

    def forward(self, u: Tensor, domain: Domain) -> tuple[Tensor, Domain]:
        domain = _summing(domain)
        # A norm over all points would need those of all ranks.
        if domain.shards is not None and any(isinstance(m, WholeNorm) for m in self.modules()):
            domain.refuse_shards("norm='released', one norm over all points")
        u = self.input_dropout(u)
        for block in self.blocks:
            u = block(u, domain)
        return u, domain

    def init_state(self, batch: int, domain: Domain) -> tuple[list[CausalState], ...]:
        domain = _summing(domain)
        states = []
        for block in self.blocks:
            states.append([operator.init_state(batch, domain) for operator in block.operators])
        return tuple(states)

    def advance(
        self,
        u: Tensor,
        states: tuple[list[CausalState], ...],
        move: str,
    ) -> tuple[Tensor, tuple[list[CausalState], ...]]:
        u = self.input_dropout(u)
        after = []
        for block, before in zip(self.blocks, states):
            u, new = block.advance(u, before, move)
            after.append(new)
        return u, tuple(after)


def _summing(domain: Domain) -> Domain:
    """Return the domain over which a convolution sums: of equal masses each is one."""
    if domain.kind != "uniform":
        return domain
    return domain.replace(kind="counting")
