"""Speed and memory of continuous kernel convolution.

The library transforms hidden units and applies the readout last. It is compared with transforming
every entry of the kernel, and with a direct convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fredholm.domain import Domain
from fredholm.lab.training.machine import seconds_of
from fredholm.operators import CKConv

from ..kit.clock import Case, Entry, time_cases, with_gradients
from ..kit.machine import with_rate
from ..kit.memory import alone, exponent, peak_megabytes, process_megabytes
from ..kit.page import load, save
from ..kit.subject import Options

FILE = "ckconv-speed.json"
CHANNELS, BATCH = 30, 4
LENGTHS = (784, 4096, 16000)
CROSSOVER = (16, 64, 256, 1024)
MEMORY = (2000, 4000, 8000, 16000)


def sampled(operator: CKConv, n: int) -> Tensor:
    """Return the kernel of a causal line of n samples as a tensor (d_out, d_in, n)."""
    kernel = operator.kernel
    weight, bias = kernel.readout()
    h = kernel.lag_features(torch.arange(n)[:, None] / n)
    return torch.einsum("oiw,nw->oin", weight[0], h) + bias[0, :, :, None]


def whole_kernel(operator: CKConv, u: Tensor) -> Tensor:
    """Convolve by transforming every entry of the sampled kernel, d_out · d_in transforms."""
    n = u.shape[1]
    taps = torch.fft.rfft(sampled(operator, n), n=2 * n)
    product = torch.einsum("oif,bif->bof", taps, torch.fft.rfft(u.mT, n=2 * n))
    return torch.fft.irfft(product, n=2 * n)[..., :n].mT + operator.kernel.bias


def direct(operator: CKConv, u: Tensor) -> Tensor:
    """Convolve directly with the sampled kernel, which is as long as the signal."""
    n = u.shape[1]
    padded = functional.pad(u.mT, (n - 1, 0))
    kernel = sampled(operator, n).flip(-1)
    return functional.conv1d(padded, kernel, operator.kernel.bias).mT


def make(n: int) -> tuple[CKConv, Tensor, Domain]:
    """Return a layer of 30 channels, a batch of 4 signals and their causal line."""
    torch.manual_seed(0)
    u = torch.randn(BATCH, n, CHANNELS, requires_grad=True)
    domain = Domain.line(n, causal=True, measure="counting")
    return CKConv(CHANNELS, length=n, omega=30.0), u, domain


def ckconv(
    lengths: tuple[int, ...] = LENGTHS, crossover: tuple[int, ...] = CROSSOVER
) -> Iterator[Case]:
    """Yield the cases: forward and backward at 30 channels, batch 4."""
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


def measure(n: int, threads: int) -> dict[str, float | None]:
    """Measure one layer's step and that of a CKCNN with 98,000 parameters, in this process.

    Returns the layer's peak memory in MB and the CKCNN's seconds for a batch of 32.
    """
    from fredholm.models import create_model

    torch.set_num_threads(threads)
    operator, u, domain = make(n)
    operator(u[:, :64], domain[:64]).square().sum().backward()
    megabytes = peak_megabytes(lambda: operator(u, domain).square().sum().backward())
    model = create_model("ckcnn_speech_raw", encoder={"length": n})
    inputs = torch.randn(32, n, 1)
    seconds = seconds_of(lambda: model(inputs).square().sum().backward())
    return {"n": n, "megabytes": megabytes, "seconds": seconds, "peak": process_megabytes()}


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time the cases and yield their rows."""
    yield from time_cases(ckconv((64,), (16,)) if options.small else ckconv())


def time(options: Options) -> None:
    """Time the cases, then measure memory and seconds at each length in a fresh process."""
    found: dict[str, Any] = {"machine": with_rate(), "cases": list(timed(options)), "memory": []}
    for n in (128, 256) if options.small else MEMORY:
        row = alone(f"{__name__}:measure", n=n, threads=options.threads)
        print(row, flush=True)
        found["memory"].append(row)
    save(found | {"exponent": exponent(found["memory"])}, FILE, options.results)


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    return load(FILE)["cases"]
