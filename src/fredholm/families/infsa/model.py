"""The InfViT classifier."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...depth import Accumulation, FeedForward, ResidualBlock
from ...domain import Domain
from ...encoders import ImageEncoder
from ...integral import operator_options
from ...models.decay import weight_decay_groups
from ...models.operators import make_operator
from ...models.pretrained import PretrainedMixin
from ...models.registry import register_family, register_model
from .config import InfViTConfig
from .presets import PRESETS


class InfViT(nn.Module, PretrainedMixin):
    r"""Patches, L pre-norm blocks with responses :math:`\gamma^l Z^{(l)}`, layer norm, read-out.

    Any registered operator makes the responses Z; ``operator="softmax"`` is the vision transformer
    of equal depth. The linear form's cost and memory are linear in the tokens; ``chunk`` bounds
    what its feed-forward networks hold, so that N is limited by a few (N, dim) tensors alone. The
    class token has measure 0: it reads the image, and no patch reads it.

    Shape: images (B, C, H, W), sides divisible by the patch, of any size, to logits (B,
    num_classes).

    Initialisation: output layers of operators and feed-forward networks scaled by
    :math:`1/\sqrt{2L}`; patch embedding and positions truncated normal 0.02; the classifier starts
    at zero.

    Reference: InfSA §4, Fig. 2a, Eqs. 9, 12, 21, 23.

    Example:
        >>> from fredholm.models import create_model
        >>> model = create_model("infvit_linear_pico")
        >>> model(torch.zeros(2, 1, 56, 56)).shape, model(torch.zeros(1, 1, 70, 28)).shape
        (torch.Size([2, 10]), torch.Size([1, 10]))
    """

    family = "infvit"

    def __init__(self, config: InfViTConfig):
        super().__init__()
        self.config = config
        c = config
        size: Any = c.image_size
        self.encoder: Any = ImageEncoder(
            patch=c.patch,
            channels=c.channels,
            dim=c.dim,
            pool=c.pool,
            dropout=c.dropout,
            positions=c.positions,
            grid=(size[0] // c.patch, size[1] // c.patch),
            frequencies=c.frequencies,
            sigma=c.sigma,
        )
        operators = [_operator(c, layer) for layer in range(1, c.depth + 1)]
        self.stack: Any = None
        self.blocks: Any = nn.ModuleList()
        shared: Any = {"ratio": c.mlp_ratio, "dropout": c.dropout, "chunk": c.chunk}
        if c.depth_rule == "accumulated":
            options: Any = {
                "decay": c.decay,
                "learned_decay": c.learned_decay,
                "drop_path": c.drop_path,
                **shared,
            }
            self.stack = Accumulation(operators, c.dim, **options)
        else:
            for layer, operator in enumerate(operators):
                rate = c.drop_path * layer / max(1, c.depth - 1)
                self.blocks.append(ResidualBlock(operator, c.dim, drop_path=rate, **shared))
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self._scale_outputs(operators)

    @torch.no_grad()
    def _scale_outputs(self, operators: list[nn.Module]) -> None:
        scale = (2 * len(operators)) ** -0.5
        for operator in operators:
            projection: Any = getattr(operator, "projection", None)
            if projection is not None:
                projection.weight.mul_(scale)
        for module in self.modules():
            if isinstance(module, FeedForward):
                module.contract.weight.mul_(scale)

    def forward(self, images: Tensor) -> Float[Tensor, "b classes"]:
        tokens, domain = self.features(images)
        return self.head(self.encoder.read_out(tokens, domain))

    def features(self, images: Tensor) -> tuple[Tensor, Domain]:
        """What the class is read from, normalised (B, N, D), and its domain: the stream, or S_L
        where the depth rule says so.
        """
        tokens, domain = self.encoder(images)
        if self.stack is not None:
            return self.norm(self.stack.accumulate(tokens, domain)[1]), domain
        for block in self.blocks:
            tokens = block(tokens, domain)
        return self.norm(tokens), domain

    @property
    def operators(self) -> list[nn.Module]:
        """The operators T_1 … T_L."""
        return (
            list(self.stack.operators)
            if self.stack is not None
            else [block.operator for block in self.blocks]
        )

    @torch.no_grad()
    def trace(self, inputs: Tensor) -> list[tuple[nn.Module, Tensor, Domain]]:
        """What each block's operator sees: (operator, its input u (B, N, D), domain), first block
        first.
        """
        seen: list[tuple[nn.Module, Tensor, Domain]] = []
        hooks = [
            operator.register_forward_pre_hook(lambda module, given: seen.append((module, *given)))
            for operator in self.operators
        ]
        try:
            self.features(inputs)
        finally:
            for hook in hooks:
                hook.remove()
        return seen

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """See :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)


def _operator(c: InfViTConfig, layer: int) -> nn.Module:
    """The operator of block ``layer`` (1 … L), with γ and its power where it has them."""
    options = dict(c.operator_options)
    if {"decay", "power", "learned_decay"} <= set(operator_options(c.operator)):
        if c.depth_rule == "accumulated":  # the stack applies γ itself
            options |= {"decay": c.decay, "power": 0}
        else:
            power = layer if c.depth_rule == "power" else 1
            options |= {"decay": c.decay, "learned_decay": c.learned_decay, "power": power}
    return make_operator(c.operator, c.dim, c.heads, position_dim=2, **options)


_FAMILY = register_family("infvit", InfViT, InfViTConfig)
for _name, _preset in PRESETS.items():
    register_model(_FAMILY, _name, _preset)
