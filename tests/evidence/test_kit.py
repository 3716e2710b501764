"""The kit of all benchmarks: clock, memory, statistics, claims, tables of results."""

from __future__ import annotations

import math
import multiprocessing
import os
import time

import pytest
import torch
from evidence.kit import clock, grid, page, statistics
from evidence.kit.check import fallen, theirs_first
from evidence.kit.claims import (
    CONTRADICTED,
    FEW_SEEDS,
    NOT_RUN,
    REPRODUCED,
    UNDECIDED,
    UNTESTABLE,
    Claim,
    better,
    claims_section,
    judge,
    named,
)
from evidence.kit.clock import Case, Entry
from evidence.kit.contest import one_cycle
from evidence.kit.grid import Section, Table, fill, run_sections, section_table
from evidence.kit.memory import alone, exponent
from evidence.kit.subject import Options

from fredholm.lab.training.grid import Cell
from fredholm.lab.training.machine import peak_megabytes

# --- contests -------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 2, 3, 10, 11, 100])
def test_a_cycle_of_any_number_of_steps_ends_at_a_small_rate(steps):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = one_cycle(optimizer, 0.1, steps)
    rates = []
    for _ in range(steps):
        rates.append(schedule.get_last_lr()[0])
        optimizer.step()
        if len(rates) < steps:
            schedule.step()
    assert max(rates) <= 0.1 + 1e-9
    assert rates[-1] < 1e-3


# --- clock ----------------------------------------------------------------------------------------


def test_a_wrong_answer_is_not_timed():
    calls = []

    def wrong():
        calls.append(1)
        return torch.ones(3) * 1.1

    case = Case("off", lambda: torch.ones(3), {"wrong": Entry(wrong)}, tolerance=1e-3)
    with pytest.raises(clock.WrongAnswer, match="refusing to time"):
        clock.run(case)
    assert len(calls) == 1
    case.entries["wrong"] = Entry(lambda: torch.full((3,), float("nan")))
    with pytest.raises(clock.WrongAnswer, match="inf"):
        clock.run(case)


def test_rows_carry_ratio_and_difference():
    ways = {"a": Entry(lambda: torch.ones(3), 10.0), "b": Entry(lambda: torch.ones(3))}
    first, second = clock.time_cases([Case("sum", lambda: torch.ones(3), ways)], group="g")
    assert first["ratio"] == 1.0
    assert second["ratio"] > 0
    assert first["difference"] == 0
    assert first["matrix_rate_share"] > 0
    assert first["group"] == "g"


def test_each_way_is_compared_with_its_reference():
    ways = {
        "a": Entry(lambda: torch.ones(2)),
        "b": Entry(lambda: torch.zeros(2) + 2, reference=lambda: torch.ones(2) * 2),
    }
    assert clock.check(Case("two", lambda: torch.ones(2), ways)) == {"a": 0.0, "b": 0.0}
    ways["b"] = Entry(lambda: torch.ones(2), reference=lambda: torch.ones(2) * 2)
    with pytest.raises(clock.WrongAnswer, match="two/b"):
        clock.check(Case("two", lambda: torch.ones(2), ways))


def test_rounds_end_with_the_time_budget():
    done = []
    times = clock.in_turn({"a": lambda: done.append(1)}, 9, seconds=0.0)
    assert len(times["a"]) == 2
    assert len(done) == 3, "the first round does not count"


def test_a_reading_times_many_short_calls_or_one_long_call(monkeypatch):
    now, done = [0.0], []

    def way(seconds: float) -> None:
        done.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    for seconds, most in ((clock.SECONDS / 5, 1 + 5), (2 * clock.SECONDS, 1)):
        reading = clock.in_a_row(lambda s=seconds: way(s))
        done.clear()
        assert reading() == pytest.approx(seconds)
        # 5 calls may round to 6.
        assert len(done) in (most, most + 1)


def test_a_ratio_that_fell_by_more_than_15_percent_is_named():
    rows = [
        {"case": "c", "way": "ours", "ratio": 1.0},
        {"case": "c", "way": "theirs", "ratio": 4.0},
    ]
    assert fallen(rows, rows) == []
    assert fallen(rows, [rows[0], {**rows[1], "ratio": 3.41}]) == []
    worse = [rows[0], {**rows[1], "ratio": 3.39}]
    assert fallen(rows, worse) == ["c, theirs: took 4.00 times as long as ours, now 3.39 (-15%)"]
    assert fallen(worse, rows) == []
    assert fallen([], rows) == []
    other = [{**row, "group": "another"} for row in worse]
    assert fallen(rows, other) == [], "groups may have cases of one name"


