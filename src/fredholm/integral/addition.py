"""A sum of operators as one kernel: K = Σ K_i, each part with its own heads and output layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import DomainError, OptionError, StrategyError
from ..ops.backend import cast
from ..quadrature import Quadrature
from .checks import check_layout
from .contract import Form, Kernel, Memory, choose, weight_and_bias
from .facts import Facts, Layout
from .operator import IntegralOperator
from .problem import Problem, by_head_of
from .strategy import Plan, Strategy


class PartByPart(Form):
    """Each part of a sum by a form of its own; the responses are added.

    A named strategy is that of every part; ``"auto"`` leaves each its own.

    Attributes:
        forms: the form of each part, chosen when the sum is asked whether it refuses.
    """

    word = Strategy
    name = "a sum"
    reason = "each part is integrated by itself"
    steps = True
    triton = True

    forms: list[Form]

    def refuses(self, kernel: SumKernel, facts: Facts) -> str | None:
        # "auto" arrives as the base class without options.
        automatic = type(self.strategy) is Strategy
        forms = []
        for part in kernel.parts:
            strategy = self.strategy
            if automatic:
                strategy = part.strategy
            try:
                # A part may be in evaluation mode by itself.
                own = facts._replace(training=part.kernel.training)
                forms.append(choose(strategy, part.kernel, own))
            except StrategyError as error:
                return str(error)
        self.forms = forms
        return None

    def plan(self) -> Plan:
        plans = [form.plan() for form in self.forms]
        strategy = " + ".join(plan.strategy for plan in plans)
        path = " + ".join(plan.path for plan in plans)
        reasons = "; ".join(f"{plan.path}: {plan.reason}" for plan in plans)
        return Plan(strategy, path, f"{self.reason}; {reasons}")

    def respond(self, kernel: SumKernel, problem: Problem) -> Tensor:
        responses = []
        for form, part in zip(self.forms, kernel.parts):
            responses.append(form.respond(part.kernel, seen_by(part, problem)))
        return kernel.added(problem, responses)

    # --- a causal domain, point by point ----------------------------------------------------------

    def start(self, kernel: SumKernel, u: Tensor) -> Memory:
        """Return the memories of all parts before the first point, in one dictionary.

        Shape: u (B, 1, D), the features of one point as the sum reads them: one head of all.
        """
        memories = []
        for form, part in zip(self.forms, kernel.parts):
            # A dimension of one point for the split into the part's heads: (B, H_i, d_i) after it.
            point = _by_heads_of(part, u[:, :, None])[:, :, 0]
            memories.append(form.start(part.kernel, point))
        return _joined(memories)

    def step(
        self,
        kernel: SumKernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        moves = [form.step for form in self.forms]
        return self._advance(moves, kernel, x, u, quadrature, t, memory)

    def prefill(
        self,
        kernel: SumKernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        moves = [form.prefill for form in self.forms]
        return self._advance(moves, kernel, x, u, quadrature, t, memory)

    def _advance(
        self,
        moves: list[Callable[..., tuple[Tensor, Memory]]],
        kernel: SumKernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        """Advance each part by its form's ``step`` or ``prefill``, and add the outputs."""
        outputs = []
        memories = []
        for i, (move, part) in enumerate(zip(moves, kernel.parts)):
            features = _by_heads_of(part, u)
            response, after = move(part.kernel, x, features, quadrature, t, _memory_of(memory, i))
            memories.append(after)
            outputs.append(part._finish(cast(response, u.dtype), u[:, 0], None))
        return reduce(torch.add, outputs)[:, None], _joined(memories)


def _joined(memories: list[Memory]) -> Memory:
    """Return the parts' memories as one, with names such as ``0/keys`` and ``1/past``."""
    return {f"{i}/{key}": x for i, memory in enumerate(memories) for key, x in memory.items()}


