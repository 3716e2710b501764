"""Graph attention: normalisation over neighbours, and refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, OptionError
from fredholm.layers.graph import AdjacencyKernel
from fredholm.layers.graph_attention import AdditiveAttentionKernel
from fredholm.operators import Exact, IntegralOperator

from ..tolerances import assert_close

EDGES = torch.tensor([[0, 1, 2, 0], [1, 2, 3, 3]])


def kernel(**options) -> AdditiveAttentionKernel:
    value, query, key = (torch.randn(size).double() for size in ((4, 3), (2, 2), (2, 2)))
    return AdditiveAttentionKernel(value, query, key, heads=2, **options)


def test_graph_attention_equals_a_softmax_over_neighbours():
    k = kernel(slope=0.3)
    u = torch.randn(1, 4, 3).double()
    op = IntegralOperator(3, 2, kernel=k, out_dim=4, residual=False, projection=False)
    graph = Domain.graph(EDGES, 4)
    values = (u[0] @ k.value.T).view(4, 2, 2)
    expected = torch.zeros(4, 2, 2).double()
    for i in range(4):
        neighbours = [i, *(int(s) for s, t in EDGES.T.tolist() if t == i)]
        scores = (values[i] * k.query).sum(-1) + (values[neighbours] * k.key).sum(-1)
        weights = nn.functional.leaky_relu(scores, 0.3).softmax(0)
        expected[i] = (weights[..., None] * values[neighbours]).sum(0)
    assert_close(op(u, graph)[0], expected.flatten(1))


def test_a_node_without_neighbours_gives_the_bias():
    bias = nn.Parameter(torch.randn(4).double())
    op = IntegralOperator(
        3, 2, kernel=kernel(bias=bias), out_dim=4, residual=False, projection=False
    )
    graph = Domain.graph(EDGES, 4, self_loops=False)
    assert_close(op(torch.randn(1, 4, 3).double(), graph)[0, 0], bias)


def test_a_graph_convolution_divides_by_the_roots_of_degrees():
    value, u = torch.randn(2, 3).double(), torch.randn(1, 4, 3).double()
    op = IntegralOperator(
        3, kernel=AdjacencyKernel(value), out_dim=2, residual=False, projection=False
    )
    graph = Domain.graph(EDGES, 4, measure="counting")
    degree = [1, 2, 2, 3]
    expected = torch.zeros(4, 2).double()
    for s, t in [*EDGES.T.tolist(), *((i, i) for i in range(4))]:
        expected[t] += value @ u[0, s] / (degree[s] * degree[t]) ** 0.5
    assert_close(op(u, graph)[0], expected)
    op.strategy = Exact(memory=1)  # one query at a time
    assert_close(op(u, graph)[0], expected)
    rows = op.kernel_matrix(u, graph, rows=[3, 1])
    assert_close(rows, op.kernel_matrix(u, graph)[:, :, [3, 1]])


def test_a_graph_convolution_without_edges_gives_its_bias():
    bias = nn.Parameter(torch.randn(2).double())
    kernel = AdjacencyKernel(torch.randn(2, 3).double(), bias)
    op = IntegralOperator(3, kernel=kernel, out_dim=2, residual=False, projection=False)
    graph = Domain.graph(EDGES, 4, self_loops=False, measure="counting")
    u = torch.randn(1, 4, 3).double().requires_grad_()
    out = op(u, graph)
    assert_close(out[0, 0], bias)
    (g,) = torch.autograd.grad(out.sum(), u)
    assert g.isfinite().all()


def test_a_graph_convolution_refuses_other_domains_and_order():
    kernel = AdjacencyKernel(torch.randn(2, 3))
    op = IntegralOperator(3, kernel=kernel, out_dim=2, residual=False, projection=False)
    u = torch.zeros(1, 4, 3)
    graph = Domain.graph(EDGES, 4)
    with pytest.raises(DomainError, match="another domain"):
        op(u, graph, query_domain=graph)
    with pytest.raises(DomainError, match="an order"):
        op(u, graph.replace(causal=True))


def test_mismatched_sizes_are_named():
    with pytest.raises(OptionError, match=r"expected 4 numbers.*got 3"):
        AdditiveAttentionKernel(torch.zeros(4, 3), torch.zeros(4), torch.zeros(3), heads=2)


def test_dropout_in_training_mode_is_refused():
    op = IntegralOperator(
        3, 2, kernel=kernel(dropout=0.5), out_dim=4, residual=False, projection=False
    )
    with pytest.raises(ConversionError, match=r"dropout=0\.5"):
        op(torch.zeros(1, 4, 3).double(), Domain.graph(EDGES, 4))
    assert op.eval()(torch.zeros(1, 4, 3).double(), Domain.graph(EDGES, 4)).shape == (1, 4, 4)


# --- the library that has such layers -------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"in_channels": (3, 3)}, "in_channels"),
        ({"heads": 2, "concat": False}, "concat=False"),
        ({"edge_dim": 2}, "edge_dim=2"),
        ({"residual": True}, "residual=True"),
        ({"flow": "target_to_source"}, "flow"),
        ({"aggr": "mean"}, "aggr='mean'"),
        ({"dropout": 0.5}, "dropout=0.5 in training mode"),
    ],
)
def test_unsupported_options_are_named(options, named):
    library = pytest.importorskip("torch_geometric.nn")
    with pytest.raises(ConversionError, match=named):
        as_operator(library.GATConv(**{"in_channels": 3, "out_channels": 2} | options))


@pytest.mark.parametrize(
    ("option", "value"), [("improved", True), ("cached", True), ("aggr", "max")]
)
def test_unsupported_options_of_a_graph_convolution_are_named(option, value):
    library = pytest.importorskip("torch_geometric.nn")
    with pytest.raises(ConversionError, match=option):
        as_operator(library.GCNConv(3, 2, **{option: value}))


def test_hooks_of_messages_are_refused():
    layer = pytest.importorskip("torch_geometric.nn").GATConv(3, 2)
    layer.register_message_forward_hook(lambda module, inputs, output: output)
    with pytest.raises(ConversionError, match="hooks"):
        as_operator(layer)


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "GATv2Conv"])
def test_a_lazily_built_layer_is_converted_after_its_first_call(name):
    """Its ``in_channels`` stays -1, so the width is read from its weights."""
    library = pytest.importorskip("torch_geometric.nn")
    layer = getattr(library, name)(-1, 5).eval()
    u = torch.randn(1, 4, 3)
    with pytest.raises(ConversionError, match="has seen no input yet"):
        as_operator(layer)
    expected = layer(u[0], EDGES)
    graph = Domain.graph(EDGES, 4, self_loops=name != "SAGEConv", measure="counting")
    assert_close(as_operator(layer)(u, graph)[0], expected)
