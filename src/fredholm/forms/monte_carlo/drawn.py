"""The integral from keys drawn for each query: importance sampling in training, an evenly spread
lattice in evaluation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ...integral.capabilities import OwnForm
from ...integral.contract import Form, Kernel, Memory, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...ops.anchors import Mixture, Table, draw, lattice, take_keys
from ...ops.plain import recomputed
from .anchors import check_count
from .strategy import MonteCarlo

BYTES = 1 << 26  # of one query block's sampled terms


class Samples(NamedTuple):
    """Keys of each query and what they count: ``weight`` = quadrature weight / (S·q), both (B, H,
    Nq, S).
    """

    index: Tensor
    weight: Tensor


class DrawnKeys(Form):
    """Base of both: keys of each query, the estimator from them, and the proposal's loss."""

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
        """The distribution that keys are drawn from, the floor included."""
        p, q = problem, problem.quadrature
        shape = (p.uy.shape[0], kernel.heads)
        network: Any = getattr(kernel, "proposal", None)
        if network is None:
            share, score = (
                q.mass.new_ones(*shape, p.ux.shape[2], 1),
                q.mass.new_zeros(*shape, 1, p.uy.shape[2]),
            )
        else:
            share, score = network(p.x, p.y, p.ux, p.uy)
            share, score = share.expand(*shape, -1, -1), score.expand(*shape, -1, -1)
        mass = q.mass.detach()[:, None, None].to(score.dtype)
        some = (mass > 0).to(score.dtype)
        # of padding alone there is no logarithm to take, and its gradient would be NaN
        logits = torch.where(some.any(-1, keepdim=True), score + mass.log(), 0.0)
        parts = (logits.softmax(-1) * some).nan_to_num(0.0)
        even = some / some.sum(-1, keepdim=True).clamp(min=1.0)
        if q.density is None and (q.query_time is None or q.triangular):
            share = torch.cat(
                [
                    (1.0 - self.strategy.floor) * share,
                    torch.full_like(share[..., :1], self.strategy.floor),
                ],
                -1,
            )
            return Mixture(
                share, torch.cat([parts, even.expand(*shape, -1, -1)], 2), ordered=q.triangular
            )
        weight = torch.ones_like(some) if q.density is None else q.density.detach().to(score.dtype)
        order = q.order()
        weight = weight if order is None else weight * order[:, None]
        mixed, even = share @ parts * weight, some * (weight > 0)
        mixed = mixed / mixed.sum(-1, keepdim=True).clamp(min=torch.finfo(mixed.dtype).tiny)
        even = even / even.sum(-1, keepdim=True).clamp(min=1.0)
        return Table((1.0 - self.strategy.floor) * mixed + self.strategy.floor * even)

    def draw(
        self,
        problem: Problem,
        proposal: Mixture | Table,
        generator: torch.Generator | None = None,
        levels: Tensor | None = None,
    ) -> Samples:
        """Keys and weights: constants to the kernel's gradient, but for the measure and the pairs'
        density.
        """
        index = draw(proposal, self.strategy.samples, generator, levels)
        with torch.no_grad():
            probability = proposal.density(index)
        q = problem.quadrature
        weight = take_keys(q.mass[:, None, :, None], index)[..., 0]
        if q.density is not None:
            weight = weight * q.density.expand(*index.shape[:3], -1).gather(-1, index)
        if q.query_time is not None and not q.triangular:
            key = take_keys(q.key_time[:, None, :, None], index)[..., 0]  # type: ignore[index]
            weight = torch.where(key <= q.query_time[:, None, :, None], weight, 0.0)
        weight = torch.where(
            probability > 0, weight / torch.where(probability > 0, probability, 1.0), 0.0
        )
        if q.scale is not None:
            weight = weight * q.scale[..., None]
        return Samples(index, weight / self.strategy.samples)

    def estimate(self, kernel: Kernel, problem: Problem, samples: Samples) -> Tensor:
        """The estimator for given samples, the kernel's response to a constant channel included."""
        return with_offset(self.estimated(kernel, problem, samples), kernel, problem)

    def estimated(self, kernel: Kernel, problem: Problem, samples: Samples) -> Tensor:
        """The integral from given samples, a block of queries at a time."""
        p, n = problem, problem.ux.shape[2]
        width = self.numbers_per_pair(kernel)
        block = max(1, BYTES // (4 * samples.index[:, :, 0].numel() * width))
        keys = self.key_terms(kernel, p)
        if block >= n:
            return self.integral(kernel, p, samples, keys)
        outs = []
        for start in range(0, n, block):
            rows = torch.arange(start, min(n, start + block), device=p.uy.device)
            part = Samples(samples.index[:, :, rows], samples.weight[:, :, rows])
            outs.append(recomputed(self.integral, kernel, p.rows(rows), part, keys))
        return torch.cat(outs, 2)

    def numbers_per_pair(self, kernel: Kernel) -> int:
        """How many numbers are in memory for a drawn pair."""
        return kernel.d_in * kernel.d_out

    def key_terms(self, kernel: Kernel, problem: Problem) -> Memory:
        """What is computed once for all keys."""
        return {}

    def integral(self, kernel: Kernel, problem: Problem, samples: Samples, keys: Memory) -> Tensor:
        """∫ K u dμ from given samples, (B, H, Nq, d_out)."""
        messages = _messages(kernel, problem, samples.index)
        return (messages * samples.weight[..., None].to(messages.dtype)).sum(3)

    def proposal_loss(
        self, kernel: Kernel, problem: Problem, proposal: Mixture | Table, samples: Samples
    ) -> Tensor:
        r""":math:`-\sum_s \hat p_s \log q(y_s|x)`, :math:`\hat p_s \propto |K u|\,\mu / q`; mean
        over heads and some real queries, zero where there are none.
        """
        b, n = problem.uy.shape[0], problem.ux.shape[2]
        real = torch.arange(b * n, device=problem.uy.device)
        if problem.real is not None:
            real = real[problem.real.expand(b, -1).flatten()]
        chosen = real[torch.randperm(len(real), device=real.device)[: self.strategy.loss_queries]]
        batch, rows = chosen // n, chosen % n
        index, weight = (x[batch, :, rows][:, :, None] for x in samples)
        if not len(real):
            return weight.new_zeros(())
        with torch.no_grad():
            sizes = [
                torch.linalg.vector_norm(
                    _messages(kernel, _one(problem, e, r), index[i : i + 1]), dim=-1
                )
                for i, (e, r) in enumerate(zip(batch.tolist(), rows.tolist()))
            ]
            target = F.normalize(torch.cat(sizes) * weight.detach(), p=1.0, dim=-1)
        density = proposal.density_at(batch, rows, index)
        density = density.clamp(min=torch.finfo(weight.dtype).tiny)  # its logarithm is finite
        return -(target.to(density.dtype) * density.log()).sum(-1).mean()


class SampledKeys(DrawnKeys):
    """Keys drawn from the proposal: unbiased, and the proposal learns from what was drawn."""

    name = "sampled keys"
    reason = "in training each query draws keys from the proposal, which is unbiased"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        return super().refuses(kernel, facts) if facts.training else "evaluation draws nothing"

    def respond(self, kernel: Kernel, problem: Problem) -> Tensor:
        check_count(self.strategy.samples, problem.uy.shape[2])
        proposal = self.proposal(kernel, problem)
        samples = self.draw(problem, proposal)
        network: Any = getattr(kernel, "proposal", None)
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
        n = self.strategy.samples
        check_count(n, problem.uy.shape[2])
        levels = lattice(kernel.heads, problem.ux.shape[2], n, problem.uy.device)
        samples = self.draw(problem, self.proposal(kernel, problem), levels=levels)
        return self.estimate(kernel, problem, samples)


def _one(problem: Problem, element: int, row: int) -> Problem:
    """One query of one element of the batch."""

    def pick(x: Tensor) -> Tensor:
        return x if x.shape[0] == 1 else x[element : element + 1]

    p = problem.rows([row])
    return replace(p, x=pick(p.x), y=pick(p.y), ux=pick(p.ux), uy=pick(p.uy))


def _messages(kernel: Kernel, problem: Problem, index: Tensor) -> Tensor:
    """K(x, y_s) u(y_s), (B, H, Nq, S, d_out)."""
    p, signal = problem, take_keys(problem.uy, index)
    matrix = kernel(
        p.x[:, None, :, None], take_keys(p.y[:, None], index), p.ux[:, :, :, None], signal
    )
    return (matrix @ signal[..., None])[..., 0]
