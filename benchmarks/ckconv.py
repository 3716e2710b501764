"""Continuous kernel convolution: hidden units first against the whole kernel, the crossover with a
direct convolution, memory.

``python -m benchmarks.ckconv --out docs/results/ckconv-speed.json``: the timed cases, then peak
memory and seconds a batch of up to 16,000 samples, each length in a process of its own. ``python -m
benchmarks --only ckconv`` times the same cases among the others.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fredholm.domain import Domain
from fredholm.operators import CKConv

from .machine import describe, matrix_rate
from .memory import exponent, peak_kilobytes
from .registry import Case, Entry, register, with_gradients
from .runner import run

CHANNELS, BATCH = 30, 4
LENGTHS, CROSSOVER, MEMORY = (784, 4096, 16000), (16, 64, 256, 1024), (2000, 4000, 8000, 16000)


def sampled(operator: CKConv, n: int) -> Tensor:
    """The kernel of a causal line of n samples as a tensor (d_out, d_in, n)."""
    kernel = operator.kernel
    weight, bias = kernel.readout()
    h = kernel.lag_features(torch.arange(n)[:, None] / n)
    return torch.einsum("oiw,nw->oin", weight[0], h) + bias[0, :, :, None]


def whole_kernel(operator: CKConv, u: Tensor) -> Tensor:
    """Every entry of the kernel sampled and transformed, d_out · d_in transforms."""
    n = u.shape[1]
    taps = torch.fft.rfft(sampled(operator, n), n=2 * n)
    product = torch.einsum("oif,bif->bof", taps, torch.fft.rfft(u.mT, n=2 * n))
    return torch.fft.irfft(product, n=2 * n)[..., :n].mT + operator.kernel.bias


def direct(operator: CKConv, u: Tensor) -> Tensor:
    """A direct convolution with the sampled kernel, as long as the signal."""
    n = u.shape[1]
    return functional.conv1d(
        functional.pad(u.mT, (n - 1, 0)), sampled(operator, n).flip(-1), operator.kernel.bias
    ).mT


def make(n: int) -> tuple[CKConv, Tensor, Domain]:
    """A layer of 30 channels, a batch of 4 and its causal line."""
    torch.manual_seed(0)
    u = torch.randn(BATCH, n, CHANNELS, requires_grad=True)
    return (
        CKConv(CHANNELS, length=n, omega=30.0),
        u,
        Domain.line(n, causal=True, measure="counting"),
    )


@register("ckconv")
def ckconv(
    lengths: tuple[int, ...] = LENGTHS, crossover: tuple[int, ...] = CROSSOVER
) -> Iterator[Case]:
    """Forward + backward at 30 channels, batch 4."""
    for n in lengths:
        operator, u, domain = make(n)
        inputs = [u, *operator.parameters()]
        fast = lambda op=operator, v=u, d=domain, i=inputs: with_gradients(op(v, d), i)  # noqa: E731
        slow = lambda op=operator, v=u, i=inputs: with_gradients(whole_kernel(op, v), i)  # noqa: E731
        entries = {"hidden units first": Entry(fast), "whole kernel": Entry(slow)}
        note = f"B={BATCH} N={n} {CHANNELS} channels"
        yield Case(f"ckconv N={n}", slow, entries, tolerance=1e-3, note=note, repeats=5)
    for n in crossover:
        operator, u, domain = make(n)
        inputs = [u, *operator.parameters()]
        fast = lambda op=operator, v=u, d=domain, i=inputs: with_gradients(op(v, d), i)  # noqa: E731
        slow = lambda op=operator, v=u, i=inputs: with_gradients(direct(op, v), i)  # noqa: E731
        entries = {"hidden units first": Entry(fast), "F.conv1d": Entry(slow)}
        note = f"B={BATCH} N={n} {CHANNELS} channels, kernel as long as the signal"
        yield Case(f"ckconv direct N={n}", slow, entries, tolerance=1e-3, note=note, repeats=5)


def measure(n: int) -> dict[str, float]:
    """Peak memory of one layer's step above that of a tiny one, MB, and the seconds of a step of a
    CKCNN (98k) with a batch of 32.
    """
    from fredholm.models import create_model

    operator, u, domain = make(n)
    operator(u[:, :64], domain[:64]).square().sum().backward()
    before = peak_kilobytes()
    operator(u, domain).square().sum().backward()
    found = {"n": n, "megabytes": (peak_kilobytes() - before) / 1024}
    model = create_model("ckcnn_speech_raw", encoder={"length": n})
    inputs = torch.randn(32, n, 1)
    start = time.perf_counter()
    model(inputs).square().sum().backward()
    return found | {"seconds": time.perf_counter() - start, "peak": peak_kilobytes() / 1024}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ckconv", description=__doc__)
    parser.add_argument("n", nargs="?", type=int, help="measure this length alone, in this process")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, help="write the times, the memory and the machine as JSON"
    )
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.n:
        print(json.dumps(measure(args.n)))
        return
    found: dict[str, Any] = {
        "machine": describe() | {"sgemm_gflops": matrix_rate() / 1e9},
        "cases": [],
        "memory": [],
    }
    for case in ckconv():
        found["cases"] += run(case)
        print(json.dumps(found["cases"][-2:]), flush=True)
    for n in MEMORY:
        command = [
            sys.executable,
            "-m",
            "benchmarks.ckconv",
            str(n),
            "--threads",
            str(args.threads),
        ]
        found["memory"].append(
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        )
        print(json.dumps(found["memory"][-1]), flush=True)
    found["exponent"] = exponent(found["memory"])
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
