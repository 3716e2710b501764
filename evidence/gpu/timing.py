"""The GPU benchmark.

It measures in this order, until the minutes are over: the machine and its bfloat16 peak; every
kernel of ``cases.KERNELS`` beside PyTorch's operations; the models of ``models``. The answer and
the gradients of a kernel are compared with the float64 definition first, and a kernel with a wrong
answer gets no time. ``--small`` runs all of this at tiny sizes through Triton's interpreter,
without a GPU; its times mean nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import statistics
import subprocess
import time as clock_time
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch import Tensor

from fredholm.errors import BackendError
from fredholm.lab.training.machine import seconds_of

from ..kit.page import ROOT, save
from ..kit.subject import Options

# This import registers its cases.
from . import linear_cases  # noqa: F401
from .cases import KERNELS, Inputs, KernelCase, move
from .models import ModelCase, infvit_cases, itnet_cases, smoke_cases

MINUTES = 9.0
Row = dict[str, Any]


def make_clock(options: Options) -> Clock:
    """Return the clock of the GPU, or of the CPU in a small run.

    Raises:
        BackendError: there is no GPU, and the run is not a small one.
    """
    if not options.small and not torch.cuda.is_available():
        raise BackendError("no CUDA device; --small runs without one, through Triton's interpreter")
    return Clock("cpu" if options.small else "cuda", min(options.minutes, MINUTES))


class Clock:
    """Measures time on the device by CUDA events around a call; it is over after the minutes."""

    def __init__(self, device: str, minutes: float):
        self.device, self.end = device, clock_time.monotonic() + 60 * minutes

    @property
    def over(self) -> bool:
        """Whether the minutes are over."""
        return clock_time.monotonic() > self.end

    def once(self, call: Callable[[], object]) -> float:
        """Return the seconds of one call."""
        if self.device == "cpu":
            return seconds_of(call)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    def __call__(self, call: Callable[[], object], budget: float = 0.5) -> Row:
        """Return the median and half the distance between the quartiles, in seconds.

        The calls fill ``budget`` seconds; two calls before them are not counted.
        """
        if self.device == "cpu":
            return {"seconds": self.once(call), "spread": None, "repeats": 1}
        self.once(call)
        guess = self.once(call)
        repeats = max(3, min(200, int(budget / max(guess, 1e-6))))
        times = [self.once(call) for _ in range(repeats)]
        quartiles = statistics.quantiles(times, n=4)
        return {
            "seconds": statistics.median(times),
            "spread": (quartiles[2] - quartiles[0]) / 2,
            "repeats": len(times),
        }


# --- machine --------------------------------------------------------------------------------------


def machine(device: str) -> Row:
    """Return versions, commit, device and clocks."""
    found: Row = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
    }
    found["commit"] = os.environ.get("FREDHOLM_COMMIT") or _output(
        "git", "-C", str(ROOT), "rev-parse", "HEAD"
    )
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["capability"] = ".".join(map(str, torch.cuda.get_device_capability()))
        found["clocks"] = clocks()
    return found


def clocks() -> str | None:
    """Return the present SM clock, memory clock and power, as the driver prints them."""
    query = "--query-gpu=clocks.sm,clocks.mem,power.draw"
    return _output("nvidia-smi", query, "--format=csv,noheader")


def _output(*command: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    return None


def matrix_peak(clock: Clock, side: int) -> float:
    """Return the FLOP/s of a bfloat16 matrix product (float32 in the smoke run)."""
    dtype = torch.bfloat16 if clock.device == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=clock.device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / clock(lambda: a @ b)["seconds"]


# --- kernels --------------------------------------------------------------------------------------


def evaluate(run: Callable[[Inputs], Tensor], x: Inputs) -> dict[str, Tensor]:
    """Return the output, and the gradients of a fixed random functional of it by input."""
    leaves = {name: tensor for name, tensor in x.items() if tensor.requires_grad}
    out = run(x)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    gradients = torch.autograd.grad(out, list(leaves.values()), weight)
    return {"out": out.detach(), **dict(zip(leaves, gradients))}


def check(case: KernelCase, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Return the relative errors in norm of output and gradients against float64.

    Raises:
        AssertionError: an error is above the tolerance.
    """
    torch.manual_seed(0)
    x = move(case.make(**case.small), device, dtype)
    expected = evaluate(case.exact, move(x, device, torch.float64))
    found = evaluate(lambda inputs: case.run(inputs, "triton"), x)
    tolerance = case.tolerance if dtype in (torch.bfloat16, torch.float16) else 1e-4
    errors = {}
    for name, value in expected.items():
        error = (found[name].double() - value).norm() / value.norm().clamp_min(1e-30)
        errors[name] = float(error)
    # NaN counts as wrong too.
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    if wrong:
        raise AssertionError(f"relative errors above {tolerance}: {wrong}")
    return errors


