"""What ends a run early, with the exit code the command line gives it."""

from __future__ import annotations

from ..errors import FredholmError


class TrainingFailed(FredholmError, RuntimeError):
    """A run started well and then could not go on: a non-finite loss, a full disk, a failed
    cell of a sweep.
    """

    exit_code = 1


class Interrupted(FredholmError):
    """The user stopped the run; its checkpoint is on disk."""

    exit_code = 130