def test_our_slower_way_is_named_when_the_other_is_listed_first():
    rows = [
        {"case": "c", "way": "layer", "ratio": 1.0},
        {"case": "c", "way": "operator", "ratio": 1.0},
    ]
    slower = [rows[0], {**rows[1], "ratio": 1.3}]
    assert fallen(theirs_first(rows), theirs_first(slower)) == [
        "c: operator, layer: took 1.00 times as long as ours, now 0.77 (-23%)"
    ]
    assert fallen(theirs_first(slower), theirs_first(rows)) == []


# --- memory ---------------------------------------------------------------------------------------


def test_a_step_that_fits_into_freed_memory_is_measured():
    # 128 MB in pieces, freed below.
    kept = [torch.ones(4 << 20) for _ in range(8)]
    del kept
    megabytes = peak_megabytes(lambda: [torch.ones(1000) for _ in range(4000)])
    if megabytes is None:
        pytest.skip("this system does not tell")
    assert 10 < megabytes < 40


def test_a_measurement_in_another_process_returns_its_error():
    step = "evidence.kit.memory:operator_step"
    assert alone(step, operator="softmax", n=256)["n"] == 256
    with pytest.raises(RuntimeError, match="no such"):
        alone(step, operator="no such", n=16)


def test_the_exponent_is_that_of_a_power_law():
    rows = [{"n": n, "megabytes": 3.0 * n**1.5} for n in (16, 64, 256)]
    assert exponent(rows) == pytest.approx(1.5)
    assert exponent([{"n": 8, "megabytes": None}, *rows]) == pytest.approx(1.5)
    assert exponent(rows[:1]) is None


# --- statistics and claims ------------------------------------------------------------------------


def runs(**scores):
    return [
        {"variant": v, "seed": s, "accuracy": x}
        for v, xs in scores.items()
        for s, x in enumerate(xs)
    ]


def test_differences_are_paired_by_seed():
    apart = statistics.paired(runs(a=[0.5, 0.7], b=[0.4, 0.6, 0.1]), "a", "b")
    assert apart == pytest.approx([0.1, 0.1])
    found = statistics.summarise(apart)
    assert (found.sd, found.p) == (pytest.approx(0, abs=1e-12), 0.0)
    assert statistics.summarise([0.3]).p is None
    assert statistics.summarise([]) is None


def test_p_is_that_of_students_test():
    """t = 0.2 / (0.1 / √3) with 2 degrees of freedom, whose distribution has a closed form."""
    t = 0.2 / (0.1 / math.sqrt(3))
    assert statistics.summarise([0.1, 0.2, 0.3]).p == pytest.approx(1 - t / math.sqrt(2 + t * t))
    assert statistics.summarise([0.1, 0.2, 0.3], against=0.2).p == pytest.approx(1)


def claim(*sample, **more):
    return Claim("c", sample=lambda found: list(sample), primary=True, **more)


@pytest.mark.parametrize(
    ("sample", "more", "verdict"),
    [
        ((0.10, 0.11, 0.10, 0.11, 0.10), {}, REPRODUCED),
        ((0.10, 0.11, 0.10, 0.11), {}, FEW_SEEDS),
        ((-0.10, -0.11, -0.10, -0.11, -0.10), {}, CONTRADICTED),
        ((-0.02, 0.05, -0.05, 0.03, -0.01), {}, UNDECIDED),
        ((0.1,), {}, FEW_SEEDS),
        ((), {}, NOT_RUN),
        ((0.001, 0.0, -0.001, 0.0, 0.001), {"below": 0.01}, REPRODUCED),
        ((0.10, 0.11, 0.10, 0.11, 0.10), {"below": 0.01}, CONTRADICTED),
        ((0.0, 0.05, 0.0, 0.04, 0.0), {"below": 0.01}, UNDECIDED),
        ((0.98, 0.99, 0.985, 0.98, 0.99), {"above": 0.95}, REPRODUCED),
    ],
)
def test_every_sample_gets_its_verdict(sample, more, verdict):
    (judged,) = judge([claim(*sample, **more)], {})
    assert judged.verdict == verdict
    assert (judged.here == "not run") == (not sample)


def test_more_claims_need_more_evidence():
    # Alone this sample has p = 0.005.
    sample = (0.10, 0.14, 0.12, 0.06, 0.05)
    assert judge([claim(*sample)], {})[0].verdict == REPRODUCED
    # These claims are open, and count.
    others = [claim(0.1) for _ in range(4)]
    first, *_ = judge([claim(*sample), *others], {})
    assert 0.01 < first.p < 0.05
    six = [claim(*sample) for _ in range(6)]
    with pytest.raises(ValueError, match="at most 5"):
        judge(six, {})


