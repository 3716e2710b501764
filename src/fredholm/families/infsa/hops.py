"""Hops on a token graph: one, as the kernel is defined, or the truncated Neumann series."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

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
from .graph import NORMS, TokenGraph, activated, sum_of_hops
from .graph.token_graph import row_factor

NEEDS = "a token graph: weights, value_map, tokens, rules and gain (TokenGraphWeights)"


@register_strategy("neumann")
@dataclass(frozen=True)
class Neumann(Strategy):
    r"""Walks of up to ``hops`` hops on a token graph, :math:`\sum_{t=1}^{hops} M^t V u` with M
    of :class:`TokenGraph`.

    One hop is the kernel's definition; more are another response, the truncation of
    :class:`Resolvent`'s.

    Args:
        hops: longest walk, at least 1.
        backend: of the products, see :mod:`fredholm.ops.backend`.

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
            raise OptionError(f"a walk has at least one hop, got hops={self.hops}")


class OneHop(Form):
    """The kernel's definition, tile by tile: O(N²) time, O(N) memory; a causal step O(t)."""

    word = Exact
    name = "one hop over tiles"
    # What a plan prints is public and stays word for word; affinities are the graph's edges.
    reason = "affinities of inner products, whose norm is divided out after the product"
    steps = True
    triton = True

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        options: Any = self.strategy
        graph, value = graph_of(
            kernel, problem, memory=options.memory, backend=options.backend, half=True
        )
        return gained(kernel, sum_of_hops(graph, value, 1), value)

    def step(
        self,
        kernel: TokenGraphWeights,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return step_hops(kernel, u, quadrature, t, memory, 1)


class Hops(Form):
    """Every further hop is one more product with the graph."""

    word = Neumann
    name = "hops over tiles"
    reason = (
        "one norm a head is divided out after the product, and every further hop is one more "
        "product"
    )
    triton = True

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return False  # more hops than one are another response than the kernel's

    def respond(self, kernel: TokenGraphWeights, problem: Problem) -> Tensor:
        options: Any = self.strategy
        graph, value = graph_of(kernel, problem, backend=options.backend, half=True)
        return gained(kernel, sum_of_hops(graph, value, options.hops), value)


class HopRows(Form):
    """The same point by point: each hop has a cache, O(hops·t)."""

    word = Neumann
    name = "rows of the graph, keys cached"
    reason = "a causal row needs the keys before it and a running norm"
    responds = False
    steps = True
    triton = True

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return False

    def step(
        self,
        kernel: TokenGraphWeights,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        options: Any = self.strategy
        return step_hops(kernel, u, quadrature, t, memory, options.hops)


def graph_of(
    kernel: TokenGraphWeights, problem: Problem, *, half: bool = False, **options: Any
) -> tuple[TokenGraph, Tensor]:
    """A problem's graph, with ``options`` of :class:`TokenGraph`, and its tokens' values. ``half``:
    tokens in half precision may be multiplied in it.
    """
    query, key, value = kernel.tokens(problem.uy)
    low = query.dtype if half and query.dtype in (torch.bfloat16, torch.float16) else None
    return TokenGraph.of(
        query, key, problem.quadrature, half=low, **options, **kernel.rules()
    ), value


def gained(kernel: TokenGraphWeights, out: Tensor, value: Tensor) -> Tensor:
    """A sum over hops with the kernel's factor, in the values' precision."""
    gain = kernel.gain()
    out = out if gain is None else out * cast(gain, out.dtype)[:, None, None]
    return cast(out, value.dtype)


def step_hops(
    kernel: TokenGraphWeights, u: Tensor, quadrature: Quadrature, t: int, memory: Memory, hops: int
) -> tuple[Tensor, Memory]:
    """One causal point: hop h needs what hop h - 1 made of all points before, so each hop has a
    cache.
    """
    row, value, after = graph_row(kernel, u, quadrature, t, memory)
    out = None
    with full_precision(u):
        for hop in range(hops):
            new = value if out is None else value + out
            after[f"hop{hop}"] = _append(memory, f"hop{hop}", new)
            out = row @ after[f"hop{hop}"]
    assert out is not None  # a walk has at least one hop
    return gained(kernel, out, u), after


def graph_row(
    kernel: TokenGraphWeights, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
) -> tuple[Tensor, Tensor, Memory]:
    """Row t of M, (B, H, 1, t + 1), the point's value (B, H, 1, d), and the memory's keys and norm
    after it.
    """
    dtype = at_least_single(u.dtype)
    query, key, value = (cast(x, dtype) for x in kernel.tokens(u))
    rules, view = kernel.rules(), quadrature.row(t)
    with full_precision(u):
        keys = _append(memory, "key", key)
        pairs = activated(query @ keys.mT, rules["activation"])
        pairs = pairs if view.density is None else pairs * cast(view.density, dtype)
        mass = cast(view.mass, dtype)[:, None, None]
        size = ((pairs.square() if NORMS[rules["norm"]] == "squares" else pairs.abs()) * mass).sum(
            -1
        )
        before = memory["norm"] if memory else torch.zeros_like(size)
        here = mass[..., -1]  # the mass of the point itself
        if rules["norm"] == "rows":
            norm = total = torch.maximum(before, torch.where(here > 0, size, 0.0))
        else:
            total = before + here * size
            norm = root_of(total)
        scale = None if view.scale is None else cast(view.scale, dtype)
        factor = row_factor(norm, scale, cast(rules["decay"], dtype), rules["eps"])
        return factor[..., None] * pairs * mass, value, {"key": keys, "norm": total}


def _append(memory: Memory, name: str, new: Tensor) -> Tensor:
    return torch.cat([memory[name], new], -2) if name in memory else new
