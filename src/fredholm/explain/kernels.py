"""Kernels to numbers: profiles against distance and maps of one query, through the operator
contract alone.

Any :class:`PairwiseOperator` can be read, whatever its kernel. Only some queries' rows are ever evaluated, in pieces that fit a memory
budget.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..domain import Domain
from ..edges import Edges
from ..errors import DomainError, OptionError, ShapeError
from ..integral import Kernel
from ..quadrature import Rows

# Bytes of kernel matrix in memory at once.
BUDGET = 2**27


@runtime_checkable
class PairwiseOperator(Protocol):
    """The operator contract, as far as it is about pairs of points.

    Every :class:`fredholm.operators.IntegralOperator` obeys it. ``rows`` selects queries.
    """

    @property
    def has_weights(self) -> bool:
        """Whether a pair has a scalar weight, so that :meth:`weights` exist."""
        ...

    def kernel_matrix(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        rows: Rows = None,
    ) -> Tensor:
        """Return K as densities against the measure, (B, H, Nq, Nk, d_out, d_in)."""
        ...

    def weights(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        rows: Rows = None,
    ) -> Tensor:
        """Return the scalar weight of each pair times the key's measure, (B, H, Nq, Nk)."""
        ...

    def influence(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        rows: Rows = None,
    ) -> Tensor:
        """Return ‖K‖_F times the key's measure, (B, H, Nq, Nk)."""
        ...


