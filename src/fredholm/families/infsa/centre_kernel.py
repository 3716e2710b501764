"""Attention by a central query: the linear form of hops on a token graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...errors import DomainError, OptionError
from ...forms import OwnResponse
from ...integral import (
    CausalTransition,
    Exact,
    Layout,
    OwnForm,
    Point,
    Problem,
)
from ...ops.backend import at_least_single, cast, full_precision, number
from .capabilities import CentredWeights
from .centres import (
    Stream,
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


class CentreResponse(OwnResponse):
    """The kernel's own evaluation, whose pairs go tile by tile within the strategy's memory."""

    strategy: Exact

    def respond(self, kernel: CentreKernel, problem: Problem) -> Tensor:
        return kernel.evaluate_with(problem, alone, self.strategy.memory)


class CentreKernel(TokenGraphKernel, CentredWeights, OwnForm):
    r"""Weight keys by their similarity to a centre of all queries:
    :math:`K_h = \gamma_h^l\,a_h(y; u)\,V_h`, the same for every query:

    .. math:: e = |Q u|, \quad \alpha = \frac{e}{\int e\,d\mu + \varepsilon}, \quad
              \bar q = \int \alpha\,Q u\,d\mu, \quad
              S(y) = \phi(\langle \bar q, K u(y)\rangle), \quad
              a = \frac{S}{\int |S|\,d\mu + \varepsilon}

    and a = α where the last integral is zero. Further ``steps`` repeat the last two with
    :math:`\bar q = \int a\,Q u\,d\mu`. An order or pairs give each query integrals over what it
    sees, so that the weights depend on x and cost O(N²) time (tiled).

    Args:
        tied: keys equal queries, as in the paper; the default depends on the preset.
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
    forms = (CentreResponse, *TokenGraphKernel.forms)

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
            raise OptionError(f"expected steps and centres of 1 or more, got {steps} and {centres}")
        if tied is None:
            # An unknown preset is refused by the base class.
            preset = options.get("preset", "paper")
            tied = CONSTANTS.get(preset, CONSTANTS["paper"]).tied
        super().__init__(dim, heads, tied=tied, **options)
        self.steps = steps
        self.centres = centres
        # Drawn for one centre too, because seeds promise the same weights after it.
        probes = self._first_probes()
        self.probes: nn.Parameter | None = None
        if centres > 1:
            self.probes = nn.Parameter(probes)

    def _first_probes(self) -> Tensor:
        """Draw the probes, (H, C, e)."""
        return torch.randn(self.heads, self.centres, self.width) * self.width**-0.5

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Reset the maps and the decay as :class:`TokenGraphKernel` does, and draw new probes."""
        super().reset_parameters()

        # The base class calls this in its constructor, before there are probes.
        probes: nn.Parameter | None = getattr(self, "probes", None)
        if probes is not None:
            probes.copy_(self._first_probes())

    # --- the definition ---------------------------------------------------------------------------

    def weights(self, problem: Problem) -> Tensor:
        tokens = self._centred(problem.uy)

        # The queries of a part of the points mix several centres; with one they are not read.
        queries = tokens.query
        if self.centres > 1:
            queries = self._queries(problem.ux)
        with full_precision(problem.uy):
            seen = problem.quadrature.weights()
            seen = seen.to(tokens.energy.dtype)
            density = centre_weights(tokens, queries, seen)
            factor = self._factor().to(density.dtype)
            density = density * factor
        count = problem.ux.shape[2]
        return density.expand(-1, -1, count, -1)

    # --- the fast forms ---------------------------------------------------------------------------

    @property
    def local(self) -> bool:
        """Whether a few keys suffice: several centres belong to stretches of all queries."""
        return self.centres == 1

    def evaluates(self, layout: Layout) -> bool:
        return True

    def evaluate(self, problem: Problem) -> Tensor:
        """Return the response (B, H, Nq, d_out), or (B, H, 1, d_out) where all queries share it."""
        return self.evaluate_with(problem, alone)

    def evaluate_with(
        self,
        problem: Problem,
        total: Sum,
        memory: int | None = None,
    ) -> Tensor:
        """Return :meth:`evaluate`, where ``total`` turns sums over the points of a rank into those
        over the points of all.

        ``memory``: bytes of one tile of pairs where order or pairs give each query its centres;
        None for the device's default.
        """
        u = problem.uy
        q = problem.quadrature
        tokens = self._centred(u)
        if q.query_time is None and q.density is None:
            with full_precision(u):
                out = self._shared(tokens, u, q.mass, total)
                return cast(out * self._gain(out), u.dtype)
        value = self._values(u)
        with full_precision(u):
            out = self._apart(tokens, value, problem, memory)
            return cast(out * self._gain(out), u.dtype)

    def _values(self, u: Tensor) -> Tensor:
        """Return the values of features with their bias, in float32 at least."""
        value = self._heads(u, 2)
        value = self._with_bias(value)
        return self._precise(value)

    def _apart(
        self,
        tokens: Tokens,
        value: Tensor,
        problem: Problem,
        memory: int | None,
    ) -> Tensor:
        """Return the response where order or pairs give each query its centres."""
        return rows_of_centres(tokens, value, problem.quadrature, memory)

    def _shared(
        self,
        tokens: Tokens,
        u: Tensor,
        mass: Tensor,
        total: Sum,
    ) -> Tensor:
        """Return the response where all queries see all keys.

        Features are pooled before they become values: N·H·C·dim multiply-adds instead of N·dim².
        """
        mass = cast(mass, tokens.energy.dtype)
        weights, centre = shared_centres(tokens, mass, total)
        signal = cast(u.squeeze(1), weights.dtype)
        pooled = over_points(weights, signal)
        bias = self.value_bias()
        if bias is not None:
            # The bias is multiplied with the sum of the weights, which goes in the same message.
            amount = weights.sum(-1, keepdim=True)
            pooled = torch.cat([pooled, amount], -1)
        pooled = total(pooled)
        maps = cast(self.value_map(), pooled.dtype)
        if bias is None:
            out = through_heads(pooled, maps)
        else:
            features = pooled[..., : self.d_in]
            weight = pooled[..., self.d_in :]
            out = through_heads(features, maps)
            out = out + weight * bias
        if self.centres == 1:
            return out
        centre = centre[:, :, :, None]
        mixture = tokens.mixture(tokens.query, centre)
        return mixture.mT @ out

    # --- parts ------------------------------------------------------------------------------------

    def _centred(self, u: Tensor) -> Tokens:
        """Return the tokens that the centres are made of, in float32 at least."""
        query = self._queries(u)
        key = query
        if not self.tied or self.scale != 1.0:
            key = self._heads(u, 1)
            key = self._precise(key)
        with full_precision(u):
            energy = lengths(query)
            energy = energy.unsqueeze(2)
            if self.probes is not None:
                # A centre counts the tokens that are like its probe.
                likeness = self.probes.to(query.dtype) @ query.mT
                energy = energy * torch.sigmoid(likeness)
        return Tokens(
            query,
            key,
            energy,
            self.steps,
            self.activation,
            self.eps,
        )

    def _queries(self, u: Tensor) -> Tensor:
        query = self._heads(u, 0)
        query = self._precise(query)
        return self._scaled(query)

    def _precise(self, x: Tensor) -> Tensor:
        return cast(x, at_least_single(x.dtype))

    def _gain(self, out: Tensor) -> Tensor | float:
        """Return :meth:`_factor` beside a response: a number where all heads have the same."""
        if self.decay_logit is None:
            return number(self.gamma**self.power, out)
        return cast(self._factor(), out.dtype)

    def _factor(self) -> Tensor:
        """Return γ to the power of the layer, (H, 1, 1)."""
        factor = self.decay()
        if self.power != 1:
            factor = factor**self.power
        return factor.view(-1, 1, 1)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, steps={self.steps}, centres={self.centres}"


class StreamingCentreKernel(CentreKernel, CausalTransition):
    r"""The linear form with a causal state of fixed size: a key is scored once, by the centre at
    its time, :math:`S_j = \phi(\langle \bar q_j, K u_j\rangle)`; sums of S and S·V run on.

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
                "expected a causal domain without pairs for the streaming form, got pairs, which "
                "its sums over all earlier points cannot follow; use causal='exact', or a domain "
                "without pairs"
            )

    def weights(self, problem: Problem) -> Tensor:
        if problem.quadrature.query_time is None:
            return super().weights(problem)
        # A key's score depends on the points that it saw, also where few queries are asked for.
        of_all_queries = problem.parent or problem
        tokens = self._centred(problem.uy)
        dtype = tokens.energy.dtype
        seen = problem.quadrature.weights().to(dtype)
        seen_by_keys = of_all_queries.quadrature.weights().to(dtype)
        queries = self._queries(problem.ux)
        with full_precision(problem.uy):
            density = stream_weights(tokens, queries, seen, seen_by_keys)
            factor = self._factor().to(density.dtype)
            return density * factor

    def _apart(
        self,
        tokens: Tokens,
        value: Tensor,
        problem: Problem,
        memory: int | None,
    ) -> Tensor:
        if problem.quadrature.query_time is None:
            return super()._apart(tokens, value, problem, memory)
        return streamed_centres(tokens, value, problem.quadrature)

    def evaluate_stream(self, problem: Problem, running: Sum) -> Tensor:
        """Return the causal response; ``running`` takes sums up to each point, of dimension 3."""
        u = problem.uy
        tokens = self._centred(u)
        value = self._values(u)
        with full_precision(u):
            out = streamed_centres(tokens, value, problem.quadrature, running)
            factor = self._factor().to(out.dtype)
            out = out * factor
            return out.to(u.dtype)

    def start(self, u: Tensor) -> dict[str, Tensor]:
        batch = u.shape[0]
        levels = self.steps + 1
        dtype = at_least_single(u.dtype)
        shape = (batch, self.heads, self.centres, levels)
        totals = torch.zeros(shape, dtype=dtype, device=u.device)
        # Queries and values side by side.
        columns = self.width + self.d_out
        sums = totals.new_zeros(*shape, columns)
        return Stream(sums, totals)._asdict()

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        u = point.u[:, :, None]
        value = self._values(u)
        tokens = self._centred(u)
        before = Stream(memory["sums"], memory["totals"])
        with full_precision(u):
            out, after = advance_stream(
                tokens,
                value,
                point.mass,
                point.scale,
                before,
            )
            factor = self._factor()[..., 0]
            out = out * factor.to(out.dtype)
        return out.to(u.dtype), after._asdict()