def _memory_of(memory: Memory, i: int) -> Memory:
    """Return the memory of part i from that of the sum."""
    prefix = f"{i}/"
    return {key[len(prefix) :]: x for key, x in memory.items() if key.startswith(prefix)}


def _by_heads_of(part: IntegralOperator, u: Tensor) -> Tensor:
    """Return all features (B, 1, N, D) as a part's kernel reads them, (B, H_i, N, d_i)."""
    if part.kernel.whole:
        return u
    return by_head_of(part.kernel, u[:, 0])


def seen_by(part: IntegralOperator, problem: Problem) -> Problem:
    """Return the problem of a sum as one part sees it, with features split into its heads."""
    parent = problem.parent
    if parent is not None:
        parent = seen_by(part, parent)
    return replace(
        problem,
        ux=_by_heads_of(part, problem.ux),
        uy=_by_heads_of(part, problem.uy),
        parent=parent,
        training=part.kernel.training,
    )


class SumKernel(Kernel):
    r"""A sum of operators,
    :math:`K(x, y; u) = \sum_i \sum_h P_{ih}\,K_{ih}(x, y; u_h)\,S_h`, where S_h takes head h's
    slice of u.

    :math:`T = \sum_i T_i` holds exactly, biases, offsets and pointwise terms W_i included. Every
    head writes all features, and the operator adds the heads. K is therefore defined per head, as
    pairs with a mask or bias per head require. Parts with another number of heads are spread
    evenly over these.

    Args:
        parts: operators of one width, in and out.
        heads: of ``kernel_matrix``: by default those of the parts, if they agree.

    Raises:
        OptionError: no parts, or parts of several widths.
        DomainError: a domain that one of the parts refuses, or that a part would leave for
            another; pairs where parts have several numbers of heads.

    Cost: that of the parts, one after another; the definition is O(Nq·Nk·D²) per head.

    Reference: LUNA §5.4, attention and a depthwise convolution.

    Example:
        >>> from fredholm.operators import LunaAttention, SoftmaxAttention
        >>> kernel = SumKernel([SoftmaxAttention(8, 2), LunaAttention(8, 2)], heads=2)
        >>> operator = IntegralOperator(8, 2, kernel=kernel, residual=False, projection=False)
        >>> u, (first, second) = torch.randn(1, 5, 8), kernel.parts
        >>> torch.allclose(operator(u), first(u) + second(u), atol=1e-6)
        True
    """

    whole = True
    adds_heads = True
    forms = (PartByPart,)
    parts: Sequence[IntegralOperator]

    def __init__(self, parts: Sequence[IntegralOperator], heads: int = 1):
        if not parts:
            raise OptionError(
                "parts: expected at least one operator, got none; pass a list of them"
            )
        sizes = {(part.dim, part.out_dim) for part in parts}
        if len(sizes) > 1:
            got = ", ".join(f"{i} to {o}" for i, o in sorted(sizes))
            raise OptionError(
                f"parts: expected operators of one width, in and out, got {got} features; build "
                "them with the same dim and out_dim"
            )
        for part in parts:
            if type(part)._problem is not IntegralOperator._problem:
                raise OptionError(
                    f"parts: expected operators that live on the domain of the sum, got a "
                    f"{type(part).__name__}, which takes its points in an order of its own; leave "
                    "it out"
                )
        super().__init__(heads, parts[0].dim, parts[0].out_dim)
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]

    @property
    def reads_query(self) -> bool:  # type: ignore[override]
        return any(p.residual is not None or p.kernel.reads_query for p in self.parts)

    @property
    def reads_position(self) -> bool:  # type: ignore[override]
        return any(p.kernel.reads_position for p in self.parts)

    @property
    def local(self) -> bool:
        return all(part.kernel.local for part in self.parts)

    @property
    def sums(self) -> bool:  # type: ignore[override]
        return any(part.kernel.sums for part in self.parts)

    def check(self, layout: Layout) -> None:
        for part in self.parts:
            check_layout(part.kernel, layout, part.layer)
        heads = sorted({part.heads for part in self.parts} - {self.heads})
        if layout.pairs and heads:
            raise DomainError(
                f"pairs: expected parts of {self.heads} heads, as the sum has, got one of "
                f"{heads[0]}, where a mask or bias per head would mean another head; build the "
                "domain without pairs"
            )

    def observe(self, problem: Problem) -> None:
        for part in self.parts:
            # A part may be in evaluation mode by itself.
            if part.kernel.training:
                part.kernel.observe(seen_by(part, problem))

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        """Return that of the first part that counts points, else of the first part."""
        domains = [p.kernel.default_domain(n, device=device, dtype=dtype) for p in self.parts]
        counting = (domain for domain in domains if domain.kind == "counting")
        return next(counting, domains[0])

    def follow(self) -> None:
        for part in self.parts:
            part._follow()

    def output_domain(self, domain: Domain) -> Domain | None:
        for part in self.parts:
            if part.kernel.output_domain(domain) is not None:
                raise DomainError(
                    f"expected parts that stay on their domain, got {type(part.kernel).__name__}, "
                    "which writes to a grid of its own; take stride 1 and padding that keeps it"
                )
        return None

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        """Return K at all pairs, (B, H, Nq, Nk, D_out, D): the sum of the parts' matrices.

        A part's kernel maps slices of features per head, and its output layer follows. Both are
        folded into one matrix from all features to all features, so that parts can be added.
        """
        matrices = (
            self._folded(part, part.kernel.matrix(seen_by(part, problem))) for part in self.parts
        )
        return reduce(torch.add, matrices)

    def _folded(self, part: IntegralOperator, dense: Tensor) -> Tensor:
        """Return P_ih K_ih S_h: a part's matrix (B, H_i, Nq, Nk, d_out, d_in) as one of all
        features, (B, H, Nq, Nk, D_out, D).
        """
        heads, kernel = part.heads, part.kernel
        dtype, device = dense.dtype, dense.device

        # P_ih: the slice of the output layer that reads head h.
        if part.projection is None:
            out = torch.eye(heads * kernel.d_out, device=device, dtype=dtype)
        else:
            weight, _ = weight_and_bias(part.projection, "projection")
            out = weight.to(dtype)
        out = out.unflatten(1, (heads, kernel.d_out))

        # S_h: the slice of u that head h reads.
        read = torch.eye(self.d_in, device=device, dtype=dtype)
        if kernel.whole:
            read = read.expand(heads, -1, -1)
        else:
            read = read.unflatten(0, (heads, -1))

        folded = torch.einsum("nho,bhqkoi,hid->bhqknd", out, dense, read)
        if heads == self.heads:
            return folded
        # Another number of heads: their sum, spread evenly over the heads of the sum.
        shared = folded.sum(1, keepdim=True) / self.heads
        return shared.expand(-1, self.heads, *[-1] * 4)

    def offset(self, problem: Problem) -> Tensor:
        """Return the terms of the parts that are not an integral, spread over the heads: their
        offsets, biases and pointwise terms.
        """
        responses = []
        for part in self.parts:
            seen = seen_by(part, problem)
            constant = part.kernel.offset(seen)
            shape = (seen.uy.shape[0], part.heads, seen.ux.shape[2], part.kernel.d_out)
            response = seen.uy.new_zeros(()).expand(shape)
            if constant is not None:
                response = response + constant
            responses.append(response)
        return self.added(problem, responses) / self.heads

    def added(self, problem: Problem, responses: list[Tensor]) -> Tensor:
        """Return the sum of the parts' responses (B, H_i, Nq, d_out) behind their output layers, as
        one head, (B, 1, Nq, D_out).
        """
        dtype, query = problem.uy.dtype, problem.ux[:, 0]
        outputs = []
        for part, response in zip(self.parts, responses):
            outputs.append(part._finish(cast(response, dtype), query, problem.real))
        return torch.stack(outputs).sum(0)[:, None]
