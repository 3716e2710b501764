"""Graph layers with weights by degrees: K(x, y) = V / sqrt(d(x) d(y)), V / d(x) or V.

The kernel, then the converters of PyTorch Geometric's ``GCNConv`` and ``SAGEConv``. The graph is
the domain: ``Domain.graph``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..edges import Edges
from ..errors import ConversionError, DomainError, OptionError, suggest
from ..forms.neighbourhoods.general import has_no_values, shape_alone
from ..forms.neighbourhoods.sums import sum_over_neighbours
from ..integral import (
    DefaultLine,
    Exact,
    Facts,
    Form,
    IntegralOperator,
    Kernel,
    Layout,
    Problem,
    WeightedKernel,
    with_offset,
)
from ..integral.conversion import refuse, refuse_unless, register_converter
from ..integral.sharing import own_parameter
from ..ops.backend import at_least_single, cast
from ..registry import qualified_name
from .parts import at_queries, bias_offset, bind, own_bias

DEGREES = ("both", "query", "none")


class NeighbourDegrees(Form):
    """Degrees and features are summed along edges: O(E·d) time, O(E) memory."""

    word = Exact
    strategy: Exact
    sparse = True
    name = "sums over neighbours"
    reason = "the weight of a pair is a factor of each end, so that values are scaled before pairs"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, AdjacencyKernel):
            return "it needs an AdjacencyKernel"
        return None

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        assert isinstance(kernel, AdjacencyKernel)
        u = problem.uy
        value = kernel.value_map()
        dtype = at_least_single(u.dtype)
        # A degree is the mass that a node sees: the sum of ones over its neighbours.
        points = u.shape[2]
        ones = torch.ones((1, 1, points, 1), dtype=dtype, device=u.device)
        degree = sum_over_neighbours(problem, ones, self.strategy.memory)
        degree = degree[..., 0].to(u.dtype)
        of_query, of_key = kernel.factors(degree)

        # The narrower of features and values is gathered.
        maps_first = kernel.d_out <= kernel.d_in
        if maps_first:
            u = u @ value.mT
        out = sum_over_neighbours(problem, u * of_key[..., None], self.strategy.memory)
        out = cast(out, u.dtype) * of_query[..., None]
        if not maps_first:
            out = out @ value.mT
        return with_offset(out, kernel, problem)


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

    Cost: O(N²), a block of queries at a time; on edges O(E).

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

    forms = (NeighbourDegrees, *WeightedKernel.forms)
    whole = True
    line = DefaultLine(measure="counting")
    reads_query = False
    sums = True

    def __init__(
        self,
        value: Tensor,
        bias: Tensor | None = None,
        *,
        degrees: str = "both",
    ):
        super().__init__(1, value.shape[1], value.shape[0])
        if degrees not in DEGREES:
            raise OptionError(
                f"degrees: expected {', '.join(DEGREES)}, got {degrees!r}"
                f"{suggest(degrees, DEGREES)}"
            )
        self.value = own_parameter(value)
        self.degrees = degrees
        self.sums = degrees != "query"
        self.bias = own_bias(bias)

    def check(self, layout: Layout) -> None:
        if layout.given or layout.causal:
            got = "queries on another domain" if layout.given else "an order"
            raise DomainError(
                f"AdjacencyKernel: expected one graph, whose degrees are weights, got {got}; pass "
                "one domain without it"
            )
        if layout.sharded and layout.sparse and self.degrees == "both":
            raise DomainError(
                "expected one process for weights by the degrees of both ends, got edges in "
                "shards: a rank knows the degrees of its own points alone"
            )

    def value_map(self) -> Tensor:
        return self.value[None]

    def offset(self, problem: Problem) -> Tensor | None:
        return bias_offset(self.bias, self)

    def weights(self, problem: Problem) -> Tensor:
        # A block of queries does not know the keys' degrees: they come from the whole domain.
        complete = problem.parent or problem
        queries = problem.uy.shape[2]
        masses = complete.quadrature.weights()
        masses = masses.expand(-1, -1, queries, -1)
        degree = masses.sum(-1).to(problem.uy.dtype)
        of_query, of_key = self.factors(degree)
        of_query = at_queries(of_query, problem)
        return of_query[..., None] * of_key[:, :, None]

    def factors(self, degree: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of queries and of keys in the weight of a pair, (1 | B, 1, N) each,
        from the degrees.
        """
        one = torch.ones_like(degree)
        if self.degrees == "none":
            return one, one

        # A node that sees nothing weighs nothing, and its degree of zero has no reciprocal.
        seen = degree > 0
        known = torch.where(seen, degree, 1.0)
        if self.degrees == "query":
            return known.reciprocal(), one
        root = torch.where(seen, known.rsqrt(), 0.0)
        return root, root


