"""What this machine is, how long a call takes on it, and how much memory it needs at its peak."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


def describe_machine() -> dict[str, object]:
    """Processor, threads and versions."""
    processor = platform.processor() or platform.machine()
    with (
        contextlib.suppress(OSError, StopIteration),
        open("/proc/cpuinfo", encoding="utf-8") as file,
    ):
        named = next(line for line in file if line.startswith("model name"))
        processor = named.split(":", 1)[1].strip()
    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_megabytes(call: Callable[[], object]) -> float | None:
    """By how many MB ``call`` raises the resident memory of this process, at its peak; None where
    the system does not tell (anything but Linux), after the call all the same.

    What earlier calls freed is given back to the system first, and the peak that they left is
    forgotten. Otherwise a call that fits into that memory would seem to need none.

    Example:
        >>> before = peak_megabytes(lambda: bytearray(64 << 20))  # left behind, and freed
        >>> megabytes = peak_megabytes(lambda: torch.ones(8 << 20))
        >>> megabytes is None or 30 < megabytes < 60
        True
    """
    _give_back()
    start = _resident("VmRSS") if _forget_peak() else None
    call()
    peak = _resident("VmHWM")
    return None if start is None or peak is None else max(0.0, (peak - start) / 1024)


def process_megabytes() -> float | None:
    """Peak resident memory of this whole process, libraries included, MB; None where the system
    does not tell. Not ``getrusage``'s, which also holds the peak of the parent process.
    """
    peak = _resident("VmHWM")
    return None if peak is None else peak / 1024


def _give_back() -> None:
    """Return freed memory to the system, where the C library can: glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _forget_peak() -> bool:
    """Set the peak back to what is resident now; whether the system allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        return True
    return False


def _resident(field: str) -> int | None:
    """``VmRSS`` or ``VmHWM`` of this process, kB."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(field))
    except (OSError, StopIteration):
        return None
