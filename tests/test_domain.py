"""Domain: constructors and their refusals, and slicing, batching and joining."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from fredholm.domain import Domain
from fredholm.errors import DomainError, FredholmError, ShapeError
from fredholm.measures import cell_lengths

NAN = float("nan")


def ones(*shape, dtype=torch.bool):
    return torch.ones(*shape, dtype=dtype)


# --- constructors ---------------------------------------------------------------------------------


def test_a_line_has_its_points_masses_and_order():
    domain = Domain.line(4, causal=True)
    assert domain.positions.squeeze(-1).tolist() == [0.0, 0.25, 0.5, 0.75]
    assert domain.measure.tolist() == [1.0] * 4
    assert (domain.shape, domain.kind, domain.causal, domain.batch, domain.size, domain.dim) == (
        (4,), "uniform", True, None, 4, 1,
    )  # fmt: skip
    scaled = Domain.line(4, length=8.0, measure="spacing", dtype=torch.float64)
    assert scaled.positions.dtype == torch.float64
    assert scaled.positions.squeeze(-1).tolist() == [0.0, 0.125, 0.25, 0.375]
    assert scaled.measure.tolist() == [0.125] * 4


def test_grid_is_row_major_cell_centres():
    domain = Domain.grid(2, 3, measure="spacing")
    assert domain.shape == (2, 3)
    expected = [[y, x] for y in (0.25, 0.75) for x in (1 / 6, 0.5, 5 / 6)]
    torch.testing.assert_close(domain.positions, tensor(expected))
    torch.testing.assert_close(domain.measure, torch.full((6,), 1 / 6))
    assert Domain.grid(2, 2, 2).positions.shape == (8, 3)


def test_points_accept_masses_and_padding():
    masses = tensor([1.0, 2.0, 0.5])
    assert Domain.points(torch.rand(3, 2), measure=masses).kind == "weighted"
    assert Domain.points(torch.rand(2, 3, 2), measure=masses).measure is masses
    assert Domain.points(torch.rand(3, 2), measure=masses.expand(2, 3)).batch == 2
    valid = tensor([[True, True, False]])
    padded = Domain.points(tensor([[[1.0], [2.0], [NAN]]]), valid=valid)
    assert padded.positions.flatten().tolist() == [1.0, 2.0, 0.0]
    assert padded.validate() is padded


def test_timestamps_have_causal_or_voronoi_masses():
    t = tensor([0.0, 1.0, 3.0, 4.0])
    causal = Domain.timestamps(t, step=2.0)
    assert causal.measure.tolist() == [1.0, 0.5, 1.0, 0.5]
    assert (causal.kind, causal.causal, causal.shape) == ("spacing", True, None)
    voronoi = Domain.timestamps(t, causal=False)
    assert voronoi.measure.tolist() == [1.0, 1.5, 1.5, 1.0]
    assert Domain.timestamps(tensor([5.0]), causal=False).measure.tolist() == [1.0]
    batch = Domain.timestamps(torch.stack([t, 2 * t]))
    assert batch.measure.tolist() == [[1.0, 1.0, 2.0, 1.0], [1.0, 2.0, 4.0, 2.0]]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("front", [0, 2])
def test_padded_timestamps_have_the_masses_of_unpadded_ones(causal, front):
    t = tensor([1.0, 2.0, 5.0, 5.5])
    padded = torch.full((2, 7), NAN)
    valid = torch.zeros(2, 7, dtype=torch.bool)
    padded[0] = torch.arange(7.0)
    valid[0] = True
    padded[1, front : front + 4] = t
    valid[1, front : front + 4] = True
    domain = Domain.timestamps(padded, causal=causal, valid=valid).validate()
    assert (
        domain.measure[1, front : front + 4].tolist()
        == Domain.timestamps(t, causal=causal).measure.tolist()
    )
    assert domain.measure[~valid].tolist() == [0.0] * 3
    assert domain.measure[0].tolist() == [1.0] * 7


def test_timestamps_receive_gradients():
    t = torch.rand(5, dtype=torch.float64).cumsum(0).requires_grad_()
    for causal in (True, False):
        assert torch.autograd.gradcheck(
            lambda t, c=causal: Domain.timestamps(t, causal=c).measure, (t,)
        )
    valid = tensor([[False, True, True, True, False]])
    (g,) = torch.autograd.grad(Domain.timestamps(t, causal=False, valid=valid).measure.sum(), t)
    assert g.isfinite().all()
    assert g[[0, 4]].tolist() == [0.0, 0.0]


def test_a_graph_has_its_pairs_and_masses():
    domain = Domain.graph(tensor([[0, 2], [1, 1]]), 3)
    assert domain.pairs.tolist() == [[True, False, False], [True, True, True], [False, False, True]]
    assert domain.positions.tolist() == [[0.0]] * 3
    bare = Domain.graph(
        torch.empty(2, 0, dtype=torch.int64), 2, self_loops=False, positions=torch.rand(2, 4)
    )
    assert not bare.pairs.any()
    assert bare.dim == 4


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Domain.line(0), DomainError, "at least one point, got 0"),
        (
            lambda: Domain.line(3, length=0.0),
            DomainError,
            "positive length of the line, got length=0",
        ),
        (lambda: Domain.grid(3, 0), DomainError, "at least one point, got 0"),
        (lambda: Domain.grid(), DomainError, "at least one point"),
        (lambda: Domain.points(torch.rand(0, 2)), DomainError, "at least one point, got 0"),
        (lambda: Domain.points(torch.rand(3)), ShapeError, r"\(N, p\) or \(B, N, p\), got \(3,\)"),
        (lambda: Domain.points(torch.rand(3, 0)), ShapeError, r"got \(3, 0\)"),
        (
            lambda: Domain.points(ones(3, 1, dtype=torch.int64)),
            ShapeError,
            r"floating-point positions, got "
            r"torch.int64.*float\(\)",
        ),
        (
            lambda: Domain.points(torch.rand(3, 1), valid=ones(1, 4)),
            ShapeError,
            r"boolean valid \(B, 3\)",
        ),
        (
            lambda: Domain.points(torch.rand(3, 1), valid=torch.ones(1, 3)),
            ShapeError,
            "got torch.float32",
        ),
        (
            lambda: Domain.points(torch.rand(2, 3, 1), valid=ones(3, 3)),
            ShapeError,
            "one batch size",
        ),
        (
            lambda: Domain.points(torch.rand(3, 1), measure=torch.ones(4)),
            ShapeError,
            r"expected a measure \(3,\)",
        ),
        (
            lambda: Domain.points(torch.rand(3, 1), measure=ones(3, dtype=torch.int32)),
            ShapeError,
            "measure.*torch.int32",
        ),
        (
            lambda: Domain.points(torch.rand(2, 3, 1), measure=torch.ones(3, 3)),
            ShapeError,
            "one batch size",
        ),
        (lambda: Domain.points(torch.rand(3, 1), pairs=ones(3, 4)), ShapeError, "Nk = 3"),
        (
            lambda: Domain.points(torch.rand(3, 1), pairs=ones(3, 3, dtype=torch.int64)),
            ShapeError,
            "log-density",
        ),
        (
            lambda: Domain.points(torch.rand(3, 1), measure=torch.ones(3, device="meta")),
            ShapeError,
            "one device.*meta.*domain.to",
        ),
        (
            lambda: Domain.line(3, measure="unifrom"),
            DomainError,
            "'unifrom'.*did you mean 'uniform'",
        ),
        (
            lambda: Domain.line(3, measure="weighted"),
            DomainError,
            "tensor of masses, got the unknown measure 'weighted'",
        ),
        (
            lambda: Domain.points(torch.rand(3, 1), measure="spacing"),
            DomainError,
            "measure of this domain.*got the unknown measure 'spacing'",
        ),
        (
            lambda: Domain.line(3, measure=[1.0, 2.0, 3.0]),
            DomainError,
            "got a list of 3; .*torch.tensor",
        ),
        (lambda: Domain.timestamps(torch.rand(0)), DomainError, "N >= 1"),
        (lambda: Domain.timestamps(torch.rand(1, 2, 3)), DomainError, r"got \(1, 2, 3\)"),
        (lambda: Domain.timestamps(torch.arange(3)), ShapeError, "floating-point"),
        (
            lambda: Domain.timestamps(torch.rand(3), step=0.0),
            DomainError,
            "positive time unit, got step=0",
        ),
        (
            lambda: Domain.timestamps(torch.rand(3), valid=ones(1, 4)),
            ShapeError,
            "expected boolean valid",
        ),
        (
            lambda: Domain.graph(tensor([[0], [3]]), 3),
            DomainError,
            "nodes 0 to 2, got indices from 0 to 3",
        ),
        (lambda: Domain.graph(tensor([[-1], [0]]), 3), DomainError, "from -1 to 0"),
        (lambda: Domain.graph(torch.rand(2, 4), 3), DomainError, "integer edge_index"),
        (lambda: Domain.graph(tensor([0, 1]), 3), DomainError, r"\(2, E\)"),
        (lambda: Domain.graph(tensor([[0], [1]]), 0), DomainError, "at least one point"),
        (
            lambda: Domain.graph(tensor([[0], [1]]), 3, positions=torch.rand(4, 2)),
            ShapeError,
            "Nk = 4",
        ),
    ],
)
def test_wrong_arguments_of_constructors_are_refused(call, error, message):
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, FredholmError)


@pytest.mark.parametrize(
    ("domain", "error", "message"),
    [
        (
            lambda: Domain.points(tensor([[0.0], [NAN], [float("inf")]])),
            DomainError,
            r"finite positions, got 2 point\(s\)",
        ),
        (
            lambda: Domain.points(torch.rand(2, 1), measure=tensor([1.0, -0.5])),
            DomainError,
            "got -0.5 to ",
        ),
        (
            lambda: Domain.points(torch.rand(2, 1), measure=tensor([1.0, NAN])),
            DomainError,
            "finite",
        ),
        (
            lambda: Domain.points(torch.rand(2, 1), measure=torch.zeros(2)),
            DomainError,
            "expected a positive total mass",
        ),
        (
            lambda: Domain.points(
                torch.rand(2, 2, 1), valid=tensor([[True, True], [False, False]])
            ),
            DomainError,
            "expected a positive total mass",
        ),
        (lambda: Domain.timestamps(tensor([0.0, 2.0, 2.0])), DomainError, "increase strictly"),
        (
            lambda: Domain.timestamps(tensor([0.0, 2.0, 2.0, 4.0]), causal=False),
            DomainError,
            "increase strictly",
        ),
        (
            lambda: Domain.line(2, pairs=tensor([[0.0, NAN], [0.0, 0.0]])),
            DomainError,
            "expected pairs without NaN",
        ),
        (lambda: Domain.line(3)[:0], DomainError, "at least one point"),
        (
            lambda: Domain.line(3).replace(measure=torch.ones(4)),
            ShapeError,
            r"measure \(3,\) or \(B, 3\), got \(4,\)",
        ),
        (
            lambda: Domain.line(3).replace(measure=torch.ones(3, device="meta")),
            ShapeError,
            "one device",
        ),
        (lambda: Domain.line(3).replace(valid=ones(1, 3).to("meta")), ShapeError, "one device"),
    ],
)
def test_validate_refuses_wrong_domains(domain, error, message):
    with pytest.raises(error, match=message):
        domain().validate()


def test_validate_accepts_every_constructor():
    for domain in (
        Domain.line(1),
        Domain.grid(2, 3, measure="spacing", causal=True)[:4],
        Domain.points(torch.rand(2, 3, 1)),
        Domain.points(torch.rand(3, 1), measure=tensor([0.0, 0.0, 1.0])),
        Domain.timestamps(tensor([-3.0, -1.0])),
        Domain.graph(tensor([[0], [1]]), 2),
        Domain.line(2, pairs=tensor([[0.0, -torch.inf], [1.0, 0.0]])),
    ):
        assert domain.validate() is domain


# --- slicing and moving ---------------------------------------------------------------------------


def test_a_slice_equals_the_prefix():
    pairs = torch.rand(5, 5)
    domain = Domain.line(5, length=8.0, causal=True, pairs=pairs)
    prefix = domain[:3]
    assert prefix.positions.tolist() == domain.positions[:3].tolist()
    assert prefix.pairs.tolist() == pairs[:3, :3].tolist()
    assert prefix.shape == (3,)
    torch.testing.assert_close(
        prefix.quadrature().weights(), domain.quadrature().weights()[..., :3, :3]
    )
    assert domain[1::2].shape is None
    assert Domain.grid(2, 2)[:3].shape is None
    batch = Domain.points(
        torch.rand(2, 4, 1), valid=tensor([[True] * 4, [True, True, False, False]])
    )
    assert batch[:3].valid.tolist() == [[True] * 3, [True, True, False]]
    assert batch[:3].measure.shape == (3,)


@pytest.mark.parametrize("index", [2, tensor([0, 1]), slice(None, None, -1), slice(4, 0, -2)])
def test_other_slices_than_forward_ones_are_refused(index):
    with pytest.raises(DomainError, match="forward slice"):
        Domain.line(5)[index]


def test_to_keeps_masks_boolean():
    domain = Domain.points(torch.rand(1, 2, 1), valid=tensor([[True, False]]), pairs=ones(2, 2))
    double = domain.to(torch.float64)
    assert (double.positions.dtype, double.measure.dtype) == (torch.float64, torch.float64)
    assert (double.valid.dtype, double.pairs.dtype) == (torch.bool, torch.bool)
    assert double.valid.tolist() == domain.valid.tolist()
    meta = domain.to("meta")
    assert {x.device.type for x in (meta.positions, meta.measure, meta.valid, meta.pairs)} == {
        "meta"
    }
    assert Domain.line(2, pairs=torch.zeros(2, 2)).to(torch.float64).pairs.dtype == torch.float64


def test_domains_survive_pytrees_and_pickle():
    domain = Domain.line(3, causal=True, measure="spacing", pairs=torch.rand(3, 3))
    leaves, tree = pytree.tree_flatten(domain)
    assert any(leaf is domain.positions for leaf in leaves)
    for twin in (pytree.tree_unflatten(leaves, tree), pickle.loads(pickle.dumps(domain))):
        assert isinstance(twin, Domain)
        assert (twin.causal, twin.shape, twin.kind, twin.valid) == (True, (3,), "spacing", None)
        assert twin.positions.equal(domain.positions)
        assert twin.pairs.equal(domain.pairs)
    mapped = pytree.tree_map(lambda x: x + 1 if isinstance(x, torch.Tensor) else x, domain)
    assert mapped.positions.equal(domain.positions + 1)


def test_domains_are_frozen_and_replaced():
    domain = Domain.line(3)
    assert domain.replace(causal=True).causal
    assert not domain.causal
    with pytest.raises(AttributeError):
        domain.causal = True


# --- batches and unions ---------------------------------------------------------------------------


def several() -> dict[str, list[Domain]]:
    window = [ones(n, n).triu(-1) for n in (2, 4)]
    heads = torch.randn(1, 3, 4, 4)
    return {
        "uniform": [Domain.line(2), Domain.line(4)],
        "causal": [Domain.line(2, causal=True), Domain.line(4, causal=True)],
        "counting": [Domain.line(3, measure="counting"), Domain.line(1, measure="counting")],
        "spacing": [Domain.timestamps(torch.rand(n).cumsum(0)) for n in (2, 5)],
        "spacing of lines": [
            Domain.line(2, causal=True, measure="spacing"),
            Domain.line(3, causal=True, measure="spacing"),
        ],
        "weighted": [Domain.points(torch.rand(n, 2), measure=torch.rand(n)) for n in (3, 1)],
        "probability": [Domain.line(n).with_masses(torch.rand(n), normalised=True) for n in (2, 3)],
        "windows": [Domain.line(n, causal=True, pairs=w) for n, w in zip((2, 4), window)],
        "some pairs": [Domain.line(2, pairs=ones(2, 2).tril()), Domain.line(4)],
        "bias and none": [Domain.line(2, pairs=torch.randn(2, 2)), Domain.line(4)],
        "bias and mask": [
            Domain.line(2, pairs=torch.randn(2, 2)),
            Domain.line(4, pairs=ones(4, 4).tril()),
        ],
        "per head": [
            Domain.line(2),
            Domain.line(4, pairs=heads),
            Domain.line(3, pairs=torch.randn(3, 3)),
        ],
    }


@pytest.mark.parametrize("name", list(several()))
def test_collated_quadrature_equals_that_of_each_domain(name):
    domains = several()[name]
    batch = Domain.collate(domains).validate()
    assert batch.batch == len(domains)
    weights = batch.quadrature().weights()
    for b, domain in enumerate(domains):
        n = domain.size
        own = domain.quadrature().weights()
        found = weights[min(b, weights.shape[0] - 1)]
        found = found.expand(-1, batch.size, -1)
        own = own[0].expand(found.shape[0], n, n)
        torch.testing.assert_close(found[:, :n, :n], own)
        assert found[:, :n, n:].abs().sum() == 0
        assert batch.positions[b, :n].equal(domain.positions)


def test_collating_equal_sizes_keeps_the_grid_without_padding():
    batch = Domain.collate([Domain.grid(2, 2), Domain.grid(2, 2)])
    assert batch.valid is None
    assert batch.shape == (2, 2)
    assert Domain.collate([Domain.line(2), Domain.line(3)]).shape is None


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        ([], "at least one domain"),
        ([Domain.line(2), Domain.line(2, measure="counting")], "one measure"),
        ([Domain.line(2), Domain.line(2, causal=True)], "one order"),
        ([Domain.points(torch.rand(2, 3, 1)), Domain.line(2)], "unbatched"),
        (
            [Domain.line(2), Domain.line(2, valid=ones(1, 2))],
            "domain 1 with a batch of 1 by its .*",
        ),
        ([Domain.line(2), Domain.grid(2, 2)], r"one dimension of positions.*\[1, 2\]"),
        ([Domain.line(2, pairs=ones(2, 2, 2)), Domain.line(2)], "unbatched pairs"),
    ],
)
def test_collate_refuses_mismatched_domains(domains, message):
    with pytest.raises(DomainError, match=message):
        Domain.collate(domains)


def test_join_concatenates():
    a, b = Domain.line(2), Domain.points(tensor([[5.0]]))
    union = Domain.join(a, b)
    assert union.positions.squeeze(-1).tolist() == [0.0, 0.5, 5.0]
    assert (union.kind, union.shape, union.valid) == ("uniform", None, None)
    torch.testing.assert_close(union.quadrature().weights().flatten(), torch.full((3,), 1 / 3))
    assert (
        Domain.join(
            a, Domain.points(torch.rand(1, 1), measure=tensor([0.5])), balance=(0.5, 0.5)
        ).kind
        == "probability"
    )


def test_join_keeps_spacings_as_masses_and_drops_the_order():
    line, times = Domain.line(3, measure="spacing"), Domain.timestamps(tensor([0.0, 2.0]))
    for other in (line, times.replace(causal=False)):
        union = Domain.join(line, other).validate()
        assert union.kind == "weighted"
        masses = torch.cat([line.measure, other.measure])
        assert union.quadrature().weights().flatten().equal(masses)
    with pytest.raises(DomainError, match="expected a balance"):
        Domain.join(line, Domain.line(2))


def test_join_balances_masses_under_padding_and_batch():
    valid = tensor([[True, True, False], [True, False, False]])
    a = Domain.points(torch.rand(2, 3, 1), valid=valid)
    b = Domain.points(torch.rand(2, 1), measure=tensor([1.0, 3.0]))
    for union, left in (
        (Domain.join(a, b, balance=(0.25, 0.75)), 3),
        (Domain.join(b, a, balance=(0.75, 0.25)), 2),
    ):
        weights = union.validate().quadrature().weights()[:, 0, 0]
        sides = weights[:, :left].sum(-1), weights[:, left:].sum(-1)
        if left == 2:
            sides = sides[::-1]
        torch.testing.assert_close(sides[0], torch.full((2,), 0.25))
        torch.testing.assert_close(sides[1], torch.full((2,), 0.75))
    weights = Domain.join(a, b, balance=(0.25, 0.75)).quadrature().weights()[:, 0, 0]
    torch.testing.assert_close(weights[0], tensor([0.125, 0.125, 0.0, 0.1875, 0.5625]))
    torch.testing.assert_close(weights[1], tensor([0.25, 0.0, 0.0, 0.1875, 0.5625]))


def test_join_accepts_a_side_without_mass():
    union = Domain.join(Domain.points(tensor([[0.5]])), Domain.line(2), balance=(0.0, 1.0))
    assert union.quadrature().weights().flatten().tolist() == [0.0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("a", "b", "error", "message"),
    [
        (Domain.line(2), Domain.grid(2, 2), DomainError, "dimension 1 and 2"),
        (Domain.line(2, causal=True), Domain.line(2), DomainError, "without order or pairs"),
        (Domain.line(2), Domain.line(2, pairs=ones(2, 2)), DomainError, "without order or pairs"),
        (
            Domain.points(torch.rand(2, 3, 1)),
            Domain.points(torch.rand(3, 3, 1)),
            ShapeError,
            "batch size, got 2 and 3",
        ),
        (
            Domain.line(2),
            Domain.line(2, measure="counting"),
            DomainError,
            "balance for the union of uniform and counting measures",
        ),
    ],
)
def test_join_refuses_mismatched_domains(a, b, error, message):
    with pytest.raises(error, match=message):
        Domain.join(a, b)


def test_new_masses_change_the_kind():
    masses = tensor([0.2, 0.8])
    assert Domain.line(2).replace(measure=masses).kind == "probability"
    assert Domain.line(2, measure="counting").replace(measure=masses).kind == "weighted"
    assert Domain.line(2).replace(causal=True).kind == "uniform"


def test_decreasing_times_are_refused():
    """Their masses would be negative, and attention's logarithm of them NaN."""
    with pytest.raises(DomainError, match=r"do not go back.*sort"):
        Domain.timestamps(torch.tensor([[0.0, 1.0, 3.0], [0.0, 2.0, 1.0]]))
    padded = Domain.timestamps(
        torch.tensor([0.0, 2.0, 1.0]), valid=torch.tensor([[True, True, False]])
    )
    assert padded.measure.tolist() == [[1.0, 2.0, 0.0]]
    many = torch.tensor([[0.0, 1.0, 3.0], [0.0, 2.0, 4.0]])
    masses = torch.func.vmap(lambda t: Domain.timestamps(t).measure)(many)
    assert masses.tolist() == [[1.0, 1.0, 2.0], [1.0, 2.0, 2.0]]


