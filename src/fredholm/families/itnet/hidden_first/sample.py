"""A small problem in the form of a call of the MLP kernel: what its Triton kernels are compared on.

Tensors are made from the same description that the op's schema is (:mod:`.terms`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ....ops import comparison
from ....ops.comparison import Form, Random, Sample
from .terms import PAIR_TENSORS

WIDTHS = ("d", "w", "v", "e", "f", "o", "p")


def form_of(tensors: Mapping[str, Any], activation: str) -> Form:
    """Which terms there are, the widths, and the activation."""
    given = {name: x for name, x in tensors.items() if x is not None}
    widths = {}
    for name, x in given.items():
        widths |= {s: n for s, n in zip(PAIR_TENSORS[name].sizes, x.shape) if s in WIDTHS}
    mask = "density" in given and given["density"].dtype == torch.bool
    sizes = sorted(widths.items())
    return ("activation", activation), ("mask", mask), ("terms", " ".join(given)), *sizes


def sample(normal: Random, form: dict[str, Any]) -> Sample:
    """Two heads that see one another's points; numbers of hidden units near one."""
    n = comparison.POINTS
    sizes = {"b": 1, "h": 2, "q": n, "k": n, "T": 2 * n - 1}
    sizes |= {name: form[name] for name in WIDTHS if name in form}
    inputs: dict[str, Tensor] = {}
    constants: dict[str, Tensor] = {}
    for name in form["terms"].split():
        fact = PAIR_TENSORS[name]
        x = normal(*(sizes[size] for size in fact.sizes))
        if fact.triton == "gradients":
            inputs[name] = x
        elif fact.kind == "index":
            constants[name] = torch.arange(n) + (n - 1 if fact.side == "query" else 0)
        elif fact.kind == "time":
            constants[name] = torch.arange(n, dtype=torch.float32)[None]
        elif fact.kind == "mask":
            constants[name] = x > 0 if form["mask"] else x.abs()
        else:
            constants[name] = x

    def call(backend: str, *values: Tensor) -> tuple[Tensor]:
        from .tiled import mlp_kernel

        like, given = values[0], dict(zip(inputs, values))
        for name, x in constants.items():
            moved = PAIR_TENSORS[name].kind in ("index", "time", "mask")
            given[name] = x.to(like.device) if moved else x.to(like)
        options: Any = {"query": None, "key": None, "activation": form["activation"]}
        return (mlp_kernel(**(options | given), backend=backend),)

    return Sample(list(inputs.values()), call)
