"""A picture and a text as one signal on one plane."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import OptionError, ShapeError
from ..integral import FourierFeatures
from .image import ImageEncoder
from .inputs import Inputs

ROW = 1.5  # where the text stands: below the picture, which lies in [0, 1]²


class MultimodalEncoder(nn.Module):
    r"""Patches at their centres in the unit square, tokens on a line apart from it, one measure
    over both.

    A patch's feature is :math:`E\,\mathrm{patch} + P\gamma(x) + e_{image}`, a token's
    :math:`E[t] + P\gamma(x) + e_{text}`; token i stands at (1.5, i / max_length). The kernel sees
    both alike, so that what passes between picture and text is learned.

    Args:
        patch, channels: of the picture, see :class:`ImageEncoder`.
        vocabulary, max_length: of the text; token 0 is padding, max_length the unit of positions.
        dim: width D of the features.
        measure: ``balanced``: mass 1/2 each; ``uniform``: every patch and every token the same
            mass; or the picture's share of the mass, a number in (0, 1): 0.75 is the paper's 3:1.
        pool: ``cls``: a token in the middle of the picture with measure 0, which reads all and is
            read by nothing; ``mean`` against the measure.
        frequencies, sigma: of γ.
        dropout: after the embedding.

    Shape: :class:`Inputs` with ``image`` (B, C, H, W) and ``tokens`` (B, T) integers, to features
    (B, N, D) and a domain of N = patches + T points, patches first (one more with a class token,
    which comes before them).

    Raises:
        OptionError: an unknown measure or pool.
        ShapeError: inputs that do not fit.

    Reference: ITNet §3.4, App. J, Table 22; modality embeddings N(0, 0.02²), H.3.

    Example:
        >>> encoder = MultimodalEncoder(patch=4, channels=1, vocabulary=9, max_length=6, dim=8)
        >>> image, tokens = torch.zeros(2, 1, 8, 8), torch.tensor([[3, 4, 0], [5, 6, 7]])
        >>> features, domain = encoder(Inputs(image=image, tokens=tokens))
        >>> features.shape, domain.quadrature().weights()[0, 0, 0].tolist()
        (torch.Size([2, 8, 8]), [0.0, 0.125, 0.125, 0.125, 0.125, 0.25, 0.25, 0.0])
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
        pool: str = "cls",
        frequencies: int = 64,
        sigma: float = 10.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        share = (
            isinstance(measure, int | float) and not isinstance(measure, bool) and 0 < measure < 1
        )
        if measure not in ("balanced", "uniform") and not share:
            raise OptionError(
                f"measure: received {measure!r}; needs balanced, uniform, or the picture's share "
                "in (0, 1)"
            )
        if pool not in ("cls", "mean"):
            raise OptionError(f"pool: received {pool!r}; of picture and text needs cls or mean")
        self.measure, self.pool, self.max_length = measure, pool, max_length
        self.image = ImageEncoder(
            patch=patch, channels=channels, dim=dim, frequencies=frequencies, sigma=sigma
        )
        self.words = nn.Embedding(vocabulary, dim, padding_idx=0)
        self.fourier = FourierFeatures(2, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.modality = nn.Parameter(torch.empty(2, dim))
        self.token = nn.Parameter(torch.empty(dim)) if pool == "cls" else None
        self.dropout = nn.Dropout(dropout)
        nn.init.normal_(self.words.weight, std=dim**-0.5)
        with torch.no_grad():
            self.words.weight[0] = 0.0
        nn.init.trunc_normal_(self.position.weight, std=0.02)
        nn.init.normal_(self.modality, std=0.02)
        if self.token is not None:
            nn.init.trunc_normal_(self.token, std=0.02)

    def forward(self, inputs: Inputs) -> tuple[Float[Tensor, "b n d"], Domain]:
        image, tokens = inputs["image"], inputs["tokens"]
        if (
            tokens.dim() != 2
            or tokens.is_floating_point()
            or len(tokens) != len(image)
            or tokens.shape[1] < 1
        ):
            need = f"({len(image)}, T) with T of 1 or more"
            raise ShapeError(
                f"tokens must be integers {need}, got {tuple(tokens.shape)} of {tokens.dtype}"
            )
        patches, picture = self.image(image)
        line = self._line(tokens, picture.positions)
        words = self.words(tokens) + self.position(self.fourier(line.positions).to(patches.dtype))
        features = torch.cat([patches + self.modality[0], words + self.modality[1]], 1)
        domain = self._join(picture, line)
        if self.token is not None:
            features = torch.cat(
                [self.token.to(features.dtype).expand(len(features), 1, -1), features], 1
            )
            domain = Domain.join(
                Domain.points(torch.full_like(line.positions[:1], 0.5)), domain, balance=(0.0, 1.0)
            )
        return self.dropout(features), domain

    def _line(self, tokens: Tensor, like: Tensor) -> Domain:
        place = (
            torch.arange(tokens.shape[1], device=like.device, dtype=like.dtype) / self.max_length
        )
        return Domain.points(torch.stack([torch.full_like(place, ROW), place], -1)).replace(
            valid=tokens != 0
        )

    def _join(self, picture: Domain, line: Domain) -> Domain:
        if self.measure == "uniform":
            return Domain.join(picture, line)
        share = 0.5 if isinstance(self.measure, str) else float(self.measure)
        return Domain.join(picture, line, balance=(share, 1.0 - share))

    def read_out(self, features: Tensor, domain: Domain) -> Tensor:
        """The pair's one feature vector (B, D): the class token, or the mean against
        the measure.
        """
        if self.token is not None:
            return features[:, 0]
        weights = domain.quadrature().weights()[:, 0, 0, :, None].to(features.dtype)
        if domain.valid is not None:
            features = torch.where(domain.valid[..., None], features, 0.0)
        return (weights * features).sum(1)
