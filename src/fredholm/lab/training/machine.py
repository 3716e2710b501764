"""A description of this machine, and the time and peak memory of calls on it."""

from __future__ import annotations

import contextlib
import ctypes
import platform
import time
from collections.abc import Callable
from pathlib import Path

import torch


def describe_machine() -> dict[str, object]:
    """Return processor, threads and versions."""
    processor = platform.processor() or platform.machine()

    # On Linux this is only the architecture; the model's name is in /proc/cpuinfo.
    with (
        contextlib.suppress(OSError, StopIteration),
        open("/proc/cpuinfo", encoding="utf-8") as file,
    ):
        model_line = next(line for line in file if line.startswith("model name"))
        _, _, processor = model_line.partition(":")
        processor = processor.strip()

    return {
        "processor": processor,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def seconds_of(call: Callable[[], object], device: torch.device | None = None) -> float:
    """Return the seconds that one call takes, with all of its work on ``device``.

    A GPU works while Python goes on. It is waited for before and after.
    """
    on_gpu = device is not None and device.type == "cuda"
    if on_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def peak_megabytes(call: Callable[[], object]) -> float | None:
    """Return by how many MB ``call`` raises the resident memory of this process, at its peak.

    The result is None on systems other than Linux, which do not report it; the call is made all the
    same. Memory that earlier calls freed is returned to the system first, and their peak is reset.
    Otherwise a call that fits into that memory would seem to need none.

    Example:
        >>> before = peak_megabytes(lambda: bytearray(64 << 20))  # freed, but not returned
        >>> megabytes = peak_megabytes(lambda: torch.ones(64 << 20))
        >>> megabytes is None or 250 < megabytes < 300
        True
    """
    _return_freed_memory()
    start = None
    if _reset_peak():
        start = _resident_kilobytes("VmRSS")
    call()
    peak = _resident_kilobytes("VmHWM")
    if start is None or peak is None:
        return None
    return max(0.0, (peak - start) / 1024)


def process_megabytes() -> float | None:
    """Return the peak resident memory of this process in MB; None if the system does not report it.

    ``getrusage`` would also count the peak of the parent process.
    """
    peak = _resident_kilobytes("VmHWM")
    if peak is None:
        return None
    return peak / 1024


def _return_freed_memory() -> None:
    """Return freed memory to the system, if the C library can: only glibc does."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _reset_peak() -> bool:
    """Reset the peak to the memory that is resident now; tell whether the system allowed it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
        return True
    return False


def _resident_kilobytes(field: str) -> int | None:
    """Read ``VmRSS`` (now) or ``VmHWM`` (peak) of this process."""
    try:
        with open("/proc/self/status", encoding="utf-8") as status:
            line = next(line for line in status if line.startswith(field))
    except (OSError, StopIteration):
        return None

    # For instance "VmRSS:  123456 kB".
    _, kilobytes, *_ = line.split()
    return int(kilobytes)
