"""Graphs: positions of nodes, weights of edges, and signs of eigenvectors."""

from __future__ import annotations

import pytest
import torch

from fredholm.encoders import (
    GraphEncoder,
    Inputs,
    laplacian_positions,
    sparse_laplacian_positions,
)
from fredholm.errors import DomainError, OptionError, ShapeError
from fredholm.models import create_model
from fredholm.operators import create_operator
from tests.parts import parts

from ...tolerances import assert_close

EDGES = torch.zeros(2, 6, 6, dtype=torch.bool)
for a, b in ((0, 1), (1, 2), (2, 3), (3, 0), (1, 3)):
    EDGES[0, a, b] = EDGES[0, b, a] = True
EDGES[1, 0, 1] = EDGES[1, 1, 0] = EDGES[1, 2, 3] = EDGES[1, 3, 2] = (
    True  # two components, and an isolated node
)
VALID = torch.tensor([[True] * 4 + [False] * 2, [True] * 5 + [False]])


def graphs(seed: int = 0, **changes) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    features = torch.rand(2, 6, 3, generator=generator)
    fields = {
        "edges": EDGES,
        "positions": laplacian_positions(EDGES, 2),
        "valid": VALID,
        "features": features,
    }
    return Inputs(**(fields | changes))


def test_positions_are_eigenvectors():
    path = torch.zeros(5, 5, dtype=torch.bool)
    for i in range(4):
        path[i, i + 1] = path[i + 1, i] = True
    degree = path.sum(1).double()
    laplacian = torch.eye(5, dtype=torch.float64) - path / (degree[:, None] * degree).sqrt()
    positions = laplacian_positions(path, 3).double()
    for k in range(3):
        v = positions[:, k]
        value = v @ laplacian @ v / (v @ v)
        assert value > 0.1
        assert_close(laplacian @ v, value * v, dtype=torch.float32)
    assert_close(positions.square().sum(0), torch.full((3,), 5.0), dtype=torch.float32)


def test_missing_eigenvectors_and_isolated_nodes_give_zero_positions():
    positions = laplacian_positions(EDGES, 6)
    assert torch.isfinite(positions).all()
    assert positions[:, 4:].abs().max() == 0, "isolated and padded nodes stand at the origin"
    assert positions[1, :4].abs().max() > 0.5
    assert positions[0, :, 4:].abs().max() == 0, (
        "four nodes have three eigenvectors beyond the null space"
    )
    assert laplacian_positions(torch.zeros(3, 3, dtype=torch.bool), 2).abs().max() == 0
    padded = laplacian_positions(EDGES[0], 2)
    assert_close(padded[:4], laplacian_positions(EDGES[0, :4, :4], 2), dtype=torch.float32)


def test_small_eigenvalues_of_long_and_clustered_graphs_are_resolved():
    n = 300
    path = torch.zeros(
        2, n + 3, n + 3, dtype=torch.bool
    )  # with padding; the second is split in two
    path[:, range(n - 1), range(1, n)] = True
    path[1, 99, 100] = False
    order = torch.randperm(n)
    path[:, :n, :n] = path[:, order][:, :, order]
    positions = laplacian_positions(path, 2).double()
    assert positions[:, n:].abs().max() == 0
    at = torch.arange(n, dtype=torch.float64)
    wave = torch.cos(torch.pi * at / (n - 1)) * (n / (n - 1)) ** 0.5
    wave[1:-1] *= 2**0.5  # entries scale with the root of the degree
    assert_close(positions[0, :n, 0].abs(), wave[order].abs(), dtype=torch.float32)
    long = order >= 100
    assert positions[1, :n, 0][~long].abs().max() < 1e-6, "of one component"
    assert positions[1, :n, 0][long].abs().min() > 1e-3
    cliques = torch.block_diag(torch.ones(200, 200), torch.ones(200, 200)).bool()
    cliques[0, 200] = True
    side = laplacian_positions(cliques, 1)[:, 0].sign()
    assert side[:200].unique().numel() == side[200:].unique().numel() == 1
    assert side[0] == -side[200]


