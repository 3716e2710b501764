"""The backbone."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...depth import ResidualBlock
from ...domain import Domain
from ...encoders import FieldEncoder, ImageEncoder, PointEncoder, SequenceEncoder, TextEncoder
from ...integral import (
    FourierFeatures,
    IntegralOperator,
    Kernel,
    LatticeKernel,
    operator_factory,
    operator_options,
)
from ..baselines import list_baselines, make_baseline
from ..decay import weight_decay_groups
from ..operators import make_operator
from ..pretrained import PretrainedMixin
from ..registry import register_family, register_model
from .config import PRESETS, BackboneConfig


class EmbeddedSequence(nn.Module):
    r"""Samples of a sequence as features of width D: :math:`E\,u_i + P\,\gamma(t_i)`; times in
    units of a training sequence.

    Shape: sequences as :class:`fredholm.encoders.SequenceEncoder` takes them, to (B, N, dim) and
    their domain.

    Example:
        >>> EmbeddedSequence(channels=2, dim=8, length=5)(torch.zeros(3, 5, 2))[0].shape
        torch.Size([3, 5, 8])
    """

    position_dim = 1

    def __init__(
        self,
        *,
        dim: int,
        frequencies: int = 16,
        sigma: float = 3.0,
        dropout: float = 0.0,
        **options: Any,
    ):
        super().__init__()
        self.samples = SequenceEncoder(mask="point", fill_gaps=False, **options)
        self.embed = nn.Linear(self.samples.dim, dim)
        self.fourier = FourierFeatures(1, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.xavier_uniform_(self.embed.weight)
        nn.init.zeros_(self.embed.bias)
        nn.init.trunc_normal_(self.position.weight, std=0.02)

    def forward(self, sequences: Float[Tensor, "b n c"]) -> tuple[Float[Tensor, "b n d"], Domain]:
        samples, domain = self.samples(sequences)
        position = self.position(self.fourier(domain.positions).to(self.position.weight.dtype))
        return self.dropout(self.embed(samples) + position), domain


class Backbone(nn.Module, PretrainedMixin):
    r"""Encoder, L pre-norm residual blocks of one operator, layer norm, pooling or none, linear
    read-out.

    Everything but the operator is the same for all of them, so that what differs between two runs
    is the operator. It gets the signal on the measure that it is defined for: those whose default
    domain counts points (convolutions, recurrences) sum over them, all others take means.

    Shape: images (B, C, H, W), clouds (B, N, p), token numbers (B, N), sequences (B, N, C) with NaN
    where nothing is, or fields (B, C, n1, n2), to (B, num_classes), or (B, N, num_classes) with
    ``head="every"`` and of a field.

    Initialisation: operators' and feed-forward networks' output layers scaled by
    :math:`1/\sqrt{2L}`; the classifier starts at zero.

    Example:
        >>> from fredholm.models import create_model
        >>> create_model("backbone_nano", operator="gru")(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """

    family = "backbone"

    def __init__(self, config: BackboneConfig):
        super().__init__()
        self.config = c = config
        self.encoder: Any = make_encoder(c)
        self.blocks: Any = nn.ModuleList(
            ResidualBlock(
                make_layer(c, self.encoder.position_dim),
                c.dim,
                ratio=c.mlp_ratio,
                dropout=c.dropout,
            )
            for _ in range(c.depth)
        )
        self.norm = nn.LayerNorm(c.dim)
        self.head = nn.Linear(c.dim, c.num_classes)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        for block in self.blocks:
            block.scale_outputs((2 * len(self.blocks)) ** -0.5)

    def forward(self, inputs: Tensor) -> Float[Tensor, "..."]:
        features, domain = self.features(inputs)
        every = self.config.head == "every" or self.config.encoder == "field"
        return self.head(features if every else self.read_out(features, domain))

    def features(self, inputs: Tensor) -> tuple[Float[Tensor, "b n d"], Domain]:
        """Normalised features of the last block, and the domain they live on."""
        u, domain = self.start(inputs)
        for block in self.blocks:
            u = block(u, domain)
        return self.norm(u), domain

    def start(self, inputs: Tensor) -> tuple[Tensor, Domain]:
        """Features before the first block, and the operator's domain."""
        u, domain = self.encoder(inputs)
        return u, suited(self.blocks[0].operator, domain)

    def read_out(self, features: Tensor, domain: Domain) -> Float[Tensor, "b d"]:
        """The mean over the points that are no padding, or the last of them where the
        order counts.
        """
        valid = domain.valid
        if self.config.causal:
            if valid is None:
                return features[:, -1]
            steps = torch.arange(valid.shape[1], device=valid.device)
            last = torch.where(valid, steps, 0).amax(1)
            return features[torch.arange(len(features), device=valid.device), last]
        if valid is None:
            return features.mean(1)
        total = torch.where(valid[..., None], features, 0.0).sum(1)
        return total / valid.sum(1, keepdim=True).clamp(min=1)

    @torch.no_grad()
    def trace(self, inputs: Tensor) -> list[tuple[nn.Module, Tensor, Domain]]:
        """What each block's operator sees: (operator, its input u (B, N, D), domain), first block
        first.
        """
        u, domain = self.start(inputs)
        seen = []
        for block in self.blocks:
            seen.append((block.operator, block.norm1(u), domain))
            u = block(u, domain)
        return seen

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """See :func:`fredholm.models.decay.weight_decay_groups`."""
        return weight_decay_groups(self, weight_decay)


def make_encoder(c: BackboneConfig) -> nn.Module:
    """The encoder that a configuration names."""
    features: Any = {"dim": c.dim, "dropout": c.dropout}
    if c.encoder == "points":
        return PointEncoder(channels=c.channels, **features)
    features |= {"frequencies": c.frequencies, "sigma": c.sigma}
    if c.encoder == "field":
        return FieldEncoder(channels=c.channels, **features)
    if c.encoder == "text":
        return TextEncoder(
            vocabulary=c.vocabulary, max_length=c.max_length, causal=c.causal, **features
        )
    if c.encoder == "sequence":
        timing: Any = {"spacing": c.spacing, "timed": c.timed, "causal": c.causal}
        return EmbeddedSequence(channels=c.channels, length=c.length, **timing, **features)
    return ImageEncoder(patch=c.patch, channels=c.channels, **features)


def make_layer(c: BackboneConfig, position_dim: int) -> nn.Module:
    """The operator or baseline that a configuration names, told what the data say."""
    if c.operator in list_baselines():
        return make_baseline(
            c.operator,
            c.dim,
            c.heads,
            position_dim=position_dim,
            causal=c.causal,
            **c.operator_options,
        )
    options: dict[str, Any] = {}
    heads = c.heads
    if "length" in inspect.signature(operator_factory(c.operator)).parameters:
        options["length"], heads = (
            c.points,
            1,
        )  # heads of a convolution are groups: channels that never meet
    if "origin" in operator_options(c.operator) and not c.causal:
        options["origin"] = "centre"
    return make_operator(
        c.operator, c.dim, heads, position_dim=position_dim, **{**options, **c.operator_options}
    )


def suited(operator: nn.Module, domain: Domain) -> Domain:
    """The domain with the measure that an operator is defined for.

    One whose default domain counts points sums over them, or over the time they stand for; all
    others take means.
    """
    if not isinstance(operator, IntegralOperator):
        return domain
    if _counts(operator.kernel, domain):
        return (
            domain.replace(measure=torch.ones_like(domain.measure), kind="counting")
            if domain.kind == "uniform"
            else domain
        )
    return domain.replace(
        kind={"counting": "uniform", "spacing": "probability"}.get(domain.kind, domain.kind)
    )


def _counts(kernel: Kernel, domain: Domain) -> bool:
    if isinstance(kernel, LatticeKernel):
        return True
    place: Any = {"device": domain.positions.device, "dtype": domain.positions.dtype}
    return kernel.default_domain(2, **place).kind == "counting"


_FAMILY = register_family("backbone", Backbone, BackboneConfig)
for _name, _preset in PRESETS.items():
    register_model(_FAMILY, _name, _preset)
