"""Graph layers with weights by degrees: K(x, y) = V / sqrt(d(x) d(y)), V / d(x) or V.

The kernel, then the converters of PyTorch Geometric's ``GCNConv`` and ``SAGEConv``. The graph is
the domain: ``Domain.graph``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain, default_line
from ..errors import ConversionError, DomainError, OptionError, suggest
from ..integral import IntegralOperator, Layout, Problem, WeightedKernel, own_parameter
from ..integral.conversion import refuse, register_converter
from ..registry import qualified_name

DEGREES = ("both", "query", "none")


class AdjacencyKernel(WeightedKernel):
    r"""One map, weighted by degrees: :math:`K(x, y) = V / \sqrt{d(x)\,d(y)}`, d(x) the mass that x
    sees.

    On ``Domain.graph(edge_index, n, measure="counting")`` d is the number of edges into a node, its
    loop included; a domain's float ``pairs`` are logarithms of edge weights.

    Args:
        value: V, the weight (d_out, dim).
        bias: (d_out,) or None.
        degrees: which degrees divide: ``"both"`` as above; ``"query"``, K = V / d(x), a mean over
            neighbours under any measure; ``"none"``, K = V, their sum.

    Shape: u (B, N, dim) to (B, N, d_out).

    Cost: O(N²), a block of queries at a time.

    Raises:
        DomainError: queries on another domain, or an order.
        OptionError: other ``degrees``.

    Reference: Kipf and Welling 2017, Eq. 2; Hamilton, Ying, Leskovec 2017, Algorithm 1.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> kernel = AdjacencyKernel(torch.ones(1, 1))
        >>> op = IntegralOperator(1, kernel=kernel, residual=False, projection=False)
        >>> graph = Domain.graph(torch.tensor([[0], [1]]), 2, measure="counting")
        >>> weights = op.weights(torch.ones(1, 2, 1), graph)[0, 0]
        >>> [[round(w, 3) for w in row] for row in weights.tolist()]
        [[1.0, 0.0], [0.707, 0.5]]
    """

    whole = True
    reads_query = False
    sums = True

    def __init__(self, value: Tensor, bias: Tensor | None = None, *, degrees: str = "both"):
        super().__init__(1, value.shape[1], value.shape[0])
        if degrees not in DEGREES:
            raise OptionError(f"unknown degrees {degrees!r}{suggest(degrees, DEGREES)}")
        self.value, self.degrees = own_parameter(value), degrees
        self.sums = degrees != "query"
        self.bias = None if bias is None else own_parameter(bias)

    def check(self, layout: Layout) -> None:
        if layout.given or layout.causal:
            what = "queries on another domain" if layout.given else "an order"
            raise DomainError(
                f"AdjacencyKernel weighs by degrees within one graph, got {what}; pass one domain "
                "without it"
            )

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        return default_line(n, measure="counting", device=device, dtype=dtype)

    def value_map(self) -> Tensor:
        return self.value[None]

    def offset(self, problem: Problem) -> Tensor | None:
        return None if self.bias is None else self.bias.view(1, 1, 1, -1)

    def weights(self, problem: Problem) -> Tensor:
        # A block of queries does not know the keys' degrees: they come from the whole domain.
        everything = (problem.whole or problem).quadrature.weights()
        degree = everything.expand(-1, -1, problem.uy.shape[2], -1).sum(-1).to(problem.uy.dtype)
        seen = degree > 0  # a node that sees nothing weighs nothing
        known, one = torch.where(seen, degree, 1.0), torch.ones_like(degree)
        root = torch.where(seen, known.rsqrt(), 0.0)
        of_query, of_key = {
            "both": (root, root),
            "query": (known.reciprocal(), one),
            "none": (one, one),
        }[self.degrees]
        if problem.index is not None:
            of_query = of_query.index_select(2, problem.index)
        return of_query[..., None] * of_key[:, :, None]


def _edges(domain: Domain) -> Tensor:
    """The edges of a graph without repeated ones, (2, E)."""
    assert domain.pairs is not None
    target, source = domain.pairs.nonzero(as_tuple=True)
    return torch.stack([source, target])


def small_graph(layer: Any) -> Domain:
    """Five nodes on which layer and operator are compared, looped where the layer loops."""
    edges = torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 3, 4, 0, 3, 0]])
    loops = getattr(layer, "add_self_loops", False)
    return Domain.graph(edges, 5, self_loops=loops, measure="counting")


def call_on_graph(layer: Any, u: Tensor, domain: Domain) -> Tensor:
    """The layer on each signal of a batch; a loop that the layer adds is an edge already."""
    edges = _edges(domain)
    return torch.stack([layer(x, edges) for x in u])


@register_converter(
    "torch_geometric.nn.conv.gcn_conv.GCNConv", call=call_on_graph, domain=small_graph
)
def graph_convolution(module: nn.Module) -> IntegralOperator:
    """Graph convolution on ``Domain.graph(edge_index, n, self_loops=add_self_loops,
    measure="counting")``.

    Edge weights are the domain's ``pairs``, their logarithms.
    """
    layer: Any = module
    check_layer(layer, {"improved": False, "cached": False, "flow": "source_to_target"})
    degrees = "both" if layer.normalize else "none"
    kernel = AdjacencyKernel(weight_of(layer, "lin"), layer.bias, degrees=degrees)
    return IntegralOperator(
        layer.in_channels,
        kernel=kernel,
        out_dim=layer.out_channels,
        residual=False,
        projection=False,
    )


@register_converter(
    "torch_geometric.nn.conv.sage_conv.SAGEConv", call=call_on_graph, domain=small_graph
)
def sample_and_aggregate(module: nn.Module) -> IntegralOperator:
    """GraphSAGE with a mean or a sum over neighbours, on ``Domain.graph(edge_index, n,
    self_loops=False)``, for a sum with ``measure="counting"``; the map of the node itself is the
    pointwise term W.
    """
    layer: Any = module
    if not isinstance(layer.in_channels, int):
        raise refuse(layer, f"in_channels={layer.in_channels}", "one width for sources and targets")
    expected = {"normalize": False, "project": False, "flow": "source_to_target"}
    check_layer(layer, expected, aggregations=("MeanAggregation", "SumAggregation"))
    mean = type(layer.aggr_module).__name__ == "MeanAggregation"
    kernel = AdjacencyKernel(
        weight_of(layer, "lin_l"), layer.lin_l.bias, degrees="query" if mean else "none"
    )
    operator = IntegralOperator(
        layer.in_channels,
        kernel=kernel,
        out_dim=layer.out_channels,
        residual=layer.root_weight,
        projection=False,
    )
    if operator.residual is not None:
        operator.residual.weight = weight_of(layer, "lin_r")
    return operator


# --- what conversions of graph layers check -------------------------------------------------------


def check_layer(
    layer: Any, expected: dict[str, Any], aggregations: tuple[str, ...] = ("SumAggregation",)
) -> None:
    """ConversionError unless the options are as expected."""
    for option, value in expected.items():
        if getattr(layer, option) != value:
            raise refuse(layer, f"{option}={getattr(layer, option)!r}", f"{option}={value!r}")
    if type(layer.aggr_module).__name__ not in aggregations:
        known = " or ".join(name.removesuffix("Aggregation").lower() for name in aggregations)
        raise refuse(layer, f"aggr={layer.aggr!r}", f"aggr={known!r}")
    if any(hooks for name, hooks in vars(layer).items() if name.endswith("_hooks")):
        raise ConversionError(
            f"{type(layer).__name__} has hooks, which an operator would not run; remove them first"
        )


def weight_of(layer: Any, name: str) -> nn.Parameter:
    """The weight of an inner linear layer, or a ConversionError where it is another layer."""
    inner = getattr(layer, name)
    kind = qualified_name(type(inner))
    if kind != "torch_geometric.nn.dense.linear.Linear":
        raise refuse(layer, f"{name}={kind}", "torch_geometric.nn.dense.linear.Linear")
    return inner.weight
