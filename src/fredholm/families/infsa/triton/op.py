"""The edge product as Triton kernels: custom ops, their shapes and autograd, and the launches.

One program owns a block of queries, or of keys, and walks over the other side: no atomics, the same
bits every time. bfloat16 multiplies as it is and is added in float32; float32 multiplies in TF32
where torch's ``float32_matmul_precision`` lets it; float16, whose range edges may exceed,
always does: TF32 holds it exactly.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....ops.custom_op import differentiable_op
from ....ops.launch import launch
from ....ops.tuning import Tiles, case_name, choose_tiles, power_of_two
from ..graph.registration import TENSORS, forward_flops, plain, sizes
from ..graph.tiled import Inputs
from .backward import backward_density, backward_keys, backward_queries
from .forward import forward as forward_kernel

TABLE = Path(__file__).with_name("tiles.json")

# Most bytes of a row -> rows (queries), keys, warps and stages that a GPU of compute capability 9.0
# holds with little spilling of registers.
DEFAULTS = {
    "forward": {
        128: (128, 64, 8, 3),
        256: (64, 64, 8, 2),
        512: (64, 32, 8, 2),
        1024: (32, 16, 8, 1),
    },
    "backward": {
        128: (64, 64, 4, 2),
        256: (32, 64, 8, 2),
        512: (32, 32, 8, 2),
        1024: (16, 16, 8, 1),
    },
}


def default_tiles(direction: str, width: int, itemsize: int) -> Tiles:
    """Return the tiles for a row of ``width`` numbers where none were measured."""
    fitting = (tiles for most, tiles in DEFAULTS[direction].items() if width * itemsize <= most)
    return dict(zip(("rows", "keys", "warps", "stages"), next(fitting)))


class _Launch:
    """Arguments that all kernels of a call share."""

    def __init__(
        self,
        direction: str,
        x: Inputs,
        precision: str,
        causal: bool,
        activation: str,
        statistic: str,
    ):
        self.batch, self.heads, self.queries, e = x.query.shape
        self.keys, d = x.value.shape[2:]
        block_e, block_d = power_of_two(e), power_of_two(d)
        itemsize = x.value.element_size()
        case = case_name(direction, x.value.device, e=block_e, d=block_d, bytes=itemsize)
        default = default_tiles(direction, max(block_e, block_d), itemsize)
        self.tiles = choose_tiles(TABLE, case, default)

        # Without a density its pointer and strides are not read; any tensor stands for it.
        self.density, density_strides = x.value, [0] * 4
        if x.density is not None:
            self.density, density_strides = x.density, _strides(x.density)
        self.counts = (self.heads, self.queries, self.keys)
        self.strides = (*_strides(x.mass), *density_strides)
        self.shape = {
            "E": e,
            "D": d,
            "BLOCK_E": block_e,
            "BLOCK_D": block_d,
            "BLOCK_Q": self.tiles["rows"],
            "BLOCK_K": self.tiles["keys"],
            "ACTIVATION": activation,
            "STATISTIC": statistic,
            "CAUSAL": causal,
            "PRECISION": precision,
            "num_warps": self.tiles["warps"],
            "num_stages": self.tiles["stages"],
        }

    def blocks(self, side: str) -> int:
        """Return the number of blocks of ``"queries"`` or ``"keys"``."""
        if side == "queries":
            return -(-self.queries // self.tiles["rows"])
        return -(-self.keys // self.tiles["keys"])

    @property
    def pairs(self) -> int:
        return self.batch * self.heads


def _strides(x: Tensor) -> list[int]:
    """Return the strides, zero where a dimension of size one stands for all."""
    return [stride if size > 1 else 0 for stride, size in zip(x.stride(), x.shape)]


def _prepared(x: Inputs) -> tuple[Inputs, str]:
    """Return contiguous rows in the precision in which they multiply, and the rounding of float32
    products.
    """
    ends = (x.query, x.key, x.value)
    dtypes = {tensor.dtype for tensor in ends}
    rounding = "tf32"
    if torch.float32 in dtypes and torch.get_float32_matmul_precision() == "highest":
        rounding = "tf32x3"
    dtype = torch.bfloat16 if dtypes == {torch.bfloat16} else torch.float32
    query, key, value = (tensor.to(dtype).contiguous() for tensor in ends)
    return x._replace(query=query, key=key, value=value), rounding


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Compute :func:`fredholm.families.infsa.graph.edge_product`; o and r in float32."""
    x, options = Inputs(*arguments[:5]), arguments[5:]
    out, row = _results(x)
    if 0 in (*x.query.shape[:3], x.key.shape[2]):
        return out.zero_(), row.zero_()
    x, precision = _prepared(x)
    call = _Launch("forward", x, precision, *options)
    grid = (call.blocks("queries"), call.pairs)
    tensors = (x.query, x.key, x.value, x.mass, call.density, out, row)
    launch(
        forward_kernel,
        grid,
        *tensors,
        *call.counts,
        *call.strides,
        DENSITY=x.density is not None,
        **call.shape,
    )
    return out, row


