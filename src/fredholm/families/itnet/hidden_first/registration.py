"""Registration of the MLP kernel and its backward as custom ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....ops.custom_op import differentiable_op
from .backward import backward
from .forward import forward_op, gather
from .terms import PAIR_TENSORS, SCHEMA

OPTIONS = "str activation, int memory"


def fake(*arguments: Any) -> Tensor:
    """The result of the op, or of its Triton form, without values."""
    x = gather(arguments[: len(PAIR_TENSORS)])
    b, h = x.value.shape[:2]
    return x.value.new_empty(b, h, x.query_bias.shape[2], x.readout.shape[1])


def _backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, activation, memory, needs = arguments
    x = gather(tensors)
    with torch.autocast(x.value.device.type, enabled=False):
        return backward(grad, x, activation, memory, needs)


# --- FLOPs, from the shapes of the tensors --------------------------------------------------------


def _shapes(shapes: tuple) -> tuple[int, int, dict[str, int], list]:
    """Pairs, (head, batch, query) triples, widths, and the shapes of further layers' weights."""
    x = dict(zip([*PAIR_TENSORS, "mid"], shapes))
    (b, h, k, d), (q, w) = x["value"], x["query_bias"][2:]
    e = 0 if x["key"] is None else int(x["key"][-1])
    widths = {"e": e, "d": d, "o": x["readout"][1], "w": w, "last": x["readout"][3]}
    return b * h * q * k, b * h * q, widths, list(x["mid"][::2])


def forward_flops(*shapes: Any) -> int:
    """FLOPs of the forward."""
    pairs, rows, n, mid = _shapes(shapes)
    layers = sum(a * b for a, b in mid)
    per_pair = n["w"] * n["e"] + layers + n["last"] * n["d"]
    return 2 * (pairs * per_pair + rows * n["last"] * n["d"] * n["o"])


def backward_flops(*shapes: Any, needs: list[bool]) -> int:
    """FLOPs of the backward, with every tile's numbers computed again once."""
    pairs, rows, n, mid = _shapes(shapes)
    wanted = dict(zip(PAIR_TENSORS, needs))
    layers = sum(a * b for a, b in mid)
    wants_rows = any(wanted[name] for name in ("query", "query_bias", "scale", "query2", "scale2"))
    product, moment = n["w"] * n["e"], n["last"] * n["d"]
    # S and the further layers again, then the gradient of the last hidden units
    per_pair = product + layers + moment
    per_pair += product * (wants_rows + wanted["key"])
    per_pair += moment * (wanted["value"] + wanted["readout"]) + 2 * layers
    return 2 * (pairs * per_pair + rows * moment * n["o"] * (1 + wanted["readout"]))


mlp_kernel_op = differentiable_op(
    "mlp_kernel",
    tensors=f"{SCHEMA}, Tensor[] mid",
    options=OPTIONS,
    forward=forward_op,
    backward=_backward,
    fake=fake,
    flops=(
        lambda *shapes: forward_flops(*shapes[:-2]),
        lambda grad, *shapes: backward_flops(*shapes[:-3], needs=shapes[-1]),
    ),
)