@dataclass(frozen=True, eq=False)
class Profile:
    """A kernel's size against the distance of the two points; see :func:`kernel_profile`.

    Attributes:
        distance: mean distance of the pairs in each bin, (bins,); empty bins are left out.
        norm, norm_sd: mean and standard deviation over pairs and samples of ‖K‖_F, (H, bins).
        weight, weight_sd: the same of the operator's weight, (H, bins).
        count: pairs in each bin, all samples together, (H, bins).
        samples, queries: the numbers of signals, and of queries of each, that were used.
    """

    distance: Float[Tensor, " bins"]
    norm: Float[Tensor, "h bins"]
    norm_sd: Float[Tensor, "h bins"]
    weight: Float[Tensor, "h bins"]
    weight_sd: Float[Tensor, "h bins"]
    count: Float[Tensor, "h bins"]
    samples: int
    queries: int

    def pooled(self, name: str = "norm") -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of ``"norm"`` or ``"weight"`` over all heads' pairs, each
        (bins,).
        """
        mean = getattr(self, name)
        sd = getattr(self, f"{name}_sd")
        share = self.count / self.count.sum(0)
        middle = (share * mean).sum(0)
        squares = sd**2 + mean**2
        mean_square = (share * squares).sum(0)
        variance = (mean_square - middle**2).clamp(min=0)
        return middle, variance.sqrt()


@torch.no_grad()
def kernel_profile(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    bins: int = 16,
    queries: int = 32,
    seed: int = 0,
    budget: int = BUDGET,
) -> Profile:
    r"""Mean kernel norm :math:`\|K_{ij}\|_F` and mean weight of pairs at distance
    :math:`|x_i - y_j|`, with their spread.

    Bin k contains the pairs nearest to distance k·r / (bins - 1), where r is the largest distance.
    On a grid, bin 0 is the diagonal. Pairs that do not interact (padding, order, masks, measure 0 such
    as a class token) do not count, nor do queries without mass.

    Args:
        operator: anything that obeys the operator contract.
        u: its inputs, (B, N, D).
        domain: where they live, by default where the operator puts them without one.
        bins: number of bins, at least 2.
        queries: how many query points are drawn (all where there are fewer), with ``seed``.
        budget: bytes of kernel matrix evaluated at once.

    Cost: O(B · queries · N · H · d_out · d_in) time, ``budget`` memory.

    Raises:
        OptionError: fewer than two bins or no query.
        ShapeError: u has no samples or does not fit the domain.

    Example:
        >>> from fredholm.operators import create_operator
        >>> profile = kernel_profile(create_operator("softmax", 8, heads=2), torch.randn(4, 9, 8), Domain.grid(3, 3))
        >>> profile.norm.shape[0], float(profile.distance[0])
        (2, 0.0)
    """
    if bins < 2 or queries < 1:
        raise OptionError(
            f"a profile needs at least 2 bins and 1 query, got bins={bins} and queries={queries}"
        )
    domain = check(operator, u, domain)
    target = output_points(operator, domain)
    rows = choose_queries(target, queries, seed)
    distance, seen = _pairs(domain, target, rows)
    # Pairs that no head sees do not stretch the bins.
    known = torch.where(seen.any(1), distance, 0.0)
    step = float(known.max()) / (bins - 1)
    index = torch.zeros_like(distance, dtype=torch.long)
    if step > 0:
        # Halfway between two bins, rounding errors would part pairs of one distance: it counts as
        # the lower one.
        index = (known / step - 1e-4).round().long()

    sums: Tensor | None = None
    pieces = _norms(operator, u, domain, rows, budget)
    for samples, part, norm, weight in pieces:
        # All of shape (b, H, r, N).
        near = _of_samples(distance, samples)[:, None, part]
        near = near.expand(norm.shape)
        place = _of_samples(index, samples)[:, None, part]
        place = place.expand(norm.shape)
        mask = _of_samples(seen, samples)[:, :, part]
        mask = mask.expand(norm.shape)
        values = [
            mask.double(),
            near,
            norm,
            norm**2,
            weight,
            weight**2,
        ]
        # (6, H, pairs)
        table = torch.stack([_by_head(torch.where(mask, value, 0.0)) for value in values])
        bin_of_pair = _by_head(place).expand(table.shape)
        if sums is None:
            shape = (*table.shape[:2], bins)
            sums = torch.zeros(shape, dtype=torch.float64)
        of_piece = torch.zeros_like(sums)
        of_piece.scatter_add_(2, bin_of_pair, table)
        sums = sums + of_piece
    assert sums is not None

    # Empty bins are left out. Means and deviations are of the pairs of each head.
    filled = sums[0].sum(0) > 0
    (
        count,
        distances,
        norms,
        norm_squares,
        weights,
        weight_squares,
    ) = sums[:, :, filled]
    total = count.clamp(min=1)
    norm = norms / total
    weight = weights / total
    norm_variance = norm_squares / total - norm**2
    weight_variance = weight_squares / total - weight**2
    return Profile(
        distance=distances.sum(0) / count.sum(0),
        norm=norm,
        norm_sd=norm_variance.clamp(min=0).sqrt(),
        weight=weight,
        weight_sd=weight_variance.clamp(min=0).sqrt(),
        count=count,
        samples=len(u),
        queries=len(rows),
    )


def _by_head(values: Tensor) -> Tensor:
    """Return values of pairs (b, H, r, N) as one row per head, (H, b · r · N)."""
    return values.transpose(0, 1).flatten(1)


def pair_weights(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain | None = None,
    *,
    rows: Rows = None,
) -> Tensor:
    """Return the weights (B, H, Nq, Nk) of which maps and walks are made.

    A weight is the scalar weight of a pair times the key's measure, where the kernel has one
    (:meth:`IntegralOperator.weights`), else the norm of its matrix times the measure
    (:meth:`IntegralOperator.influence`). ``operator.has_weights`` tells which.
    """
    if operator.has_weights:
        return operator.weights(u, domain, rows=rows)
    return operator.influence(u, domain, rows=rows)


@torch.no_grad()
def kernel_map(
    operator: PairwiseOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    queries: list[int],
) -> Float[Tensor, "b h q n"]:
    """Return the operator's weights of every point for some queries, (B, H, queries, N), in
    float64 on the CPU.

    For softmax these are the attention probabilities; for a matrix kernel ‖K_ij‖_F times the
    measure of j.

    Raises:
        OptionError: a query index outside the domain.

    Example:
        >>> from fredholm.operators import create_operator
        >>> op = create_operator("softmax", 8, heads=2)
        >>> kernel_map(op, torch.randn(1, 9, 8), Domain.grid(3, 3), queries=[4]).sum(-1).flatten().round(decimals=5).tolist()
        [1.0, 1.0]
    """
    domain = check(operator, u, domain)
    size = output_points(operator, domain).size
    for query in queries:
        if not 0 <= query < size:
            raise OptionError(f"query {query} is outside the domain; it has points 0 to {size - 1}")
    weights = pair_weights(operator, u, domain, rows=list(queries))
    return weights.detach().double().cpu()


def image_grid(domain: Domain) -> Int[Tensor, "rows columns"] | None:
    """Return the indices of the domain's points as a picture (rows, columns), on the CPU, or None
    if they are not a full two-dimensional grid that all samples share.

    The points may be in any order: rows and columns follow from their coordinates. Omitted are
    points without mass, padding, and the tokens that precede the patches and share one position: a
    class token (see :func:`class_token`) and registers.

    Example:
        >>> image_grid(Domain.grid(2, 3)).tolist()
        [[0, 1, 2], [3, 4, 5]]
        >>> before = Domain.points(torch.full((3, 2), 0.5))
        >>> image_grid(Domain.join(before, Domain.grid(2, 2))).tolist()
        [[3, 4], [5, 6]]
    """
    if domain.dim != 2 or domain.positions.dim() != 2 or domain.batch not in (None, 1):
        return None
    # Positions are shared by all samples here, so the first one's points stand for all.
    mass = masses(domain)[0]
    real = mass.nonzero()[:, 0]
    picture = _picture(domain, real)

    # Tokens before the patches have a mass and break the grid; try again without them.
    if picture is None and real.numel() > 1 and int(real[0]) == 0:
        first_patch = _leading(domain.positions[real])
        return _picture(domain, real[first_patch:])
    return picture


def _leading(positions: Tensor) -> int:
    """Return how many of the first points stand at one place: a class token, or more with
    registers.
    """
    apart = (positions != positions[0]).any(-1)
    return int(apart.long().argmax()) or 1


def _picture(domain: Domain, points: Tensor) -> Tensor | None:
    """Return some points as rows and columns of a full grid; None where they do not form one."""
    rows, row = _levels(domain.positions[points, 0])
    columns, column = _levels(domain.positions[points, 1])
    place = row * columns + column
    # Every cell of a full grid holds exactly one point.
    if rows * columns != len(points) or len(torch.unique(place)) != len(points):
        return None
    picture = torch.empty(rows * columns, dtype=torch.long)
    picture[place] = points.cpu()
    return picture.reshape(rows, columns)


def class_token(domain: Domain) -> int | None:
    """Return the index of the class token; None where no point differs from the others as one.

    A class token is a point of measure 0 that every sample of the batch has, or a point with a mass
    of its own before the points of a full picture: the first, if registers follow at its place.

    Example:
        >>> grid, centre = Domain.grid(2, 2), Domain.points(torch.tensor([[0.5, 0.5]]))
        >>> class_token(grid), class_token(Domain.join(centre, grid))
        (None, 0)
        >>> class_token(Domain.join(grid, centre, balance=(1.0, 0.0)))
        4
    """
    measure = domain.measure.detach()
    without = measure.reshape(-1, domain.size) == 0
    if domain.valid is not None:
        without = without & domain.valid
    tokens = without.all(0).nonzero()[:, 0]
    if len(tokens):
        return int(tokens[0])
    if domain.valid is not None:
        return None
    grid = image_grid(domain)
    if grid is not None and grid.numel() < domain.size:
        return 0
    return None


def choose_queries(
    domain: Domain,
    number: int,
    seed: int,
) -> list[int]:
    """Return up to ``number`` indices of points that carry mass in some sample, drawn without
    replacement, sorted.
    """
    has_mass = (masses(domain) > 0).any(0)
    real = has_mass.nonzero()[:, 0].cpu()
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(real), generator=draw)
    chosen = real[order[:number]]
    return sorted(chosen.tolist())


def output_points(operator: PairwiseOperator, domain: Domain) -> Domain:
    """Return the domain of the output: ``domain`` itself, or the other grid of an operator whose
    kernel has one (a strided convolution).
    """
    kernel = getattr(operator, "kernel", None)
    if not isinstance(kernel, Kernel):
        return domain
    other = kernel.output_domain(domain)
    if other is None:
        return domain
    return other


def check(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain | None,
) -> Domain:
    """Return the domain of u, by default the operator's own, after checking that u fits it and is
    not empty.
    """
    if u.dim() != 3 or not len(u):
        raise ShapeError(
            f"u must have shape (B, N, D) with at least one sample, got {tuple(u.shape)}"
        )
    if domain is None:
        domain = default_domain(operator, u)
    if domain.size != u.shape[1]:
        raise ShapeError(
            f"u has {u.shape[1]} points and its domain {domain.size}; they must be equal"
        )
    has_mass = masses(domain) > 0
    if not bool(has_mass.any()):
        raise DomainError("no point of the domain carries mass, so there is no kernel to look at")
    return domain


def default_domain(operator: Any, u: Tensor) -> Domain:
    """Return the domain on which ``operator(u)`` takes the points of u to lie: the operator's
    ``default_domain``, or a line where it has none.
    """
    default = getattr(operator, "default_domain", None)
    if default is None:
        return Domain.line(u.shape[1], device=u.device)
    return default(u)


def take_samples(domain: Domain, samples: slice) -> Domain:
    """Return the domain of some samples of a batch: ``samples`` selects from the first dimension of
    each tensor that has one entry per sample.

    A field that all samples share, without a dimension of samples or with one of size 1, is
    returned unchanged.
    """
    # Number of dimensions of a field that all samples share: positions (N, p), measure and valid
    # (N,), pairs (Nq, N). One dimension more, in front, is that of the samples.
    shared = {
        "positions": 2,
        "measure": 1,
        "valid": 1,
        "pairs": 2,
    }
    changes: dict[str, Tensor | Edges] = {}
    for field in fields(domain):
        value = getattr(domain, field.name)
        if isinstance(value, Edges):
            changes[field.name] = value.graphs(samples)
            continue
        if field.name not in shared or value is None:
            continue
        if value.dim() > shared[field.name] and len(value) > 1:
            changes[field.name] = value[samples]
    return replace(domain, **changes)


def matrix_rows(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain,
    rows: list[int],
    budget: int,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield (slice of samples, slice of ``rows``, kernel matrices (b, H, r, N, d_out, d_in)), piece
    by piece.

    A piece takes at most ``budget`` bytes, or is one row of one sample if even that takes more.
    """
    # All rows of all samples take as many bytes as this one.
    first_sample = take_samples(domain, slice(0, 1))
    probe = operator.kernel_matrix(
        u[:1],
        first_sample,
        rows=rows[:1],
    )
    bytes_per_row = probe.numel() * probe.element_size()
    bytes_per_row = max(1, bytes_per_row)
    fit = max(1, budget // bytes_per_row)
    per_call = min(fit, len(rows))
    samples = max(1, fit // len(rows))
    for start in range(0, len(u), samples):
        stop = min(start + samples, len(u))
        batch = slice(start, stop)
        own = take_samples(domain, batch)
        for first in range(0, len(rows), per_call):
            last = min(first + per_call, len(rows))
            part = slice(first, last)
            yield batch, part, operator.kernel_matrix(u[batch], own, rows=rows[part])


def _of_samples(values: Tensor, samples: slice) -> Tensor:
    """Return the part of (1 | B, ...) that belongs to some samples; 1 is shared by all."""
    if len(values) == 1:
        return values
    return values[samples]


def _norms(
    operator: PairwiseOperator,
    u: Tensor,
    domain: Domain,
    rows: list[int],
    budget: int,
) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
    """Yield, for each piece of :func:`matrix_rows`, its slice of samples, its slice of ``rows``, the
    Frobenius norms of the kernel matrices and the weights of the pairs (:func:`pair_weights`).

    Norms and weights are (b, H, r, N), in float64 on the CPU.
    """
    # The norm is computed in float32, since torch has no matrix norm in half precision. Weights
    # that all samples or heads share are expanded to the shape of the norms.
    pieces = matrix_rows(operator, u, domain, rows, budget)
    for batch, part, matrix in pieces:
        norm = torch.linalg.matrix_norm(matrix.float()).double().cpu()
        own = take_samples(domain, batch)
        weight = pair_weights(
            operator,
            u[batch],
            own,
            rows=rows[part],
        )
        weight = weight.double().cpu()
        yield batch, part, norm, weight.expand(norm.shape)


def _pairs(
    domain: Domain,
    target: Domain,
    rows: list[int],
) -> tuple[Tensor, Tensor]:
    """Return distances (1 | B, R, N) in float64, and which pairs interact (1 | B, 1 | H, R, N), both
    on the CPU.
    """
    y = _positions(domain)
    x = _positions(target)
    quadrature = domain.quadrature()
    if target is not domain:
        quadrature = domain.quadrature(target)
    seen = (quadrature.weights(rows) > 0).cpu()
    real = masses(target).cpu() > 0
    seen = seen & real[:, None, rows, None]
    if seen.shape[2] != len(rows):
        seen = seen.expand(-1, -1, len(rows), -1)
    batch = max(len(x), len(seen))
    if len(seen) != batch:
        seen = seen.expand(batch, -1, -1, -1)
    apart = x[:, rows, None] - y[:, None]
    distance = torch.linalg.vector_norm(apart, dim=-1)
    return distance.expand(batch, -1, -1), seen


def _positions(domain: Domain) -> Tensor:
    """Return the positions, (1 | B, N, p), in float64 on the CPU."""
    wide = domain.positions.detach().double().cpu()
    return wide.reshape(-1, domain.size, domain.dim)


def masses(domain: Domain) -> Tensor:
    """Return the measure (1 | B, N), 0 at padding."""
    measure = domain.measure.detach()
    mass = measure.reshape(-1, domain.size)
    if domain.valid is None:
        return mass
    return torch.where(domain.valid, mass, 0.0)


def _levels(values: Tensor) -> tuple[int, Tensor]:
    """Return how many different coordinates there are (to six digits of the range), and the rank of
    each value.
    """
    least = values.min()
    scale = float(values.max() - least) or 1.0
    places = (values - least) / scale * 1e6
    rounded = places.round()
    levels, rank = torch.unique(rounded, return_inverse=True)
    return len(levels), rank.cpu()