@pytest.mark.parametrize("off", ["learned", "none", "all"])
def test_a_node_averages_its_neighbours_by_edge_weight(off):
    encoder = GraphEncoder(dim=4, channels=3, eigenvectors=2, off_edges=off).eval()
    domain = encoder(graphs())[1]
    weights = domain.quadrature().weights()[:, 0]
    inside = {
        "learned": torch.tensor(-2.0).sigmoid(),
        "none": torch.tensor(0.0),
        "all": torch.tensor(1.0),
    }[off]
    linked = EDGES | torch.eye(6, dtype=torch.bool)
    expected = torch.where(linked, 1.0, inside) * VALID[:, None, :]
    expected = expected / expected.sum(-1, keepdim=True).clamp(min=1e-9)
    real = VALID[:, :, None] & VALID[:, None, :]
    assert_close(
        torch.where(real, weights, 0.0), torch.where(real, expected, 0.0), dtype=torch.float32
    )


@pytest.mark.parametrize("off", ["learned", "none"])
def test_the_node_measure_is_one_over_the_number_of_nodes(off):
    encoder = GraphEncoder(dim=4, channels=3, eigenvectors=2, off_edges=off, measure="nodes").eval()
    weights = encoder(graphs())[1].quadrature().weights()[:, 0]
    inside = torch.tensor(-2.0).sigmoid() if off == "learned" else torch.tensor(0.0)
    linked = EDGES | torch.eye(6, dtype=torch.bool)
    real = VALID[:, :, None] & VALID[:, None, :]
    expected = torch.where(linked, 1.0, inside) * real / VALID.sum(-1)[:, None, None]
    assert_close(torch.where(real, weights, 0.0), expected, dtype=torch.float32)


@pytest.mark.parametrize("name", ["itnet", "softmax"])
def test_the_weight_off_the_edges_receives_a_gradient(name):
    encoder = GraphEncoder(dim=4, channels=3, eigenvectors=2)
    operator = create_operator(
        name, 4, 2, **({"position_dim": 2, "width": 4} if name == "itnet" else {})
    )
    for parameter in operator.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    operator(*encoder(graphs())).square().sum().backward()
    assert torch.isfinite(encoder.theta.grad)
    assert encoder.theta.grad.abs() > 1e-6


def test_signs_flip_only_in_training():
    encoder = GraphEncoder(dim=4, channels=3, eigenvectors=2)
    batch = graphs()
    still = batch["positions"][0]
    seen = {
        tuple((encoder(batch)[1].positions[0] * still).sum(0).sign().tolist()) for _ in range(40)
    }
    assert len(seen) == 4
    encoder.eval()
    assert encoder(batch)[1].positions.equal(batch["positions"] * VALID[..., None])


@pytest.mark.parametrize(
    ("pool", "shape"), [("mean", (2, 5)), ("first", (2, 5)), ("every", (2, 6, 5))]
)
def test_padding_changes_no_output_of_a_model(pool, shape):
    options = {"operator_options": {"width": 4, "frequencies": 4}, "channels": 3, "eigenvectors": 2}
    model = create_model(
        "itnet_nano", **parts(encoder="graph", pool=pool, num_classes=5, **options)
    ).eval()
    torch.nn.init.normal_(model.head.weight)
    logits = model(graphs())
    assert logits.shape == shape
    wild = torch.where(VALID[..., None], graphs()["features"], torch.nan)
    found = model(graphs(features=wild))
    real = VALID if pool == "every" else slice(None)
    assert_close(found[real], logits[real], dtype=torch.float32)


def test_nodes_sum_their_tokens():
    encoder = GraphEncoder(dim=4, vocabulary=9, eigenvectors=2).eval()
    tokens = torch.randint(1, 9, (2, 6, 3))
    features, _ = encoder(graphs(tokens=tokens))
    assert_close(features[0, 1], encoder.words(tokens[0, 1]).sum(0), dtype=torch.float32)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (lambda: graphs(edges=EDGES.float()), "mask"),
        (
            lambda: graphs(positions=torch.zeros(2, 6, 3)),
            r"positions: .*\(2, 6, 2\) .*, got \(2, 6, 3\)",
        ),
        (lambda: graphs(features=torch.zeros(2, 6, 4)), "features: .*got"),
        (
            lambda: Inputs(edges=EDGES, positions=torch.zeros(2, 6, 2), valid=VALID),
            "expected features among its tensors, got edges",
        ),
        (lambda: Inputs(a=torch.zeros(2), b=torch.zeros(3)), "one batch size"),
        (lambda: Inputs(valid=VALID), "inputs: expected edges, got valid"),
    ],
)
def test_wrong_inputs_are_refused(batch, message):
    with pytest.raises(ShapeError, match=message):
        GraphEncoder(dim=4, channels=3, eigenvectors=2)(batch())


