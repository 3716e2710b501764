"""LUNA's speed and memory beside other linear attentions: curves in N, the feature map, single
steps, what the backward keeps.

``python -m benchmarks.luna_speed [--longest 65536] [--seconds 3] [--threads 2]`` checks our layers
against their definitions, then writes docs/results/luna-speed.json and the page of
:mod:`benchmarks.luna_report`. Quiet machine, a few minutes. `performer-pytorch` and
`linear-attention-transformer` are timed where they can be imported (``pip install --no-deps
--target DIR performer-pytorch linear-attention-transformer axial-positional-embedding
local-attention linformer product-key-memory einops`` and ``PYTHONPATH=DIR``).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.kernels import LunaMap
from fredholm.operators import IntegralOperator, LinearAttention, LunaAttention, create_operator
from fredholm.ops.feature_map import Bank, scalar_bank, scalar_bank_naive, segments

from .luna import DIM, HEADS, Literal, check_layer, check_map, gradients
from .machine import describe

RESULTS = Path("docs/results/luna-speed.json")
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
SOFTMAX_LONGEST = 8192  # beyond, a step takes many seconds
STEPS = 5000


def performer() -> nn.Module:
    """performer-pytorch's attention with 64 features."""
    from performer_pytorch import SelfAttention  # type: ignore[import-not-found]

    return SelfAttention(DIM, heads=HEADS, dim_head=DIM // HEADS, nb_features=64, causal=False)


def linear_transformer() -> nn.Module:
    """linear-attention-transformer's attention: softmax of queries over features and of keys over
    points.
    """
    from linear_attention_transformer.linear_attention_transformer import SelfAttention  # type: ignore[import-not-found]

    return SelfAttention(DIM, HEADS, causal=False, dim_head=DIM // HEADS)


PEERS = {"performer-pytorch": performer, "linear-attention-transformer": linear_transformer}


def layers() -> dict[str, nn.Module]:
    """Ours, each checked against its definition, and what peers there are."""
    torch.manual_seed(0)
    made: dict[str, nn.Module] = {
        "softmax": create_operator("softmax", DIM, HEADS),
        "elu + 1": LinearAttention(DIM, HEADS),
        "performer": LinearAttention(
            DIM, HEADS, feature_map="performer", feature_options={"features": 64}
        ),
        "hedgehog": LinearAttention(DIM, HEADS, feature_map="hedgehog"),
        "t2r": LinearAttention(DIM, HEADS, feature_map="t2r"),
        "luna": LunaAttention(DIM, HEADS),
        "luna, shared network": LunaAttention(DIM, HEADS, shared=True),
    }
    for operator in made.values():
        assert isinstance(operator, IntegralOperator)
        check_layer(operator, 24)
    for name, make in PEERS.items():
        try:
            made[name] = make()
        except ImportError as error:
            print(f"{name}: not timed, {error}", flush=True)
    return made


def step(layer: nn.Module, u: Tensor, backward: bool) -> object:
    """One forward, or one training step's gradients."""
    if not backward:
        with torch.no_grad():
            return layer(u)
    return torch.autograd.grad(layer(u).sum(), [u, *layer.parameters()], allow_unused=True)


def in_turn(ways: dict[str, Callable[[], object]], seconds: float) -> dict[str, list[float]]:
    """Times of each way in turn, after a round that does not count, until ``seconds`` a way are
    spent; two rounds at least.
    """
    for way in ways.values():
        way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    while min(len(t) for t in times.values()) < 2 or (
        sum(map(sum, times.values())) < seconds * len(ways) and len(next(iter(times.values()))) < 15
    ):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            times[name].append(time.perf_counter() - start)
    return times


def curves(longest: int, seconds: float) -> list[dict[str, Any]]:
    """Milliseconds of every layer at every length, forward and forward + backward: median, and the
    fastest.
    """
    made, rows = layers(), []
    for n in (n for n in LENGTHS if n <= longest):
        u = torch.randn(1, n, DIM, requires_grad=True)
        for backward in (False, True):
            here = {k: layer for k, layer in made.items() if k != "softmax" or n <= SOFTMAX_LONGEST}
            ways = {k: partial(step, op, u, backward) for k, op in here.items()}
            for name, times in in_turn(ways, seconds).items():
                found = {"layer": name, "n": n, "backward": backward, "rounds": len(times)}
                rows.append(
                    {**found, "ms": 1e3 * statistics.median(times), "least": 1e3 * min(times)}
                )
                print(
                    f"N={n} {'both' if backward else 'forward':7} {name:28} {rows[-1]['ms']:9.1f} "
                    "ms",
                    flush=True,
                )
    return rows


def exponent(rows: list[dict[str, Any]], layer: str, backward: bool) -> float:
    """Slope of log time over log N by least squares, over all lengths."""
    mine = [row for row in rows if row["layer"] == layer and row["backward"] == backward]
    x = torch.tensor([math.log(row["n"]) for row in mine], dtype=torch.float64)
    y = torch.tensor([math.log(row["ms"]) for row in mine], dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def feature_map(scalars: int, seconds: float) -> list[dict[str, Any]]:
    """The map at many scalars, 8 channels, against the literal networks; answers checked in float64
    first.
    """
    rows = []
    for label, shared in (("one network a channel", False), ("one shared network", True)):
        torch.manual_seed(0)
        bank = Bank(*(x.detach().requires_grad_() for x in LunaMap(64, shared=shared).bank))
        literal, u = Literal(bank), torch.randn(scalars)
        u = torch.where(torch.isin(u, segments(bank)[0]), u + 1e-3, u).requires_grad_()
        check_map(bank, u[:20_000])
        along = torch.randn(scalars, 8)
        across = along.mT.contiguous().mT
        fast = lambda b=bank, v=u: scalar_bank(v[None, None], b)[0, 0].mT  # noqa: E731
        ways: dict[str, dict[str, Callable[[], object]]] = {
            "forward": {
                "piecewise": torch.no_grad()(fast),
                "literal": torch.no_grad()(lambda m=literal, v=u: m(v)),
            },
            "forward + backward": {
                "piecewise": lambda f=fast, b=bank, v=u, g=across: gradients(f(), [v, *b], g),
                "literal": lambda m=literal, v=u, g=along: gradients(m(v), [v, *m.parts()], g),
            },
        }
        for what, both in ways.items():
            found = {
                name: 1e3 * statistics.median(times)
                for name, times in in_turn(both, seconds).items()
            }
            rows.append({"networks": label, "what": what, "scalars": scalars, **found})
            print(
                f"map, {label}, {what}: {found['literal'] / found['piecewise']:.1f} times faster",
                flush=True,
            )
    return rows


@torch.no_grad()
def steps(count: int) -> list[dict[str, Any]]:
    """Microseconds of a causal step around some positions: nothing grows but the position."""
    layer, rows = LunaAttention(DIM, HEADS), []
    u, state = torch.randn(1, DIM), layer.init_state(1, Domain.line(count, causal=True))
    marks, times = (count // 100, count // 10, count // 2, count - 1), []
    for t in range(count):
        start = time.perf_counter()
        _, state = layer.step(u, state)
        times.append(time.perf_counter() - start)
        if t in marks:
            rows.append({"position": t, "us": 1e6 * statistics.median(times[-count // 100 :])})
    return rows


def kept(make: Callable[[], Tensor], known: set[int]) -> int:
    """Bytes that autograd keeps for the backward, each storage once, those of ``known`` left out."""
    found: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        alive = make()
    assert alive.requires_grad
    return sum(found.values())


def memory(points: int) -> list[dict[str, Any]]:
    """Bytes a token that a layer keeps for its backward, and that the map keeps a scalar, beside
    the literal networks.
    """
    rows = []
    for name, layer in layers().items():
        u = torch.randn(1, points, DIM, requires_grad=True)
        known = {p.untyped_storage().data_ptr() for p in [u, *layer.parameters()]}
        size = kept(lambda: layer(u), known)  # noqa: B023
        rows.append({"what": name, "unit": "token", "bytes": size / points})
    bank = LunaMap(64).bank
    u = torch.randn(1, 1, points, requires_grad=True)
    for name, make in {
        "map, piecewise": scalar_bank,
        "map, literal networks": scalar_bank_naive,
    }.items():
        size = kept(lambda: make(u, bank), set())  # noqa: B023
        rows.append({"what": name, "unit": "scalar", "bytes": size / points})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.luna_speed", description=__doc__)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--seconds", type=float, default=1.5, help="a layer, length and direction")
    parser.add_argument("--scalars", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    found: dict[str, Any] = {
        "command": "python -m benchmarks.luna_speed",
        "machine": describe(),
        "dim": DIM,
        "heads": HEADS,
    }
    found["map"] = feature_map(args.scalars, args.seconds)
    found["steps"] = steps(args.steps)
    found["memory"] = memory(min(4096, args.longest))
    found["curves"] = curves(args.longest, args.seconds)
    args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.out == RESULTS:
        from .luna_report import write

        write()


if __name__ == "__main__":
    main()
