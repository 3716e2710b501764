"""Domains where a query sees few keys: any kernel, by the form it has for one query and its keys.

A sparse domain is a batch of small problems: one query and the keys of its row, or a block of
queries and the stretch of a line that they reach. They are answered a tile at a time. Only the
inputs are kept for the backward, which gathers and computes each tile again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..edges import Edges, Tile
from ..errors import StrategyError
from ..integral.contract import Form, Kernel, call_with, first_form
from ..integral.problem import Facts, Layout, Problem
from ..integral.strategy import Plan, Strategy
from ..ops.backend import transforms
from ..ops.plain import vjp
from ..quadrature import Quadrature, compact_order
from .dense import Dense

WORKING_SET = 1 << 24  # bytes of one tile
BLOCK = 64  # queries of a block, where a window is shorter than that


# --- choosing -------------------------------------------------------------------------------------


def choose_sparse(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form:
    """The form of a kernel on a domain with edges or a reach: one that takes edges itself, else
    neighbourhood by neighbourhood, else (a functional of all pairs) with all pairs written out.

    Raises:
        StrategyError: a strategy that draws keys.
    """
    own = _own_form(strategy, kernel, facts)
    if own is not None:
        return own
    if not kernel.local:
        dense = facts._replace(layout=facts.layout.dense(), sparse=False)
        return AllPairs(first_form(strategy, kernel, dense))
    layout = _tile_layout(facts.layout)
    inner = first_form(strategy, kernel, facts._replace(layout=layout, sparse=False, queries=1))
    if not inner.strategy.exact:
        raise StrategyError(
            f"expected an exact strategy on a domain with few neighbours, got {inner.strategy!r}; "
            "use strategy='auto', or search for fewer neighbours"
        )
    return Neighbourhoods(inner)


def _own_form(strategy: Strategy | str, kernel: Kernel, facts: Facts) -> Form | None:
    """The first form of the kernel that takes edges as they are."""
    for kind in kernel.forms:
        if not (kind.sparse and kind.responds):
            continue
        if isinstance(strategy, str):
            form = kind(kind.default)
            wanted = form.preferred(kernel, facts)
        else:
            form = kind(strategy)
            wanted = isinstance(strategy, kind.word)
        if wanted and form.refuses(kernel, facts) is None:
            return form
    return None


def _tile_layout(layout: Layout) -> Layout:
    """Static facts of the small problems: points of their own, with padding and pairs."""
    return Layout(cross=True, pairs=True, padded=True, measure=layout.measure, fixed=False)


def _has_no_values(problem: Problem) -> bool:
    """Whether there is nothing to compute: an empty batch, or tensors on the meta device, whose
    edges cannot be sorted into tiles.
    """
    return problem.ux.shape[0] == 0 or problem.uy.is_meta


def _shape_alone(kernel: Kernel, problem: Problem) -> Tensor:
    """Return a response (B, H, Nq, d_out) without values, whose gradients are zeros."""
    heads = 1 if kernel.adds_heads else kernel.heads
    empty = problem.uy.new_zeros(problem.ux.shape[0], heads, problem.ux.shape[2], kernel.d_out)
    inputs = [x for x in (problem.ux, problem.uy, *kernel.parameters()) if x.requires_grad]
    for x in inputs:
        empty = empty + 0 * x.sum()
    return empty


class Wrapped(Form):
    """Base of forms that let another one do the work."""

    def __init__(self, inner: Form):
        super().__init__(inner.strategy)
        self.inner = inner

    def plan(self) -> Plan:
        plan = self.inner.plan()
        return replace(plan, path=f"{self.name}: {plan.path}", reason=self.reason)


class AllPairs(Wrapped):
    """All pairs of a sparse domain written out: O(N²), refused by size."""

    name = "all pairs"
    reason = "the kernel is a functional of all pairs, so that a neighbourhood alone says nothing"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        if _has_no_values(problem):
            return _shape_alone(kernel, problem)
        return self.inner.respond(kernel, problem.dense())


class Neighbourhoods(Wrapped):
    """One query and its keys at a time, in tiles: O(E) time and memory, a bounded tile of work."""

    name = "neighbourhoods"
    reason = "a query sees few keys, which are gathered"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        if _has_no_values(problem):
            return _shape_alone(kernel, problem)
        nodes = _Nodes.of(problem)
        weights = {name: x for name, x in kernel.named_parameters() if x.requires_grad}
        work = _Work(
            nodes,
            _groups(problem, self._slot_bytes(kernel, problem)),
            _Respond(kernel, self.inner),
            list(weights),
            _tile_layout(problem.layout),
        )
        tensors = [*nodes.tensors.values(), *weights.values()]
        recorded = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        if not recorded or torch.compiler.is_compiling() or transforms():
            out = work.plain(*tensors)
        else:
            out = _Tiled.apply(work, *tensors)
        assert isinstance(out, Tensor)
        return out.unflatten(0, nodes.shape).transpose(1, 2)

    def _slot_bytes(self, kernel: Kernel, problem: Problem) -> int:
        """Bytes that a tile takes per pair of a query and a key."""
        width = getattr(kernel, "width", 0)
        per_pair = kernel.heads * max(width if isinstance(width, int) else 0, 4)
        if isinstance(self.inner, Dense):
            per_pair = kernel.heads * kernel.d_in * kernel.d_out
        gathered = problem.uy.shape[1] * problem.uy.shape[3] + problem.y.shape[-1]
        return problem.uy.element_size() * (gathered + 2 * per_pair)


class _Respond(nn.Module):
    """A form applied to a kernel, as a module whose parameters may be replaced for a call."""

    def __init__(self, kernel: Kernel, form: Form):
        super().__init__()
        self.kernel, self.form = kernel, form

    def has(self, name: str, parameter: Tensor) -> bool:
        """Whether the kernel's parameter is this one at the moment."""
        module, _, last = name.rpartition(".")
        return self.kernel.get_submodule(module)._parameters.get(last) is parameter

    def forward(self, problem: Problem) -> Tensor:
        return self.form.respond(self.kernel, problem)


