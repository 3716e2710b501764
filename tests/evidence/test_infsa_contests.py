"""InfSA's contests: models of equal size, time as the budget, and the page of their results."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from evidence.infsa import contests, equal_time, ten_seeds
from evidence.infsa.equal_time import NAMES, SIZES
from evidence.kit.answers import pack
from evidence.kit.claims import NOT_RUN, judge
from evidence.kit.contest import EQUAL_STEPS, EQUAL_TIME, parameters
from evidence.kit.grid import Table
from evidence.kit.subject import Options

from fredholm.training import load_recipe


@pytest.mark.parametrize("patches", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_models_have_their_size_and_read_that_many_patches(name, patches):
    model = equal_time.built(name, patches, 0)
    assert abs(parameters(model) / equal_time.PARAMETERS - 1) < 0.05
    assert model.config.encoder.points == patches


def test_models_of_equal_seeds_see_equal_batches(canvases):
    seen = []
    for name in ("softmax", "linear attention"):
        model = equal_time.built(name, 256, 0)
        model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        equal_time.fit(model, 1e-3, 7, 2)
    assert seen[0].equal(seen[2])
    assert seen[1].equal(seen[3])
    assert not seen[0].equal(seen[1])


@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_the_rate_rises_and_falls_in_any_number_of_steps(steps):
    rates = [equal_time.rate_at(step, steps) for step in range(steps)]
    assert max(rates) == 1.0
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[-1] == min(rates) or steps < 3


def test_the_rate_is_chosen_by_the_loss_when_all_were_tried():
    tried = [
        {"patches": 256, "variant": "softmax", "rate": rate, "loss": abs(rate - 3e-3)}
        for rate in equal_time.RATES
    ]
    rates = equal_time.RATES
    assert equal_time.best_rate(tried, 256, "softmax", rates) == 3e-3
    assert equal_time.best_rate(tried, 256, "softmax", (1e-2,)) == 1e-2
    diverged = [tried[0] | {"loss": float("nan")}, *tried[1:]]
    assert equal_time.best_rate(diverged, 256, "softmax", rates) == 3e-3
    with pytest.raises(SystemExit, match="expected 3 tried rates, got 0"):
        equal_time.best_rate(tried, 1_024, "softmax", rates)


def test_a_search_goes_on_to_a_rate_between_two_others_or_the_ladders_end(tmp_path, monkeypatch):
    best = {"linear InfSA": 1.0, "pure InfSA": 3e-3, "softmax": 3e-4, "linear attention": 3e-2}

    def loss(cell, report):
        cell.place.mkdir(parents=True)
        return {"loss": abs(math.log(cell.settings["rate"] / best[cell.settings["variant"]]))}

    monkeypatch.setattr(equal_time, "validated", loss)
    options = Options((), 1, runs=tmp_path / "runs", results=tmp_path)
    steps = dict.fromkeys(NAMES, 6_000)
    size = SIZES[1_024]
    cell = partial(equal_time.own_cell, options=options)
    found = equal_time.search(1_024, size, steps, cell, options)
    assert found == best | {"linear InfSA": 1e-1}, "the ladder ends there"

    tried = {name: set() for name in NAMES}
    for one in equal_time.TUNING.rows(tmp_path):
        tried[one["variant"]].add(one["rate"])
    first = set(equal_time.RATES)
    assert tried == {
        "linear InfSA": first | {3e-2, 1e-1},
        "pure InfSA": first,
        "softmax": first | {3e-4, 1e-4},
        "linear attention": first | {3e-2, 1e-1},
    }
    text = contests.searched(equal_time.TUNING.rows(tmp_path))
    assert "0.03 and 0.1 for linear InfSA; 0.0001 and 0.0003 for softmax" in text
    assert contests.searched([]) == ""


@pytest.fixture
def canvases(monkeypatch):
    """Canvases of noise."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (48, 1, 64, 64), generator=generator, dtype=torch.uint8)
    labels = torch.arange(48) % equal_time.CLASSES
    found = equal_time.Canvases(pixels, labels)
    monkeypatch.setattr(equal_time, "canvases", lambda split: found)


