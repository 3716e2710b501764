"""Layers one after the other: the kernels of a chain make one kernel,
K(x, y) = ∫ K₂(x, z) K₁(z, y) dμ(z).

The kernel, then the converter of ``torch.nn.Sequential``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import ConversionError, DomainError
from ..integral import (
    IntegralOperator,
    LatticeKernel,
    Layout,
    MatrixKernel,
    OwnForm,
    Problem,
    as_operator,
)
from ..integral.bases import OWN_FIRST
from ..integral.conversion import call_on_points, find_converter, refuse, register_converter
from ..integral.lattice import call_on_grid
from ..integral.problem import merge_heads
from .parts import at_queries, bind


class SequenceKernel(MatrixKernel, OwnForm):
    r"""Operators in turn: :math:`K(x, y; u) = \int K_2(x, z; T_1 u)\,K_1(z, y; u)\,d\mu(z)`,
    under a mass of one per point.

    Each kernel is taken along the signal that reaches it, so that the chain is exact whatever its
    links depend on. Their projections and pointwise terms are part of K, their biases of the
    offset.

    Args:
        operators: the first is applied first.

    Shape: u (B, N, dim of the first) to (B, M, out_dim of the last), on the last one's output
    points.

    Cost: that of the operators; the definition O(N³) and the memory of each one's kernel.

    Raises:
        DomainError: another measure than counting, pairs, queries on another domain, causal steps,
            and what the operators refuse.

    Example:
        >>> from fredholm.convert import as_operator
        >>> layers = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1, bias=False))
        >>> matrix = as_operator(layers).kernel_matrix(torch.zeros(1, 4, 2))
        >>> torch.allclose(matrix[0, 0, 2, 2], layers[1].weight @ layers[0].weight)
        True
    """

    whole = True
    reads_query = False
    sums = True
    forms = OWN_FIRST

    def __init__(self, operators: Sequence[IntegralOperator]):
        super().__init__(1, operators[0].dim, operators[-1].out_dim)
        self.operators = nn.ModuleList(operators)

    # --- the definition ---------------------------------------------------------------------------

    def matrix(self, problem: Problem) -> Float[Tensor, "b 1 q k o i"]:
        matrix = self._composed(problem).matrix
        matrix = matrix.permute(0, 1, 3, 2, 4)
        return at_queries(matrix[:, None], problem)

    def offset(self, problem: Problem) -> Tensor:
        offset = self._composed(problem).offset
        return at_queries(offset[:, None], problem)

    def _composed(self, problem: Problem) -> AffineMap:
        """Return the whole chain as one affine map."""
        u = problem.uy[:, 0]
        chain = None
        for operator, domain in self._links(problem_domain(problem)):
            link = affine_map(operator, u, domain)
            if chain is None:
                chain = link
            else:
                matrix = torch.einsum("bqozc,bzcki->bqoki", link.matrix, chain.matrix)
                moved = torch.einsum("bqozc,bzc->bqo", link.matrix, chain.offset)
                offset = moved + link.offset
                chain = AffineMap(matrix, offset)
            u = operator(u, domain)
        assert chain is not None
        return chain

    # --- as the layers compute it -----------------------------------------------------------------

    def evaluates(self, layout: Layout) -> bool:
        return True

    def evaluate(self, problem: Problem) -> Tensor:
        u = problem.uy.squeeze(1)
        for operator, domain in self._links(problem_domain(problem)):
            u = operator(u, domain)
        return u[:, None]

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        if layout.given:
            raise DomainError(
                "a sequence of layers has its output where they put it; leave query and "
                "query_domain out"
            )
        if layout.stepping:
            raise DomainError(
                "a sequence of layers has no causal step of its own; step the operators in "
                "operator.kernel.operators one after the other"
            )
        if layout.measure != "counting" or layout.pairs:
            got = "pairs" if layout.pairs else f"the measure {layout.measure!r}"
            raise DomainError(
                f"a sequence of layers: expected a mass of one per point and no pairs, got {got}; "
                "build the domain with measure='counting', without pairs"
            )

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        domains = []
        for operator in self.operators:
            kernel: Any = operator.kernel
            domain = kernel.default_domain(n, device=device, dtype=dtype)
            domains.append(domain)
        # One causal layer makes the chain causal, and its points are taken.
        causal = [domain for domain in domains if domain.causal]
        domain = (causal or domains)[0]

        # Kernels compose by a sum over the points between them: a mass of one per point.
        masses = torch.ones(n, device=device, dtype=dtype)
        return Domain(
            domain.positions,
            masses,
            causal=bool(causal),
            shape=domain.shape,
            kind="counting",
        )

    def small_domain(self) -> Domain:
        """Return the smallest grid on which every layer has an output."""
        first = self.operators[0].kernel
        if not isinstance(first, LatticeKernel | SequenceKernel):
            return super().small_domain()
        axes = len(first.small_domain().shape or ())
        for n in range(4, 1000):
            extents = range(n, n + axes)
            domain = Domain.grid(*extents, measure="counting")
            try:
                for operator, place in self._links(domain):
                    operator.kernel.check(Layout.of(place))
            except DomainError:
                continue
            return domain
        raise DomainError("no grid of less than a thousand points along each axis fits the layers")

    def output_domain(self, domain: Domain) -> Domain | None:
        out = None
        for operator, place in self._links(domain):
            out = operator.kernel.output_domain(place) or out
        return out

    def _links(self, domain: Domain) -> Iterator[tuple[IntegralOperator, Domain]]:
        """Yield each operator and the domain that it reads."""
        for operator in self.operators:
            assert isinstance(operator, IntegralOperator)
            yield operator, domain
            domain = operator.kernel.output_domain(domain) or domain


def problem_domain(problem: Problem) -> Domain:
    """Return the domain of a problem's keys, with a mass of one per point."""
    complete = problem.parent or problem
    layout = complete.layout
    q = complete.quadrature
    positions = complete.y
    if positions.shape[0] == 1:
        positions = positions[0]
    masses = torch.ones_like(q.mass[0])
    return Domain(
        positions,
        masses,
        q.valid,
        None,
        layout.causal,
        layout.keys,
        "counting",
    )


