"""One process per folder: the lock of a dead process is taken over, that of another host is not."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from fredholm.errors import StorageError
from fredholm.lab.training.leases import HOLDER, InUseError, hold, read_holder

HOLDING = """
import sys, time
from pathlib import Path
from fredholm.lab.training.leases import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holding(tmp_path):
    """Start another process that locks ``tmp_path``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def write_holder(folder, **changes):
    fields = {"process": 4711, "host": socket.gethostname(), "since": "2020-01-01T00:00:00+00:00"}
    (folder / HOLDER).write_text(json.dumps(fields | changes))


def test_the_holder_is_named_while_it_lasts(tmp_path):
    with hold(tmp_path):
        holder = read_holder(tmp_path)
        assert (holder.process, holder.host) == (os.getpid(), socket.gethostname())
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", holder.since)
        with pytest.raises(InUseError, match=f"in use by process {os.getpid()} on"), hold(tmp_path):
            pass
    assert read_holder(tmp_path) is None
    with pytest.raises(ZeroDivisionError), hold(tmp_path):
        raise ZeroDivisionError
    with hold(tmp_path):
        pass


def test_a_live_process_keeps_others_out(tmp_path, holding):
    with pytest.raises(InUseError) as caught, hold(tmp_path):
        pass
    assert f"{tmp_path}: in use by process {holding.pid} on {socket.gethostname()}" in str(
        caught.value
    )
    assert "wait for it, or stop it" in str(caught.value)
    assert read_holder(tmp_path).process == holding.pid


def test_the_lock_of_a_killed_process_is_taken_over_and_reported(tmp_path, holding):
    lines: list[str] = []
    holding.kill()
    holding.wait()
    assert read_holder(tmp_path).process == holding.pid
    with hold(tmp_path, lines.append):
        assert read_holder(tmp_path).process == os.getpid()
    assert len(lines) == 1
    assert f"took over the lock of process {holding.pid} on" in lines[0]


def test_a_reused_process_id_does_not_hold_the_lock(tmp_path):
    write_holder(tmp_path, process=os.getppid())  # alive, but without the lock
    lines: list[str] = []
    with hold(tmp_path, lines.append):
        pass
    assert "which no longer runs" in lines[0]


def test_the_lock_of_another_host_is_refused_with_a_fix(tmp_path):
    write_holder(tmp_path, host="elsewhere")
    with pytest.raises(InUseError) as caught, hold(tmp_path):
        pass
    assert "in use by process 4711 on elsewhere (since 2020-01-01" in str(caught.value)
    assert f"delete {tmp_path / HOLDER} if that process no longer runs" in str(caught.value)
    (tmp_path / HOLDER).unlink()
    with hold(tmp_path):
        pass


@pytest.mark.parametrize("content", ["", "[]", '{"process": 1}', "\x00"])
def test_an_unreadable_lock_is_not_taken_over(tmp_path, content):
    (tmp_path / HOLDER).write_text(content)
    with pytest.raises(InUseError, match="not a readable lock"), hold(tmp_path):
        pass


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(StorageError, match="a file lies where a folder is needed"),
        hold(tmp_path / "file" / "run"),
    ):
        pass


def test_only_one_of_many_concurrent_processes_gets_the_lock(tmp_path):
    write_holder(tmp_path)  # a dead one's lock: all of them try to take it over
    code = HOLDING.replace("time.sleep(60)", "time.sleep(4)")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    holders = [out for out, _ in outputs if out == "held\n"]
    refused = [err for _, err in outputs if "in use by process" in err]
    # The others were refused, or came only after the first had gone.
    assert len(holders) + len(refused) == 3
    assert holders
    assert read_holder(tmp_path) is None
