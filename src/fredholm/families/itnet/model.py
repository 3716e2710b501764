"""The ITNet classifier."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...depth import ResidualBlock
from ...domain import Domain
from ...encoders import Inputs
from ...errors import OptionError, ShapeError
from ...integral import CausalState
from ...models.decay import weight_decay_groups
from ...models.operators import make_operator
from ...models.pretrained import PretrainedMixin
from ...models.registry import register_family, register_model
from .build import make_encoder
from .config import ITNetConfig
from .presets import PRESETS


class ITNet(nn.Module, PretrainedMixin):
    r"""Encoder, L pre-norm residual blocks of an operator, layer norm, pooling, linear read-out.

    The same backbone takes every registered operator (``config.operator``), so that operators
    can be compared.

    Shape: what ``config.encoder`` reads (images (B, C, H, W), clouds (B, N, p), token numbers (B,
    N), fields (B, C, n1, n2), or
    :class:`fredholm.encoders.Inputs` of a graph or of pictures and texts) to logits (B,
    num_classes); with ``pool == "every"`` and for fields (B, N, num_classes).

    Initialisation: the operators' and feed-forward networks' output layers are scaled by
    :math:`1/\sqrt{2L}`; patch embedding truncated normal 0.02; the classifier starts at zero.

    Reference: ITNet §3.4, Table 10, App. H.

    Example:
        >>> from fredholm.models import create_model
        >>> create_model("itnet_nano")(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    family = "itnet"

    def __init__(self, config: ITNetConfig):
        super().__init__()
        self.config = config
        c = config
        self.encoder: Any = make_encoder(c)
        self.blocks: Any = nn.ModuleList(
            ResidualBlock(
                make_operator(
                    c.operator,
                    c.dim,
                    c.heads,
                    position_dim=self.encoder.position_dim,
                    **c.operator_options,
                ),
                c.dim,
                ratio=c.mlp_ratio,
                dropout=c.dropout,
                drop_path=c.drop_path * i / max(1, c.depth - 1),
            )
            for i in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.views * c.dim, c.num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        for block in self.blocks:
            block.scale_outputs((2 * len(self.blocks)) ** -0.5)

    def forward(self, inputs: Tensor | Inputs) -> Float[Tensor, "b *n classes"]:
        if self.config.views > 1:
            return self._views(inputs)
        tokens, domain = self.features(inputs)
        return self.head(self.encoder.read_out(tokens, domain))

    def _views(self, inputs: Any) -> Tensor:
        """Logits of samples with several pictures (B, V, C, H, W) and one text each: each pair by
        itself, then all read-outs at once.
        """
        images, views = inputs["image"], self.config.views
        if images.dim() != 5 or images.shape[1] != views:
            raise ShapeError(
                f"image must have shape (B, {views}, C, H, W), got {tuple(images.shape)}"
            )
        pairs = Inputs(
            image=images.flatten(0, 1), tokens=inputs["tokens"].repeat_interleave(views, 0)
        )
        return self.head(
            self.encoder.read_out(*self.features(pairs)).unflatten(0, (-1, views)).flatten(1)
        )

    def features(self, inputs: Tensor | Inputs) -> tuple[Tensor, Domain]:
        """Normalised features of the last block (B, N, D) and their domain."""
        tokens, domain = self.encoder(inputs)
        for block in self.blocks:
            tokens = block(tokens, domain)
        return self.norm(tokens), domain

    @torch.no_grad()
    def trace(self, inputs: Tensor | Inputs) -> list[tuple[nn.Module, Tensor, Domain]]:
        """What each block's operator sees: (operator, its input u (B, N, D), domain), first block
        first.
        """
        tokens, domain = self.encoder(inputs)
        seen = []
        for block in self.blocks:
            seen.append((block.operator, block.norm1(tokens), domain))
            tokens = block(tokens, domain)
        return seen

    def init_state(self, length: int, batch: int = 1) -> TextState:
        """What a causal text model remembers before its first token, for texts of up to ``length``
        tokens.

        Raises:
            OptionError: a model that gives no logits at every token of a causal text, or a longer
                text than it was built for.
        """
        c = self.config
        if c.encoder != "text" or not c.causal or c.pool != "every":
            raise OptionError(
                "init_state: needs encoder='text', causal=True and pool='every', a model of the "
                "next token"
            )
        if length > c.max_length:
            raise OptionError(
                f"length: received {length}; the model was built for texts of {c.max_length} tokens"
            )
        place = self.head.weight
        line = Domain.line(
            length, length=c.max_length, causal=True, device=place.device, dtype=place.dtype
        )
        return TextState(
            0, line, tuple(block.operator.init_state(batch, line) for block in self.blocks)
        )

    def step(
        self, numbers: Int[Tensor, " b"], state: TextState
    ) -> tuple[Float[Tensor, "b classes"], TextState]:
        """Logits after one more token, and the state after it: the same as :meth:`forward` of the
        whole text, at its last token.

        Cost: that of one point of each operator; with a separable kernel it does not grow with the
        text.

        Example:
            >>> from fredholm.models import create_model
            >>> options = {"encoder": "text", "causal": True, "pool": "every", "vocabulary": 9}
            >>> options |= {"num_classes": 9, "max_length": 8}
            >>> model = create_model("itnet_nano", operator="itnet_low_rank", **options).eval()
            >>> logits, state = model.step(torch.tensor([3, 4]), model.init_state(8, batch=2))
            >>> logits.shape, state.seen
            (torch.Size([2, 9]), 1)
        """
        u = self.encoder.point(numbers, state.domain.positions[state.seen])
        states = []
        for block, before in zip(self.blocks, state.operators):
            out, after = block.operator.step(block.norm1(u), before)
            u = u + out
            if block.feed_forward is not None:
                u = u + block.feed_forward(block.norm2(u)[:, None])[:, 0]
            states.append(after)
        return self.head(self.norm(u)), TextState(state.seen + 1, state.domain, tuple(states))

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """See :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)


@dataclass(frozen=True, eq=False)
class TextState:
    """What a text model remembers of a text so far: how many tokens came, the line they lie on, and
    every operator's state.
    """

    seen: int
    domain: Domain
    operators: tuple[CausalState, ...]


_FAMILY = register_family("itnet", ITNet, ITNetConfig)
for _name, _preset in PRESETS.items():
    register_model(_FAMILY, _name, _preset)
