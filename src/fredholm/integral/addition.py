"""A sum of operators as one kernel: K = Σ K_i, each part with its own heads and output layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..domain import Domain
from ..errors import DomainError, OptionError, StrategyError
from ..ops.backend import cast
from ..quadrature import Quadrature
from .contract import Form, Kernel, Memory, choose, weight_and_bias
from .operator import IntegralOperator
from .problem import Facts, Layout, Problem, by_head_of, check_layout
from .strategy import Plan, Strategy


class PartByPart(Form):
    """Each part of a sum by a form of its own; the responses are added.

    A named strategy is that of every part; ``"auto"`` leaves each its own.
    """

    word = Strategy
    name = "a sum"
    reason = "each part is integrated by itself"
    steps = True
    triton = True

    forms: list[Form]

    def refuses(self, kernel: SumKernel, facts: Facts) -> str | None:
        own = type(self.strategy) is Strategy
        try:
            self.forms = [
                choose(part.strategy if own else self.strategy, part.kernel, facts)
                for part in kernel.parts
            ]
        except StrategyError as error:
            return str(error)
        return None

    def plan(self) -> Plan:
        plans = [form.plan() for form in self.forms]
        strategy, path = (
            " + ".join(getattr(plan, name) for plan in plans) for name in ("strategy", "path")
        )
        reasons = "; ".join(f"{plan.path}: {plan.reason}" for plan in plans)
        return Plan(strategy, path, f"{self.reason}; {reasons}")

    def respond(self, kernel: SumKernel, problem: Problem) -> Tensor:
        pairs = zip(self.forms, kernel.parts)
        return kernel.added(
            problem, [form.respond(part.kernel, seen_by(part, problem)) for form, part in pairs]
        )

    # --- a causal domain, point by point ----------------------------------------------------------

    def start(self, kernel: SumKernel, u: Tensor) -> Memory:
        pairs = zip(self.forms, kernel.parts)
        memories = [
            form.start(part.kernel, _split(part, u[:, :, None])[:, :, 0]) for form, part in pairs
        ]
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
        return self._move("step", kernel, x, u, quadrature, t, memory)

    def prefill(
        self,
        kernel: SumKernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        return self._move("prefill", kernel, x, u, quadrature, t, memory)

    def _move(
        self,
        how: str,
        kernel: SumKernel,
        x: Tensor,
        u: Tensor,
        quadrature: Quadrature,
        t: int,
        memory: Memory,
    ) -> tuple[Tensor, Memory]:
        out: Tensor | None = None
        memories = []
        for i, (form, part) in enumerate(zip(self.forms, kernel.parts)):
            own = {k[len(f"{i}/") :]: v for k, v in memory.items() if k.startswith(f"{i}/")}
            move = getattr(form, how)
            response, after = move(part.kernel, x, _split(part, u), quadrature, t, own)
            memories.append(after)
            one = part._finish(cast(response, u.dtype), u[:, 0], None)
            out = one if out is None else out + one
        assert out is not None
        return out[:, None], _joined(memories)


def _joined(memories: list[Memory]) -> Memory:
    """The parts' memories as one: ``0/keys``, ``1/past``."""
    return {f"{i}/{key}": x for i, memory in enumerate(memories) for key, x in memory.items()}


def _split(part: IntegralOperator, u: Tensor) -> Tensor:
    """All features (B, 1, N, D) as a part's kernel reads them."""
    return u if part.kernel.whole else by_head_of(part.kernel, u[:, 0])


def seen_by(part: IntegralOperator, problem: Problem) -> Problem:
    """The problem as one part sees it."""
    whole = problem.whole
    return replace(
        problem,
        ux=_split(part, problem.ux),
        uy=_split(part, problem.uy),
        whole=None if whole is None else seen_by(part, whole),
    )


