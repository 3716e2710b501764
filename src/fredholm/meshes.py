"""Meshes as measures: quadrature on triangles and tetrahedra, boundaries, normals, files.

A :class:`Mesh` is made of simplices: triangles in the plane or on a surface in space, or
tetrahedra. All rules have the measure's exact total.
"""

from __future__ import annotations

from itertools import combinations
from math import factorial, sin
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from .errors import DataError, DomainError, ShapeError, require

# Degree of exactness -> barycentric points and weights of a rule, by number of corners.
_TRIANGLE = {
    1: ([[1 / 3, 1 / 3, 1 / 3]], [1.0]),
    2: (
        [
            [2 / 3, 1 / 6, 1 / 6],
            [1 / 6, 2 / 3, 1 / 6],
            [1 / 6, 1 / 6, 2 / 3],
        ],
        [1 / 3] * 3,
    ),
}
_A = (5 + 3 * 5**0.5) / 20
_B = (5 - 5**0.5) / 20
_TETRAHEDRON = {
    1: ([[1 / 4] * 4], [1.0]),
    2: (
        [
            [_A, _B, _B, _B],
            [_B, _A, _B, _B],
            [_B, _B, _A, _B],
            [_B, _B, _B, _A],
        ],
        [1 / 4] * 4,
    ),
}
RULES = {3: _TRIANGLE, 4: _TETRAHEDRON}


class Rule(NamedTuple):
    """A quadrature rule on a mesh: points (Q, p) and their masses (Q,)."""

    points: Float[Tensor, "q p"]
    masses: Float[Tensor, " q"]


class Boundary(NamedTuple):
    """The facets that belong to one cell only: edges of a flat mesh, triangles of a solid.

    Attributes:
        facets: corners of each facet, (F, d).
        centres: middle of each facet, (F, p).
        measure: length or area of each facet, (F,).
        normals: unit normal of each facet, pointing outwards, (F, p).
    """

    facets: Int[Tensor, "f d"]
    centres: Float[Tensor, "f p"]
    measure: Float[Tensor, " f"]
    normals: Float[Tensor, "f p"]


