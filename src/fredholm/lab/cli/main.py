"""Entry point of ``fredholm``: errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext

from ...errors import FredholmError, StorageError, require
from ...progress import shown


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0 done, 1 a run failed, 2 bad input (one line on stderr; ``--debug`` shows the traceback), 130
    interrupted.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    # Threads that spin while they wait make a step over ten times slower as soon as another process
    # wants the same core; read when torch is loaded, which is later than this.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        require("typer", "train", "the fredholm command")
        from .app import app

        _check_processes(next((word for word in arguments if not word.startswith("-")), ""))

        leads = os.environ.get("RANK", "0") == "0"  # of several processes one says how far they are
        with shown() if leads else nullcontext():
            return int(app(arguments, standalone_mode=False, prog_name="fredholm") or 0)
    except FredholmError as error:
        if debug:
            raise
        if not error.said:
            _complain(str(error))
        return error.exit_code
    except OSError as error:  # a disk or a permission, wherever it was met
        if debug:
            raise
        from ...files import storage_error

        _complain(str(storage_error(error)))
        return StorageError.exit_code
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except Exception as error:
        show = getattr(error, "show", None)  # typer's own usage errors print themselves
        if show is None:
            raise
        show(sys.stderr)
        return getattr(error, "exit_code", 2)


def _check_processes(command: str) -> None:
    """Refuse several processes of what one does."""
    launched = {"RANK", "SLURM_STEP_NUM_TASKS"} & set(os.environ)  # training is slow to import
    if launched and command not in ("", "train"):
        from ..training import check_alone

        check_alone(command)


def _complain(message: str) -> None:
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    colour = ("\033[31m", "\033[0m") if coloured else ("", "")
    print(
        "\n".join(f"{colour[0]}error:{colour[1]} {line}" for line in message.splitlines()),
        file=sys.stderr,
    )


if __name__ == "__main__":
    sys.exit(main())
