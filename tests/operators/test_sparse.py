"""Domains with few neighbours: batches of graphs, gradients of edges, neighbourhoods of all points,
tiles, wrong input.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from fredholm import Domain
from fredholm.edges import Edges
from fredholm.errors import DomainError, ShapeError, StrategyError
from fredholm.kernels import HiddenKernel, PairKernel
from fredholm.operators import Exact, IntegralOperator, Neumann, create_operator

from ..contracts.cases import positions
from ..tolerances import assert_close

pytest.importorskip("scipy")

OPTIONS = {
    "itnet": {"position_dim": 2, "width": 5, "frequencies": 2},
    "itnet_low_rank": {"position_dim": 2, "rank": 3, "width": 4, "frequencies": 2},
    "luna": {"channels": 2, "directions": 2, "hidden": 4},
    "ckconv": {"position_dim": 2, "width": 4, "length": 6},
    "softmax": {},
    "linear_attention": {},
    "linear_infsa": {},
    "infsa": {},
}
LOCAL = list(OPTIONS)
IN_PIECES = [name for name in OPTIONS if name != "linear_infsa"]


def operator_of(name: str) -> IntegralOperator:
    torch.manual_seed(0)
    return create_operator(name, 8, 2, **OPTIONS[name]).double()


def signal(batch: int, n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(batch, n, 8, generator=generator, dtype=torch.float64)
    return u.requires_grad_()


def ring(n: int, *, twice: bool = False) -> torch.Tensor:
    node = torch.arange(n)
    edges = torch.stack([node, (node + 1) % n])
    return torch.cat([edges, edges.flip(0)[:, : n // 2]], -1) if twice else edges


def assert_equal(operator, u, sparse: Domain, dense: Domain, extra=()) -> None:
    """Compare output and gradients on two equivalent domains."""
    a, b = operator(u, sparse), operator(u, dense)
    assert_close(a, b, "output")
    named = {"u": u, **dict(operator.named_parameters()), **dict(extra)}
    direction = torch.randn_like(a)
    first, second = (
        torch.autograd.grad(x, list(named.values()), direction, allow_unused=True) for x in (a, b)
    )
    for name, g, h in zip(named, first, second):
        zero = torch.zeros_like(named[name])  # what a kernel does not read may have no gradient
        assert_close(zero if g is None else g, zero if h is None else h, f"gradient of {name}")


@pytest.mark.parametrize("name", OPTIONS)
def test_neighbourhoods_of_all_points_equal_the_exact_operator(name):
    x = positions(2, 6)
    u = signal(2, 6)
    operator = operator_of(name)
    whole = Domain.points(x)
    for domain in (
        Domain.points(x, radius=9.0),
        Domain.points(x, neighbours=6),
        whole.replace(reach=6),
    ):
        assert_equal(operator, u, domain, whole)


@pytest.mark.parametrize("name", LOCAL)
def test_no_operator_builds_a_matrix_of_all_pairs(name, monkeypatch):
    """Operators on neighbourhoods never request a dense matrix."""
    monkeypatch.setattr("fredholm.edges.DENSE_PAIRS", 0)
    operator = operator_of(name)
    u = signal(1, 40)
    domain = Domain.points(positions(2, 40), neighbours=4)
    operator(u, domain).sum().backward()
    assert "all pairs" not in operator.plan(domain).path


@pytest.mark.parametrize("name", LOCAL)
def test_tiles_do_not_change_the_result(name, monkeypatch):
    operator = operator_of(name)
    u = signal(2, 40)
    x = positions(2, 40)
    domain = Domain.points(x, radius=0.3)
    monkeypatch.setattr("fredholm.forms.neighbourhoods.tiles.WORKING_SET", 1 << 13)
    assert_equal(operator, u, domain, domain.dense())
    window = Domain.points(x).replace(reach=3)
    monkeypatch.setattr("fredholm.forms.neighbourhoods.tiles.BLOCK", 4)
    assert_equal(operator, u, window, window.dense())


def test_itnet_computes_the_term_of_displacements_once_for_samples_that_share_a_cloud(monkeypatch):
    operator = operator_of("itnet")
    domain = Domain.points(positions(2, 40), neighbours=4)
    kernel = type(operator.kernel)
    table = kernel.table
    counts = []

    def note(self, displacements):
        counts.append(len(displacements))
        return table(self, displacements)

    monkeypatch.setattr(kernel, "table", note)
    totals = []
    for samples in (1, 3):
        counts.clear()
        operator(signal(samples, 40), domain)
        totals.append(sum(counts))
    assert totals[0] == totals[1] >= domain.pairs.count


@pytest.mark.parametrize("name", LOCAL)
def test_exact_computes_tiles_within_its_memory(name, monkeypatch):
    """The budget of the strategy is read where the domain is sparse, too."""
    operator = operator_of(name)
    u = signal(2, 40)
    cloud = Domain.points(positions(2, 40), radius=0.3)
    window = Domain.points(positions(2, 40)).replace(reach=3)
    slots = []
    tiles_of = Edges.tiles

    def tiles(edges: Edges, most: int, **options):
        slots.append(most)
        return tiles_of(edges, most, **options)

    monkeypatch.setattr(Edges, "tiles", tiles)
    operator.strategy = Exact()
    operator(u, cloud)
    default = slots.pop()
    for domain in (cloud, window):
        operator.strategy = Exact(memory=1 << 12)
        out = operator(u, domain)
        operator.strategy = Exact()
        assert_close(out, operator(u, domain))
    assert slots[0] < default / 100


def star(n: int) -> Domain:
    """Return a graph of a hub that sees every node, and nodes on a ring that also see the hub."""
    hub = torch.stack([torch.arange(n), torch.zeros(n, dtype=torch.int64)])
    weight = torch.rand(3 * n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    index = torch.cat([hub, hub.flip(0), ring(n)], -1)
    return Domain.graph(index, n, positions=positions(2, n), edge_weight=weight, sparse=True)


@pytest.mark.parametrize("name", IN_PIECES)
def test_rows_longer_than_a_tile_are_split(name, monkeypatch):
    operator = operator_of(name)
    u = signal(2, 40)
    domain = star(40)
    monkeypatch.setattr("fredholm.forms.neighbourhoods.tiles.WORKING_SET", 1 << 11)
    pieces = []
    cut = Edges.pieces

    def note(edges, most=None):
        pieces.append(len(cut(edges, most).row))
        return cut(edges, most)

    monkeypatch.setattr(Edges, "pieces", note)
    assert_equal(operator, u, domain, domain.dense())
    assert max(pieces) > 40


@pytest.mark.parametrize("name", LOCAL)
def test_gradients_pass_gradcheck(name):
    operator = operator_of(name)
    domain = star(5)
    u = signal(1, 5)
    names = [n for n, _ in operator.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in operator.parameters()]

    def call(u, *values):
        return torch.func.functional_call(operator, dict(zip(names, values)), (u, domain))

    assert torch.autograd.gradcheck(call, (u, *values), fast_mode=True)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_agrees_with_dense_domains(name, dtype):
    operator, u = operator_of(name).to(dtype), signal(2, 12).detach().to(dtype)
    domain = Domain.points(positions(2, 12), neighbours=4).to(torch.float32)
    out = operator(u, domain)
    assert out.dtype == dtype
    assert_close(out.double(), operator(u, domain.dense()).double(), "output", dtype)
    out.float().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in operator.parameters())


@pytest.mark.parametrize("name", LOCAL)
def test_graphs_of_different_sizes_in_one_batch_equal_each_alone(name):
    operator = operator_of(name)
    graphs = [
        Domain.graph(ring(n, twice=True), n, positions=positions(2, n, seed=n), sparse=True)
        for n in (5, 7, 4)
    ]
    batch = Domain.collate(graphs)
    assert isinstance(batch.pairs, Edges)
    assert batch.pairs.count == sum(graph.pairs.count for graph in graphs)
    u = signal(3, 7)
    assert_equal(operator, u, batch, batch.dense())
    out = operator(u, batch)
    for b, graph in enumerate(graphs):
        alone = operator(u[b : b + 1, : graph.size], graph)
        assert_close(out[b : b + 1, : graph.size], alone, f"graph {b}")


@pytest.mark.parametrize("name", LOCAL)
def test_clouds_with_padding_equal_dense_domains(name):
    x = torch.stack([positions(2, 7, seed=s) for s in (1, 2)])
    valid = torch.arange(7) < torch.tensor([[7], [5]])
    domain = Domain.points(x, valid=valid, radius=0.5)
    assert_equal(operator_of(name), signal(2, 7), domain, domain.dense())


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("what", ["positions", "edge weights", "masses"])
def test_gradients_of_the_domain_equal_dense_domains(name, what):
    x = positions(2, 6).requires_grad_(what == "positions")
    weight = (torch.rand(6, dtype=torch.float64) + 0.1).requires_grad_(what == "edge weights")
    masses = (torch.rand(6, dtype=torch.float64) + 0.1).requires_grad_(what == "masses")
    leaf = {"positions": x, "edge weights": weight, "masses": masses}[what]
    sparse, dense = (
        Domain.graph(
            ring(6), 6, positions=x, edge_weight=weight, measure=masses, sparse=sparse
        ).replace(kind="probability")
        for sparse in (True, False)
    )
    assert_equal(operator_of(name), signal(2, 6), sparse, dense, {what: leaf}.items())


class DiagonalNetwork(HiddenKernel):
    """One weight per channel by a network of both positions, with hidden units shared by all."""

    reads_query = False

    def __init__(self, heads: int, width: int):
        super().__init__(heads, width, 1)
        self.first = torch.nn.Linear(4, 5)
        self.last = torch.nn.Parameter(torch.randn(heads, 1, width, 5))
        self.shift = torch.nn.Parameter(torch.randn(heads, 1, width))

    def hidden(self, x, y, ux, uy):
        both = torch.broadcast_shapes(x.shape, y.shape)
        return torch.tanh(self.first(torch.cat([x.expand(both), y.expand(both)], -1)))

    def readout(self):
        return self.last, self.shift


@pytest.mark.parametrize("width", [1, 2])
def test_heads_that_share_hidden_units_equal_dense_domains(width):
    torch.manual_seed(0)
    heads = 8 // width
    kernel = DiagonalNetwork(heads, width)
    options = {"out_dim": heads, "residual": False, "projection": False}
    operator = IntegralOperator(8, heads, kernel=kernel, **options).double()
    valid = torch.arange(12) < torch.tensor([[12], [9]])
    window = Domain.points(positions(2, 12), valid=valid).replace(reach=2)
    by_head = torch.randn(1, heads, 12, 12, dtype=torch.float64)
    densities = Domain.points(positions(2, 12), pairs=Edges.of_mask(by_head))
    for domain in (star(12), window, densities):
        assert operator.plan(domain).path == "moments over neighbours"
        assert_equal(operator, signal(2, 12), domain, domain.dense())


class EdgeNetwork(PairKernel):
    """A matrix for each edge, by a network of the edge's features."""

    reads_query = False

    def __init__(self, dim: int, features: int):
        super().__init__(1, dim)
        self.network = torch.nn.Linear(features, dim * dim)

    def matrix(self, problem):
        matrix = self.network(problem.pair_features).unflatten(-1, (self.d_out, self.d_in))
        return matrix[:, None].expand(problem.uy.shape[0], -1, -1, -1, -1, -1)

    def forward(self, x, y, ux, uy):
        raise NotImplementedError("the matrix reads the edges")


