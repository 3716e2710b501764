"""A separable kernel where pairs matter: queries share no moment, so every pair is evaluated."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..distributed import Shards, largest
from ..domain import Domain
from ..integral.capabilities import Separable, Windowed
from ..integral.contract import Form, Kernel, Memory, with_offset
from ..integral.exchange import Exchange, Parts, ring
from ..integral.problem import Facts, Layout, Problem
from ..integral.strategy import EXACT, Linear
from ..ops.linear_attention import guarded, over_new_factor
from ..quadrature import Quadrature
from .blocks import by_query_blocks
from .keys import KeyForm, ring_of_keys
from .separable import expanded, key_features, moment_size, query_features, refuses_shards


class Quadratic(Form):
    """The kernel's best exact form: O(N²)."""

    word = Linear
    name = "quadratic form"
    strategy: Linear
    reason = (
        "pair masks, biases and an order across two domains act on pairs, so that no moment serves "
        "all queries"
    )
    steps = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Separable):
            return f"it needs {Linear.needs}; use {Linear.instead} instead"
        layout = facts.layout
        if layout.sharded and isinstance(kernel, Windowed) and kernel.window is not None:
            return "with a window the weights of pairs are a functional of a query's last points"
        if layout.pairs or (layout.causal and layout.cross):
            return refuses_shards(kernel, self.strategy) if layout.sharded else None
        return "one moment of the keys serves all queries"

    def exchange(self, kernel: Any, problem: Problem, shards: Shards) -> Tensor:
        shift = shared_exponent(kernel, problem, shards)

        def respond(p: Problem) -> Tensor:
            return by_query_blocks(
                lambda kernel, part: products(kernel, part, shift), kernel, p, 4, None
            )

        out = divided(ring(problem, shards, respond, added), shift, kernel.floor)
        return with_offset(expanded(kernel, problem, out), kernel, problem)

    def sent(self, kernel: Kernel, domain: Domain, batch: int, crossed: bool) -> Exchange:
        keys = ring_of_keys(kernel, domain, batch, crossed)
        shift = moment_size(kernel, domain, batch).shift
        return Exchange(keys.words, keys.numbers + shift)

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        return _by_pairs(kernel).respond(kernel, problem)

    def step(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return _by_pairs(kernel).step(kernel, x, u, quadrature, t, memory)

    def prefill(
        self, kernel: Kernel, x: Tensor, u: Tensor, quadrature: Quadrature, t: int, memory: Memory
    ) -> tuple[Tensor, Memory]:
        return _by_pairs(kernel).prefill(kernel, x, u, quadrature, t, memory)


def _by_pairs(kernel: Kernel) -> KeyForm:
    """The kernel's best exact form over cached keys that does not refuse it: such a form takes
    pairs of any kind.
    """
    facts = Facts(Layout(pairs=True))
    forms = (kind(EXACT) for kind in kernel.forms if issubclass(kind, KeyForm))
    return next(form for form in forms if form.refuses(kernel, facts) is None)


def shared_exponent(kernel: Any, problem: Problem, shards: Shards) -> Tensor | None:
    """The exponent of the factor that all ranks' key features are divided by, or None."""
    p = problem
    shift = key_features(kernel, p.y, p.uy, p.quadrature.valid)[1]
    return None if shift is None else largest(shift, shards)


def products(kernel: Any, p: Problem, shift: Tensor | None) -> Tensor:
    """Weighted inner products of features times values, their own sum where there is a denominator,
    and the largest feature that each query sees: (B, H, Nq, c + 2).
    """
    key, own = key_features(kernel, p.y, p.uy, p.quadrature.mass > 0, shift)
    if own is not None and shift is not None:
        key = key * over_new_factor(own, shift).to(key.dtype)
    value = kernel.values(p.y, p.uy)
    value = value if kernel.floor is None else F.pad(value, (0, 1), value=1.0)
    pairs = query_features(kernel, p.x, p.ux) @ key.mT
    weights = p.quadrature.weights()
    sums = (pairs * weights) @ value.to(pairs.dtype)
    size = torch.where(weights > 0, key.detach().amax(-1)[:, :, None], 0.0)
    size = size.amax(-1, keepdim=True).to(sums.dtype)
    return torch.cat([sums, size.expand(*sums.shape[:-1], 1)], -1)


def added(a: Parts, b: Parts) -> Parts:
    """What two ranks' keys give together: sums, and the larger of the largest features."""
    largest = torch.maximum(a[0][..., -1:], b[0][..., -1:])
    return (torch.cat([a[0][..., :-1] + b[0][..., :-1], largest], -1),)


def divided(out: Tensor, shift: Tensor | None, floor: float | None) -> Tensor:
    """The response of :func:`products` of all keys, (B, H, Nq, c); the floor of its denominator is
    at the scale of the keys that a query sees, of which a later one may be far above.
    """
    out, size = out[..., :-1], out[..., -1:].detach()
    if floor is None:
        return out
    least = floor if shift is None else (floor * size).clamp_min(1e-36)
    return out[..., :-1] / guarded(out[..., -1:], least)
