"""Attention by a central query: the linear form of hops on a token graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import DomainError, OptionError
from ...forms import OwnResponse
from ...integral import (
    CausalTransition,
    Layout,
    OwnForm,
    Point,
    Problem,
)
from ...ops.backend import at_least_single, cast, full_precision, number
from .capabilities import CentredWeights
from .centres import (
    Sum,
    Tokens,
    advance_stream,
    alone,
    centre_weights,
    lengths,
    over_points,
    rows_of_centres,
    shared_centres,
    stream_weights,
    streamed_centres,
    through_heads,
)
from .kernel import CONSTANTS, TokenGraphKernel


class CentreKernel(TokenGraphKernel, CentredWeights, OwnForm):
    r"""Keys count by their likeness to a centre of all queries:
    :math:`K_h = \gamma_h^l\,a_h(y; u)\,V_h`, the same for every query:

    .. math:: e = |Q u|, \quad \alpha = \frac{e}{\int e\,d\mu + \varepsilon}, \quad
              \bar q = \int \alpha\,Q u\,d\mu, \quad
              S(y) = \phi(\langle \bar q, K u(y)\rangle), \quad
              a = \frac{S}{\int |S|\,d\mu + \varepsilon}

    and a = α where the last integral is zero. Further ``steps`` repeat the last two with
    :math:`\bar q = \int a\,Q u\,d\mu`. An order or pairs give each query integrals over what it
    sees, so that the weights depend on x and cost O(N²) time (tiled).

    Args:
        tied: keys are the queries, as in the paper; the default is the preset's.
        steps: power steps, at least 1.
        centres: C central queries per head; the energies of centre c are
            :math:`|Q u|\,\sigma(\langle p_c, Q u\rangle)` with learned p, and a query mixes the C
            responses by a softmax of :math:`\langle \bar q_c, Q u(x)\rangle / \sqrt{d_h}`: rank C,
            not 1.
        options: see :class:`TokenGraphKernel`.

    Reference: InfSA Eqs. 16-21; steps and centres are two of its future directions, order and
    masses are ours.

    Example:
        >>> CentreKernel(8, 2, steps=2).tied
        True
    """

    rowwise = True
    forms = (OwnResponse, *TokenGraphKernel.forms)

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        tied: bool | None = None,
        steps: int = 1,
        centres: int = 1,
        **options,
    ):
        if steps < 1 or centres < 1:
            raise OptionError(f"steps and centres are at least 1, got {steps} and {centres}")
        if tied is None:
            # An unknown preset is refused by the base class.
            preset = options.get("preset", "paper")
            tied = CONSTANTS.get(preset, CONSTANTS["paper"]).tied
        super().__init__(dim, heads, tied=tied, **options)
        self.steps, self.centres = steps, centres
        probes = torch.randn(heads, centres, self.width) * self.width**-0.5
        self.probes = nn.Parameter(probes) if centres > 1 else None

    # --- the definition ---------------------------------------------------------------------------

    def weights(self, problem: Problem) -> Tensor:
        tokens = self._centred(problem.uy)
        # of one centre there is no mixture to be made for each query
        queries = tokens.query if self.centres == 1 else self._queries(problem.ux)
        with full_precision(problem.uy):
            density = centre_weights(
                tokens, queries, problem.quadrature.weights().to(tokens.energy.dtype)
            )
            density = density * self._factor().to(density.dtype)
        return density.expand(-1, -1, problem.ux.shape[2], -1)

    # --- the fast forms ---------------------------------------------------------------------------

    @property
    def local(self) -> bool:
        """Several centres belong to stretches of all queries."""
        return self.centres == 1

    def evaluates(self, layout: Layout) -> bool:
        return True

    def evaluate(self, problem: Problem) -> Tensor:
        """The response (B, H, Nq, d_out), or (B, H, 1, d_out) where all queries share it."""
        return self.evaluate_with(problem, alone)

    def evaluate_with(self, problem: Problem, total: Sum) -> Tensor:
        """:meth:`evaluate`, where ``total`` makes the sum over all points from that over these."""
        u, q, tokens = problem.uy, problem.quadrature, self._centred(problem.uy)
        shared = q.query_time is None and q.density is None
        value = None if shared else self._precise(self._with_bias(self._heads(u, 2)))
        with full_precision(u):
            out = (
                self._shared(tokens, u, q.mass, total)
                if value is None
                else self._apart(tokens, value, problem)
            )
            return cast(out * self._gain(out), u.dtype)

    def _apart(self, tokens: Tokens, value: Tensor, problem: Problem) -> Tensor:
        """Where order or pairs give each query its centres."""
        return rows_of_centres(tokens, value, problem.quadrature)

    def _shared(self, tokens: Tokens, u: Tensor, mass: Tensor, total: Sum) -> Tensor:
        """All queries see all keys. Features are pooled before they become values: N·H·C·dim
        multiply-adds for N·dim².
        """
        weights, centre = shared_centres(tokens, cast(mass, tokens.energy.dtype), total)
        pooled = over_points(weights, cast(u.squeeze(1), weights.dtype))
        bias = self._map(2)[1]
        if bias is not None:  # what it is multiplied with, in the same message
            pooled = torch.cat([pooled, weights.sum(-1, keepdim=True)], -1)
        pooled = total(pooled)
        features = pooled if bias is None else pooled[..., : self.d_in]
        maps = cast(self.value_map(), pooled.dtype)
        out = through_heads(features, maps)
        if bias is not None:
            share = self._share(bias.view(1, self.groups, 1, self.d_out))
            out = out + pooled[..., self.d_in :] * share
        if self.centres == 1:
            return out
        mixture = tokens.mixture(tokens.query, centre[:, :, :, None])
        assert mixture is not None
        return mixture.mT @ out

    # --- parts ------------------------------------------------------------------------------------

    def _centred(self, u: Tensor) -> Tokens:
        """What the centres are made of, in float32 at least."""
        query = self._queries(u)
        key = query if self.tied and self.scale == 1.0 else self._precise(self._heads(u, 1))
        with full_precision(u):
            energy = lengths(query).unsqueeze(2)
            if self.probes is not None:
                energy = energy * torch.sigmoid(self.probes.to(query.dtype) @ query.mT)
        return Tokens(query, key, energy, self.steps, self.activation, self.eps)

    def _queries(self, u: Tensor) -> Tensor:
        query = self._precise(self._heads(u, 0))
        return query if self.scale == 1.0 else query * self.scale

    def _precise(self, x: Tensor) -> Tensor:
        return cast(x, at_least_single(x.dtype))

    def _gain(self, out: Tensor) -> Tensor | float:
        """:meth:`_factor` beside a response: a number where no head has its own."""
        if self.decay_logit is None:
            return number(self.gamma**self.power, out)
        return cast(self._factor(), out.dtype)

    def _factor(self) -> Tensor:
        decay = self.decay()
        return (decay if self.power == 1 else decay**self.power).view(-1, 1, 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, steps={self.steps}, centres={self.centres}"


class StreamingCentreKernel(CentreKernel, CausalTransition):
    r"""The linear form with a causal state of fixed size: a key is scored once, against the centre
    at its own time,
    :math:`S_j = \phi(\langle \bar q_j, K u_j\rangle)`; sums of S and S·V run on.

    Without order it is :class:`CentreKernel`. In causal order it is another function: the exact
    form scores all keys anew for each query, which is not separable and costs O(N²). The state is
    O(C·steps·(e + d)) per head.

    Raises:
        DomainError: pairs in causal order, which no state of fixed size can follow.

    Reference: ours; InfSA Eqs. 16-21 at a prefix.
    """

    def check(self, layout: Layout) -> None:
        super().check(layout)
        if layout.pairs and layout.causal:
            raise DomainError(
                "the streaming form keeps sums over all earlier points and cannot serve pair masks "
                "or biases in causal order; "
                "use causal='exact', or a domain without pairs"
            )

    def weights(self, problem: Problem) -> Tensor:
        if problem.quadrature.query_time is None:
            return super().weights(problem)
        whole = problem if problem.parent is None else problem.parent
        tokens = self._centred(problem.uy)
        views = [p.quadrature.weights().to(tokens.energy.dtype) for p in (problem, whole)]
        queries = self._queries(problem.ux)
        with full_precision(problem.uy):
            density = stream_weights(tokens, queries, *views)
            return density * self._factor().to(density.dtype)

    def _apart(self, tokens: Tokens, value: Tensor, problem: Problem) -> Tensor:
        if problem.quadrature.query_time is None:
            return super()._apart(tokens, value, problem)
        return streamed_centres(tokens, value, problem.quadrature)

    def evaluate_stream(self, problem: Problem, running: Sum) -> Tensor:
        """The causal response; ``running`` takes sums up to each point, of dimension 3."""
        u, tokens = problem.uy, self._centred(problem.uy)
        value = self._precise(self._with_bias(self._heads(u, 2)))
        with full_precision(u):
            out = streamed_centres(tokens, value, problem.quadrature, running)
            return (out * self._factor().to(out.dtype)).to(u.dtype)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        shape = (u.shape[0], self.heads, self.centres, self.steps + 1)
        dtype = torch.promote_types(u.dtype, torch.float32)
        sums = torch.zeros(*shape, self.width + self.d_out, dtype=dtype, device=u.device)
        return {"sums": sums, "totals": torch.zeros(shape, dtype=dtype, device=u.device)}

    def advance(self, point: Point, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        u = point.u[:, :, None]
        value, tokens = self._precise(self._with_bias(self._heads(u, 2))), self._centred(u)
        with full_precision(u):
            out, sums, totals = advance_stream(
                tokens, value, point.mass, point.scale, memory["sums"], memory["totals"]
            )
            out = out * self._factor()[..., 0].to(out.dtype)
        return out.to(u.dtype), {"sums": sums, "totals": totals}
