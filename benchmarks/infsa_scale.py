"""InfViT at extreme resolutions, and the mechanisms of the paper's Table 2 in one stack: time and
peak memory, a process each.

Called by ``python -m benchmarks.infsa``; ``python -m benchmarks.infsa_scale '{"kind": "forward",
...}'`` is one of those processes. Peers are used where they can be imported;
``pip install --no-deps --target DIR performer-pytorch linformer agent-attention-pytorch
linear-attention-transformer`` and ``PYTHONPATH=DIR`` leave this installation as it is.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.depth import ResidualBlock
from fredholm.domain import Domain
from fredholm.models import create_model
from fredholm.operators import create_operator

from .memory import peak_kilobytes
from .runner import WrongAnswer, difference

LENGTHS = (4096, 16384, 65536, 331776)
TRAINED = 65536
CHUNK = 4096
TABLE_LENGTHS = (2048, 4096, 8192)
FEWER = 4  # lengths are divided by it for mechanisms of quadratic cost: the matrices of 64 heads at 4,096 tokens take 4.3 GB a copy
LIMIT = 16 * 1024  # megabytes
DIM, HEADS, DEPTH = 768, 64, 4


class Quadratic(nn.Module):
    """The published form of pure InfSA or of softmax attention: the N × N matrix of every head is
    stored.
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
    """Another library's layer, which knows no domain."""

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
    """Agent attention, with learned agents of its own."""

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


# Name: (kind in the paper's Table 2, what makes the layer for N points). SOFT, FLatten and MLLA
# have no installable package.
MECHANISMS: dict[str, tuple[str, Callable[[int], nn.Module]]] = {
    "softmax, N × N": ("Standard ViT", lambda n: Quadratic("softmax")),
    "softmax, fused (ours)": ("Standard ViT", lambda n: create_operator("softmax", DIM, HEADS)),
    "linformer": ("Linformer", _linformer),
    "performer-pytorch": ("Performer", _performer),
    "linear-attention-transformer": ("feature maps, as FLatten and MLLA", _linear_transformer),
    "linear attention (ours)": (
        "feature maps, as FLatten and MLLA",
        lambda n: create_operator("linear_attention", DIM, HEADS),
    ),
    "agent-attention-pytorch": ("Agent Attn", _agent),
    "pure InfSA, N × N": ("InfViT Pure", lambda n: Quadratic("infsa")),
    "pure InfSA (ours)": ("InfViT Pure", lambda n: create_operator("infsa", DIM, HEADS)),
    "linear InfSA (ours)": ("InfViT Linear", lambda n: create_operator("linear_infsa", DIM, HEADS)),
}


# --- one measurement, in this process -------------------------------------------------------------


def check_model() -> float:
    """The model on a small image against the same model whose operators use their definition, in
    float64; refused if it differs.
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
    if not error < 1e-4:
        raise WrongAnswer(f"InfViT is {error:.1e} from its definition; refusing to measure it")
    return error


def forward(points: int) -> dict[str, float]:
    """One image of ``points`` patches through InfViT-4L-64H, the second of two passes: the first
    one finds its memory.
    """
    check_model()
    side = math.isqrt(points) * 16
    torch.manual_seed(0)
    model = create_model("infvit_linear_4", body={"chunk": CHUNK}).eval()
    with torch.no_grad():
        image = torch.randn(1, 3, side, side)
        model(image)
        start = time.perf_counter()
        out = model(image)
        seconds = time.perf_counter() - start
    return _found(seconds, out)


def train(points: int) -> dict[str, float]:
    """One step, forward, backward and AdamW, on one image of ``points`` patches."""
    check_model()
    side = math.isqrt(points) * 16
    torch.manual_seed(0)
    model = create_model("infvit_linear_4", body={"chunk": CHUNK})
    nn.init.normal_(model.head.weight, std=0.02)
    optimizer = torch.optim.AdamW(model.weight_decay_groups(0.01), lr=5e-4)
    image = torch.randn(1, 3, side, side)
    start = time.perf_counter()
    loss = nn.functional.cross_entropy(model(image), torch.tensor([3]))
    loss.backward()
    optimizer.step()
    return _found(
        time.perf_counter() - start, torch.stack([p.detach().sum() for p in model.parameters()])
    )


def mechanism(
    name: str, points: int, repeats: int, backward: bool = False, ratio: float = 4.0
) -> dict[str, float]:
    """Four pre-norm blocks of width 768 and 64 heads around one mechanism; the best of some rounds.
    ``ratio`` 0: no feed-forward.
    """
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        ResidualBlock(MECHANISMS[name][1](points), DIM, ratio=ratio, chunk=CHUNK)
        for _ in range(DEPTH)
    )
    parameters = sum(p.numel() for p in blocks.parameters())
    domain, u = Domain.line(points), torch.randn(1, points, DIM)
    times, out = [], u
    for _ in range(repeats):
        start = time.perf_counter()
        with torch.set_grad_enabled(backward):
            out = u
            for block in blocks:
                out = block(out, domain)
            if backward:
                out.square().mean().backward()
        times.append(time.perf_counter() - start)
    return _found(min(times), out) | {"parameters": parameters}


def _found(seconds: float, out: Tensor) -> dict[str, float]:
    if not bool(out.isfinite().all()):
        raise WrongAnswer("the answer is not finite; refusing to report its time")
    return {"seconds": seconds, "megabytes": peak_kilobytes() / 1024}


# --- many, each in a process of its own -----------------------------------------------------------


def measure(kind: str, threads: int, **options: Any) -> dict[str, Any]:
    """One measurement in a new process; ``error`` where it fails, a missing peer for instance."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.infsa_scale",
        json.dumps({"kind": kind, "threads": threads, **options}),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return {
            "error": done.stderr.strip().splitlines()[-1]
            if done.stderr.strip()
            else f"exit {done.returncode}"
        }
    return json.loads(done.stdout.splitlines()[-1])


