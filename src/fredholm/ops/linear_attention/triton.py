"""Linear attention as Triton kernels: custom ops, their shapes and autograd, and the launches.

Features come as tensors, or as the scalars of a bank (:class:`fredholm.ops.feature_map.Bank`),
whose features then exist in registers only, forward and backward. Where every query sees every key,
a call makes two sums; in causal order blocks of points, with the moment of all blocks before. Every
sum has one owner, and sums of several programs are added up by torch: no atomics, and the same bits
every time. Features and sums are in float32. Products are in TF32 where the values are half
precision, or where torch's ``float32_matmul_precision`` allows it.
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
from .banked import Banks
from .chunked import linear_attention
from .triton_backward import key_gradient, query_gradient, rates
from .triton_forward import carry, moments, respond

TABLE = Path(__file__).with_name("tiles.json")
PROGRAMS = 256
"""Programs that sum the moments of few heads, each over its own blocks of keys. A constant, so that
sums keep their order on every GPU.
"""
CARRY_BLOCK = 256
"""Entries of a moment that one program of :func:`.carry` adds up."""

TENSORS = (
    "Tensor query, Tensor key, Tensor value, Tensor mass, Tensor? scale, "
    "Tensor[] query_bank, Tensor[] key_bank"
)
OPTIONS = "bool causal, float floor, bool normalised, str activation, bool nonneg"


class Inputs(NamedTuple):
    """The op's tensors.

    Attributes:
        query, key: features (B, H, N, r), or scalars (B, H, M, N) of banks with 1 or H sets.
        value: (B, H, Nk, d).
        mass: (1 | B, Nk).
        scale: (1 | B, 1 | H, Nq), or None.
        query_bank, key_bank: the four tensors of each bank, or none.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    mass: Tensor
    scale: Tensor | None
    query_bank: list[Tensor]
    key_bank: list[Tensor]


class Options(NamedTuple):
    """The op's options.

    Attributes:
        causal: whether query i sees the keys up to i.
        floor: of the denominator.
        normalised: whether there is a denominator.
        activation, nonneg: of the banks, see :func:`fredholm.ops.feature_map.scalar_bank`.
    """

    causal: bool
    floor: float
    normalised: bool
    activation: str
    nonneg: bool


INPUTS = len(Inputs._fields)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    quadrature: Quadrature,
    floor: float | None,
    banks: Banks | None = None,
) -> Tensor:
    """Return linear attention against a quadrature without pairs, (B, H, Nq, d) in float32.

    Args:
        query, key: features, or scalars where there are banks; dimensions of size 1 broadcast.
        value, quadrature, floor: see :func:`linear_attention`.
        banks: see :func:`banked_attention`.
    """
    batch, heads = (max(t.shape[i] for t in (query, key, value)) for i in (0, 1))
    query, key, value = (t.expand(batch, heads, *t.shape[2:]) for t in (query, key, value))
    query_bank, key_bank = [], []
    # Without banks nobody reads the rules of their networks.
    activation, nonneg = "relu", True
    if banks is not None:
        query_bank, key_bank = list(banks.query), list(banks.key)
        activation, nonneg = banks.activation, banks.nonneg

    x = Inputs(query, key, value, quadrature.mass, quadrature.scale, query_bank, key_bank)
    options = Options(quadrature.triangular, floor or 0.0, floor is not None, activation, nonneg)
    out, _ = linear_attention_triton(*x, *options)
    return out


def default_tiles(width: int, exact: bool) -> Tiles:
    """Return tiles where none were measured, for ``width`` features or columns of a value.

    A GPU of compute capability 9.0 holds them with little spilling. ``rows`` are the points of a
    block, which in causal order is a chunk. Exact products (three of TF32 for each) need more
    registers.
    """
    rows = 64
    if width > 64:
        rows = 16
    elif exact:
        rows = 32
    return {"rows": rows, "warps": 8, "stages": 1}


# --- sizes ----------------------------------------------------------------------------------------