def test_a_kernel_reads_signed_edge_features():
    attributes = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    loops = torch.randn(3, dtype=torch.float64, requires_grad=True)
    domain = Domain.graph(ring(6), 6, edge_attr=attributes, loop_attr=loops, measure="counting")
    operator = IntegralOperator(8, kernel=EdgeNetwork(8, 3), residual=False, projection=False)
    operator.double()
    u = signal(2, 6)
    out = operator(u, domain)
    expected = operator.dense(u, domain)
    assert_close(out, expected, "output")

    # By hand: the loop and the one edge into each node.
    weight = operator.kernel.network
    loop = weight(loops).view(8, 8)
    edge = weight(attributes).view(6, 8, 8)
    source = (torch.arange(6) - 1) % 6
    by_hand = u @ loop.mT + torch.einsum("noi,bni->bno", edge[source], u[:, source])
    assert_close(out, by_hand, "sum by hand")
    inputs = [u, attributes, loops, *operator.parameters()]
    direction = torch.randn_like(out)
    for g, h in zip(
        torch.autograd.grad(out, inputs, direction), torch.autograd.grad(by_hand, inputs, direction)
    ):
        assert_close(g, h, "gradient")


def test_repeated_edges_with_features_each_count():
    index = torch.tensor([[0, 0, 1], [1, 1, 0]])
    domain = Domain.graph(
        index, 2, edge_attr=torch.randn(3, 3).double(), self_loops=False, measure="counting"
    )
    operator = IntegralOperator(8, kernel=EdgeNetwork(8, 3), residual=False).double()
    u = signal(1, 2)
    alone = []
    for i in range(3):
        part = Domain.graph(
            index[:, i : i + 1],
            2,
            edge_attr=domain.pairs.features[[1, 2, 0]][i : i + 1],
            self_loops=False,
            measure="counting",
        )
        alone.append(operator(u, part))
    bias = operator(0 * u, domain)
    assert_close(operator(u, domain), sum(alone) - 2 * bias)


