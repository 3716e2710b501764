"""From the op's tensors to a launch of the Triton kernels: sizes of tiles, views, parts that fit
memory; the forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....ops.backend import interpreted
from ....ops.tiles import Span, spans
from ....ops.tuning import Tiles, case_name, choose_tiles, power_of_two, shared_memory
from ..hidden_first.terms import PAIR_TENSORS, PairTensor, Tensors
from . import forward as triton_forward
from .parts import Pairs, View

# its parameters are Triton's, which Python's types do not describe
moments_kernel: Any = triton_forward.moments_kernel

TABLE = Path(__file__).with_name("tiles.json")
# Few programs: each costs Python's time.
INTERPRETED: Tiles = {"rows": 128, "keys": 32, "group": 2, "warps": 1, "stages": 1}


# --- sizes ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call: W hidden units, A + F columns of the product (F with a second query), D
    columns of a value, P coordinates of a position.
    """

    W: int
    A: int
    F: int
    D: int
    P: int

    @staticmethod
    def of(x: Tensors) -> Sizes:
        """Read the sizes off the tensors of a call."""
        columns = dict.fromkeys(("key", "query2", "query_positions"), 0)
        for name in columns:
            tensor = getattr(x, name)
            if tensor is not None:
                columns[name] = tensor.shape[-1]
        second = columns["query2"]
        first = columns["key"] - second
        width, dim = x.query_bias.shape[3], x.value.shape[3]
        return Sizes(width, first, second, dim, columns["query_positions"])


