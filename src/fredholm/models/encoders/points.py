"""Point clouds as signals on their own coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...configuration import check_counts, check_known, check_name, check_positive, options_of
from ...domain import Domain
from ...errors import OptionError, ShapeError
from ...integral import FourierFeatures
from ...ops.anchors import distances
from ...ops.backend import at_least_single
from .encoder import Axis, Encoder, EncoderConfig, register_encoder

FEATURES = ("raw", "fourier")

# Distances in memory at once in the search for neighbours.
DISTANCES = 1 << 24


@register_encoder("points")
@dataclass(frozen=True)
class PointConfig(EncoderConfig):
    """Point clouds; see :class:`PointEncoder`.

    Attributes:
        channels: coordinates and further channels of a point.
        position_dim: how many of them are coordinates (None: all).
        features: ``raw`` or ``fourier``.
        neighbours: k of the local pre-extraction, 0 for none.
        frequencies, sigma: of ``fourier`` features.
    """

    of_data = ("channels",)

    channels: int = 3
    position_dim: int | None = None
    features: str = "raw"
    neighbours: int = 0
    frequencies: int | None = None
    sigma: float | None = None

    def __post_init__(self) -> None:
        check_known(self, features=FEATURES)
        super().__post_init__()
        check_counts(self, "channels", "position_dim", "frequencies")
        check_positive(self, "sigma")

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        if given.get("features", "raw") == "fourier":
            return {}
        return dict.fromkeys(("frequencies", "sigma"), "features='raw'")

    def build(
        self,
        dim: int | None,
        *,
        dropout: float = 0.0,
        class_token: bool = False,
    ) -> PointEncoder:
        assert dim is not None
        return PointEncoder(dim=dim, dropout=dropout, **options_of(self))

    @property
    def points(self) -> int:
        # Any other number works.
        return 1024

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.points, self.channels)

    @property
    def axes(self) -> tuple[Axis, ...]:
        # With fewer points than neighbours, the neighbourhoods would be of another size.
        smallest = max(1, self.neighbours)
        return (Axis(1, "points", smallest=smallest),)


class PointEncoder(Encoder):
    r"""Encoder of point clouds: raw coordinates as positions, a uniform measure, and features from
    the coordinates and the neighbours.

    The features are :math:`E\,[x, c]` (``raw``; c are further channels, such as normals or colours)
    or
    :math:`E\,[x, c] + P\,\gamma(x)` (``fourier``). With ``neighbours`` k, a network runs over the k
    nearest points of each, itself among them, and :math:`\max_j \mathrm{MLP}[x_i, x_j - x_i, c_j]`
    is added.

    A point with a NaN is padding, which nothing reads. Points at the same position are separate
    points, each with its mass, and neighbours of each other. Among equal distances the first point
    in order is chosen, so results for clouds on a grid may depend on the order. In a cloud with
    fewer than k points every neighbourhood is the complete cloud. A cloud without points gives
    zeros. With weights in half precision, clouds may be in float32; their positions are then not
    rounded.

    Args:
        channels: coordinates and further channels of a point.
        dim: width D of the features.
        position_dim: how many of the channels, the first ones, are coordinates (default all).
        features: ``raw`` or ``fourier``.
        neighbours: k; 0 for none.
        frequencies, sigma: of γ; for clouds of radius 1 use a σ of 1 to 3.
        dropout: after the embedding.

    Shape: clouds (B, N, channels), N ≥ 1, to features (B, N, D) and their domain. ``valid`` (B, N)
    marks further padding. The search for neighbours takes time O(N²), memory for one block of
    points, and has no gradient.

    Raises:
        OptionError: unknown features, or impossible sizes.
        ShapeError: clouds of other channels.

    Reference: ITNet §3.4, App. J, Table 21 (k = 16). The network of a neighbourhood is ours; the
    paper does not specify it.

    Example:
        >>> features, domain = PointEncoder(channels=3, dim=8, neighbours=16)(torch.rand(2, 5, 3))
        >>> features.shape, domain.dim
        (torch.Size([2, 5, 8]), 3)
    """

    axis = 1

    def __init__(
        self,
        *,
        channels: int = 3,
        dim: int,
        position_dim: int | None = None,
        features: str = "raw",
        neighbours: int = 0,
        frequencies: int = 64,
        sigma: float = 1.0,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.channels = channels
        self.position_dim = channels
        if position_dim is not None:
            self.position_dim = position_dim
        check_name("features", features, FEATURES)
        if not 1 <= self.position_dim <= channels or neighbours < 0:
            got = f"position_dim={position_dim}, channels={channels}, neighbours={neighbours}"
            raise OptionError(
                "points: expected 1 to channels coordinates and 0 or more neighbours, got "
                f"{got}; correct them"
            )
        self.neighbours = neighbours
        self.dim = dim
        self.embed = nn.Linear(channels, dim)
        self.fourier = self.position = self.local = None
        if features == "fourier":
            self.fourier = FourierFeatures(self.position_dim, frequencies, sigma)
            self.position = nn.Linear(2 * frequencies, dim, bias=False)
        if neighbours:
            # A centre, an offset to a neighbour, and the neighbour's further channels.
            width = channels + self.position_dim
            self.local = nn.Sequential(
                nn.Linear(width, dim),
                nn.GELU(),
                nn.Linear(dim, dim),
            )
        self.dropout = nn.Dropout(dropout)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(
        self,
        clouds: Float[Tensor, "b n c"],
        valid: Bool[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Domain]:
        if clouds.dim() != 3 or clouds.shape[-1] != self.channels:
            raise ShapeError(
                f"point clouds: expected shape (B, N, {self.channels}), got "
                f"{tuple(clouds.shape)}; reshape them"
            )
        # A point with a NaN is padding, and NaN must not reach a product.
        is_point = ~clouds.isnan().any(-1)
        if valid is not None:
            is_point = is_point & valid
        valid = is_point
        clouds = torch.where(valid[..., None], clouds, 0.0)
        dtype = at_least_single(clouds.dtype)
        positions = clouds[..., : self.position_dim].to(dtype)
        domain = Domain.points(positions, valid=valid)
        features = self.embed(self._as_weights(clouds))
        features = self.with_positions(features, domain.positions)
        if self.local is not None:
            features = features + self._local(clouds, valid)
        return self.dropout(features), domain

    def part(self, inputs: Float[Tensor, "b n c"], mesh: Any) -> tuple[Tensor, Domain]:
        if self.local is not None:
            self.refuse_part(f"of {self.neighbours} neighbours some may be in another one")
        features, domain = self(inputs)
        return features, Domain.from_shard(domain, mesh)

    def _as_weights(self, x: Tensor) -> Tensor:
        """Return numbers rounded as the weights are, where these are in half precision."""
        dtype = self.embed.weight.dtype
        if dtype.itemsize < 4:
            x = x.to(dtype)
        return x

    def _local(self, clouds: Tensor, valid: Tensor) -> Tensor:
        """Return the features of each point's neighbourhood, (B, N, D): the elementwise maximum of
        MLP[x_i, x_j - x_i, c_j] over the k nearest real points j; zero in a cloud without any.

        Args:
            clouds: (B, N, channels), zero at padding.
            valid: which points are real, (B, N).
        """
        assert self.local is not None
        # Indices of the neighbours, (B, N, min(k, N)).
        positions = clouds[..., : self.position_dim]
        index = nearest(positions, valid, self.neighbours)
        batch = torch.arange(clouds.shape[0], device=clouds.device)
        batch = batch[:, None, None]
        neighbours = clouds[batch, index]
        # In a cloud of fewer than k real points the other indices are those of padding.
        real = valid[batch, index]

        # One row per pair, (B, N, min(k, N), position_dim + channels): the point's position, the
        # offset to the neighbour, and the neighbour's further channels c.
        centre = clouds[..., None, : self.position_dim]
        offset = neighbours[..., : self.position_dim] - centre
        channels = neighbours[..., self.position_dim :]
        centres = centre.expand_as(offset)
        pairs = torch.cat([centres, offset, channels], -1)
        response = self.local(self._as_weights(pairs))

        # Padding must not win the maximum.
        lowest = torch.finfo(response.dtype).min
        candidates = torch.where(real[..., None], response, lowest)
        best = candidates.amax(-2)
        has_neighbour = real.any(-1, keepdim=True)
        return torch.where(has_neighbour, best, 0.0)


@torch.no_grad()
def nearest(
    positions: Float[Tensor, "b n p"],
    valid: Bool[Tensor, "b n"],
    k: int,
) -> Tensor:
    """Return the indices of the min(k, N) nearest real points of each point, by distance.

    Of equal distances the point itself is first, and the others keep their order. If fewer points
    are real, padding fills the row up.

    Example:
        >>> line = torch.tensor([[[0.0], [1.0], [3.0], [9.0]]])
        >>> nearest(line, torch.tensor([[True, True, True, False]]), 2).tolist()[0][:3]
        [[0, 1], [1, 0], [2, 1]]
    """
    batch, n = positions.shape[:2]
    everything = torch.arange(n, device=positions.device)
    # A loop over blocks would fix a traced program to the number of points that it was traced at.
    if torch.compiler.is_compiling():
        return _nearest_of(everything, positions, valid, k)
    block = max(1, DISTANCES // max(1, batch * n))
    found = []
    for rows in everything.split(block):
        found.append(_nearest_of(rows, positions, valid, k))
    if len(found) == 1:
        return found[0]
    return torch.cat(found, 1)


def _nearest_of(
    rows: Int[Tensor, " r"],
    positions: Float[Tensor, "b n p"],
    valid: Bool[Tensor, "b n"],
    k: int,
) -> Tensor:
    """Return :func:`nearest` of the points ``rows``, (b, r, min(k, n))."""
    n = positions.shape[1]
    distance = distances(positions[:, rows], positions)
    padding = ~valid[:, None, :]
    distance = distance.masked_fill(padding, torch.inf)

    # A twin at distance zero must not come before the point itself.
    everything = torch.arange(n, device=rows.device)
    own = rows[:, None] == everything
    own = own & valid[:, rows, None]
    distance = distance.masked_fill(own, -1.0)
    # A tracer would keep min(k, n) as a size of its own, not equal to k anywhere.
    count = k
    if n < k:
        count = n
    return _smallest(distance, count)


def _smallest(values: Float[Tensor, "*b n"], k: int) -> Tensor:
    """Return the indices of the k smallest values, of equal ones the first. A stable sort of all n
    takes several times as long.
    """
    n = values.shape[-1]
    smallest = values.topk(k, dim=-1, largest=False).values
    last = smallest[..., -1:]
    place = torch.arange(n, dtype=torch.int32, device=values.device)
    # No two candidates have the same rank: topk alone may take any of equal values.
    rank = torch.where(values > last, n, place)
    rank = torch.where(values < last, place - n, rank)
    index = rank.topk(k, dim=-1, largest=False).indices
    found = values.gather(-1, index)
    order = found.sort(dim=-1, stable=True).indices
    return index.gather(-1, order)