class SumKernel(Kernel):
    r"""A sum of operators,
    :math:`K(x, y; u) = \sum_i \sum_h P_{ih}\,K_{ih}(x, y; u_h)\,S_h`, where S_h takes head h's
    slice of u.

    :math:`T = \sum_i T_i` holds exactly, biases, offsets and pointwise terms W_i included. Every
    head writes all features, and the operator adds the heads up: so K is per head, as pairs with a
    mask or bias per head need it. Parts of another number of heads are spread evenly over these.

    Args:
        parts: operators of one width, in and out.
        heads: of ``kernel_matrix``: the parts', where they agree.

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

    def __init__(self, parts: Sequence[IntegralOperator], heads: int = 1):
        if not parts:
            raise OptionError("parts: received none; a sum needs one operator or more")
        sizes = {(part.dim, part.out_dim) for part in parts}
        if len(sizes) > 1:
            got = ", ".join(f"{i} to {o}" for i, o in sorted(sizes))
            raise OptionError(f"parts map {got} features; those of a sum need the same widths")
        for part in parts:
            if type(part)._problem is not IntegralOperator._problem:
                raise OptionError(
                    f"parts: a {type(part).__name__} takes its points in an order of its own, "
                    "whatever their domain; a sum needs parts that live on one domain"
                )
        super().__init__(heads, parts[0].dim, parts[0].out_dim)
        self.parts: Any = nn.ModuleList(parts)

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
                f"pairs of a sum with {self.heads} heads: a part has {heads[0]}, and a mask or "
                "bias per head would mean another one there; build the domain without pairs"
            )

    def observe(self, problem: Problem) -> None:
        for part in self.parts:
            if part.kernel.training:  # a part may be out of training by itself
                part.kernel.observe(seen_by(part, problem))

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        """That of the first part that counts points, or of the first."""
        found = [p.kernel.default_domain(n, device=device, dtype=dtype) for p in self.parts]
        return next((domain for domain in found if domain.kind == "counting"), found[0])

    def follow(self) -> None:
        for part in self.parts:
            part._follow()

    def output_domain(self, domain: Domain) -> Domain | None:
        for part in self.parts:
            if part.kernel.output_domain(domain) is not None:
                raise DomainError(
                    f"{type(part.kernel).__name__} writes to a grid of its own; the parts of a "
                    "sum need to stay on their domain: take stride 1 and padding that keeps it"
                )
        return None

    def matrix(self, problem: Problem) -> Float[Tensor, "b h q k o i"]:
        total: Tensor | None = None
        for part in self.parts:
            dense = self._folded(part, part.kernel.matrix(seen_by(part, problem)))
            total = dense if total is None else total + dense
        assert total is not None
        return total

    def _folded(self, part: IntegralOperator, dense: Tensor) -> Tensor:
        """A part's matrix (B, H_i, Nq, Nk, d_out, d_in) with its output layer, as one of all
        features, (B, H, Nq, Nk, D_out, D).
        """
        heads, kernel = part.heads, part.kernel
        place: Any = {"device": dense.device, "dtype": dense.dtype}
        width = heads * kernel.d_out
        out = (
            torch.eye(width, **place)
            if part.projection is None
            else weight_and_bias(part.projection, "projection")[0].to(dense.dtype)
        ).unflatten(1, (heads, kernel.d_out))
        read = torch.eye(self.d_in, **place)
        read = read.expand(heads, -1, -1) if kernel.whole else read.unflatten(0, (heads, -1))
        folded = torch.einsum("nho,bhqkoi,hid->bhqknd", out, dense, read)
        if heads == self.heads:
            return folded
        return (folded.sum(1, keepdim=True) / self.heads).expand(-1, self.heads, *[-1] * 4)

    def offset(self, problem: Problem) -> Tensor:
        """What the parts add that is not an integral, spread over the heads: their offsets, biases
        and pointwise terms.
        """
        responses = []
        for part in self.parts:
            seen = seen_by(part, problem)
            constant = part.kernel.offset(seen)
            shape = (seen.uy.shape[0], part.heads, seen.ux.shape[2], part.kernel.d_out)
            zero = seen.uy.new_zeros(()).expand(shape)
            responses.append(zero if constant is None else zero + constant)
        return self.added(problem, responses) / self.heads

    def added(self, problem: Problem, responses: list[Tensor]) -> Tensor:
        """The parts' responses (B, H_i, Nq, d_out) through their output layers, as one head,
        (B, 1, Nq, D_out).
        """
        dtype, query = problem.uy.dtype, problem.ux[:, 0]
        finished = (
            part._finish(cast(response, dtype), query, problem.real)
            for part, response in zip(self.parts, responses)
        )
        return torch.stack(list(finished)).sum(0)[:, None]