def test_a_periodic_box_uses_the_nearest_image():
    """Points moved around the box give the same output: the kernel reads wrapped positions."""
    x = positions(2, 12)
    operator = operator_of("ckconv")
    u = signal(1, 12)
    domain = Domain.points(x, radius=0.3, box=(1.0, 1.0))
    moved = (x + torch.tensor([0.4, 0.7])) % 1.0
    assert_close(operator(u, Domain.points(moved, radius=0.3, box=(1.0, 1.0))), operator(u, domain))
    with pytest.raises(DomainError, match="periodic box"):
        operator.dense(u, domain)


@pytest.mark.parametrize("name", ["itnet", "softmax", "ckconv"])
def test_queries_on_another_domain_equal_the_definition(name):
    source = Domain.points(positions(2, 9))
    queries = Domain.points(positions(2, 5, seed=3))
    near = source.near(queries, radius=0.4)
    operator = operator_of(name)
    u = signal(2, 9)
    query = signal(2, 5)
    call = {"query": query, "query_domain": queries}
    assert_close(operator(u, near, **call), operator.dense(u, near, **call))
    nearest = source.near(queries, neighbours=3)
    assert_close(operator(u, nearest, **call), operator.dense(u, nearest, **call))


@pytest.mark.parametrize("name", LOCAL)
def test_isolated_nodes_are_finite_and_equal_the_definition(name):
    domain = Domain.graph(
        torch.tensor([[0], [1]]), 4, positions=positions(2, 4), sparse=True, self_loops=False
    )
    operator = operator_of(name)
    u = signal(1, 4)
    out = operator(u, domain)
    dense = operator.dense(u, domain)
    assert out.isfinite().all()
    assert_close(out, dense)
    (g,) = torch.autograd.grad(out.sum(), u)
    assert g.isfinite().all()


