"""LUNA's feature map as the paper writes it, a network per scalar, and checks of ours against it."""

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
    """The bank as the paper's listing evaluates it: one network 1 → hidden → 1 a channel, at a
    column of scalars.
    """

    def __init__(self, bank: Bank):
        super().__init__()
        self.networks = nn.ModuleList()
        for parts in zip(*(x.detach()[0] for x in bank)):
            weight, bias, readout, shift = parts
            first, last = (
                nn.Linear(1, weight.shape[0]),
                nn.Linear(weight.shape[0], readout.shape[0]),
            )
            with torch.no_grad():
                first.weight.copy_(weight[:, None])
                first.bias.copy_(bias)
                last.weight.copy_(readout)
                last.bias.copy_(shift)
            self.networks.append(nn.Sequential(first, nn.ReLU(), last, nn.ReLU()))

    def forward(self, u: Tensor) -> Tensor:
        return torch.cat([network(u[:, None]) for network in self.networks], 1)

    def parts(self) -> list[nn.Parameter]:
        """Parameters in the order of a :class:`Bank`'s fields, network by network."""
        names = [
            f"{k}.{layer}.{kind}"
            for layer in (0, 2)
            for kind in ("weight", "bias")
            for k in range(len(self.networks))
        ]
        return [self.networks.get_parameter(name) for name in names]


def gradients(output: Tensor, inputs: list[Tensor], direction: Tensor) -> Tensor:
    """All gradients along a direction as one tensor."""
    return torch.cat([g.flatten() for g in torch.autograd.grad(output, inputs, direction)])


def check_map(bank: Bank, u: Tensor) -> None:
    """In float64 values and gradients are the literal ones, or WrongAnswer: float32 sums of the
    literal way are off by 1e-4.
    """
    double, v = (
        Bank(*(x.detach().double().requires_grad_() for x in bank)),
        u.detach().double().requires_grad_(),
    )
    literal = Literal(double).double()
    found = with_gradients(scalar_bank(v[None, None], double)[0, 0].mT, [v, *double])
    error = difference(found, with_gradients(literal(v), [v, *literal.parts()]))
    require("piecewise linear form", error, 1e-9)


def map_cases(scalars: int, repeats: int, channels: int = 8, hidden: int = 64) -> list[Case]:
    """The map at many scalars, separate networks and one shared network, forward and forward +
    backward.
    """
    cases = []
    for label, shared in (("separate", False), ("shared", True)):
        torch.manual_seed(0)
        made = LunaMap(64, channels=channels, hidden=hidden, shared=shared).bank
        bank = Bank(*(x.detach().requires_grad_() for x in made))
        literal, u = Literal(bank), torch.randn(scalars)
        u = torch.where(
            torch.isin(u, segments(bank)[0]), u + 1e-3, u
        ).requires_grad_()  # a kink has no one derivative
        check_map(bank, u[:20_000])
        fast = lambda b=bank, v=u: scalar_bank(v[None, None], b)[0, 0].mT  # noqa: E731
        slow = lambda m=literal, v=u: m(v)  # noqa: E731
        along = torch.randn(scalars, channels)
        across = along.mT.contiguous().mT  # as the piecewise form lays its channels out
        fast_both = lambda f=fast, b=bank, v=u, g=across: gradients(f(), [v, *b], g)  # noqa: E731
        slow_both = lambda f=slow, m=literal, v=u, g=along: gradients(f(), [v, *m.parts()], g)  # noqa: E731
        note = f"{scalars:,} scalars, {channels} channels, hidden {hidden}"
        for what, new, old in (
            ("forward", no_grad(fast), no_grad(slow)),
            ("both", fast_both, slow_both),
        ):
            ways = {"piecewise": Entry(new), "literal": Entry(old)}
            cases.append(
                Case(f"{label} {what}", old, ways, tolerance=1e-3, note=note, repeats=repeats)
            )
    return cases


def check_layer(operator: IntegralOperator, points: int = 96) -> None:
    """The layer's values and gradients equal its definition's, or WrongAnswer."""
    u = torch.randn(1, points, DIM, requires_grad=True)
    inputs = [u, *operator.parameters()]
    error = difference(
        with_gradients(operator(u), inputs),
        with_gradients(operator.dense(u, Domain.line(points)), inputs),
    )
    require(type(operator).__name__, error, 1e-4)
