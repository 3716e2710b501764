"""Entry point of ``fredholm``: errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from ...errors import FredholmError, StorageError, require
from ...progress import shown

# Imports inside functions load typer, training and torch only when they are needed: completion and
# `fredholm --help` must answer at once.


def main(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    0: done; 1: a run failed; 2: bad input, with one line on stderr (``--debug`` shows the
    traceback); 130: interrupted. An unexpected error, which is a bug, is raised.

    Args:
        arguments: the words after ``fredholm``; None takes them from ``sys.argv``. ``--debug`` may
            stand anywhere among them.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    # Threads that spin while they wait make a step over ten times slower as soon as another process
    # wants the same core. torch reads the variable when it is imported, which is later.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]

    try:
        require("typer", "train", "the fredholm command")
        from .app import app

        command = next((word for word in arguments if not word.startswith("-")), "")
        _check_processes(command)

        # Of several processes only the first shows progress.
        progress = nullcontext()
        if os.environ.get("RANK", "0") == "0":
            progress = shown()
        with progress:
            return int(app(arguments, standalone_mode=False, prog_name="fredholm") or 0)
    except FredholmError as error:
        if debug:
            raise
        # Of several processes with the same error, one prints it.
        if not error.said:
            _complain(str(error))
        return error.exit_code
    except OSError as error:
        # A full disk or a missing permission, wherever it was met.
        if debug:
            raise
        from ...files import storage_error

        _complain(str(storage_error(error)))
        return StorageError.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except Exception as error:
        # typer's usage errors print themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show(sys.stderr)
        return getattr(error, "exit_code", 2)


def _check_processes(command: str) -> None:
    """Refuse to run a command other than training in several processes."""
    # A look at the environment is cheap; the training room is slow to import.
    launched = {"RANK", "SLURM_STEP_NUM_TASKS"} & set(os.environ)
    if launched and command not in ("", "train"):
        from ..training import check_alone

        check_alone(command)


def _complain(message: str) -> None:
    """Print each line of an error on stderr, marked and in red on a terminal."""
    mark = "error:"
    if sys.stderr.isatty() and not os.environ.get("NO_COLOR"):
        mark = f"\033[31m{mark}\033[0m"
    for line in message.splitlines():
        print(f"{mark} {line}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
