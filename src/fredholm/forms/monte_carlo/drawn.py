"""The integral from keys drawn for each query: importance sampling in training, an evenly spread
lattice in evaluation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...integral.capabilities import OwnForm
from ...integral.contract import Form, Kernel, Memory, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...ops.anchors import Mixture, Table, draw, lattice, take_keys
from ...ops.backend import cast
from ...ops.plain import recomputed
from ...quadrature import Quadrature
from .anchors import check_count
from .strategy import MonteCarlo

if TYPE_CHECKING:
    from .proposal import Proposal

BYTES = 1 << 26
"""Memory of the sampled terms of one block of queries."""


class ProposalScores(NamedTuple):
    """A mixture of A components: shares π (B, H, Nq, A), and scores g (B, H, A, Nk) of keys."""

    share: Tensor
    score: Tensor


class Samples(NamedTuple):
    """The keys drawn for each query.

    Attributes:
        index: the keys, (B, H, Nq, S).
        weight: their factors in the estimate, quadrature weight / (S·q), (B, H, Nq, S).
    """

    index: Tensor
    weight: Tensor


def proposal_of(kernel: Kernel) -> Proposal | None:
    """Return the network that :func:`.add_proposal` gave to a kernel, or None."""
    return getattr(kernel, "proposal", None)


class DrawnKeys(Form):
    """Base of both forms: the keys of each query, the estimator, and the proposal's loss."""

    word = MonteCarlo
    strategy: MonteCarlo

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, OwnForm):
            return f"it needs {MonteCarlo.needs}; use {MonteCarlo.instead} instead"
        if facts.tracing:
            return "it is eager only, but for evaluation with anchors=Anchors.of(domain, samples)"
        return None

    def preferred(self, kernel: Kernel, facts: Facts) -> bool:
        return False

    # --- sampling ---------------------------------------------------------------------------------

    def proposal(self, kernel: Kernel, problem: Problem) -> Mixture | Table:
        r"""Return the distribution that keys are drawn from,
        :math:`(1 - \varepsilon)\,q(y|x) + \varepsilon / N(x)`: the proposal q, mixed by the floor ε
        with the uniform distribution over the N(x) keys that a query sees.
        """
        q = problem.quadrature
        share, score = self._scores(kernel, problem)
        mass = q.mass.detach()[:, None, None].to(score.dtype)
        has_mass = (mass > 0).to(score.dtype)

        # In a sample of padding alone every logarithm is -inf, and the softmax's gradient NaN.
        any_mass = has_mass.any(-1, keepdim=True)
        logits = torch.where(any_mass, score + mass.log(), 0.0)
        parts = (logits.softmax(-1) * has_mass).nan_to_num(0.0)

        if q.density is None and (q.query_time is None or q.triangular):
            return self._mixture(
                share,
                parts,
                has_mass,
                ordered=q.triangular,
            )
        return self._table(share, parts, has_mass, q)

    def _mixture(
        self,
        share: Tensor,
        parts: Tensor,
        has_mass: Tensor,
        ordered: bool,
    ) -> Mixture:
        """Return the proposal with the uniform distribution as one more component, so that nothing
        of size Nq × Nk is made.
        """
        floor = self.strategy.floor
        batch, heads, _, _ = share.shape
        uniform = _uniform(has_mass).expand(batch, heads, -1, -1)
        floors = torch.full_like(share[..., :1], floor)
        return Mixture(
            share=torch.cat([(1.0 - floor) * share, floors], -1),
            parts=torch.cat([parts, uniform], 2),
            ordered=ordered,
        )

    def _table(
        self,
        share: Tensor,
        parts: Tensor,
        has_mass: Tensor,
        q: Quadrature,
    ) -> Table:
        """Return the proposal for pairs, or an order across two domains, which give each query its
        own distribution.
        """
        floor = self.strategy.floor
        visible = torch.ones_like(has_mass)
        if q.density is not None:
            visible = q.density.detach().to(parts.dtype)
        order = q.order()
        if order is not None:
            visible = visible * order[:, None]

        # A query that sees nothing has a sum of zero to divide by.
        mixed = share @ parts * visible
        tiny = torch.finfo(mixed.dtype).tiny
        mixed = mixed / mixed.sum(-1, keepdim=True).clamp(min=tiny)
        uniform = _uniform(has_mass * (visible > 0))
        return Table((1.0 - floor) * mixed + floor * uniform)

    def _scores(self, kernel: Kernel, problem: Problem) -> ProposalScores:
        """Return the mixture of the kernel's proposal network, for each sample and head.

        A kernel without a proposal gets a single component with a score of 0 at every key.
        :meth:`proposal` adds the logarithms of the masses to the scores, so that this component
        draws keys in proportion to their mass.
        """
        batch = problem.uy.shape[0]
        heads = kernel.heads
        network = proposal_of(kernel)
        if network is None:
            mass = problem.quadrature.mass
            queries = problem.ux.shape[2]
            keys = problem.uy.shape[2]
            share = mass.new_ones(batch, heads, queries, 1)
            score = mass.new_zeros(batch, heads, 1, keys)
            return ProposalScores(share, score)

        # The signal may have one head that all heads of the kernel share.
        share, score = network(
            problem.x,
            problem.y,
            problem.ux,
            problem.uy,
        )
        share = share.expand(batch, heads, -1, -1)
        score = score.expand(batch, heads, -1, -1)
        return ProposalScores(share, score)

    def draw(
        self,
        problem: Problem,
        proposal: Mixture | Table,
        levels: Tensor | None = None,
    ) -> Samples:
        """Draw keys, at random or at given ``levels`` of the distribution function.

        Weights are constants to the kernel's gradient, except for the measure and the pairs'
        density.
        """
        q = problem.quadrature
        index = draw(proposal, self.strategy.samples, levels=levels)
        with torch.no_grad():
            probability = proposal.density(index)

        weight = take_keys(q.mass[:, None, :, None], index)[..., 0]
        if q.density is not None:
            batch, heads, queries, _ = index.shape
            density = q.density.expand(batch, heads, queries, -1)
            weight = weight * density.gather(-1, index)
        if q.query_time is not None and q.key_time is not None and not q.triangular:
            key_time = take_keys(q.key_time[:, None, :, None], index)[..., 0]
            before = key_time <= q.query_time[:, None, :, None]
            weight = torch.where(before, weight, 0.0)

        # A query that sees nothing draws keys of probability zero.
        drawn = probability > 0
        ratio = weight / torch.where(drawn, probability, 1.0)
        weight = torch.where(drawn, ratio, 0.0)
        if q.scale is not None:
            weight = weight * q.scale[..., None]
        return Samples(index, weight / self.strategy.samples)

    def estimate(
        self,
        kernel: Kernel,
        problem: Problem,
        samples: Samples,
    ) -> Tensor:
        """Return the estimate from given samples, the response to a constant channel included."""
        out = self.estimated(kernel, problem, samples)
        return with_offset(out, kernel, problem)

    def estimated(
        self,
        kernel: Kernel,
        problem: Problem,
        samples: Samples,
    ) -> Tensor:
        """Estimate ∫ K u dμ from given samples, without the response to a constant channel:
        (B, H, Nq, d_out).

        Works on one block of queries at a time. The backward computes each block again, so that
        the terms of a single block are in memory at any time.
        """
        queries = problem.ux.shape[2]

        # One query has a drawn pair for each sample of the batch, head and draw: B · H · S of them,
        # in float32 (4 bytes per number).
        pairs_per_query = samples.index[:, :, 0].numel()
        bytes_per_query = 4 * pairs_per_query * self.numbers_per_pair(kernel)
        block = max(1, BYTES // bytes_per_query)

        keys = self.key_terms(kernel, problem)
        if block >= queries:
            return self.integral(kernel, problem, samples, keys)

        responses = []
        for start in range(0, queries, block):
            rows = torch.arange(
                start,
                min(queries, start + block),
                device=problem.uy.device,
            )
            drawn = Samples(
                samples.index[:, :, rows],
                samples.weight[:, :, rows],
            )
            response = recomputed(
                self.integral,
                kernel,
                problem.rows(rows),
                drawn,
                keys,
            )
            responses.append(response)
        return torch.cat(responses, 2)

    def numbers_per_pair(self, kernel: Kernel) -> int:
        """Return the numbers in memory for a drawn pair."""
        return kernel.d_in * kernel.d_out

    def key_terms(self, kernel: Kernel, problem: Problem) -> Memory:
        """Compute once for all keys."""
        return {}

    def integral(
        self,
        kernel: Kernel,
        problem: Problem,
        samples: Samples,
        keys: Memory,
    ) -> Tensor:
        """Return ∫ K u dμ from given samples, (B, H, Nq, d_out)."""
        messages = _messages(kernel, problem, samples.index)
        weight = samples.weight[..., None].to(messages.dtype)
        return (messages * weight).sum(3)

    def proposal_loss(
        self,
        kernel: Kernel,
        problem: Problem,
        proposal: Mixture | Table,
        samples: Samples,
    ) -> Tensor:
        r"""Return the loss that draws the proposal towards the best one, a number:
        :math:`-\sum_s \hat p_s \log q(y_s|x)` with
        :math:`\hat p_s \propto |K u|\,\mu / q`.

        This is the cross-entropy of q to the distribution of keys with the least variance, which is
        proportional to ‖K u‖ μ. It is estimated from the keys that were drawn. Mean over heads and
        at most ``loss_queries`` real queries of the batch; zero where all points are padding. Its
        gradient reaches the proposal alone, because p̂ is computed without one.
        """
        # Queries of all samples are numbered through: query i of sample s is number s · n + i.
        samples_in_batch = problem.uy.shape[0]
        n = problem.ux.shape[2]
        real = torch.arange(samples_in_batch * n, device=problem.uy.device)
        if problem.real is not None:
            is_real = problem.real.expand(samples_in_batch, -1)
            real = real[is_real.flatten()]
        order = torch.randperm(len(real), device=real.device)
        chosen = real[order[: self.strategy.loss_queries]]
        batch = chosen // n
        rows = chosen % n

        # One problem per chosen query: C of them, each with H heads, one query and S drawn keys,
        # (C, H, 1, S).
        index = samples.index[batch, :, rows][:, :, None]
        weight = samples.weight[batch, :, rows][:, :, None]
        if not len(real):
            return weight.new_zeros(())

        # The norms |K u| of the drawn keys. One query at a time, so that the kernel's matrices of a
        # single query are in memory.
        with torch.no_grad():
            sizes = []
            for i, (element, row) in enumerate(zip(batch.tolist(), rows.tolist())):
                query = _one_query(problem, element, row)
                messages = _messages(kernel, query, index[i : i + 1])
                sizes.append(torch.linalg.vector_norm(messages, dim=-1))
            best = torch.cat(sizes) * weight.detach()
            target = F.normalize(best, p=1.0, dim=-1)

        # A probability that underflows has no finite logarithm.
        density = proposal.density_at(batch, rows, index)
        tiny = torch.finfo(weight.dtype).tiny
        density = density.clamp(min=tiny)
        log_likelihood = (target.to(density.dtype) * density.log()).sum(-1)
        return -log_likelihood.mean()


class SampledKeys(DrawnKeys):
    """Keys drawn from the proposal: unbiased, and the proposal learns from what was drawn."""

    name = "sampled keys"
    reason = "in training each query draws keys from the proposal, which is unbiased"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if not facts.training:
            return "evaluation draws nothing"
        return super().refuses(kernel, facts)

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        """Return the estimate from newly drawn keys, (B, H, Nq, d_out).

        Where the kernel has a proposal network and gradients are recorded, the network also keeps
        the loss of this draw until :func:`.auxiliary_loss` adds it to the training loss.
        """
        check_count(self.strategy.samples, problem.uy.shape[2])
        proposal = self.proposal(kernel, problem)
        samples = self.draw(problem, proposal)
        network = proposal_of(kernel)
        if network is not None and torch.is_grad_enabled():
            loss = self.proposal_loss(kernel, problem, proposal, samples)
            network.leave_loss(self.strategy.loss_weight * loss)
        return self.estimate(kernel, problem, samples)


class LatticeKeys(DrawnKeys):
    """Keys at an even lattice of the proposal's levels, other ones for each head and query."""

    name = "evenly spread keys"
    reason = (
        "in evaluation each query takes keys of its own from a lattice over the proposal, which is "
        "deterministic"
    )

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if facts.training or self.strategy.anchors is not False:
            return "training draws keys, and anchors replace them"
        return super().refuses(kernel, facts)

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        count = self.strategy.samples
        queries = problem.ux.shape[2]
        keys = problem.uy.shape[2]
        check_count(count, keys)
        levels = lattice(
            kernel.heads,
            queries,
            count,
            problem.uy.device,
        )
        proposal = self.proposal(kernel, problem)
        samples = self.draw(problem, proposal, levels)
        return self.estimate(kernel, problem, samples)


def _uniform(visible: Tensor) -> Tensor:
    """Return the uniform distribution over the keys marked with 1, zero where there are none."""
    count = visible.sum(-1, keepdim=True)
    return visible / count.clamp(min=1.0)


def _one_query(problem: Problem, element: int, row: int) -> Problem:
    """Return the problem of one query of one element of the batch."""

    def pick(x: Tensor) -> Tensor:
        if x.shape[0] == 1:
            return x
        return x[element : element + 1]

    of_row = problem.rows([row])
    return replace(
        of_row,
        x=pick(of_row.x),
        y=pick(of_row.y),
        ux=pick(of_row.ux),
        uy=pick(of_row.uy),
    )


def _messages(kernel: Kernel, problem: Problem, index: Tensor) -> Tensor:
    """Return K(x, y_s) u(y_s) for the keys drawn for each query, (B, H, Nq, S, d_out)."""
    x = problem.x[:, None, :, None]
    ux = problem.ux[:, :, :, None]
    y = take_keys(problem.y[:, None], index)
    signal = take_keys(problem.uy, index)
    matrix = kernel(x, y, ux, signal)

    # Positions may be more precise than features, and the matrix with them.
    message = matrix @ cast(signal, matrix.dtype)[..., None]
    return message[..., 0]
