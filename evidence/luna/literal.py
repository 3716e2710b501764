"""LUNA's feature map evaluated literally, with a network per scalar, and a check of ours by it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.kernels import LunaMap
from fredholm.operators import IntegralOperator
from fredholm.ops.feature_map import Bank, scalar_bank, segments

from ..kit.clock import Case, Entry, difference, no_grad, require, with_gradients

DIM, HEADS = 256, 4


class Literal(nn.Module):
    """The bank evaluated as in the paper's listing.

    Each channel has one network 1 → hidden → 1, applied to a column of scalars.
    """

    def __init__(self, bank: Bank):
        super().__init__()
        self.networks = nn.ModuleList()
        for weight, bias, readout, shift in zip(*(x.detach()[0] for x in bank)):
            first = nn.Linear(1, weight.shape[0])
            last = nn.Linear(weight.shape[0], readout.shape[0])
            with torch.no_grad():
                first.weight.copy_(weight[:, None])
                first.bias.copy_(bias)
                last.weight.copy_(readout)
                last.bias.copy_(shift)
            self.networks.append(nn.Sequential(first, nn.ReLU(), last, nn.ReLU()))

    def forward(self, u: Tensor) -> Tensor:
        return torch.cat([network(u[:, None]) for network in self.networks], 1)

    def parts(self) -> list[nn.Parameter]:
        """Return the parameters in the order of a :class:`Bank`'s fields, network by network."""
        parameters = []
        for kind in ("0.weight", "0.bias", "2.weight", "2.bias"):
            for index in range(len(self.networks)):
                parameters.append(self.networks.get_parameter(f"{index}.{kind}"))
        return parameters


def gradients(output: Tensor, inputs: list[Tensor], direction: Tensor) -> Tensor:
    """Return all gradients along a direction in one vector."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(output, inputs, direction)])


def check_map(bank: Bank, u: Tensor) -> None:
    """Compare values and gradients with the literal ones in float64.

    In float32 the sums of the literal way are off by 1e-4.

    Raises:
        WrongAnswer: the error is above 1e-9.
    """
    double = Bank(*(x.detach().double().requires_grad_() for x in bank))
    v = u.detach().double().requires_grad_()
    literal = Literal(double).double()
    found = with_gradients(scalar_bank(v[None, None], double)[0, 0].mT, [v, *double])
    error = difference(found, with_gradients(literal(v), [v, *literal.parts()]))
    require("piecewise linear form", error, 1e-9)


def map_cases(scalars: int, repeats: int, channels: int = 8, hidden: int = 64) -> list[Case]:
    """Return the cases of the map at many scalars, forward, and forward and backward.

    They have separate networks or one shared network.
    """
    cases = []
    for label, shared in (("separate", False), ("shared", True)):
        torch.manual_seed(0)
        made = LunaMap(64, channels=channels, hidden=hidden, shared=shared).bank
        bank = Bank(*(x.detach().requires_grad_() for x in made))
        literal, u = Literal(bank), torch.randn(scalars)
        # The derivative at a kink is not unique, so scalars there are moved.
        kinks = segments(bank)[0]
        u = torch.where(torch.isin(u, kinks), u + 1e-3, u).requires_grad_()
        check_map(bank, u[:20_000])
        fast = lambda b=bank, v=u: scalar_bank(v[None, None], b)[0, 0].mT  # noqa: E731
        slow = lambda m=literal, v=u: m(v)  # noqa: E731
        along = torch.randn(scalars, channels)
        # The piecewise form stores its channels apart.
        across = along.mT.contiguous().mT
        fast_both = lambda f=fast, b=bank, v=u, g=across: gradients(f(), [v, *b], g)  # noqa: E731
        slow_both = lambda f=slow, m=literal, v=u, g=along: gradients(f(), [v, *m.parts()], g)  # noqa: E731
        note = f"{scalars:,} scalars, {channels} channels, hidden {hidden}"
        directions = {
            "forward": (no_grad(fast), no_grad(slow)),
            "both": (fast_both, slow_both),
        }
        for what, (new, old) in directions.items():
            ways = {"piecewise": Entry(new), "literal": Entry(old)}
            name = f"{label} {what}"
            cases.append(Case(name, old, ways, tolerance=1e-3, note=note, repeats=repeats))
    return cases


def check_layer(operator: IntegralOperator, points: int = 96) -> None:
    """Compare a layer's values and gradients with its definition's.

    Raises:
        WrongAnswer: the error is above 1e-4.
    """
    u = torch.randn(1, points, operator.dim, requires_grad=True)
    inputs = [u, *operator.parameters()]
    found = with_gradients(operator(u), inputs)
    expected = with_gradients(operator.dense(u, Domain.line(points)), inputs)
    require(type(operator).__name__, difference(found, expected), 1e-4)
