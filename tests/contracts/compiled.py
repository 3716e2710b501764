"""The checks of the contract that compile and export, as a script.

jaxtyping's import hook breaks torch.compile, so they run in a process without the hook. The command
``python -m tests.contracts.compiled BACKEND [--import FILE] [--operator NAME]`` prints one line per
check.
"""

from __future__ import annotations

import argparse

import torch

from fredholm.domain import Domain
from fredholm.operators import import_file, list_operators

from ..tolerances import assert_close
from .cases import BATCH, POINTS, OperatorCase, cases


class OnALine(torch.nn.Module):
    """An operator in a model that builds its domain inside, as exported models do."""

    def __init__(self, case: OperatorCase, causal: bool):
        super().__init__()
        self.operator = case.operator()
        self.position_dim = case.position_dim
        self.causal = causal
        self.measure = case.measure

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        n = u.shape[1]
        if self.position_dim == 1:
            domain = Domain.line(
                n, causal=self.causal, measure=self.measure, dtype=u.dtype, length=64.0
            )
        else:
            shape = (n, *[1] * (self.position_dim - 1))
            domain = Domain.grid(*shape, causal=self.causal, measure=self.measure, dtype=u.dtype)
        return self.operator(u, domain)


def check_compiled(case: OperatorCase, backend: str, causal: bool, *, once: bool) -> None:
    """Compare values and gradients at two lengths.

    Args:
        once: whether the first length compiles for any length. Otherwise it compiles for itself,
            and the second one compiles again.
    """
    torch._dynamo.reset()
    model = OnALine(case, causal)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    for n in (POINTS, POINTS + 3):
        u = torch.randn(BATCH, n, case.dim, dtype=torch.float64, requires_grad=True)
        expected = model(u)
        if once:
            # Tracing takes several times as long where all sizes are free, as by dynamic=True.
            torch._dynamo.maybe_mark_dynamic(u, 1)
        actual = compiled(u)
        assert_close(actual, expected, f"{case.label} compiled with {backend}, N={n}")
        parameters = list(model.parameters())
        of = [
            torch.autograd.grad(y.square().sum(), [u, *parameters], allow_unused=True)
            for y in (actual, expected)
        ]
        for x, g, h in zip([u, *parameters], *of):
            g, h = (torch.zeros_like(x) if part is None else part for part in (g, h))
            assert_close(g, h, f"{case.label} gradient compiled with {backend}, N={n}")


def check_default_domain(case: OperatorCase) -> None:
    """Compile and export the operator alone, before its first call."""
    torch._dynamo.reset()
    operator = case.operator()
    u = torch.randn(BATCH, POINTS, case.dim, dtype=torch.float64)
    compiled = torch.compile(operator, backend="eager", fullgraph=True)(u)
    exported = torch.export.export(operator, (u,)).module()(u)
    expected = operator(u)
    assert_close(compiled, expected, f"{case.label} compiled on its default domain")
    assert_close(exported, expected, f"{case.label} exported on its default domain")


def check_exported(case: OperatorCase, causal: bool) -> None:
    model = OnALine(case, causal).eval()
    u = torch.randn(BATCH, POINTS, case.dim, dtype=torch.float64)
    free = {0: torch.export.Dim("batch", min=1, max=64)}
    if case.any_length:
        free[1] = torch.export.Dim("points", min=2, max=4096)
    shapes = {"u": free}
    more = 5 if case.any_length else 0
    exported = torch.export.export(model, (u,), dynamic_shapes=shapes).module()
    for b, n in ((BATCH, POINTS), (3, POINTS + more)):
        u = torch.randn(b, n, case.dim, dtype=torch.float64)
        assert_close(exported(u), model(u), f"{case.label} exported, batch {b}, N={n}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("backend", choices=("aot_eager", "inductor", "export"))
    parser.add_argument("--import", action="append", default=[], dest="files")
    parser.add_argument("--operator", action="append", default=[], dest="names")
    parser.add_argument(
        "--shard", default="0/1", help="I/N: every N-th family of cases from the I-th on"
    )
    args = parser.parse_args()
    shard, shards = map(int, args.shard.split("/"))
    for path in args.files:
        import_file(path)
    done = set()
    traced = [case for case in cases(args.names or None) if case.traced]
    names = list(dict.fromkeys(case.name for case in traced))[shard::shards]
    for case in (case for case in traced if case.name in names):
        first = case.name not in done
        done.add(case.name)
        if (
            args.backend == "aot_eager"
            and first
            and case.position_dim == 1
            and case.name in list_operators()
        ):
            check_default_domain(case)
        if args.backend == "inductor" and (not first or case.name not in list_operators()):
            # slow: the registered operators, once each, in their last order, which is causal
            continue
        orders = case.orders
        if args.backend == "inductor" or not first:
            orders = orders[-1:]
        for causal in orders:
            torch.manual_seed(0)
            if args.backend == "export":
                check_exported(case, causal)
            else:
                # Compiling takes most of the time, so that most cases compile once.
                once = args.backend == "inductor" or not first or causal != orders[0]
                check_compiled(case, args.backend, causal, once=once)
            print(f"{case.label} {args.backend} causal={causal}: ok", flush=True)


if __name__ == "__main__":
    main()
