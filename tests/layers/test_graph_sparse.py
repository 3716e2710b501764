"""Graph layers on edges: the definition on all pairs, and layers of PyTorch Geometric on large
graphs.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import DomainError, StrategyError
from fredholm.kernels import Layout
from fredholm.layers.graph import AdjacencyKernel
from fredholm.layers.graph_attention import AdditiveAttentionKernel, DynamicAttentionKernel
from fredholm.operators import Exact, IntegralOperator

from ..operators.test_sparse import assert_equal, positions, ring, signal, star
from ..tolerances import assert_close

pytest.importorskip("scipy")


def parameter(*size: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(size, dtype=torch.float64))


def additive() -> AdditiveAttentionKernel:
    ends = parameter(2, 3), parameter(2, 3)
    return AdditiveAttentionKernel(parameter(6, 8), *ends, heads=2, bias=parameter(6))


def dynamic() -> DynamicAttentionKernel:
    biases = {"value_bias": parameter(6), "query_bias": parameter(6), "bias": parameter(6)}
    maps = parameter(6, 8), parameter(6, 8), parameter(2, 3)
    return DynamicAttentionKernel(*maps, heads=2, **biases)


def turned() -> DynamicAttentionKernel:
    """Return a kernel of negative slope, whose activation has not the sign of its argument."""
    return DynamicAttentionKernel(
        parameter(6, 8), parameter(6, 8), parameter(2, 3), heads=2, slope=-0.3
    )


KERNELS = {
    "additive": additive,
    "dynamic": dynamic,
    "turned": turned,
    "both": lambda: AdjacencyKernel(parameter(6, 8), parameter(6)),
    "query": lambda: AdjacencyKernel(parameter(6, 8), degrees="query"),
    "none": lambda: AdjacencyKernel(parameter(12, 8), degrees="none"),
}


def operator_of(name: str) -> IntegralOperator:
    torch.manual_seed(0)
    kernel = KERNELS[name]()
    width = kernel.heads * kernel.d_out
    options = {"residual": False, "projection": False}
    return IntegralOperator(8, kernel.heads, kernel=kernel, out_dim=width, **options).double()


def domains() -> dict[str, Domain]:
    x = positions(2, 12)
    isolated = torch.tensor([[0, 3, 3], [1, 1, 2]])
    graphs = [Domain.graph(ring(n, twice=True), n, sparse=True) for n in (12, 5)]
    valid = torch.arange(12) < torch.tensor([[12], [9]])
    return {
        "weights": star(12),
        "counting": star(12).replace(kind="counting"),
        "isolated": Domain.graph(isolated, 12, sparse=True, self_loops=False),
        "batch": Domain.collate(graphs),
        "masses": Domain.points(x, measure=x[:, 0] + 0.1, radius=0.4),
        "padded": Domain.points(x, valid=valid, radius=0.4),
        "reach": Domain.points(x, valid=valid).replace(reach=2),
    }


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("where", domains())
def test_edges_equal_dense_domains(name, where):
    operator = operator_of(name)
    domain = domains()[where]
    assert "over neighbours" in operator.plan(domain).path
    assert_equal(operator, signal(2, 12), domain, domain.dense())


@pytest.mark.parametrize("name", KERNELS)
def test_rows_longer_than_a_tile_equal_dense_domains(name, monkeypatch):
    monkeypatch.setattr("fredholm.forms.neighbourhoods.tiles.WORKING_SET", 1 << 10)
    domain = star(40)
    assert_equal(operator_of(name), signal(2, 40), domain, domain.dense())


@pytest.mark.parametrize("name", KERNELS)
def test_first_and_second_gradients_pass_gradcheck(name):
    operator = operator_of(name)
    domain = star(5)
    u = signal(1, 5)
    names = [n for n, _ in operator.named_parameters()]
    values = [p.detach().clone().requires_grad_() for p in operator.parameters()]

    def call(u, *values):
        return torch.func.functional_call(operator, dict(zip(names, values)), (u, domain))

    assert torch.autograd.gradcheck(call, (u, *values), fast_mode=True)
    assert torch.autograd.gradgradcheck(call, (u, *values), fast_mode=True)


@pytest.mark.parametrize("name", KERNELS)
def test_edge_weights_receive_a_gradient(name):
    weight = (torch.rand(6, dtype=torch.float64) + 0.1).requires_grad_()
    sparse, dense = (
        Domain.graph(
            ring(6),
            6,
            positions=positions(2, 6),
            edge_weight=weight,
            measure="counting",
            sparse=sparse,
        )
        for sparse in (True, False)
    )
    assert_equal(operator_of(name), signal(2, 6), sparse, dense, {"weight": weight}.items())


def test_the_triton_backend_is_refused_on_edges():
    """No form on edges has a Triton kernel."""
    operator = operator_of("additive")
    operator.strategy = Exact(backend="triton")
    with pytest.raises(StrategyError, match="no Triton kernel"):
        operator(signal(1, 12), star(12))


@pytest.mark.parametrize("layer", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv"])
def test_layers_of_pytorch_geometric_agree_on_sparse_graphs(layer, monkeypatch):
    """No matrix of all pairs is built, and every gradient equals the layer's."""
    geometric = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    options = {"heads": 2} if "GAT" in layer else {}
    source = getattr(geometric, layer)(8, 6, **options).double().eval()
    operator = as_operator(source)
    loops = layer != "SAGEConv"
    measure = "counting" if layer == "GCNConv" else "uniform"
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(60, (2, 200), generator=generator)
    index = index[:, index[0] != index[1]].unique(dim=1)
    domain = Domain.graph(index, 60, self_loops=loops, measure=measure, sparse=True)
    monkeypatch.setattr("fredholm.edges.DENSE_PAIRS", 0)
    u = signal(1, 60)
    out = operator(u, domain)[0]
    expected = source(u[0], index)
    assert_close(out, expected, "output")
    direction = torch.randn_like(out)
    parameters = [u, *source.parameters()]
    for g, h in zip(
        torch.autograd.grad(out, parameters, direction),
        torch.autograd.grad(expected, parameters, direction),
    ):
        assert_close(g, h, "gradient")


def test_degrees_of_both_ends_refuse_sharded_domains():
    """A rank has only the rows, and so the degrees, of its own points."""
    layout = Layout(sharded=True, edges=True, pairs=True, cross=True)
    with pytest.raises(DomainError, match="degrees of both ends"):
        KERNELS["both"]().check(layout)
    KERNELS["query"]().check(layout)
