"""Small problems in the form of a call: what the Triton kernels of linear attention are compared
on.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from ...domain import Domain
from ...quadrature import Quadrature
from .. import comparison
from ..comparison import Form, Random, Sample
from ..feature_map import Bank


def form_of(columns: int, value: Tensor, quadrature: Quadrature, floor: float | None) -> Form:
    """Columns of queries, order, whether there is a denominator, and columns of values."""
    causal, normalised = quadrature.triangular, floor is not None
    return ("causal", causal), ("normalised", normalised), ("r", columns), ("c", value.shape[3])


def form_of_banks(query: Bank, key: Bank, activation: str, nonneg: bool) -> Form:
    """What the networks are, and whether heads share them."""
    shapes = ("query bank", tuple(query.readout.shape)), ("key bank", tuple(key.readout.shape))
    return ("activation", activation), ("nonneg", nonneg), *shapes


def sample_given(normal: Random, form: dict[str, Any]) -> Sample:
    """Features given: positive ones, so that no denominator is near zero."""
    n, r = comparison.POINTS, form["r"]
    inputs = [normal(1, 2, n, r).abs(), normal(1, 2, n, r).abs(), normal(1, 2, n, form["c"])]

    def call(backend: str, query: Tensor, key: Tensor, value: Tensor, mass: Tensor):
        from .chunked import linear_attention

        quadrature = _quadrature(form, mass)
        floor = 1e-6 if form["normalised"] else None
        return (linear_attention(query, key, value, quadrature, floor=floor, backend=backend),)

    return Sample([*inputs, normal(1, n).abs()], call)


def sample_banked(normal: Random, form: dict[str, Any]) -> Sample:
    """Features that a bank makes of scalars, as many heads as it has sets and two at least."""
    n, m = comparison.POINTS, form["r"]
    shapes = form["query bank"], form["key bank"]
    heads = max(2, *(shape[0] for shape in shapes))
    inputs = [normal(1, heads, m, n), normal(1, heads, m, n), normal(1, heads, n, form["c"])]
    banks = []
    for sets, networks, outputs, hidden in shapes:
        unit = (sets, networks, hidden)
        # positive readouts: features without a floor at zero must not cancel in a denominator
        banks += [normal(*unit), normal(*unit), normal(sets, networks, outputs, hidden).abs()]
        banks += [normal(sets, networks, outputs).abs()]

    def call(backend: str, query: Tensor, key: Tensor, value: Tensor, mass: Tensor, *parts: Tensor):
        from .banked import banked_attention

        options: Any = {name: form[name] for name in ("activation", "nonneg")}
        options["floor"] = 1e-6 if form["normalised"] else None
        sides = Bank(*parts[:4]), Bank(*parts[4:])
        quadrature = _quadrature(form, mass)
        out = banked_attention(query, key, value, quadrature, *sides, backend=backend, **options)
        return (out,)

    return Sample([*inputs, normal(1, n).abs(), *banks], call)


def _quadrature(form: dict[str, Any], mass: Tensor) -> Quadrature:
    line = Domain.line(mass.shape[1], causal=form["causal"], device=mass.device, dtype=mass.dtype)
    return replace(line.quadrature(), mass=mass, equal=False)