def time_kernel(
    case: KernelCase, sizes: dict[str, int], clock: Clock, peak: float, dtype: torch.dtype
) -> list[Row]:
    """Return the rows of forward, and of forward with backward, by both backends."""
    torch.manual_seed(0)
    x = move(case.make(**sizes), clock.device, dtype)
    leaves = [t for t in x.values() if t.requires_grad]
    forward, backward = case.flops(**sizes)
    rows = []
    for direction, flops in (("forward", forward), ("forward + backward", forward + backward)):
        row: Row = {"direction": direction, "flop": flops}
        for backend in ("triton", "torch"):

            def call(backend: str = backend, train: bool = direction != "forward") -> None:
                with torch.set_grad_enabled(train):
                    out = case.run(x, backend)
                if train:
                    torch.autograd.grad(out, leaves, out.detach())

            try:
                row[backend] = clock(call) | {"peak_bytes": memory_of(call, clock.device)}
            except torch.OutOfMemoryError as error:
                row[backend] = {"failed": str(error).splitlines()[0]}
                torch.cuda.empty_cache()
        if "seconds" in row["triton"]:
            row["tflops"] = flops / row["triton"]["seconds"] / 1e12
            row["fraction_of_peak"] = flops / row["triton"]["seconds"] / peak
            if "seconds" in row["torch"]:
                row["times_faster_than_torch"] = row["torch"]["seconds"] / row["triton"]["seconds"]
        rows.append(row)
    return rows


def memory_of(call: Callable[[], object], device: str) -> int | None:
    """Return the largest memory of tensors during one call, in bytes; None on a CPU."""
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def kernels(clock: Clock, peak: float, smoke: bool, only: str) -> list[Row]:
    """Return the rows of every kernel.

    A kernel with a wrong answer or an error has one row with the reason and without a time.
    """
    rows = []
    dtype = torch.float32 if smoke else torch.bfloat16
    for name, case in KERNELS.items():
        if only not in name:
            continue
        base: Row = {
            "kernel": name,
            "op": case.op,
            "bound": case.bound,
            "dtype": str(dtype).removeprefix("torch."),
        }
        try:
            errors = check(case, clock.device, dtype)
        # A failing kernel must not hide the results of the others.
        except Exception as error:
            rows.append(base | {"failed": f"{type(error).__name__}: {error}"[:500]})
            continue
        base["largest_error"] = max(errors.values())
        timed_sizes = {"tiny": case.small} if smoke else case.sizes
        for label, sizes in timed_sizes.items():
            if clock.over:
                rows.append(base | {"case": label, "failed": "not run: out of time"})
                continue
            timed = time_kernel(case, sizes, clock, peak, dtype)
            rows += [base | {"case": label, "sizes": sizes} | row for row in timed]
        print(json.dumps(rows[-1]), flush=True)
    return rows


# --- models ---------------------------------------------------------------------------------------


def time_model(case: ModelCase, clock: Clock) -> Row:
    """Return the rate in images per second and the peak memory, under bfloat16 autocast.

    They are those of inference, or of training steps with AdamW.
    """
    device, smoke = clock.device, clock.device == "cpu"
    torch.manual_seed(0)
    model = case.make().to(device).train(case.train)
    images = torch.randn(case.batch, *case.image, device=device)
    labels = torch.randint(0, 1000, (case.batch,), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=not smoke) if case.train else None

    def call() -> None:
        with (
            torch.set_grad_enabled(case.train),
            torch.autocast(device, torch.bfloat16, enabled=not smoke),
        ):
            logits = model(images)
        if optimizer is not None:
            torch.nn.functional.cross_entropy(logits.float(), labels).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    row: Row = {
        **case.facts,
        "batch": case.batch,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    with torch.no_grad(), torch.autocast(device, torch.bfloat16, enabled=not smoke):
        if not model.eval()(images[:1]).isfinite().all():
            return row | {"failed": "the output is not finite"}
    model.train(case.train)
    row |= {"peak_bytes": memory_of(call, device)} | clock(call, budget=1.0)
    return row | {"images_per_second": case.batch / row["seconds"]}


def models(clock: Clock, smoke: bool, only: str) -> list[Row]:
    """Return the rows of every model.

    A model that fails, or comes after the minutes are over, has a row with the reason.
    """
    rows: list[Row] = []
    for make in (smoke_cases,) if smoke else (itnet_cases, infvit_cases):
        for case in make():
            if only not in str(case.facts):
                continue
            if clock.over:
                rows.append(case.facts | {"failed": "not run: out of time"})
                continue
            try:
                rows.append(time_model(case, clock))
            # Out of memory at one size must not hide the results of the others.
            except Exception as error:
                rows.append(case.facts | {"failed": f"{type(error).__name__}: {error}"[:500]})
            if clock.device == "cuda":
                torch.cuda.empty_cache()
            print(json.dumps(rows[-1]), flush=True)
    return rows


def time(options: Options) -> None:
    """Time the kernels and models whose name or facts contain the text of ``--only``, or all.

    Raises:
        SystemExit: a kernel's answer is wrong. The file is written before.
    """
    clock, only, smoke = make_clock(options), " ".join(options.only), options.small
    result: Row = {"smoke": smoke, "machine": machine(clock.device)}
    result["peak_flops"] = matrix_peak(clock, 64 if smoke else 8192)
    result["kernels"] = kernels(clock, result["peak_flops"], smoke, only)
    result["models"] = models(clock, smoke, only)
    result["machine"]["clocks_after"] = None if smoke else clocks()
    save(result, "gpu.json", options.results)
    wrong = [r["kernel"] for r in result["kernels"] if "relative errors" in str(r.get("failed"))]
    if wrong:
        raise SystemExit(f"wrong answers: {', '.join(wrong)}")
