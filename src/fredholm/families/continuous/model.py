"""The continuous transformer: an encoder, an evolution by operator splitting, a read-out."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...domain import Domain
from ...models.decay import weight_decay_groups
from ...models.pretrained import PretrainedMixin
from ...models.registry import register_family, register_model
from .build import make_encoder, make_evolution, stage_configs
from .config import ContinuousConfig
from .presets import PRESETS
from .splitting import ConvolutionalEmbedding, Evolution, Observer, OperatorTerm, Substep


class ContinuousTransformer(nn.Module, PretrainedMixin):
    r"""Encoder, then :math:`u_t = \text{attention} + \text{network} + \text{constraints}` solved on
    [0, T], pooling, linear read-out.

    Depth is a numerical choice: ``forward(inputs, steps=N)`` takes N time steps with the same
    weights. At N = K = T and the Lie scheme the model is an ordinary encoder, post-norm or pre-norm
    by ``config.norm``.

    Shape: images (B, C, H, W) or token numbers (B, N) to logits (B, num_classes).

    Initialisation: Xavier-uniform terms, output layers scaled by :math:`1/\sqrt{2K}` unless
    post-norm; the classifier starts at zero.

    Reference: continuous transformer, Eq. 10, 13, 16-21, 57.

    Example:
        >>> from fredholm.models import create_model
        >>> model = create_model("continuous_text_micro", vocabulary=10)
        >>> tokens = torch.tensor([[4, 2, 0], [3, 9, 9]])
        >>> model(tokens).shape, model(tokens, steps=16).shape
        (torch.Size([2, 2]), torch.Size([2, 2]))
    """

    family = "continuous"

    def __init__(self, config: ContinuousConfig):
        super().__init__()
        self.config = config
        self.encoder: Any = make_encoder(config)
        stages = stage_configs(config)
        self.evolutions: Any = nn.ModuleList(
            make_evolution(stage, self.encoder.position_dim) for stage in stages
        )
        widths = [config.channels, *(stage[0] for stage in config.stages)]
        self.embeddings: Any = nn.ModuleList(
            ConvolutionalEmbedding(before, after, 2 * stride - 1, stride=stride)
            for before, (after, _, _, stride) in zip(widths, config.stages)
        )
        self.head = nn.Linear(config.dim, config.num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(
        self, inputs: Tensor, steps: int | None = None, observer: Observer | None = None
    ) -> Float[Tensor, "b classes"]:
        u, domain = self.features(inputs, steps, observer)
        return self.head(self.encoder.read_out(u, domain))

    def features(
        self, inputs: Tensor, steps: int | None = None, observer: Observer | None = None
    ) -> tuple[Tensor, Domain]:
        """u(T) (B, N, D) and its domain, of the last stage where there are several. ``observer`` is
        told of every substep.
        """
        u, domain = self.start(inputs, steps, observer)
        return self.evolution(u, domain, steps=steps, observer=observer), domain

    def start(
        self, inputs: Tensor, steps: int | None = None, observer: Observer | None = None
    ) -> tuple[Tensor, Domain]:
        """u(0) of the evolution, or of the last stage's where there are several, and its domain."""
        u, domain = self.encoder(inputs)
        for number, embedding in enumerate(self.embeddings):
            if number:
                before = self.evolutions[number - 1]
                u = before(u, domain, steps=self._steps(before, steps), observer=observer)
            u, domain = embedding(u, domain)
        return u, domain

    @property
    def evolution(self) -> Evolution:
        """The evolution, of the last stage where there are several."""
        return self.evolutions[-1]

    def _steps(self, evolution: Evolution, steps: int | None) -> int | None:
        """Steps of one stage: as many per unit of time as ``steps`` are in the last."""
        if steps is None:
            return None
        return max(1, round(steps * evolution.horizon / self.evolution.horizon))

    @torch.no_grad()
    def trace(self, inputs: Tensor) -> list[tuple[nn.Module, Tensor, Domain]]:
        """What each step's attention term sees: (operator, its input u (B, N, D), domain), first
        step first, of the last stage.

        Where a scheme acts more than once per step, its first time. Interpolated controls show the
        operator of the nearest knot.
        """
        first: dict[int, tuple[nn.Module, Tensor]] = {}

        def look(substep: Substep) -> None:
            term = substep.term
            if isinstance(term, OperatorTerm) and substep.step not in first:
                seen = substep.before if term.norm is None else term.norm(substep.before)
                first[substep.step] = term.operator, seen

        u, domain = self.start(inputs)
        self.evolution(u, domain, observer=look)
        return [(operator, u, domain) for operator, u in first.values()]

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """See :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)


_FAMILY = register_family("continuous", ContinuousTransformer, ContinuousConfig)
for _name, _preset in PRESETS.items():
    register_model(_FAMILY, _name, _preset)
