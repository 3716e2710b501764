"""Domains where a query sees few keys: any kernel, by the form it has for one query and its keys.

A sparse domain is a batch of small problems: one query and the keys of its row, or a block of
queries and the stretch of a line that they reach. They are answered a tile at a time. Only the
inputs are kept for the backward, which gathers and computes each tile again.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from ...errors import StrategyError
from ...integral.contract import Form, Kernel, first_form
from ...integral.facts import Facts, Layout
from ...integral.problem import Problem
from ...integral.strategy import Plan, Strategy
from ...ops.backend import wants_triton
from ...quadrature import Quadrature
from ..dense import Dense
from .gather import Neighbours, Rows, by_point, edge_rows, measure_rows
from .recompute import Weights, Work, parameters_of, with_parameters
from .tiles import partition

# --- choosing -------------------------------------------------------------------------------------


def choose_sparse(
    strategy: Strategy | str,
    kernel: Kernel,
    facts: Facts,
) -> Form:
    """Return the form of a kernel on a domain with edges or a reach: one that takes edges itself,
    else neighbourhood by neighbourhood, else (a functional of all pairs) with all pairs written
    out.

    Raises:
        StrategyError: a strategy that draws keys.
    """
    own = _own_form(strategy, kernel, facts)
    if own is not None:
        return own
    if not kernel.local:
        dense = facts._replace(layout=facts.layout.dense(), sparse=False)
        inner = first_form(strategy, kernel, dense)
        return AllPairs(inner)
    layout = _tile_layout(facts.layout)
    of_tile = facts._replace(layout=layout, sparse=False)
    inner = first_form(strategy, kernel, of_tile)
    if not inner.strategy.exact:
        raise StrategyError(
            f"expected an exact strategy on a domain with few neighbours, got {inner.strategy!r}; "
            "use strategy='auto', or search for fewer neighbours"
        )
    return Neighbourhoods(inner)


def _own_form(
    strategy: Strategy | str,
    kernel: Kernel,
    facts: Facts,
) -> Form | None:
    """Return the first form of the kernel that takes edges as they are, in PyTorch's operations."""
    if wants_triton(getattr(strategy, "backend", "auto")):
        return None
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
    """Return the static facts of the small problems: each has its own points, padding and pairs."""
    return Layout(
        cross=True,
        pairs=True,
        padded=True,
        measure=layout.measure,
        fixed=False,
    )


def refuses_images(kernel: Kernel, facts: Facts) -> str | None:
    """Return why a form that reads each point once cannot serve the domain, or None: in a periodic
    box, each image of a key has another position.
    """
    if facts.layout.images and kernel.reads_position:
        return "in a periodic box each query sees the nearest image of a key"
    return None


def has_no_values(problem: Problem) -> bool:
    """Whether there is nothing to compute: an empty batch, or tensors on the meta device, whose
    edges cannot be sorted into tiles.
    """
    return problem.ux.shape[0] == 0 or problem.uy.is_meta


def shape_alone(kernel: Kernel, problem: Problem) -> Tensor:
    """Return a response (B, H, Nq, d_out) without values, whose gradients are zeros."""
    batch, _, queries, _ = problem.ux.shape
    heads = kernel.heads
    if kernel.adds_heads:
        heads = 1
    empty = problem.uy.new_zeros(batch, heads, queries, kernel.d_out)
    for x in (problem.ux, problem.uy, *kernel.parameters()):
        if x.requires_grad:
            empty = empty + 0 * x.sum()
    return empty


class Wrapped(Form):
    """Base of forms around an inner one."""

    def __init__(self, inner: Form):
        super().__init__(inner.strategy)
        self.inner = inner

    def plan(self) -> Plan:
        plan = self.inner.plan()
        return replace(
            plan,
            path=f"{self.name}: {plan.path}",
            reason=self.reason,
        )


class AllPairs(Wrapped):
    """All pairs of a sparse domain written out: O(N²), refused by size."""

    name = "all pairs"
    reason = "the kernel is a functional of all pairs, so that a neighbourhood alone says nothing"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        return self.inner.respond(kernel, problem.dense())


class Neighbourhoods(Wrapped):
    """One query and its keys at a time, in tiles: O(E) time and memory, a bounded tile of work."""

    name = "neighbourhoods"
    reason = "a query sees few keys, which are gathered"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        batch, heads = problem.ux.shape[:2]
        layout = _tile_layout(problem.layout)

        def answer(tile: Neighbours, weights: Weights) -> Tensor:
            small = _small_problem(tile, layout, heads)
            return self.inner.respond(kernel, small)

        weights = parameters_of(kernel)
        tiles = partition(
            problem,
            pair_bytes=self._pair_bytes(kernel, problem),
            memory=getattr(self.inner.strategy, "memory", None),
        )
        work = Work(
            rows=_rows_of(problem),
            weights=weights,
            tiles=tiles,
            answer=answer,
            quadrature=problem.quadrature,
            within=with_parameters(kernel, list(weights)),
        )
        out = work.results().unflatten(0, (batch, -1))
        return out.transpose(1, 2)

    def _pair_bytes(self, kernel: Kernel, problem: Problem) -> int:
        """Return the bytes that a tile takes per pair of a query and a key."""
        # A guess for any kernel: its hidden units, or a few numbers where it has none.
        width = getattr(kernel, "width", 0)
        if not isinstance(width, int):
            width = 0
        computed = kernel.heads * max(width, 4)
        if isinstance(self.inner, Dense):
            computed = kernel.heads * kernel.d_in * kernel.d_out
        _, heads, _, channels = problem.uy.shape
        gathered = heads * channels + problem.y.shape[-1]
        # What is computed has a gradient of the same size.
        numbers = gathered + 2 * computed
        return problem.uy.element_size() * numbers


def _rows_of(problem: Problem) -> Rows:
    """Return the rows of everything that a problem consists of."""
    p = problem
    return Rows.of(
        {
            "x": ("query", p.x),
            "y": ("key", p.y),
            "ux": ("query", by_point(p.ux)),
            "uy": ("key", by_point(p.uy)),
            "features": ("edge", edge_rows(p, "features")),
            "shift": ("edge", edge_rows(p, "shift")),
            **measure_rows(p),
        }
    )


def _small_problem(tile: Neighbours, layout: Layout, heads: int) -> Problem:
    """Return the problems of a tile, as samples of one problem."""
    rows = tile.rows
    density, log_density = tile.density()
    scale = None
    if "scale" in rows:
        scale = rows["scale"].mT
    features = None
    if "features" in rows:
        features = rows["features"][:, None]
    quadrature = Quadrature(
        mass=tile.mass(),
        scale=scale,
        density=density,
        log_density=log_density,
        valid=tile.real,
        equal=tile.quadrature.equal,
    )
    return Problem(
        x=rows["x"],
        y=tile.seen_positions(),
        ux=tile.heads("ux", heads),
        uy=tile.heads("uy", heads),
        quadrature=quadrature,
        layout=layout,
        pair_features=features,
        real=tile.part.query >= 0,
    )