# --- small problems -------------------------------------------------------------------------------


class _Group(NamedTuple):
    """Problems of one tile: R of them, each of b queries and k keys.

    Attributes:
        sample: the sample of each problem, (R,).
        query: its queries, (R, b), numbered within the sample; -1 where there are fewer.
        key: its keys, (R, k).
        real: which keys are there, (R, k).
        edge: the edge of each key, (R, k), or None without edges.
        seen: which of the keys each query reaches, (b, k), or None for all.
    """

    sample: Tensor
    query: Tensor
    key: Tensor
    real: Tensor
    edge: Tensor | None = None
    seen: Tensor | None = None


class _Nodes(NamedTuple):
    """Everything that is gathered, a row per point or edge.

    Attributes:
        tensors: by name, (rows, width).
        ends: whether rows of each are queries, keys or edges, and how many samples they have.
        shape: samples and queries.
        quadrature: of the whole problem.
        heads: heads that the features of either end have.
    """

    tensors: dict[str, Tensor]
    ends: dict[str, tuple[str, int]]
    shape: tuple[int, int]
    quadrature: Quadrature
    heads: int

    @classmethod
    def of(cls, problem: Problem) -> _Nodes:
        """Rows of a whole problem."""
        p, q = problem, problem.quadrature
        tensors: dict[str, Tensor] = {}
        ends: dict[str, tuple[str, int]] = {}

        def add(name: str, end: str, x: Tensor | None) -> None:
            """``x``: (samples, rows, width)."""
            if x is not None:
                tensors[name], ends[name] = x.flatten(0, 1), (end, x.shape[0])

        add("x", "query", p.x)
        add("y", "key", p.y)
        add("ux", "query", p.ux.transpose(1, 2).flatten(2))
        add("uy", "key", p.uy.transpose(1, 2).flatten(2))
        add("mass", "key", q.mass[..., None])
        add("scale", "query", None if q.scale is None else q.scale.mT)
        if q.edges is not None:
            for name in ("log_density", "features", "shift"):
                x = getattr(q.edges, name)
                add(name, "edge", None if x is None else x.reshape(1, q.edges.count, -1))
        return cls(tensors, ends, (p.ux.shape[0], p.ux.shape[2]), q, p.ux.shape[1])

    def index(self, name: str, part: _Group) -> Tensor:
        """The rows of a tensor that a tile gathers, (R, b) or (R, k)."""
        end, samples = self.ends[name]
        if end == "edge":
            assert part.edge is not None
            return part.edge
        index = part.query.clamp_min(0) if end == "query" else part.key
        if samples == 1:
            return index
        rows = self.tensors[name].shape[0] // samples
        return index + part.sample[:, None] * rows

    def problem(self, part: _Group, rows: dict[str, Tensor], layout: Layout) -> Problem:
        """The problems of a tile, from what was gathered for it."""
        q = self.quadrature
        real = part.real
        if q.valid is not None:
            valid = q.valid
            sample = part.sample if valid.shape[0] > 1 else torch.zeros_like(part.sample)
            real = real & valid[sample[:, None], part.key]
        y = rows["y"]
        if "shift" in rows:
            y = y + rows["shift"].to(y.dtype)
        density, log_density = self._density(part, rows)
        mass = torch.where(real, rows["mass"][..., 0], 0.0)
        return Problem(
            x=rows["x"],
            y=y,
            ux=rows["ux"].unflatten(-1, (self.heads, -1)).transpose(1, 2),
            uy=rows["uy"].unflatten(-1, (self.heads, -1)).transpose(1, 2),
            quadrature=Quadrature(
                mass=mass,
                scale=rows["scale"].mT if "scale" in rows else None,
                density=density,
                log_density=log_density,
                valid=real,
                equal=q.equal,
            ),
            layout=layout,
            pair_features=rows["features"][:, None] if "features" in rows else None,
            real=part.query >= 0,
        )

    def _density(self, part: _Group, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """ρ and log ρ of a tile, (R | 1, 1 | H, b, k)."""
        if "log_density" in rows:
            log_density = rows["log_density"].mT[:, :, None]
            return log_density.exp(), log_density
        # A mask, as of a dense domain: kernels may weigh masked pairs by other means than masses.
        seen = part.real[:, None, None] if part.seen is None else part.seen[None, None]
        density = seen.to(self.tensors["mass"].dtype)
        return density, torch.zeros_like(density).masked_fill(~seen, -torch.inf)


def _groups(problem: Problem, slot_bytes: int) -> Callable[[], Iterator[_Group]]:
    """The tiles of a problem, made anew at each call."""
    samples, queries = problem.ux.shape[0], problem.ux.shape[2]
    slots = max(1, WORKING_SET // slot_bytes)
    q = problem.quadrature
    if q.edges is not None:
        return lambda: _edge_groups(q.edges, samples, slots)  # type: ignore[arg-type]
    assert q.reach is not None
    return lambda: _window_groups(q, samples, queries, slots, problem.x.device)


def _edge_groups(edges: Edges, samples: int, slots: int) -> Iterator[_Group]:
    """Problems of one query each. A graph that all samples share is gathered for each of them."""
    shared = edges.batch == 1
    if torch.compiler.is_compiling():
        tiles: Iterator[Tile] = iter([edges.whole_tile()])
    else:
        tiles = edges.tiles(max(1, slots // samples) if shared else slots)
    for tile in tiles:
        if shared:
            each = torch.arange(samples, device=tile.rows.device)
            sample = each.repeat_interleave(len(tile.rows))
            row = tile.rows.repeat(samples)
            key, real, edge = (x.repeat(samples, 1) for x in (tile.source, tile.real, tile.edges))
        else:
            sample = torch.div(tile.rows, edges.queries, rounding_mode="floor")
            row = tile.rows - sample * edges.queries
            key, real, edge = tile.source, tile.real, tile.edges
        yield _Group(sample, row[:, None], key, real, edge)


def _window_groups(
    q: Quadrature, samples: int, points: int, slots: int, device: torch.device
) -> Iterator[_Group]:
    """Problems of a block of queries and all that these reach, real points only."""
    assert q.reach is not None
    before, after = (min(side, points) for side in q.reach)
    block = min(points, max(BLOCK, before + after))
    width = block + before + after
    count = -(-points // block)

    # Key j of a block lies ``before`` places ahead of its first query.
    i = torch.arange(block, device=device)[:, None]
    lag = i + before - torch.arange(width, device=device)
    seen = (lag <= before) & (lag >= -after)
    order = None if q.valid is None else compact_order(q.valid)

    problems = samples * count
    step = max(1, slots // (block * width))
    if torch.compiler.is_compiling():
        step = problems
    for start in range(0, problems, step):
        number = torch.arange(start, min(start + step, problems), device=device)
        sample = torch.div(number, count, rounding_mode="floor")
        first = (number - sample * count) * block
        query = first[:, None] + i[:, 0]
        key = first[:, None] - before + torch.arange(width, device=device)
        here, real = query < points, (key >= 0) & (key < points)
        query, key = query.clamp(max=points - 1), key.clamp(0, points - 1)
        if order is not None:
            row = sample if order.shape[0] > 1 else torch.zeros_like(sample)
            query, key = order[row[:, None], query], order[row[:, None], key]
        yield _Group(sample, torch.where(here, query, -1), key, real, seen=seen)


# --- tiles, and their gradients -------------------------------------------------------------------


class _Work(NamedTuple):
    """What is computed of each tile.

    Attributes:
        nodes: what is gathered.
        groups: the tiles.
        respond: the kernel's form.
        weights: names of the kernel's parameters that need a gradient.
        layout: of the small problems.
    """

    nodes: _Nodes
    groups: Callable[[], Iterator[_Group]]
    respond: _Respond
    weights: list[str]
    layout: Layout

    def split(self, tensors: Sequence[Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Nodes' tensors and the kernel's parameters, by name."""
        count = len(self.nodes.tensors)
        nodes = dict(zip(self.nodes.tensors, tensors[:count]))
        return nodes, dict(zip(self.weights, tensors[count:]))

    def answer(
        self, part: _Group, rows: dict[str, Tensor], weights: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """The queries of a tile, numbered through all samples, and their responses (·, H, o)."""
        small = self.nodes.problem(part, rows, self.layout)
        if all(self.respond.has(name, x) for name, x in weights.items()):
            out = self.respond(small)
        else:
            # Another call replaced the kernel's parameters meanwhile.
            named = {f"kernel.{name}": x for name, x in weights.items()}
            out = call_with(self.respond, named, (small,))
        query = part.query + part.sample[:, None] * self.nodes.shape[1]
        if part.seen is None:
            return query[:, 0], out[:, :, 0]
        there = (part.query >= 0).flatten().nonzero()[:, 0]
        return query.flatten()[there], out.transpose(1, 2).flatten(0, 1)[there]

    def gather(self, part: _Group, nodes: dict[str, Tensor]) -> dict[str, Tensor]:
        """The rows of every tensor that a tile needs, (R, b | k, width)."""
        rows = {}
        for name, x in nodes.items():
            index = self.nodes.index(name, part)
            if x.shape[0] == 0:  # edges of a graph without any: all slots are padding
                rows[name] = x.new_zeros(*index.shape, x.shape[1])
                continue
            rows[name] = x.index_select(0, index.flatten()).unflatten(0, index.shape)
        return rows

    def plain(self, *tensors: Tensor) -> Tensor:
        """The responses of all queries, (samples · queries, H, d_out), recorded as they are."""
        nodes, weights = self.split(tensors)
        queries, responses = [], []
        for part in self.groups():
            query, out = self.answer(part, self.gather(part, nodes), weights)
            queries.append(query)
            responses.append(out)
        response = torch.cat(responses)
        out = torch.zeros_like(response)
        return out.index_copy(0, torch.cat(queries), response)


class _Tiled(torch.autograd.Function):
    """:meth:`_Work.plain`, whose backward gathers and computes each tile again."""

    @staticmethod
    def forward(ctx: Any, work: _Work, *tensors: Tensor) -> Tensor:
        ctx.work, ctx.autocast = work, _autocast(tensors[0].device.type)
        ctx.save_for_backward(*tensors)
        return work.plain(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        work, tensors, needs = ctx.work, ctx.saved_tensors, ctx.needs_input_grad[1:]
        (grad,) = grads
        with ctx.autocast():
            if torch.is_grad_enabled():
                found = iter(vjp(work.plain, tensors, needs, [grad]))
            else:
                found = iter(_tile_gradients(work, tensors, needs, grad))
        return None, *(next(found) if needed else None for needed in needs)


def _tile_gradients(
    work: _Work, tensors: Sequence[Tensor], needs: Sequence[bool], grad: Tensor
) -> list[Tensor]:
    """Gradients of the wanted tensors, added up tile by tile."""
    nodes, weights = work.split(tensors)
    wanted = [name for name, needed in zip([*nodes, *weights], needs) if needed]
    totals = {name: torch.zeros_like({**nodes, **weights}[name]) for name in wanted}
    with torch.enable_grad():
        leaves = {
            name: x.detach().requires_grad_() if name in totals else x
            for name, x in weights.items()
        }
        for part in work.groups():
            with torch.no_grad():
                rows = work.gather(part, nodes)
            inputs = {**rows, **leaves}
            for name in wanted:
                if name in rows:
                    rows[name].requires_grad_()
            query, out = work.answer(part, rows, leaves)
            if not out.requires_grad:
                continue
            above = grad.index_select(0, query).to(out.dtype)
            found = torch.autograd.grad(
                out, [inputs[name] for name in wanted], above, allow_unused=True
            )
            for name, g in zip(wanted, found):
                if g is None:
                    continue
                if name in leaves:
                    totals[name] += g
                elif len(totals[name]):
                    index = work.nodes.index(name, part).flatten()
                    totals[name].index_add_(0, index, g.flatten(0, 1))
    return list(totals.values())


def _autocast(device: str) -> Callable[[], AbstractContextManager[object]]:
    """Autocast as it is now, to be entered again in the backward."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext
    enabled, dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    return lambda: torch.autocast(device, dtype=dtype, enabled=enabled)
