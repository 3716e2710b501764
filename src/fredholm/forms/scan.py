"""A scan over the points, where the response has a state of fixed size."""

from __future__ import annotations

from torch import Tensor

from ..integral.capabilities import StateScan
from ..integral.contract import Form, Kernel
from ..integral.facts import Facts
from ..integral.problem import Problem
from ..integral.strategy import Scan


class StatesScan(Form):
    """O(N): all states of the kernel's recurrence, then the outputs."""

    word = Scan
    name = "scan over the states"
    reason = "the response has a state of fixed size"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, StateScan) and kernel.scans(facts.layout):
            return None
        return f"it needs {Scan.needs}; use {Scan.instead} instead"

    def respond(self, kernel: StateScan, problem: Problem) -> Tensor:
        return kernel.scan(problem)
