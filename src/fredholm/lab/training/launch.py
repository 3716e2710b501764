"""Training in several processes of this machine without a launcher.

For ``training.devices`` above 1, torch's own launcher starts the processes, watches them, and ends
the others when one fails. They exchange three files with this process: their arguments, the lines
that rank 0 reports, and the error that ended them.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import FredholmError, PeerError
from ...files import write_json
from .failures import Interrupted, TrainingFailed
from .folder import RunFolder, RunResult
from .processes import launcher
from .recipe import Recipe
from .recipe_files import load_recipe, save_recipe

RECIPE = "call.yaml"
CALL = "call.json"
LINES = "lines.txt"
ERROR = "error.json"


def launches(recipe: Recipe) -> bool:
    """Tell whether this process has to start others, and is not itself one of several."""
    launched = launcher().creates_processes_externally
    return recipe.training.devices > 1 and recipe.training.nodes == 1 and not launched


def launch(
    recipe: Recipe,
    folder: str | Path,
    resume: bool,
    overwrite: bool,
    *,
    report: Callable[[str], None] | None,
    trust_code: bool,
) -> RunResult:
    """Train in ``training.devices`` processes of this machine.

    Lines that they report are passed to ``report``, and their errors are raised here.

    Raises:
        TrainingFailed: a process was killed.
        Interrupted: Ctrl-C.
        FredholmError: the error of a process.
    """
    # Imported where processes are started: it would be loaded by every training otherwise.
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    # Whatever can be refused without the processes is refused here, at once.
    run = RunFolder(folder)
    run.check(recipe, resume, overwrite)
    if resume and run.finished:
        return run.read_result()

    count = recipe.training.devices
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=count,
        run_id="fredholm",
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    with tempfile.TemporaryDirectory(prefix="fredholm-") as name:
        exchange = Path(name)
        save_recipe(recipe, exchange / RECIPE)
        call = {
            "folder": str(Path(folder).absolute()),
            "resume": resume,
            "overwrite": overwrite,
            "trust_code": trust_code,
        }
        write_json(exchange / CALL, call)
        try:
            with _launch_environment(count), _forward_lines(exchange / LINES, report):
                elastic_launch(config, sys.executable)("-m", __name__, name)
        except (ChildFailedError, SignalException) as error:
            raise _read_error(exchange / ERROR) or _explain_end(error, count) from error
    return run.read_result()


def _explain_end(error: Any, count: int) -> FredholmError:
    """Explain the end of processes that left no error of their own."""
    failures = getattr(error, "failures", None)
    if failures is None:
        return Interrupted(f"stopped by {error}; continue with the same command and --resume")

    # The first failure is the cause; the launcher has killed the other processes.
    rank = min(failures, key=lambda rank: failures[rank].timestamp)
    failure = failures[rank]
    process = f"rank {rank} of {count} (process {failure.pid})"
    if failure.exitcode < 0:
        return TrainingFailed(
            f"{process} was killed by signal {-failure.exitcode}; continue with the same command "
            "and --resume"
        )
    return TrainingFailed(f"{process} ended with code {failure.exitcode}; see its messages above")


def _read_error(path: Path) -> FredholmError | None:
    """Read the error that a process has left, if any."""
    if not path.is_file():
        return None
    left = json.loads(path.read_text(encoding="utf-8"))
    classes = {cls.__name__: cls for cls in _subclasses(FredholmError)}
    error = classes.get(left["kind"], TrainingFailed)(left["text"])
    error.exit_code = left["exit_code"]
    return error


def _subclasses(base: type[FredholmError]) -> Iterator[type[FredholmError]]:
    yield base
    for cls in base.__subclasses__():
        yield from _subclasses(cls)


@contextmanager
def _launch_environment(count: int) -> Iterator[None]:
    """Prepare loggers and environment variables for ``count`` processes.

    torch's launcher would log pages about what is reported here in one line. Each process gets its
    share of the threads. Over the loopback interface the processes find each other without a
    look-up of this machine's name, which may fail.
    """
    loggers = [logging.getLogger(f"torch.distributed.{part}") for part in ("elastic", "launcher")]
    levels = [logger.level for logger in loggers]

    processors = os.cpu_count() or 1
    threads = max(1, processors // count)
    variables = {"OMP_NUM_THREADS": str(threads)}
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            variables["GLOO_SOCKET_IFNAME"] = name

    # What the user has set stays.
    variables = {key: value for key, value in variables.items() if key not in os.environ}
    os.environ.update(variables)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for key in variables:
            del os.environ[key]


@contextmanager
def _forward_lines(path: Path, report: Callable[[str], None] | None) -> Iterator[None]:
    """Pass the lines that rank 0 appends to a file to ``report``, as they arrive."""
    path.touch()
    stop = threading.Event()

    def follow() -> None:
        with path.open(encoding="utf-8") as file:
            # After the stop there is one more round, for lines that came last.
            last_round = False
            while not last_round:
                last_round = stop.wait(0.2)
                for line in file:
                    if report is not None:
                        report(json.loads(line))

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()


def main(exchange: Path) -> int:
    """Run one of the processes; ``exchange`` is the folder of their files."""
    from .run import train

    call = json.loads((exchange / CALL).read_text(encoding="utf-8"))
    folder = call.pop("folder")

    def report(line: str) -> None:
        with (exchange / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    try:
        train(load_recipe(exchange / RECIPE), folder, report=report, **call)
    except FredholmError as error:
        # The death of another process is a consequence of the error that it has left itself.
        is_consequence = isinstance(error, PeerError) and (exchange / ERROR).exists()
        if not error.said and not is_consequence:
            left = {
                "kind": type(error).__name__,
                "text": str(error),
                "exit_code": error.exit_code,
            }
            write_json(exchange / ERROR, left)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
