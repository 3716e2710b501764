"""Every registered operator against its own dense definition: the speed of an operator nobody wrote
a case for.
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
    """Those of ``--only``, or all: printed, not kept."""
    for _ in time_cases(operators(options.chosen(list_operators()))):
        pass


def operators(
    names: list[str] | None = None, batch: int = 2, points: int = 196, dim: int = 64, heads: int = 2
) -> Iterator[Case]:
    """Forward and forward + backward of each operator on a line."""
    for name in names or list_operators():
        torch.manual_seed(0)
        operator = create_operator(name, dim, heads)
        domain = Domain.line(points)
        u = torch.randn(batch, points, dim, requires_grad=True)
        small, part = u.detach()[:1], Domain.line(points)
        dense, forward = no_grad(operator.dense, small, part), no_grad(operator, u, domain)

        # The dense definition needs N² d² numbers: the first batch entry is checked, the whole
        # batch is timed.
        def checked(f=forward):
            return f()[:1]

        size = f"B={batch} N={points} d={dim} H={heads}"
        yield Case(f"{name} forward", dense, {name: Entry(checked)}, note=size)
        inputs = [u, *operator.parameters()]
        both = lambda op=operator, d=domain, v=u, i=inputs: _step(op(v, d), i)  # noqa: E731
        plain = lambda op=operator, d=domain, v=u, i=inputs: _step(op.dense(v, d), i)  # noqa: E731
        yield Case(
            f"{name} forward+backward",
            plain,
            {name: Entry(both)},
            tolerance=1e-3,
            note=size,
            repeats=5,
        )


def _step(output: torch.Tensor, inputs: list[torch.Tensor]) -> torch.Tensor:
    needed = [x for x in inputs if x.requires_grad]
    return with_gradients(output, needed)
