"""From the op's tensors to launches of the Triton kernels, and from their partial sums to gradients."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..backend import interpreted
from ..tuning import Tiles, case_name, choose_tiles, power_of_two
from .tiles import Inputs, Span, spans
from .triton_backward import keys_kernel, rows_kernel, table_kernel
from .triton_forward import moments_kernel
from .triton_parts import Pairs, View

TABLE = Path(__file__).with_name("tiles.json")


# --- sizes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call: W hidden units, A + F columns of the product (F with a second query), D of a value, P of a position."""

    W: int
    A: int
    F: int
    D: int
    P: int

    @staticmethod
    def of(x: Inputs) -> Sizes:
        e = 0 if x.key is None else x.key.shape[-1]
        f = 0 if x.query2 is None else x.query2.shape[-1]
        p = 0 if x.query_positions is None else x.query_positions.shape[-1]
        return Sizes(x.query_bias.shape[3], e - f, f, x.value.shape[3], p)


def tiles_of(direction: str, x: Inputs, n: Sizes) -> Tiles:
    """Rows and keys of a tile, queries a program takes in turn (``group``), warps and stages of one kernel.

    The rule where nothing was measured: 128 rows, one query's hidden units at the usual width, and as many keys as leave two
    programs on a Hopper SM; half of it for float32, whose operands are twice as large.
    """
    if interpreted():
        return {"rows": 32, "keys": 16, "group": 2, "warps": 1, "stages": 1}
    single = x.value.dtype == torch.float32
    wide = n.A + n.F + n.D > 128
    rule = {"rows": 64 if single else 128, "keys": 32 if single else 64, "group": 8, "warps": 4 if single else 8}
    rule["stages"] = 2 if single or wide or direction != "forward" else 3
    case = case_name(direction, x.value.device, d=n.D, e=n.A, f=n.F, w=n.W, bits=x.value.dtype.itemsize * 8)
    return choose_tiles(TABLE, case, rule)


def _constants(x: Inputs, n: Sizes, tiles: Tiles, activation: str) -> dict[str, Any]:
    """The compile-time arguments that all kernels share."""
    hidden = min(power_of_two(n.W, 1), tiles["rows"])
    return {
        "W": n.W, "A": n.A, "F": n.F, "D": n.D, "P": n.P,
        "BQ": tiles["rows"] // hidden, "BW": hidden, "BK": tiles["keys"],
        "BA": power_of_two(n.A), "BF": power_of_two(n.F), "BD": power_of_two(n.D),
        "ACTIVATION": activation, "FAST": x.value.dtype != torch.float32 and not interpreted(),
        "PRECISION": "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32",
        "num_warps": tiles["warps"], "num_stages": tiles["stages"],
    }  # fmt: skip


# --- views ------------------------------------------------------------------------------------------------------------


def _view(x: Tensor | None) -> View | None:
    """``x`` (B | 1, H | 1, N, C) for a kernel; copied only where its last dimension is not dense."""
    if x is None:
        return None
    if x.stride(-1) != 1 and x.shape[-1] > 1:
        x = x.contiguous()
    b, h, n = (0 if size == 1 else stride for size, stride in zip(x.shape[:3], x.stride()[:3]))
    return View(x, b, h, n)


def _cut(x: Inputs, b: Span, q: Span) -> Inputs:
    """Batch entries ``b`` and queries ``q`` of every tensor; heads and keys are all kept."""
    part = {name: _entries(getattr(x, name), b) for name in BATCHED} | {"query_index": x.query_index}
    for name in ("query", "query_bias", "query2", "density"):
        part[name] = None if part[name] is None else part[name][:, :, q]
    for name in ("query_positions", "query_time"):
        part[name] = None if part[name] is None else part[name][:, q]
    part["query_index"] = None if x.query_index is None else x.query_index[q]
    return x._replace(**part)


BATCHED = (
    "query", "key", "value", "query_bias", "key_bias", "query2", "query_positions", "key_positions", "density",
    "query_time", "key_time",
)  # fmt: skip


def _entries(x: Tensor | None, b: Span) -> Any:
    return x if x is None or x.shape[0] == 1 else x[b]


