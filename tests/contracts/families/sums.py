"""Sums of operators: attention with a depthwise convolution on a line, and two attentions on any
domain, including pairs per head.
"""

from __future__ import annotations

import torch

from fredholm.domain import Domain

from ..cases import HEADS, POINTS, OperatorCase, SoftmaxCase


class WithConvolution(OperatorCase):
    """A regular line, with and without a causal order."""

    plain = "lattice"
    cross = False
    permutes = False
    invariant = frozenset({"kernel.parts.0.kernel.key.bias"})

    def domains(self) -> dict[str, Domain]:
        found = self.standard_domains() | self.padded_grids()
        masses = torch.linspace(0.3, 1.2, POINTS, dtype=torch.float64)
        served = ("lattice", "causal", "padded line", "causal padded line", "causal gaps")
        gaps = found["causal gaps"]
        return {name: found[name] for name in served} | {
            "causal shared": gaps.replace(valid=gaps.valid[:1]),
            "masses": found["lattice"].with_masses(masses),
            "causal masses": found["causal"].with_masses(masses),
        }

    def refused(self) -> dict[str, Domain]:
        found = {n: d for n, d in self.standard_domains().items() if d.shape is None}
        bias = torch.zeros(1, HEADS, POINTS, POINTS).double()
        return found | {"bias": Domain.line(POINTS, dtype=torch.float64).replace(pairs=bias)}


class TwoAttentions(SoftmaxCase):
    invariant = frozenset({"kernel.parts.0.kernel.key.bias"})


CONVOLUTION = {"name": "convolution", "depthwise": True, "taps": 3}
LUNA = {"name": "luna", "channels": 2, "directions": 2, "hidden": 4}
CASES = [
    TwoAttentions("sum", parts=["softmax", LUNA]),
    WithConvolution("sum", "sum-convolution", parts=["softmax", CONVOLUTION]),
]
