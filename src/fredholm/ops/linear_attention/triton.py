"""Linear attention as Triton kernels: custom ops, their shapes and autograd, and the launches.

The features come given, or as the scalars of a bank (:class:`fredholm.ops.feature_map.Bank`), whose
features then exist in registers only, forward and backward. Two sums a call where every query sees
every key; in causal order blocks of points with a carried moment. Every sum has one owner, and what
several programs add apart torch adds up: no atomics, the same bits every time. Features and sums
are in float32; products are in TF32 where the values are half precision, or torch's
``float32_matmul_precision`` lets them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...quadrature import Quadrature
from ..custom_op import custom_op
from ..feature_map.naive import Bank, scalar_bank_naive
from ..launch import launch
from ..plain import vjp
from ..tuning import Tiles, case_name, choose_tiles, power_of_two
from .chunked import linear_attention
from .triton_backward import key_gradient, query_gradient, rates
from .triton_forward import carry, moments, respond

TABLE = Path(__file__).with_name("tiles.json")
# blocks of keys summed apart where heads are few; a constant, so that sums keep their order
PROGRAMS = 256
TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor mass, Tensor? scale, "
    "Tensor[] query_bank, Tensor[] key_bank"
)
OPTIONS = "bool causal, float floor, bool normalised, str activation, bool nonneg"


class Inputs(NamedTuple):
    """The op's tensors: features (B, H, N, r), or scalars (B, H, M, N) of banks with 1 or H sets;
    values (B, H, Nk, d); masses (1 | B, Nk); a scale (1 | B, 1 | H, Nq) or None; banks as their
    four tensors, or none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mass: Tensor
    scale: Tensor | None
    query_bank: list[Tensor]
    key_bank: list[Tensor]


class Options(NamedTuple):
    causal: bool
    floor: float
    normalised: bool
    activation: str
    nonneg: bool


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    quadrature: Quadrature,
    floor: float | None,
    query_bank: list[Tensor] | None = None,
    key_bank: list[Tensor] | None = None,
    activation: str = "relu",
    nonneg: bool = True,
) -> Tensor:
    """Linear attention against a quadrature without pairs, from features or from a bank's scalars;
    (B, H, Nq, d) in float32.
    """
    batch, heads = (max(t.shape[i] for t in (query, key, value)) for i in (0, 1))
    query, key, value = (t.expand(batch, heads, *t.shape[2:]) for t in (query, key, value))
    banks = (query_bank or [], key_bank or [])
    options = (quadrature.triangular, floor or 0.0, floor is not None, activation, nonneg)
    return linear_attention_triton(
        query, key, value, quadrature.mass, quadrature.scale, *banks, *options
    )[0]


def default_tiles(width: int, exact: bool) -> Tiles:
    """Tiles where none were measured, which a compute capability of 9.0 holds with little spilling:
    ``rows`` are the points of a block, in causal order of a chunk.
    """
    return {"rows": 16 if width > 64 else 32 if exact else 64, "warps": 8, "stages": 1}