@pytest.mark.parametrize("weight", [None, torch.zeros(0)])
def test_a_graph_without_edges_equals_the_definition(weight):
    index = torch.zeros(2, 0, dtype=torch.int64)
    domain = Domain.graph(index, 3, edge_weight=weight, sparse=True, self_loops=False)
    operator = operator_of("softmax")
    u = signal(2, 3)
    assert_close(operator(u, domain), operator.dense(u, domain))
    operator(u, domain).sum().backward()


@pytest.mark.parametrize("where", ["neighbours", "reach"])
@pytest.mark.parametrize("name", ["itnet", "softmax", "ckconv", "linear_attention"])
def test_second_derivatives_and_transforms_equal_dense_domains(name, where):
    """For every form whose first derivative is written by hand or fused."""
    cloud = Domain.points(positions(2, 6), neighbours=3)
    domain = {"neighbours": cloud, "reach": Domain.points(positions(2, 6)).replace(reach=1)}[where]
    operator = operator_of(name)
    u = signal(1, 6)

    def energy(v, domain=domain):
        return operator(v, domain).square().sum()

    (g,) = torch.autograd.grad(energy(u), u, create_graph=True)
    (second,) = torch.autograd.grad(g.square().sum(), u)
    (h,) = torch.autograd.grad(energy(u, domain.dense()), u, create_graph=True)
    (expected,) = torch.autograd.grad(h.square().sum(), u)
    assert_close(second, expected)
    assert_close(torch.func.grad(energy)(u.detach()), g)
    _, tangent = torch.func.jvp(energy, (u.detach(),), (torch.ones_like(u),))
    assert_close(tangent, g.sum())


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "infsa"])
def test_unconnected_components_are_independent(name):
    """Two components equal the two graphs; ``infsa`` is left out, whose norm is over all pairs."""
    x = positions(2, 9)
    u = signal(1, 9)
    operator = operator_of(name)
    sizes = (4, 5)
    index = torch.cat([ring(4), ring(5) + 4], -1)
    out = operator(u, Domain.graph(index, 9, positions=x, sparse=True))
    parts = [
        operator(v, Domain.graph(ring(len(place)), len(place), positions=place, sparse=True))
        for v, place in zip(u.split(sizes, 1), x.split(sizes))
    ]
    assert_close(out, torch.cat(parts, 1))


