"""Speed of every registered operator, checked against its dense definition.

It works for operators without cases of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fredholm.domain import Domain
from fredholm.operators import create_operator, list_operators

from .kit.clock import Case, Entry, no_grad, time_cases, with_gradients
from .kit.subject import Options, Subject

SUBJECT = Subject(__name__, times={"cases": ":time"})


def time(options: Options) -> None:
    """Time the operators of ``--only``, or all, and print the rows without saving them."""
    for _ in time_cases(operators(options.chosen(list_operators()))):
        pass


def operators(
    names: list[str] | None = None, batch: int = 2, points: int = 196, dim: int = 64, heads: int = 2
) -> Iterator[Case]:
    """Yield the cases of each operator on a line: forward, and forward + backward."""
    for name in names or list_operators():
        torch.manual_seed(0)
        operator = create_operator(name, dim, heads)
        domain = Domain.line(points)
        u = torch.randn(batch, points, dim, requires_grad=True)
        small, part = u.detach()[:1], Domain.line(points)
        dense, forward = no_grad(operator.dense, small, part), no_grad(operator, u, domain)

        # The dense definition needs N² d² numbers, so only the first sample of a batch is checked.
        def checked(f=forward):
            return f()[:1]

        size = f"B={batch} N={points} d={dim} H={heads}"
        yield Case(f"{name} forward", dense, {name: Entry(checked)}, note=size)
        inputs = [u, *operator.parameters()]
        both = lambda op=operator, d=domain, v=u, i=inputs: _step(op(v, d), i)  # noqa: E731
        plain = lambda op=operator, d=domain, v=u, i=inputs: _step(op.dense(v, d), i)  # noqa: E731
        title, entries = f"{name} forward+backward", {name: Entry(both)}
        yield Case(title, plain, entries, tolerance=1e-3, note=size, repeats=5)


def _step(output: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    needed = [x for x in inputs if x.requires_grad]
    return with_gradients(output, needed)
