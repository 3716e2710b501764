"""``training.devices`` without a launcher: torch's own starts that many processes here, watches
them and ends the others when one fails.
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

CALL, LINES, ERROR = "call.json", "lines.txt", "error.json"


def launches(recipe: Recipe) -> bool:
    """Whether this process is to start others, rather than be one of them."""
    outside = launcher().creates_processes_externally
    return recipe.training.devices > 1 and recipe.training.nodes == 1 and not outside


def launch(
    recipe: Recipe,
    folder: str | Path,
    resume: bool,
    overwrite: bool,
    *,
    report: Callable[[str], None] | None,
    trust_code: bool,
) -> RunResult:
    """Train in ``training.devices`` processes of this machine; what they report and raise is
    reported and raised here.

    Raises:
        TrainingFailed: a process was killed.
        Interrupted: Ctrl-C.
        FredholmError: what one of them refused.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    run, count = RunFolder(folder), recipe.training.devices
    run.check(recipe, resume, overwrite)
    if resume and run.finished:
        return run.read_result()
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
        place = Path(name)
        save_recipe(recipe, place / "call.yaml")
        asked = {"folder": str(Path(folder).absolute()), "resume": resume, "overwrite": overwrite}
        write_json(place / CALL, {**asked, "trust_code": trust_code})
        try:
            with _alone(count), _forwarded(place / LINES, report):
                elastic_launch(config, sys.executable)("-m", __name__, name)
        except (ChildFailedError, SignalException) as error:
            raise _told(place / ERROR) or _killed(error, count) from error
    return run.read_result()


def _killed(error: Any, count: int) -> FredholmError:
    """What became of a process that could not say it."""
    failures = getattr(error, "failures", None)
    if failures is None:
        return Interrupted(f"stopped by {error}; continue with the same command and --resume")
    rank, failure = min(failures.items(), key=lambda item: item[1].timestamp)
    how = (
        f"killed by signal {-failure.exitcode}"
        if failure.exitcode < 0
        else f"ended with code {failure.exitcode}"
    )
    return TrainingFailed(
        f"rank {rank} of {count} (process {failure.pid}) was {how}; continue with the same "
        "command and --resume"
        if failure.exitcode < 0
        else f"rank {rank} of {count} (process {failure.pid}) {how}; see its messages above"
    )


def _told(path: Path) -> FredholmError | None:
    """The error that a process left."""
    if not path.is_file():
        return None
    known = {kind.__name__: kind for kind in _kinds(FredholmError)}
    left = json.loads(path.read_text(encoding="utf-8"))
    error = known.get(left["kind"], TrainingFailed)(left["text"])
    error.exit_code = left["exit_code"]
    return error


def _kinds(base: type[FredholmError]) -> Iterator[type[FredholmError]]:
    yield base
    for kind in base.__subclasses__():
        yield from _kinds(kind)


@contextmanager
def _alone(count: int) -> Iterator[None]:
    """torch's launcher reports through loggers what is said here in one line; each process gets
    its share of the threads, and finds the others without a look-up of this machine's name.
    """
    loggers = [logging.getLogger(f"torch.distributed.{part}") for part in ("elastic", "launcher")]
    levels = [logger.level for logger in loggers]
    given = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // count))}
    for _, name in socket.if_nameindex():
        if name in ("lo", "lo0"):
            given["GLOO_SOCKET_IFNAME"] = name
    given = {key: value for key, value in given.items() if key not in os.environ}
    os.environ.update(given)
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        for key in given:
            del os.environ[key]


@contextmanager
def _forwarded(path: Path, report: Callable[[str], None] | None) -> Iterator[None]:
    """Lines that rank 0 appends to a file, given to ``report`` as they come."""
    path.touch()
    stop = threading.Event()

    def follow() -> None:
        with path.open(encoding="utf-8") as file:
            last = False
            while not last:
                last = stop.wait(0.2)
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


def main(place: Path) -> int:
    """One of the processes."""
    from .run import train

    call = json.loads((place / CALL).read_text(encoding="utf-8"))
    folder = call.pop("folder")

    def report(line: str) -> None:
        with (place / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    try:
        train(load_recipe(place / "call.yaml"), folder, report=report, **call)
    except FredholmError as error:
        # that another one died follows from what that one says
        follows = isinstance(error, PeerError) and (place / ERROR).exists()
        if not (error.said or follows):
            facts = {"kind": type(error).__name__, "text": str(error)}
            write_json(place / ERROR, {**facts, "exit_code": error.exit_code})
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
