"""A Triton kernel compared with PyTorch's operations, before ``backend="auto"`` takes it.

Tests cannot run a kernel on every GPU, and a compiler may be wrong on one. So the first call of an
op in a dtype and form compares both on a small problem with random numbers of its own, in values
and gradients. The result is kept for this GPU, driver, version of Triton and these kernels, in
``kernels.json`` of :func:`fredholm.files.cache_folder`; a file that cannot be read is written anew.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import StorageError
from ..files import cache_folder, storing, write_json

# Of the largest magnitude. Samples are made of numbers that every dtype holds, so that this is for
# what a kernel rounds on its way.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}
TF32_TOLERANCE = 5e-3  # where torch.set_float32_matmul_precision allows it
POINTS = 150  # of a sample: several blocks of a kernel, the last one ragged

Form = tuple[tuple[str, Any], ...]
"""What a kernel is compiled for: names and strings, numbers or booleans, nothing of a tensor."""


class Sample(NamedTuple):
    """A small problem of one form.

    Attributes:
        inputs: float tensors on the CPU that the op is differentiated by.
        call: ``call(backend, *inputs)``, the op's results on whatever device and dtype they have.
    """

    inputs: list[Tensor]
    call: Callable[..., Sequence[Tensor]]


class Random:
    """Normal numbers of one seed that bfloat16, float16 and TF32 hold exactly."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(20)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator).bfloat16().float()


Sampler = Callable[[Random, dict[str, Any]], Sample]


class Comparison(NamedTuple):
    """Whether kernel and operations agree in one case, and what there was to see."""

    agrees: bool
    note: str


_KNOWN: dict[tuple[str, str], Comparison] = {}
_ANSWERS: dict[tuple[Any, ...], bool] = {}
_LOCK = RLock()


@torch.compiler.assume_constant_result  # a compiler asks once, and keeps the answer
def agrees(op: str, sampler: Sampler, device: torch.device, dtype: torch.dtype, form: Form) -> bool:
    """Whether ``"auto"`` may take the Triton kernel of ``op`` on ``device``: what is known of this
    case, or else a comparison now. A disagreement is said once per process.
    """
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return False  # nothing else may run on the GPU now; the next call compares
    precision = torch.get_float32_matmul_precision()
    key = (op, device, dtype, form, precision)
    if key not in _ANSWERS:
        with _LOCK:
            case = describe(op, dtype, form, precision)
            where = machine(device)
            known = recall(where).get(case)
            if known is None:
                known = _apart(compare, sampler, device, dtype, dict(form), precision)
                remember(where, case, known)
            if not known.agrees:
                warnings.warn(
                    f"backend='auto' stays with PyTorch's operations for {case} on {where}: the "
                    f"Triton kernel does not agree with them ({known.note}). backend='triton' "
                    f"takes it all the same; to compare again, delete {path()}",
                    stacklevel=2,
                )
            _ANSWERS[key] = known.agrees
    return _ANSWERS[key]


def describe(op: str, dtype: torch.dtype, form: Form, precision: str) -> str:
    """A case in words, the key under which its comparison is kept.

    Example:
        >>> describe("an op", torch.float32, (("causal", True), ("width", 8)), "high")
        'an op: float32, tf32, causal True, width 8'
    """
    words = [str(dtype).removeprefix("torch.")]
    if dtype == torch.float32 and precision != "highest":
        words.append("tf32")
    return f"{op}: " + ", ".join(words + [f"{name} {value}" for name, value in form])


def summary(op: str, device: torch.device) -> str:
    """What is known of an op's kernel on ``device``, for ``plan``."""
    cases = {c: known for c, known in recall(machine(device)).items() if c.startswith(f"{op}: ")}
    if not cases:
        return f"PyTorch until the first call compares the Triton kernel of {op} with it here"
    taken = {True: "Triton", False: "PyTorch"}
    return "; ".join(f"{taken[k.agrees]} for {case} ({k.note})" for case, k in cases.items())


# --- comparing ------------------------------------------------------------------------------------


