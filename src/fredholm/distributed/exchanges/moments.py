"""Linear attention: each rank sends the moment of its keys to the others, never the keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ...forms.separable import Chunks, SeparableForm, Sums, expanded
from ...integral.capabilities import Decaying, Separable
from ...integral.contract import with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...integral.strategy import Linear
from ...ops.backend import wants_triton
from ...ops.linear_attention import (
    Moment,
    at_scale,
    largest_seen,
    linear_attention_stretch,
    moment_of,
    over_new_factor,
)
from ...quadrature import Quadrature
from .. import Shards, gathered, largest, summed
from ..exchange import Exchange, register_exchange
from ..part import before_this


def features_refusal(kernel: Separable, strategy: Linear) -> str | None:
    """Return why a rank cannot make the features of its own points, or None."""
    if wants_triton(strategy.backend):
        return "Triton's kernels hold no sums between ranks; use backend='auto'"
    if not kernel.pointwise:
        return "the features of a point depend on the other points of a call"
    return None


@register_exchange(Sums, Separable)
class MomentSummed(Exchange):
    """One moment of all keys, summed over the ranks."""

    passes = "one moment, summed"

    def refuses(
        self,
        form: SeparableForm,
        kernel: Separable,
        facts: Facts,
    ) -> str | None:
        return features_refusal(kernel, form.strategy)

    def respond(
        self,
        form: Sums,
        kernel: Separable,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        p = problem
        all_points = slice(None)
        key, _ = _common_key_features(kernel, p, shards)
        moment = Moment(p.quadrature, kernel.floor)
        moment.add(all_points, key, kernel.values(p.y, p.uy))

        # Numerator and denominator travel in one message.
        columns = [x.shape[-1] for x in moment.sums]
        sums = summed(torch.cat(moment.sums, -1), shards)
        moment.sums = list(sums.split(columns, -1))

        query = kernel.stable_query_features(p.x, p.ux)
        out = moment.respond(all_points, query)
        response = expanded(kernel, p, out)
        return with_offset(response, kernel, p)


@register_exchange(Chunks, Separable)
class MomentsBefore(Exchange):
    """The moments of the ranks before this one, of a causal domain."""

    passes = "moments of the ranks before"

    def refuses(
        self,
        form: SeparableForm,
        kernel: Separable,
        facts: Facts,
    ) -> str | None:
        return features_refusal(kernel, form.strategy)

    def respond(
        self,
        form: Chunks,
        kernel: Separable,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        p = problem
        q = problem.quadrature
        key, shift = _common_key_features(kernel, p, shards)
        query = kernel.stable_query_features(p.x, p.ux)
        value = kernel.values(p.y, p.uy)
        decay = None
        if isinstance(kernel, Decaying) and kernel.fades:
            rates = kernel.rates(p.y, p.uy)
            decay = q.exponents(rates, _time_before(q, shards))
        if shift is not None:
            running = _running_largest(key, decay, shards)
            query = at_scale(query, running)
        if decay is None:
            own = moment_of(key, value, q.mass, kernel.floor)
            before = before_this(own, shards)
        else:
            before = _faded_moment_before(
                key,
                value,
                q.mass,
                decay,
                kernel.floor,
                shards,
            )
        own_points = Quadrature(q.mass, q.scale, decay=decay)
        out, _ = linear_attention_stretch(
            query,
            key,
            value,
            own_points,
            before,
            floor=kernel.floor,
            chunk=form.strategy.chunk,
        )
        response = expanded(kernel, p, out)
        return with_offset(response, kernel, p)


class _KeyFeatures(NamedTuple):
    """Features of this rank's keys.

    Attributes:
        features: ψ over e^c.
        shift: c, the same on all ranks, so that their moments add up; None where nothing was
            divided.
    """

    features: Tensor
    shift: Tensor | None


def _common_key_features(kernel: Separable, problem: Problem, shards: Shards) -> _KeyFeatures:
    p = problem
    key, own = kernel.stable_key_features(p.y, p.uy, p.quadrature.valid)
    if own is None:
        return _KeyFeatures(key, None)
    shift = largest(own, shards)
    ratio = over_new_factor(own, shift)
    return _KeyFeatures(key * ratio.to(key.dtype), shift)


def _running_largest(
    key: Tensor,
    decay: Tensor | None,
    shards: Shards,
) -> Tensor:
    """Return the largest feature of the keys up to each point, of all ranks.

    With a decay, the largest one of the ranks before has not faded: it is an upper bound.
    """
    here = key.detach().amax(-1)
    every = gathered(here.amax(-1), shards)
    running = largest_seen(here, decay)
    if shards.rank:
        before = every[: shards.rank].amax(0)
        running = torch.maximum(running, before[..., None])
    return running


# --- a past that fades ----------------------------------------------------------------------------


def _time_before(quadrature: Quadrature, shards: Shards) -> Tensor | None:
    """Return the time of the last real point on the ranks before this one, (1 | B,).

    A decay over time needs it for this rank's first point, whose predecessor is on another rank.
    It is -∞ where there is no real point before, and None on a domain without times. Each rank
    sends one number per row to every other rank, and all must call this together.
    """
    time = quadrature.clock
    if time is None:
        return None
    if quadrature.valid is not None:
        time = torch.where(quadrature.valid, time, -torch.inf)
    # Times ascend along a domain, so that the last one is the largest: (P, 1 | B) of P ranks.
    every = gathered(time.amax(-1), shards)

    # The first rank has none before it, and takes the maximum over this row alone.
    first = every.new_full((1, *every.shape[1:]), -torch.inf)
    return torch.cat([first, every[: shards.rank]]).amax(0)


def _faded_moment_before(
    key: Tensor,
    value: Tensor,
    mass: Tensor,
    decay: Tensor,
    floor: float | None,
    shards: Shards,
) -> Tensor:
    """Return the moment of the ranks before this one, faded up to this rank's first point.

    With D_j the exponents of decay up to point j, a rank's moment at its last point n is
    Σ_j e^(D_j - D_n) ψ_j v_jᵀ. Over a later rank it fades by that rank's e^(-D_n).
    """
    exponents = decay.cumsum(-1)
    last = exponents[..., -1:]
    fading = (exponents - last).exp()
    faded_key = key * fading.to(key.dtype)[..., None]
    own = moment_of(faded_key, value, mass, floor)
    gate = (-last).exp()[..., None]
    moments = gathered(own, shards)
    gates = gathered(gate.to(own.dtype), shards)

    # Every rank uses all messages, if only an empty part of them; see Exchange.
    before = moments[:0].sum(0) * gates[:0].sum(0)
    earlier = slice(0, shards.rank)
    for moment, gate in zip(moments[earlier], gates[earlier]):
        before = before * gate + moment
    return before
