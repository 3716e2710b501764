"""Meshes: quadrature rules converge at their order, boundaries and normals are exact."""

from __future__ import annotations

import sys
from itertools import pairwise
from math import e, log, pi
from types import SimpleNamespace

import pytest
import torch

from fredholm import Domain
from fredholm.errors import DataError, DomainError, MissingExtraError, ShapeError
from fredholm.meshes import (
    Mesh,
    great_circle_radius,
    latitude_longitude,
    read_mesh,
    sphere_areas,
)
from fredholm.operators import create_operator


def square(n: int) -> Mesh:
    """Return the unit square in 2 n² triangles, with inner vertices moved off the lattice."""
    axis = torch.linspace(0, 1, n + 1, dtype=torch.float64)
    vertices = torch.cartesian_prod(axis, axis)
    inner = ((vertices > 0) & (vertices < 1)).all(-1, keepdim=True)
    vertices = vertices + inner * 0.2 / n * torch.sin(7 * n * vertices.flip(-1))
    index = torch.arange((n + 1) ** 2).view(n + 1, n + 1)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    cells = torch.cat([torch.stack(t, -1).reshape(-1, 3) for t in ((a, b, c), (a, c, d))])
    return Mesh(vertices, cells)


def cube(n: int) -> Mesh:
    """Return the unit cube in 6 n³ tetrahedra."""
    from itertools import permutations

    axis = torch.linspace(0, 1, n + 1, dtype=torch.float64)
    vertices = torch.cartesian_prod(axis, axis, axis)
    index = torch.arange((n + 1) ** 3).view(n + 1, n + 1, n + 1)
    cells = []
    for order in permutations(range(3)):
        corner, path = [0, 0, 0], [(0, 0, 0)]
        for d in order:
            corner[d] = 1
            path.append(tuple(corner))
        blocks = [index[i : i + n, j : j + n, k : k + n] for i, j, k in path]
        even = order in ((0, 1, 2), (1, 2, 0), (2, 0, 1))
        blocks = blocks if even else [blocks[0], blocks[1], blocks[3], blocks[2]]
        cells.append(torch.stack(blocks, -1).reshape(-1, 4))
    return Mesh(vertices, torch.cat(cells))


def smooth(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x.sum(-1))


@pytest.mark.parametrize(
    ("build", "sizes"), [(square, (8, 16, 32)), (cube, (2, 4, 8))], ids=["triangles", "tetrahedra"]
)
@pytest.mark.parametrize(("rule", "order"), [("vertices", 2), (1, 2), (2, 3)])
def test_rules_converge_at_their_order(build, sizes, rule, order):
    errors = []
    for n in sizes:
        mesh = build(n)
        if rule == "vertices":
            points = mesh.vertices
            masses = mesh.vertex_masses()
        else:
            points, masses = mesh.rule(rule)
        assert float(masses.sum()) == pytest.approx(1.0, abs=1e-12)
        exact = (e - 1) ** mesh.dim
        errors.append(abs(float((smooth(points) * masses).sum()) - exact))
    rates = [log(a / b) / log(2) for a, b in pairwise(errors)]
    assert min(rates) > order - 0.15, rates


@pytest.mark.parametrize("build", [square, cube])
def test_rules_are_exact_up_to_their_degree(build):
    mesh = build(2)
    linear = mesh.vertices.new_tensor([2.0, -1.0, 0.5][: mesh.dim])
    for points, masses in (
        (mesh.vertices, mesh.vertex_masses()),
        (mesh.cell_centres(), mesh.cell_masses()),
        mesh.rule(1),
        mesh.rule(2),
    ):
        found = float(((points @ linear + 3) * masses).sum())
        assert found == pytest.approx(3 + float(linear.sum()) / 2, abs=1e-12)
    points, masses = mesh.rule(2)
    squares = float((points[:, 0] * points[:, 1] * masses).sum())
    assert squares == pytest.approx(1 / 4, abs=1e-12)
    assert float((points[:, 0].square() * masses).sum()) == pytest.approx(1 / 3, abs=1e-12)