def test_wrong_options_are_refused():
    for options, message in (
        ({"channels": 3, "vocabulary": 4}, "either channels or a vocabulary .*, vocabulary=4"),
        ({}, "either channels or a vocabulary .*, vocabulary=0"),
        ({"channels": 3, "off_edges": "some"}, "off_edges: expected a known name, got 'some'"),
    ):
        with pytest.raises(OptionError, match=message):
            GraphEncoder(dim=4, eigenvectors=2, **options)


# --- large graphs ---------------------------------------------------------------------------------


def links_of(edges: torch.Tensor) -> torch.Tensor:
    """Return the edges of a batch of masks as links, with the first one twice."""
    found = []
    for mask in edges:
        target, source = mask.nonzero(as_tuple=True)
        found.append(torch.stack([source, target], -1)[[0, *range(len(source))]])
    pad = torch.nn.utils.rnn.pad_sequence
    return pad(found, batch_first=True, padding_value=-1)


def linked(**changes) -> Inputs:
    fields = graphs(**changes).tensors
    return Inputs(links=links_of(fields.pop("edges")), **fields)


@pytest.mark.parametrize("off", ["learned", "none", "all"])
@pytest.mark.parametrize("measure", ["weights", "nodes"])
def test_links_equal_a_mask(off, measure):
    options = {"channels": 3, "eigenvectors": 2, "off_edges": off, "measure": measure}
    encoder = GraphEncoder(dim=4, **options).eval()
    domain, expected = encoder(linked())[1], encoder(graphs())[1]
    assert domain.sparse == (off == "none")
    real = VALID[:, None, :, None] & VALID[:, None, None, :]
    weights, wanted = (torch.where(real, d.quadrature().weights(), 0.0) for d in (domain, expected))
    assert_close(weights, wanted, dtype=torch.float32)
    operator = create_operator("itnet", 4, 2, position_dim=2, width=4)
    out, dense = operator(*encoder(linked())), operator(*encoder(graphs()))
    assert_close(out[VALID], dense[VALID], dtype=torch.float32)


def test_a_learned_weight_off_the_edges_is_refused_on_large_graphs(monkeypatch):
    monkeypatch.setattr("fredholm.edges.DENSE_PAIRS", 10)
    encoder = GraphEncoder(dim=4, channels=3, eigenvectors=2)
    with pytest.raises(DomainError, match="at most 10 dense pairs"):
        encoder(linked())
    with pytest.raises(ShapeError, match=r"links \(B, E, 2\)"):
        encoder(Inputs(**{**linked().tensors, "links": torch.zeros(2, 5)}))


def test_sparse_eigenvectors_equal_dense_ones():
    pytest.importorskip("scipy")
    generator = torch.Generator().manual_seed(0)
    n = 700
    ring = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    index = torch.cat([ring, torch.randint(n, (2, 400), generator=generator)], 1)
    small = torch.tensor(
        [[700, 701, 702], [701, 702, 703]]
    )  # a small component; one node stays isolated
    index = torch.cat([index, small], 1)
    mask = torch.zeros(705, 705, dtype=torch.bool)
    mask[index[0], index[1]] = True
    found = sparse_laplacian_positions(index, 705, 6)
    expected = laplacian_positions(mask, 6)
    sign = (found * expected).sum(0).sign()
    assert_close(found * sign, expected, dtype=torch.float32)
    assert_close(found, sparse_laplacian_positions(index.flip(0), 705, 6), dtype=torch.float32)


def test_close_eigenvalues_of_a_long_path_are_resolved():
    pytest.importorskip("scipy")
    n = 3000
    path = torch.stack([torch.arange(n - 1), torch.arange(1, n)])
    positions = sparse_laplacian_positions(path, n, 2).double()
    at = torch.arange(n, dtype=torch.float64)
    for column, waves in enumerate((1, 2)):
        wave = torch.cos(waves * torch.pi * at / (n - 1)) * (n / (n - 1)) ** 0.5
        wave[1:-1] *= 2**0.5
        assert_close(positions[:, column].abs(), wave.abs(), dtype=torch.float32)


def test_sparse_positions_of_small_graphs_equal_dense_ones():
    pytest.importorskip("scipy")
    for b in range(2):
        target, source = EDGES[b].nonzero(as_tuple=True)
        positions = sparse_laplacian_positions(torch.stack([source, target]), 6, 6)
        gram, expected = (x @ x.mT for x in (positions, laplacian_positions(EDGES[b], 6)))
        assert_close(gram, expected, dtype=torch.float32)
    empty = sparse_laplacian_positions(torch.zeros(2, 0, dtype=torch.int64), 3, 2)
    assert empty.abs().max() == 0
