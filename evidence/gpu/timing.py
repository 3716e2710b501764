"""The GPU benchmark.

In this order, until the minutes are over: the machine and its measured bfloat16 peak; every kernel
of ``cases.KERNELS``, its answer and gradients compared with the float64 definition first (no time
is written for a wrong one), then its time beside PyTorch's operations; whole models of ``models``.
``--small`` runs all of it at tiny sizes through Triton's interpreter, without a GPU; its times mean
nothing.
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
from . import linear_cases  # noqa: F401  its cases join
from .cases import KERNELS, Inputs, KernelCase, move
from .models import ModelCase, infvit_cases, itnet_cases, smoke_cases

MINUTES = 9.0
Row = dict[str, Any]


def make_clock(options: Options) -> Clock:
    """The device's clock.

    Raises:
        BackendError: no GPU, and the small sizes were not asked for.
    """
    if not options.small and not torch.cuda.is_available():
        raise BackendError("no CUDA device; --small runs without one, through Triton's interpreter")
    return Clock("cpu" if options.small else "cuda", min(options.minutes, MINUTES))


class Clock:
    """Time on the device: CUDA events around whole calls, median of repeats that fill ``budget``
    seconds.
    """

    def __init__(self, device: str, minutes: float):
        self.device, self.end = device, clock_time.monotonic() + 60 * minutes

    @property
    def over(self) -> bool:
        return clock_time.monotonic() > self.end

    def once(self, call: Callable[[], object]) -> float:
        if self.device == "cpu":
            return seconds_of(call)
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    def __call__(self, call: Callable[[], object], budget: float = 0.5) -> Row:
        """Median and half the distance between the quartiles, seconds, after two calls that are not
        counted.
        """
        if self.device == "cpu":
            return {"seconds": self.once(call), "spread": None, "repeats": 1}
        self.once(call)
        guess = self.once(call)
        times = [self.once(call) for _ in range(max(3, min(200, int(budget / max(guess, 1e-6)))))]
        quartiles = statistics.quantiles(times, n=4)
        return {
            "seconds": statistics.median(times),
            "spread": (quartiles[2] - quartiles[0]) / 2,
            "repeats": len(times),
        }


# --- machine --------------------------------------------------------------------------------------


def machine(device: str) -> Row:
    """Versions, commit, device and clocks."""
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
    """SM clock, memory clock and power now, as the driver says."""
    query = "--query-gpu=clocks.sm,clocks.mem,power.draw"
    return _output("nvidia-smi", query, "--format=csv,noheader")


def _output(*command: str) -> str | None:
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=True
        ).stdout.strip()
    return None


def matrix_peak(clock: Clock, side: int) -> float:
    """FLOP/s of a bfloat16 matrix product (float32 in the smoke run)."""
    dtype = torch.bfloat16 if clock.device == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=clock.device, dtype=dtype) for _ in range(2))
    return 2 * side**3 / clock(lambda: a @ b)["seconds"]


# --- kernels --------------------------------------------------------------------------------------


def evaluate(run: Callable[[Inputs], Tensor], x: Inputs) -> dict[str, Tensor]:
    """Output and gradients of a fixed random functional."""
    leaves = {n: t for n, t in x.items() if t.requires_grad}
    out = run(x)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    return {
        "out": out.detach(),
        **dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), weight))),
    }


def check(case: KernelCase, device: str, dtype: torch.dtype) -> dict[str, float]:
    """Relative errors in norm of output and gradients against float64, all within the tolerance, or
    AssertionError.
    """
    torch.manual_seed(0)
    x = move(case.make(**case.small), device, dtype)
    expected = evaluate(case.exact, move(x, device, torch.float64))
    found = evaluate(lambda given: case.run(given, "triton"), x)
    tolerance = case.tolerance if dtype in (torch.bfloat16, torch.float16) else 1e-4
    errors = {
        n: float((found[n].double() - e).norm() / e.norm().clamp_min(1e-30))
        for n, e in expected.items()
    }
    wrong = {n: e for n, e in errors.items() if not e <= tolerance}
    if wrong:
        raise AssertionError(f"relative errors above {tolerance}: {wrong}")
    return errors


def time_kernel(
    case: KernelCase, sizes: dict[str, int], clock: Clock, peak: float, dtype: torch.dtype
) -> list[Row]:
    """Forward, and forward with backward, by both backends."""
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
    """Largest memory of tensors during one call, bytes."""
    if device == "cpu":
        return None
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def kernels(clock: Clock, peak: float, smoke: bool, only: str) -> list[Row]:
    """Rows of every kernel; one whose answer is wrong, or that cannot run, has a row that says so
    and no time.
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
        except (
            Exception
        ) as error:  # a kernel that fails must not hide the others' results; its row says why
            rows.append(base | {"failed": f"{type(error).__name__}: {error}"[:500]})
            continue
        base["largest_error"] = max(errors.values())
        for label, sizes in {"tiny": case.small}.items() if smoke else case.sizes.items():
            if clock.over:
                rows.append(base | {"case": label, "failed": "not run: out of time"})
                continue
            timed = time_kernel(case, sizes, clock, peak, dtype)
            rows += [base | {"case": label, "sizes": sizes} | row for row in timed]
        print(json.dumps(rows[-1]), flush=True)
    return rows


# --- models ---------------------------------------------------------------------------------------


def time_model(case: ModelCase, clock: Clock) -> Row:
    """Images a second and peak memory of inference, or of training steps with AdamW, under bfloat16
    autocast.
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
    """Rows of every model; one that cannot be made or run, or comes after the time is over, has a
    row that says so.
    """
    rows: list[Row] = []
    for make in (smoke_cases,) if smoke else (itnet_cases, infvit_cases):
        cases = iter(make())
        while True:
            try:
                case = next(cases)
            except StopIteration:
                break
            if only not in str(case.facts):
                continue
            if clock.over:
                rows.append(case.facts | {"failed": "not run: out of time"})
                continue
            try:
                rows.append(time_model(case, clock))
            except (
                Exception
            ) as error:  # out of memory at one size must not hide the others' results
                rows.append(case.facts | {"failed": f"{type(error).__name__}: {error}"[:500]})
            if clock.device == "cuda":
                torch.cuda.empty_cache()
            print(json.dumps(rows[-1]), flush=True)
    return rows


def time(options: Options) -> None:
    """Kernels and models whose name or facts hold the text of ``--only``, or all.

    Raises:
        SystemExit: a kernel's answer is wrong; after the file was written.
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