def _edges(domain: Domain) -> Tensor:
    """Return the edges of a graph without repeated ones, (2, E)."""
    assert domain.pairs is not None
    if isinstance(domain.pairs, Edges):
        edges = domain.pairs
        return torch.stack([edges.source, edges.targets()])
    # Row target, column source.
    target, source = domain.pairs.nonzero(as_tuple=True)
    return torch.stack([source, target])


def small_graph(layer: Any) -> Domain:
    """Return five nodes on which layer and operator are compared, looped where the layer loops."""
    # A cycle of five nodes with two more edges, 0 → 3 and 2 → 0.
    sources = [0, 1, 2, 3, 4, 0, 2]
    targets = [1, 2, 3, 4, 0, 3, 0]
    edges = torch.tensor([sources, targets])
    loops = getattr(layer, "add_self_loops", False)
    return Domain.graph(edges, 5, self_loops=loops, measure="counting")


def call_on_graph(layer: Any, u: Tensor, domain: Domain) -> Tensor:
    """Call the layer on each signal of a batch. A loop that the layer adds is an edge already."""
    edges = _edges(domain)
    outputs = [layer(x, edges) for x in u]
    return torch.stack(outputs)


@register_converter(
    "torch_geometric.nn.conv.gcn_conv.GCNConv",
    call=call_on_graph,
    domain=small_graph,
)
def graph_convolution(module: nn.Module) -> IntegralOperator:
    """Convert a graph convolution; its domain is ``Domain.graph(edge_index, n,
    self_loops=add_self_loops, measure="counting")``.

    Edge weights are the domain's ``pairs``, their logarithms.
    """
    layer: Any = module
    expected = {
        "improved": False,
        "cached": False,
        "flow": "source_to_target",
    }
    check_layer(layer, expected)
    degrees = "both" if layer.normalize else "none"
    value = weight_of(layer, "lin")
    return bind(AdjacencyKernel(value, layer.bias, degrees=degrees))


@register_converter(
    "torch_geometric.nn.conv.sage_conv.SAGEConv",
    call=call_on_graph,
    domain=small_graph,
)
def sample_and_aggregate(module: nn.Module) -> IntegralOperator:
    """Convert GraphSAGE with a mean or a sum over neighbours. Its domain is
    ``Domain.graph(edge_index, n, self_loops=False)``, for a sum with ``measure="counting"``; the
    map of the node itself is the pointwise term W.
    """
    layer: Any = module
    expected = {
        "normalize": False,
        "project": False,
        "flow": "source_to_target",
    }
    check_layer(layer, expected, aggregations=("MeanAggregation", "SumAggregation"))
    mean = type(layer.aggr_module).__name__ == "MeanAggregation"
    value = weight_of(layer, "lin_l")
    degrees = "query" if mean else "none"
    kernel = AdjacencyKernel(value, layer.lin_l.bias, degrees=degrees)
    operator = IntegralOperator(
        value.shape[1],
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
    layer: Any,
    expected: dict[str, Any],
    aggregations: tuple[str, ...] = ("SumAggregation",),
) -> None:
    """Raise ConversionError unless the options are as expected."""
    if not isinstance(layer.in_channels, int):
        raise refuse(layer, f"in_channels={layer.in_channels}", "one width for sources and targets")
    refuse_unless(layer, expected)
    if type(layer.aggr_module).__name__ not in aggregations:
        known_names = [name.removesuffix("Aggregation").lower() for name in aggregations]
        known = " or ".join(known_names)
        raise refuse(layer, f"aggr={layer.aggr!r}", f"aggr={known!r}")
    hooks = [value for name, value in vars(layer).items() if name.endswith("_hooks")]
    if any(hooks):
        raise ConversionError(
            f"{type(layer).__name__}: expected no hooks, because an operator would not run them, "
            "got some; remove them first"
        )


def weight_of(layer: Any, name: str) -> nn.Parameter:
    """Return the weight of an inner linear layer, or raise ConversionError where it is another
    layer.

    It tells the width of the layer's input: ``in_channels`` of a lazily built layer stays -1 after
    its first call.
    """
    inner = getattr(layer, name)
    kind = qualified_name(type(inner))
    if kind != "torch_geometric.nn.dense.linear.Linear":
        raise refuse(layer, f"{name}={kind}", "torch_geometric.nn.dense.linear.Linear")
    return inner.weight
