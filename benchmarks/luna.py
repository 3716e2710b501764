"""LUNA's feature map against the literal network per scalar, the layer against plain linear
attention, and its exponent in N.

``python -m benchmarks.luna [--part map|layer|exponent] [--points 16384] [--repeats 5] [--threads
2]``. Answers are checked before anything is timed; ways of one thing are timed in turn.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.kernels import LunaMap
from fredholm.operators import IntegralOperator, LinearAttention, LunaAttention
from fredholm.ops.feature_map import Bank, scalar_bank, segments

from .machine import describe, median_and_spread
from .registry import Case, Entry, with_gradients
from .runner import WrongAnswer, difference, run

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
    if error > 1e-9:
        raise WrongAnswer(
            f"piecewise linear form: {error:.1e} from the literal one; refusing to time it"
        )


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
        note = f"{scalars} scalars, {channels} channels, hidden {hidden}"
        for what, new, old in (
            ("forward", torch.no_grad()(fast), torch.no_grad()(slow)),
            ("both", fast_both, slow_both),
        ):
            ways = {"piecewise": Entry(new), "literal": Entry(old)}
            cases.append(
                Case(f"{label} {what}", old, ways, tolerance=1e-3, note=note, repeats=repeats)
            )
    return cases


def step(operator: IntegralOperator, u: Tensor, *, backward: bool) -> object:
    """One forward, or one training step's gradients."""
    if not backward:
        with torch.no_grad():
            return operator(u)
    return torch.autograd.grad(operator(u).sum(), [u, *operator.parameters()], allow_unused=True)


def check_layer(operator: IntegralOperator, points: int = 96) -> None:
    """The layer's values and gradients equal its definition's, or WrongAnswer."""
    u = torch.randn(1, points, DIM, requires_grad=True)
    inputs = [u, *operator.parameters()]
    error = difference(
        with_gradients(operator(u), inputs),
        with_gradients(operator.dense(u, Domain.line(points)), inputs),
    )
    if error > 1e-4:
        raise WrongAnswer(
            f"{type(operator).__name__}: {error:.1e} from its definition; refusing to time it"
        )


def alternate(
    ways: dict[str, Callable[[], object]], repeats: int
) -> dict[str, tuple[float, float]]:
    """Median and spread of each way in seconds, timed in turn after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    return {name: median_and_spread(found[1:]) for name, found in times.items()}


def layers() -> dict[str, IntegralOperator]:
    """Plain linear attention with elu + 1 and LUNA, both with 64 features a head."""
    torch.manual_seed(0)
    made = {"elu + 1": LinearAttention(DIM, HEADS), "luna": LunaAttention(DIM, HEADS)}
    made["luna shared"] = LunaAttention(DIM, HEADS, shared=True)
    for operator in made.values():
        check_layer(operator)
    return made


def print_layers(points: int, repeats: int) -> None:
    made, u = layers(), torch.randn(1, points, DIM, requires_grad=True)
    for backward in (False, True):
        ways = {
            name: (lambda op=op, b=backward: step(op, u, backward=b)) for name, op in made.items()
        }
        found = alternate(ways, repeats)
        for name, (median, spread) in found.items():
            ratio, what = (
                median / found["elu + 1"][0],
                "forward+backward" if backward else "forward",
            )
            print(
                f"N={points} {what:17} {name:12} {median * 1e3:8.1f} ms ± {spread * 1e3:5.1f}  "
                f"{ratio:.2f}",
                flush=True,
            )


def print_exponent(points: int, repeats: int) -> None:
    """The slope of log time over log N up to ``points``."""
    operator = layers()["luna"]
    sizes = [n for n in (1024, 2048, 4096, 8192, 16384, 32768, 65536) if n <= max(points, 4096)]
    for backward in (False, True):
        logs = []
        for n in sizes:
            u = torch.randn(1, n, DIM, requires_grad=True)
            found = alternate(
                {"luna": lambda u=u, b=backward: step(operator, u, backward=b)}, repeats
            )
            logs.append((math.log(n), math.log(found["luna"][0])))
        x, y = torch.tensor(logs, dtype=torch.float64).T
        slope = float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())
        times = ", ".join(f"{n}: {math.exp(t) * 1e3:.1f} ms" for n, (_, t) in zip(sizes, logs))
        print(
            f"exponent {slope:.3f} {'forward+backward' if backward else 'forward'}: {times}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.luna", description=__doc__)
    parser.add_argument("--part", action="append", choices=("map", "layer", "exponent"))
    parser.add_argument("--points", type=int, default=16_384)
    parser.add_argument("--longest", type=int, default=65_536, help="largest N of the exponent")
    parser.add_argument("--scalars", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    parts = args.part or ["map", "layer", "exponent"]
    print(describe())
    if "map" in parts:
        for case in map_cases(args.scalars, args.repeats):
            for row in run(case):
                print(
                    f"{row['case']:18} {row['way']:10} {row['milliseconds']:9.1f} ms  "
                    f"{row['ratio']:6.2f}  {row['note']}",
                    flush=True,
                )
    if "layer" in parts:
        print_layers(args.points, args.repeats)
    if "exponent" in parts:
        print_exponent(args.longest, max(2, args.repeats // 2))


if __name__ == "__main__":
    main()
