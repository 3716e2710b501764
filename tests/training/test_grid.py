"""Cells of a grid are computed once, whoever comes back to them; one that fails stops no other."""

from __future__ import annotations

import json

import pytest

from fredholm.errors import FredholmError
from fredholm.training.failures import Interrupted
from fredholm.training.grid import CELLS, Cell, Grid
from fredholm.training.leases import hold


@pytest.fixture
def counted():
    """A grid that squares, and what it has worked on."""
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


def test_a_cell_is_computed_once_and_known_by_its_settings(tmp_path, counted):
    grid, done = counted
    cells = [Cell({"x": x}, tmp_path / str(x)) for x in (2, 3)]
    assert results(grid, cells) == [{"y": 4}, {"y": 9}] == results(grid, cells)
    assert done == [2, 3]
    # the same folder with other settings is another cell
    assert results(grid, [Cell({"x": 4}, tmp_path / "2")]) == [{"y": 16}]
    assert Cell({"a": 1, "b": 2}, tmp_path).key == Cell({"b": 2, "a": 1}, tmp_path / "x").key


def test_a_result_goes_with_its_folder(tmp_path, counted):
    grid, done = counted
    cell = Cell({"x": 2}, tmp_path / "two")
    results(grid, [cell])
    (tmp_path / "two").rmdir()
    assert grid.read(cell) is None
    results(grid, [cell])
    assert done == [2, 2]


def test_a_failure_is_said_and_tried_again(tmp_path, counted):
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


def test_an_interruption_ends_the_grid_and_the_next_call_goes_on(tmp_path, counted):
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


def test_a_cell_at_work_elsewhere_is_left_alone(tmp_path, counted):
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
