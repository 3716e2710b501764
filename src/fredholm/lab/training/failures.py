"""What ends a run early, with the exit code the command line gives it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from ...errors import FredholmError


class TrainingFailed(FredholmError, RuntimeError):
    """A run started well and then could not go on: a non-finite loss, a full disk, a failed
    cell of a sweep.
    """

    exit_code = 1


class Interrupted(FredholmError):
    """The user stopped the run; its checkpoint is on disk."""

    exit_code = 130


@contextmanager
def memory_named() -> Iterator[None]:
    """An allocation that fails in a ``with`` block becomes one line that says what to do.

    Raises:
        TrainingFailed: the processor's memory, or the GPU's, is not enough.

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
        # torch's own class is the GPU's alone; of the processor's memory it raises RuntimeError
        asked = re.search(r"tried to allocate ([\d.]+) (\w+)", str(error), re.IGNORECASE)
        if asked is None and not isinstance(error, MemoryError):
            raise
        how_much = "" if asked is None else f": received no {_megabytes(*asked.groups())} more"
        raise TrainingFailed(
            f"out of memory{how_much}; needs a smaller data.batch_size or model, or samples cut "
            "over several processes: training.devices=4 parallel.domain=4, see docs/scaling.md"
        ) from error


def _megabytes(number: str, unit: str) -> str:
    """Bytes as megabytes, other units as they are.

    Example:
        >>> _megabytes("67108864", "bytes"), _megabytes("2.00", "GiB")
        ('67 MB', '2.00 GiB')
    """
    return f"{float(number) / 1e6:,.0f} MB" if unit.lower() == "bytes" else f"{number} {unit}"