@pytest.mark.parametrize(("build", "total"), [(square, 4.0), (cube, 6.0)])
def test_the_boundary_of_a_box_has_its_area_and_normals(build, total):
    boundary = build(3).boundary()
    assert float(boundary.measure.sum()) == pytest.approx(total, abs=1e-12)
    # The normal of a face is the axis, pointing outwards.
    expected = (boundary.centres > 1 - 1e-9).double() - (boundary.centres < 1e-9).double()
    torch.testing.assert_close(boundary.normals, expected)


def test_the_divergence_theorem_holds_on_any_mesh():
    """∫ div F over the cells is the flux through the boundary, for F(x) = x exactly."""
    mesh = cube(2)
    moved = Mesh(mesh.vertices + 0.05 * torch.sin(9 * mesh.vertices.flip(-1)), mesh.cells)
    boundary = moved.boundary()
    flux = ((boundary.centres * boundary.normals).sum(-1) * boundary.measure).sum()
    assert float(flux) == pytest.approx(3 * float(moved.cell_masses().sum()), rel=1e-12)


def test_a_surface_has_normals_and_a_boundary():
    flat = square(3)
    surface = Mesh(torch.nn.functional.pad(flat.vertices, (0, 1)), flat.cells)
    up = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64).expand_as(surface.vertices)
    torch.testing.assert_close(surface.normals(), up)
    boundary = surface.boundary()
    assert float(boundary.measure.sum()) == pytest.approx(4.0)
    torch.testing.assert_close(boundary.normals[:, :2], flat.boundary().normals)
    with pytest.raises(DomainError, match="triangles in space"):
        flat.normals()


def test_a_closed_surface_has_no_boundary():
    octahedron = torch.cat([torch.eye(3), -torch.eye(3)])
    cells = torch.tensor(
        [[0, 1, 2], [1, 3, 2], [3, 4, 2], [4, 0, 2], [1, 0, 5], [3, 1, 5], [4, 3, 5], [0, 4, 5]]
    )
    mesh = Mesh(octahedron, cells)
    assert len(mesh.boundary().measure) == 0
    torch.testing.assert_close(mesh.normals(), octahedron)


def test_edges_of_a_mesh_are_those_of_its_cells():
    mesh = square(1)
    pairs = {tuple(pair) for pair in mesh.edge_index().T.tolist()}
    once = {(0, 2), (2, 3), (0, 3), (3, 1), (0, 1)}
    assert pairs == once | {(b, a) for a, b in once}


def test_gradients_reach_the_vertices():
    mesh = square(2)
    vertices = mesh.vertices.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda v: Mesh(v, mesh.cells).vertex_masses(), vertices)
    assert torch.autograd.gradcheck(lambda v: Mesh(v, mesh.cells).boundary().normals, vertices)


def test_a_vertex_without_a_cell_has_no_mass():
    mesh = square(1)
    lone = torch.full((1, 2), 0.5, dtype=torch.float64)
    assert Mesh(torch.cat([mesh.vertices, lone]), mesh.cells).vertex_masses()[-1] == 0


@pytest.mark.parametrize(
    ("vertices", "cells", "error", "match"),
    [
        ([[0, 0], [1, 0], [0, 1]], [[0, 1, 3]], DomainError, "corners 0 to 2"),
        ([[0, 0], [1, 0], [0, 1]], [[0, 1, 1]], DomainError, "cells with extent"),
        ([[0, 0], [1, 0], [0, 1]], [], ShapeError, "integer cells"),
        ([[0, 0], [1, 0], [0, 1], [1, 1]], [[0, 1, 3, 2]], ShapeError, "quadrilaterals"),
        ([[0, 0], [1, 0], [0, float("nan")]], [[0, 1, 2]], DomainError, "finite vertices"),
        ([[0, 0], [1, 0], [0, 1], [1, 1]], [[0, 1, 2], [1, 2, 3]], DomainError, "1 of 2 inverted"),
        ([[0], [1], [2]], [[0, 1, 2]], ShapeError, r"vertices \(V, 2\) or \(V, 3\)"),
    ],
)
def test_wrong_meshes_are_refused(vertices, cells, error, match):
    with pytest.raises(error, match=match):
        Mesh(torch.tensor(vertices, dtype=torch.float64), torch.tensor(cells))


