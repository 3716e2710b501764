"""The Long Range Arena's classifier."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...depth import ResidualBlock
from ...domain import Domain
from ...encoders import TextEncoder
from ...errors import ShapeError
from ..decay import weight_decay_groups
from ..operators import make_operator
from ..pretrained import PretrainedMixin
from ..registry import register_family, register_model
from .config import PRESETS, LRAConfig


class LRA(nn.Module, PretrainedMixin):
    r"""Token and place vectors, L pre-norm residual blocks of an operator, layer norm, pooling, a
    network with one hidden layer.

    Of a pair, both sequences go through one encoder to a and b, and the classifier reads
    :math:`[a, b, a b, a - b]`.

    Shape: token numbers (B, N), or (B, 2, N) of pairs, 0 where padded, to logits (B, num_classes).

    Cost: the operator's, and O(N·dim·(dim + hidden)) a layer.

    Raises:
        ShapeError: inputs of another form.

    Reference: Tay et al. 2021; Chen et al. 2021 (Skyformer), whose two-layer setting is the
    default; LUNA §5.1.

    Example:
        >>> from fredholm.models import create_model
        >>> model = create_model("lra_skyformer", operator="luna", max_length=9)
        >>> model(torch.ones(2, 9, dtype=torch.int64)).shape
        torch.Size([2, 2])
    """

    family = "lra"

    def __init__(self, config: LRAConfig):
        super().__init__()
        self.config = config
        c = config
        self.encoder: Any = TextEncoder(
            vocabulary=c.vocabulary,
            dim=c.dim,
            max_length=c.max_length,
            positions="learned",
            pool=c.pool,
            dropout=c.dropout,
        )
        self.blocks: Any = nn.ModuleList(
            ResidualBlock(
                make_operator(c.operator, c.dim, c.heads, position_dim=1, **c.operator_options),
                c.dim,
                ratio=c.hidden / c.dim,
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.dim)
        read = c.dim * (4 if c.pair else 1)
        self.head = nn.Sequential(
            nn.Linear(read, c.hidden), nn.ReLU(), nn.Linear(c.hidden, c.num_classes)
        )

    def forward(self, inputs: Tensor) -> Float[Tensor, "b classes"]:
        features, domain = self.features(inputs)
        pooled = self.encoder.read_out(features, domain)
        if self.config.pair:
            a, b = pooled.unflatten(0, (-1, 2)).unbind(1)
            pooled = torch.cat([a, b, a * b, a - b], -1)
        return self.head(pooled)

    def features(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Normalised features of the last block and their domain; of pairs first and second take
        turns, (2B, N, D).
        """
        tokens, domain = self.encoder(self._rows(inputs))
        for block in self.blocks:
            tokens = block(tokens, domain)
        return self.norm(tokens), domain

    def _rows(self, inputs: Tensor) -> Tensor:
        if inputs.dim() != 2 + self.config.pair or (self.config.pair and inputs.shape[1] != 2):
            need = "(B, 2, N)" if self.config.pair else "(B, N)"
            raise ShapeError(f"token numbers must have shape {need}, got {tuple(inputs.shape)}")
        return inputs.flatten(0, 1) if self.config.pair else inputs

    @torch.no_grad()
    def trace(self, inputs: Tensor) -> list[tuple[nn.Module, Tensor, Domain]]:
        """What each block's operator sees: (operator, its input u (B, N, D), domain), first block
        first.
        """
        tokens, domain = self.encoder(self._rows(inputs))
        seen = []
        for block in self.blocks:
            seen.append((block.operator, block.norm1(tokens), domain))
            tokens = block(tokens, domain)
        return seen

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """See :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)


_FAMILY = register_family("lra", LRA, LRAConfig)
for _name, _preset in PRESETS.items():
    register_model(_FAMILY, _name, _preset)