class Side(NamedTuple):
    """Queries or keys, as the kernels take them.

    Attributes:
        points: features (B, H, N, r) or scalars (B, H, M, N).
        count: N.
        outputs: C, the outputs of each of the bank's networks.
        bank: its four tensors, or four stand-ins that are not read.
    """

    points: Tensor
    count: int
    outputs: int
    bank: list[Tensor]


class BankSizes(NamedTuple):
    """Sizes of the banks; features that come as tensors have L channels and one direction.

    Attributes:
        channels: L.
        directions: M.
        hidden: h, units of each network.
        sets: 1 or H.
        query_outputs, key_outputs: C.
    """

    channels: int
    directions: int
    hidden: int
    sets: int
    query_outputs: int
    key_outputs: int


def _bank_sizes(x: Inputs) -> BankSizes:
    """Read the sizes of both banks from the shapes of their tensors, see :class:`.Bank`.

    Queries and keys have the same channels, hidden units and sets, but their networks may have
    different numbers of outputs.
    """
    if not x.query_bank:
        features = x.query.shape[3]
        return BankSizes(features, 1, 1, 1, 1, 1)

    query_bank, key_bank = Bank(*x.query_bank), Bank(*x.key_bank)
    sets, _, query_outputs, hidden = query_bank.readout.shape
    return BankSizes(
        channels=query_bank.channels,
        directions=x.query.shape[2],
        hidden=hidden,
        sets=sets,
        query_outputs=query_outputs,
        key_outputs=key_bank.shift.shape[2],
    )


def _strides(x: Tensor) -> list[int]:
    """Return the strides of ``x``, zero in dimensions of size 1, which all indices share."""
    return [0 if n == 1 else stride for stride, n in zip(x.stride(), x.shape)]