def test_consistently_reversed_cells_are_accepted():
    mesh = square(2)
    turned = Mesh(mesh.vertices, mesh.cells.flip(-1))
    torch.testing.assert_close(turned.vertex_masses(), mesh.vertex_masses())


def test_a_facet_of_three_cells_has_no_orientation():
    vertices = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0], [0, 0, 1]])
    mesh = Mesh(vertices, torch.tensor([[0, 1, 2], [0, 1, 3], [0, 1, 4]]))
    with pytest.raises(DomainError, match="manifold"):
        mesh.boundary()


def test_areas_of_the_sphere_converge():
    """∫ z² = 4 π / 3, at second order in the spacing."""
    errors = []
    for n in (8, 16, 32):
        points, areas = latitude_longitude(n, 2 * n, dtype=torch.float64)
        assert float(areas.sum()) == pytest.approx(4 * pi, rel=1e-12)
        errors.append(abs(float((points[:, 2] ** 2 * areas).sum()) - 4 * pi / 3))
    rates = [log(a / b) / log(2) for a, b in pairwise(errors)]
    assert min(rates) > 1.9, rates


def test_voronoi_areas_of_the_sphere_add_up():
    pytest.importorskip("scipy")
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(200, 3, generator=generator, dtype=torch.float64)
    points = torch.nn.functional.normalize(points, dim=-1)
    areas = sphere_areas(points)
    assert float(areas.sum()) == pytest.approx(4 * pi, rel=1e-9)
    order = torch.randperm(200)
    torch.testing.assert_close(sphere_areas(points[order]), areas[order])
    with pytest.raises(DomainError, match="length 1"):
        sphere_areas(2 * points)
    with pytest.raises(DomainError, match="distinct points"):
        sphere_areas(torch.cat([points, points[:1]]))


def test_angles_become_chords():
    a, b = torch.tensor([1.0, 0, 0]), torch.tensor([0.6, 0.8, 0])
    angle = float(torch.arccos(a @ b))
    assert great_circle_radius(angle) == pytest.approx(float((a - b).norm()), rel=1e-6)
    with pytest.raises(DomainError, match="up to π"):
        great_circle_radius(4.0)


def test_a_sphere_is_a_domain():
    pytest.importorskip("scipy")
    points, areas = latitude_longitude(6, 12, dtype=torch.float64)
    near = Domain.sphere(points, areas=areas, angle=0.7)
    assert near.measure.equal(areas)
    angles = torch.arccos((points @ points.mT).clamp(-1, 1))
    assert near.pairs.dense().equal(angles <= 0.7)

    # Voronoi cells of a regular grid are its cells, but for the curvature of their edges.
    voronoi = Domain.sphere(points)
    assert float(voronoi.measure.sum()) == pytest.approx(4 * pi, rel=1e-9)
    nearest = Domain.sphere(points, areas=areas, neighbours=5)
    assert int(nearest.pairs.degrees().min()) >= 5


@pytest.mark.parametrize(
    ("options", "match"),
    [({"angle": 0.0}, "up to π"), ({"angle": 4.0}, "up to π"), ({"neighbours": 99}, "neighbours")],
)
def test_wrong_spheres_are_refused(options, match):
    pytest.importorskip("scipy")
    points, areas = latitude_longitude(3, 6)
    with pytest.raises(DomainError, match=match):
        Domain.sphere(points, areas=areas, **options)
    with pytest.raises(DomainError, match=r"points \(N, 3\) on the unit sphere, got \(18, 2\)"):
        Domain.sphere(points[:, :2], areas=areas)
    with pytest.raises(DomainError, match="length 1"):
        Domain.sphere(1.5 * points, areas=areas)


def globe(n: int) -> Domain:
    """Return the sphere with n latitudes."""
    points, areas = latitude_longitude(n, 2 * n, dtype=torch.float64)
    return Domain.sphere(points, areas=areas)


def fields(domain: Domain) -> torch.Tensor:
    """Return a smooth signal of two channels at the points of a domain."""
    x = domain.positions
    return torch.stack([torch.sin(2 * x[:, 0]), x[:, 0] * x[:, -1]], -1)[None]


