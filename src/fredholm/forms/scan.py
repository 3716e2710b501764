"""A scan over the points, where the response has a state of fixed size."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..distributed import Shards, gathered
from ..domain import Domain
from ..integral.capabilities import ScanExchange, StateScan
from ..integral.contract import Form, Kernel
from ..integral.exchange import Exchange
from ..integral.problem import Facts, Problem
from ..integral.strategy import Scan
from ..ops.scan import scan, transition_scan


class StatesScan(Form):
    """O(N): all states of the kernel's recurrence, then the outputs."""

    word = Scan
    name = "scan over the states"
    reason = "the response has a state of fixed size"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not (isinstance(kernel, StateScan) and kernel.scans(facts.layout)):
            return f"it needs {Scan.needs}; use {Scan.instead} instead"
        if facts.layout.sharded and not isinstance(kernel, ScanExchange):
            return "the kernel's scan needs all points in one process (ScanExchange)"
        return None

    def respond(self, kernel: Any, problem: Problem) -> Tensor:
        return kernel.scan(problem)

    def exchange(self, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
        return kernel.scan_part(problem, shards, partial(scan_between, shards))

    def sent(self, kernel: Any, domain: Domain, batch: int, crossed: bool) -> Exchange:
        return Exchange("an exclusive scan of the ranks' states", kernel.scan_sends(domain, batch))


def scan_between(
    shards: Shards, transition: Tensor, drive: Tensor, real: Tensor | None = None
) -> Tensor:
    """h_t = A_t h_(t-1) + b_t over all ranks' points, the states at this rank's: what the ranks
    before leave behind enters with its first point.

    Args:
        shards: the ranks.
        transition: A, a diagonal (#B, #n, *S) or matrices (#B, #n, S, S).
        drive: b, (B, n, *S).
        real: points that are a step, (#B, n); None for all.

    Cost: two scans of n points; sends its last state and the product of its transitions to each
    other rank.
    """
    dense = transition.dim() > drive.dim()
    run, apply = (transition_scan, _times) if dense else (scan, torch.mul)
    shape = (*drive.shape, drive.shape[-1]) if dense else drive.shape
    transition = transition.expand(shape)
    if real is not None:
        still = _identity(transition, dense)
        shown = real.view(*real.shape, *[1] * (drive.dim() - 2))
        drive = torch.where(shown, drive, 0.0)
        transition = torch.where(shown[..., None] if dense else shown, transition, still)
    last = run(transition, drive)[:, -1]
    products = _product(transition) if dense else transition.prod(1)
    ends, products = _everyones(last, shards), _everyones(products, shards)
    # the first rank has the same messages in its graph, which adds up nothing of them
    state = apply(products[:0].sum(0), ends[:0].sum(0))
    for product, end in zip(products[: shards.rank], ends[: shards.rank]):
        state = apply(product, state) + end
    entering = drive[:, :1] + apply(transition[:, 0], state)[:, None]
    return run(transition, torch.cat([entering, drive[:, 1:]], 1))


def _times(matrix: Tensor, state: Tensor) -> Tensor:
    return (matrix @ state[..., None])[..., 0]


def _identity(like: Tensor, dense: bool) -> Tensor:
    if dense:
        return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)
    return torch.ones((), dtype=like.dtype, device=like.device)


def _product(matrices: Tensor) -> Tensor:
    """A_n ... A_1, (B, S, S), by halves: log2 n products of all."""
    while matrices.shape[1] > 1:
        even = matrices.shape[1] // 2 * 2
        pairs = matrices[:, 1:even:2] @ matrices[:, 0:even:2]
        matrices = torch.cat([pairs, matrices[:, even:]], 1)
    return matrices[:, 0]


def _everyones(x: Tensor, shards: Shards) -> Tensor:
    if x.is_complex():
        return torch.view_as_complex(gathered(torch.view_as_real(x.contiguous()), shards))
    return gathered(x.contiguous(), shards)
