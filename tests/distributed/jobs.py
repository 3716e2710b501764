"""Jobs for the processes of a :class:`.pool.Pool`; each returns the result of its rank."""

from __future__ import annotations

import os
import signal
import time
import unittest.mock
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from fredholm.distributed import Shards, count_traffic, sum_gradients
from fredholm.domain import Domain
from fredholm.errors import FredholmError

from ..contracts.cases import BATCH, POINTS, OperatorCase, cases

# Numbers of points on each rank, by the number of ranks: uneven, and one rank may have none.
SIZES = {2: (4, 2), 3: (4, 0, 2), 4: (3, 0, 2, 1)}


def find_case(label: str) -> OperatorCase:
    return next(case for case in cases() if case.label == label)


def features(case: OperatorCase, seed: int, batch: int = BATCH) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, POINTS, case.dim, generator=generator, dtype=torch.float64)


def differences(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> dict[str, float]:
    """Return the largest differences relative to the largest magnitude."""
    out = {}
    for name, want in wanted.items():
        scale = max(float(want.detach().abs().max()) if want.numel() else 0.0, 1e-3)
        gap = (found[name] - want).abs().max() if want.numel() else torch.zeros(())
        out[name] = float(gap) / scale if bool(gap.isfinite()) else float("inf")
    return out


def compare(mesh: Any, label: str, where: str, strategy: Any = None) -> dict[str, float]:
    """Compare output and gradients at this rank's points with those on one process."""
    case = find_case(label)
    operator = case.operator().eval()
    domain = case.domains()[where]
    if strategy is not None:
        operator.strategy = strategy
    u = features(case, 3).requires_grad_()
    inputs = {"u": u, **dict(operator.named_parameters())}
    whole = operator(u, domain)
    direction = torch.randn(whole.shape, dtype=whole.dtype, generator=seeded(4))
    grads = torch.autograd.grad(whole, list(inputs.values()), direction, allow_unused=True)
    zeros = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs.values(), grads)]
    part, rows = shard(domain, mesh)
    local = u.detach()[:, rows].requires_grad_()
    out = operator(local, part)
    operator.zero_grad()
    (out * direction[:, rows]).sum().backward()
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
    """Return :func:`compare` and :func:`exchange_of` on domains of a case, or the error's text."""
    out: dict[str, Any] = {}
    for where in domains or list(find_case(label).domains()):
        try:
            out[where] = compare(mesh, label, where), exchange_of(mesh, label, where)
        except FredholmError as error:
            out[where] = f"{type(error).__name__}: {error}"
    return out


def hidden_in_reach(mesh: Any, causal: bool) -> dict[str, float]:
    """Compare a window of two visible points, with hidden points at the cuts between the ranks."""
    from fredholm.operators import create_operator

    domain = Domain.line(POINTS, causal=causal, reach=2)
    valid = torch.ones(BATCH, POINTS, dtype=torch.bool)
    valid[0, 2:4] = False
    valid[1, 3:6] = False
    domain = domain.replace(valid=valid, positions=domain.positions.double())
    domain = domain.replace(measure=torch.rand(POINTS, generator=seeded(1)).double())
    torch.manual_seed(2)
    operator = create_operator("softmax", 8, 2).double().eval()
    u = torch.randn(BATCH, POINTS, 8, generator=seeded(3), dtype=torch.float64)

    answers = {}
    part, rows = shard(domain, mesh)
    for name, on, mine in (("whole", domain, slice(None)), ("part", part, rows)):
        local = u[:, mine].clone().requires_grad_()
        out = operator(local, on)
        out.square().sum().backward()
        answers[name] = {"output": out.detach(), "u": local.grad}
    whole = {name: x[:, rows] for name, x in answers["whole"].items()}
    return differences(answers["part"], whole)


def exchange_of(mesh: Any, label: str, where: str) -> str:
    """Return the name that ``plan`` has for the exchange between the ranks."""
    case = find_case(label)
    operator = case.operator().eval()
    domain = case.domains()[where]
    return operator.plan(shard(domain, mesh)[0]).exchange


def traffic(mesh: Any, name: str, points: int, causal: bool) -> int:
    """Return the number of values that a rank sends in a forward of an operator on a line."""
    from fredholm.operators import create_operator

    operator = create_operator(name, 8, 2).eval()
    part = Domain.line(points, causal=causal).shard(mesh)
    with torch.no_grad(), count_traffic() as counted:
        operator(torch.randn(1, part.size, 8), part)
    return counted.numbers