@pytest.mark.parametrize(
    ("build", "queries"),
    [
        (globe, [[1.0, 0, 0], [0, 0.6, 0.8]]),
        (lambda n: Domain.mesh(square(n).vertices, square(n).cells), [[0.2, 0.3], [0.9, 0.5]]),
    ],
    ids=["sphere", "mesh"],
)
def test_fixed_weights_converge_at_the_order_of_the_quadrature(build, queries):
    at = torch.tensor(queries, dtype=torch.float64)
    torch.manual_seed(0)
    options = {"position_dim": at.shape[1], "width": 4, "frequencies": 1}
    operator = create_operator("itnet", 2, 1, **options).double()
    query_domain = Domain.points(at)
    call = {"query": torch.ones(1, 2, 2, dtype=torch.float64), "query_domain": query_domain}
    with torch.no_grad():
        outputs = [
            operator(fields(domain), domain, **call) for domain in map(build, (24, 48, 96, 192))
        ]
    gaps = [float((a - b).norm()) for a, b in pairwise(outputs)]
    rates = [log(a / b) / log(2) for a, b in pairwise(gaps)]
    assert min(rates) > 1.8, rates


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["vtk", "vtu", "ply", "obj"])
def test_saved_meshes_load(tmp_path, suffix):
    meshio = pytest.importorskip("meshio")
    mesh = square(3)
    path = tmp_path / f"square.{suffix}"
    points = torch.nn.functional.pad(mesh.vertices, (0, 1)).numpy()
    meshio.Mesh(points, [("triangle", mesh.cells.numpy())]).write(path)
    loaded = read_mesh(path, dtype=torch.float64)
    assert loaded.dim == 2
    torch.testing.assert_close(loaded.vertices, mesh.vertices, atol=1e-6, rtol=0)
    assert loaded.cells.equal(mesh.cells)


def test_the_surface_cells_of_a_solid_are_not_read(tmp_path):
    meshio = pytest.importorskip("meshio")
    mesh = cube(1)
    path = tmp_path / "cube.vtk"
    surface = mesh.boundary().facets.numpy()
    blocks = [("triangle", surface), ("tetra", mesh.cells.numpy())]
    meshio.Mesh(mesh.vertices.numpy(), blocks).write(path)
    assert read_mesh(path).corners == 4


def test_a_broken_file_does_not_end_the_process(tmp_path):
    pytest.importorskip("meshio")
    path = tmp_path / "model.off"
    path.write_text("OFF3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    with pytest.raises(DataError, match="not a valid mesh file"):
        read_mesh(path)


def test_files_that_cannot_be_read_are_named(tmp_path, monkeypatch):
    """A stand-in replaces meshio, which need not be installed."""
    path = tmp_path / "mesh.vtk"
    with pytest.raises(DataError, match="no file there"):
        read_mesh(path)
    path.write_text("nothing")

    def fake(read):
        monkeypatch.setitem(sys.modules, "meshio", SimpleNamespace(read=read))

    def ends(_):
        raise SystemExit(1)

    def fails(_):
        raise ValueError("no header")

    fake(ends)
    with pytest.raises(DataError, match="could not read it"):
        read_mesh(path)
    fake(fails)
    with pytest.raises(DataError, match="no header"):
        read_mesh(path)
    quads = SimpleNamespace(type="quad", data=[[0, 1, 2, 3]])
    fake(lambda _: SimpleNamespace(points=torch.zeros(4, 3).numpy(), cells=[quads]))
    with pytest.raises(DataError, match="got quad"):
        read_mesh(path)
    flat = SimpleNamespace(type="triangle", data=[[0, 1, 1]])
    fake(lambda _: SimpleNamespace(points=torch.eye(3).numpy(), cells=[flat]))
    with pytest.raises(DataError, match=r"mesh.vtk: expected cells with extent"):
        read_mesh(path)
    monkeypatch.setitem(sys.modules, "meshio", None)
    with pytest.raises(MissingExtraError, match=r"fredholm\[mesh\]"):
        read_mesh(path)
