"""The CKCNN: residual blocks of two continuous kernel convolutions each."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from ...domain import Domain
from ...encoders import PixelEncoder, SequenceEncoder
from ...errors import OptionError, ShapeError
from ...integral import CausalState, create_operator, operator_factory
from ...models.decay import weight_decay_groups
from ...models.pretrained import PretrainedMixin
from ...models.registry import register_family, register_model
from .config import CKCNNConfig
from .presets import PRESETS


class TokenEncoder(nn.Module):
    """Token numbers as points of a line with a mass of one each, their embedding as features.

    Every number is a token: there is no padding. Positions are in units of ``length``, and a longer
    text goes beyond 1.

    Shape: numbers (B, N) int64 to (B, N, D) and the line of N points.

    Raises:
        ShapeError: numbers that are not (B, N) integers.

    Example:
        >>> TokenEncoder(50, 8, length=100)(torch.zeros(2, 7, dtype=torch.int64))[0].shape
        torch.Size([2, 7, 8])
    """

    position_dim = 1

    def __init__(self, vocabulary: int, dim: int, *, length: int, causal: bool = True):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.embed.weight, std=dim**-0.5)
        self.dim, self.length, self.causal = dim, length, causal

    def forward(self, numbers: Int[Tensor, "b n"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        if numbers.dim() != 2 or numbers.is_floating_point() or numbers.shape[1] < 1:
            raise ShapeError(
                f"token numbers must be integers (B, N), got {tuple(numbers.shape)} of "
                f"{numbers.dtype}"
            )
        place: Any = {"device": numbers.device, "dtype": self.embed.weight.dtype}
        line = Domain.line(
            numbers.shape[1], length=self.length, causal=self.causal, measure="counting", **place
        )
        return self.embed(numbers), line

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """Features at the last token, (B, D)."""
        return features[:, -1]


class WholeNorm(nn.GroupNorm):
    """One mean and variance over all channels and points, one gain and bias per channel: (B, N, D)
    to (B, N, D).

    Reference: the authors' released code, whose layer norm this is.
    """

    def __init__(self, dim: int):
        super().__init__(1, dim, eps=1e-12)

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.mT).mT


class CKBlock(nn.Module):
    r"""Twice convolution, norm, ReLU, dropout; then the block's input added and a last ReLU.

    Shape: (B, N, dim) and a domain to (B, N, out_dim).

    Reference: CKConv Fig. 8.

    Example:
        >>> from fredholm.operators import CKConv
        >>> convolutions = [CKConv(3, out_dim=5, length=9), CKConv(5, length=9)]
        >>> block = CKBlock(convolutions, [nn.LayerNorm(5), nn.LayerNorm(5)])
        >>> block(torch.randn(2, 9, 3), Domain.line(9, causal=True, measure="counting")).shape
        torch.Size([2, 9, 5])
    """

    def __init__(self, operators: list[nn.Module], norms: list[nn.Module], dropout: float = 0.0):
        super().__init__()
        first: Any = operators[0]
        self.operators, self.norms = nn.ModuleList(operators), nn.ModuleList(norms)
        self.dropout = nn.Dropout(dropout)
        self.skip = nn.Linear(first.dim, first.out_dim) if first.dim != first.out_dim else None
        if self.skip is not None:
            nn.init.kaiming_normal_(self.skip.weight)
            nn.init.zeros_(self.skip.bias)

    def forward(self, u: Float[Tensor, "b n d"], domain: Domain) -> Float[Tensor, "b n o"]:
        out = u
        for operator, norm in zip(self.operators, self.norms):
            out = self.dropout(functional.relu(norm(operator(out, domain))))
        return functional.relu(out + (u if self.skip is None else self.skip(u)))

    def step(
        self, u: Float[Tensor, "b d"], states: list[CausalState]
    ) -> tuple[Float[Tensor, "b o"], list[CausalState]]:
        """One more point: the block's output there, and both convolutions' states after it."""
        out, after = u, []
        for operator, norm, state in zip(self.operators, self.norms, states):
            out, new = operator.step(out, state)  # type: ignore[operator]
            out = self.dropout(functional.relu(norm(out)))
            after.append(new)
        return functional.relu(out + (u if self.skip is None else self.skip(u))), after


@dataclass(frozen=True, eq=False)
class TextState:
    """What a text model remembers of a text so far: how many tokens came, and every convolution's
    state, block by block.
    """

    seen: int
    blocks: tuple[list[CausalState], ...]


class CKCNN(nn.Module, PretrainedMixin):
    r"""Encoder, residual blocks of two :class:`fredholm.operators.CKConv` each, a linear head on
    the last point, on every point or on the mean.

    Shape: sequences (B, N, C) with NaN where nothing is, token numbers (B, N), or images (B, C, H,
    W), to (B, num_classes), or to (B, N, num_classes) with ``head="every"``.

    Cost: O(N log N) per layer on a regular grid, O(N²) time and O(N) memory on timestamps.

    Reference: CKConv §5, Fig. 8, Tables 8 and 9.

    Example:
        >>> from fredholm.models import create_model
        >>> model = create_model("ckcnn_small")
        >>> model(torch.zeros(2, 784, 1)).shape, sum(p.numel() for p in model.parameters())
        (torch.Size([2, 10]), 98286)
    """

    family = "ckcnn"

    def __init__(self, config: CKCNNConfig):
        super().__init__()
        self.config = config
        self.encoder: Any = make_encoder(config)
        self.input_dropout = nn.Dropout(config.input_dropout)
        widths = [self.encoder.dim, *config.widths]
        self.blocks: Any = nn.ModuleList(make_block(config, *pair) for pair in pairwise(widths))
        if config.tied:
            self.head_bias = nn.Parameter(torch.zeros(config.num_classes))
            self.head = None
        else:
            self.head = nn.Linear(widths[-1], config.num_classes)
            nn.init.kaiming_normal_(self.head.weight, nonlinearity="linear")
            nn.init.zeros_(self.head.bias)

    def forward(self, inputs: Tensor) -> Float[Tensor, "..."]:
        u, domain = self.features(inputs)
        if self.config.head == "last":
            u = self.encoder.read_out(u, domain)
        elif self.config.head == "mean":
            u = _mean(u, domain)
        return self._read(u)

    def _read(self, u: Tensor) -> Tensor:
        return (
            functional.linear(u, self.encoder.embed.weight, self.head_bias)
            if self.head is None
            else self.head(u)
        )

    def init_state(self, length: int, batch: int = 1) -> TextState:
        """What a causal text model remembers before its first token, for texts of up to ``length``
        tokens.

        Raises:
            OptionError: a model that gives no logits at every token of a causal text, or a longer
                text than its kernels reach.
        """
        c = self.config
        if c.encoder != "text" or not c.causal or c.head != "every":
            raise OptionError(
                "init_state: needs encoder='text', causal=True and head='every', a model of the "
                "next token"
            )
        if length > c.max_length:
            raise OptionError(
                f"length: received {length}; the model was built for texts of {c.max_length} tokens"
            )
        place: Any = {
            "device": self.encoder.embed.weight.device,
            "dtype": self.encoder.embed.weight.dtype,
        }
        line = Domain.line(length, length=c.max_length, causal=True, measure="counting", **place)
        return TextState(
            0,
            tuple(
                [one.init_state(batch, line) for one in block.operators] for block in self.blocks
            ),
        )

    def step(
        self, numbers: Int[Tensor, " b"], state: TextState
    ) -> tuple[Float[Tensor, "b classes"], TextState]:
        """Logits after one more token, and the state after it: those of :meth:`forward` at the
        text's last token. O(t) at token t.
        """
        u, after = self.input_dropout(self.encoder.embed(numbers)), []
        for block, states in zip(self.blocks, state.blocks):
            u, new = block.step(u, states)
            after.append(new)
        return self._read(u), TextState(state.seen + 1, tuple(after))

    def features(self, inputs: Tensor) -> tuple[Float[Tensor, "b n d"], Domain]:
        """Features of the last block and their domain."""
        u, domain = self.start(inputs)
        for block in self.blocks:
            u = block(u, domain)
        return u, domain

    def start(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Features before the first block, and their domain."""
        u, domain = self.encoder(inputs)
        if self.config.encoder == "image":
            domain = domain.replace(kind="counting")  # a convolution sums
        return self.input_dropout(u), domain

    @torch.no_grad()
    def trace(self, inputs: Tensor) -> list[tuple[nn.Module, Tensor, Domain]]:
        """What each block's first convolution sees: (operator, its input u (B, N, D), domain),
        first block first.
        """
        u, domain = self.start(inputs)
        seen = []
        for block in self.blocks:
            seen.append((block.operators[0], u, domain))
            u = block(u, domain)
        return seen

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """See :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)


def make_encoder(c: CKCNNConfig) -> nn.Module:
    """The encoder that a configuration names."""
    if c.encoder == "text":
        return TokenEncoder(c.vocabulary, c.embedding, length=c.max_length, causal=c.causal)
    if c.encoder == "image":
        encoder = PixelEncoder(c.channels)
        encoder.dim = c.channels  # type: ignore[assignment]
        return encoder
    timing: Any = {
        "spacing": c.spacing,
        "timed": c.timed,
        "step": c.step,
        "causal": c.causal,
        "mask": c.mask,
    }
    return SequenceEncoder(channels=c.channels, length=c.length, **timing)


def make_block(c: CKCNNConfig, d_in: int, d_out: int) -> CKBlock:
    """One block, of kernels as long as the training input."""
    taken = inspect.signature(operator_factory(c.operator)).parameters
    if not {"out_dim", "length"} <= set(taken):
        raise OptionError(
            f"operator: {c.operator!r} has no out_dim and length; needs a convolution such as "
            "'ckconv'"
        )
    size: Any = c.image_size
    options: dict[str, Any] = {
        "length": {"image": prod(size), "text": c.max_length}.get(c.encoder, c.length)
    }
    options |= {"position_dim": 2} if c.encoder == "image" else {}
    options |= {} if c.ordered else {"origin": "centre"}
    if c.encoder == "sequence" and c.spacing < 1:
        options |= {"blur": c.spacing}  # finer than in training
    options |= c.operator_options
    operators = [create_operator(c.operator, d, 1, out_dim=d_out, **options) for d in (d_in, d_out)]
    norm = nn.LayerNorm if c.norm == "paper" else WholeNorm
    return CKBlock(operators, [norm(d_out) for _ in operators], c.dropout)


def _mean(u: Tensor, domain: Domain) -> Tensor:
    """The mean over the points that are not padding, by their masses, (B, D)."""
    mass = domain.quadrature().mass.to(u.dtype)[..., None]
    u = u if domain.valid is None else torch.where(domain.valid[..., None], u, 0.0)
    return (mass * u).sum(1) / mass.sum(1).clamp(min=torch.finfo(u.dtype).tiny)


_FAMILY = register_family("ckcnn", CKCNN, CKCNNConfig)
for _name, _preset in PRESETS.items():
    register_model(_FAMILY, _name, _preset)
