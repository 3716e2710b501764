"""Fields on a grid as signals at every grid point, for operators from fields to fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from ...configuration import check_counts, check_positive, options_of
from ...domain import Domain
from ...errors import ShapeError
from ...integral import FourierFeatures
from ...ops.backend import at_least_single
from .encoder import Axis, Encoder, EncoderConfig, part_of_grid, register_encoder


@register_encoder("field")
@dataclass(frozen=True)
class FieldConfig(EncoderConfig):
    """Values on a grid of the unit square, with an output at every point; see
    :class:`FieldEncoder`.

    Attributes:
        channels: values of a field at a point.
        frequencies, sigma: of the positions.
    """

    of_data = ("channels",)
    pools = ("every", "mean", "points")

    channels: int = 1
    frequencies: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "channels", "frequencies")
        check_positive(self, "sigma")

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> FieldEncoder:
        assert dim is not None
        return FieldEncoder(dim=dim, dropout=dropout, **options_of(self))

    @property
    def points(self) -> int:
        # A field of 16 x 16; any other resolution works.
        return 256

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.channels, 16, 16)

    @property
    def axes(self) -> tuple[Axis, ...]:
        return Axis(2, "height"), Axis(3, "width")


class FieldEncoder(Encoder):
    r"""Fields as features :math:`E\,a(x) + P\,\gamma(x)` at the centres x of the cells of a grid
    over the unit cube.

    The same weights work for every resolution: a finer grid is another domain, whose measure is 1
    in total as well.

    Args:
        channels: values of a field at a point.
        dim: width D of the features.
        position_dim: dimension of the cube.
        frequencies, sigma: of γ. A σ far beyond the training grid's resolution does not carry over
            to a finer one.
        dropout: after the embedding.

    Shape: fields (B, C, n1, …, np) to features (B, n1·…·np, D) and their grid.

    Raises:
        ShapeError: fields of other channels or dimension.

    Reference: ITNet §3.4 (positions are raw coordinates); Li et al. 2020 for the task.

    Example:
        >>> features, domain = FieldEncoder(channels=1, dim=8)(torch.zeros(2, 1, 4, 6))
        >>> features.shape, domain.shape
        (torch.Size([2, 24, 8]), (4, 6))
    """

    axis = 2

    def __init__(
        self,
        *,
        channels: int,
        dim: int,
        position_dim: int = 2,
        frequencies: int = 16,
        sigma: float = 1.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.channels = channels
        self.position_dim = position_dim
        self.dim = dim
        self.embed = nn.Linear(channels, dim)
        self.fourier = FourierFeatures(position_dim, frequencies, sigma)
        self.position = nn.Linear(2 * frequencies, dim, bias=False)
        self.dropout = nn.Dropout(dropout)
        for layer in (self.embed, self.position):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.embed.bias)

    def forward(self, fields: Float[Tensor, "b c *n"]) -> tuple[Float[Tensor, "b m d"], Domain]:
        self._check(fields)
        extents = fields.shape[2:]
        domain = Domain.grid(*extents, **self._place(fields))
        return self._features(fields, domain), domain

    def part(self, inputs: Float[Tensor, "b c *n"], mesh: Any) -> tuple[Tensor, Domain]:
        self._check(inputs)
        rows = inputs.shape[2]
        others = tuple(inputs.shape[3:])
        domain = part_of_grid(
            rows,
            others,
            mesh,
            **self._place(inputs),
        )
        return self._features(inputs, domain), domain

    def _check(self, fields: Tensor) -> None:
        """Refuse fields that are not (B, C, n1, …, np); the extents n1, …, np may be any.

        Raises:
            ShapeError: another number of dimensions or of channels.
        """
        if fields.dim() != 2 + self.position_dim or fields.shape[1] != self.channels:
            extents = ", ".join(f"n{i + 1}" for i in range(self.position_dim))
            need = f"(B, {self.channels}, {extents})"
            raise ShapeError(
                f"fields: expected shape {need}, got {tuple(fields.shape)}; reshape them"
            )

    def _place(self, fields: Tensor) -> dict[str, Any]:
        # Half precision would round positions.
        dtype = at_least_single(self.embed.weight.dtype)
        return {"device": fields.device, "dtype": dtype}

    def _features(self, fields: Tensor, domain: Domain) -> Tensor:
        values = fields.flatten(2).mT
        features = self.embed(values)
        features = self.with_positions(features, domain.positions)
        return self.dropout(features)
