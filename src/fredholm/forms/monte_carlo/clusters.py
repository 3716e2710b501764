"""The integral from anchors: clusters of positions stand for all keys."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...distributed import Shards, concatenated, summed
from ...domain import Domain
from ...errors import DomainError
from ...integral.capabilities import OwnForm
from ...integral.contract import Form, Kernel, choose
from ...integral.exchange import Exchange, ring_numbers
from ...integral.problem import Facts, Problem
from ...integral.strategy import EXACT
from .anchors import Anchors, anchor_keys, at_anchors, check_count, with_anchors
from .strategy import MonteCarlo


class AnchorKeys(Form):
    """The kernel's exact form on few points, the same ones for all queries."""

    word = MonteCarlo
    name = "anchors"
    reason = "in evaluation clusters of positions stand for all keys, which is deterministic"
    strategy: MonteCarlo

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        anchors = self.strategy.anchors
        if isinstance(kernel, OwnForm):
            return f"it needs {MonteCarlo.needs}; use {MonteCarlo.instead} instead"
        if facts.training or anchors is False:
            return "anchors are of evaluation, on request"
        if facts.tracing and not isinstance(anchors, Anchors):
            return "traced code cannot make anchors; pass anchors=Anchors.of(domain, samples)"
        if facts.layout.pairs:
            raise DomainError(
                "anchors stand for points that all queries see alike, which pairs forbid; use "
                "anchors=False, or 'exact'"
            )
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return False

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        samples, given = self.strategy.samples, self.strategy.anchors
        check_count(samples, problem.uy.shape[2])
        part = at_anchors(problem, given if isinstance(given, Anchors) else None, samples)
        return _exact(kernel, part)

    def exchange(self, kernel: Kernel, problem: Problem, shards: Shards) -> Tensor:
        """The anchors of the whole, from all positions and masses; features of the anchors alone
        are sent.
        """
        p, q, samples, given = problem, problem.quadrature, self.strategy.samples, None
        check_count(samples, len(shards.kept))
        if isinstance(self.strategy.anchors, Anchors):
            given = self.strategy.anchors
        kept = torch.tensor(shards.kept, device=p.y.device)
        y, mass = (concatenated(x, shards, 1)[:, kept] for x in (p.y, q.mass))
        time = None
        if q.key_time is not None:
            time = kept[None].to(q.key_time.dtype)
            time = concatenated(q.key_time, shards, 1)[:, kept] if p.layout.cross else time
        every = replace(q, mass=mass, key_time=time, valid=None, triangular=False)
        rows = replace(p, y=y, quadrature=every)
        index, quadrature = anchor_keys(rows, given, samples)
        uy = summed(_own_rows(p.uy, kept[index] - shards.start), shards)
        return _exact(kernel, with_anchors(rows, index, quadrature, uy))

    def sent(self, kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
        width = kernel.d_in if kernel.whole else kernel.heads * kernel.d_in
        numbers = ring_numbers(domain, 0, batch, crossed) + batch * width * self.strategy.samples
        return Exchange("positions and masses, gathered, and the anchors' features", numbers)


def _exact(kernel: Kernel, part: Problem) -> Tensor:
    facts = Facts.of(part.layout, part.ux, part.uy, kernel.training)
    return choose(EXACT, kernel, facts).respond(kernel, part)


def _own_rows(u: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (1 | B, S) of u (B, H, n, d), zero where they are not among its n."""
    index = index.expand(u.shape[0], -1)
    mine = (index >= 0) & (index < u.shape[2])
    pick = index.clamp(0, u.shape[2] - 1)[:, None, :, None].expand(-1, u.shape[1], -1, u.shape[-1])
    return torch.where(mine[:, None, :, None], u.gather(2, pick), 0.0)