def test_windows_in_tiles_equal_dense_domains(monkeypatch):
    """Blocks inside the line need no bias; those at its ends or with padding do."""
    monkeypatch.setattr("fredholm.forms.neighbourhoods.tiles.WORKING_SET", 1 << 13)
    monkeypatch.setattr("fredholm.forms.neighbourhoods.tiles.BLOCK", 2)
    operator = operator_of("softmax")
    u = signal(2, 30)
    valid = torch.arange(30) < torch.tensor([[30], [17]])
    line = Domain.points(positions(2, 30))
    for domain in (line, line.replace(valid=valid), line.replace(causal=True)):
        window = domain.replace(reach=3)
        assert_equal(operator, u, window, window.dense())


def test_the_backward_uses_the_weights_of_a_functional_call():
    """The backward runs after ``functional_call`` has restored the parameters."""
    domain = Domain.points(positions(2, 6), neighbours=3)
    operator = operator_of("softmax")
    u = signal(1, 6)
    # The output does not depend on the key bias, whose gradient is rounding alone.
    named = {n: p for n, p in operator.named_parameters() if n != "kernel.key.bias"}
    other = {n: (2 * p.detach()).requires_grad_() for n, p in named.items()}

    def gradients(domain):
        out = torch.func.functional_call(operator, other, (u, domain))
        return torch.autograd.grad(out.square().sum(), list(other.values()))

    for g, h in zip(gradients(domain), gradients(domain.dense())):
        assert_close(g, h)


def test_gradients_under_autocast_are_finite():
    domain = Domain.points(positions(2, 6).float(), neighbours=3)
    operator = copy.deepcopy(operator_of("softmax")).float()
    u = signal(1, 6).detach().float().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = operator(u, domain)
    out.float().sum().backward()
    assert u.grad.isfinite().all()


