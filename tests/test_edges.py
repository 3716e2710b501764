"""Edges: the pairs of a dense mask, in memory linear in their number."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest
import torch

from fredholm.edges import Edges
from fredholm.errors import DomainError, ShapeError


def random_mask(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < 0.4


def index_of(mask: torch.Tensor) -> torch.Tensor:
    target, source = mask.nonzero(as_tuple=True)
    return torch.stack([source, target])


@pytest.mark.parametrize("shape", [(5, 5), (4, 7), (3, 5, 5), (2, 3, 4, 5), (2, 1, 4, 5)])
def test_masks_survive_the_round_trip(shape):
    mask = random_mask(*shape)
    dense = Edges.of_mask(mask).dense()
    if dense.is_floating_point():
        dense = dense > -torch.inf
    expected = mask.unsqueeze(1) if mask.dim() == 3 else mask
    assert dense.expand_as(expected).equal(expected)


def test_log_densities_survive_the_round_trip():
    pairs = torch.randn(2, 3, 4, 5).masked_fill(~random_mask(2, 1, 4, 5), -torch.inf)
    assert Edges.of_mask(pairs).dense().equal(pairs)


def test_edges_in_any_order_are_sorted():
    mask = random_mask(6, 6)
    edge_index = index_of(mask)
    shuffled = edge_index[:, torch.randperm(edge_index.shape[1])]
    edges = Edges.of_index(shuffled, 6).check()
    assert edges.dense().equal(mask)
    assert edges.longest == int(mask.sum(-1).max())


def test_repeated_edges_count():
    edges = Edges.of_index(torch.tensor([[0, 0, 1, 0], [1, 1, 1, 1]]), 2)
    assert edges.row(1).tolist() == [0, 1]
    torch.testing.assert_close(edges.log_density.exp(), torch.tensor([3.0, 1.0]))


def test_weights_of_repeated_edges_add_up_and_receive_gradients():
    weight = torch.tensor([0.5, 2.0, 0.0, 1.5], dtype=torch.float64, requires_grad=True)
    edges = Edges.of_index(torch.tensor([[0, 1, 2, 0], [1, 1, 1, 1]]), 3, weight=weight)
    dense = edges.dense().exp()
    torch.testing.assert_close(dense[1], torch.tensor([2.0, 2.0, 0.0], dtype=torch.float64))
    dense[1, :2].sum().backward()
    assert weight.grad.tolist() == [1.0, 1.0, 0.0, 1.0]


def test_repeated_edges_with_features_stay_separate():
    features = torch.tensor([[1.0], [2.0]])
    edges = Edges.of_index(torch.tensor([[0, 0], [1, 1]]), 2, features=features)
    assert edges.row(1).tolist() == [0, 0]
    assert edges.features.tolist() == [[1.0], [2.0]]
    with pytest.raises(DomainError, match="one edge per pair"):
        edges.dense()


def test_features_belong_to_their_pair():
    mask = random_mask(4, 5)
    edge_index = index_of(mask)
    features = edge_index.T.float()
    order = torch.randperm(len(features))
    edges = Edges.of_index(edge_index[:, order], 4, 5, features=features[order])
    dense = edges.dense_features(torch.arange(4))
    target, source = mask.nonzero(as_tuple=True)
    assert dense[target, source].equal(torch.stack([source, target], -1).float())
    assert dense[~mask].abs().max() == 0


@pytest.mark.parametrize("slots", [1, 7, 64, 10_000])
def test_tiles_contain_every_edge_once(slots):
    mask = random_mask(40, 30)
    mask[3] = False
    mask[7] = True
    edges = Edges.of_mask(mask)
    found = torch.zeros_like(mask)
    rows = []
    for tile in edges.tiles(slots):
        assert tile.source.numel() <= slots or len(tile.rows) == 1
        row, slot = tile.real.nonzero(as_tuple=True)
        found[tile.rows[row], tile.source[row, slot]] = True
        assert edges.source[tile.edges[row, slot]].equal(tile.source[row, slot])
        rows += tile.rows.tolist()
    assert found.equal(mask)
    assert sorted(rows) == list(range(40))


def test_tiles_have_little_padding():
    degree = torch.randint(1, 200, (500,))
    mask = torch.arange(200) < degree[:, None]
    tiles = Edges.of_mask(mask).tiles(4096)
    slots = sum(tile.real.numel() for tile in tiles)
    assert slots < 1.3 * int(degree.sum())


def test_tiles_of_equal_rows_keep_their_order():
    tiles = Edges.of_mask(torch.ones(9, 4, dtype=torch.bool)).tiles(12)
    assert torch.cat([tile.rows for tile in tiles]).tolist() == list(range(9))


def test_one_tile_and_its_rows_equal_the_mask():
    mask = random_mask(6, 6, seed=2)
    edges = Edges.of_mask(mask)
    tile = edges.whole_tile()
    assert tile.source.shape == (6, edges.longest)
    assert tile.real.sum(-1).equal(mask.sum(-1))
    rows = torch.tensor([4, 0])
    assert edges.dense_rows(rows)[:, 0].equal(mask[rows])


def test_a_mask_without_pairs_has_no_edges():
    for shape in ((0, 3), (3, 0), (1, 2, 0, 3)):
        edges = Edges.of_mask(torch.ones(shape, dtype=torch.bool))
        assert (edges.count, edges.queries, edges.keys) == (0, *shape[-2:])


def test_columns_are_edges_in_transposed_order():
    mask = random_mask(5, 7)
    edges = Edges.of_mask(mask)
    order, starts = edges.columns()
    assert edges.source[order].equal(mask.T.nonzero()[:, 0])
    assert edges.targets()[order].equal(mask.T.nonzero()[:, 1])
    assert starts.diff().equal(mask.sum(0))


def test_graphs_of_different_sizes_are_collated():
    masks = [random_mask(n, n, seed=n) for n in (3, 6, 4)]
    batch = Edges.collate([Edges.of_mask(mask) for mask in masks]).check()
    assert batch.count == sum(int(mask.sum()) for mask in masks)
    dense = batch.dense()
    assert dense.shape == (3, 1, 6, 6)
    for b, mask in enumerate(masks):
        n = len(mask)
        assert dense[b, 0, :n, :n].equal(mask)
        assert dense[b].sum() == mask.sum()


def test_a_batch_may_mix_edges_with_and_without_densities():
    plain = Edges.of_mask(torch.ones(2, 2, dtype=torch.bool))
    weighted = Edges.of_index(torch.tensor([[0], [1]]), 2, weight=torch.tensor([0.5]))
    batch = Edges.collate([plain, weighted])
    torch.testing.assert_close(batch.log_density.exp(), torch.tensor([1.0, 1.0, 1.0, 1.0, 0.5]))
    feature = Edges.of_index(torch.tensor([[0], [1]]), 2, features=torch.ones(1, 2))
    with pytest.raises(DomainError, match="features of one width"):
        Edges.collate([plain, feature])
    with pytest.raises(DomainError, match="unbatched"):
        Edges.collate([batch])


def test_selection_equals_the_dense_selection():
    mask = random_mask(6, 6, seed=3)
    order = torch.tensor([5, 1, 3, 0])
    assert Edges.of_mask(mask).select(order, order).check().dense().equal(mask[order][:, order])
    assert Edges.of_mask(mask).select(order).dense().equal(mask[order])
    whole = torch.randperm(6)
    assert Edges.of_mask(mask).select(whole, whole).dense().equal(mask[whole][:, whole])


def test_copies_can_be_moved_and_saved(tmp_path):
    edges = Edges.of_index(
        torch.tensor([[0, 1, 2], [1, 1, 0]]), 3, weight=torch.rand(3), features=torch.rand(3, 2)
    )
    edges.columns()
    torch.save(edges, tmp_path / "edges.pt")
    loaded = torch.load(tmp_path / "edges.pt", weights_only=False)
    for twin in (copy.deepcopy(edges), pickle.loads(pickle.dumps(edges)), loaded):
        assert twin.dense().equal(edges.dense())
        assert "_memo" not in twin.__dict__
    double = edges.to(torch.float64)
    assert double.features.dtype == double.log_density.dtype == torch.float64
    assert double.source.dtype == torch.int64
    meta = edges.to("meta")
    assert meta.source.device.type == meta.features.device.type == "meta"


EXPORT = """
import torch
from fredholm.edges import Edges