class _Call:
    """Sizes and compile-time facts that all kernels of a call share."""

    def __init__(self, x: Inputs, options: Options):
        query, key, value = (t.contiguous() for t in x[:3])
        self.x = x = x._replace(query=query, key=key, value=value)
        self.options, self.given = options, not x.query_bank
        self.batch, self.heads, self.keys, width = value.shape
        self.queries, self.pairs = query.shape[2 if self.given else 3], self.batch * self.heads
        if self.given:
            channels, directions, hidden, self.sets, outputs = query.shape[3], 1, 1, 1, (1, 1)
        else:
            self.sets, _, _, hidden = x.query_bank[2].shape
            channels, directions = x.query_bank[3][0].numel(), query.shape[2]
            outputs = x.query_bank[3].shape[2], x.key_bank[3].shape[2]
        self.channels, self.hidden, self.outputs = channels, hidden, outputs
        block_m = power_of_two(directions, 1)
        block_l = power_of_two(channels, max(1, 16 // block_m))
        self.features, self.block_d = block_l * block_m, power_of_two(width)
        case = case_name(
            "points", value.device, r=self.features, d=self.block_d, bytes=value.element_size()
        )
        exact = value.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        tiles = choose_tiles(TABLE, case, default_tiles(max(self.features, self.block_d), exact))
        self.points = tiles["rows"]
        self.width = {"D": width, "BLOCK_D": self.block_d}
        self.launch = {"num_warps": tiles["warps"], "num_stages": tiles["stages"]}
        self.shape = {
            **self.width, "L": channels, "H": hidden, "M": directions, "BLOCK_L": block_l,
            "BLOCK_M": block_m, "BLOCK_N": self.points, "ACTIVATION": options.activation,
            "NONNEG": options.nonneg, "GIVEN": self.given,
            "PRECISION": "tf32x3" if exact else "tf32", **self.launch,
        }  # fmt: skip
        self.both = {"Q_C": outputs[0], "K_C": outputs[1], "CAUSAL": options.causal}
        self.mass = [0 if n == 1 else s for s, n in zip(x.mass.stride(), x.mass.shape)]
        self.scaled = x.value if x.scale is None else x.scale
        self.scale = (
            [0, 0, 0]
            if x.scale is None
            else [0 if n == 1 else s for s, n in zip(x.scale.stride(), x.scale.shape)]
        )
        empty = [value] * 4
        self.banks = [
            [t.contiguous() for t in bank] or empty for bank in (x.query_bank, x.key_bank)
        ]

    def blocks(self, count: int) -> int:
        return -(-count // self.points)

    def new(self, *shape: int) -> Tensor:
        return self.x.value.new_empty(shape, dtype=torch.float32)


def _moments(
    call: _Call, side: int, value: Tensor, rate: Tensor, one_rate: Tensor, strides: list[int]
) -> tuple[Tensor, Tensor]:
    """Moments of the queries (side 0) or keys (side 1), (pairs, 1 | blocks, r, d) and (pairs, 1 |
    blocks, r): of all points, or in causal order for every block that of the points before it, and
    for moments of queries after it.
    """
    source, count = (call.x.query, call.queries) if side == 0 else (call.x.key, call.keys)
    blocks = call.blocks(count)
    each = 1 if call.options.causal else -(-blocks // min(blocks, max(1, PROGRAMS // call.pairs)))
    splits = -(-blocks // each)
    state, ones = (
        call.new(call.pairs, splits, call.features, call.block_d),
        call.new(call.pairs, splits, call.features),
    )
    tensors = (source, value, rate, one_rate, *call.banks[side], state, ones)
    outputs = call.outputs[side]
    launch(
        moments,
        (splits, call.pairs),
        *tensors,
        call.heads,
        count,
        call.sets,
        each,
        *strides,
        C=outputs,
        SHARED=outputs == call.channels,
        **call.shape,
    )
    if not call.options.causal:
        return state.sum(1, keepdim=True), ones.sum(1, keepdim=True)
    for moment in (state, ones):
        size = moment[0, 0].numel()
        grid = (-(-size // 256), call.pairs)
        launch(carry, grid, moment, splits, WIDTH=size, BLOCK=256, REVERSE=side == 0, num_warps=2)
    return state, ones


def _counts(call: _Call) -> tuple[int, ...]:
    return call.heads, call.queries, call.keys, call.sets


def _shapes(x: Inputs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    rows = (*x.value.shape[:2], x.query.shape[3 if x.query_bank else 2])
    return (*rows, x.value.shape[3]), rows


def _plain(*arguments: Any) -> tuple[Tensor, Tensor]:
    """The op in torch's operations; the denominators, which have no gradient, are left at zero."""
    x, options = Inputs(*arguments[:7]), Options(*arguments[7:])
    query, key = x.query, x.key
    if x.query_bank:
        query = _features(query, Bank(*x.query_bank), options)
        key = _features(key, Bank(*x.key_bank), options)
    quadrature = Quadrature(mass=x.mass, scale=x.scale, triangular=options.causal)
    floor = options.floor if options.normalised else None
    out = linear_attention(query, key, x.value, quadrature, floor=floor, backend="torch")
    return out, out.new_zeros(out.shape[:3])


def _features(u: Tensor, bank: Bank, options: Options) -> Tensor:
    """φ(u)_{l,i} = ψ_l(u_i), (B, H, N, L·M)."""
    b, h, m, n = u.shape
    sets = bank.weight.shape[0]
    rows = u.reshape(b, h, m * n) if sets > 1 else u.reshape(b * h, 1, m * n)
    y = scalar_bank_naive(rows, bank, activation=options.activation, nonneg=options.nonneg)
    return y.reshape(b, h, bank.channels * m, n).mT


def _plain_gradients(grad: Tensor, out: Tensor, below: Tensor, *arguments: Any) -> list[Tensor]:
    needs = [True] * len(_tensors(Inputs(*arguments[:7])))
    if arguments[4] is None:
        needs.insert(4, False)
    return vjp(_plain, arguments, needs, [grad])


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Responses (B, H, Nq, d) and denominators before scale and floor (B, H, Nq), in float32; the
    latter without gradient.
    """
    x, options = Inputs(*arguments[:7]), Options(*arguments[7:])
    out, below = (x.value.new_empty(shape, dtype=torch.float32) for shape in _shapes(x))
    if 0 in (*out.shape, x.value.shape[2]):
        return out.zero_(), below.zero_()
    call = _Call(x, options)
    x = call.x
    state = _moments(call, 1, x.value, x.mass, x.mass, [call.mass[0], 0, call.mass[1]])
    launch(
        respond, (call.blocks(call.queries), call.pairs), x.query, x.key, x.value, x.mass,
        call.scaled, options.floor, *state, out, below, *call.banks[0], *call.banks[1],
        *_counts(call), *call.mass, *call.scale, SCALED=x.scale is not None,
        NORMALISED=options.normalised, **call.both, **call.shape,
    )  # fmt: skip
    return out, below


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    x = Inputs(*arguments[:7])
    out, below = (x.value.new_empty(shape, dtype=torch.float32) for shape in _shapes(x))
    return out, below


def _backward(grad: Tensor, out: Tensor, below: Tensor, *arguments: Any) -> list[Tensor]:
    """Gradients of all tensors in their order, the scale's left out where there is none."""
    x, options = Inputs(*arguments[:7]), Options(*arguments[7:])
    if 0 in (*out.shape, x.value.shape[2]):
        return [torch.zeros_like(t) for t in _tensors(x)]
    call, grad = _Call(x, options), grad.contiguous()
    rate, one_rate = call.new(*below.shape), call.new(*below.shape)
    launch(
        rates, (call.blocks(call.queries), call.pairs), grad, out, below, call.scaled,
        options.floor, rate, one_rate, call.heads, call.queries, *call.scale,
        SCALED=x.scale is not None, NORMALISED=options.normalised, BLOCK_N=call.points,
        **call.width, **call.launch,
    )  # fmt: skip
    query, query_bank = _query_gradients(call, grad, rate, one_rate)
    key, value, mass, key_bank = _key_gradients(call, grad, rate, one_rate)
    scale = [] if x.scale is None else [_scale_gradient(grad, out, below, x.scale, options)]
    gradients = [
        query,
        key,
        value,
        mass.sum(1).sum_to_size(x.mass.shape),
        *scale,
        *query_bank,
        *key_bank,
    ]
    return [g.to(t.dtype) for g, t in zip(gradients, _tensors(x))]


def _tensors(x: Inputs) -> list[Tensor]:
    return [t for t in (*x[:5], *x.query_bank, *x.key_bank) if t is not None]


def _query_gradients(
    call: _Call, grad: Tensor, rate: Tensor, one_rate: Tensor
) -> tuple[Tensor, list[Tensor]]:
    x, gradient, shares = call.x, call.new(*call.x.query.shape), _shares(call, 0)
    state = _moments(call, 1, x.value, x.mass, x.mass, [call.mass[0], 0, call.mass[1]])
    launch(
        query_gradient, (call.blocks(call.queries), call.pairs), grad, rate, one_rate, x.query,
        x.key, x.value, x.mass, *state, *call.banks[0], *call.banks[1], gradient, *shares,
        *_counts(call), *call.mass, **call.both, **call.shape,
    )  # fmt: skip
    return gradient, _bank_gradients(call, shares, x.query_bank)


def _key_gradients(
    call: _Call, grad: Tensor, rate: Tensor, one_rate: Tensor
) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    x, shares = call.x, _shares(call, 1)
    key, value, mass = (
        call.new(*shape) for shape in (x.key.shape, x.value.shape, x.value.shape[:3])
    )
    state = _moments(call, 0, grad, rate, one_rate, list(rate.stride()))
    launch(
        key_gradient, (call.blocks(call.keys), call.pairs), grad, rate, one_rate, x.query, x.key,
        x.value, x.mass, *state, *call.banks[0], *call.banks[1], key, value, mass, *shares,
        *_counts(call), *call.mass, **call.both, **call.shape,
    )  # fmt: skip
    return key, value, mass, _bank_gradients(call, shares, x.key_bank)


def _shares(call: _Call, side: int) -> list[Tensor]:
    """A place for every block's share of the bank's gradients: w, b, R and c."""
    if call.given:
        return [call.x.value] * 4
    programs = (call.pairs, call.blocks(call.queries if side == 0 else call.keys))
    rows = 1 if call.outputs[side] == call.channels else call.channels
    sizes = (rows, call.hidden), (rows, call.hidden), (call.channels, call.hidden), (call.channels,)
    return [call.new(*programs, *size) for size in sizes]


def _bank_gradients(call: _Call, shares: list[Tensor], bank: list[Tensor]) -> list[Tensor]:
    """Shares summed over blocks, and over what shares a set; w and b of a network over its
    outputs.
    """
    gradients = []
    for share, whole in zip(shares, bank):
        by_head = share.sum(1).view(call.batch, call.heads, -1).sum(0)
        total = by_head if call.sets > 1 else by_head.sum(0, keepdim=True)
        if total.numel() != whole.numel():  # w and b, once for every output
            networks, hidden = whole.shape[1:]
            total = total.view(call.sets, networks, -1, hidden).sum(2)
        gradients.append(total.view(whole.shape))
    return gradients


def _scale_gradient(
    grad: Tensor, out: Tensor, below: Tensor, scale: Tensor, options: Options
) -> Tensor:
    """It cancels but where there is no denominator, or the denominator is at its floor."""
    total = (grad * out).sum(-1) / torch.where(scale == 0, 1.0, scale)
    if options.normalised:
        total = torch.where((scale * below).abs() < options.floor, total, 0.0)
    return total.sum_to_size(scale.shape)


def _backward_fake(grad: Tensor, out: Tensor, below: Tensor, *arguments: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in _tensors(Inputs(*arguments[:7]))]


def _numbers(shapes: Any) -> tuple[int, int, int, int, int]:
    """From shapes: moments' entries times points, and per scalar the multiply-adds of hidden units
    and of readouts, and scalars.
    """
    b, h, keys, d = shapes.value
    if not shapes.query_bank:
        queries, r, hidden, readout, points = shapes.query[2], shapes.query[3], 0, 0, 0
    else:
        directions, queries = shapes.query[2:]
        _, networks, outputs, units = shapes.query_bank[2]
        r, hidden, readout = (
            directions * networks * outputs,
            networks * units,
            networks * outputs * units,
        )
        points = b * h * directions * (queries + keys)
    return b * h * queries * r * (d + 1), b * h * keys * r * (d + 1), hidden, readout, points


def _forward_flops(*arguments: Any) -> int:
    """Sums as if no pair were formed."""
    of_queries, of_keys, hidden, readout, points = _numbers(Inputs(*arguments[:7]))
    return 2 * (of_queries + of_keys + points * (hidden + readout))


def _backward_flops(grad: Any, out: Any, below: Any, *arguments: Any) -> int:
    """Both moments, the features' and the values' gradients, and the features and the bank's
    gradients once more.
    """
    of_queries, of_keys, hidden, readout, points = _numbers(Inputs(*arguments[:7]))
    return 2 * (2 * of_queries + 3 * of_keys + points * (4 * hidden + 3 * readout))


linear_attention_triton_backward = custom_op(
    "linear_attention_triton_backward",
    f"(Tensor grad, Tensor out, Tensor below, {TENSORS}, {OPTIONS}) -> Tensor[]",
    _backward,
    fake=_backward_fake,
    plain=_plain_gradients,
    flops=_backward_flops,
)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    x = Inputs(*inputs[:7])
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*output, *x[:5], *x.query_bank, *x.key_bank)
    ctx.options, ctx.banks = inputs[7:], len(x.query_bank)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple:
    out, below, *tensors = ctx.saved_tensors
    head, banks = tensors[:5], tensors[5:]
    query_bank, key_bank = banks[: ctx.banks], banks[ctx.banks :]
    gradients = linear_attention_triton_backward(
        grad, out, below, *head, query_bank, key_bank, *ctx.options
    )
    if head[4] is None:
        gradients.insert(4, None)
    return *gradients[:5], gradients[5 : 5 + ctx.banks], gradients[5 + ctx.banks :], *(None,) * 5


linear_attention_triton = custom_op(
    "linear_attention_triton",
    f"({TENSORS}, {OPTIONS}) -> (Tensor, Tensor)",
    _forward,
    fake=_fake,
    plain=_plain,
    flops=_forward_flops,
    setup_context=_setup_context,
    backward=_gradients,
)
