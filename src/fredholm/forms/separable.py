"""Linear attention: the forms of a weight that is an inner product of features. Two sums over the
keys where there is no order, chunks in causal order, a moment of fixed size point by point.
"""

from __future__ import annotations

from torch import Tensor

from ..integral.capabilities import (
    Decaying,
    Expanded,
    JointFeatures,
    Separable,
    Windowed,
    measure_of,
)
from ..integral.contract import Form, Kernel, Memory, StretchForm, with_offset
from ..integral.facts import Facts
from ..integral.problem import Problem
from ..integral.strategy import Linear
from ..ops.backend import wants_triton
from ..ops.linear_attention import (
    advance_moment,
    at_scale,
    attend_in_pieces,
    largest_seen,
    linear_attention,
    wants_pieces,
)
from ..quadrature import Quadrature
from .keys import STEP


class SeparableForm(Form):
    """Base of the linear forms: the weight is an inner product of features."""

    word = Linear
    strategy: Linear
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not isinstance(kernel, Separable):
            return f"it needs {Linear.needs}; use {Linear.instead} instead"
        if facts.layout.pairs or (facts.layout.causal and facts.layout.cross):
            return "pairs, and an order across two domains, leave no moment that all queries share"
        if isinstance(kernel, Windowed) and kernel.window is not None:
            return "the last points are weighed by softmax, and not by features"
        return None

    def sums(
        self,
        kernel: Separable,
        problem: Problem,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        """Return the values weighed by inner products of features."""
        quadrature = problem.quadrature
        if isinstance(kernel, Decaying) and kernel.fades:
            quadrature = measure_of(kernel, problem)
        return linear_attention(
            query,
            key,
            value,
            quadrature,
            floor=kernel.floor,
            positive=kernel.nonnegative,
            chunk=self.strategy.chunk,
            backend=self.strategy.backend,
        )

    def respond(self, kernel: Separable, problem: Problem) -> Tensor:
        out = self.attend(kernel, problem)
        response = expanded(kernel, problem, out)
        return with_offset(response, kernel, problem)

    def attend(self, kernel: Separable, problem: Problem) -> Tensor:
        """Return the integral of the values, (B, H, Nq, c)."""
        raise NotImplementedError(f"{type(self).__name__} must define attend")


class Sums(SeparableForm):
    """One moment of the keys, (r × c), and one of their features: O(N·r·c)."""

    name = "two sums"
    reason = "the weight is an inner product of features, so the keys need one moment"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if facts.layout.causal:
            return "the domain has an order"
        return super().refuses(kernel, facts)

    def attend(self, kernel: Separable, problem: Problem) -> Tensor:
        queries = problem.ux.shape[2]
        keys = problem.uy.shape[2]
        longest = max(queries, keys)
        pointwise = kernel.pointwise and not isinstance(kernel, Expanded)
        # Pieces are made by PyTorch's operations.
        in_torch = not wants_triton(self.strategy.backend)
        if pointwise and in_torch and wants_pieces(problem.uy, longest, self.strategy.piece):
            return self._in_pieces(kernel, problem)
        query, key, _, value = features(kernel, problem)
        return self.sums(kernel, problem, query, key, value)

    def _in_pieces(self, kernel: Separable, problem: Problem) -> Tensor:
        """Integrate a piece of points at a time, so that inference never has the features of all
        points in memory.
        """
        p = problem
        valid = problem.quadrature.valid

        def keys(part: slice, least: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
            real = None
            if valid is not None:
                real = valid[:, part]
            y = p.y[:, part]
            uy = p.uy[:, :, part]
            features, shift = kernel.stable_key_features(y, uy, real, least)
            value = kernel.values(y, uy)
            return features, value, shift

        def queries(part: slice) -> Tensor:
            x = p.x[:, part]
            ux = p.ux[:, :, part]
            return kernel.stable_query_features(x, ux)

        sizes = p.ux.shape[2], p.uy.shape[2]
        piece = self.strategy.piece
        return attend_in_pieces(
            keys,
            queries,
            sizes,
            p.quadrature,
            floor=kernel.floor,
            piece=piece,
        )


class Chunks(SeparableForm):
    """A whole causal sequence: O(N·r·(c + chunk))."""

    name = "causal chunks"
    reason = (
        "the weight is an inner product of features: pairs inside a chunk, one moment for all "
        "chunks before"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not facts.layout.causal:
            return "the domain has no order"
        return super().refuses(kernel, facts)

    def attend(self, kernel: Separable, problem: Problem) -> Tensor:
        query, key, shift, value = features(kernel, problem)
        if shift is not None:
            # Keys have one shift for all queries, by which an early query may see tiny features:
            # it is brought to the scale of the largest feature that it sees.
            decay = measure_of(kernel, problem).decay
            largest_of_key = key.detach().amax(-1)
            largest = largest_seen(largest_of_key, decay)
            query = at_scale(query, largest)
        return self.sums(kernel, problem, query, key, value)


class RunningMoment(SeparableForm, StretchForm):
    """The same sequence in parts: the moment of the points before is the whole memory, O(r·c) time
    and memory per point. Stretches go in chunks, single points by themselves, in PyTorch with any
    backend.
    """

    name = "state of fixed size"
    reason = "the weight is an inner product of features, so the points before need one moment"
    responds = False

    def advance(
        self,
        kernel: Separable,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        # The quadrature is that of all points so far, of which u (B, H, n, d) has the last n. The
        # memory has the shift c of the keys before, below which that of these must not fall.
        n = u.shape[2]
        valid = quadrature.valid
        if valid is not None:
            valid = valid[:, -n:]
        joint = kernel.together(x, u, valid, memory.get("shift"))
        decay = None
        if isinstance(kernel, Decaying) and kernel.fades:
            decay = quadrature.exponents(kernel.rates(x, u))
        out, memory = advance_moment(
            joint,
            Quadrature(
                quadrature.mass[:, -n:],
                quadrature.scale,
                decay=decay,
            ),
            memory,
            floor=kernel.floor,
            positive=kernel.nonnegative,
            chunk=self.strategy.chunk,
        )
        problem = Problem(
            x,
            x,
            u,
            u,
            quadrature,
            STEP,
        )
        response = expanded(kernel, problem, out)
        return with_offset(response, kernel, problem), memory


# --- features -------------------------------------------------------------------------------------


def features(kernel: Separable, p: Problem) -> JointFeatures:
    """Return the features and values of a problem's two ends; together where queries are keys."""
    valid = p.quadrature.valid
    if p.ux is p.uy:
        return kernel.together(p.y, p.uy, valid)
    key, shift = kernel.stable_key_features(p.y, p.uy, valid)
    query = kernel.stable_query_features(p.x, p.ux)
    value = kernel.values(p.y, p.uy)
    return JointFeatures(query, key, shift, value)


def expanded(kernel: Separable, problem: Problem, response: Tensor) -> Tensor:
    """Return the response through the matrix at the query, where the kernel has one."""
    if isinstance(kernel, Expanded):
        return kernel.expand(problem.x, problem.ux, response)
    return response
