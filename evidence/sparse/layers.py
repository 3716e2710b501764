"""The compared layers: those of other packages, and ours with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.kernels import HiddenKernel, SoftmaxKernel
from fredholm.operators import IntegralOperator

from ..performance.peers import DiagonalKernel, peer, row_means

Call = Callable[[], Tensor]


class Way(NamedTuple):
    """A call, and the tensors whose gradients its backward computes; the first is the signal."""

    call: Call
    inputs: list[Tensor]


Ways = dict[str, Way]


class DisplacementNetwork(HiddenKernel):
    """A d × d matrix by a network of x - y with one hidden layer."""

    reads_query = False

    def __init__(self, dim: int, position_dim: int, width: int):
        super().__init__(1, dim)
        self.width = width
        self.first, self.last = nn.Linear(position_dim, width), nn.Linear(width, dim * dim)

    def hidden(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        return functional.gelu(self.first(x - y))

    def readout(self) -> tuple[Tensor, Tensor]:
        shape = 1, self.d_out, self.d_in
        return self.last.weight.view(*shape, -1), self.last.bias.view(shape)


def random_edges(nodes: int, edges: int) -> Tensor:
    """Return random edges without repetitions or loops, (2, E)."""
    generator = torch.Generator().manual_seed(0)
    number = torch.randint(nodes * (nodes - 1), (edges,), generator=generator).unique()
    source = torch.div(number, nodes - 1, rounding_mode="floor")
    target = number % (nodes - 1)
    return torch.stack([source, target + (target >= source)])


def network_per_edge(nodes: int, edges: int, dim: int, width: int) -> Ways:
    """Return our operator and PyTorch Geometric's NNConv, which stores a matrix for every edge."""
    from torch_geometric.nn import NNConv

    torch.manual_seed(0)
    points, u = torch.rand(nodes, 2), torch.randn(1, nodes, dim, requires_grad=True)
    index = random_edges(nodes, edges)
    kernel = DisplacementNetwork(dim, 2, width)
    operator = IntegralOperator(dim, kernel=kernel, residual=False, projection=False)
    domain = Domain.graph(index, nodes, positions=points, self_loops=False, sparse=True)

    last = nn.Linear(width, dim * dim)
    network = nn.Sequential(nn.Linear(2, width), nn.GELU(), last)
    theirs = NNConv(dim, dim, network, aggr="mean", root_weight=False, bias=False)
    network[0] = kernel.first
    with torch.no_grad():
        # NNConv multiplies rows, x W, so its last layer has the transposed matrices.
        last.weight.copy_(kernel.last.weight.view(dim, dim, -1).transpose(0, 1).flatten(0, 1))
        last.bias.copy_(kernel.last.bias.view(dim, dim).T.flatten())
    away = points[index[1]] - points[index[0]]
    return {
        "fredholm": Way(lambda: operator(u, domain), [u, *operator.parameters()]),
        "PyG NNConv": Way(lambda: theirs(u[0], index, away)[None], [u, *theirs.parameters()]),
    }


def kernel_integral(nodes: int, neighbours: int, dim: int, width: int, *, loop: bool) -> Ways:
    """Return our operator and neuraloperator's IntegralTransform, if it is installed.

    Its sums are a Python ``loop``, as installed by pip, or one ``index_add``.
    """
    module = peer("neuralop.layers.integral_transform")
    torch.manual_seed(0)
    points, u = torch.rand(nodes, 2), torch.randn(1, nodes, dim, requires_grad=True)
    kernel = DiagonalKernel(dim, 2, width)
    operator = IntegralOperator(dim, dim, kernel=kernel, residual=False, projection=False)
    domain = Domain.points(points, neighbours=neighbours)
    ways: Ways = {"fredholm": Way(lambda: operator(u, domain), [u, *operator.parameters()])}
    if module is None:
        return ways

    edges: Any = domain.pairs
    layers = [4, width, dim]
    theirs = module.IntegralTransform(
        channel_mlp_layers=layers, reduction="mean", use_torch_scatter=False
    )
    with torch.no_grad():
        for mine, layer in zip((kernel.first, kernel.last), theirs.channel_mlp.fcs):
            layer.weight.copy_(mine.weight)
            layer.bias.copy_(mine.bias)
    near = {"neighbors_index": edges.source, "neighbors_row_splits": edges.ptr}
    original = module.segment_csr

    def call() -> Tensor:
        module.segment_csr = original if loop else row_means
        try:
            return theirs(points, near, f_y=u)
        finally:
            module.segment_csr = original

    name = "neuraloperator, its loop" if loop else "neuraloperator with index_add"
    return ways | {name: Way(call, [u, *theirs.parameters()])}


