"""State space models: convolution and scan of time-invariant ones, in steps and in real time;
selective ones; a Mamba block.
"""

from __future__ import annotations

import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.kernels import (
    ContinuousStateSpaceKernel,
    DiagonalStateSpaceKernel,
    MambaKernel,
    SelectiveKernel,
    StateSpaceKernel,
)
from fredholm.operators import IntegralOperator

from ..cases import BATCH, POINTS, OperatorCase, positions

DOUBLE = {"dtype": torch.float64}


class SequenceCase(OperatorCase):
    """An operator on causal sequences, whatever the measure."""

    plain = "causal"
    cross = False
    permutes = False
    orders = (True,)

    def __init__(self, label: str, *, transforms: bool = False, **options):
        super().__init__("state-space", label, **options)
        self.transforms = transforms

    def build(self) -> IntegralOperator:
        heads = self.dim // 2
        kernel = DiagonalStateSpaceKernel(heads, 2, state=3, initial_state=True, steps=(0.1, 1.0))
        return IntegralOperator(self.dim, heads, kernel=kernel, strategy=self.options["strategy"])

    def operator(self) -> torch.nn.Module:
        torch.manual_seed(1)
        operator = self.build().double()
        with torch.no_grad():
            for parameter in operator.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return operator

    def domains(self) -> dict[str, Domain]:
        counting = Domain.line(POINTS, causal=True, measure="counting", **DOUBLE)
        standard = self.standard_domains()
        masses = standard["causal masses"]
        valid = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0]]).bool()
        gaps = counting.replace(valid=valid)
        return {
            "causal": standard["causal"],
            "counting": counting,
            "masses": masses,
            "causal masses": masses,
            "causal counting": counting,
            "causal padded": standard["causal padded"],
            "causal gaps": gaps,
            "causal shared": gaps.replace(valid=gaps.valid[:1]),
            "causal probability": masses.replace(kind="probability"),
        }


class TimesCase(SequenceCase):
    """A linear system in real time, which also answers at other times."""

    cross = True
    # Powers of a dense matrix are computed by doubling: one program per power of two, so no export
    # serves any length.
    traced = False

    def build(self) -> IntegralOperator:
        a, b, c = torch.randn(3, 3), torch.randn(3, self.dim), torch.randn(self.dim, 3)
        kernel = ContinuousStateSpaceKernel(a, b, c, initial_state=torch.randn(3))
        return IntegralOperator(self.dim, kernel=kernel)

    def domains(self) -> dict[str, Domain]:
        found = super().domains()
        torch.manual_seed(5)
        irregular = torch.rand(BATCH, POINTS, **DOUBLE).cumsum(-1)
        return found | {
            "causal times": Domain.timestamps(irregular),
            "causal times shared": Domain.timestamps(irregular[:1]),
            "causal times, gaps shared": Domain.timestamps(irregular).replace(
                valid=found["causal shared"].valid
            ),
            "causal points": Domain.points(positions(1), causal=True),
        }


class TrajectoryCase(SequenceCase):
    """A recurrence whose inputs determine its coefficients, on unit masses."""

    measure = "counting"

    def build(self) -> IntegralOperator:
        return IntegralOperator(self.dim, kernel=SelectiveKernel(self.dim, 3, rank=2))

    def domains(self) -> dict[str, Domain]:
        found = super().domains()
        padded = found["causal padded"].replace(kind="counting")
        counting = found["counting"]
        return {
            "causal": counting,
            "counting": counting,
            "causal padded": padded,
            "causal gaps": found["causal gaps"],
            "causal shared": found["causal shared"],
        }


class MambaCase(TrajectoryCase):
    """The whole block, with every bias."""

    dim = 4

    def build(self) -> IntegralOperator:
        width, state = 6, 2
        layers = (
            nn.Linear(4, 2 * width),
            nn.Conv1d(width, width, 3, groups=width),
            nn.Linear(width, 1 + 2 * state),
        )
        layers[2].bias = None
        decay, feedthrough = (
            nn.Parameter(torch.rand(width, state)),
            nn.Parameter(torch.randn(width)),
        )
        kernel = MambaKernel(*layers, nn.Linear(1, width), decay, feedthrough)
        return IntegralOperator(4, kernel=kernel, residual=False, projection=nn.Linear(width, 4))


class DenseCase(SequenceCase):
    """A dense state matrix, with a state before the first point and a bias."""

    # Powers of a matrix are computed by doubling.
    traced = False

    def build(self) -> IntegralOperator:
        a = 0.3 * torch.randn(3, 3)
        b = torch.randn(3, self.dim)
        c = torch.randn(self.dim, 3)
        kernel = StateSpaceKernel(a, b, c, initial_state=torch.randn(3), bias=torch.randn(3))
        return IntegralOperator(self.dim, kernel=kernel, strategy=self.options["strategy"])


CASES = [
    DenseCase("dense-system", strategy="scan"),
    SequenceCase("s4d-fft", transforms=True, strategy="fft"),
    SequenceCase("s4d-scan", strategy="scan"),
    TimesCase("linear-system-in-time", transforms=True),
    TrajectoryCase("selective"),
    MambaCase("mamba"),
]
