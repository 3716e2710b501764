"""Encoders of texts that differ only in their attention.

A block has an attention, a depthwise convolution beside it, and a network per token. Neither of
them depends on the length of the text or on absolute positions: the convolution alone tells
neighbours from other words. An encoder that was trained on short texts can therefore read long
ones.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm import Domain
from fredholm.operators import IntegralOperator, create_operator

DIM, HEADS, BLOCKS = 64, 2, 2
FEATURES = 64
"""Features of a key per head, the same for all linear attentions but elu + 1, which has 32."""

LINEAR = "linear_attention"
ATTENTIONS: dict[str, dict[str, Any]] = {
    "luna": {"name": "luna"},
    "hedgehog": {
        "name": LINEAR,
        "feature_map": "hedgehog",
        "feature_options": {"softmax": True},
    },
    "softmax": {"name": "softmax"},
    "performer": {
        "name": LINEAR,
        "feature_map": "performer",
        "feature_options": {"features": FEATURES},
    },
    "elu + 1": {"name": LINEAR, "feature_map": "elu"},
}


class Neighbours(nn.Module):
    """A depthwise convolution of three taps as three shifted products, (B, N, D) to (B, N, D).

    On a CPU it takes a fifth of the time of torch's convolution.
    """

    def __init__(self, dim: int):
        super().__init__()
        self.taps = nn.Parameter(torch.randn(3, dim) * 3**-0.5)

    def forward(self, h: Tensor) -> Tensor:
        before, here, after = self.taps
        padded = F.pad(h, (0, 0, 1, 1))
        return padded[:, :-2] * before + h * here + padded[:, 2:] * after


class Block(nn.Module):
    """A residual block: an attention and a convolution side by side, then a network per token."""

    def __init__(self, attention: str):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(2))
        self.attention = create_operator(dim=DIM, heads=HEADS, **ATTENTIONS[attention])
        self.neighbours = Neighbours(DIM)
        self.network = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, h: Tensor, domain: Domain) -> Tensor:
        mixing, per_token = self.norms
        mixed = mixing(h)
        h = h + self.attention(mixed, domain) + self.neighbours(mixed)
        return h + self.network(per_token(h))


class TextEncoder(nn.Module):
    """An encoder with a readout of words, whose weights are those of the embedding.

    Args:
        attention: a name of :data:`ATTENTIONS`.
        words: number of token numbers.
    """

    def __init__(self, attention: str, words: int):
        super().__init__()
        self.embed = nn.Embedding(words, DIM)
        nn.init.normal_(self.embed.weight, std=DIM**-0.5)
        self.blocks = nn.ModuleList(Block(attention) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(DIM)
        self.bias = nn.Parameter(torch.zeros(words))

    def forward(self, tokens: Tensor, places: Tensor) -> Tensor:
        """Return logits (B, P, words) of the words at ``places`` (B, P) of ``tokens`` (B, N)."""
        domain = Domain.line(tokens.shape[1])
        h = self.embed(tokens)
        for block in self.blocks:
            h = block(h, domain)

        at = places[..., None].expand(-1, -1, DIM)
        read = self.norm(h.gather(1, at))
        return F.linear(read, self.embed.weight, self.bias)

    def attentions(self) -> list[IntegralOperator]:
        """Return the attention of every block."""
        return [one for one in self.modules() if isinstance(one, IntegralOperator)]