def test_a_contest_continues_where_it_stopped(canvases, tmp_path, monkeypatch):
    monkeypatch.setattr(equal_time, "ROUNDS", 1)
    options = Options(("256",), 1, runs=tmp_path / "runs", results=tmp_path, small=True)
    contests.run_equal_time(options)
    rows = equal_time.RUNS.rows(tmp_path)
    assert {(row["variant"], row["budget"]) for row in rows} == {
        (name, budget) for name in NAMES for budget in (EQUAL_TIME, EQUAL_STEPS)
    }
    assert {row["seed"] for row in rows} == {equal_time.SEEDS[0]}
    assert all(row["answers"]["accuracy"]["n"] == 32 for row in rows)
    named = Table(equal_time.FILE, (), ("primary",)).rows(tmp_path)
    assert named == [claim.text for claim in contests.CLAIMS if claim.primary]

    before = (tmp_path / equal_time.FILE).read_text()
    contests.run_equal_time(options)
    assert (tmp_path / equal_time.FILE).read_text() == before


def row(name, seed, values, patches=1_024, budget=EQUAL_TIME):
    return {
        "patches": patches,
        "variant": name,
        "budget": budget,
        "seed": seed,
        "accuracy": sum(values) / len(values),
        "answers": {"accuracy": pack(values)},
        "steps": 9,
        "seconds": 2.0,
        "parameters": 1_234,
        "rate": 0.01,
    }


def test_a_claim_compares_models_at_one_number_of_patches():
    rows = [row("linear InfSA", seed, [1.0, 1.0, 0.0, 1.0]) for seed in (0, 1)]
    rows += [row("softmax", seed, [1.0, 0.0, 0.0, 0.0]) for seed in (0, 1)]
    rows += [row("softmax", seed, [1.0, 1.0, 1.0, 1.0], patches=256) for seed in (0, 1)]
    found = contests.ahead("linear InfSA", "softmax", 1_024)({EQUAL_TIME: rows})
    assert found == [0.5, 0.5]
    assert found.samples.shape == (2, 4)


def test_claims_without_runs_are_open():
    budgets = EQUAL_TIME, EQUAL_STEPS, equal_time.SOFTMAX_STEPS, equal_time.LONG_TIME
    empty = {budget: [] for budget in budgets}
    verdicts = [one.verdict for one in judge(contests.CLAIMS, empty) if one.claim.primary]
    assert verdicts == [NOT_RUN] * 5


def test_tables_show_what_was_run():
    found = {"machine": {"processor": "some", "threads": 1, "torch": "2"}}
    text = contests.scores([row("softmax", 0, [1.0, 0.0])], found)
    assert "| 1,024 | softmax | 50.0 | 1 | 9 | 0.0 | 2.0 | 1,234 | 0.01 |" in text
    assert contests.scores([], {}).startswith("Not run: `python -m evidence run infsa equal-time`")
    paces = [{"patches": 1_024, "variant": "softmax", "step": 0.5}]
    assert "| 1,024 | softmax | 500 | 6,000 | 50.0 |" in contests.cost(paces)


def test_seeds_that_only_guess_are_named():
    tenth = [1.0] + 9 * [0.0]
    rows = [row("linear InfSA", 0, tenth), row("linear InfSA", 1, 10 * [1.0])]
    rows.append(row("softmax", 0, 10 * [1.0]))
    text = contests.guesses({EQUAL_TIME: rows, EQUAL_STEPS: rows[:1]})
    assert "Chance is 10%." in text
    assert (
        "linear InfSA at 1,024 patches (1 of 2 with equal time, 1 of 1 with equal steps)." in text
    )
    assert contests.guesses({EQUAL_TIME: rows[1:], EQUAL_STEPS: []}) == ""


def test_only_complete_sizes_are_ranked():
    accuracies = dict(zip(NAMES, ([1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.0]), strict=True))
    rows = [row(name, seed, accuracies[name]) for name in NAMES for seed in equal_time.SEEDS]
    (text,) = contests.rankings(rows)
    assert (
        "at 1,024 patches the order of the means is linear InfSA (100.0%), softmax (50.0%)" in text
    )
    assert contests.state(rows).endswith(
        "256 patches: not run; 1,024 patches: complete; 4,096 patches: not run."
    )
    assert not list(contests.rankings(rows[1:]))
    assert "1,024 patches: 19 of 20 runs" in contests.state(rows[1:])


