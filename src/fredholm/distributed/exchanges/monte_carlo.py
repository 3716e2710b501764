"""Monte Carlo: keys drawn from every rank, or the anchors of the whole domain."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...forms.monte_carlo.anchors import Anchors, anchor_keys, check_count, with_anchors
from ...forms.monte_carlo.clusters import AnchorKeys, exact_response
from ...forms.monte_carlo.drawn import SampledKeys, proposal_of
from ...integral.contract import Kernel, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from .. import Shards, concatenated, summed
from ..exchange import Exchange, register_exchange
from .keys import ring


@register_exchange(SampledKeys, Kernel)
class DrawsByRank(Exchange):
    """Each query draws from the keys of one rank after another.

    From each rank it draws as many as that rank's share of the points. Each part of the integral is
    then estimated without bias, and so is their sum.
    """

    passes = "a ring of the ranks' keys"

    def refuses(
        self,
        form: SampledKeys,
        kernel: Kernel,
        facts: Facts,
    ) -> str | None:
        if proposal_of(kernel) is None:
            return None
        return "its proposal learns from draws among all keys; leave add_proposal out"

    def respond(
        self,
        form: SampledKeys,
        kernel: Kernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        options = form.strategy
        # The points of the complete domain, without the placeholders of ranks that own none.
        total = len(shards.kept)
        check_count(options.samples, total)

        def respond(p: Problem) -> Tensor:
            """Estimate the integral over the keys of one rank; the ring adds the estimates."""
            keys = p.uy.shape[2]
            share = max(1, round(options.samples * keys / total))
            part = type(form)(replace(options, samples=share))
            proposal = part.proposal(kernel, p)
            samples = part.draw(p, proposal)
            return part.estimated(kernel, p, samples)

        estimate = ring(problem, shards, respond)
        return with_offset(estimate, kernel, problem)


@register_exchange(AnchorKeys, Kernel)
class AnchorsOfTheWhole(Exchange):
    """The anchors of the complete domain, chosen from all positions and masses.

    Of the features, only those at the anchors are sent.
    """

    passes = "positions and masses, gathered, and the anchors' features"

    def respond(
        self,
        form: AnchorKeys,
        kernel: Kernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        q = problem.quadrature
        samples = form.strategy.samples
        given = None
        if isinstance(form.strategy.anchors, Anchors):
            given = form.strategy.anchors
        else:
            check_count(samples, len(shards.kept))

        # Positions and masses of the whole domain, without padding.
        kept = torch.tensor(shards.kept, device=problem.y.device)
        y = concatenated(problem.y, shards, 1)[:, kept]
        mass = concatenated(q.mass, shards, 1)[:, kept]

        # Within one domain a key's time is its place.
        time = None
        if q.key_time is not None:
            time = kept[None].to(q.key_time.dtype)
            if problem.layout.cross:
                time = concatenated(q.key_time, shards, 1)[:, kept]
        all_keys = replace(
            q,
            mass=mass,
            key_time=time,
            valid=None,
            triangular=False,
        )
        rows = replace(problem, y=y, quadrature=all_keys)
        index, quadrature = anchor_keys(rows, given, samples)

        # Each anchor lies on one rank; the others add zeros to its features.
        own_index = kept[index] - shards.start
        uy = summed(_own_rows(problem.uy, own_index), shards)
        part = with_anchors(rows, index, quadrature, uy)
        return exact_response(kernel, part)


def _own_rows(u: Tensor, index: Tensor) -> Tensor:
    """Return the rows ``index`` (1 | B, S) of u (B, H, n, d), zeros where they are outside of
    it."""
    batch, heads, n, channels = u.shape
    index = index.expand(batch, -1)
    is_here = (index >= 0) & (index < n)

    # Rows of other ranks read some row of this one, which is not used.
    place = index.clamp(0, n - 1)[:, None, :, None]
    rows = u.gather(2, place.expand(-1, heads, -1, channels))
    return torch.where(is_here[:, None, :, None], rows, 0.0)