class Gather(torch.nn.Module):
    def forward(self, u, edges):
        tile = edges.whole_tile()
        return torch.where(tile.real[..., None], u[tile.source], 0.0).sum(1)

mask = torch.rand(5, 5) < 0.4
mask[:, 0] = True
edges, u = Edges.of_mask(mask), torch.randn(5, 2)
program = torch.export.export(Gather(), (u, edges)).module()
torch.testing.assert_close(program(u, edges), mask.float() @ u)
"""


@pytest.mark.compile
def test_edges_are_inputs_of_an_exported_program():
    done = subprocess.run([sys.executable, "-c", EXPORT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_graph_without_edges_works():
    edges = Edges.of_index(torch.zeros(2, 0, dtype=torch.int64), 3)
    assert edges.count == edges.longest == 0
    assert not edges.dense().any()
    (tile,) = edges.tiles(100)
    assert tile.source.shape == (3, 1)
    assert not tile.real.any()


@pytest.mark.parametrize(
    ("index", "options", "error", "match"),
    [
        ([[0], [3]], {}, DomainError, "point outside"),
        ([[-1], [0]], {}, DomainError, "from -1 to 0"),
        ([[0.0], [1.0]], {}, DomainError, "integer edge_index"),
        ([[0, 1]], {}, DomainError, "integer edge_index"),
        ([[0], [1]], {"weight": torch.tensor([-0.5])}, DomainError, "edge_attr"),
        ([[0], [1]], {"weight": torch.tensor([float("nan")])}, DomainError, "finite edge weights"),
        ([[0], [1]], {"weight": torch.ones(2)}, ShapeError, r"weights \(1,\)"),
        ([[0], [1]], {"features": torch.ones(1)}, ShapeError, r"features \(1, f\)"),
        ([[0], [1]], {"features": torch.tensor([[torch.inf]])}, DomainError, "finite edge feat"),
    ],
)
def test_wrong_edges_are_refused(index, options, error, match):
    with pytest.raises(error, match=match):
        Edges.of_index(torch.tensor(index), 3, **options)


def test_broken_rows_are_detected():
    edges = Edges.of_index(torch.tensor([[0, 1, 2], [1, 1, 0]]), 3)
    broken = {
        "ascending": {"source": torch.tensor([2, 1, 0])},
        "keys 0 to 2": {"source": edges.source + 2},
        "starts": {"ptr": edges.ptr[1:]},
        "longest": {"longest": 1},
        "NaN": {"log_density": torch.full((3,), torch.nan)},
    }
    for match, change in broken.items():
        with pytest.raises(DomainError, match=match):
            Edges(
                **{**{f: getattr(edges, f) for f in edges.__dataclass_fields__}, **change}
            ).check()


def test_a_large_dense_matrix_is_refused_with_its_size():
    n = 100_000
    edges = Edges.of_index(torch.tensor([[0], [1]]), n)
    with pytest.raises(DomainError, match="40 GB"):
        edges.dense()
    assert edges.dense_rows(torch.tensor([1])).sum() == 1
