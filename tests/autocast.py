"""Gradients of a loss whose backward runs inside or outside autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

Gradients = dict[str, Tensor]


def gradients_in_and_outside(operator: nn.Module, u: Tensor) -> tuple[Gradients, Gradients]:
    """Return gradients of an operator's squared outputs in bfloat16: outside first, then inside."""
    found = []
    for inside in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = operator(u).float().square().sum()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            loss.backward()
        grads = {name: p.grad for name, p in operator.named_parameters()}
        found.append({name: x.clone() for name, x in grads.items() if x is not None})
        operator.zero_grad()
    return found[0], found[1]
