"""A picture and a text as one signal on one plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...configuration import check_counts, check_patch, check_positive, image_sides, options_of
from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...integral import FourierFeatures
from .encoder import (
    Axis,
    Encoder,
    EncoderConfig,
    Part,
    behind_token,
    check_numbers,
    draw_words,
    register_encoder,
    with_token,
)
from .image import ImageEncoder, PictureConfig
from .inputs import Inputs

# First coordinate of the text: below the picture, which lies in [0, 1]².
ROW = 1.5


@register_encoder("multimodal")
@dataclass(frozen=True)
class MultimodalConfig(PictureConfig):
    """A picture and a text; see :class:`MultimodalEncoder`.

    Attributes:
        image_size, channels: of the picture.
        vocabulary, max_length: of the text: token numbers, and the unit of positions.
        views: pictures of one sample, each joined with its text.
        patch: side of a patch in pixels, or (height, width).
        measure: ``balanced``, ``uniform``, or the picture's share of the mass.
        frequencies, sigma: of the positions.
    """

    of_data = (*PictureConfig.of_data, "vocabulary", "max_length", "views")
    pools = ("mean", "points", "cls")
    one_tensor = False
    input_shape = EncoderConfig.input_shape

    vocabulary: int = 257
    max_length: int = 256
    views: int = 1
    patch: int | tuple[int, int] = 4
    measure: str | float = "balanced"
    frequencies: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(
            self,
            "vocabulary",
            "max_length",
            "views",
            "patch",
            "frequencies",
        )
        check_positive(self, "sigma")
        check_patch(self.sides, self.patch)

    @property
    def patches(self) -> int:
        """Points of a picture of this size."""
        height, width = image_sides(self.patch)
        rows = self.sides[0] // height
        columns = self.sides[1] // width
        return rows * columns

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> MultimodalEncoder:
        assert dim is not None
        return MultimodalEncoder(
            dim=dim,
            class_token=class_token,
            dropout=dropout,
            **options_of(self, "image_size"),
        )

    @property
    def parts(self) -> tuple[Part, ...]:
        picture: tuple[int, ...] = (self.channels, *self.sides)
        if self.views > 1:
            picture = (self.views, *picture)
        # The last two dimensions of a batch of pictures, of which the batch is dimension 0.
        height, width = image_sides(self.patch)
        sides = (
            Axis(len(picture) - 1, "height", multiple=height),
            Axis(len(picture), "width", multiple=width),
        )
        text = Part(
            "tokens",
            (self.max_length,),
            (Axis(1, "length"),),
        )
        return Part("image", picture, sides), text

    def batch(self, shapes: Mapping[str, Sequence[int]], generator: torch.Generator) -> Inputs:
        image = torch.randn(*shapes["image"], generator=generator)
        shape = tuple(shapes["tokens"])
        tokens = torch.randint(1, self.vocabulary, shape, generator=generator)
        tokens[-1, -1] = 0  # padding
        return Inputs(image=image, tokens=tokens)


class MultimodalEncoder(Encoder):
    r"""A picture and a text as one signal: patches at their centres in the unit square, tokens on a
    line beside it, one measure over both.

    A patch's feature is :math:`E\,\mathrm{patch} + P\gamma(x) + e_{image}`, a token's
    :math:`E[t] + P\gamma(x) + e_{text}`; token i stands at (1.5, i / max_length). The kernel treats
    both alike, and learns what passes between picture and text.

    Args:
        patch, channels: of the picture, see :class:`ImageEncoder`.
        vocabulary, max_length: of the text; token 0 is padding, max_length the unit of positions.
        dim: width D of the features.
        measure: ``balanced``: mass 1/2 each; ``uniform``: every patch and every token the same
            mass; or the picture's share of the mass, a number in (0, 1): 0.75 is the paper's 3:1.
        views: pictures of one sample, (B, V, C, H, W), each of which its text is joined with:
            V·B signals, those of a sample one after the other.
        class_token: whether a token stands in the middle of the picture with measure 0, which reads
            all and is read by nothing.
        frequencies, sigma: of γ.
        dropout: after the embedding.

    Shape: :class:`Inputs` with ``image`` (B, C, H, W) and ``tokens`` (B, T) integers, to features
    (B, N, D) and a domain of N = patches + T points, patches first (one more with a class token,
    which comes before them).

    Raises:
        OptionError: an unknown measure.
        ShapeError: inputs that do not fit.

    Reference: ITNet §3.4, App. J, Table 22; modality embeddings N(0, 0.02²), H.3.

    Example:
        >>> encoder = MultimodalEncoder(patch=4, channels=1, vocabulary=9, max_length=6, dim=8)
        >>> image, tokens = torch.zeros(2, 1, 8, 8), torch.tensor([[3, 4, 0], [5, 6, 7]])
        >>> features, domain = encoder(Inputs(image=image, tokens=tokens))
        >>> features.shape, domain.quadrature().weights()[0, 0, 0].tolist()
        (torch.Size([2, 7, 8]), [0.125, 0.125, 0.125, 0.125, 0.25, 0.25, 0.0])
    """

    position_dim = 2

    def __init__(
        self,
        *,
        patch: int | tuple[int, int],
        channels: int,
        vocabulary: int,
        max_length: int,
        dim: int,
        measure: str | float = "balanced",
        views: int = 1,
        class_token: bool = False,
        frequencies: int = 64,
        sigma: float = 10.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        is_number = isinstance(measure, int | float) and not isinstance(measure, bool)
        is_share = is_number and 0 < float(measure) < 1
        if measure not in ("balanced", "uniform") and not is_share:
            raise OptionError(
                "measure: expected balanced, uniform, or the picture's share in (0, 1), got "
                f"{measure!r}; choose one"
            )
        self.measure = measure
        self.views = views
        self.max_length = max_length
        self.dim = dim
        self.image = ImageEncoder(
            patch=patch,
            channels=channels,
            dim=dim,
            frequencies=frequencies,
            sigma=sigma,
        )
        self.words = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.fourier = FourierFeatures(2, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.modality = nn.Parameter(torch.empty(2, dim))
        self.token = None
        if class_token:
            self.token = nn.Parameter(torch.empty(dim))
        self.dropout = nn.Dropout(dropout)
        draw_words(self.words)
        nn.init.trunc_normal_(self.position.weight, std=0.02)
        nn.init.normal_(self.modality, std=0.02)
        if self.token is not None:
            nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, inputs: Inputs) -> tuple[Float[Tensor, "b n d"], Domain]:
        image, tokens = self._pairs(inputs["image"], inputs["tokens"])
        if (
            tokens.dim() != 2
            or tokens.is_floating_point()
            or tokens.shape[0] != image.shape[0]
            or tokens.shape[1] < 1
        ):
            need = f"({image.shape[0]}, T) with T of 1 or more"
            raise ShapeError(
                f"tokens: expected integers {need}, got {tuple(tokens.shape)} of {tokens.dtype}; "
                "convert them"
            )
        patches, picture = self.image(image)
        line = self._line(tokens, picture.positions)
        check_numbers(tokens, self.words)
        words = self.words(tokens)
        words = self.with_positions(words, line.positions)
        # A learned vector per modality tells patches from tokens.
        patches = patches + self.modality[0]
        words = words + self.modality[1]
        features = torch.cat([patches, words], 1)
        domain = self._join(picture, line)
        if self.token is not None:
            features = behind_token(features, self.token)
            middle = torch.full_like(line.positions[:1], 0.5)
            centre = Domain.points(middle)
            domain = with_token(centre, domain, "reader")
        return self.dropout(features), domain

    def _pairs(self, image: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return pictures and texts, one text for each picture."""
        if self.views == 1:
            return image, tokens
        if image.dim() != 5 or image.shape[1] != self.views:
            raise ShapeError(
                f"image: expected shape (B, {self.views}, C, H, W), got {tuple(image.shape)}; "
                "reshape it"
            )
        pictures = image.flatten(0, 1)
        return pictures, tokens.repeat_interleave(self.views, 0)

    def _line(self, tokens: Tensor, like: Tensor) -> Domain:
        """Return the points of a text, on a line below the picture."""
        number = torch.arange(tokens.shape[1], device=like.device, dtype=like.dtype)
        place = number / self.max_length
        row = torch.full_like(place, ROW)
        positions = torch.stack([row, place], -1)
        # Token 0 is padding.
        valid = tokens != 0
        return Domain.points(positions).replace(valid=valid)

    def _join(self, picture: Domain, line: Domain) -> Domain:
        if self.measure == "uniform":
            return Domain.join(picture, line)
        share = 0.5
        if not isinstance(self.measure, str):
            share = float(self.measure)
        return Domain.join(
            picture,
            line,
            balance=(share, 1.0 - share),
        )
