"""Cells of a grid are computed once; a failed one does not stop the others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fredholm.errors import FredholmError
from fredholm.lab.training.failures import Interrupted
from fredholm.lab.training.grid import CELLS, Cell, Grid
from fredholm.lab.training.leases import HOLDER, Watch, hold, read_holder


@pytest.fixture
def counted():
    """Return a grid that squares numbers, and its log of computed cells."""
    done = []

    def work(cell, report):
        done.append(cell.settings["x"])
        cell.place.mkdir(parents=True, exist_ok=True)
        if cell.settings["x"] < 0:
            raise ValueError("no square root\nof that")
        return {"y": cell.settings["x"] ** 2}

    return Grid(work), done


def results(grid, cells, **options):
    return [result for _, result in grid.run(cells, **options)]


def test_a_cell_is_computed_once_per_setting(tmp_path, counted):
    grid, done = counted
    cells = [Cell({"x": x}, tmp_path / str(x)) for x in (2, 3)]
    assert results(grid, cells) == [{"y": 4}, {"y": 9}] == results(grid, cells)
    assert done == [2, 3]
    # the same folder with other settings is another cell
    assert results(grid, [Cell({"x": 4}, tmp_path / "2")]) == [{"y": 16}]
    assert Cell({"a": 1, "b": 2}, tmp_path).key == Cell({"b": 2, "a": 1}, tmp_path / "x").key


def test_deleting_a_folder_deletes_its_result(tmp_path, counted):
    grid, done = counted
    cell = Cell({"x": 2}, tmp_path / "two")
    results(grid, [cell])
    (tmp_path / "two").rmdir()
    assert grid.read(cell) is None
    results(grid, [cell])
    assert done == [2, 2]


def test_a_failure_is_reported_and_retried(tmp_path, counted):
    grid, done = counted
    cells = [Cell({"x": -1}, tmp_path / "low"), Cell({"x": 1}, tmp_path / "high")]
    assert results(grid, cells) == [{"error": "ValueError: no square root"}, {"y": 1}]
    assert "Traceback" in (tmp_path / "low.error.txt").read_text()
    results(grid, cells)
    assert done == [-1, 1, -1]


def test_a_result_that_looks_like_a_failure_is_refused(tmp_path):
    def work(cell, report):
        return {"error": 0.1}

    cell = Cell({"x": 1}, tmp_path / "one")
    assert "choose another name" in results(Grid(work), [cell])[0]["error"]
    assert Grid(work).read(cell) is None


def test_an_interrupted_grid_is_resumed_by_the_next_call(tmp_path, counted):
    grid, done = counted

    def stopped(cell, report):
        if cell.settings["x"] == 3:
            raise Interrupted("stopped")
        return grid.work(cell, report)

    cells = [Cell({"x": x}, tmp_path / str(x)) for x in (2, 3)]
    with pytest.raises(Interrupted):
        results(Grid(stopped), cells)
    assert results(grid, cells) == [{"y": 4}, {"y": 9}]
    assert done == [2, 3]


def test_a_cell_in_use_is_skipped(tmp_path, counted):
    grid, done = counted
    cell = Cell({"x": 2}, tmp_path / "two")
    with hold(tmp_path / CELLS / cell.key):
        assert "in use by process" in results(grid, [cell])[0]["error"]
    assert done == []


def test_a_damaged_result_is_named(tmp_path, counted):
    grid, _ = counted
    cell = Cell({"x": 2}, tmp_path / "two")
    results(grid, [cell])
    path = tmp_path / CELLS / cell.key / "result.json"
    assert json.loads(path.read_text()) == {"settings": {"x": 2}, "result": {"y": 4}}
    path.write_text("{")
    with pytest.raises(FredholmError, match="delete it and run again"):
        grid.read(cell)
    shared = [found for _, found in grid.share([cell, Cell({"x": 3}, tmp_path / "three")])]
    assert [list(found) for found in shared] == [["error"], ["y"]]


# --- workers --------------------------------------------------------------------------------------


def test_a_worker_waits_for_the_cell_of_another(tmp_path, counted):
    grid, done = counted
    cells = [Cell({"x": x}, tmp_path / str(x)) for x in (2, 3)]
    taken, free = threading.Event(), threading.Event()

    def other():
        with hold(tmp_path / CELLS / cells[0].key):
            taken.set()
            free.wait(10)

    thread = threading.Thread(target=other)
    thread.start()
    taken.wait(10)
    shared = grid.share(cells, wait=0.01)
    assert next(shared) == (cells[1], {"y": 9})  # not in order: the first is taken
    free.set()
    assert list(shared) == [(cells[0], {"y": 4})]
    thread.join()
    assert done == [3, 2]


def test_a_cell_that_fails_is_tried_by_one_worker(tmp_path, counted):
    grid, done = counted
    cells = [Cell({"x": x}, tmp_path / str(x)) for x in (1, -1)]
    one, other = grid.share(cells), grid.share(cells)
    assert next(one)[1] == next(other)[1] == {"y": 1}
    failure = {"error": "ValueError: no square root"}
    assert next(one)[1] == next(other)[1] == failure
    assert done == [1, -1]
    assert [result for _, result in grid.share(cells)] == [{"y": 1}, failure]  # and again later
    assert done == [1, -1, -1]


def test_the_lease_of_a_dead_machine_expires(tmp_path, counted, monkeypatch):
    grid, done = counted
    cell = Cell({"x": 2}, tmp_path / "two")
    dead = json.dumps({"process": 4711, "host": "elsewhere", "since": "2020-01-01T00:00:00+00:00"})
    for folder in (tmp_path / CELLS / cell.key, cell.place):
        folder.mkdir(parents=True)
        (folder / HOLDER).write_text(dead)
    monkeypatch.setattr("fredholm.lab.training.grid.Watch", lambda: Watch(0.3))
    begun = time.monotonic()
    lease = tmp_path / CELLS / cell.key / HOLDER
    renewed = threading.Timer(0.2, os.utime, [lease])  # it lived until then
    renewed.start()
    assert [result for _, result in grid.share([cell], wait=0.02)] == [{"y": 4}]
    assert time.monotonic() - begun > 0.45
    assert read_holder(cell.place) is None  # its work can be gone on with
    assert done == [2]


def test_a_worker_that_lost_its_lease_writes_no_result(tmp_path, counted):
    grid, _ = counted
    cell = Cell({"x": 2}, tmp_path / "two")
    other = {"process": 4711, "host": "elsewhere", "since": "2020-01-01T00:00:00+00:00"}

    def slept(mine, report):
        (tmp_path / CELLS / cell.key / HOLDER).write_text(json.dumps(other))
        return grid.work(mine, report)

    assert "taken over by process 4711 on elsewhere" in Grid(slept).compute(cell)["error"]
    assert grid.read(cell) is None


WORKER = """
import os, sys, time
from pathlib import Path
from fredholm.lab.training import grid as grids, sweeps