def dynamic_attention(nodes: int, edges: int, dim: int, heads: int) -> Ways:
    """Return PyTorch Geometric's GATv2Conv and its conversion by ``as_operator``."""
    from torch_geometric.nn import GATv2Conv

    torch.manual_seed(0)
    index, u = random_edges(nodes, edges), torch.randn(1, nodes, dim, requires_grad=True)
    theirs = GATv2Conv(dim, dim // heads, heads=heads, add_self_loops=False).eval()
    operator = as_operator(theirs)
    domain = Domain.graph(index, nodes, self_loops=False, sparse=True)
    inputs = [u, *theirs.parameters()]
    return {
        "fredholm": Way(lambda: operator(u, domain), inputs),
        "PyG GATv2Conv": Way(lambda: theirs(u[0], index)[None], inputs),
    }


def graph_transformer(nodes: int, edges: int, dim: int, heads: int) -> Ways:
    """Return our operator and PyTorch Geometric's TransformerConv.

    It is attention over neighbours plus a linear map of the node.
    """
    from torch_geometric.nn import TransformerConv

    torch.manual_seed(0)
    index, u = random_edges(nodes, edges), torch.randn(1, nodes, dim, requires_grad=True)
    theirs = TransformerConv(dim, dim // heads, heads=heads)
    layers = tuple(nn.Linear(dim, dim) for _ in range(3))
    for mine, layer in zip(layers, (theirs.lin_query, theirs.lin_key, theirs.lin_value)):
        mine.weight, mine.bias = layer.weight, layer.bias
    kernel = SoftmaxKernel(dim, heads, projections=layers)
    operator = IntegralOperator(dim, heads, kernel=kernel, residual=False, projection=False)
    domain = Domain.graph(index, nodes, self_loops=False, sparse=True)
    inputs = [u, *theirs.parameters()]
    return {
        "fredholm": Way(lambda: operator(u, domain) + theirs.lin_skip(u), inputs),
        "PyG TransformerConv": Way(lambda: theirs(u[0], index)[None], inputs),
    }


class Windowed(NamedTuple):
    """Our causal window, and a function that computes the projections for a peer."""

    way: Way
    projected: Callable[[], list[Tensor]]


def our_window(points: int, reach: int, dim: int, heads: int) -> Windowed:
    """Return softmax attention over the keys at most ``reach`` positions before a query."""
    torch.manual_seed(0)
    u = torch.randn(1, points, dim, requires_grad=True)
    kernel = SoftmaxKernel(dim, heads)
    operator = IntegralOperator(dim, heads, kernel=kernel, residual=False, projection=False)
    domain = Domain.line(points, reach=reach, causal=True)

    def projected() -> list[Tensor]:
        layers = (kernel.query, kernel.key, kernel.value)
        return [layer(u).unflatten(-1, (heads, -1)).transpose(1, 2) for layer in layers]

    way = Way(lambda: operator(u, domain), [u, *operator.parameters()])
    return Windowed(way, projected)


def compiled_window(points: int, reach: int, dim: int, heads: int) -> Ways:
    """Return our window and torch's compiled flex_attention, which has no backward on a CPU."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    ours = our_window(points, reach, dim, heads)

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key <= reach)

    mask = create_block_mask(near, None, None, points, points, device="cpu")
    attend = torch.compile(flex_attention, dynamic=False)

    def call() -> Tensor:
        query, key, value = ours.projected()
        return attend(query, key, value, block_mask=mask).transpose(1, 2).flatten(2)

    return {"fredholm": ours.way, "flex_attention, compiled": Way(call, ours.way.inputs)}


def window(points: int, reach: int, dim: int, heads: int) -> Ways:
    """Return our window and local-attention's exact window, if it is installed."""
    module = peer("local_attention")
    ours = our_window(points, reach, dim, heads)
    ways: Ways = {"fredholm": ours.way}
    if module is None:
        return ways
    # Its exact window of w sees w + 1 keys, those of our reach w.
    theirs = module.LocalAttention(
        window_size=reach,
        causal=True,
        autopad=True,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )

    def call() -> Tensor:
        return theirs(*ours.projected()).transpose(1, 2).flatten(2)

    return ways | {"local-attention": Way(call, ours.way.inputs)}