class AffineMap(NamedTuple):
    """An affine map of a signal: its matrix (B, Nq, o, Nk, i), masses included, and its offset
    (B, Nq, o).
    """

    matrix: Tensor
    offset: Tensor


def affine_map(operator: IntegralOperator, u: Tensor, domain: Domain) -> AffineMap:
    """Return an operator with its kernel at u, its projection and its pointwise term as an affine
    map.
    """
    problem = operator.problem(u, domain)
    kernel = operator.kernel
    # (B, H, Nq, Nk, d_out, d_in): one matrix per head and pair, masses included.
    weights = problem.quadrature.weights()
    dense = kernel.matrix(problem) * weights[..., None, None]
    dense = dense.to(u.dtype)
    if kernel.whole:
        # All heads read all features; their outputs lie one after the other.
        matrix = dense.permute(0, 2, 1, 4, 3, 5)
        matrix = matrix.flatten(2, 3)
    else:
        # A head reads its own slice of the features: the matrix is block diagonal.
        same_head = torch.eye(operator.heads, dtype=u.dtype, device=u.device)
        matrix = torch.einsum("bhqkoi,hg->bqhokgi", dense, same_head)
        matrix = matrix.flatten(2, 3).flatten(4, 5)

    offset = kernel.offset(problem)
    if offset is None:
        offset = u.new_zeros(())
    shape = (
        u.shape[0],
        operator.heads,
        matrix.shape[1],
        kernel.d_out,
    )
    shift = merge_heads(offset.expand(shape))

    if operator.projection is not None:
        matrix = torch.einsum("po,bqoki->bqpki", operator.projection.weight, matrix)
        shift = operator.projection(shift)
    if operator.residual is not None:
        same_point = torch.eye(u.shape[1], dtype=u.dtype, device=u.device)
        pointwise = torch.einsum("qk,oi->qoki", same_point, operator.residual.weight)
        matrix = matrix + pointwise
    if problem.real is not None:
        # Outputs at padding are zero.
        matrix = matrix * problem.real[..., None, None, None]
        shift = shift * problem.real[..., None]
    return AffineMap(matrix, shift)


