"""Cases by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class Entry:
    """One way of computing a case's answer.

    Attributes:
        run: one evaluation; it returns what is compared with the reference, or anything where
            ``checked`` is set.
        flops: multiply-adds times two that the way must do, for the share of the machine's
            matrix-product rate; or None.
        reference: the trusted answer of a way that computes another function for the same job;
            None: the case's.
    """

    run: Callable[[], object]
    flops: float | None = None
    reference: Callable[[], Tensor] | None = None


@dataclass
class Case:
    """Ways of computing one thing, timed in turn.

    Attributes:
        name: unique.
        reference: the trusted answer (the definition, in the same precision).
        entries: name to way; the first is the one that ratios are taken against.
        tolerance: largest difference allowed, relative to the largest reference value.
        note: what is computed, for the table.
        repeats: timed rounds.
    """

    name: str
    reference: Callable[[], Tensor]
    entries: dict[str, Entry]
    tolerance: float = 1e-4
    note: str = ""
    repeats: int = 7
    extra: dict[str, object] = field(default_factory=dict)


Maker = Callable[[], Iterator[Case]]
_MAKERS: dict[str, Maker] = {}


def register(name: str) -> Callable[[Maker], Maker]:
    """Decorator: ``name`` makes cases, built only when they are run."""

    def add(maker: Maker) -> Maker:
        _MAKERS[name] = maker
        return maker

    return add


def makers() -> dict[str, Maker]:
    """All registered makers of cases."""
    return dict(_MAKERS)


def with_gradients(output: Tensor, inputs: list[Tensor]) -> Tensor:
    """One tensor of an output's values and the gradients of its sum of squares: what a training
    step must get right.
    """
    found = torch.autograd.grad(output.square().sum(), inputs)
    return torch.cat([output.detach().flatten(), *(g.flatten() for g in found)])
