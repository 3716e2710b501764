"""Forms that evaluate every pair: this rank's queries meet the keys of all ranks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...forms.blocks import by_query_blocks
from ...forms.dense import Dense
from ...forms.fused import Fused
from ...forms.keys import KeyForm, KeyRing
from ...forms.quadratic import Quadratic
from ...forms.separable import expanded
from ...forms.weights import WeightBlocks
from ...integral.capabilities import (
    Decaying,
    Separable,
    SoftmaxScores,
    WeightedValue,
    Windowed,
)
from ...integral.contract import Kernel, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...ops.attention import attention_part, finished, joined
from ...ops.linear_attention import guarded, over_new_factor
from .. import Shards, largest
from ..exchange import Exchange, register_exchange
from .keys import Parts, all_keys, ring
from .moments import features_refusal

NUMBERS_PER_PAIR = 4
"""Numbers in memory per pair: scores, weights, and the two that their gradient keeps."""


@register_exchange(KeyRing, Kernel)
class KeysInTurn(Exchange):
    """The keys of one rank after another; their integrals add up."""

    passes = "a ring of the ranks' keys"

    def respond(
        self,
        form: KeyForm,
        kernel: Kernel,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        def respond(p: Problem) -> Tensor:
            keys = form.keys(kernel, p.y, p.uy)
            return form.integrate(kernel, p, keys)

        total = ring(problem, shards, respond)
        return with_offset(total, kernel, problem)


@register_exchange(Dense, Kernel)
class MatrixInTurn(KeysInTurn):
    """The keys in turn, for a kernel's matrix, whose entries must depend on two points alone."""

    def refuses(
        self,
        form: Dense,
        kernel: Kernel,
        facts: Facts,
    ) -> str | None:
        if kernel.pairwise:
            return None
        return "its matrix depends on all pairs at once, which no rank has"


