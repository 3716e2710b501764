"""InfSA: the tiled pure form against the N² form, its memory exponent, the linear form's time per
token, InfViT at extreme resolutions, and the mechanisms of the paper's Table 2.

``python -m benchmarks.infsa [--small] [--threads T] [--only PART ...] [--out FILE]``; parts are
added to the file as they are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fredholm.domain import Domain
from fredholm.operators import InfSA, LinearInfSA

from . import infsa_scale, memory
from .machine import describe, median_and_spread
from .memory import peak_kilobytes
from .registry import Case, Entry, with_gradients
from .runner import WrongAnswer, difference, run

LENGTHS = (4096, 16384, 65536, 331776)
SMALL = (256, 512, 1024)


def quadratic(operator: Any, u: Tensor) -> Tensor:
    """The published form with the same weights: the N × N matrix of a head, its ReLU, its norm, its
    quotient, its product.
    """
    query, key, value = operator.kernel.tokens(u[:, None])
    graph = torch.relu(query @ key.mT)
    graph = graph / (graph.norm(dim=(-2, -1), keepdim=True) + operator.kernel.eps)
    out = (operator.kernel.gamma * graph) @ value
    return operator.projection(out.transpose(1, 2).flatten(2))


def pure(points: int, dim: int, heads: int) -> Case:
    """Forward and backward of both forms, checked against the N² form in float64."""
    torch.manual_seed(0)
    operator = InfSA(dim, heads)
    domain = Domain.line(points, measure="counting")
    u = torch.randn(1, points, dim, requires_grad=True)
    inputs = [u, *operator.parameters()]

    def reference() -> Tensor:
        double = InfSA(dim, heads).double()
        double.load_state_dict(operator.state_dict())
        v = u.detach().double().requires_grad_()
        return with_gradients(quadratic(double, v), [v, *double.parameters()])

    pairs = heads * points * points * dim // heads
    entries = {
        "tiled": Entry(lambda: with_gradients(operator(u, domain), inputs), 2.0 * 7 * pairs),
        "N × N": Entry(lambda: with_gradients(quadratic(operator, u), inputs), 2.0 * 6 * pairs),
    }
    note = f"B=1 N={points} d={dim} H={heads}"
    return Case("infsa forward+backward", reference, entries, tolerance=1e-3, note=note, repeats=5)


def definition(operator: Any, u: Tensor) -> Tensor:
    """Every query's weights times every key's value."""
    value = operator.kernel.tokens(u[:, None])[2]
    return operator.projection((operator.weights(u) @ value).transpose(1, 2).flatten(2))


def linear(
    lengths: tuple[int, ...], dim: int, heads: int, repeats: int = 5
) -> list[dict[str, float]]:
    """Forward of one layer: microseconds a token and the process's peak memory, after the answer
    was checked on 128 tokens.
    """
    torch.manual_seed(0)
    operator = LinearInfSA(dim, heads)
    with torch.no_grad():
        u = torch.randn(1, 128, dim)
        error = difference(operator(u), definition(operator.double(), u.double()))
        operator.float()
        if error > 1e-4:
            raise WrongAnswer(
                f"linear InfSA is {error:.1e} from its definition; refusing to time it"
            )
        rows = []
        for n in lengths:
            u, domain = torch.randn(1, n, dim), Domain.line(n)
            operator(u, domain)
            median, spread = median_and_spread(
                [_seconds(operator, u, domain) for _ in range(repeats)]
            )
            rows.append(
                {
                    "n": n,
                    "microseconds_per_token": 1e6 * median / n,
                    "spread": 1e6 * spread / n,
                    "peak_megabytes": peak_kilobytes() / 1024,
                }
            )
            print(
                f"linear N={n:7} {rows[-1]['microseconds_per_token']:8.3f} µs/token, "
                f"{rows[-1]['peak_megabytes']:.0f} MB",
                flush=True,
            )
    return rows


def _seconds(operator: LinearInfSA, u: Tensor, domain: Domain) -> float:
    start = time.perf_counter()
    operator(u, domain)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.infsa", description=__doc__)
    parser.add_argument(
        "--small", action="store_true", help="sizes for a check of the command, not for numbers"
    )
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument(
        "--out",
        type=Path,
        help="a JSON file of results; parts that are not measured now stay as they are",
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for name in args.only:
        begun = time.perf_counter()
        found = PARTS[name](args.small, args.threads)
        print(f"{name}: {time.perf_counter() - begun:.0f} s", flush=True)
        if args.out:
            kept = json.loads(args.out.read_text(encoding="utf-8")) if args.out.is_file() else {}
            kept[name] = {"machine": describe(), "small": args.small, "found": found}
            args.out.parent.mkdir(parents=True, exist_ok=True)
            args.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _linear(small: bool, threads: int) -> dict[str, Any]:
    dim, heads = (96, 8) if small else (768, 64)
    rows = linear(SMALL if small else LENGTHS, dim, heads)
    times = [row["microseconds_per_token"] for row in rows]
    print(f"linear: slowest to fastest time per token {max(times) / min(times):.3f}")
    return {
        "lengths": rows,
        "slowest_to_fastest": max(times) / min(times),
        "note": f"B=1 d={dim} H={heads}",
    }


def _pure(small: bool, threads: int) -> list[dict[str, Any]]:
    rows = run(pure(256, 64, 2) if small else pure(4096, 256, 4))
    for row in rows:
        print(
            f"{row['case']} {row['way']:6} {row['milliseconds']:10.2f} ± {row['spread']:.2f} ms, "
            f"{row['note']}"
        )
    return rows


def _memory(small: bool, threads: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        memory.run(name, SMALL if small else memory.LENGTHS) for name in ("infsa", "linear_infsa")
    ]
    for found in rows:
        sizes = ", ".join(f"{row['n']}: {row['megabytes']:.1f} MB" for row in found["lengths"])
        print(f"{found['case']} exponent {found['exponent']:.2f}  {sizes}")
    return rows


PARTS: dict[str, Callable[[bool, int], Any]] = {
    "linear": _linear,  # first, so that its peak memory is its own
    "pure": _pure,
    "memory": _memory,
    "model": lambda small, threads: infsa_scale.scaling(
        (64, 256) if small else infsa_scale.LENGTHS, threads
    ),
    "train": lambda small, threads: infsa_scale.step(64 if small else infsa_scale.TRAINED, threads),
    "table-memory": lambda small, threads: infsa_scale.table(
        (128, 256, 512) if small else infsa_scale.TABLE_LENGTHS, threads
    ),
    "table-time": lambda small, threads: infsa_scale.times(256 if small else 4096, threads),
}


if __name__ == "__main__":
    main()