def test_exploratory_and_untestable_claims_have_no_p():
    explored = Claim("e", sample=lambda found: [0.1, 0.1, 0.1])
    untestable = Claim("u", untestable="no data")
    one, two = judge([explored, untestable], {})
    assert (one.verdict, one.p) == ("", None)
    assert (two.verdict, two.here) == (UNTESTABLE, "no data")
    text = claims_section([claim(0.1, 0.2), explored, untestable], {}, {"primary": ["c"]})
    assert "| c |  | +15.00 ± 7.07 (2 seeds) | seeds alone | 0.205 | open: 1 to 4 seeds |" in text
    assert "| u |  | no data (*not testable here*) |" in text
    for wrong in ({"primary": True}, {"untestable": "x", "sample": list}):
        with pytest.raises(ValueError, match="c: "):
            Claim("c", **wrong)


def test_claims_named_after_the_runs_are_not_primary():
    claims = [claim(0.1), Claim("d", sample=lambda found: [0.2], primary=True), Claim("e")]
    assert named(claims, ["c", "d"]) == "The primary claims were named before the runs."
    assert "none of their claims is primary" in named([Claim("e", sample=list)], [])
    with pytest.raises(ValueError, match="got d, named after them; explore these"):
        named(claims, ["c"])
    with pytest.raises(ValueError, match="got d, named after them"):
        claims_section(claims, {}, {"primary": ["c"]})
    with pytest.raises(ValueError, match="got c; d, named after them"):
        claims_section(claims, {})
    # A claim without runs was named before them.
    claims[1] = Claim("d", sample=lambda found: [], primary=True)
    assert "named before the runs" in claims_section(claims, {}, {"primary": ["c"]})


def test_better_returns_differences_by_seed():
    found = {"digits": runs(a=[0.5, 0.7], b=[0.4, 0.5])}
    assert better("digits", "a", "b")(found) == pytest.approx([0.1, 0.2])
    assert better("nothing", "a", "b")(found) == []


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="markers"):
        page.insert("a page", "theorem4", "a table")


# --- tables that grow -----------------------------------------------------------------------------

TINY = Section(
    "Tiny", "digits", ("training.epochs=1",), {"a": (), "b": ("model.body.depth=1",)}, seeds=2
)


def test_runs_are_added_one_by_one_and_not_twice(tmp_path, monkeypatch):
    done = []

    def train(cell, report, each):
        name = cell.given.name
        done.append(name)
        if len(done) == 3:
            raise ValueError("out of luck")
        cell.place.mkdir(parents=True)
        numbers = {"measure": "accuracy", "values": [1.0, 0.0]}
        return {"parameters": 1}, {"accuracy": 0.5, "loss": 1.0, "other": 3, "each": numbers}

    monkeypatch.setattr(grid, "scores_of", train)
    options = Options(runs=tmp_path / "runs", results=tmp_path, primary=("a beats b",))
    with pytest.raises(SystemExit, match="failed: a, 1"):
        run_sections({"tiny": TINY}, "out.json", options)
    assert done == ["tiny-a-0", "tiny-b-0", "tiny-a-1", "tiny-b-1"]
    assert page.load("out.json", tmp_path)["primary"] == ["a beats b"], "named before the first run"
    options.primary = ("another", "added later")
    run_sections({"tiny": TINY}, "out.json", options)
    assert done[4:] == ["tiny-a-1"]
    assert page.load("out.json", tmp_path)["primary"] == ["a beats b"]
    rows = section_table("out.json", "tiny").rows(tmp_path)
    assert [(row["variant"], row["seed"]) for row in rows] == [
        ("a", 0),
        ("b", 0),
        ("b", 1),
        ("a", 1),
    ]
    assert rows[1]["overrides"] == ["training.epochs=1", "model.body.depth=1"]
    assert rows[1]["accuracy"] == 0.5


def test_one_run_can_add_several_rows(tmp_path):
    table = Table("rows.json", ("x", "y"), ())
    options = Options(runs=tmp_path / "runs", results=tmp_path)

    def work(cell, report):
        cell.place.mkdir(parents=True)
        return {"rows": [{"y": y} for y in (1, 2)]}

    rows = [{"x": 1, "y": 2}]
    fill(table, rows, work, lambda row: Cell(row, tmp_path / "runs" / "one"), options)
    assert table.rows(tmp_path) == [{"x": 1, "y": 1}, {"x": 1, "y": 2}]
    fill(
        table, rows, lambda *_: pytest.fail("done twice"), lambda row: Cell(row, tmp_path), options
    )
    Table("about.json", ("x",)).add([{"x": 1}], tmp_path, machine={"threads": 1})
    assert page.load("about.json", tmp_path) == {"runs": [{"x": 1}], "machine": {"threads": 1}}