def work(cell, report):
    with open(cell.place.parent / "log", "a") as log:
        log.write(f"{os.getpid()} {cell.place.name}\\n")
    time.sleep(0.4)
    cell.place.mkdir(exist_ok=True)
    accuracy = (hash(cell.place.name) % 1000) / 1000
    return {"accuracy": accuracy, "loss": 1.0, "parameters": 3, "minutes": time.monotonic()}

sweeps.train_cell = work
lines = ["optimizer.lr=1e-3,2e-3,3e-3", "seeds=4"]
sweeps.sweep("digits", lines, Path(sys.argv[1]), worker=sys.argv[2] == "worker", report=print)
"""


@pytest.mark.slow
def test_killing_one_of_three_workers_gives_the_serial_table(tmp_path):
    def start(folder, how):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", WORKER, str(folder), how]
        return subprocess.Popen(command, env={**os.environ, "PYTHONHASHSEED": "0"})

    shared, log = tmp_path / "shared", tmp_path / "shared" / "log"
    workers = [start(shared, "worker") for _ in range(3)]
    deadline = time.monotonic() + 120
    while not log.exists() or len(set(log.read_text().split()[::2])) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    victim, cell = log.read_text().splitlines()[-1].split()
    os.kill(int(victim), signal.SIGKILL)  # in the middle of this cell
    assert sorted(worker.wait(timeout=120) for worker in workers) == [-signal.SIGKILL, 0, 0]
    assert start(tmp_path / "serial", "serial").wait(timeout=120) == 0
    began = [line.split()[1] for line in log.read_text().splitlines()]
    assert sorted(began) == sorted([*set(began), cell])  # that one twice, every other once
    assert len(set(began)) == 12

    def table(folder: Path) -> list[dict]:
        rows = json.loads((folder / "table.json").read_text())
        return [{key: value for key, value in row.items() if key != "minutes"} for row in rows]

    assert table(shared) == table(tmp_path / "serial")
