"""Answer and time one operator at a time, in a process with one of the trees that are compared.

:mod:`.speed` starts it with the tree's ``src`` on the path. It reads one JSON object per line and
answers with another. It uses only names that both trees have.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import fredholm
from fredholm.operators import create_operator

Call = Callable[[], Tensor]


def build(case: dict[str, Any]) -> Call:
    """Return one call of a case: an operator from a seed, on random features on a line."""
    torch.manual_seed(0)
    operator = create_operator(case["operator"], case["dim"], case["heads"], **case["options"])
    domain = fredholm.Domain.line(case["points"], causal=case["causal"])
    u = torch.randn(case["batch"], case["points"], case["dim"])
    if case["direction"] == "step":
        return _steps(operator.eval(), u, domain)
    if case["direction"] == "forward":
        operator.eval()
        return torch.no_grad()(lambda: operator(u, domain))

    u.requires_grad_()
    leaves = [u, *operator.parameters()]

    def both() -> Tensor:
        answer = operator(u, domain)
        loss = answer.square().mean()
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return torch.stack([answer.sum(), found[0].sum()])

    return both


def _steps(operator: Any, u: Tensor, domain: Any) -> Call:
    """Return a call that advances a causal operator by one point, after all but the last."""
    last = u.shape[1] - 1
    with torch.no_grad():
        _, state = operator.prefill(u[:, :last], operator.init_state(u.shape[0], domain))
    return torch.no_grad()(lambda: operator.step(u[:, last], state)[0])


def seconds(call: Call, count: int) -> float:
    """Return processor seconds per call, of ``count`` calls after one that does not count."""
    call()
    began = time.process_time()
    for _ in range(count):
        call()
    return (time.process_time() - began) / count


def main() -> None:
    torch.set_num_threads(1)
    call: Call | None = None
    for line in sys.stdin:
        request = json.loads(line)
        if "case" in request:
            call = build(request["case"])
            answer = call().detach().double()
            found: dict[str, Any] = {"sum": float(answer.sum()), "size": float(answer.abs().sum())}
        else:
            assert call is not None
            found = {"seconds": seconds(call, request["count"])}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
