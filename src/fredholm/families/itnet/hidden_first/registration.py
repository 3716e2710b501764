"""Registration of the MLP kernel and its backward as custom ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....ops.backend import full_precision
from ....ops.custom_op import differentiable_op
from .backward import backward
from .forward import forward_op, gather
from .terms import PAIR_TENSORS, SCHEMA

OPTIONS = "str activation, int memory"


def fake(*arguments: Any) -> Tensor:
    """Return the result of the op, or of its Triton form, without values."""
    count = len(PAIR_TENSORS)
    x = gather(arguments[:count])
    batch, heads, _, _ = x.value.shape
    queries = x.query_bias.shape[2]
    outputs = x.readout.shape[1]
    return x.value.new_empty(batch, heads, queries, outputs)


def _backward(grad: Tensor, *arguments: Any) -> list[Tensor]:
    *tensors, activation, memory, needs = arguments
    x = gather(tensors)
    with full_precision(x.value):
        return backward(grad, x, activation, memory, needs)


def plain(*arguments: Any) -> Tensor:
    """Compute the op, or its Triton form, with the hidden units of every pair at once, for the
    derivatives that neither has: O(B·H·Nq·Nk·w) memory.

    Takes the op's arguments: the tensors, the activation, and the memory of a tile, which has no
    meaning here. Returns (B, H, Nq, o) in the values' dtype.
    """
    # Imported here: the definition checks its arguments by the functions of this op's caller.
    from .naive import mlp_kernel_naive

    *tensors, activation, _ = arguments
    x = gather(tensors)

    # The tensors of the Triton form may have a half precision; the op's have float32 or better.
    # Indices and boolean masks stay as they are, and so do times: these are only compared, and
    # rounding could make two of them equal.
    dtype = torch.promote_types(x.value.dtype, torch.float32)
    parts: dict[str, Any] = {}
    for name, fact in PAIR_TENSORS.items():
        part: Any = getattr(x, name)
        if part is not None and part.is_floating_point() and fact.kind != "time":
            part = part.to(dtype)
        parts[name] = part

    # Pairs of weight and bias from the flat list W, b, W, b, …. The Triton form has none.
    weights = x.mid[::2]
    biases = x.mid[1::2]
    mid = list(zip(weights, biases))
    with full_precision(x.value):
        out = mlp_kernel_naive(**parts, mid=mid, activation=activation)
    return out.to(x.value.dtype)


# --- FLOPs, from the shapes of the tensors --------------------------------------------------------


@dataclass(frozen=True)
class Counts:
    """Counts that FLOPs are made of.

    Attributes:
        pairs: (head, batch, query, key) tuples.
        rows: (head, batch, query) triples.
        product: multiply-adds of the first layer's product, per pair.
        layers: those of further hidden layers, per pair.
        moment: those of the moments, per pair; numbers of a row's moments.
        outputs: o.
    """

    pairs: int
    rows: int
    product: int
    layers: int
    moment: int
    outputs: int

    @staticmethod
    def of(shapes: tuple) -> Counts:
        """Count from the shapes of the op's tensors."""
        x = dict(zip([*PAIR_TENSORS, "mid"], shapes))
        b, h, k, d = x["value"]
        q, w = x["query_bias"][2:]
        _, o, _, last = x["readout"]
        e = 0
        if x["key"] is not None:
            e = int(x["key"][-1])
        # ``mid`` has the shapes of weights and biases in turn.
        weights = x["mid"][::2]
        layers = sum(after * before for after, before in weights)
        rows = b * h * q
        return Counts(
            pairs=rows * k,
            rows=rows,
            product=w * e,
            layers=layers,
            moment=last * d,
            outputs=o,
        )


def forward_flops(*shapes: Any) -> int:
    """Return the FLOPs of the forward."""
    n = Counts.of(shapes)
    per_pair = n.product + n.layers + n.moment
    of_readout = n.rows * n.moment * n.outputs
    return 2 * (n.pairs * per_pair + of_readout)


def backward_flops(*shapes: Any, needs: list[bool]) -> int:
    """Return the FLOPs of the backward, with every tile's numbers computed again once."""
    n = Counts.of(shapes)
    wanted = dict(zip(PAIR_TENSORS, needs))
    in_rows = ("query", "query_bias", "scale", "query2", "scale2")
    wants_rows = any(wanted[name] for name in in_rows)

    # S and the further layers again, then the gradient of the last hidden units.
    per_pair = n.product + n.layers + n.moment
    per_pair += n.product * (wants_rows + wanted["key"])
    per_pair += n.moment * (wanted["value"] + wanted["readout"])
    per_pair += 2 * n.layers
    products = 1 + wanted["readout"]
    per_row = n.moment * n.outputs * products
    return 2 * (n.pairs * per_pair + n.rows * per_row)


mlp_kernel_op = differentiable_op(
    "mlp_kernel",
    tensors=f"{SCHEMA}, Tensor[] mid",
    options=OPTIONS,
    forward=forward_op,
    backward=_backward,
    fake=fake,
    plain=plain,
    flops=(
        lambda *shapes: forward_flops(*shapes[:-2]),
        lambda grad, *shapes: backward_flops(*shapes[:-3], needs=shapes[-1]),
    ),
)
