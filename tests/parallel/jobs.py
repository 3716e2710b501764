"""What the processes of a :class:`.pool.Pool` do. Each job returns what every rank found."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fredholm.domain import Domain
from fredholm.errors import FredholmError
from fredholm.parallel import count_traffic, sum_gradients

from ..contracts.cases import BATCH, POINTS, OperatorCase, cases

SIZES = {2: (4, 2), 3: (4, 0, 2)}  # of POINTS points: uneven, and one rank has none


def find_case(label: str) -> OperatorCase:
    return next(case for case in cases() if case.label == label)


def signal(case: OperatorCase, seed: int, batch: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, POINTS, case.dim, generator=generator, dtype=torch.float64)


def differences(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """Largest differences relative to the largest magnitude."""
    out = {}
    for name, want in wanted.items():
        scale = max(float(want.abs().max()) if want.numel() else 0.0, 1e-3)
        gap = (found[name] - want).abs().max() if want.numel() else torch.zeros(())
        out[name] = float(gap) / scale if bool(gap.isfinite()) else float("inf")
    return out


def compare(mesh: Any, label: str, where: str, strategy: Any = None) -> dict[str, float]:
    """Output and gradients of an operator at this rank's points against the whole's."""
    case = find_case(label)
    operator, domain = case.operator(), case.domains()[where]
    if strategy is not None:
        operator.strategy = strategy
    u, direction = signal(case, 3).requires_grad_(), signal(case, 4)
    inputs = {"u": u, **dict(operator.named_parameters())}
    whole = operator(u, domain)
    grads = torch.autograd.grad(
        whole, list(inputs.values()), direction[..., : whole.shape[-1]], allow_unused=True
    )
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs.values(), grads)]
    part, rows = shard(domain, mesh)
    local = u.detach()[:, rows].requires_grad_()
    out = operator(local, part)
    operator.zero_grad()
    (out * direction[:, rows, : whole.shape[-1]]).sum().backward()
    sum_gradients(operator, part.shards)
    found = {"output": out.detach(), "u": local.grad}
    wanted = {"output": whole.detach()[:, rows], "u": zeros[0][:, rows]}
    for (name, parameter), g in zip(operator.named_parameters(), zeros[1:]):
        wanted[name] = g
        found[name] = torch.zeros_like(g) if parameter.grad is None else parameter.grad
    return differences(found, wanted)


def shard(domain: Domain, mesh: Any) -> tuple[Domain, slice]:
    sizes = SIZES[mesh.size()]
    part = domain.shard(mesh, sizes=sizes)
    return part, slice(part.shards.start, part.shards.start + part.size)


def contract(mesh: Any, label: str, domains: list[str] | None = None) -> dict[str, Any]:
    """:func:`compare` and :func:`numbers` on domains of a case; what is refused, by the error."""
    out: dict[str, Any] = {}
    for where in domains or list(find_case(label).domains()):
        try:
            out[where] = compare(mesh, label, where), numbers(mesh, label, where)
        except FredholmError as error:
            out[where] = f"{type(error).__name__}: {error}"
    return out


def numbers(mesh: Any, label: str, where: str, strategy: Any = None) -> tuple[int, int, str]:
    """What a forward sent, what ``plan`` says it sends, and in which words."""
    case = find_case(label)
    operator, domain = case.operator(), case.domains()[where]
    if strategy is not None:
        operator.strategy = strategy
    part, rows = shard(domain, mesh)
    u = signal(case, 3, domain.batch or 1)[:, rows]
    plan = operator.plan(part)
    with torch.no_grad(), count_traffic() as traffic:
        operator(u, part)
    return traffic.numbers, plan.numbers, str(plan)