def _on_grid(layer: nn.Module) -> bool:
    """Return whether a layer takes images, (B, C, *grid), instead of points, (B, N, dim)."""
    if isinstance(layer, nn.Sequential):
        return _on_grid(_first(layer))
    return find_converter(layer).call is call_on_grid


def _layers(module: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """Return the layers that do something, by name."""
    layers = []
    for name, layer in module.named_children():
        if type(layer) is not nn.Identity:
            layers.append((name, layer))
    if not layers:
        raise ConversionError(f"{type(module).__name__} has no layers to convert")
    return layers


def _first(module: nn.Sequential) -> nn.Module:
    """Return the first layer that does something."""
    _, layer = _layers(module)[0]
    return layer


def _call(layer: nn.Sequential, u: Tensor, domain: Domain) -> Tensor:
    """Return the layers' output at features u (B, N, dim), as the probe compares it with the
    operator's.
    """
    if _on_grid(layer):
        return call_on_grid(layer, u, domain)
    out = layer(u)
    # A recurrence at the end returns its output and its last state.
    if isinstance(out, Tensor):
        return out
    return out[0]


@register_converter("torch.nn.modules.container.Sequential", call=_call)
def sequence(module: nn.Sequential, *, dim: int | None = None) -> IntegralOperator:
    """Convert layers in turn, each convertible: convolutions and poolings, or layers that take
    points with the features last (linear layers, timm's attention, layers of your own), at the end
    perhaps a recurrence with ``batch_first=True``. ``dim`` is the number of channels where the
    first layer does not know it.
    """
    layers = _layers(module)
    last = layers[-1][1]
    width = dim
    operators: list[IntegralOperator] = []
    for name, layer in layers:
        try:
            _check(layer, module, last=layer is last)
            options: dict[str, Any] = {}
            if _takes_width(layer):
                options["dim"] = width
            operator = as_operator(layer, probe=False, **options)
        except ConversionError as error:
            raise ConversionError(f"{type(module).__name__}, layer {name!r}: {error}") from error
        operators.append(operator)
        width = operator.out_dim
    for before, after in pairwise(operators):
        if before.out_dim != after.dim:
            got = f"{before.out_dim} features into {after.dim}"
            raise refuse(module, got, "widths that fit")
    return bind(SequenceKernel(operators))


def _check(layer: nn.Module, module: nn.Sequential, *, last: bool) -> None:
    """Raise ConversionError for a layer that a Sequential cannot call, or whose output it cannot
    pass on.
    """
    if isinstance(layer, nn.RNNBase):
        if not (last and layer.batch_first):
            got = f"batch_first={layer.batch_first}" if last else "before another layer"
            raise refuse(layer, got, "a recurrence at the end, with batch_first=True")
    elif not isinstance(layer, nn.Sequential):
        call = find_converter(layer).call
        if call not in (call_on_grid, call_on_points):
            raise refuse(layer, "inside a Sequential", "layers that are called with one tensor")

    first = _first(module)
    if _on_grid(layer) != _on_grid(first):
        raise refuse(
            module,
            f"{type(layer).__name__} after {type(first).__name__}",
            "layers that agree where the features are, on dimension 1 (convolutions, pooling) or "
            "the last one",
        )


def _takes_width(layer: nn.Module) -> bool:
    """Return whether a layer does not know its channels: pooling, or a sequence that begins with
    it.
    """
    if isinstance(layer, nn.Sequential):
        return _takes_width(_first(layer))
    return type(layer).__module__ == "torch.nn.modules.pooling"