def _results(x: Inputs) -> tuple[Tensor, Tensor]:
    """Return o (B, H, Nq, d) and r (B, H, Nq) without values."""
    shape = x.query.shape[:3]
    out = x.value.new_empty(*shape, x.value.shape[3], dtype=torch.float32)
    return out, x.value.new_empty(shape, dtype=torch.float32)


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _results(Inputs(*arguments[:5]))


def _backward(grad: Tensor, row_grad: Tensor, *arguments: Any) -> list[Tensor]:
    x, options, needs = Inputs(*arguments[:5]), arguments[5:8], Inputs(*arguments[8])
    if 0 in (*x.query.shape[:3], x.key.shape[2]):
        return [torch.zeros_like(t) for t, needed in zip(x, needs) if needed and t is not None]
    grads = [None if t is None else t.new_empty(t.shape) for t in x]
    x, precision = _prepared(x)
    call = _Launch("backward", x, precision, *options)
    above = (grad.to(x.value.dtype).contiguous(), row_grad.contiguous())
    tensors = (*above, x.query, x.key, x.value, x.mass, call.density)
    rest = (*call.counts, *call.strides)
    if needs.query:
        grid = (call.blocks("queries"), call.pairs)
        launch(
            backward_queries,
            grid,
            *tensors,
            grads[0],
            *rest,
            DENSITY=x.density is not None,
            **call.shape,
        )
    if needs.key or needs.value or needs.mass:
        masses = x.value.new_empty(x.value.shape[:3], dtype=torch.float32)
        grid = (call.blocks("keys"), call.pairs)
        launch(
            backward_keys,
            grid,
            *tensors,
            *grads[1:3],
            masses,
            *rest,
            DENSITY=x.density is not None,
            **call.shape,
        )
        grads[3] = masses.sum(1).sum_to_size(x.mass.shape).to(x.mass.dtype)
    if needs.density and x.density is not None:
        grads[4] = _density_gradient(call, tensors, x.density)
    return [t for t, needed in zip(grads, needs) if needed and t is not None]


def _density_gradient(call: _Launch, tensors: tuple, density: Tensor) -> Tensor:
    """Return the gradient of a density, summed over the samples and heads that share it."""
    total = density.new_empty(density.shape)
    shared = (call.batch // density.shape[0], call.heads // density.shape[1])
    grid = (call.blocks("queries"), call.blocks("keys"), density.shape[0] * density.shape[1])
    launch(
        backward_density,
        grid,
        *tensors,
        total,
        *call.counts,
        *shared,
        *call.strides,
        **call.shape,
    )
    return total


def _backward_flops(grad: Any, row_grad: Any, *arguments: Any) -> int:
    """Return the FLOPs of the backward, from shapes."""
    # Scores and the product's gradient are made once for the queries, once for keys and values.
    pairs, e, d = sizes(arguments)
    query, *others = arguments[-1][:4]
    return 2 * pairs * (query * (2 * e + d) + any(others) * (2 * e + 2 * d))


# The registered name is an earlier one, as in :mod:`..graph.registration`.
edge_product_triton = differentiable_op(
    "affinity_product_triton",
    tensors=TENSORS,
    options="bool causal, str activation, str statistic",
    forward=_forward,
    backward=_backward,
    fake=_fake,
    plain=plain,
    gradients_of=("grad", "row_grad"),
    flops=(forward_flops, _backward_flops),
)