def crossed(mesh: Any, label: str, where: str) -> dict[str, float]:
    """Compare an operator with queries on another domain, sharded over the same ranks."""
    case = find_case(label)
    operator = case.operator()
    domain = case.domains()[where]
    places = torch.rand(4, case.position_dim, dtype=torch.float64, generator=seeded(9))
    target = Domain.points(places)
    batch = domain.batch or 1
    query = torch.randn(batch, 4, case.dim, dtype=torch.float64, generator=seeded(5))
    if domain.pairs is not None:
        domain = domain.replace(pairs=domain.pairs[..., :4, :])
    part, rows = shard(domain.replace(pairs=None), mesh)
    sizes = {2: (1, 3), 3: (3, 1, 0), 4: (2, 1, 0, 1)}[mesh.size()]
    here = target.shard(mesh, sizes=sizes)
    there = slice(here.shards.start, here.shards.start + here.size)
    if domain.pairs is not None:
        part = part.replace(pairs=domain.pairs[..., there, :])
    u = features(case, 3, batch)
    signals = {}
    for name, x, index, places in (
        ("whole", u, slice(None), slice(None)),
        ("part", u, rows, there),
    ):
        local = x[:, index].clone().requires_grad_()
        there_ = query[:, places].clone().requires_grad_()
        on, at = (domain, target) if name == "whole" else (part, here)
        operator.zero_grad()
        out = operator(local, on, query=there_, query_domain=at)
        out.square().sum().backward()
        if name == "part":
            sum_gradients(operator, part.shards)
        grads = {n: p.grad for n, p in operator.named_parameters() if p.grad is not None}
        reads = torch.zeros_like(there_) if there_.grad is None else there_.grad
        signals[name] = {"out": out.detach(), "u": local.grad, "query": reads, **grads}
    whole = signals["whole"]
    wanted = {**whole, "u": whole["u"][:, rows]}
    wanted |= {name: whole[name][:, there] for name in ("out", "query")}
    return differences(signals["part"], wanted)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


SIZE = {"dim": 8, "depth": 1, "heads": 2}
# name -> (preset, its changes, shape of its inputs)
MODELS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "itnet": (
        "itnet_nano",
        {
            "encoder": {"kind": "points", "channels": 3, "features": "raw", "neighbours": 0},
            "body": {**SIZE, "depth": 2, "operator_options": {"width": 8}},
        },
        (2, 9, 3),
    ),
    "infvit": (
        "infvit_linear_pico",
        {"encoder": {"kind": "image", "patch": 7}, "body": {**SIZE, "depth": 2}},
        (2, 1, 28, 21),
    ),
    "learned positions": (
        "infvit_linear_pico",
        {"encoder": {"kind": "image", "patch": 7, "positions": "learned"}, "body": SIZE},
        (2, 1, 35, 21),
    ),
    "ckcnn": (
        "ckcnn_small",
        {"body": {"widths": [6, 6], "operator_options": {"width": 8}}},
        (2, 11, 1),
    ),
    "gaps": (
        "ckcnn_small",
        {"body": {"widths": [6], "operator_options": {"width": 8}}},
        (3, 11, 1),
    ),
    "times": (
        "ckcnn_small",
        {"encoder": {"timed": True}, "body": {"widths": [6], "operator_options": {"width": 8}}},
        (2, 7, 2),
    ),
    "samples": (
        "itnet_nano",
        {"encoder": {"kind": "sequence"}, "body": {**SIZE, "operator": "softmax"}},
        (2, 9, 1),
    ),
    "field": (
        "itnet_nano",
        {
            "encoder": {"kind": "field"},
            "body": {**SIZE, "operator": "itnet_low_rank"},
            "head": {"pool": "mean"},
        },
        (2, 1, 5, 4),
    ),
    "text": (
        "itnet_nano",
        {
            "encoder": {"kind": "text", "vocabulary": 9, "max_length": 12, "positions": "learned"},
            "body": {**SIZE, "operator": "softmax"},
            "head": {"pool": "cls"},
        },
        (3, 9),
    ),
    "tokens": (
        "ckcnn_small",
        {
            "encoder": {"kind": "tokens", "vocabulary": 9},
            "body": {"widths": [6], "operator_options": {"width": 8}},
        },
        (2, 9),
    ),
}