def tiles_of(direction: str, x: Tensors, n: Sizes) -> Tiles:
    """Return rows and keys of a tile, queries that a program takes in turn (``group``), warps and
    stages of one kernel.

    The rule where nothing was measured: 128 rows, one query's hidden units at the usual width,
    against 64 keys, and in the backward what spills fewest registers when compiled for Hopper.
    float32 operands are twice as large: half of each.
    """
    bits = 8 * x.value.dtype.itemsize
    case = case_name(direction, x.value.device, d=n.D, e=n.A, f=n.F, w=n.W, bits=bits)
    if interpreted():
        return choose_tiles(TABLE, case, INTERPRETED)
    rows, keys = 128, 64
    if direction == "rows" and n.F:
        rows = 64
    elif direction == "keys":
        rows, keys = (32, 128) if n.F else (64, 64)
    part = 2 if bits == 32 else 1
    rule = {"rows": rows // part, "keys": keys // part, "group": 8}
    rule |= {"warps": 8 // part, "stages": 3 if direction == "forward" else 2}
    rule = fit_tiles(direction, rule, n, bits // 8, shared_memory(x.value.device))
    return choose_tiles(TABLE, case, rule)


def fit_tiles(direction: str, tiles: Tiles, n: Sizes, item: int, limit: int) -> Tiles:
    """Return ``tiles`` with fewer stages, keys, then rows, until a program's shared memory is
    within ``limit`` bytes.
    """
    e = sum(power_of_two(columns) for columns in (n.A, n.F) if columns)
    d = power_of_two(n.D)
    tiles = dict(tiles)

    def needed() -> int:
        rows, keys, stages = tiles["rows"], tiles["keys"], tiles["stages"]
        if direction == "keys":
            # Keys stay, rows stream.
            return item * (keys * (e + d) + stages * rows * (2 * e + d) + rows * keys)
        # Rows stay, keys stream.
        return item * (rows * (e + d) + stages * keys * (e + d) + rows * keys)

    for name, least in (("stages", 1), ("keys", 16), ("rows", 16)):
        while needed() > limit and tiles[name] > least:
            tiles[name] = tiles[name] - 1 if name == "stages" else tiles[name] // 2
    return tiles


def constants_of(x: Tensors, n: Sizes, tiles: Tiles, activation: str) -> dict[str, Any]:
    """Return the compile-time arguments that all kernels share."""
    hidden = min(power_of_two(n.W, 1), tiles["rows"])
    return {
        "W": n.W, "A": n.A, "F": n.F, "D": n.D, "P": n.P,
        "BQ": tiles["rows"] // hidden, "BW": hidden, "BK": tiles["keys"],
        "BA": power_of_two(n.A), "BF": power_of_two(n.F), "BD": power_of_two(n.D),
        "ACTIVATION": activation, "FAST": x.value.dtype != torch.float32 and not interpreted(),
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_warps": tiles["warps"], "num_stages": tiles["stages"],
    }  # fmt: skip


# --- views ----------------------------------------------------------------------------------------


def _view(x: Tensor) -> View:
    """Return ``x`` (B | 1, H | 1, N, C) for a kernel, copied only where its last dimension is not
    dense.
    """
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    b, h, n = (0 if size == 1 else stride for size, stride in zip(x.shape[:3], x.stride()[:3]))
    return View(x, b, h, n)


def cut_inputs(x: Tensors, b: Span, q: Span) -> Tensors:
    """Return batch entries ``b`` and queries ``q`` of every tensor, with all heads and keys."""
    parts = {}
    for name, fact in PAIR_TENSORS.items():
        part = getattr(x, name)
        if part is not None and "b" in fact.sizes:
            part = cut_entries(part, b)
        if part is not None and "q" in fact.sizes:
            part = part[(slice(None),) * fact.sizes.index("q") + (q,)]
        parts[name] = part
    return Tensors(**parts)


def cut_entries(x: Tensor, b: Span) -> Tensor:
    return x if x.shape[0] == 1 else x[b]


def make_pairs(x: Tensors, const: dict[str, Any]) -> Pairs:
    """Return ``x`` as the kernels take it, with the bounds of what an order leaves visible."""
    times = _times(x)
    stop, start = _bounds(times, const["BQ"], const["BK"])
    ready = {name: getattr(x, name) for name in PAIR_TENSORS}
    if times is not None:
        ready["query_time"], ready["key_time"] = times
    if x.density is not None and x.density.dtype == torch.bool:
        # Triton loads no booleans.
        ready["density"] = x.density.view(torch.uint8)
    names = Pairs._fields[:-2]
    views = {name: _view_of(PAIR_TENSORS[name], ready[name]) for name in names}
    if x.table is not None:
        # A pair reads one column for all its hidden units: they lie side by side as a row.
        views["table"] = _view(x.table.mT.contiguous()[None])
    return Pairs(**views, key_stop=stop, query_start=start)


def _view_of(fact: PairTensor, x: Tensor | None) -> View | None:
    """``x`` as (batch, head, row, column), with dimensions of size 1 for those that it lacks; an
    index is a line.
    """
    if x is None:
        return None
    if fact.kind == "index":
        return _line(x)
    for place, size in enumerate(("b", "h")):
        if size not in fact.sizes:
            x = x.unsqueeze(place)
    if x.dim() == 3:
        # Times and the distance scale have one row.
        x = x.unsqueeze(2)
    return _view(x)


def _line(x: Tensor) -> View:
    return View(x.contiguous(), 0, 0, 0)


def _times(x: Tensors) -> tuple[Tensor, Tensor] | None:
    """Return the times of queries and keys in one float dtype that keeps their order, or None
    where there is no order.
    """
    if x.query_time is None or x.key_time is None:
        return None
    single = x.query_time.dtype == x.key_time.dtype == torch.float32
    dtype = torch.float32 if single else torch.float64
    return x.query_time.to(dtype), x.key_time.to(dtype)


def _bounds(
    times: tuple[Tensor, Tensor] | None,
    rows: int,
    columns: int,
) -> tuple[View | None, View | None]:
    """For each block of queries the number of blocks of keys up to the last with a visible one; for
    each block of keys the first block of queries with one that sees them. Both are read off
    monotone envelopes of the blocks' extreme times.
    """
    if times is None:
        return None, None
    latest = _blocks(times[0], rows, -math.inf).amax(-1)
    earliest = _blocks(times[1], columns, math.inf).amin(-1)
    n = max(len(latest), len(earliest))
    latest, earliest = latest.expand(n, -1).contiguous(), earliest.expand(n, -1).contiguous()
    # The earliest time of a block of keys and all later ones rises, as does the latest of queries.
    ahead = earliest.flip(-1).cummin(-1).values.flip(-1).contiguous()
    stop = torch.searchsorted(ahead, latest, right=True).to(torch.int32)
    start = torch.searchsorted(latest.cummax(-1).values, earliest).to(torch.int32)
    step = 0 if n == 1 else 1
    return View(stop, step * stop.stride(0), 0, 0), View(start, step * start.stride(0), 0, 0)


def _blocks(time: Tensor, size: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(time, (0, -time.shape[1] % size), value=fill).unflatten(
        1, (-1, size)
    )


# --- forward --------------------------------------------------------------------------------------


def chunks_of(x: Tensors, memory: int) -> Iterator[tuple[Span, Span]]:
    """Batch entries and queries whose moments, of all heads, are held at once: whole entries, or
    parts of one.
    """
    b, h = x.value.shape[:2]
    nq = x.query_bias.shape[2]
    query = h * x.readout.shape[2] * x.readout.shape[3] * x.value.element_size()
    queries = max(1, min(nq, memory // query))
    for entries in spans(0, b, max(1, memory // (query * nq))):
        for q in spans(0, nq, queries):
            yield entries, q


def is_empty(x: Tensors) -> bool:
    return 0 in (*x.value.shape, x.query_bias.shape[2])


def count(n: int, size: int) -> int:
    return -(-n // size)


def forward(x: Tensors, activation: str, memory: int) -> Tensor:
    """Return the values (B, H, Nq, o) of the integral; see :func:`mlp_kernel`."""
    b, h = x.value.shape[:2]
    nq, o = x.query_bias.shape[2], x.readout.shape[1]
    if is_empty(x):
        return x.value.new_zeros(b, h, nq, o)
    n = Sizes.of(x)
    const = constants_of(x, n, tiles_of("forward", x, n), activation)
    readout = x.readout.permute(0, 3, 2, 1).reshape(h, n.W * n.D, o)
    out = x.value.new_empty(b, h, nq, o)
    for entries, q in chunks_of(x, memory):
        part = cut_inputs(x, entries, q)
        shape = (h, part.value.shape[0], part.query_bias.shape[2])
        moments = x.value.new_empty(*shape, n.W, n.D)
        grid = math.prod(shape[:2]) * count(shape[2], const["BQ"]) * count(n.W, const["BW"])
        moments_kernel[(grid,)](
            make_pairs(part, const),
            moments,
            *shape[1:],
            x.value.shape[2],
            **const,
        )
        # W2 once per query: (B·Nq, W·D) times (W·D, o) for each head.
        rows = moments.flatten(3).flatten(1, 2)
        out[entries, :, q] = torch.bmm(rows, readout).view(*shape, o).transpose(0, 1)
    return out