def test_rates_at_an_end_and_rates_without_effect_are_named():
    rows = [row("linear InfSA", 0, [1.0, 0.0]), row("softmax", 0, [1.0, 0.0]) | {"rate": 3e-3}]
    losses = {"linear InfSA": 2.303, "softmax": 2.0}
    tuned = [
        {"patches": 1_024, "variant": name, "rate": rate, "loss": loss}
        for name, loss in losses.items()
        for rate in equal_time.RATES
    ]
    end, blind = contests.edges(rows, tuned)
    assert end.startswith("Rates at 1,024 patches: the first or the last")
    assert end.endswith("for: linear InfSA.")
    assert blind.startswith("At no rate did linear InfSA leave chance")
    tuned.append({"patches": 1_024, "variant": "linear InfSA", "rate": 3e-2, "loss": 2.0})
    assert list(contests.edges(rows, tuned)) == [], "0.01 lies between two others now"


def test_a_rate_that_works_in_one_seed_alone_is_named():
    chance, half = [1.0] + 9 * [0.0], 5 * [1.0] + 5 * [0.0]
    rows = [row("linear InfSA", seed, values) for seed, values in enumerate((chance, chance, half))]
    rows += [row("softmax", 0, chance), row("pure InfSA", 0, half)]
    losses = {"linear InfSA": 1.8, "softmax": 2.303, "pure InfSA": 1.8}
    tuned = [{"patches": 1_024, "variant": name, "loss": loss} for name, loss in losses.items()]
    (text,) = contests.misled(rows, tuned)
    assert text.startswith("At 1,024 patches linear InfSA left chance with the seed that chose")
    assert "did not in 2 of 3 runs" in text


def test_controls_have_the_steps_of_softmax_and_the_time_of_small_patches():
    seconds = {
        256: dict.fromkeys(NAMES, 0.5) | {"softmax": 0.25},
        1_024: dict(zip(NAMES, (0.1, 2.0, 1.0, 0.2), strict=True)),
    }
    paces = [
        {"patches": patches, "variant": name, "step": step}
        for patches, steps in seconds.items()
        for name, step in steps.items()
    ]
    few = equal_time.step_counts(paces, 1_024, SIZES[1_024])[equal_time.SOFTMAX_STEPS]
    assert few == {"linear InfSA": 600, "linear attention": 600}
    long = equal_time.step_counts(paces, 256, SIZES[256])[equal_time.LONG_TIME]
    assert long == {"softmax": 2_400}, "6,000 steps of 0.1 seconds"
    unmeasured = [one for one in paces if one["patches"] == 256]
    assert equal_time.step_counts(unmeasured, 256, SIZES[256])[equal_time.LONG_TIME] == {}


def test_a_control_that_was_not_run_is_open():
    found = {"machine": {"processor": "some", "threads": 1, "torch": "2"}}
    linear = [row("linear InfSA", 0, [1.0, 0.0])]
    runs = {EQUAL_TIME: linear, equal_time.SOFTMAX_STEPS: [], equal_time.LONG_TIME: []}
    assert "Open: not run" in contests.controls(runs, found)
    runs[equal_time.LONG_TIME] = [row("softmax", 0, [1.0, 1.0], 256)]
    assert "| 256 | softmax | 100.0 |" in contests.controls(runs, found)
    assert contests.controls(runs | {EQUAL_TIME: []}, found) == ""


def test_small_patches_are_compared_with_larger_ones_in_the_same_time():
    found = {
        EQUAL_TIME: [row("linear InfSA", seed, [1.0, 0.0]) for seed in (0, 1)],
        equal_time.LONG_TIME: [
            row("softmax", seed, [1.0, 1.0], 256, equal_time.LONG_TIME) for seed in (0, 1)
        ],
    }
    assert contests.small_patches_ahead(found) == [-0.5, -0.5]


def test_ten_seeds_differ_from_the_first_test_in_epochs_and_test_set_alone():
    section = ten_seeds.SECTIONS[ten_seeds.NAME]
    rows = list(section.plan(section.seeds))
    assert {one["seed"] for one in rows} == set(range(200, 210))
    for variant, first in (("softmax", "softmax"), ("pure InfSA", "pure, constant")):
        again = section.row(variant)
        before = ten_seeds.FIRST.row(first, "optimizer.lr=0.003")
        one, other = (load_recipe(each["recipe"], each["overrides"]) for each in (again, before))
        assert one.model == other.model
        assert one.optimizer == other.optimizer
        assert one.data.options == other.data.options | {"test": 10_000}
        assert (one.training.epochs, other.training.epochs) == (8, 20)