def test_only_the_inputs_are_saved_for_the_backward():
    """No saved tensor grows with the number of pairs: four times as many edges save as much."""
    operator = create_operator("itnet", 8, 2, position_dim=2, width=64).double()
    u = signal(1, 200)
    totals = []
    for count in (8, 32):
        saved: list[int] = []
        domain = Domain.points(positions(2, 200), neighbours=count)

        def note(x: torch.Tensor, saved: list[int] = saved) -> torch.Tensor:
            saved.append(x.numel())
            return x

        with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
            operator(u, domain)
        totals.append(sum(saved))
    assert totals[0] == totals[1]


def test_rows_of_a_large_graph_are_not_dense(monkeypatch):
    monkeypatch.setattr("fredholm.edges.DENSE_PAIRS", 300)
    domain = Domain.points(positions(2, 100), neighbours=4)
    operator = operator_of("softmax")
    u = signal(1, 100)
    weights = operator.weights(u, domain, rows=[3, 50])
    assert weights.shape == (1, 2, 2, 100)
    assert (weights > 0).sum(-1).eq(4).all()
    with pytest.raises(DomainError, match="dense pairs"):
        operator.weights(u, domain)
    centres = create_operator("linear_infsa", 8, 2, centres=2).double()
    with pytest.raises(DomainError, match="dense pairs"):
        centres(u, domain)


def test_kernels_without_positions_ignore_images():
    """For features alone a key is the same from everywhere, so that all pairs can be written out,
    as a window and the definitions need it.
    """
    u = signal(1, 12)
    domain = Domain.points(positions(2, 12), radius=0.3, box=(1.0, 1.0), causal=True)
    assert domain.pairs.shift.any()
    plain = domain.replace(pairs=replace(domain.pairs, shift=None))
    window = create_operator("linear_attention", 8, 2, window=2).double()
    for operator in (operator_of("softmax"), create_operator("infsa", 8, 2).double(), window):
        assert_close(operator(u, domain), operator(u, plain))
        assert_close(operator.dense(u, domain), operator(u, domain))
        out, _ = operator.prefill(u, operator.init_state(1, domain))
        assert_close(out, operator(u, domain))


@pytest.mark.parametrize("batched", ["source", "target"])
def test_one_graph_serves_samples_with_other_times(batched):
    """In causal order between two domains, each sample hides what is later there."""
    times = positions(1, 6)
    moved = torch.stack([times, times.flip(0), 1 - times])
    source, target = Domain.points(times, causal=True), Domain.points(positions(1, 6) + 0.1)
    if batched == "source":
        source = source.replace(positions=moved)
    else:
        target = target.replace(positions=moved)
    source = source.replace(pairs=Edges.of_index(ring(6, twice=True), 6))
    operator, u, query = operator_of("softmax"), signal(3, 6), signal(3, 6).flip(1)
    call = {"query": query, "query_domain": target}
    out = operator(u, source, **call)
    assert_close(out, operator(u, source.dense(), **call))


def test_steps_refuse_edges_that_they_would_not_read():
    """A step takes each key at its own position: fine for softmax, wrong for a convolution."""
    u = signal(1, 12)
    domain = Domain.points(positions(2, 12), radius=0.3, box=(1.0, 1.0), causal=True)
    with pytest.raises(DomainError, match="periodic box, and Continuous"):
        operator_of("ckconv").init_state(1, domain)
    operator = operator_of("softmax")
    out, _ = operator.prefill(u, operator.init_state(1, domain))
    assert_close(out, operator(u, domain))

    attributed = Domain.graph(ring(12), 12, edge_attr=torch.randn(12, 3), causal=True)
    with pytest.raises(DomainError, match="edges without features"):
        operator.init_state(1, attributed)