def scaling(lengths: tuple[int, ...], threads: int) -> list[dict[str, Any]]:
    """Seconds, microseconds a token and peak memory of a forward pass at each length."""
    rows = []
    for n in lengths:
        row = {"n": n, **measure("forward", threads, points=n)}
        if "seconds" in row:
            row["microseconds_per_token"] = 1e6 * row["seconds"] / n
        rows.append(row)
        print("InfViT-4L-64H forward", row, flush=True)
    return rows


def step(points: int, threads: int) -> dict[str, Any]:
    """One training step at ``points`` patches."""
    found = {"n": points, **measure("train", threads, points=points)}
    print("InfViT-4L-64H training step", found, flush=True)
    return found


def table(lengths: tuple[int, ...], threads: int) -> list[dict[str, Any]]:
    """Every mechanism's peak memory at each length, and the largest N that fits into 16 GB."""
    rows = []
    for name, (kind, _) in MECHANISMS.items():
        row: dict[str, Any] = {"mechanism": name, "kind": kind, "memory": []}
        for n in _sizes(name, lengths, ("softmax", "pure")):
            found = measure("mechanism", threads, name=name, points=n, repeats=1, ratio=0.0)
            if "error" in found:
                row["error"] = found["error"]
                break
            row["parameters"] = found["parameters"]
            row["memory"].append({"n": n, "megabytes": found["megabytes"]})
        if "error" not in row:
            row["largest"], row["exponent"] = largest(row["memory"])
        rows.append(row)
        print(row, flush=True)
    return rows


def times(points: int, threads: int) -> list[dict[str, Any]]:
    """Every mechanism: seconds of a forward pass at ``points`` (or as many as it stores), and of
    forward and backward at a quarter.
    """
    rows = []
    for name in MECHANISMS:
        (here,) = _sizes(name, (points,), ("softmax, N", "pure InfSA, N"))
        inference = measure("mechanism", threads, name=name, points=here, repeats=1)
        training = measure(
            "mechanism", threads, name=name, points=points // 4, repeats=2, backward=True
        )
        row: dict[str, Any] = {"mechanism": name, "n": here, "trained": points // 4}
        for key, found in (("forward_seconds", inference), ("training_seconds", training)):
            row |= {"error": found["error"]} if "error" in found else {key: found["seconds"]}
        rows.append(row)
        print(row, flush=True)
    return rows


def _sizes(name: str, lengths: tuple[int, ...], kinds: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(n // FEWER for n in lengths) if name.startswith(kinds) else lengths


def largest(memory: list[dict[str, float]]) -> tuple[int, float]:
    """Largest N whose forward pass takes 16 GB, and the exponent, by :math:`m(N) = a + b N^p`
    through the last three of equal ratios.

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
    power = max(
        power, 1.0
    )  # below it, the constant part still shows: linear is the cautious reading
    slope = (m2 - m1) / (n2**power - n1**power)
    return int(((LIMIT - m2) / slope + n2**power) ** (1 / power)), power


KINDS: dict[str, Callable[..., dict[str, Any]]] = {
    "forward": forward,
    "train": train,
    "mechanism": mechanism,
}


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    torch.set_num_threads(given.pop("threads"))
    print(json.dumps(KINDS[given.pop("kind")](**given)))
