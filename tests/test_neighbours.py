"""Neighbour search: rows equal those of all distances and are permutation equivariant."""

from __future__ import annotations

import pytest
import torch

from fredholm import neighbours
from fredholm.edges import Edges
from fredholm.errors import DomainError, ShapeError
from fredholm.neighbours import nearest_edges, radius_edges

pytest.importorskip("scipy")


def cloud(n: int, p: int = 2, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(n, p, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def lattice(n: int, dtype: torch.dtype) -> torch.Tensor:
    axis = torch.arange(n, dtype=dtype) / 10
    return torch.cartesian_prod(axis, axis)


def distances(queries: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    return (queries[:, None] - points).double().square().sum(-1).sqrt()


def same(edges: Edges, mask: torch.Tensor) -> bool:
    return edges.check().dense().equal(mask)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_a_radius_search_equals_all_distances(p):
    x = cloud(60, p)
    assert same(radius_edges(x, 0.25), distances(x, x) <= 0.25)
    queries = cloud(20, p, seed=1)
    assert same(radius_edges(x, 0.25, queries=queries), distances(queries, x) <= 0.25)


@pytest.mark.parametrize("count", [1, 5, 59, 60])
def test_a_nearest_search_equals_all_distances(count):
    x = cloud(60)
    far = distances(x, x).sort(-1).values[:, count - 1 : count]
    assert same(nearest_edges(x, count), distances(x, x) <= far)
    queries = cloud(20, seed=1)
    far = distances(queries, x).sort(-1).values[:, count - 1 : count]
    assert same(nearest_edges(x, count, queries=queries), distances(queries, x) <= far)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "search", [lambda x: nearest_edges(x, 6), lambda x: radius_edges(x, 0.3)], ids=["k", "radius"]
)
def test_a_lattice_is_permutation_equivariant(search, dtype):
    """Coordinates like 0.3 are rounded, and so are the distances between them."""
    x = lattice(12, dtype)
    edges = search(x)
    order = torch.randperm(len(x))
    assert search(x[order]).dense().equal(edges.dense()[order][:, order])
    # An inner point sees complete shells: its four neighbours, or a disc of radius three.
    degree = edges.degrees().view(12, 12)[4:-4, 4:-4]
    assert degree.unique().tolist() in ([9], [29])


def test_points_that_coincide_see_themselves_and_each_other():
    x = torch.cat([torch.zeros(50, 2), cloud(30, dtype=torch.float32) + 1])
    for edges in (nearest_edges(x, 8), radius_edges(x, 0.1)):
        mask = edges.dense()
        assert mask.diagonal().all()
        assert mask[:50, :50].all()


def test_padding_is_not_a_neighbour():
    x = torch.stack([cloud(10, seed=s) for s in (1, 2)])
    valid = torch.arange(10) < torch.tensor([[10], [6]])
    spoiled = torch.where(valid[..., None], x, torch.nan)
    for search in (
        lambda x, **options: radius_edges(x, 0.4, **options),
        lambda x, **options: nearest_edges(x, 3, **options),
    ):
        batch = search(spoiled, valid=valid)
        assert batch.batch == 2
        dense = batch.dense()[:, 0]
        assert dense[0].equal(search(x[0]).dense())
        assert dense[1, :6, :6].equal(search(x[1, :6]).dense())
        assert dense[1].sum() == dense[1, :6, :6].sum()


def test_a_periodic_box_wraps_around():
    x = cloud(40)
    box = (1.0, 2.0)
    lengths = torch.tensor(box, dtype=torch.float64)
    difference = x[:, None] - x
    difference = difference - (difference / lengths).round() * lengths
    expected = difference.square().sum(-1).sqrt() <= 0.3
    for moved in (x, x + 3 * lengths):
        edges = radius_edges(moved, 0.3, box=box)
        assert same(edges, expected)
        nearest = moved[edges.targets()] - (moved[edges.source] + edges.shift)
        assert nearest.square().sum(-1).sqrt().max() <= 0.3 + 1e-9
    far = difference.square().sum(-1).sort(-1).values[:, 4:5]
    assert same(nearest_edges(x, 5, box=box), difference.square().sum(-1) <= far)


def test_no_edge_is_lost_in_many_dimensions_or_none():
    x = torch.empty(0, 2)
    assert radius_edges(x, 1.0).count == 0
    x = cloud(12, p=9)
    assert same(radius_edges(x, 0.9), distances(x, x) <= 0.9)


@pytest.mark.parametrize(
    ("search", "error", "match"),
    [
        (lambda x: radius_edges(x, 0.0), DomainError, "positive radius"),
        (lambda x: radius_edges(x, -1.0), DomainError, "positive radius"),
        (lambda x: radius_edges(x, float("nan")), DomainError, "positive radius"),
        (lambda x: nearest_edges(x, 0), DomainError, "at least one neighbour"),
        (lambda x: nearest_edges(x, 11), DomainError, "as many neighbours as there are points"),
        (lambda x: radius_edges(x, 0.6, box=(1.0, 1.0)), DomainError, "two radii"),
        (lambda x: radius_edges(x, 0.1, box=(1.0,)), DomainError, "one per coordinate"),
        (lambda x: radius_edges(x / 0, 0.1), DomainError, "finite coordinates"),
        (lambda x: radius_edges(x[0], 0.1), ShapeError, r"\(N, 2\)"),
        (lambda x: radius_edges(x, 0.1, queries=x[:, :1]), ShapeError, r"\(N, 2\)"),
    ],
)
def test_wrong_searches_are_refused(search, error, match):
    with pytest.raises(error, match=match):
        search(cloud(10))


def test_too_many_edges_are_refused_before_the_search(monkeypatch):
    monkeypatch.setattr(neighbours, "MOST_EDGES", 1000)
    with pytest.raises(DomainError, match=r"about 10,000, whose search would take 0 GB"):
        radius_edges(cloud(100), 5.0)
    with pytest.raises(DomainError, match="about 2,000"):
        nearest_edges(cloud(100), 20)
    assert radius_edges(cloud(100), 0.01).count < 1000


def test_a_search_names_its_missing_extra(monkeypatch):
    import builtins

    plain = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("scipy"):
            raise ImportError(name)
        return plain(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.setattr("importlib.import_module", lambda name: without(name))
    with pytest.raises(ImportError, match=r"fredholm\[search\]"):
        radius_edges(cloud(3), 0.1)