class Mesh:
    """Vertices, and cells between them.

    Args:
        vertices: coordinates, (V, 2) or (V, 3); gradients reach them.
        cells: corners of triangles (C, 3) or tetrahedra (C, 4), as indices of vertices.

    Raises:
        ShapeError: other shapes or dtypes; tetrahedra in the plane.
        DomainError: no cells, corners that do not exist, coordinates that are not finite, cells
            without extent, cells of both orientations.

    Example:
        >>> square = Mesh(
        ...     torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
        ...     torch.tensor([[0, 1, 2], [0, 2, 3]]),
        ... )
        >>> square.cell_masses().tolist(), square.boundary().measure.sum().item()
        ([0.5, 0.5], 4.0)
    """

    def __init__(self, vertices: Tensor, cells: Tensor):
        _check_shapes(vertices, cells)
        self.vertices = vertices
        self.cells = cells.long()
        self._check_values()

    def __repr__(self) -> str:
        kind = {3: "triangles", 4: "tetrahedra"}[self.corners]
        return f"Mesh({len(self.vertices)} vertices, {len(self.cells)} {kind} in {self.dim}-D)"

    @property
    def dim(self) -> int:
        """Dimension p of the space."""
        return self.vertices.shape[1]

    @property
    def corners(self) -> int:
        """Corners of a cell: 3 or 4."""
        return self.cells.shape[1]

    # --- measure ----------------------------------------------------------------------------------

    def cell_masses(self) -> Float[Tensor, " c"]:
        """Return the area of each triangle, or the volume of each tetrahedron."""
        return _sizes(self.vertices[self.cells])

    def vertex_masses(self) -> Float[Tensor, " v"]:
        """Return the mass of each vertex: each cell gives its mass in equal parts to its corners,
        so that the integral of functions that are linear on each cell is exact. A vertex without
        a cell has mass 0.
        """
        part = self.cell_masses() / self.corners
        of_corners = part.repeat_interleave(self.corners)
        masses = part.new_zeros(len(self.vertices))
        return masses.index_add(0, self.cells.flatten(), of_corners)

    def cell_centres(self) -> Float[Tensor, "c p"]:
        """Return the centroid of each cell; with :meth:`cell_masses` a rule of degree 1."""
        return self.vertices[self.cells].mean(1)

    def rule(self, degree: int) -> Rule:
        """Return a rule with points inside of the cells that is exact for polynomials of
        ``degree`` 1 or 2: one point per cell, or one per corner.

        Example:
            >>> corners = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
            >>> points, masses = Mesh(corners, torch.tensor([[0, 1, 2]])).rule(2)
            >>> round(float((points[:, 0] ** 2 * masses).sum()), 6)  # 1/12
            0.083333
        """
        rules = RULES[self.corners]
        if degree not in rules:
            raise DomainError(f"expected a degree of {sorted(rules)}, got degree={degree}")
        barycentric, shares = rules[degree]
        places = self.vertices.new_tensor(barycentric)
        weights = self.vertices.new_tensor(shares)

        # Points in barycentric coordinates of the corners, mapped to each cell.
        corners = self.vertices[self.cells]
        points = torch.einsum("qk,ckp->cqp", places, corners)
        masses = self.cell_masses()[:, None] * weights
        return Rule(points.flatten(0, 1), masses.flatten())

    # --- boundary and normals ---------------------------------------------------------------------

    def boundary(self) -> Boundary:
        """Return the facets of one cell only, with their measure and outward normals. Of a surface
        in space the normals lie in the surface.

        Raises:
            DomainError: a facet that more than two cells share.
        """
        facets, inner = _facets(self.cells)

        # Two cells list their common facet in different orders of its corners.
        ordered = torch.sort(facets, -1).values
        _, place, counts = torch.unique(
            ordered,
            dim=0,
            return_inverse=True,
            return_counts=True,
        )
        if len(counts) and int(counts.max()) > 2:
            raise DomainError(
                f"expected facets of at most two cells, got {int((counts > 2).sum())} that more "
                "share; split the mesh into manifold parts"
            )
        single = counts[place] == 1
        facets = facets[single]
        inner = inner[single]
        ends = self.vertices[facets]
        sides = ends[:, 1:] - ends[:, :1]

        # The direction from the facet to the cell's other corner, without its part along the
        # facet, points inwards.
        to_inner = self.vertices[inner] - ends[:, 0]
        basis = torch.linalg.qr(sides.mT).Q
        along = basis @ (basis.mT @ to_inner[..., None])
        inwards = to_inner - along[..., 0]
        return Boundary(
            facets=facets,
            centres=ends.mean(1),
            measure=_sizes(ends),
            normals=-torch.nn.functional.normalize(inwards, dim=-1),
        )

    def normals(self) -> Float[Tensor, "v p"]:
        """Return the unit normal at each vertex of a surface of triangles in space: the mean of its
        triangles' normals by area; zero where they cancel.

        Raises:
            DomainError: a mesh that is not a surface in space.
        """
        if self.corners != 3 or self.dim != 3:
            raise DomainError(
                f"expected triangles in space, got {self!r}; boundary().normals has the normals "
                "of a flat or solid mesh"
            )
        a, b, c = self.vertices[self.cells].unbind(1)
        # Twice the area times the unit normal.
        first_side = b - a
        second_side = c - a
        area = torch.linalg.cross(first_side, second_side)
        total = torch.zeros_like(self.vertices)
        for corner in range(3):
            vertex = self.cells[:, corner]
            total = total.index_add(0, vertex, area)
        return torch.nn.functional.normalize(total, dim=-1)

    def edge_index(self) -> Int[Tensor, "2 e"]:
        """Return both directions of every edge of a cell, (2, E)."""
        pairs = []
        for first, second in combinations(range(self.corners), 2):
            pairs.append(self.cells[:, [first, second]])
        ordered = torch.sort(torch.cat(pairs), -1).values
        once = torch.unique(ordered, dim=0)
        reverse = once.flip(-1)
        both = torch.cat([once, reverse])
        return both.T.contiguous()

    # --- checks -----------------------------------------------------------------------------------

    def _check_values(self) -> None:
        """DomainError where vertices or cells cannot be integrated over."""
        vertices = self.vertices.detach()
        cells = self.cells
        bad = ~vertices.isfinite().all(-1)
        if bool(bad.any()):
            raise DomainError(f"expected finite vertices, got {int(bad.sum())} with other numbers")

        low = int(cells.min())
        high = int(cells.max())
        if low < 0 or high >= len(vertices):
            raise DomainError(
                f"expected corners 0 to {len(vertices) - 1}, got indices from {low} to {high}"
            )

        size = _sizes(vertices[cells])
        largest = float(size.max())
        smallest = largest * torch.finfo(size.dtype).eps
        flat = size <= smallest
        if bool(flat.any()):
            raise DomainError(
                f"expected cells with extent, got {int(flat.sum())} without: corners repeat or lie "
                "on a line; drop those cells"
            )
        if self.corners == self.dim + 1:
            first_corner = vertices[cells[:, :1]]
            sides = vertices[cells[:, 1:]] - first_corner
            inverted = torch.linalg.det(sides) < 0
            if bool(inverted.any()) and not bool(inverted.all()):
                raise DomainError(
                    f"expected cells of one orientation, got {int(inverted.sum())} of "
                    f"{len(cells)} inverted; swap two corners of those, or repair the mesh"
                )


