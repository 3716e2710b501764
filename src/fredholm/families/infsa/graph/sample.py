"""A small problem in the form of a call of the edge product: what its Triton kernels are compared
on.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....ops import comparison
from ....ops.comparison import Random, Sample


def sample(normal: Random, form: dict[str, Any]) -> Sample:
    """Two heads; masses and densities that are not negative."""
    n, e, d = comparison.POINTS, form["e"], form["d"]
    inputs = [normal(1, 2, n, width) for width in (e, e, d)] + [normal(1, n).abs()]
    if form["density"]:
        inputs.append(normal(1, 1, n, n).abs())
    options = {name: form[name] for name in ("activation", "statistic", "causal")}

    def call(backend: str, *x: Tensor) -> tuple[Tensor, ...]:
        from .token_graph import edge_product

        half = None if x[0].dtype in (torch.float32, torch.float64) else x[0].dtype
        return edge_product(*x, backend=backend, half=half, **options)

    return Sample(inputs, call)
