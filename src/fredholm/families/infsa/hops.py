"""Hops on a token graph: one, as the kernel is defined, or the truncated Neumann series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ...errors import OptionError
from ...integral import (
    Exact,
    Facts,
    Form,
    Kernel,
    Memory,
    Problem,
    Strategy,
    register_strategy,
)
from ...ops.backend import at_least_single, cast, check_backend, full_precision
from ...ops.tiles import root_of
from ...quadrature import Quadrature
from .capabilities import TokenGraphWeights
from .graph import TokenGraph, activated, sum_of_hops
from .graph.token_graph import row_factor, row_sizes

NEEDS = "a token graph: weights, value_map, tokens, rules and gain (TokenGraphWeights)"


@register_strategy("neumann")
@dataclass(frozen=True)
class Neumann(Strategy):
    r"""Walks of up to ``hops`` hops on a token graph, :math:`\sum_{t=1}^{hops} M^t V u` with M
    of :class:`TokenGraph`.

    One hop is the kernel's definition. More hops give a different response, the truncated series of
    :class:`Resolvent`'s.

    Args:
        hops: longest walk, at least 1.
        backend: of the products with the graph, see :mod:`fredholm.ops.backend`. A causal step
            multiplies one row, and does so in PyTorch with any backend.

    Cost: O(hops·N²) time, O(hops·N) memory with gradients; a causal step O(hops·t).

    Reference: InfSA Eqs. 6, 9, 10.

    Example:
        >>> Neumann(hops=3).exact
        False
    """

    exact: ClassVar[bool] = False
    needs: ClassVar[str] = NEEDS
    instead: ClassVar[str] = "Exact"
    hops: int = 3
    backend: str = "auto"

    def __post_init__(self):
        check_backend(self.backend)
        if self.hops < 1:
            raise OptionError(f"expected walks of one hop or more, got hops={self.hops}")


class OneHop(Form):
    """The kernel's definition, tile by tile: O(N²) time, O(N) memory; a causal step O(t)."""

    word = Exact
    name = "one hop over tiles"
    # What a plan prints is public and stays word for word; affinities are the graph's edges.
    reason = "affinities of inner products, whose norm is divided out after the product"
    strategy: Exact
    steps = True
    triton = True

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        strategy = self.strategy
        graph, value = graph_of(
            kernel,
            problem,
            half=True,
            memory=strategy.memory,
            backend=strategy.backend,
        )
        out = sum_of_hops(graph, value, 1)
        return gained(kernel, out, value)

    def step(
        self,
        kernel: TokenGraphWeights,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return step_hops(
            kernel,
            u,
            quadrature,
            t,
            memory,
            1,
        )


class Hops(Form):
    """Every further hop is one more product with the graph."""

    word = Neumann
    strategy: Neumann
    name = "hops over tiles"
    reason = (
        "one norm a head is divided out after the product, and every further hop is one more "
        "product"
    )
    triton = True

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        # Several hops are another response than the kernel's.
        return False

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        strategy = self.strategy
        graph, value = graph_of(
            kernel,
            problem,
            half=True,
            backend=strategy.backend,
        )
        out = sum_of_hops(graph, value, strategy.hops)
        return gained(kernel, out, value)


class GraphRows(Form):
    """Base of the forms that walk a causal graph point by point, from cached keys."""

    name = "rows of the graph, keys cached"
    reason = "a causal row needs the keys before it and a running norm"
    responds = False
    steps = True
    # A backend is that of products with the graph. A step multiplies one row, in PyTorch, so that a
    # strategy with Triton's products does not refuse it.
    triton = True

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        # Several hops are another response than the kernel's.
        return False


class HopRows(GraphRows):
    """:class:`Hops` point by point: each hop has a cache, O(hops·t)."""

    word = Neumann
    strategy: Neumann

    def step(
        self,
        kernel: TokenGraphWeights,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return step_hops(
            kernel,
            u,
            quadrature,
            t,
            memory,
            self.strategy.hops,
        )


class GraphTokens(NamedTuple):
    """A token graph, and the values of its tokens (B, H, N, d)."""

    graph: TokenGraph
    value: Tensor


def graph_of(
    kernel: TokenGraphWeights,
    problem: Problem,
    *,
    half: bool = False,
    **options: Any,
) -> GraphTokens:
    """Return a problem's graph, with ``options`` of :class:`TokenGraph`, and its tokens' values.

    ``half``: a kernel may multiply tokens of a half precision as they are.
    """
    query, key, value = kernel.tokens(problem.uy)
    low = None
    if half and query.dtype in (torch.bfloat16, torch.float16):
        low = query.dtype
    rules = kernel.rules()
    graph = TokenGraph.of(
        query,
        key,
        problem.quadrature,
        half=low,
        **options,
        **rules,
    )
    return GraphTokens(graph, value)


def gained(kernel: TokenGraphWeights, out: Tensor, value: Tensor) -> Tensor:
    """Return a sum over hops times the kernel's factor, in the values' precision."""
    gain = kernel.gain()
    if gain is not None:
        gain = cast(gain, out.dtype)
        out = out * gain[:, None, None]
    return cast(out, value.dtype)


def step_hops(
    kernel: TokenGraphWeights,
    u: Tensor,
    quadrature: Quadrature,
    t: int,
    memory: Memory,
    hops: int,
) -> tuple[Tensor, Memory]:
    """Answer one causal point. Hop h needs the results of hop h - 1 at all points before, so each
    hop has a cache.
    """
    row, value, after = graph_row(
        kernel,
        u,
        quadrature,
        t,
        memory,
    )
    new = out = value
    with full_precision(u):
        for hop in range(hops):
            name = f"hop{hop}"
            if hop:
                new = value + out
            after[name] = append(memory, name, new)
            out = row @ after[name]
    return gained(kernel, out, u), after


class GraphRow(NamedTuple):
    """One causal point of a token graph.

    Attributes:
        row: row t of M, (B, H, 1, t + 1).
        value: the point's value, (B, H, 1, d).
        memory: keys and norm after the point.
    """

    row: Tensor
    value: Tensor
    memory: Memory


def graph_row(
    kernel: TokenGraphWeights,
    u: Tensor,
    quadrature: Quadrature,
    t: int,
    memory: Memory,
) -> GraphRow:
    """Return row t of M, and the memory after it."""
    dtype = at_least_single(u.dtype)
    query, key, value = kernel.tokens(u)
    query = cast(query, dtype)
    key = cast(key, dtype)
    value = cast(value, dtype)
    rules = kernel.rules()
    view = quadrature.row(t)
    with full_precision(u):
        keys = append(memory, "key", key)
        pairs = activated(query @ keys.mT, rules["activation"])
        if view.density is not None:
            pairs = pairs * cast(view.density, dtype)
        masses = cast(view.mass, dtype)
        size = row_sizes(pairs, masses, rules["norm"])
        before = memory.get("norm", torch.zeros_like(size))

        # The norm of the prefix, and the running total of which it is made. A point without mass
        # does not count.
        mass = masses[:, None, None]
        own_mass = mass[..., -1]
        if rules["norm"] == "rows":
            # The largest row so far, which is also all that the next point needs.
            own_size = torch.where(own_mass > 0, size, 0.0)
            total = torch.maximum(before, own_size)
            norm = total
        else:
            total = before + own_mass * size
            norm = root_of(total)
        scale = view.scale
        if scale is not None:
            scale = cast(scale, dtype)
        decay = cast(rules["decay"], dtype)
        factor = row_factor(norm, scale, decay, rules["eps"])
        row = factor[..., None] * pairs * mass
        after = {"key": keys, "norm": total}
        return GraphRow(row, value, after)


def append(memory: Memory, name: str, new: Tensor) -> Tensor:
    """Return the memory of earlier points with the new one behind them."""
    if name not in memory:
        return new
    return torch.cat([memory[name], new], -2)