@pytest.mark.parametrize("causal", [False, True])
def test_times_are_checked_only_on_the_cpu(causal, monkeypatch):
    """A check on another device would synchronise at every call; `validate` does so."""
    calls = []

    def counting(*arguments, **options):
        calls.append(arguments)
        return cell_lengths(*arguments, **options)

    monkeypatch.setattr("fredholm.domain.cell_lengths", counting)

    def measure(t):
        return Domain.timestamps(t, causal=causal).measure

    back = torch.tensor([0.0, 2.0, 1.0])
    measure(back.to("meta"))
    make_fx(measure, tracing_mode="fake")(torch.arange(3.0))
    assert len(calls) == 2, "gaps that are not read are not computed"
    with pytest.raises(DomainError, match="do not go back"):
        measure(back)


def test_times_that_voronoi_cells_would_hide_are_refused():
    """Half the distance between two neighbours is positive, also where their order is swapped."""
    swapped = tensor([0.0, 3.0, 2.0, 5.0])
    for causal in (True, False):
        with pytest.raises(DomainError, match="do not go back"):
            Domain.timestamps(swapped, causal=causal)
    behind_padding = Domain.timestamps(
        swapped, causal=False, valid=torch.tensor([[True, True, False, True]])
    )
    assert behind_padding.measure.tolist() == [[3.0, 2.5, 0.0, 2.0]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("index", [slice(0, 8, 2), slice(1, 8, 3), slice(2, 7), slice(0, 8, 5)])
def test_a_slice_of_a_reach_has_the_pairs_of_the_whole(index, causal):
    for reach in (0, 1, 3, 4):
        line = Domain.line(8, causal=causal, reach=reach)
        found = line[index].quadrature().visible()
        assert found.equal(line.dense()[index].quadrature().visible())


def test_steps_through_padding_within_a_reach_are_refused():
    valid = torch.tensor([[True, False, True, True]])
    line = Domain.line(4, reach=1, valid=valid)
    assert line[1:].reach == 1
    with pytest.raises(DomainError, match=r"a step of 2: .*; slice domain\.dense\(\) instead"):
        line[::2]


def test_pairs_of_a_long_reach_are_not_written_out():
    """Before any of them is in memory: 10 billion lags would take 80 GB."""
    line = Domain.line(100_000, reach=2)
    quadrature = line.quadrature()
    for call in (line.dense, quadrature.weights, quadrature.visible):
        with pytest.raises(DomainError, match=r"at most 1,073,741,824 dense pairs, got 10,000,000"):
            call()
    assert quadrature.weights([5]).count_nonzero() == 5
    assert line[:100].dense().pairs.sum() == 5 * 100 - 6


def test_only_timestamps_have_a_clock():
    """A line without its grid's shape, as in a batch or a slice, still counts steps."""
    line = Domain.line(4, causal=True, measure="spacing")
    clock = Domain.timestamps(tensor([0.0, 1.0, 3.0, 4.0]))
    steps = [
        line,
        line[::2],
        Domain.collate([line, line[:2]]),
        line.replace(shape=None),
        clock.replace(causal=False),
        clock.with_masses(torch.ones(4)),
    ]
    for domain in steps:
        assert domain.quadrature().clock is None
    for domain in (
        clock,
        clock[::2],
        clock.to(torch.float64),
        clock.replace(positions=clock.positions / 3),
    ):
        assert domain.quadrature().clock.equal(domain.positions.T)
    batch = Domain.collate([clock, clock[:2]])
    assert batch.quadrature().clock.tolist() == [[0.0, 1.0, 3.0, 4.0], [0.0, 1.0, 0.0, 0.0]]
    with pytest.raises(DomainError, match=r"one timed \(timestamps or not\) to collate, got"):
        Domain.collate([clock, line])


def test_lines_of_equal_points_are_no_timestamps():
    """Points at one place are refused as timestamps, and not as points of a line."""
    line = Domain.line(4, measure="spacing")[::2]
    at_one_place = line.replace(positions=torch.zeros(2, 1))
    at_one_place.validate()


def test_a_slice_with_step_one_equals_the_slice():
    line = Domain.line(9)
    assert line[0:4:1].shape == line[:4].shape == (4,)
    assert line[0:4:2].shape is None


def test_decreasing_times_behind_padding_are_refused():
    times = torch.tensor([[0.0, 3.0, 9.0, 1.0, 4.0]])
    valid = torch.tensor([[True, True, False, True, True]])
    with pytest.raises(DomainError, match="do not go back"):
        Domain.timestamps(times, causal=False, valid=valid)
    repeated = torch.tensor([[0.0, 3.0, 9.0, 3.0, 4.0]])
    with pytest.raises(DomainError, match="increase strictly"):
        Domain.timestamps(repeated, causal=False, valid=valid).validate()
    fine = torch.tensor([[0.0, 3.0, 0.0, 4.0, 5.0]])
    Domain.timestamps(fine, valid=valid).validate()
    with pytest.raises(DomainError, match=r"of 0 or more, got 1.0 to inf; drop such points"):
        Domain.line(3, measure="counting").with_masses(tensor([1.0, 2.0, torch.inf])).validate()


def test_points_at_one_time_share_their_cell():
    valid = torch.tensor([[True, True, True], [True, True, False]])
    domain = Domain.timestamps(torch.full((2, 3), 5.0), valid=valid, causal=False)
    torch.testing.assert_close(
        domain.measure, torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0.0]])
    )
