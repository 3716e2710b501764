"""Time and peak memory of InfViT at extreme resolutions, and of the mechanisms of the paper's Table
2 in one architecture. Each measurement has a fresh process.

Peers are optional. ``pip install --no-deps --target DIR performer-pytorch linformer
agent-attention-pytorch linear-attention-transformer`` and ``PYTHONPATH=DIR`` make them available
without changing this installation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.lab.training.machine import process_megabytes, seconds_of
from fredholm.models import create_model
from fredholm.models.depth import ResidualBlock
from fredholm.operators import create_operator

from ..kit.clock import WrongAnswer, difference, require
from ..kit.memory import alone
from ..kit.subject import Options
from .speed import keep

LENGTHS = (4096, 16384, 65536, 331776)
TRAINED = 65536
CHUNK = 4096
TABLE_LENGTHS = (2048, 4096, 8192)
FEWER = 4
"""Divisor of the lengths for mechanisms of quadratic cost.

The matrices of 64 heads at 4,096 tokens take 4.3 GB per copy.
"""
LIMIT = 16 * 1024
"""Memory, in megabytes, for which the largest N is fitted."""
DIM, HEADS, DEPTH = 768, 64, 4


class Quadratic(nn.Module):
    """The published form of pure InfSA or of softmax attention.

    It stores the N × N matrix of every head.
    """

    def __init__(self, name: str):
        super().__init__()
        self.inner = create_operator(name, DIM, HEADS)
        self.softmax = name == "softmax"

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        kernel: Any = self.inner.kernel
        query, key, value = (
            x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for x in (kernel.query(u), kernel.key(u), kernel.value(u))
        )
        graph = query @ key.mT
        if self.softmax:
            graph = (graph / math.sqrt(query.shape[-1])).softmax(-1)
        else:
            graph = torch.relu(graph)
            graph = kernel.gamma * graph / (graph.norm(dim=(-2, -1), keepdim=True) + kernel.eps)
        return self.inner.projection((graph @ value).transpose(1, 2).flatten(2))


class Peer(nn.Module):
    """A layer of another library, which does not use the domain."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        return self.layer(u)


def _linformer(points: int) -> nn.Module:
    from linformer.linformer import LinformerSelfAttention  # type: ignore[import-not-found]

    return Peer(LinformerSelfAttention(DIM, points, k=256, heads=HEADS))


