"""Which parameters an optimiser decays."""

from __future__ import annotations

from typing import Any

from torch import nn


def weight_decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Optimiser groups: weight matrices decay; biases, norms, tokens, tables of positions,
    frequencies and kernels' output biases do not.

    Example:
        >>> [len(group["params"]) for group in weight_decay_groups(nn.Linear(2, 2), 0.1)]
        [1, 1]
    """
    decayed, kept = [], []
    for name, parameter in model.named_parameters():
        leaf = name.rsplit(".", 1)[-1]
        # Biases have names of their own: one per head is a matrix, and a kernel's b2 is one matrix
        # a head.
        exempt = (
            parameter.dim() < 2
            or leaf.startswith("bias")
            or "fourier" in name
            or leaf in ("token", "table")
        )
        (kept if exempt else decayed).append(parameter)
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": kept, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
