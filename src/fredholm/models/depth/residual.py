"""Pre-norm residual blocks."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...distributed import Shards
from ...domain import Domain
from ...errors import OptionError
from ...integral import CausalState
from ...ops.plain import recomputed
from ...stochastic_depth import StochasticDepth


class FeedForward(nn.Module):
    """Pointwise network d → ratio·d → d with GELU, dropout inside, Xavier-uniform weights.

    Args:
        dim: d.
        ratio: expansion.
        dropout: of the hidden units.
        chunk: points computed at once; None: all. The hidden units then need ``chunk`` · ratio·d
            numbers per sample, whatever N is, forward and backward; the backward computes them a
            second time. It changes no weight and no output, and may be set later.

    Raises:
        OptionError: a chunk below one point.

    Example:
        >>> FeedForward(8, ratio=4)(torch.zeros(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(
        self,
        dim: int,
        *,
        ratio: float = 4.0,
        dropout: float = 0.0,
        chunk: int | None = None,
    ):
        super().__init__()
        if chunk is not None and chunk < 1:
            raise OptionError(
                f"chunk: expected 1 point at once or more, got {chunk}; None sets no limit"
            )
        hidden = round(ratio * dim)
        self.expand = nn.Linear(dim, hidden)
        self.activation = nn.GELU()
        self.dropout = nn.Dropout(dropout)
        self.contract = nn.Linear(hidden, dim)
        self.chunk = chunk
        for layer in (self.expand, self.contract):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, u: Tensor) -> Tensor:
        if self.chunk is None or u.shape[-2] <= self.chunk:
            return self._apply_to(u)
        parts = u.split(self.chunk, dim=-2)
        if torch.is_grad_enabled():
            # The backward computes the hidden units of a piece again.
            return torch.cat([recomputed(self._apply_to, part) for part in parts], dim=-2)

        # Pieces are written into one result, so that they are not held twice.
        first = self._apply_to(parts[0])
        out = first.new_empty(u.shape)
        pieces = out.split(self.chunk, dim=-2)
        pieces[0].copy_(first)
        for piece, part in zip(pieces[1:], parts[1:]):
            piece.copy_(self._apply_to(part))
        return out

    def _apply_to(self, u: Tensor) -> Tensor:
        return self.contract(self.dropout(self.activation(self.expand(u))))

    def extra_repr(self) -> str:
        if self.chunk is None:
            return ""
        return f"chunk={self.chunk}"


def output_layers(operator: nn.Module) -> list[Any]:
    """Return the output projections of an operator, those of a sum's parts among them."""
    parts = getattr(getattr(operator, "kernel", None), "parts", [operator])
    found = (getattr(part, "projection", None) for part in parts)
    return [projection for projection in found if projection is not None]


class ResidualBlock(nn.Module):
    r"""Any operator in a pre-norm block: :math:`v = u + \mathrm{Drop}(T(\mathrm{LN}\,u))`,
    :math:`u' = v + \mathrm{FFN}(\mathrm{LN}\,v)`.

    Args:
        operator: maps (B, N, D) on a domain to (B, N, D).
        dim: D.
        ratio: expansion of the feed-forward network; 0 leaves it out.
        dropout: after the operator and inside the feed-forward network.
        drop_path: stochastic depth of both branches.
        chunk: points that the feed-forward network computes at once, see :class:`FeedForward`.

    Reference: ITNet Eqs. 5, 194.

    Example:
        >>> from fredholm.operators import create_operator
        >>> block = ResidualBlock(create_operator("softmax", 8, heads=2), 8)
        >>> block(torch.zeros(1, 4, 8), Domain.line(4)).shape
        torch.Size([1, 4, 8])
    """

    def __init__(
        self,
        operator: nn.Module,
        dim: int,
        *,
        ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        chunk: int | None = None,
    ):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.operator = operator
        self.dropout = nn.Dropout(dropout)
        self.norm2 = self.feed_forward = None
        if ratio:
            self.norm2 = nn.LayerNorm(dim)
            self.feed_forward = FeedForward(
                dim,
                ratio=ratio,
                dropout=dropout,
                chunk=chunk,
            )
        self.drop_path = StochasticDepth(drop_path)

    @torch.no_grad()
    def scale_outputs(self, factor: float) -> None:
        """Multiply the output layers of both branches: the operator's projection and the last
        matrix of the feed-forward network.
        """
        for projection in output_layers(self.operator):
            projection.weight.mul_(factor)
        if self.feed_forward is not None:
            self.feed_forward.contract.weight.mul_(factor)

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        return self._added(
            u,
            self.operator(self.norm1(u), domain),
            domain.shards,
        )

    def _added(self, u: Tensor, branch: Tensor, shards: Shards | None = None) -> Tensor:
        """Return the stream u after both residual additions: the operator's branch, which is
        given, and the feed-forward branch, which is computed here.

        Args:
            u: the stream before the block, (B, N, D), or (B, D) for a step at one point.
            branch: the operator's response to the normalised stream, of the same shape.
            shards: the ranks that hold the points of each sample, which must agree on the samples
                whose branch stochastic depth drops; None where one process has all points.
        """
        u = u + self.drop_path(self.dropout(branch), shards)
        # With a ratio of 0 a block has no feed-forward network.
        if self.feed_forward is not None and self.norm2 is not None:
            u = u + self.drop_path(self.feed_forward(self.norm2(u)), shards)
        return u

    def advance(
        self,
        u: Float[Tensor, "b ... d"],
        state: CausalState,
        move: str,
    ) -> tuple[Float[Tensor, "b ... d"], CausalState]:
        """Return the outputs at the next points of a causal domain, by the operator's ``step`` or
        ``prefill``, and the state after them.
        """
        out, after = getattr(self.operator, move)(self.norm1(u), state)
        return self._added(u, out), after