@register_exchange(Fused, SoftmaxScores)
class SoftmaxInTurn(Exchange):
    """The keys of one rank after another, with the running normaliser of softmax."""

    passes = KeysInTurn.passes

    def respond(
        self,
        form: Fused,
        kernel: SoftmaxScores,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        def respond(p: Problem) -> Tensor:
            return by_query_blocks(
                _softmax_part,
                kernel,
                p,
                NUMBERS_PER_PAIR,
                form.strategy.memory,
            )

        part = ring(problem, shards, respond, _join)
        out = finished(part)
        return with_offset(out, kernel, problem)


def _softmax_part(kernel: SoftmaxScores, p: Problem) -> Tensor:
    """Return numerator, denominator and largest score over the keys of one rank."""
    key = kernel.keys(p.y, p.uy)
    value = kernel.values(p.y, p.uy)
    query = kernel.queries(p.x, p.ux)
    return attention_part(query, key, value, p.quadrature)


def _join(a: Parts, b: Parts) -> Parts:
    """Join two parts at the larger of their largest scores."""
    (left,) = a
    (right,) = b
    return (joined(left, right),)


@register_exchange(WeightBlocks, WeightedValue)
class KeysGathered(Exchange):
    """All keys at every rank, for weights that depend on all of them at once: O(N) memory."""

    passes = "all keys, gathered"

    def refuses(
        self,
        form: WeightBlocks,
        kernel: Kernel,
        facts: Facts,
    ) -> str | None:
        if facts.layout.pairs and not kernel.rowwise:
            return "its weights may depend on all pairs at once, which no rank has"
        return None

    def respond(
        self,
        form: WeightBlocks,
        kernel: WeightedValue,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        rows = all_keys(problem, shards)
        out = form.integrate(kernel, rows, {})
        return with_offset(out, kernel, rows)


@register_exchange(Quadratic, Separable)
class ProductsInTurn(Exchange):
    """Inner products of features with the keys of one rank after another."""

    passes = KeysInTurn.passes

    def refuses(
        self,
        form: Quadratic,
        kernel: Separable,
        facts: Facts,
    ) -> str | None:
        """Return why the keys cannot come one rank at a time for this kernel, or None.

        A rank evaluates its queries against one rank's keys without seeing any other point. So the
        weight of a pair must depend on its two points alone, and the features of a key on that key
        alone.
        """
        if isinstance(kernel, Windowed) and kernel.window is not None:
            return "with a window the weight of a pair depends on the points before its query"
        if isinstance(kernel, Decaying) and kernel.fades:
            return "with a decay the weight of a pair depends on the points between its two ends"
        return features_refusal(kernel, form.strategy)

    def respond(
        self,
        form: Quadratic,
        kernel: Separable,
        problem: Problem,
        shards: Shards,
    ) -> Tensor:
        # All ranks divide their features by the same e^shift.
        valid = problem.quadrature.valid
        _, shift = kernel.stable_key_features(problem.y, problem.uy, valid)
        if shift is not None:
            shift = largest(shift, shards)

        def block(kernel: Separable, part: Problem) -> Tensor:
            return products(kernel, part, shift)

        def respond(p: Problem) -> Tensor:
            return by_query_blocks(block, kernel, p, NUMBERS_PER_PAIR, None)

        sums = ring(problem, shards, respond, added)
        out = divided(sums, shift, kernel.floor)
        response = expanded(kernel, problem, out)
        return with_offset(response, kernel, problem)


def products(
    kernel: Separable,
    p: Problem,
    shift: Tensor | None,
) -> Tensor:
    """Return the sums over one rank's keys that the response is divided from, (B, H, Nq, c + 2).

    The columns are: weighted inner products of features times values (c); their sum, where the
    kernel has a denominator (1); the largest feature that the query sees (1).
    """
    has_mass = p.quadrature.mass > 0
    key, own = kernel.stable_key_features(p.y, p.uy, has_mass, shift)
    if own is not None and shift is not None:
        ratio = over_new_factor(own, shift)
        key = key * ratio.to(key.dtype)
    value = kernel.values(p.y, p.uy)
    if kernel.floor is not None:
        value = F.pad(value, (0, 1), value=1.0)

    # (B, H, Nq, n): all pairs of a block of queries and one rank's keys.
    query = kernel.stable_query_features(p.x, p.ux)
    pairs = query @ key.mT
    weights = p.quadrature.weights()
    integral = (pairs * weights) @ value.to(pairs.dtype)

    # The largest feature among the keys that each query sees, (B, H, Nq, 1).
    of_key = key.detach().amax(-1)[:, :, None]
    seen = torch.where(weights > 0, of_key, 0.0)
    size = seen.amax(-1, keepdim=True).to(integral.dtype)
    size = size.expand(*integral.shape[:-1], 1)
    return torch.cat([integral, size], -1)


def added(a: Parts, b: Parts) -> Parts:
    """Combine :func:`products` of two ranks, a tensor (B, H, Nq, c + 2) each: add all columns but
    the last, and keep the larger of the last, the largest feature.
    """
    (left,) = a
    (right,) = b
    sums = left[..., :-1] + right[..., :-1]
    most = torch.maximum(left[..., -1:], right[..., -1:])
    return (torch.cat([sums, most], -1),)


def divided(
    out: Tensor,
    shift: Tensor | None,
    floor: float | None,
) -> Tensor:
    """Return the response from :func:`products` of all keys, (B, H, Nq, c).

    With stabilised features the floor of the denominator is relative to the largest feature that
    the query sees: that of a later key may be larger by many orders of magnitude.
    """
    size = out[..., -1:].detach()
    integral = out[..., :-1]
    if floor is None:
        return integral

    least: float | Tensor = floor
    if shift is not None:
        # Above float32's smallest normal number, so that the quotient stays finite.
        least = (floor * size).clamp_min(1e-36)
    denominator = guarded(integral[..., -1:], least)
    return integral[..., :-1] / denominator