def _performer(points: int) -> nn.Module:
    from performer_pytorch import SelfAttention  # type: ignore[import-not-found]

    return Peer(SelfAttention(DIM, heads=HEADS, dim_head=DIM // HEADS, causal=False))


class Agents(Peer):
    """Agent attention with learned agents."""

    def __init__(self, layer: nn.Module, agents: int):
        super().__init__(layer)
        self.agents = nn.Parameter(torch.randn(1, agents, DIM) * 0.02)

    def forward(self, u: Tensor, domain: Domain) -> Tensor:
        return self.layer(u, agent_tokens=self.agents.expand(len(u), -1, -1))


def _agent(points: int) -> nn.Module:
    from agent_attention_pytorch.agent_transformer import AgentSelfAttention  # type: ignore[import-not-found]

    options = {"num_agent_tokens": 49, "talking_heads": False, "gate": False}
    return Agents(AgentSelfAttention(DIM, dim_head=DIM // HEADS, heads=HEADS, **options), 49)


def _linear_transformer(points: int) -> nn.Module:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention  # type: ignore[import-not-found]

    return Peer(SelfAttention(DIM, HEADS, causal=False, dim_head=DIM // HEADS))


class Mechanism(NamedTuple):
    """A mechanism of the table.

    Attributes:
        kind: its name in the paper's Table 2.
        make: makes the layer for N points.
    """

    kind: str
    make: Callable[[int], nn.Module]


def _ours(name: str) -> Callable[[int], nn.Module]:
    return lambda points: create_operator(name, DIM, HEADS)


def _stored(name: str) -> Callable[[int], nn.Module]:
    return lambda points: Quadratic(name)


# SOFT, FLatten and MLLA don't have an installable package.
MAPS = "feature maps, as FLatten and MLLA"
MECHANISMS = {
    "softmax, N × N": Mechanism("Standard ViT", _stored("softmax")),
    "softmax, fused (ours)": Mechanism("Standard ViT", _ours("softmax")),
    "linformer": Mechanism("Linformer", _linformer),
    "performer-pytorch": Mechanism("Performer", _performer),
    "linear-attention-transformer": Mechanism(MAPS, _linear_transformer),
    "linear attention (ours)": Mechanism(MAPS, _ours("linear_attention")),
    "agent-attention-pytorch": Mechanism("Agent Attn", _agent),
    "pure InfSA, N × N": Mechanism("InfViT Pure", _stored("infsa")),
    "pure InfSA (ours)": Mechanism("InfViT Pure", _ours("infsa")),
    "linear InfSA (ours)": Mechanism("InfViT Linear", _ours("linear_infsa")),
}


# --- one measurement, in this process -------------------------------------------------------------


def check_model() -> float:
    """Compare the model on a small image with its definition in float64; return the error.

    The reference is the same model with operators that call ``dense``.

    Raises:
        WrongAnswer: the error is above 1e-4.
    """
    torch.manual_seed(0)
    model = create_model("infvit_linear_4", body={"dim": 96, "heads": 8, "depth": 2, "chunk": 3})
    nn.init.normal_(model.head.weight)
    image = torch.randn(1, 3, 64, 48)
    with torch.no_grad():
        answer = model(image)
        model.double()
        for operator in model.body.operators:
            operator.forward = operator.dense
        error = difference(answer, model(image.double()))
    return require("InfViT", error, 1e-4)


def forward(points: int) -> dict[str, Any]:
    """Time InfViT-4L-64H on one image of ``points`` patches.

    The second pass is timed; the first one allocates memory.
    """
    check_model()
    side = math.isqrt(points) * 16
    torch.manual_seed(0)
    model = create_model("infvit_linear_4", body={"chunk": CHUNK}).eval()
    with torch.no_grad():
        image = torch.randn(1, 3, side, side)
        model(image)
        found: list[Tensor] = []
        seconds = seconds_of(lambda: found.append(model(image)))
    return _found(seconds, found[0])


def train(points: int) -> dict[str, Any]:
    """Time one training step (forward, backward, AdamW) on one image of ``points`` patches."""
    check_model()
    side = math.isqrt(points) * 16
    torch.manual_seed(0)
    model = create_model("infvit_linear_4", body={"chunk": CHUNK})
    nn.init.normal_(model.head.weight, std=0.02)
    optimizer = torch.optim.AdamW(model.weight_decay_groups(0.01), lr=5e-4)
    image = torch.randn(1, 3, side, side)

    def step() -> None:
        nn.functional.cross_entropy(model(image), torch.tensor([3])).backward()
        optimizer.step()

    seconds = seconds_of(step)
    return _found(seconds, torch.stack([p.detach().sum() for p in model.parameters()]))


def mechanism(
    name: str, points: int, repeats: int, backward: bool = False, ratio: float = 4.0
) -> dict[str, Any]:
    """Time four pre-norm blocks of width 768 with 64 heads of a mechanism, the best of ``repeats``.

    Args:
        name: of the mechanism.
        points: number of tokens.
        repeats: number of rounds.
        backward: whether to compute gradients too.
        ratio: width of the feed-forward networks over that of the blocks; 0 for none.
    """
    torch.manual_seed(0)
    make = MECHANISMS[name].make
    blocks = nn.ModuleList(
        ResidualBlock(make(points), DIM, ratio=ratio, chunk=CHUNK) for _ in range(DEPTH)
    )
    parameters = sum(p.numel() for p in blocks.parameters())
    domain, u = Domain.line(points), torch.randn(1, points, DIM)
    outputs: list[Tensor] = []

    def once() -> None:
        with torch.set_grad_enabled(backward):
            out = u
            for block in blocks:
                out = block(out, domain)
            if backward:
                out.square().mean().backward()
        outputs[:] = [out]

    seconds = min(seconds_of(once) for _ in range(repeats))
    return _found(seconds, outputs[0]) | {"parameters": parameters}


def _found(seconds: float, out: Tensor) -> dict[str, Any]:
    if not bool(out.isfinite().all()):
        raise WrongAnswer(
            "answer: expected finite numbers, got others; refusing to report its time"
        )
    return {"seconds": seconds, "megabytes": process_megabytes()}


# --- all measurements, each in a fresh process ----------------------------------------------------


def measure(kind: str, threads: int, **options: Any) -> dict[str, Any]:
    """Measure in a new process; return ``error`` if it fails, for example if a peer is missing."""
    try:
        return alone(f"{__name__}:in_this_process", kind=kind, threads=threads, options=options)
    except RuntimeError as error:
        return {"error": str(error)}


def in_this_process(kind: str, threads: int, options: dict[str, Any]) -> dict[str, Any]:
    """Measure one kind; the entry of the new process."""
    torch.set_num_threads(threads)
    return {"forward": forward, "train": train, "mechanism": mechanism}[kind](**options)


def time_model(options: Options) -> None:
    """Measure seconds and peak memory of a forward pass at each length."""
    rows = []
    for n in (64, 256) if options.small else LENGTHS:
        row = {"n": n, **measure("forward", options.threads, points=n)}
        if "seconds" in row:
            row["microseconds_per_token"] = 1e6 * row["seconds"] / n
        rows.append(row)
        print("InfViT-4L-64H forward", row, flush=True)
    keep("model", rows, options)


def time_train(options: Options) -> None:
    """Measure one training step."""
    points = 64 if options.small else TRAINED
    keep("train", {"n": points, **measure("train", options.threads, points=points)}, options)


def table_memory(options: Options) -> None:
    """Measure every mechanism's peak memory at each length; fit the largest N within 16 GB."""
    lengths = (128, 256, 512) if options.small else TABLE_LENGTHS
    rows = []
    for name, (kind, _) in MECHANISMS.items():
        row: dict[str, Any] = {"mechanism": name, "kind": kind, "memory": []}
        for n in _sizes(name, lengths):
            arguments = {"name": name, "points": n, "repeats": 1, "ratio": 0.0}
            found = measure("mechanism", options.threads, **arguments)
            if "error" in found:
                row["error"] = found["error"]
                break
            row["parameters"] = found["parameters"]
            row["memory"].append({"n": n, "megabytes": found["megabytes"]})
        if "error" not in row:
            row["largest"], row["exponent"] = largest(row["memory"])
        rows.append(row)
        print(row, flush=True)
    keep("table-memory", rows, options)


def table_time(options: Options) -> None:
    """Measure the seconds of every mechanism.

    A forward pass has 4,096 tokens, for which mechanisms that store matrices take 13 GB; forward
    and backward have 1,024.
    """
    points = 256 if options.small else 4096
    rows = []
    for name in MECHANISMS:
        forward_pass: dict[str, Any] = {"points": points, "repeats": 4}
        training: dict[str, Any] = {"points": points // 4, "repeats": 4, "backward": True}
        row: dict[str, Any] = {"mechanism": name, "n": points, "trained": points // 4, "repeats": 4}
        for key, arguments in (("forward_seconds", forward_pass), ("training_seconds", training)):
            found = measure("mechanism", options.threads, name=name, **arguments)
            if "error" in found:
                row["error"] = found["error"]
            else:
                row[key] = found["seconds"]
        rows.append(row)
        print(row, flush=True)
    keep("table-time", rows, options)


def _sizes(name: str, lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Return shorter lengths for mechanisms of quadratic cost."""
    if name.startswith(("softmax", "pure")):
        return tuple(n // FEWER for n in lengths)
    return lengths


def largest(memory: list[dict[str, float]]) -> tuple[int, float]:
    """Fit :math:`m(N) = a + b N^p` to memory; return the N that takes 16 GB, and the exponent p.

    The fit goes through the last three lengths, whose ratios must be equal.

    Example:
        >>> rows = [{"n": n, "megabytes": 300 + n**2 / 1e5} for n in (1000, 2000, 4000)]
        >>> count, power = largest(rows)
        >>> round(power, 2), round(count, -2)
        (2.0, 40100)
    """
    (_, m0), (n1, m1), (n2, m2) = ((row["n"], row["megabytes"]) for row in memory[-3:])
    if m2 - m1 <= 0 or m1 - m0 <= 0:
        return 0, math.nan
    power = math.log((m2 - m1) / (m1 - m0)) / math.log(n2 / n1)
    # An exponent below one means that the constant part still dominates; linear is cautious.
    power = max(power, 1.0)
    slope = (m2 - m1) / (n2**power - n1**power)
    return int(((LIMIT - m2) / slope + n2**power) ** (1 / power)), power