def compare(
    sampler: Sampler,
    device: torch.device,
    dtype: torch.dtype,
    form: dict[str, Any],
    precision: str = "highest",
) -> Comparison:
    """The kernel in ``dtype`` and PyTorch's operations in float64 on the same numbers: results, and
    gradients of a random functional of them. A kernel that fails does not agree.
    """
    exact = precision == "highest" or dtype != torch.float32
    allowed = TOLERANCE[dtype] if exact else max(TF32_TOLERANCE, TOLERANCE[dtype])
    sample = sampler(Random(), form)
    expected = _evaluate(sample, "torch", device, torch.float64)
    try:
        actual = _evaluate(sample, "triton", device, dtype)
        if device.type == "cuda":  # errors of a kernel come late
            torch.cuda.synchronize(device)
        difference = max(_distance(a, e) for a, e in zip(actual, expected, strict=True))
    except Exception as error:
        line = (str(error).strip().splitlines() or [""])[0]
        return Comparison(False, f"it failed with {type(error).__name__}: {line[:200]}")
    note = f"largest difference {difference:.1e}, allowed {allowed:.0e}"
    return Comparison(difference <= allowed, note)


def _evaluate(
    sample: Sample, backend: str, device: torch.device, dtype: torch.dtype
) -> list[Tensor]:
    """Results and gradients, in float64."""
    leaves = [x.to(device, dtype).requires_grad_() for x in sample.inputs]
    results, normal = sample.call(backend, *leaves), Random()
    weights = [normal(*y.shape).to(y) for y in results]
    gradients = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves)]
    return [x.detach().double() for x in (*results, *gradients)]


def _distance(actual: Tensor, expected: Tensor) -> float:
    """Largest difference over largest magnitude; infinite where there is NaN."""
    if not expected.numel():
        return 0.0
    difference = float((actual - expected).abs().max())
    scale = max(float(expected.abs().max()), 1e-3)
    return math.inf if math.isnan(difference) else difference / scale


def _apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """``function(*arguments)`` in a thread of its own: gradient mode, autocast, hooks on saved
    tensors, tracing and transforms of the caller belong to the caller's thread.
    """
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


# --- remembering ----------------------------------------------------------------------------------


def path() -> Path:
    """The file of all comparisons on this computer."""
    return cache_folder() / "kernels.json"


def machine(device: torch.device) -> str:
    """What a comparison holds for: GPU, driver, version of Triton, and the kernels' sources."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else "Triton's interpreter"
    return f"{gpu}, {_driver()}, triton {_triton()}, kernels {_digest()}"


@cache
def _triton() -> str:
    """Its version: builds for other GPUs, and nightly ones, are distributed under other names."""
    try:
        return version("triton")
    except PackageNotFoundError:
        return import_module("triton").__version__


@cache
def _driver() -> str:
    said = Path("/proc/driver/nvidia/version")
    number = re.search(r"\d+(\.\d+)+", said.read_text()) if said.is_file() else None
    runtime = torch.version.cuda or torch.version.hip
    return f"driver {number[0]}" if number else f"runtime {runtime}" if runtime else "no driver"


@cache
def _digest() -> str:
    """Of every source and table that a kernel is compiled from."""
    package, digest = Path(__file__).parents[1], sha256()
    result = {*package.glob("*/*/triton*.py"), *package.glob("*/*/triton/*.py")}
    for file in sorted(result | set(package.glob("*/**/tiles.json"))):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def recall(where: str) -> dict[str, Comparison]:
    """All comparisons on one machine, of this process and earlier ones."""
    kept = {case: Comparison(**known) for case, known in _read().get(where, {}).items()}
    return kept | {case: known for (place, case), known in _KNOWN.items() if place == where}


def remember(where: str, case: str, known: Comparison) -> None:
    """Keep a comparison; on a disk that cannot be written to, for this process only."""
    _KNOWN[where, case] = known
    kept = _read()
    kept.setdefault(where, {})[case] = known._asdict()
    try:
        with storing(path()):
            path().parent.mkdir(parents=True, exist_ok=True)
        write_json(path(), kept)
    except StorageError as error:
        warnings.warn(
            f"{error}: that a Triton kernel was compared with PyTorch is not remembered; set "
            "FREDHOLM_CACHE to a folder that can be written to",
            stacklevel=2,
        )


def _read() -> dict[str, dict[str, dict[str, Any]]]:
    """The file, or nothing where it is missing or anything but what :func:`remember` writes."""
    try:
        kept = json.loads(path().read_text(encoding="utf-8"))
        for cases in kept.values():
            for known in cases.values():
                if {name: type(x) for name, x in known.items()} != {"agrees": bool, "note": str}:
                    return {}
    except (OSError, ValueError, AttributeError, RecursionError):
        return {}
    return kept
