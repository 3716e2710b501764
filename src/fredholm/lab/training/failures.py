"""Errors that end a run early, with the exit codes of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import FredholmError


class TrainingFailed(FredholmError, RuntimeError):
    """A run started and then failed: a non-finite loss, a full disk, a failed cell of a sweep."""

    exit_code = 1


class Interrupted(FredholmError):
    """The user stopped the run; its checkpoint is on disk."""

    exit_code = 130


@contextmanager
def memory_named() -> Iterator[None]:
    """Turn a failed allocation inside a ``with`` block into one line with advice.

    Raises:
        TrainingFailed: the memory of the CPU or GPU is not enough.

    Example:
        >>> try:
        ...     with memory_named():
        ...         raise MemoryError
        ... except TrainingFailed as error:
        ...     print(str(error).partition(";")[0])
        out of memory
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        # torch has an error class for GPU memory only. For CPU memory it raises RuntimeError, which
        # its text identifies.
        asked = re.search(r"tried to allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
        if asked is None and not isinstance(error, MemoryError):
            raise

        shortage = "out of memory"
        if asked is not None:
            number, unit = asked.groups()
            shortage = f"out of memory: expected {_megabytes(number, unit)} more, got none"
        raise TrainingFailed(
            f"{shortage}; choose a smaller data.batch_size or model, or divide samples over "
            "several processes: training.devices=4 parallel.domain=4, see docs/scaling.md"
        ) from error


def _megabytes(number: str, unit: str) -> str:
    """Format a size: bytes as megabytes, other units unchanged.

    Example:
        >>> _megabytes("67108864", "bytes"), _megabytes("2.00", "GiB")
        ('67 MB', '2.00 GiB')
    """
    if unit.lower() == "bytes":
        return f"{float(number) / 1e6:,.0f} MB"
    return f"{number} {unit}"
