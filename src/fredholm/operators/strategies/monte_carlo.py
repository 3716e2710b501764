"""The integral from few keys: importance sampling in training, evenly spread keys or clusters of
positions in evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...errors import DomainError, OptionError, StrategyError
from ...kernels import (
    GraphDiffusion,
    HiddenReadout,
    Kernel,
    Layout,
    OwnForm,
    Problem,
    SplitHidden,
    WeightedValue,
    has_trait,
)
from ...ops.anchors import Mixture, Table, draw, lattice, sampled_mlp_kernel, take_keys
from .anchors import Anchors, at_anchors, check_count
from .base import Keys, Strategy, with_offset
from .exact import Exact, grid_displacements

SAMPLES, LATTICE, ANCHORS = "sampled keys", "evenly spread keys", "anchors"
REASONS = {
    SAMPLES: "in training each query draws keys from the proposal, which is unbiased",
    LATTICE: "in evaluation each query takes keys of its own from a lattice over the proposal, "
    "which is deterministic",
    ANCHORS: "in evaluation clusters of positions stand for all keys, which is deterministic",
}
BYTES = 1 << 26  # of one query block's sampled terms


class Samples(NamedTuple):
    """Keys of each query and what they count: ``weight`` = quadrature weight / (S·q), both (B, H,
    Nq, S).
    """

    index: Tensor
    weight: Tensor


@dataclass(frozen=True)
class MonteCarlo(Strategy):
    r"""S keys a query instead of N:
    :math:`\int K u\,d\mu \approx \frac1S \sum_s \frac{\mu(y_s)}{q(y_s|x)} K(x, y_s) u(y_s)`.

    While the kernel is in training mode keys are drawn, with replacement, from its proposal
    (:func:`fredholm.kernels.add_proposal`) or, where it has none, by measure, mixed with ``floor``
    of the uniform distribution over the keys a query sees. The estimate and its gradients are
    unbiased. A proposal is trained by :func:`fredholm.kernels.auxiliary_loss`, left behind by each
    forward. In evaluation mode the result is deterministic: random levels give way to a lattice
    (:func:`fredholm.ops.anchors.lattice`), alike for all elements of a batch, other for every head
    and query. With ``anchors`` few points stand for clusters of positions instead, the same ones
    for all queries, whose errors then add up; in causal order the earliest point of each cluster,
    which counts for what the query sees of it.

    Args:
        samples: S, at most N.
        floor: ε.
        anchors: evaluate at clusters of the domain, made once by ``Anchors.of(domain, samples)``,
            or by each call (True).
        loss_weight: λ.
        loss_queries: queries, drawn at random from all of the batch, over which the proposal's loss
            is averaged: each costs S whole kernel matrices a head.

    Cost: O(N·S·w·d) for an MLP kernel and O(N·A) for a proposal of A components; pairs, and an
    order across two domains, O(N²·A) for the proposal. Blocks of queries are recomputed in the
    backward.

    Raises:
        OptionError: more samples than points, or anchors that are none.
        StrategyError: kernels that are not a function of two ends (a normaliser, a trajectory);
            ``step``; traced code.
        DomainError: anchors on a domain with pairs; anchors of another domain.

    Reference: ITNet §3.2, Eqs. 13, 14, 207-210; the lattice is ours.

    Example:
        >>> MonteCarlo(samples=32).exact
        False
    """

    exact: ClassVar[bool] = False
    samples: int = 128
    floor: float = 0.1
    anchors: Anchors | bool = False
    loss_weight: float = 0.1
    loss_queries: int = 16

    def __post_init__(self):
        if self.samples < 1 or self.loss_queries < 1:
            raise OptionError(
                f"samples and loss_queries are at least 1, got {self.samples} and "
                f"{self.loss_queries}"
            )
        if not 0.0 < self.floor <= 1.0:
            raise OptionError(f"the proposal's floor lies in (0, 1], got {self.floor}")
        if not isinstance(self.anchors, Anchors | bool):
            raise OptionError(
                f"anchors is True, False or Anchors.of(domain, samples), got {self.anchors!r}"
            )

    def path(self, kernel: Kernel, layout: Layout) -> str:
        if layout.stepping:
            raise StrategyError(
                "MonteCarlo has no causal step; set op.strategy = 'exact' to generate"
            )
        if (
            has_trait(kernel, OwnForm)
            or has_trait(kernel, GraphDiffusion)
            or has_trait(kernel, WeightedValue)
        ):
            raise self.refuse(
                kernel,
                "a kernel that is a function of two ends: forward, or hidden and readout",
                "'auto'",
            )
        if kernel.training:
            return SAMPLES
        if self.anchors is False:
            return LATTICE
        if layout.pairs:
            raise DomainError(
                "anchors stand for points that all queries see alike, which pairs forbid; use "
                "anchors=False, or 'exact'"
            )
        return ANCHORS

    def reason(self, path: str) -> str:
        return REASONS[path]

    def respond(self, kernel: Kernel, problem: Problem, path: str) -> Tensor:
        check_count(self.samples, problem.uy.shape[2])
        if torch.compiler.is_compiling() and (path != ANCHORS or self.anchors is True):
            raise StrategyError(
                "MonteCarlo is eager only, but for evaluation with anchors=Anchors.of(domain, "
                "samples)"
            )
        if path == ANCHORS:
            part = at_anchors(
                problem, self.anchors if isinstance(self.anchors, Anchors) else None, self.samples
            )
            exact = Exact()
            return exact.respond(kernel, part, exact.path(kernel, part.layout))
        proposal, levels = self.proposal(kernel, problem), None
        if path == LATTICE:
            levels = lattice(kernel.heads, problem.ux.shape[2], self.samples, problem.uy.device)
        samples = self.draw(problem, proposal, levels=levels)
        network: Any = getattr(kernel, "proposal", None)
        if path == SAMPLES and network is not None and torch.is_grad_enabled():
            network.leave_loss(
                self.loss_weight * self.proposal_loss(kernel, problem, proposal, samples)
            )
        return self.estimate(kernel, problem, samples)

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
        parts = (score + mass.log()).softmax(-1).nan_to_num(0.0)
        even = some / some.sum(-1, keepdim=True).clamp(min=1.0)
        if q.density is None and (q.query_time is None or q.triangular):
            share = torch.cat(
                [(1.0 - self.floor) * share, torch.full_like(share[..., :1], self.floor)], -1
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
        return Table((1.0 - self.floor) * mixed + self.floor * even)

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
        index = draw(proposal, self.samples, generator, levels)
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
        return Samples(index, weight / self.samples)

    def estimate(self, kernel: Kernel, problem: Problem, samples: Samples) -> Tensor:
        """The estimator for given samples, a block of queries at a time."""
        p, n = problem, problem.ux.shape[2]
        split = has_trait(kernel, SplitHidden) and has_trait(kernel, HiddenReadout)
        width = (
            getattr(kernel, "width", 64) + 4 * kernel.d_in + 64
            if split
            else kernel.d_in * kernel.d_out
        )
        block = max(1, BYTES // (4 * samples.index[:, :, 0].numel() * width))
        run = _split if split else _pairs
        keys = _key_terms(kernel, p) if split else {}
        if block >= n:
            return with_offset(run(kernel, p, samples, keys), kernel, p)
        outs = []
        for start in range(0, n, block):
            rows = torch.arange(start, min(n, start + block), device=p.uy.device)
            part = Samples(samples.index[:, :, rows], samples.weight[:, :, rows])
            outs.append(checkpoint(run, kernel, p.rows(rows), part, keys, use_reentrant=False))
        return with_offset(torch.cat(outs, 2), kernel, p)

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
        chosen = real[torch.randperm(len(real), device=real.device)[: self.loss_queries]]
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
        found = proposal.density_at(batch, rows, index).clamp(min=torch.finfo(weight.dtype).tiny)
        return -(target.to(found.dtype) * found.log()).sum(-1).mean()

    def keys(self, kernel: Kernel, y: Tensor, uy: Tensor, path: str) -> Keys:
        raise StrategyError("MonteCarlo draws keys for each query and caches none")


def _key_terms(kernel: Any, problem: Problem) -> Keys:
    """What the keys bring to hidden units: on a regular grid a table of displacements instead of
    columns for them.
    """
    grid = problem.layout.grid
    if grid is None:
        return kernel.key_terms(problem.y, problem.uy, columns=True)
    displacements, index = grid_displacements(problem.x[0], grid)
    table = kernel.table(displacements)
    found = {} if table is None else {"table": table.mT, "place": index}
    return kernel.key_terms(problem.y, problem.uy, columns=False) | found


def _split(kernel: Any, problem: Problem, samples: Samples, keys: Keys) -> Tensor:
    """Hidden units of the drawn pairs from split terms."""
    readout, bias = kernel.readout()
    on_grid = (problem if problem.whole is None else problem.whole).layout.grid is not None
    queries = kernel.query_terms(problem.x, problem.ux, columns=not on_grid)
    if "place" in keys:
        queries["place"] = keys["place"] if problem.index is None else keys["place"][problem.index]
    return sampled_mlp_kernel(
        samples.index, samples.weight, problem.uy, readout, bias, keys, queries
    )


def _pairs(kernel: Kernel, problem: Problem, samples: Samples, keys: Keys) -> Tensor:
    """The kernel's matrices at the drawn pairs."""
    messages = _messages(kernel, problem, samples.index)
    return (messages * samples.weight[..., None].to(messages.dtype)).sum(3)


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