class _Call:
    """Sizes and compile-time facts that all kernels of a call share.

    Attributes:
        x: the tensors, query, key and value contiguous.
        query, key: each side.
        points: of a block.
        pairs: (batch, head) pairs, the second axis of every grid.
        features: r, padded: L and M are each padded to a power of two.
        width: the columns of a value, and their padded number.
        launch: warps and stages.
        shape: constants of the kernels that make features.
        both: further constants of those that make features of queries and keys.
        scaled, scale: the scale and its strides; the values stand in for no scale.
    """

    def __init__(self, x: Inputs, options: Options):
        query, key, value = x.query.contiguous(), x.key.contiguous(), x.value.contiguous()
        self.x = x = x._replace(query=query, key=key, value=value)
        self.options = options
        self.given = not x.query_bank
        self.batch, self.heads, keys, width = value.shape
        self.pairs = self.batch * self.heads

        sizes = _bank_sizes(x)
        self.sets = sizes.sets
        self.channels = sizes.channels
        self.hidden = sizes.hidden
        queries = query.shape[2 if self.given else 3]
        self.query = Side(query, queries, sizes.query_outputs, _bank_or(value, x.query_bank))
        self.key = Side(key, keys, sizes.key_outputs, _bank_or(value, x.key_bank))

        # Triton's products need 16 features, of which the channels make up what directions lack.
        block_m = power_of_two(sizes.directions, 1)
        block_l = power_of_two(sizes.channels, max(1, 16 // block_m))
        self.features = block_l * block_m
        self.block_d = power_of_two(width)

        exact = value.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
        tiles = self._tiles(exact)
        self.points = tiles["rows"]

        self.width = {"D": width, "BLOCK_D": self.block_d}
        self.launch = {"num_warps": tiles["warps"], "num_stages": tiles["stages"]}
        self.shape = {
            **self.width,
            "L": sizes.channels,
            "H": sizes.hidden,
            "M": sizes.directions,
            "BLOCK_L": block_l,
            "BLOCK_M": block_m,
            "BLOCK_N": self.points,
            "ACTIVATION": options.activation,
            "NONNEG": options.nonneg,
            "GIVEN": self.given,
            "PRECISION": "tf32x3" if exact else "tf32",
            **self.launch,
        }
        self.both = {
            "Q_C": sizes.query_outputs,
            "K_C": sizes.key_outputs,
            "CAUSAL": options.causal,
        }

        self.mass = _strides(x.mass)
        self.scaled = value if x.scale is None else x.scale
        self.scale = [0, 0, 0] if x.scale is None else _strides(x.scale)

    def _tiles(self, exact: bool) -> Tiles:
        """Return the measured tiles for these sizes, else the default ones."""
        value = self.x.value
        case = case_name(
            "points",
            value.device,
            r=self.features,
            d=self.block_d,
            bytes=value.element_size(),
        )
        default = default_tiles(max(self.features, self.block_d), exact)
        return choose_tiles(TABLE, case, default)

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Heads, queries, keys and sets of banks."""
        return self.heads, self.query.count, self.key.count, self.sets

    def blocks(self, count: int) -> int:
        """Return the number of blocks of ``count`` points."""
        return -(-count // self.points)

    def grid(self, side: Side) -> tuple[int, int]:
        """Return one program per block of a side and (batch, head) pair."""
        return self.blocks(side.count), self.pairs

    def new(self, *shape: int) -> Tensor:
        """Return an uninitialised float32 tensor."""
        return self.x.value.new_empty(shape, dtype=torch.float32)


def _bank_or(value: Tensor, bank: list[Tensor]) -> list[Tensor]:
    """Return a bank's tensors, contiguous, or four stand-ins where there is no bank."""
    return [t.contiguous() for t in bank] or [value] * 4


# --- moments --------------------------------------------------------------------------------------


class Moments(NamedTuple):
    """Moments of points: of all, or in causal order one per block.

    Attributes:
        state: Σ φ ⊗ rate·value, (pairs, 1 | blocks, r, d).
        ones: Σ φ·one_rate, (pairs, 1 | blocks, r).
    """

    state: Tensor
    ones: Tensor


def _moments(
    call: _Call,
    side: Side,
    value: Tensor,
    rate: Tensor,
    one_rate: Tensor,
    strides: list[int],
) -> Moments:
    """Return the moments of queries or keys.

    In causal order the moment of a block is that of all keys before it, or of all queries after it.

    Args:
        call: the call.
        side: ``call.query`` or ``call.key``.
        value: (B, H, N, d).
        rate, one_rate: factors of values and of ones, (B, H, N) by ``strides``.
        strides: of both rates.
    """
    causal = call.options.causal
    blocks = call.blocks(side.count)

    # Without an order each program adds up several blocks, and torch adds up the programs.
    blocks_each = 1
    if not causal:
        programs = min(blocks, max(1, PROGRAMS // call.pairs))
        blocks_each = -(-blocks // programs)
    splits = -(-blocks // blocks_each)

    state = call.new(call.pairs, splits, call.features, call.block_d)
    ones = call.new(call.pairs, splits, call.features)
    launch(
        moments,
        (splits, call.pairs),
        *(side.points, value, rate, one_rate, *side.bank, state, ones),
        *(call.heads, side.count, call.sets, blocks_each, *strides),
        C=side.outputs,
        SHARED=side.outputs == call.channels,
        **call.shape,
    )
    if not causal:
        return Moments(state.sum(1, keepdim=True), ones.sum(1, keepdim=True))

    # In place: each block's moment becomes the sum of those before it, or after it.
    for moment in (state, ones):
        size = moment[0, 0].numel()
        launch(
            carry,
            (-(-size // CARRY_BLOCK), call.pairs),
            moment,
            splits,
            WIDTH=size,
            BLOCK=CARRY_BLOCK,
            REVERSE=side is call.query,
            num_warps=2,
        )
    return Moments(state, ones)


def _key_moments(call: _Call) -> Moments:
    """Return the moments of keys, with their masses as the rates of values and of ones."""
    mass = call.x.mass
    batch_stride, point_stride = call.mass
    return _moments(call, call.key, call.x.value, mass, mass, [batch_stride, 0, point_stride])


# --- the op and its plain form --------------------------------------------------------------------


class _Shapes(NamedTuple):
    """Shapes of responses and denominators."""

    out: tuple[int, ...]
    below: tuple[int, ...]


def _shapes(x: Inputs) -> _Shapes:
    queries = x.query.shape[3 if x.query_bank else 2]
    rows = (*x.value.shape[:2], queries)
    return _Shapes((*rows, x.value.shape[3]), rows)


def _apart(arguments: tuple) -> tuple[Inputs, Options]:
    """Return an op's arguments as its tensors and its options."""
    return Inputs(*arguments[:INPUTS]), Options(*arguments[INPUTS:])


def _plain(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return the op in torch's operations; the denominators, which have no gradient, stay zero."""
    x, options = _apart(arguments)
    query, key = x.query, x.key
    if x.query_bank:
        query = _features(query, Bank(*x.query_bank), options)
        key = _features(key, Bank(*x.key_bank), options)
    quadrature = Quadrature(mass=x.mass, scale=x.scale, triangular=options.causal)
    floor = options.floor if options.normalised else None
    out = linear_attention(query, key, x.value, quadrature, floor=floor, backend="torch")
    return out, out.new_zeros(out.shape[:3])


def _features(u: Tensor, bank: Bank, options: Options) -> Tensor:
    """Return φ(u)_{l,i} = ψ_l(u_i), (B, H, N, L·M)."""
    b, h, m, n = u.shape
    if bank.weight.shape[0] > 1:
        rows = u.reshape(b, h, m * n)
    else:
        rows = u.reshape(b * h, 1, m * n)
    y = scalar_bank_naive(rows, bank, activation=options.activation, nonneg=options.nonneg)
    return y.reshape(b, h, bank.channels * m, n).mT


def _plain_gradients(grad: Tensor, out: Tensor, below: Tensor, *arguments: Any) -> list[Tensor]:
    x, _ = _apart(arguments)
    needs = [True] * len(_tensors(x))
    if x.scale is None:
        needs.insert(Inputs._fields.index("scale"), False)
    return vjp(_plain, arguments, needs, [grad])


def _forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    """Return responses (B, H, Nq, d) and denominators before scale and floor (B, H, Nq).

    Both are in float32, and the denominators have no gradient.
    """
    x, options = _apart(arguments)
    out, below = (x.value.new_empty(shape, dtype=torch.float32) for shape in _shapes(x))
    if 0 in (*out.shape, x.value.shape[2]):
        return out.zero_(), below.zero_()

    call = _Call(x, options)
    x = call.x
    launch(
        respond,
        call.grid(call.query),
        *(x.query, x.key, x.value, x.mass, call.scaled, options.floor),
        *(*_key_moments(call), out, below),
        *(*call.query.bank, *call.key.bank),
        *(*call.counts, *call.mass, *call.scale),
        SCALED=x.scale is not None,
        NORMALISED=options.normalised,
        **call.both,
        **call.shape,
    )
    return out, below


def _fake(*arguments: Any) -> tuple[Tensor, Tensor]:
    x, _ = _apart(arguments)
    out, below = (x.value.new_empty(shape, dtype=torch.float32) for shape in _shapes(x))
    return out, below


# --- gradients ------------------------------------------------------------------------------------


class Rates(NamedTuple):
    """The weights a and c of each query's gradient, (B, H, Nq): see :mod:`.triton_backward`."""

    rate: Tensor
    one_rate: Tensor


class KeyGradients(NamedTuple):
    """Gradients of features or scalars, values, masses per (batch, head) pair, and the bank."""

    key: Tensor
    value: Tensor
    mass: Tensor
    bank: list[Tensor]


def _backward(grad: Tensor, out: Tensor, below: Tensor, *arguments: Any) -> list[Tensor]:
    """Return the gradients of all tensors in their order, without the scale's where it is None."""
    x, options = _apart(arguments)
    if 0 in (*out.shape, x.value.shape[2]):
        return [torch.zeros_like(t) for t in _tensors(x)]

    call = _Call(x, options)
    grad = grad.contiguous()
    query_rates = _rates(call, grad, out, below)
    query, query_bank = _query_gradients(call, grad, query_rates)
    of_keys = _key_gradients(call, grad, query_rates)
    scale = []
    if x.scale is not None:
        scale = [_scale_gradient(grad, out, below, x.scale, options)]

    gradients = [
        query,
        of_keys.key,
        of_keys.value,
        of_keys.mass.sum(1).sum_to_size(x.mass.shape),
        *scale,
        *query_bank,
        *of_keys.bank,
    ]
    return [g.to(t.dtype) for g, t in zip(gradients, _tensors(x))]


def _tensors(x: Inputs) -> list[Tensor]:
    """Return the op's tensors in their order, those of banks one by one, no missing scale."""
    tensors = (x.query, x.key, x.value, x.mass, x.scale, *x.query_bank, *x.key_bank)
    return [t for t in tensors if t is not None]


def _rates(call: _Call, grad: Tensor, out: Tensor, below: Tensor) -> Rates:
    options = call.options
    rate, one_rate = call.new(*below.shape), call.new(*below.shape)
    launch(
        rates,
        call.grid(call.query),
        *(grad, out, below, call.scaled, options.floor, rate, one_rate),
        *(call.heads, call.query.count, *call.scale),
        SCALED=call.x.scale is not None,
        NORMALISED=options.normalised,
        BLOCK_N=call.points,
        **call.width,
        **call.launch,
    )
    return Rates(rate, one_rate)


def _query_gradients(call: _Call, grad: Tensor, query_rates: Rates) -> tuple[Tensor, list[Tensor]]:
    """Return the gradients of the queries' features or scalars, and of their bank.

    Args:
        call: the call.
        grad: the gradient g of the responses, (B, H, Nq, d).
        query_rates: a and c of each query.
    """
    x = call.x
    gradient = call.new(*x.query.shape)
    # Each block writes its share of the bank's gradients; the shares are added up at the end.
    shares = _shares(call, call.query)
    launch(
        query_gradient,
        call.grid(call.query),
        *(grad, *query_rates, x.query, x.key, x.value, x.mass),
        *_key_moments(call),
        *(*call.query.bank, *call.key.bank),
        *(gradient, *shares),
        *(*call.counts, *call.mass),
        **call.both,
        **call.shape,
    )
    return gradient, _bank_gradients(call, shares, x.query_bank)


def _key_gradients(call: _Call, grad: Tensor, query_rates: Rates) -> KeyGradients:
    x = call.x
    shares = _shares(call, call.key)
    key, value = call.new(*x.key.shape), call.new(*x.value.shape)
    mass = call.new(*x.value.shape[:3])
    strides = list(query_rates.rate.stride())
    query_moments = _moments(call, call.query, grad, *query_rates, strides)
    launch(
        key_gradient,
        call.grid(call.key),
        *(grad, *query_rates, x.query, x.key, x.value, x.mass),
        *query_moments,
        *(*call.query.bank, *call.key.bank),
        *(key, value, mass, *shares),
        *(*call.counts, *call.mass),
        **call.both,
        **call.shape,
    )
    return KeyGradients(key, value, mass, _bank_gradients(call, shares, x.key_bank))


def _shares(call: _Call, side: Side) -> list[Tensor]:
    """Return room for each block's share of the gradients of w, b, R and c.

    Without a bank the values stand in, and are not written to.
    """
    if call.given:
        return [call.x.value] * 4
    programs = (call.pairs, call.blocks(side.count))
    # A network with all channels as its outputs has one row of w and b; otherwise every channel
    # writes a row of its own.
    rows = 1 if side.outputs == call.channels else call.channels
    return [
        call.new(*programs, rows, call.hidden),
        call.new(*programs, rows, call.hidden),
        call.new(*programs, call.channels, call.hidden),
        call.new(*programs, call.channels),
    ]


def _bank_gradients(call: _Call, shares: list[Tensor], bank: list[Tensor]) -> list[Tensor]:
    """Return the gradients of a bank: shares summed over blocks, samples and heads that share a
    set, and those of w and b over the outputs of a network.
    """
    gradients = []
    for share, parameter in zip(shares, bank):
        by_head = share.sum(1).view(call.batch, call.heads, -1).sum(0)
        total = by_head if call.sets > 1 else by_head.sum(0, keepdim=True)
        # w and b have a share for each output of their network.
        if total.numel() != parameter.numel():
            networks, hidden = parameter.shape[1:]
            total = total.view(call.sets, networks, -1, hidden).sum(2)
        gradients.append(total.view(parameter.shape))
    return gradients


def _scale_gradient(
    grad: Tensor,
    out: Tensor,
    below: Tensor,
    scale: Tensor,
    options: Options,
) -> Tensor:
    """Return the gradient of the scale, (g·o) / s.

    The scale cancels, and its gradient is zero, unless there is no denominator or it is at its
    floor.
    """
    total = (grad * out).sum(-1) / torch.where(scale == 0, 1.0, scale)
    if options.normalised:
        at_floor = (scale * below).abs() < options.floor
        total = torch.where(at_floor, total, 0.0)
    return total.sum_to_size(scale.shape)


def _backward_fake(grad: Tensor, out: Tensor, below: Tensor, *arguments: Any) -> list[Tensor]:
    x, _ = _apart(arguments)
    return [t.new_empty(t.shape) for t in _tensors(x)]


# --- FLOPs ----------------------------------------------------------------------------------------


class _Products(NamedTuple):
    """Counts of multiply-adds.

    Attributes:
        of_queries, of_keys: entries of a moment times points.
        hidden, readout: per scalar, in hidden units and in readouts.
        scalars: of the banks, queries and keys together.
    """

    of_queries: int
    of_keys: int
    hidden: int
    readout: int
    scalars: int


def _products(shapes: Any) -> _Products:
    """Count multiply-adds from the shapes of :class:`Inputs`."""
    b, h, keys, d = shapes.value
    if not shapes.query_bank:
        queries, r = shapes.query[2], shapes.query[3]
        return _Products(b * h * queries * r * (d + 1), b * h * keys * r * (d + 1), 0, 0, 0)

    directions, queries = shapes.query[2:]
    _, _, readout, _ = shapes.query_bank
    _, networks, outputs, units = readout
    r = directions * networks * outputs
    return _Products(
        b * h * queries * r * (d + 1),
        b * h * keys * r * (d + 1),
        networks * units,
        networks * outputs * units,
        b * h * directions * (queries + keys),
    )


def _forward_flops(*arguments: Any) -> int:
    """Count the sums as if no pair were formed."""
    n = _products(Inputs(*arguments[:INPUTS]))
    return 2 * (n.of_queries + n.of_keys + n.scalars * (n.hidden + n.readout))


def _backward_flops(grad: Any, out: Any, below: Any, *arguments: Any) -> int:
    """Count both moments, the gradients of features and values, and features and their banks'
    gradients once more.
    """
    n = _products(Inputs(*arguments[:INPUTS]))
    return 2 * (2 * n.of_queries + 3 * n.of_keys + n.scalars * (4 * n.hidden + 3 * n.readout))


# --- registration ---------------------------------------------------------------------------------

linear_attention_triton_backward = custom_op(
    "linear_attention_triton_backward",
    f"(Tensor grad, Tensor out, Tensor below, {TENSORS}, {OPTIONS}) -> Tensor[]",
    _backward,
    fake=_backward_fake,
    plain=_plain_gradients,
    flops=_backward_flops,
)


def _setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, options = _apart(inputs)
    _, below = output
    ctx.mark_non_differentiable(below)
    tensors = (x.query, x.key, x.value, x.mass, x.scale)
    ctx.save_for_backward(*output, *tensors, *x.query_bank, *x.key_bank)
    ctx.options = options
    ctx.bank_size = len(x.query_bank)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple:
    out, below, query, key, value, mass, scale, *banks = ctx.saved_tensors
    query_bank, key_bank = banks[: ctx.bank_size], banks[ctx.bank_size :]
    gradients = linear_attention_triton_backward(
        *(grad, out, below, query, key, value, mass, scale, query_bank, key_bank), *ctx.options
    )

    of_tensors, of_banks = gradients[:4], gradients[4:]
    of_scale = None
    if scale is not None:
        of_scale, *of_banks = of_banks
    of_query_bank, of_key_bank = of_banks[: ctx.bank_size], of_banks[ctx.bank_size :]
    no_options = (None,) * len(Options._fields)
    return *of_tensors, of_scale, of_query_bank, of_key_bank, *no_options


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