def _check_shapes(vertices: Tensor, cells: Tensor) -> None:
    """ShapeError where vertices and cells are not those of a mesh."""
    if vertices.dim() != 2 or vertices.shape[1] not in (2, 3) or not vertices.is_floating_point():
        raise ShapeError(
            f"expected floating-point vertices (V, 2) or (V, 3), got {tuple(vertices.shape)} "
            f"{vertices.dtype}"
        )
    if cells.dim() != 2 or cells.shape[1] not in (3, 4) or cells.is_floating_point():
        raise ShapeError(
            f"expected integer cells (C, 3) or (C, 4), got {tuple(cells.shape)} {cells.dtype}"
        )
    if cells.shape[1] == 4 and vertices.shape[1] == 2:
        raise ShapeError(
            "expected triangles (C, 3) in the plane, got cells (C, 4); split quadrilaterals into "
            "triangles, or give tetrahedra three coordinates"
        )
    if not len(cells):
        raise DomainError("expected at least one cell, got none")


def _sizes(corners: Float[Tensor, "c k p"]) -> Float[Tensor, " c"]:
    """Return the length, area or volume of simplices, from their k corners in p dimensions:
    segments (k = 2), triangles (3) or tetrahedra (4).
    """
    # The sides that meet in the first corner.
    sides = corners[:, 1:] - corners[:, :1]
    dimension = sides.shape[1]
    if dimension == 1:
        return torch.linalg.vector_norm(sides[:, 0], dim=-1)
    if dimension == sides.shape[2]:
        # The determinant is the volume of the parallelepiped on the sides: d! simplices.
        volume = torch.linalg.det(sides).abs()
        return volume / factorial(dimension)

    # A triangle in space is half of the parallelogram on two of its sides.
    cross = torch.linalg.cross(sides[:, 0], sides[:, 1])
    return torch.linalg.vector_norm(cross, dim=-1) / 2


def _facets(cells: Int[Tensor, "c k"]) -> tuple[Tensor, Tensor]:
    """Return all facets of all cells, and the corner of the cell that each leaves out."""
    corners = range(cells.shape[1])
    facets = []
    left_out = []
    for left in corners:
        others = [corner for corner in corners if corner != left]
        facets.append(cells[:, others])
        left_out.append(cells[:, left])
    return torch.cat(facets), torch.cat(left_out)


# --- the sphere -----------------------------------------------------------------------------------


def latitude_longitude(
    latitudes: int,
    longitudes: int,
    *,
    dtype: torch.dtype | None = None,
) -> Rule:
    """Return the cells of a latitude-longitude grid on the unit sphere: their centres (N, 3), and
    their exact areas (N,), for N = latitudes · longitudes.

    Cells have equal angles, so their areas shrink towards the poles, and add up to 4π. A centre is
    at the middle latitude and longitude, which is never a pole. Latitudes go from south to north,
    and longitudes run fastest.

    Example:
        >>> points, areas = latitude_longitude(4, 8)
        >>> points.shape, round(areas.sum().item(), 4)  # 4 π
        (torch.Size([32, 3]), 12.5664)
    """
    if latitudes < 1 or longitudes < 1:
        raise DomainError(
            f"expected at least one latitude and longitude, got {latitudes} and {longitudes}"
        )
    dtype = dtype or torch.get_default_dtype()

    # Angles in radians, in float64 until the end.
    step = torch.pi / latitudes
    numbers = torch.arange(latitudes + 1, dtype=torch.float64)
    edges = numbers * step - torch.pi / 2
    middle = edges[:-1] + step / 2
    turn = 2 * torch.pi / longitudes
    numbers = torch.arange(longitudes, dtype=torch.float64)
    longitude = (numbers + 0.5) * turn
    phi, lam = torch.meshgrid(middle, longitude, indexing="ij")
    x = phi.cos() * lam.cos()
    y = phi.cos() * lam.sin()
    z = phi.sin()
    points = torch.stack([x, y, z], -1)
    points = points.reshape(-1, 3)

    # A band between two latitudes has the area of its projection on a cylinder (Archimedes).
    heights = edges[1:].sin() - edges[:-1].sin()
    of_bands = heights * turn
    areas = of_bands.repeat_interleave(longitudes)
    return Rule(
        points.to(dtype),
        areas.to(dtype),
    )


