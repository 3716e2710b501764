"""Runs on read-only disks, and runs in use by another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fredholm.lab.cli.main import main
from fredholm.lab.training.leases import HOLDER
from tests.lab.training.conftest import SMALL

# Permissions do not bind root unless it drops the capability to override them.
PLAIN = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


COMMANDS = """
import contextlib, io, json, sys
from fredholm.lab.cli.main import main
found = []
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    found.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(found))
"""


def fredholm(*commands: list[str]) -> list[list]:
    """Return exit code, output and errors of commands, run by a user bound by permissions."""
    process = subprocess.run(
        [*PLAIN, sys.executable, "-c", COMMANDS, json.dumps(commands)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=280,
    )
    return json.loads(process.stdout)


@pytest.fixture
def folder(tmp_path):
    """Return a folder whose permissions may be removed."""
    yield tmp_path
    for path in [tmp_path, *tmp_path.rglob("*")]:
        path.chmod(0o755)


def make_read_only(folder: Path) -> None:
    for path in [*folder.rglob("*"), folder]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.skipif(bool(PLAIN) and not shutil.which("setpriv"), reason="root without setpriv")
def test_a_read_only_run_is_evaluated_and_neither_resumed_nor_overwritten(folder):
    run = folder / "runs" / "first"
    options = [*SMALL, "training.epochs=2"]
    assert main(["train", "digits", *options, "--runs", str(run.parent), "--name", "first"]) == 0
    (run / "result.json").unlink()  # as if it had been interrupted
    make_read_only(folder)
    before = content(run)

    train = ["train", "digits", *options, "--runs", str(run.parent), "--name", "first"]
    evaluated, *refused, explained = fredholm(
        ["evaluate", str(run), "--json"],
        [*train, "--resume"],
        [*train, "--overwrite"],
        ["explain", str(run)],
    )

    code, out, err = evaluated
    assert code == 0
    assert json.loads(out)["n"] == 359
    # a slow machine prints progress first
    assert err.splitlines()[-1].startswith("note: the figures are not written: ")
    assert err.endswith("Permission denied; change its permissions or choose another folder\n")
    line = f"error: {run}: cannot be written; change its permissions or choose another --runs\n"
    assert refused == [[2, "", line]] * 2
    line = (
        f"error: {run}/report: Permission denied; change its permissions or choose another folder\n"
    )
    assert explained == [2, "", line]
    assert content(run) == before


def test_a_run_below_a_file_is_refused(tmp_path, capsys):
    file = tmp_path / "notes.txt"
    file.write_text("precious")
    assert main(["train", "digits", *SMALL, "--runs", str(file)]) == 2
    assert capsys.readouterr().err == (
        f"error: {file}: expected a folder of runs, got a file; choose another --runs\n"
    )
    assert main(["sweep", "digits", *SMALL, "--runs", str(file)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {file}/sweep-digits: Not a directory; ")
    assert file.read_text() == "precious"


@pytest.fixture
def live(tmp_path):
    """Start a process that trains a run."""
    run = tmp_path / "live"
    script = Path(__file__).parents[1] / "training" / "worker.py"
    process = subprocess.Popen(
        [sys.executable, str(script), str(run), "0.5", *SMALL, "training.epochs=100"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    deadline = time.monotonic() + 120
    while not any((run / "checkpoints").glob("step-*.ckpt")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield run, process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_run_in_use_is_refused_until_its_process_ends(live, capsys):
    run, process = live
    command = ["train", "digits", *SMALL, "training.epochs=100", "training.max_minutes=0.001"]
    command += ["--runs", str(run.parent), "--name", run.name]
    for flag in ("--resume", "--overwrite"):
        assert main([*command, flag]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert f"error: {run}: in use by process {process.pid} on " in err
        assert len(err.splitlines()) == 1
        assert (run / "recipe.yaml").is_file()
        assert process.poll() is None
    process.kill()
    process.wait()
    assert (run / HOLDER).is_file()
    assert main([*command, "--resume"]) == 0
    out, err = capsys.readouterr()
    assert f"took over the lock of process {process.pid} on " in out
    assert not (run / HOLDER).exists()
    assert err == ""