def _pairs(x: Inputs, const: dict[str, Any]) -> Pairs:
    """``x`` as the kernels take it, with the bounds of what an order leaves visible."""
    times = _times(x)
    stop, start = _bounds(times, const["BQ"], const["BK"])
    density = x.density.view(torch.uint8) if x.density is not None and x.density.dtype == torch.bool else x.density
    query_time, key_time = (None, None) if times is None else (_view(t[:, None, None]) for t in times)
    return Pairs(
        query=_view(x.query), key=_view(x.key), value=_view(x.value), query_bias=_view(x.query_bias),
        key_bias=_view(x.key_bias), scale=_view(_lead(x.scale)), query2=_view(x.query2), scale2=_view(_lead(x.scale2)),
        table=None if x.table is None else _view(x.table.mT.contiguous()[None]),
        query_index=_line(x.query_index), key_index=_line(x.key_index),
        distance_scale=None if x.distance_scale is None else _view(x.distance_scale[None, :, None]),
        query_positions=None if x.query_positions is None else _view(x.query_positions[:, None]),
        key_positions=None if x.key_positions is None else _view(x.key_positions[:, None]),
        density=_view(density), query_time=query_time, key_time=key_time, key_stop=stop, query_start=start,
    )  # fmt: skip


def _lead(x: Tensor | None) -> Tensor | None:
    return None if x is None else x[None]


def _line(x: Tensor | None) -> View | None:
    return None if x is None else View(x.contiguous(), 0, 0, 0)


def _times(x: Inputs) -> tuple[Tensor, Tensor] | None:
    """Both times in one float dtype that keeps their order."""
    if x.query_time is None or x.key_time is None:
        return None
    single = x.query_time.dtype == x.key_time.dtype == torch.float32
    dtype = torch.float32 if single else torch.float64
    return x.query_time.to(dtype), x.key_time.to(dtype)


def _bounds(times: tuple[Tensor, Tensor] | None, rows: int, columns: int) -> tuple[View | None, View | None]:
    """For each block of queries the number of blocks of keys up to the last with a visible one; for each block of keys the
    first block of queries with one that sees them. Both are found in monotone envelopes of the blocks' extreme times."""
    if times is None:
        return None, None
    latest = _blocks(times[0], rows, -math.inf).amax(-1)
    earliest = _blocks(times[1], columns, math.inf).amin(-1)
    n = max(len(latest), len(earliest))
    latest, earliest = latest.expand(n, -1).contiguous(), earliest.expand(n, -1).contiguous()
    ahead = earliest.flip(-1).cummin(-1).values.flip(-1).contiguous()
    stop = torch.searchsorted(ahead, latest, right=True).to(torch.int32)
    start = torch.searchsorted(latest.cummax(-1).values, earliest).to(torch.int32)
    step = 0 if n == 1 else 1
    return View(stop, step * stop.stride(0), 0, 0), View(start, step * start.stride(0), 0, 0)


def _blocks(time: Tensor, size: int, fill: float) -> Tensor:
    return torch.nn.functional.pad(time, (0, -time.shape[1] % size), value=fill).unflatten(1, (-1, size))


# --- forward ----------------------------------------------------------------------------------------------------------