def make_inputs(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return random inputs, with padding, gaps or times as the model's name requires."""
    values = torch.randn(shape, generator=seeded(1), dtype=torch.float64)
    if name == "gaps":
        # Padding at the end of the first sample: the end of the grid is read from other samples.
        values[0, 8:], values[2, 4:6] = torch.nan, torch.nan
    if name == "times":
        values[..., 0] = torch.rand(shape[:2], generator=seeded(2)).double().cumsum(1)
        values[1, 5:] = torch.nan
    if len(shape) == 2:
        values = torch.randint(1, 9, shape, generator=seeded(1))
        values[1, 3:] = 0
    return values


def make_model(name: str) -> tuple[torch.nn.Module, Tensor]:
    from fredholm.models import create_model

    preset, changes, shape = MODELS[name]
    torch.manual_seed(0)
    head = {"outputs": 3, **changes.get("head", {})}
    model = create_model(preset, **{**changes, "head": head}).double().eval()
    # At the initial values some gradients vanish.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model, make_inputs(name, shape)


def model_on_shards(mesh: Any, name: str) -> dict[str, float]:
    """Compare loss and gradients of a model whose samples are sharded with those on one process."""
    from fredholm.lab.data.parts import Stretch

    model, inputs = make_model(name)
    target = torch.arange(len(inputs)) % 3
    whole = torch.nn.functional.cross_entropy(model(inputs), target)
    whole.backward()
    wanted = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    wanted["loss"] = whole.detach()
    model.zero_grad()
    rank = mesh.get_local_rank()
    count = mesh.size()
    axis = model.encoder.axis
    start, stop = Stretch(rank, count, axis, grain=model.encoder.grain)(inputs.shape[axis])
    answer = model(inputs.narrow(axis, start, stop - start), mesh=mesh)
    loss = torch.nn.functional.cross_entropy(answer, target)
    # The loss is the same on every rank.
    (loss / count).backward()
    sum_gradients(model, Shards.over(mesh))
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    found["loss"] = loss.detach()
    return differences(found, wanted)


def left_out_tokens(mesh: Any, kind: str) -> dict[str, float | str]:
    """Return features of an encoder that drops tokens in training, and the message of training."""
    from fredholm.models.encoders.text import TextConfig
    from fredholm.models.encoders.tokens import TokenConfig

    config = {"text": TextConfig, "tokens": TokenConfig}[kind]
    torch.manual_seed(0)
    encoder = config(vocabulary=9, max_length=8, embedding_dropout=0.5).build(4).eval()
    numbers = torch.randint(1, 9, (3, 8), generator=seeded(1))
    start = 4 * mesh.get_local_rank()
    part = numbers[:, start : start + 4]
    found, _ = encoder.part(part, mesh)
    wanted, _ = encoder(numbers)
    out: dict[str, Any] = differences({"": found}, {"": wanted[:, start : start + 4]})
    try:
        encoder.train().part(part, mesh)
    except FredholmError as error:
        out["training"] = str(error)
    return out


def read_outs(mesh: Any) -> dict[str, float]:
    """Compare every read-out of sharded points with that on one process, and its gradients."""
    from fredholm.models.heads import read_out

    valid = torch.tensor([[True] * POINTS, [True] * 3 + [False] * 3, [False] * POINTS])
    masses = torch.rand(POINTS, dtype=torch.float64, generator=seeded(2)) + 0.1
    domain = Domain.points(torch.rand(POINTS, 1).double(), measure=masses, valid=valid)
    domain = domain.replace(positions=torch.arange(POINTS).double()[:, None])
    u = torch.randn(3, POINTS, 4, dtype=torch.float64, generator=seeded(3))
    part, rows = shard(domain, mesh)
    out = {}
    for pool in ("mean", "points", "first", "last"):
        whole, local = u.clone().requires_grad_(), u[:, rows].clone().requires_grad_()
        answer, here = read_out(whole, domain, pool), read_out(local, part, pool)
        answer.square().sum().backward()
        (here.square().sum() / part.shards.count).backward()
        found = {"value": here.detach(), "gradient": local.grad}
        wanted = {"value": answer.detach(), "gradient": whole.grad[:, rows]}
        out |= {f"{pool} {k}": v for k, v in differences(found, wanted).items()}
    return out


def refusals(mesh: Any) -> dict[str, str]:
    """Return the errors of invalid inputs by name."""
    from torch.distributed.device_mesh import init_device_mesh

    from fredholm.convert import as_operator
    from fredholm.integral import create_operator

    line = Domain.line(8, dtype=torch.float64)
    count = mesh.size()
    part = line.shard(mesh)
    size, rank = part.size, part.shards.rank
    softmax = create_operator("softmax", 8, 2).double()
    strided = as_operator(torch.nn.Conv1d(8, 8, 3, stride=2).double())
    resolvent = create_operator("infsa", 8, 2, strategy="resolvent").double()
    u = torch.randn(1, size, 8, dtype=torch.float64)
    both = init_device_mesh("cpu", (1, count), mesh_dim_names=("data", "domain"))
    calls = {
        "no mesh": lambda: line.shard("cpu"),
        "no dimension": lambda: line.shard(mesh, dimension="tensor"),
        "several dimensions": lambda: line.shard(both),
        "one of several": lambda: line.shard(both, dimension="domain"),
        "more ranks": lambda: Domain.line(1).shard(mesh),
        "sizes": lambda: line.shard(mesh, sizes=(8,) * count),
        "points": lambda: Domain.line(8 + rank).shard(mesh),
        "order": lambda: Domain.line(8, causal=bool(rank)).shard(mesh),
        "other values": lambda: Domain.points(torch.rand(8, 1) + rank).shard(mesh),
        "parts of two kinds": lambda: Domain.from_shard(Domain.line(3, causal=rank > 0), mesh),
        "parts of times": lambda: Domain.from_shard(Domain.timestamps(torch.arange(3.0)), mesh),
        "sharded again": lambda: part.shard(mesh),
        "slice": lambda: part[:2],
        "quadrature": lambda: part.quadrature(),
        "dense": lambda: softmax.dense(u, part),
        "weights": lambda: softmax.weights(u, part),
        "init_state": lambda: softmax.init_state(1, part),
        "collate": lambda: Domain.collate([part, part]),
        "stencil": lambda: strided(u, part.replace(kind="counting")),
        "resolvent": lambda: resolvent(u, part),
        "resolvent plan": lambda: resolvent.plan(part),
        "query domain": lambda: softmax(u, part, query=u, query_domain=line[:size]),
    }
    out = {}
    for name, call in calls.items():
        try:
            call()
            out[name] = "answered"
        except FredholmError as error:
            out[name] = f"{type(error).__name__}: {error}"
    return out


def unlike_domains() -> dict[str, tuple[Domain, Domain]]:
    """Return pairs of domains, by the part in which they differ; sums over points are equal."""
    n, generator = 8, seeded(1)
    x = torch.rand(n, 2, generator=generator, dtype=torch.float64)
    points = Domain.points(x)
    masses = torch.rand(n, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([[3], [5]])
    valid = torch.arange(n) < lengths
    upper = torch.ones(n, n).triu().bool()
    bias = torch.randn(n, n, generator=generator, dtype=torch.float64)
    index = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    ring = Domain.graph(index, n, positions=x, edge_weight=masses, edge_attr=x)
    edges = ring.pairs
    box = Domain.points(x, radius=0.3, box=(1.0, 1.0))
    images = replace(box.pairs, shift=box.pairs.shift + 1.0)
    fading = replace(edges, log_density=edges.log_density.flip(0))
    signed = replace(edges, features=edges.features.flip(0))
    backward = Domain.graph(index.flip(0), n, positions=x, edge_weight=masses, edge_attr=x)
    same_values = replace(backward.pairs, log_density=edges.log_density, features=edges.features)
    return {
        "values of positions": (points, Domain.points(x.flip(0))),
        "values of measure": (points.with_masses(masses), points.with_masses(masses.flip(0))),
        "values of valid": (points.replace(valid=valid), points.replace(valid=valid.flip(0))),
        "values of pairs": (points.replace(pairs=upper), points.replace(pairs=upper.mT)),
        "bias": (points.replace(pairs=bias), points.replace(pairs=bias.mT)),
        "edges": (ring, ring.replace(pairs=same_values)),
        "log_density of edges": (ring, ring.replace(pairs=fading)),
        "features of edges": (ring, ring.replace(pairs=signed)),
        "shift of edges": (box, box.replace(pairs=images)),
        "no edges": (points, box),
        "reach": (points.replace(reach=1), points.replace(reach=2)),
        "measure": (points, points.replace(kind="counting")),
        "dtype of masses": (points, points.replace(measure=points.measure.float(), kind="uniform")),
    }


def other_domains(mesh: Any) -> dict[str, str]:
    """Return what ``shard`` says where rank 1 has another domain than all others."""
    out = {}
    for name, domains in unlike_domains().items():
        try:
            domains[mesh.get_local_rank() == 1].shard(mesh)
            out[name] = "answered"
        except FredholmError as error:
            out[name] = f"{type(error).__name__}: {error}"
    return out


def equal_domains(mesh: Any) -> list[int]:
    """Shard domains of equal values that lie otherwise in memory on rank 1, and differ where
    nothing is read; return the number of messages that each sends.
    """
    x = torch.rand(8, 2, generator=seeded(1), dtype=torch.float64)
    x[0] = 0.0
    valid = torch.arange(8) < torch.tensor([[5], [7]])
    bias = torch.randn(2, 8, 8, generator=seeded(2), dtype=torch.float64)
    domain = Domain.points(x.expand(2, 8, 2), valid=valid, pairs=bias)
    if mesh.get_local_rank() == 1:
        # Zeros of the other sign, columns before rows, NaN in the padding.
        mirrored = torch.where(x == 0, -0.0, x).mT.contiguous().mT.expand(2, 8, 2)
        hidden = torch.where(valid[..., None], mirrored, torch.nan)
        masses = torch.where(valid, domain.measure, 7.0)
        pairs = bias.movedim(0, -1).contiguous().movedim(-1, 0)
        domain = domain.replace(positions=hidden, measure=masses, pairs=pairs, kind="uniform")
    else:
        domain = domain.replace(measure=domain.measure.expand(2, 8), kind="uniform")

    messages = []
    gather = dist.all_gather_object

    def counted(*arguments: Any, **options: Any) -> None:
        messages.append(1)
        gather(*arguments, **options)

    with unittest.mock.patch.object(dist, "all_gather_object", counted):
        domain.shard(mesh)
    return messages


def unlike_parts(mesh: Any) -> str:
    """Return what ``from_shard`` says where only rank 1 has positions for each sample."""
    domain = Domain.points(torch.rand(3, 1)).replace(valid=torch.ones(2, 3, dtype=torch.bool))
    if mesh.get_local_rank() == 1:
        domain = domain.replace(positions=domain.positions.expand(2, 3, 1))
    try:
        Domain.from_shard(domain, mesh)
    except FredholmError as error:
        return f"{type(error).__name__}: {error}"
    return "answered"


def own_parts(mesh: Any) -> dict[str, float]:
    """Compare a domain that each rank makes from its points alone, as a grid and otherwise."""
    case = find_case("itnet")
    operator = case.operator()
    whole = case.domains()["masses"]
    part, rows = shard(whole, mesh)
    alone = part.replace(shards=None, shape=None)
    built = Domain.from_shard(alone, mesh)
    u = features(case, 3)
    operator.requires_grad_(False)
    wanted = {"points": operator(u, whole)[:, rows]}
    found = {"points": operator(u[:, rows], built)}
    case = find_case("ckconv")
    operator = case.operator().requires_grad_(False)
    whole = operator.kernel.default_domain(POINTS, device=u.device, dtype=u.dtype)
    part, rows = shard(whole, mesh)
    built = Domain.from_shard(part.replace(shards=None), mesh, shape=(POINTS,))
    assert operator.plan(built).path == operator.plan(part).path
    wanted["grid"] = operator(u, whole)[:, rows]
    found["grid"] = operator(u[:, rows], built)
    return differences(found, wanted)


def traced_ring(mesh: Any) -> dict[str, int]:
    """Count the messages of a ring's forward that begin before the previous block is computed.

    The block's matrix products show this in a trace.
    """
    from evidence.parallel.speed import overlap_of

    from fredholm.integral import create_operator

    operator = create_operator("softmax", 8, 2)
    part = Domain.line(24).shard(mesh)
    u = torch.randn(1, part.size, 8)
    with torch.no_grad(), torch.profiler.profile() as trace:
        operator(u, part)
    found = overlap_of([(event.name, event.time_range) for event in trace.events()])
    return {name: found[name] for name in ("messages", "ahead")}


def leave(mesh: Any, how: str) -> str:
    """Let rank 1 die, or answer too late; return the error of the other ranks."""
    from fredholm.integral import create_operator

    part = Domain.line(8).shard(mesh)
    operator = create_operator("linear_attention" if how == "sum" else "softmax", 8, 2)
    if part.shards.rank == 1:
        if how == "late":
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        operator(torch.randn(1, part.size, 8), part)
    except FredholmError as error:
        return f"{type(error).__name__}: {error}"
    return "answered"


def drawn_in_parts(mesh: Any, where: str, draws: int = 512) -> dict[str, float]:
    """Compare the mean of many draws in training with the exact integral and its gradient.

    The draws are the samples of a batch, and distances are in standard errors.
    """
    case = find_case("itnet")
    operator = case.operator().requires_grad_(False)
    domain = case.domains()[where]
    whole = features(case, 3, 1).requires_grad_()
    exact = operator(whole, domain)
    exact.sum().backward()
    assert whole.grad is not None
    part, rows = shard(domain, mesh)
    operator.train().strategy = {"name": "monte_carlo", "samples": 4}
    # Each rank draws for its own queries.
    torch.manual_seed(mesh.get_local_rank())
    local = whole.detach()[:, rows].repeat(draws, 1, 1).requires_grad_()
    out = operator(local, part)
    out.sum().backward()
    gaps = {"spread": 1.0}
    pairs = {"output": (exact.detach(), out.detach()), "gradient": (whole.grad, local.grad)}
    for name, (want, found) in pairs.items():
        if rows.stop > rows.start:
            assert found is not None
            error = found.std(0) / draws**0.5
            gaps[name] = float(((found.mean(0) - want[0, rows]).abs() / (error + 1e-12)).max())
            gaps["spread"] = min(gaps["spread"], float(error.max()))
    return gaps


def dropped_branches(mesh: Any, name: str) -> Tensor:
    """Return the output at this rank's first point, for samples that are constant over the points.

    Ranks that drop the same branches return the same.
    """
    from fredholm.families.continuous.splitting import Evolution, FeedForwardTerm, OperatorTerm
    from fredholm.integral import create_operator
    from fredholm.models.depth import Accumulation, ResidualBlock

    torch.manual_seed(0)
    operator = create_operator("softmax", 8, 2)
    stacks = {
        "block": lambda: ResidualBlock(operator, 8, drop_path=0.5),
        "accumulation": lambda: Accumulation([operator], 8, drop_path=0.5),
        "operator term": lambda: Evolution([OperatorTerm(operator, drop_path=0.5)]),
        "network term": lambda: Evolution([FeedForwardTerm(8, 16, drop_path=0.5)]),
    }
    stack = stacks[name]().double().train()
    domain = Domain.line(POINTS, dtype=torch.float64)
    u = torch.randn(16, 1, 8, generator=seeded(1), dtype=torch.float64).expand(-1, POINTS, -1)
    part, rows = shard(domain, mesh)
    torch.manual_seed(1 + mesh.get_local_rank())
    return stack(u[:, rows], part)[:, 0].detach()


def dense_system(mesh: Any, padded: bool) -> dict[str, float]:
    """Compare a system with a matrix of states, a bias and a state before the first point."""
    from fredholm.integral import IntegralOperator
    from fredholm.kernels import StateSpaceKernel

    generator = seeded(1)
    shapes = {"state_matrix": (3, 3), "input_matrix": (3, 2), "output_matrix": (2, 3)}
    shapes |= {"initial_state": (3,), "bias": (3,)}
    given = {k: torch.randn(s, generator=generator).double() / 2 for k, s in shapes.items()}
    kernel = StateSpaceKernel(**given)
    operator = IntegralOperator(2, kernel=kernel, strategy="scan").double()
    domain = Domain.line(POINTS, causal=True, measure="counting", dtype=torch.float64)
    valid = torch.tensor([[True, False, True, True, False, True], [False] * 2 + [True] * 4])
    domain = domain.replace(valid=valid) if padded else domain
    part, rows = shard(domain, mesh)
    u = torch.randn(1 + padded, POINTS, 2, generator=generator).double()
    grads = {}
    for name, at, index in (("whole", domain, slice(None)), ("part", part, rows)):
        operator.zero_grad()
        local = u[:, index].clone().requires_grad_()
        out = operator(local, at)
        out.square().sum().backward()
        if name == "part":
            sum_gradients(operator, part.shards)
        found = {n: p.grad for n, p in operator.named_parameters() if p.grad is not None}
        grads[name] = {"out": out.detach(), "u": local.grad, **found}
    wanted = grads["whole"]
    wanted |= {name: wanted[name][:, rows] for name in ("out", "u")}
    return differences(grads["part"], wanted)
