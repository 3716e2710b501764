"""Converted convolutions: on a line with groups, bias and dilation, and on a periodic grid with one
channel per head.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain

from ..cases import BATCH, HEADS, POINTS, OperatorCase


def as_integral(layer: nn.Module) -> nn.Module:
    """The layer's kernel against any measure: the layer itself adds up points of mass one alone."""
    operator = as_operator(layer.double())
    operator.layer = None
    return operator


class ConvolutionCase(OperatorCase):
    plain = "lattice"
    cross = False
    permutes = False

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        return as_integral(nn.Conv1d(8, 4, 3, padding=2, dilation=2, groups=HEADS))

    def domains(self) -> dict[str, Domain]:
        found = {
            name: d for name, d in self.standard_domains().items() if name in ("lattice", "causal")
        }
        line, causal = found["lattice"], found["causal"]
        gaps = self.standard_domains()["causal gaps"]
        valid = torch.tensor([[True] * POINTS, [True] * (POINTS - 2) + [False] * 2])
        torch.manual_seed(2)
        masses, several = (
            torch.rand(POINTS).double() + 0.1,
            torch.rand(BATCH, POINTS).double() + 0.1,
        )
        return found | {
            "padded": replace(line, valid=valid),
            "masses": line.with_masses(masses),
            "probability": line.with_masses(several, normalised=True),
            "counting": line.replace(kind="counting"),
            "bias": line.replace(pairs=torch.randn(1, HEADS, POINTS, POINTS).double()),
            "causal padded": replace(causal, valid=valid),
            "causal gaps": gaps,
            "causal shared": gaps.replace(valid=gaps.valid[:1]),
            "shared": line.replace(valid=gaps.valid[:1]),
            "causal masses": causal.with_masses(masses),
            "causal counting": causal.replace(kind="counting"),
        }

    def refused(self) -> dict[str, Domain]:
        """Points without a grid, whatever else they have; an order with pairs."""
        window = self.domains()["causal"].replace(pairs=torch.ones(POINTS, POINTS).triu(-2).bool())
        standard = self.standard_domains()
        return {n: d for n, d in standard.items() if d.shape is None} | {
            "causal window on a line": window
        }


class ImageCase(ConvolutionCase):
    # The traced model builds a causal domain, and two axes have no order.
    traced = False

    def operator(self) -> nn.Module:
        torch.manual_seed(1)
        return as_integral(nn.Conv2d(8, 8, 3, padding=1, groups=8, padding_mode="circular"))

    def domains(self) -> dict[str, Domain]:
        served = ("lattice", "masses", "probability", "counting")
        found = {name: domain for name, domain in super().domains().items() if name in served}
        return found | {
            "bias": found["lattice"].replace(pairs=torch.randn(1, 8, POINTS, POINTS).double())
        }

    def refused(self) -> dict[str, Domain]:
        lattice = self.domains()["lattice"]
        valid = torch.ones(BATCH, POINTS, dtype=torch.bool)
        return {
            "padded": replace(lattice, valid=valid),
            "causal": replace(lattice, causal=True),
            "line": Domain.line(POINTS, dtype=torch.float64),
        }


CASES = [
    ConvolutionCase("convolution"),
    ImageCase("convolution", "convolution-2d-circular", position_dim=2),
]