@pytest.mark.parametrize("norm", ["frobenius", "rows"])
@pytest.mark.parametrize("hops", [1, 3])
def test_hops_along_edges_equal_the_dense_matrix(norm, hops):
    options = {"norm": norm, "bias": True, "learned_decay": True, "activation": "gelu"}
    operator = create_operator("infsa", 8, 2, strategy=Neumann(hops=hops), **options).double()
    valid = torch.arange(12) < torch.tensor([[12], [9]])
    cloud = Domain.points(positions(2, 12), valid=valid)
    for domain in (star(12), cloud.replace(reach=2), cloud.replace(reach=2, causal=True)):
        assert operator.plan(domain).path == "hops along edges"
        assert_equal(operator, signal(2, 12), domain, domain.dense())


@pytest.mark.parametrize("name", OPTIONS)
def test_rows_of_a_sparse_definition_equal_rows_of_all(name):
    operator = operator_of(name)
    u = signal(2, 12)
    domain = star(12)
    every = operator.kernel_matrix(u, domain)
    assert_close(operator.kernel_matrix(u, domain, rows=[0, 5]), every[:, :, [0, 5]])


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: Domain.points(x, radius=1.0, neighbours=2), DomainError, "or a number"),
        (lambda x: Domain.points(x, radius=0.0), DomainError, "positive radius"),
        (lambda x: Domain.points(x, neighbours=7), DomainError, "as many neighbours as"),
        (lambda x: Domain.points(x / 0, radius=1.0), DomainError, "finite coordinates"),
        (lambda x: Domain.points(x, box=(1.0, 1.0)), DomainError, "beside box"),
        (lambda x: Domain.points(x, radius=1.0, pairs=torch.ones(6, 6) > 0), DomainError, "both"),
        (lambda x: Domain.points(x, pairs=Edges.of_index(ring(5), 5)), ShapeError, "5 keys"),
        (lambda x: Domain.line(4, reach=-1), DomainError, "reach of 0 or more"),
        (lambda x: Domain.line(4, reach=1, pairs=torch.ones(4, 4) > 0), DomainError, "or pairs"),
        (lambda x: Domain.graph(ring(7), 6), DomainError, "nodes 0 to 5"),
        (
            lambda x: Domain.graph(ring(6), 6, edge_weight=-torch.ones(6)),
            DomainError,
            "edge_attr",
        ),
        (lambda x: Domain.mesh(x, torch.tensor([[0, 1, 2]]), at="faces"), DomainError, "at="),
        (lambda x: Domain.points(x).near(Domain.line(3), radius=1.0), ShapeError, "one space"),
    ],
)
def test_wrong_domains_are_refused(call, error, match):
    with pytest.raises(error, match=match):
        call(positions(2, 6))


def test_domains_that_mismatch_the_operator_are_refused():
    operator = operator_of("softmax")
    u = signal(2, 6)
    three = Domain.collate([Domain.graph(ring(6), 6, sparse=True)] * 3)
    with pytest.raises(ShapeError, match="batch"):
        operator(u, three)
    domain = Domain.points(positions(2, 6), neighbours=3)
    queries = Domain.points(positions(2, 4))
    with pytest.raises(ShapeError, match="near"):
        operator(u, domain, query=u[:, :4], query_domain=queries)
    sampled = create_operator("itnet", 8, 2, position_dim=2, width=4, strategy="monte_carlo")
    with pytest.raises(StrategyError, match="exact strategy"):
        sampled.double()(u, domain)


def test_causal_neighbours_keep_the_precision_of_the_domain():
    torch.manual_seed(0)
    domain = Domain.points(torch.rand(5, 2, dtype=torch.float64), neighbours=3, causal=True)
    operator = create_operator("linear_infsa", 8, heads=2).double()
    u = torch.randn(2, 5, 8, dtype=torch.float64)
    assert_close(operator(u, domain), operator.dense(u, domain))
