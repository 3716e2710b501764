"""Texts as signals on a line of tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError, ShapeError, suggest
from ..integral import FourierFeatures

POOLS = ("mean", "cls", "last", "every")
POSITIONS = ("fourier", "learned", "none")


class TextEncoder(nn.Module):
    r"""Token numbers as points of a line: features :math:`E[t_i] + p(x_i)` at
    :math:`x_i = i / \mathrm{max\_length}`.

    Number 0 is padding: its points are not valid, so nothing reads them. The line's scale is fixed,
    so a batch padded to another length gives the same features.

    Args:
        vocabulary: how many token numbers there are, padding included.
        dim: width D of the features.
        max_length: the unit of positions, and the longest text where positions are learned.
        positions: ``fourier``: p(x) = P γ(x), a function of the coordinate; ``learned``: a table of
            ``max_length`` rows; ``none``: for operators that read positions themselves.
        pool: ``mean`` over the real tokens; ``cls``: a class token in front with measure 0, it
            reads the text and no token reads it; ``last``: the last real token; ``every``: all
            tokens, each read out by itself.
        causal: a token sees those up to its own.
        frequencies, sigma: of γ.
        dropout: after the embedding.

    Shape: numbers (B, N) int64 to features (B, N, D) and a domain of N points (one more with a
    class token, which comes first).

    Raises:
        OptionError: unknown positions or pool, or a class token in front of a causal text, where it
            would see nothing.
        ShapeError: numbers that are no (B, N) integers, or longer than a learned table.

    Reference: continuous transformer §2.1 (tokens x, features y); ITNet §3.4 for positions as raw
    coordinates.

    Example:
        >>> encoder = TextEncoder(vocabulary=10, dim=8, max_length=6)
        >>> features, domain = encoder(torch.tensor([[4, 2, 0], [3, 9, 9]]))
        >>> features.shape, domain.valid.tolist()
        (torch.Size([2, 3, 8]), [[True, True, False], [True, True, True]])
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        dim: int,
        max_length: int,
        positions: str = "fourier",
        pool: str = "mean",
        causal: bool = False,
        frequencies: int = 16,
        sigma: float = 3.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        if positions not in POSITIONS:
            raise OptionError(
                f"positions: received {positions!r}{suggest(str(positions), POSITIONS)}"
            )
        if pool not in POOLS:
            raise OptionError(f"pool: received {pool!r}{suggest(str(pool), POOLS)}")
        if causal and pool == "cls":
            raise OptionError(
                "pool: a class token in front of a causal text sees nothing; use pool='last' or "
                "'mean'"
            )
        self.pool, self.causal, self.max_length, self.position_dim = pool, causal, max_length, 1
        self.embed = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.fourier = FourierFeatures(1, frequencies, sigma) if positions == "fourier" else None
        self.position = (
            nn.Linear(2 * frequencies, dim, bias=False) if positions == "fourier" else None
        )
        self.table = nn.Parameter(torch.empty(max_length, dim)) if positions == "learned" else None
        self.token = nn.Parameter(torch.empty(dim)) if pool == "cls" else None
        self.dropout = nn.Dropout(dropout)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        r"""Embeddings normal with variance 1 / D, positions truncated normal 0.02, so that tokens
        outweigh their places; padding zero.
        """
        nn.init.normal_(self.embed.weight, std=self.embed.embedding_dim**-0.5)
        for weight in (self.table, self.token, self.position.weight if self.position else None):
            if weight is not None:
                nn.init.trunc_normal_(weight, std=0.02)
        self.embed.weight[0] = 0.0

    def forward(self, numbers: Int[Tensor, "b n"]) -> tuple[Float[Tensor, "b m d"], Domain]:
        domain = self.domain(numbers)
        features = self.embed(numbers)
        if self.table is not None:
            features = features + self.table[: numbers.shape[1]]
        if self.token is not None:
            token = self.token.to(features.dtype).expand(numbers.shape[0], 1, -1)
            features = torch.cat([token, features], 1)
        if self.fourier is not None and self.position is not None:
            features = features + self.position(
                self.fourier(domain.positions).to(self.position.weight.dtype)
            )
        return self.dropout(features), domain

    def point(
        self, numbers: Int[Tensor, " b"], position: Float[Tensor, " 1"]
    ) -> Float[Tensor, "b d"]:
        """Features of one token of each text at one position: what :meth:`forward` gives there.

        Raises:
            OptionError: learned positions, which are no function of the position.
        """
        if self.table is not None:
            raise OptionError(
                "positions: a learned table has no value between its rows; use 'fourier' to go "
                "token by token"
            )
        features = self.embed(numbers)
        if self.fourier is not None and self.position is not None:
            features = features + self.position(
                self.fourier(position).to(self.position.weight.dtype)
            )
        return self.dropout(features)

    def domain(self, numbers: Tensor) -> Domain:
        """The line of these tokens, padding marked, and the class token's point at its start if
        there is one.
        """
        if numbers.dim() != 2 or numbers.is_floating_point() or numbers.shape[1] < 1:
            raise ShapeError(
                f"token numbers must be integers (B, N), got {tuple(numbers.shape)} of "
                f"{numbers.dtype}"
            )
        if self.table is not None and numbers.shape[1] > self.max_length:
            raise ShapeError(
                f"learned positions end at {self.max_length} tokens, got {numbers.shape[1]}; cut "
                "the text"
            )
        dtype = self.embed.weight.dtype
        line = Domain.line(
            numbers.shape[1],
            length=self.max_length,
            causal=self.causal,
            device=numbers.device,
            dtype=dtype,
        )
        line = line.replace(
            valid=numbers != 0
        )  # the positions stay those of one grid, shared by the batch
        if self.token is None:
            return line
        return Domain.join(
            Domain.points(torch.zeros_like(line.positions[:1])), line, balance=(0.0, 1.0)
        )

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The text's one feature vector (B, D): the class token, the mean over real tokens, or the
        last of them; or every token's.

        A text without a token gives zeros (but for the class token).
        """
        if self.pool == "every":
            return features
        if self.token is not None:
            return features[:, 0]
        valid = domain.valid
        if valid is None:
            return features[:, -1] if self.pool == "last" else features.mean(1)
        if self.pool == "mean":
            total = torch.where(valid[..., None], features, 0.0).sum(1)
            return total / valid.sum(1, keepdim=True).clamp(min=1)
        steps = torch.arange(valid.shape[1], device=valid.device)
        last = torch.where(valid, steps, -1).amax(1)
        chosen = features[torch.arange(len(features), device=valid.device), last.clamp(min=0)]
        return torch.where(last[:, None] >= 0, chosen, 0.0)