def sphere_areas(points: Tensor) -> Float[Tensor, " n"]:
    """Return the area of each point's Voronoi cell on the unit sphere, 4 π in all.

    Raises:
        DomainError: points off the unit sphere, or that coincide.

    Example:
        >>> corners = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1],
        ...                         [0, 0, -1]])
        >>> sphere_areas(corners).mul(6 / 4 / torch.pi).round(decimals=4).tolist()
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    """
    require("scipy.spatial", "search", "Voronoi cells on the sphere")
    # Imported here, because scipy is an extra.
    from scipy.spatial import SphericalVoronoi

    check_on_sphere(points)
    x = points.detach().cpu().double()
    length = torch.linalg.vector_norm(x, dim=-1)
    on_sphere = x / length[:, None]
    try:
        cells = SphericalVoronoi(on_sphere.numpy())
        areas = cells.calculate_areas()
    except ValueError as error:
        raise DomainError(f"expected distinct points on the sphere, got others ({error})") from None
    result = torch.from_numpy(areas).to(points.dtype)
    return result.to(points.device)


def check_on_sphere(points: Tensor) -> None:
    """Raise DomainError unless ``points`` are (N, 3) and of length 1, to three digits."""
    if points.dim() != 2 or points.shape[1] != 3:
        raise DomainError(f"expected points (N, 3) on the unit sphere, got {tuple(points.shape)}")
    x = points.detach().double()
    length = torch.linalg.vector_norm(x, dim=-1)
    # A NaN is off the sphere too.
    off = ~((length - 1).abs() < 1e-3)
    if bool(off.any()):
        raise DomainError(
            f"expected points of length 1, got {int(off.sum())} of {len(points)} with another "
            "length; divide each point by its length"
        )


def great_circle_radius(angle: float) -> float:
    """Return the straight distance between points of the unit sphere that are ``angle`` apart
    along a great circle: a search by radius then finds neighbours by angle.

    Example:
        >>> round(great_circle_radius(torch.pi), 6)
        2.0
    """
    if not 0 < angle <= torch.pi:
        raise DomainError(f"expected an angle above 0 and up to π, got {angle}")
    return 2 * sin(angle / 2)


# --- files ----------------------------------------------------------------------------------------


def read_mesh(path: str | Path, *, dtype: torch.dtype | None = None) -> Mesh:
    """Return the triangles or tetrahedra of a mesh file in any format that meshio reads (vtk, vtu,
    msh, stl, ply, obj, xdmf, …). A file with tetrahedra is a solid: its triangles are left out.

    Raises:
        MissingExtraError: meshio is not installed.
        DataError: a file that cannot be read, or without triangles and tetrahedra.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: expected a mesh file, got no file there")
    meshio = require("meshio", "mesh", "reading a mesh file")
    try:
        found = meshio.read(path)
    except SystemExit as error:
        # meshio ends the process on files that it cannot read.
        raise DataError(f"{path}: not a valid mesh file; meshio could not read it") from error
    except Exception as error:
        raise DataError(f"{path}: not a valid mesh file ({error})") from error
    cells = _cells_of(found)
    if cells is None:
        kinds = sorted({block.type for block in found.cells})
        raise DataError(
            f"{path}: expected triangles or tetrahedra, got {', '.join(kinds) or 'no cells'}; "
            "triangulate the mesh first"
        )
    coordinates = np.array(found.points, dtype=np.float64)
    vertices = torch.from_numpy(coordinates)
    vertices = vertices.to(dtype or torch.get_default_dtype())
    triangles_in_space = cells.shape[1] == 3 and vertices.shape[1] == 3
    if triangles_in_space and not bool(vertices[:, 2].any()):
        # A flat mesh.
        vertices = vertices[:, :2].contiguous()
    try:
        return Mesh(vertices, cells)
    except (DomainError, ShapeError) as error:
        raise DataError(f"{path}: {error}") from error


def _cells_of(found: Any) -> Tensor | None:
    """Return the tetrahedra if there are any, else triangles, else None."""
    for kind in ("tetra", "triangle"):
        blocks = []
        for block in found.cells:
            if block.type == kind:
                # Files come with other byte orders and strides.
                corners = np.array(block.data, dtype=np.int64)
                blocks.append(torch.from_numpy(corners))
        if blocks:
            return torch.cat(blocks)
    return None
