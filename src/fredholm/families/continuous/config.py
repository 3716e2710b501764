"""Configuration of the continuous transformer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ...models.checks import (
    check_counts,
    check_heads,
    check_known,
    check_patch,
    check_rates,
    image_sides,
)

NORMS = ("post", "pre", "soft", "none")
CONTROLS = ("constant", "linear", "shared")


@dataclass(frozen=True)
class ContinuousConfig:
    r"""A classifier of texts or images whose depth is time:
    :math:`u_t = \sum_k A_k(u; \theta_k(t))` on [0, T], then a read-out.

    Attributes:
        encoder: ``image`` or ``text``.
        image_size, patch, channels: of images; other sizes work where the patch divides them.
        vocabulary, max_length: of text: token numbers, and the unit of position.
        num_classes: of the output.
        dim, heads: width d of the features, heads H of the attention term.
        depth: K, the number of knots, at each of which the control θ(t) has its parameters.
        horizon: T; None for K.
        steps: N_t, the time steps of a forward pass; None for K. It changes no weight: a trained
            model runs with any number.
        scheme: ``lie``, ``strang``, ``parallel``, ``relaxed`` (the paper's 4 + J substeps, for Δt =
            1), or the groups of a hybrid scheme such as ``((0, 1), (2,))``.
        control: ``constant``: piecewise constant between knots; ``linear``: interpolated;
            ``shared``: one set of parameters for all times, whatever the depth.
        norm: ``post``: hard projections on S1 after both terms, with ``lie`` and Δt = 1 the encoder
            of Vaswani et al.; ``pre``: layer norms inside the terms, with ``lie`` and Δt = 1 that
            of a vision transformer; ``soft``: penalties instead of projections; ``none``.
        penalty: μ of ``soft``, the time in which a distance to S1 falls by e.
        operator, operator_options: the attention term: a registered operator's name, and its
            further options.
        activation: of the feed-forward term; ``mlp_ratio`` its expansion.
        dropout: of terms and embedding; ``drop_path``: stochastic depth of the last knot, growing
            linearly from 0.
        pool: ``mean``, ``cls``, or for text ``last``.
        positions: of text, ``fourier``, ``learned`` or ``none``; ``frequencies`` and ``sigma`` of
            Fourier features.
        stages: none, or (dim, depth, heads, stride) of each stage of a convolutional vision
            transformer: a strided convolution makes fewer tokens, then the stage's evolution
            runs; dim, depth and heads above are those of the last one.
        kernel: side of the stages' embeddings and of the convolutions in their attention.
    """

    encoder: str = "image"
    image_size: tuple[int, int] | list[int] | int = (28, 28)
    patch: int = 4
    channels: int = 1
    vocabulary: int = 257
    max_length: int = 256
    num_classes: int = 10
    dim: int = 64
    heads: int = 4
    depth: int = 4
    horizon: float | None = None
    steps: int | None = None
    scheme: Any = "lie"
    control: str = "constant"
    norm: str = "pre"
    penalty: float = 1.0
    operator: str = "softmax"
    operator_options: dict[str, Any] = field(default_factory=dict)
    activation: str = "gelu"
    mlp_ratio: float = 2.0
    dropout: float = 0.1
    drop_path: float = 0.0
    pool: str = "mean"
    positions: str = "fourier"
    frequencies: int = 16
    sigma: float = 3.0
    stages: Any = ()
    kernel: int = 3

    def __post_init__(self) -> None:
        size = image_sides(self.image_size)
        object.__setattr__(self, "image_size", size)
        object.__setattr__(self, "stages", tuple(tuple(stage) for stage in self.stages))
        if not isinstance(self.scheme, str):
            object.__setattr__(self, "scheme", tuple(tuple(group) for group in self.scheme))
        check_known(self, encoder=("image", "text"), norm=NORMS, control=CONTROLS)
        whole = (
            "patch",
            "channels",
            "vocabulary",
            "max_length",
            "num_classes",
            "dim",
            "heads",
            "depth",
            "kernel",
        )
        check_counts(
            (name, getattr(self, name))
            for name in (*whole, *(("steps",) if self.steps is not None else ()))
        )
        for name in ("mlp_ratio", "penalty", *(("horizon",) if self.horizon is not None else ())):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
                raise OptionError(f"{name}: received {value!r}; needs a number above 0")
        check_rates(self, "dropout", "drop_path")
        check_heads(self.dim, self.heads)
        self._check_stages(size)

    def _check_stages(self, size: tuple[int, ...]) -> None:
        if self.stages and self.encoder != "image":
            raise OptionError(
                "stages: a text has no grid to make coarser; needs encoder='image', or no stages"
            )
        if self.stages and self.pool != "mean":
            raise OptionError(f"pool: received {self.pool!r} with stages; needs 'mean'")
        for stage in self.stages:
            good = len(stage) == 4 and all(
                isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in stage
            )
            if not good or stage[0] % stage[2]:
                raise OptionError(
                    f"stages: received {stage}; needs (dim, depth, heads, stride), heads dividing "
                    "dim"
                )
        if self.stages and self.stages[-1][:3] != (self.dim, self.depth, self.heads):
            sizes = (self.dim, self.depth, self.heads)
            raise OptionError(
                f"stages: the last is {self.stages[-1][:3]}, dim, depth and heads say {sizes}; "
                "make them equal"
            )
        if self.encoder == "image" and not self.stages:
            check_patch(size, self.patch)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input the model is built for: (C, H, W), or the longest text (N,)."""
        size: Any = self.image_size
        return (self.max_length,) if self.encoder == "text" else (self.channels, *size)