def test_the_minutes_of_a_command_are_those_of_all_its_tables_together(tmp_path):
    done = []

    def work(cell, report):
        cell.place.mkdir(parents=True)
        done.append(cell.settings["x"])
        options.begun -= 61
        return {}

    options = Options(runs=tmp_path / "runs", results=tmp_path, minutes=1)
    for number in (1, 2):
        table = Table(f"rows-{number}.json", ("x",), ())
        rows = [{"x": 10 * number + x} for x in range(2)]
        fill(table, rows, work, lambda row: Cell(row, tmp_path / f"{row['x']}"), options)
    assert done == [10]


def _fill_slowly(place):
    def work(cell, report):
        # This fails where another process has computed the row.
        cell.place.mkdir(parents=True)
        time.sleep(0.2)
        return {"process": os.getpid()}

    rows = [{"x": x} for x in range(4)]
    fill(
        Table("rows.json", ("x",), ()),
        rows,
        work,
        lambda row: Cell(row, place / "runs" / str(row["x"])),
        Options(runs=place / "runs", results=place),
    )


def test_two_processes_fill_a_table_without_computing_a_row_twice(tmp_path):
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_fill_slowly, args=(tmp_path,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    found = page.load("rows.json", tmp_path)
    assert sorted(row["x"] for row in found) == [0, 1, 2, 3]
    assert {row["process"] for row in found} == {process.pid for process in processes}


def test_an_unknown_name_is_refused():
    assert Options().chosen(["a", "b"]) == ["a", "b"]
    assert Options(only=("b",)).chosen(["a", "b"]) == ["b"]
    with pytest.raises(SystemExit, match="expected one of a, b"):
        Options(only=("c",)).chosen(["a", "b"])


def test_choices_at_an_end_are_named():
    variants = dict.fromkeys(("a", "b", "c"), ())
    rates = ("lr=1", "lr=2", "lr=3")
    choices = {"a": rates, "b": rates, "c": ("lr=1",)}
    section = Section("title", "recipe", (), variants, choices=choices)

    def rows(**chosen):
        return [section.row(name, choice) | {"seed": 0} for name, choice in chosen.items()]

    assert section.at_an_end(rows(a="lr=2", b="lr=2", c="lr=1")) == ""
    assert section.at_an_end(rows(a="lr=3", b="lr=2", c="lr=1")).endswith("for: a.")
    assert section.at_an_end(rows(a="lr=3", b="lr=1", c="lr=1")).endswith("for: all models.")


def test_choices_use_validation_and_only_the_choice_reads_the_test_split(tmp_path, monkeypatch):
    choices = {"a": ("optimizer.lr=1e-3", "optimizer.lr=2e-3")}
    brief = ("training.epochs=1",)
    common, variants = ("training.epochs=2",), {"a": (), "b": ()}
    section = Section("Tuned", "digits", common, variants, 2, {}, choices, brief)
    tests, epochs = [], []

    def train(cell, report):
        epochs.append(cell.given.training.epochs)
        cell.place.mkdir(parents=True, exist_ok=True)
        (cell.place / "rate").write_text(str(cell.given.optimizer.lr))
        return {"parameters": 1}

    def scores(cell, report, each):
        tests.append((cell.given.optimizer.lr, cell.given.seed))
        numbers = {"measure": "accuracy", "values": [1.0, 0.0]}
        return train(cell, report), {"accuracy": 0.5, "each": numbers}

    def validate(place, split):
        assert split == "val"
        return {"accuracy": float((place / "rate").read_text()), "loss": 1.0}

    for name, stand_in in (("trained", train), ("scores_of", scores), ("evaluate", validate)):
        monkeypatch.setattr(grid, name, stand_in)
    options = Options(runs=tmp_path / "runs", results=tmp_path)
    run_sections({"tuned": section}, "out.json", options, also=lambda cell: {"more": 7})
    found = grid.sections("out.json", tmp_path)["tuned"]
    assert [row["overrides"][-1] for row in found if row["variant"] == "a"] == [choices["a"][1]] * 2
    assert all(section.has(row) and row["more"] == 7 for row in found)
    assert not section.has(found[0] | {"overrides": ["training.epochs=3"]})
    assert epochs == [1, 1, 2, 2, 2, 2], "what chooses is cut short, what is chosen is not"
    own = [rate for rate, _ in tests if rate in (1e-3, 2e-3)]
    assert own == [2e-3, 2e-3]
    tests.clear()
    run_sections({"tuned": section}, "out.json", options)
    assert not tests
    with pytest.raises(SystemExit, match=r"expected runs of [0-9] choices"):
        grid.best_choices(section, [])
    tries = [
        row | {"accuracy": 0.9, "loss": loss}
        for row, loss in zip(section.tries(), (0.3, 0.2), strict=True)
    ]
    assert grid.best_choices(section, tries) == {"a": choices["a"][1]}, "equal by accuracy"
    page.save({"tuning": {"tuned": []}}, "begun.json", tmp_path)
    assert grid.sections("begun.json", tmp_path) == {}, "a page can be written meanwhile"