def _chunks(x: Inputs, memory: int) -> Iterator[tuple[Span, Span]]:
    """Batch entries and queries whose moments, of all heads, are held at once: whole entries, or parts of one."""
    b, h = x.value.shape[:2]
    nq = x.query_bias.shape[2]
    query = h * x.readout.shape[2] * x.readout.shape[3] * x.value.element_size()
    queries = max(1, min(nq, memory // query))
    for entries in spans(0, b, max(1, memory // (query * nq))):
        for q in spans(0, nq, queries):
            yield entries, q


def _empty(x: Inputs) -> bool:
    return 0 in (*x.value.shape, x.query_bias.shape[2])


def _tiles(n: int, size: int) -> int:
    return -(-n // size)


def forward(x: Inputs, activation: str, memory: int) -> Tensor:
    """Values (B, H, Nq, o) of the integral; see :func:`mlp_kernel`."""
    b, h = x.value.shape[:2]
    nq, o = x.query_bias.shape[2], x.readout.shape[1]
    if _empty(x):
        return x.value.new_zeros(b, h, nq, o)
    n = Sizes.of(x)
    const = _constants(x, n, tiles_of("forward", x, n), activation)
    readout = x.readout.permute(0, 3, 2, 1).reshape(h, n.W * n.D, o)
    out = x.value.new_empty(b, h, nq, o)
    for entries, q in _chunks(x, memory):
        part = _cut(x, entries, q)
        shape = (h, part.value.shape[0], part.query_bias.shape[2])
        moments = x.value.new_empty(*shape, n.W, n.D)
        grid = math.prod(shape[:2]) * _tiles(shape[2], const["BQ"]) * _tiles(n.W, const["BW"])
        moments_kernel[(grid,)](_pairs(part, const), moments, *shape[1:], x.value.shape[2], **const)
        out[entries, :, q] = torch.bmm(moments.flatten(3).flatten(1, 2), readout).view(*shape, o).transpose(0, 1)
    return out


# --- backward ---------------------------------------------------------------------------------------------------------


def backward(grad: Tensor, x: Inputs, activation: str, memory: int, needs: list[bool]) -> list[Tensor]:
    """Gradients of the inputs marked in ``needs``, in the order of :class:`Inputs`."""
    wanted = [name for name, needed in zip(x._fields, needs) if needed]
    total = {name: torch.zeros_like(getattr(x, name), dtype=torch.float32) for name in wanted}
    if not _empty(x):
        run = _Backward(x, activation, memory, total)
        for entries in _runs(_chunks(x, memory)):
            run.entries(grad, *entries)
    return [total[name].to(getattr(x, name).dtype) for name in wanted]


def _runs(chunks: Iterator[tuple[Span, Span]]) -> list[tuple[Span, list[Span]]]:
    """Chunks of the same batch entries together."""
    runs: list[tuple[Span, list[Span]]] = []
    for entries, q in chunks:
        if runs and runs[-1][0] == entries:
            runs[-1][1].append(q)
        else:
            runs.append((entries, [q]))
    return runs


class _Backward:
    """One backward pass: adds every chunk's gradients to ``total``, by the inputs' names."""

    def __init__(self, x: Inputs, activation: str, memory: int, total: dict[str, Tensor]):
        self.x, self.memory, self.total, self.n = x, memory, total, Sizes.of(x)
        h, o = x.readout.shape[:2]
        self.readout = x.readout.transpose(2, 3).reshape(h, o, self.n.W * self.n.D)
        self.constants = {
            name: _constants(x, self.n, tiles_of(name, x, self.n), activation) for name in ("rows", "keys", "table")
        }

    def wants(self, *names: str) -> bool:
        return any(name in self.total for name in names)

    def new(self, wanted: bool, *shape: int) -> Tensor | None:
        return self.x.value.new_empty(shape, dtype=torch.float32) if wanted else None

    def entries(self, grad: Tensor, entries: Span, queries: list[Span]) -> None:
        """Some batch entries, whose queries come in one or several parts."""
        held: dict[str, Tensor | None] | None = None
        for q in queries:
            part = _cut(self.x, entries, q)
            above = grad[entries, :, q].to(part.value.dtype).transpose(0, 1).flatten(1, 2)
            moments_grad = torch.bmm(above, self.readout)
            if self.wants("query", "query_bias", "scale", "query2", "scale2", "distance_scale", "readout"):
                self.rows(part, above, moments_grad, entries, q)
            if self.wants("key", "value", "key_bias"):
                held = self.keys(part, moments_grad, held)
            if self.wants("table"):
                self.table(part, moments_grad)
        if held is not None:
            for name, found in held.items():
                if found is not None:
                    self.add(name, found if name == "key_bias" else found.sum(0), entries)

    def add(self, name: str, part: Tensor, entries: Span, q: Span | None = None) -> None:
        """Add ``part`` (H, B, N, C) to a gradient, summed over the dimensions that its input shares."""
        target = _entries(self.total[name], entries)
        target = target if q is None else target[:, :, q]
        target += part.transpose(0, 1).sum_to_size(target.shape)

    def rows(self, part: Inputs, above: Tensor, moments_grad: Tensor, entries: Span, q: Span) -> None:
        """What belongs to queries and to the layer: the sums over keys."""
        n, const = self.n, dict(self.constants["rows"])
        const["GROUP"] = tiles_of("rows", self.x, n)["group"]
        b, h = part.value.shape[:2]
        nq = part.query_bias.shape[2]
        blocks, groups = _tiles(n.W, const["BW"]), _tiles(nq, const["BQ"] * const["GROUP"])
        lead, e = (h, b), n.A + n.F
        moments = torch.empty_like(moments_grad) if self.wants("readout") else None
        bias = self.new(self.wants("query_bias"), *lead, nq, n.W)
        far = self.new(self.wants("distance_scale"), *lead, nq, n.W)
        query = self.new(self.wants("query"), blocks, *lead, nq, e)
        query2 = self.new(self.wants("query2"), blocks, *lead, nq, n.F)
        scale = self.new(self.wants("scale"), groups, *lead, n.W, e)
        scale2 = self.new(self.wants("scale2"), groups, *lead, n.W, n.F)
        rows_kernel[(h * b * blocks * groups,)](
            _pairs(part, const), moments_grad, moments, bias, far, query, query2, scale, scale2,
            b, h, nq, part.value.shape[2], **const,
        )  # fmt: skip
        if moments is not None:
            found = torch.bmm(above.mT, moments).view(h, -1, n.W, n.D)
            self.total["readout"] += found.transpose(2, 3)
        if bias is not None:
            self.add("query_bias", bias, entries, q)
        if far is not None:
            self.total["distance_scale"] += far.sum((1, 2)).sum_to_size(self.total["distance_scale"].shape)
        for name, found in (("query", query), ("query2", query2)):
            if found is not None:
                self.add(name, found.sum(0), entries, q)
        for name, found in (("scale", scale), ("scale2", scale2)):
            if found is not None:
                self.total[name] += found.sum((0, 2)).sum_to_size(self.total[name].shape)

    def keys(
        self, part: Inputs, moments_grad: Tensor, held: dict[str, Tensor | None] | None
    ) -> dict[str, Tensor | None]:
        """What belongs to keys: the sums over rows, added to ``held`` where these are not the first queries."""
        n, const = self.n, self.constants["keys"]
        b, h, nk, _ = part.value.shape
        nq = part.query_bias.shape[2]
        blocks, add = _tiles(n.W, const["BW"]), held is not None
        if held is None:
            held = {
                "value": self.new(self.wants("value"), blocks, h, b, nk, n.D),
                "key": self.new(self.wants("key"), blocks, h, b, nk, n.A + n.F),
                "key_bias": self.new(self.wants("key_bias"), h, b, nk, n.W),
            }
        grid = h * b * blocks * _tiles(nk, const["BK"])
        keys_kernel[(grid,)](_pairs(part, const), moments_grad, *held.values(), b, h, nq, nk, ADD=add, **const)
        return held

    def table(self, part: Inputs, moments_grad: Tensor) -> None:
        """The displacement table: dS of some queries summed over what shares it, then over the pairs of each displacement."""
        n, const, total = self.n, self.constants["table"], self.total["table"]
        b, h, nk, _ = part.value.shape
        nq = part.query_bias.shape[2]
        query_index: Any = part.query_index
        pairs = _pairs(part, const)
        found = torch.zeros_like(total.mT, memory_format=torch.contiguous_format)
        for q in spans(0, nq, max(1, self.memory // (4 * len(total) * nk * n.W))):
            rows = q.stop - q.start
            out = self.x.value.new_empty(len(total), rows * nk, n.W, dtype=torch.float32)
            grid = len(total) * _tiles(rows, const["BQ"]) * _tiles(n.W, const["BW"]) * _tiles(nk, const["BK"])
            shared = len(total) == 1
            table_kernel[(grid,)](pairs, moments_grad, out, b, h, nq, nk, q.start, q.stop, SHARED=shared, **const)
            places = (query_index[q, None] - part.key_index).flatten()
            found.index_add_(1, places, out)
        total += found.mT
