"""The model class: an encoder, a body, a head."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError
from ..integral import load_state
from ..integral.state import State
from .bodies.body import Seen
from .config import ModelConfig
from .decay import weight_decay_groups
from .encoders import Inputs
from .heads import Offset, read_out
from .pretrained import PretrainedMixin


@dataclass(frozen=True, eq=False)
class TextState(State):
    """State of a text model after the tokens so far: their number, their domain, and the state of
    every layer.
    """

    seen: int
    domain: Domain
    layers: tuple[Any, ...]


class Model(nn.Module, PretrainedMixin):
    r"""A model: ``head(read_out(body(encoder(inputs))))``.

    The encoder maps raw data to features on a domain, the body features to features, the head
    features to an answer. Named models (:func:`fredholm.models.create_model`) and users'
    configurations all build this class.

    Shape: the encoder's inputs (images (B, C, H, W), clouds (B, N, p), token numbers (B, N),
    sequences (B, N, C), fields (B, C, n1, n2), or :class:`fredholm.encoders.Inputs` of several
    tensors) to (B, outputs); if ``config.pool`` is ``every``, to (B, N, outputs).

    Cost: that of the body.

    Raises:
        OptionError: parts that do not fit one another.

    Example:
        >>> from fredholm.encoders import ImageConfig
        >>> from fredholm.models import LinearConfig, ModelConfig, ResidualConfig
        >>> body = ResidualConfig(dim=8, heads=2, depth=1, operator="softmax")
        >>> model = Model(ModelConfig(ImageConfig(patch=7), body, LinearConfig(outputs=3)))
        >>> model(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 3])
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.pool = config.pool
        self.views = config.encoder.views
        body = config.body
        # The order matters: each part draws its weights, and a seed promises the same ones.
        width = body.width
        if body.any_width:
            width = None
        self.encoder: Any = config.encoder.build(
            width,
            dropout=body.dropout,
            class_token=self.pool == "cls",
        )
        self.body: Any = body.build(self.encoder, config.encoder)
        self.head: Any = config.head.build(body.width, self.views)
        self.offset = None
        if config.head.offset:
            self.offset = Offset(config.head.offset)

    def forward(
        self,
        inputs: Tensor | Inputs,
        mesh: Any = None,
        **options: Any,
    ) -> Float[Tensor, "b *n outputs"]:
        """Return the answer to a batch of inputs.

        Args:
            inputs: the batch.
            mesh: a torch ``DeviceMesh`` of one dimension, all of whose ranks call this together.
                The inputs are then this rank's part of every sample's points, in the order of the
                ranks: points of clouds and sequences, rows of fields and images. The answer is that
                of :meth:`answer`; for gradients see
                :func:`fredholm.distributed.sum_gradients`.
            options: of the body, such as the ``steps`` of a continuous one.

        Raises:
            OptionError: an encoder that needs complete samples, see
                :meth:`fredholm.encoders.Encoder.part`.
            DomainError: an operator without an exchange between ranks.
        """
        if mesh is None:
            u, domain = self._encoded(inputs)
        else:
            u, domain = self.encoder.part(inputs, mesh)
        return self.answer(u, domain, **options)

    def _encoded(self, inputs: Tensor | Inputs) -> tuple[Tensor, Domain]:
        """Return features and their domain, which has a mask only where there is padding."""
        features, domain = self.encoder(inputs)
        return features, domain.unpadded()

    def answer(self, u: Tensor, domain: Domain, **options: Any) -> Float[Tensor, "b *n outputs"]:
        """Return the model's answer from the encoder's features (B, N, D) and their domain.

        On a sharded domain, the features are those of one rank's points. The answer is the same
        on every rank or, if ``config.pool`` is ``every``, that at the rank's points.
        """
        features, domain = self.body(u, domain, **options)
        result = read_out(features, domain, self.pool)
        # Views are neighbours in the batch: the head reads those of a sample together.
        if self.views > 1:
            result = result.unflatten(0, (-1, self.views))
        return self._answered(result)

    def _answered(self, result: Tensor) -> Tensor:
        answers = self.head(result, self.encoder)
        if self.offset is None:
            return answers
        return self.offset(answers)

    def features(self, inputs: Tensor | Inputs, **options: Any) -> tuple[Tensor, Domain]:
        """Return the body's features (B, N, D) and their domain; for V views (V·B, N, D), with the
        views of a sample one after the other.
        """
        return self.body(*self._encoded(inputs), **options)

    @torch.no_grad()
    def trace(self, inputs: Tensor | Inputs) -> list[Seen]:
        """Return the input of each layer's operator: (operator, u (B, N, D), domain), in the order
        of the layers.
        """
        return self.body.trace(*self._encoded(inputs))

    # --- point by point ---------------------------------------------------------------------------

    def init_state(self, length: int, batch: int = 1) -> TextState:
        """Return the state of a causal text model before its first token, for texts of up to
        ``length`` tokens.

        Raises:
            OptionError: a model that does not compute logits at every token of a causal text, or a
                longer text than it was built for.
        """
        if not self.config.encoder.causal or self.pool != "every":
            raise OptionError(
                "init_state: expected a model of the next token, got another; build it with an "
                "encoder of texts, causal=True and head.pool='every'"
            )
        line = self.encoder.line(length)
        return TextState(0, line, self.body.init_state(batch, line))

    def load_state(self, path: str | Path) -> TextState:
        """Return the state that ``state.save(path)`` wrote, possibly in another process, for this
        model or for one of the same configuration and weights.

        Raises:
            CheckpointError: a file that is missing or is not a state, or a state of other layers or
                algorithms.
        """
        device = next(self.parameters()).device
        return load_state(path, lambda line, batch: self.init_state(line.size, batch), device)

    def prefill(
        self,
        numbers: Int[Tensor, "b n"],
        state: TextState,
    ) -> tuple[Float[Tensor, "b n outputs"], TextState]:
        """Return the logits after each of the next n tokens, and the state after the last, as n
        calls of :meth:`step` would.

        Raises:
            OptionError: a padding token, if the encoder has padding.
        """
        # The state knows the line, and with it the positions of the next tokens.
        stop = state.seen + numbers.shape[1]
        u = self.encoder.point(numbers, state.domain.positions[state.seen : stop])
        u, layers = self.body.prefill(u, state.layers)
        return self._answered(u), TextState(stop, state.domain, layers)

    def step(
        self,
        numbers: Int[Tensor, " b"],
        state: TextState,
    ) -> tuple[Float[Tensor, "b outputs"], TextState]:
        """Return the logits after one more token, and the state after it. The logits equal those of
        :meth:`forward` at the last token of the text.

        Cost: that of one point of each operator; with a separable kernel it does not grow with the
        text.

        Raises:
            OptionError: a padding token, if the encoder has padding.

        Example:
            >>> from fredholm.models import create_model
            >>> text = {"kind": "text", "causal": True, "vocabulary": 9, "max_length": 8}
            >>> model = create_model(
            ...     "itnet_nano",
            ...     encoder=text,
            ...     body={"operator": "itnet_low_rank"},
            ...     head={"pool": "every", "outputs": 9},
            ... ).eval()
            >>> logits, state = model.step(torch.tensor([3, 4]), model.init_state(8, batch=2))
            >>> logits.shape, state.seen
            (torch.Size([2, 9]), 1)
        """
        u = self.encoder.point(numbers, state.domain.positions[state.seen])
        u, layers = self.body.step(u, state.layers)
        return self._answered(u), TextState(state.seen + 1, state.domain, layers)

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return the groups of :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)
