"""The page of conversions and its tables follow from the measured rows."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import torch
from evidence.kit.answers import pack
from evidence.kit.claims import CONTRADICTED, REPRODUCED, judge
from evidence.kit.page import load
from evidence.kit.subject import Options
from evidence.linearize import conversions, equivalence, recall, smollm2, tasks
from evidence.linearize import page as linearize_report
from evidence.linearize.speed import crossover

from fredholm.lab.training.metrics import wilson


def run(task: str, method: str, seed: int, tuned: float):
    layers = [{"name": "a", "before": 0.9, "after": None if method == "performer" else 0.1}]
    scores = {"teacher": 0.8, "tuned": tuned} | (
        {} if method == "performer" else {"distilled": 0.75}
    )
    sizes = {"train": 9, "val": 4, "test": 100}
    shared = {"samples": sizes, "scores": scores, "layers": layers}
    return {"task": task, "method": method, "seed": seed, "recovered": 100 * tuned / 0.8, **shared}


FOUND = {
    "runs": [
        run("sentiment", "luna", 0, 0.8),
        run("sentiment", "luna", 1, 0.79),
        run("sentiment", "hedgehog", 0, 0.82),
        run("sentiment", "performer", 0, 0.6),
    ],
    "recipe": {
        "distil": {"epochs": 1, "lr": 0.02, "batch_size": 8},
        "tune": {"sentiment": {"epochs": 2, "lr": 1e-5, "patience": 2, "batch_size": 8}},
        "teacher": {"sentiment": {"epochs": 3, "lr": 5e-5}},
    },
}


def test_tables_show_the_numbers_of_the_rows():
    page = linearize_report.page(FOUND)
    assert "| LUNA | 80.00 ± 0.00 | 75.00 ± 0.00 | 79.50 ± 0.71 | 99.4 ± 0.9 | 2 |" in page
    assert "| Performer, 64 features | 80.00 | nothing to distil | 60.00 | 75.0 | 1 |" in page
    claim = "sentiment of movie reviews: LUNA recovers"
    assert (
        f"| {claim} 99.5% of the teacher | 99.5% | +99.4 ± 0.9 (2 seeds); claimed: above +99.5 |"
        in page
    )
    assert f"| {claim} more than Hedgehog | not behind it | -2.5 (1 seed) |" in page
    assert "| LUNA | 0.90 → 0.10 | 0.90 → 0.10 |" in page
    assert "Not measured yet" in page
    assert "| sentiment of movie reviews | 9 | 4 | 100 | ≤ 3, 5e-05 | ≤ 2, 1e-05 |" in page
    assert "standard error of an accuracy near one half is 5.0 points" in " ".join(page.split())


def sure(seed, teacher, tuned, again):
    """Return the rows of a seed of the test of equivalence, of answers right or wrong."""
    rows = []
    for method, found in ((equivalence.CONVERTED, tuned), (equivalence.AGAIN, again)):
        sides = {"teacher": teacher, "tuned": found}
        row = {"task": equivalence.NAME, "method": method, "seed": seed}
        row["scores"] = {side: sum(right) / len(right) for side, right in sides.items()}
        row["answers"] = {side: pack(right) for side, right in sides.items()}
        rows.append(row)
    return rows


def test_a_share_of_the_teacher_is_tested_over_seeds_and_samples():
    rng = np.random.default_rng(0)
    rows, better = [], []
    for seed in range(10):
        teacher = (rng.random(2000) < 0.75).astype(float)
        again = (rng.random(2000) < 0.75).astype(float)
        rows += sure(seed, teacher, teacher, again)
        # Every hundredth answer becomes right.
        improved = teacher.copy()
        improved[seed::100] = 1.0
        better += sure(seed, teacher, improved, again)

    judged, against_again = judge(equivalence.CLAIMS, rows)
    assert judged.found.samples == 2000
    assert judged.verdict == REPRODUCED, "an exact copy keeps more than 99.5%"
    assert "100.00% of the teacher's, 95% interval" in judged.here
    assert against_again.verdict == ""

    low, high = interval_of(equivalence.share_text(better))
    assert 99.5 < low < 100.3 < high


def interval_of(text):
    return [float(x) for x in re.findall(r"interval ([\d.]+) to ([\d.]+)%", text)[0]]


def test_a_model_that_loses_two_points_contradicts_the_share():
    rng = np.random.default_rng(1)
    rows = []
    for seed in range(10):
        teacher = (rng.random(2000) < 0.75).astype(float)
        worse = teacher * (rng.random(2000) > 0.03)
        rows += sure(seed, teacher, worse, worse)
    judged = judge(equivalence.CLAIMS, rows)[0]
    assert judged.verdict == CONTRADICTED
    assert interval_of(judged.here)[1] < 99.5


def test_the_test_of_equivalence_has_ten_fresh_seeds_and_2000_samples(monkeypatch):
    (task,) = tasks.EQUIVALENCE.values()
    assert task.sizes["test"] == 2000
    assert len(set(equivalence.SEEDS)) == 10
    assert min(equivalence.SEEDS) >= 200
    monkeypatch.setattr(equivalence, "load", lambda file: None)
    assert equivalence.section() == f"Open: not run, `{equivalence.COMMAND}`."
    assert equivalence.share_text([]) == ""


def test_a_seed_has_the_rows_of_the_converted_and_of_the_tuned_teacher(tmp_path, monkeypatch):
    options = Options(seeds=1, small=True)
    options.runs, options.results = tmp_path / "runs", tmp_path
    teacher = torch.nn.Linear(2, 2)
    known = conversions.Taught(teacher, 0.5, [1.0, 0.0], {"train": 0, "val": 1, "test": 2})
    taught = MagicMock(return_value=known)
    monkeypatch.setattr(equivalence, "taught", taught)

    def convert(name, method, seed, taught, folder, small):
        folder.mkdir(parents=True)
        return {"scores": {"teacher": 0.5, "tuned": 1.0}}

    def evaluate(model, split, judged, each):
        assert model is not teacher
        each += [0.0, 0.0]
        return 0.0

    monkeypatch.setattr(equivalence, "convert", convert)
    monkeypatch.setattr(equivalence, "fine_tune", lambda model, **given: None)
    monkeypatch.setattr(equivalence, "evaluate", evaluate)
    equivalence.run(options)
    rows = load(equivalence.FILE, tmp_path)["runs"]
    assert [row["method"] for row in rows] == [equivalence.CONVERTED, equivalence.AGAIN]
    assert [row["scores"]["tuned"] for row in rows] == [1.0, 0.0]
    assert {row["seed"] for row in rows} == {200}
    taught.cache_clear.assert_called_once_with()


def test_the_crossover_is_the_last_change():
    def row(length, teacher, luna):
        return {"length": length, "teacher": {"ms": teacher}, "luna": {"ms": luna}}

    assert crossover([row(64, 1, 2), row(128, 3, 2), row(256, 9, 4)], "luna") == 128
    assert crossover([row(64, 3, 2), row(128, 3, 4)], "luna") is None
    assert crossover([row(64, 3, 2), row(128, 5, 4)], "luna") == 64


def test_rows_of_smollm2_are_means_over_seeds_and_decoding_stands_alone():
    def row(matched):
        scores = {"teacher": 10.0, "before": 20.0, "distilled": 15.0, "matched": matched}
        return {"scores": scores, "minutes": {"distilled": 5.0, "matched": 60.0}, "threads": 1}

    sides = {"bytes": (512.0, 700.0), "prompt_ms": (900.0, 800.0), "tokens_a_second": (9.0, 8.0)}
    numbers = {
        f"{side}_{what}": x
        for what, pair in sides.items()
        for side, x in zip(("teacher", "student"), pair)
    }
    rows = [{"length": 256.0, "student_softmax_bytes": 0.0, **numbers}]
    machine = {"processor": "a CPU", "threads": 2, "torch": "2.13"}
    decoding = {"machine": machine, "rows": rows, "smaller_from": 351, "faster_from": None}
    found = {"luna": row(12.0), "luna-1": row(13.0), "decoding": decoding}
    page = smollm2.page(found)
    about = "LUNA's map, all layers, a window of 64"
    assert f"| {about} | 2 | 2.000 ± 0.000 | 1.500 ± 0.000 | 1.250 ± 0.071 | 65 ± 0 |" in page
    assert "| all layers, no window | 0 | not run | not run | not run | not run | ≤ 1.5 |" in page
    assert "from 351 tokens on, and a token faster at no measured length; between 8.0" in page
    assert "| 256 | 512 | 700 | 9.0 | 8.0 | 0.90 | 0.80 |" in page
    # LUNA's row has no receipt.
    assert "## LUNA" not in page


def test_times_of_smollm2_come_from_an_idle_machine_where_it_measured_them():
    def row(length, softmax):
        bytes_ = {"teacher_bytes": length * 4e4, "student_bytes": 1e7 + softmax}
        times = {f"{side}_prompt_ms": 500.0 for side in ("teacher", "student")}
        times |= {f"{side}_tokens_a_second": 9.0 for side in ("teacher", "student")}
        return {"length": length, **bytes_, **times, "student_softmax_bytes": softmax}

    def receipt(keeps):
        rows = [row(n, keeps * n * 2e4) for n in (256.0, 4096.0)]
        shared = {"perplexity": {}, "recall": [], "copying": [], "continuations": []}
        return {"decoding": rows, "smaller_from": 260, "faster_from": None, **shared}

    def page(keeps, **more):
        scores = {"teacher": 10.0, "before": 20.0, "matched": 11.0}
        report = {"scores": scores, "minutes": {"matched": 60.0}, "threads": 2}
        return " ".join(smollm2.page({"all": report | {"receipt": receipt(keeps)}, **more}).split())

    machine = {"processor": "a CPU", "threads": 2, "torch": "2.13"}
    rows = [row(256.0, 0.0)]
    idle = {"machine": machine, "rows": rows, "smaller_from": 260, "faster_from": 4096}
    assert "a token faster at no measured length" in page(False)
    fixed, grows = page(False, decoding=idle), page(True, decoding=idle)
    for text in (fixed, grows):
        assert "a token faster at no measured length" not in text
        assert text.count("| tokens before |") == 1
    assert "Its cache takes 10.0 MB at every length, the teacher's 163.8 MB" in fixed
    assert "the cache still grows: 15.1 MB after 256 tokens, 91.9 MB after 4,096" in grows


def test_times_of_a_variant_are_judged_by_their_goals():
    def row(length, step, prompt):
        sides = {"teacher": (10.0, 100.0), "student": (10.0 * step, 100.0 * prompt)}
        return {"length": length, "student_softmax_bytes": 0.0} | {
            f"{side}_{what}": x
            for side, (speed, ms) in sides.items()
            for what, x in (("tokens_a_second", speed), ("prompt_ms", ms), ("bytes", 1.0))
        }

    machine = {"processor": "a CPU", "threads": 2, "torch": "2.13"}
    rows = [row(1024.0, 0.7, 1.2), row(2048.0, 1.1, 1.3), row(4096.0, 1.4, 1.0)]
    shown = smollm2.page({"decoding-12": {"machine": machine, "rows": rows}})
    assert "### 12 of 90 groups keep softmax" in shown
    assert (
        "| tokens per second divided by the teacher's, from 2,048 on | ≥ 1 | 1.10 | met |" in shown
    )
    assert (
        "| time of a prompt of 1,024 tokens divided by the teacher's | ≤ 1.1 | 1.20 | missed |"
        in shown
    )


ANSWERED = {
    "teacher": {
        "0": {"128": "11111", "512": "11110", "2048": "11111"},
        "1": {"128": "11111", "512": "11111"},
        "2": {"128": "11111", "512": "11111"},
    },
    "alone": {"0": {"128": "00000", "512": "00001"}},
    "12": {
        "0": {"128": "11111", "512": "11111", "2048": "00000"},
        "1": {"128": "11110", "512": "11111"},
    },
}


def test_the_table_of_needles_counts_needles_of_both_models():
    text = recall.recall_table(ANSWERED)
    low, high = (f"{100 * x:.0f}%" for x in wilson(1.0, 3))
    assert f"| teacher | 128 | 100% ({low} to {high}) | 100% ({low} to {high}) |  | 3 |" in text
    kept = next(x for x in text.splitlines() if x.startswith("| 12 of 90") and "| 512 |" in x)
    # The fifth digit of the first needle is right here and wrong in the teacher: it adds nothing.
    low, high = (f"{100 * x:.0f}%" for x in wilson(1.0, 2))
    assert kept.count(f"100% ({low} to {high})") == 3
    assert kept.endswith("| 2 |")
    assert "| window 64 + 4 sinks alone | 512 | 20% (" in text
    control = next(x for x in text.splitlines() if x.startswith("| window") and "| 512 |" in x)
    assert control.split("|")[5].startswith(" 0% (")
    assert not any(x.startswith("| window") and "2,048" in x for x in text.splitlines())


def test_rows_of_the_store_and_of_trained_models_have_names():
    stored = {"0": {"128": "11111", "512": "11011"}}
    text = recall.recall_table(ANSWERED | {"store": stored, "remember-12": stored})
    for label in ("window 64 + 4 sinks + a store of 128 per group", "12 of 90 groups, trained"):
        low, high = (f"{100 * x:.0f}%" for x in wilson(0.8, 1))
        assert f"| {label} | 512 | 80% ({low} to {high}) |" in text
    assert set(recall.TRAINED) <= recall.LABELS.keys() & smollm2.RUNS.keys()


def test_the_page_of_needles_follows_from_its_file():
    losses = {"teacher": 2.0, "12": 2.0 + math.log(1.5)}
    rows = {
        name: [{"from": 0, "to": 256, "segments": 6, "loss": loss}] for name, loss in losses.items()
    }
    ranking = [{"group": "18.2", "mass": 0.83}, {"group": "3.0", "mass": 0.01}]
    found = {"needle": ANSWERED, "perplexity": rows, "bytes": {"12": 35_600_000}}
    page = recall.page(found | {"ranking": ranking})
    assert "| 12 of 90 groups keep softmax | 1.50 | 35.6 MB |" in page
    assert "18.2 (0.83), 3.0 (0.01)" in page
    assert "## One needle" in page
    assert "## One of eight words" not in page
    assert "| cache at 4,096 tokens | ≤ 40 MB | 35.6 MB | met |" in page
    assert "512 tokens back | ≥ 80% | 100% (34% to 100%) | open |" in page
    assert "2,048 tokens back | ≥ 60% | 0% (0% to 79%) | open |" in page
    many = {name: {str(i): rows["0"] for i in range(40)} for name, rows in ANSWERED.items()}
    judged = recall.goals({"needle": many})
    assert "512 tokens back | ≥ 80% | 100% (91% to 100%) | met |" in judged
    assert "2,048 tokens back | ≥ 60% | 0% (0% to 9%) | missed |" in judged


def test_goals_of_trained_rows_are_judged_on_the_last_positions():
    losses = {
        "teacher": 2.0,
        "remember-12": 2.0 + math.log(1.2),
        "remember-store": 2.0 + math.log(2),
    }
    found = {
        name: [{"from": 0, "to": 256, "loss": 9.0}, {"from": 1024, "to": 4096, "loss": loss}]
        for name, loss in losses.items()
    }
    rows = recall.far_goals(found)
    assert [row[2:] for row in rows] == [
        ("1.20 times the teacher's", "met"),
        ("2.00 times the teacher's", "missed"),
    ]
    assert recall.far_goals({"remember-12": found["remember-12"]}) == []


def test_the_page_names_controls_that_were_not_run():
    stored = {"0": {"128": "11111", "512": "11011"}}
    page = recall.page({"needle": ANSWERED | {"remember-12": stored}})
    assert "Not run yet: the control without a state, trained alike, of *12 of 90 groups, " in page
    both = {"remember-12": stored, "remember-12-control": stored}
    assert "Not run yet" not in recall.page({"needle": ANSWERED | both})
    assert "Not run yet" not in recall.page({"needle": ANSWERED})


def test_the_page_sets_a_state_beside_its_absence():
    right, wrong = {"0": {"512": "11111"}}, {"0": {"512": "11000"}}
    losses = {"teacher": 2.0, "remember-12": 2.5, "remember-12-control": 2.0 + math.log(1.25)}
    found = {
        "needle": {"teacher": right, "remember-12": wrong, "remember-12-control": right},
        "perplexity": {
            name: [{"from": 0, "to": 256, "loss": loss}] for name, loss in losses.items()
        },
    }
    text = recall.state_adds(found)
    low, high = (f"{100 * x:.0f}%" for x in wilson(0.4, 1))
    best_low, best_high = (f"{100 * x:.0f}%" for x in wilson(1.0, 1))
    row = f"512 tokens back | 40% ({low} to {high}) | 100% ({best_low} to {best_high}) |"
    assert row in text
    assert f"perplexity, 0 to 256 | {math.exp(0.5):.2f} | 1.25 |" in text
    assert recall.state_adds({"needle": {"teacher": right, "remember-12": wrong}}) == ""


def test_goals_name_the_fewest_groups_that_suffice():
    def answers(digits, needles=40):
        return {str(needle): {"512": digits} for needle in range(needles)}

    right, wrong, few = answers("11111"), answers("11000"), answers("11111", needles=5)
    answered = {"teacher": right, "3": wrong, "6": few, "24": right}
    ((_, _, measured, fewest),) = recall.fewest_groups(answered)
    # Five needles do not exclude a share below the goal.
    assert (measured, fewest) == ("3: 40%, 6: 100%, 24: 100%", "24 groups; open: 6")
    assert recall.fewest_groups({"teacher": right, "3": wrong})[0][3] == "more than tested"
    assert recall.fewest_groups({"teacher": right}) == []


def test_the_page_has_the_second_family_beside_the_first():
    second = {
        "needle": {"teacher": {"0": {"128": "1"}}, "drawn-6": {"0": {"128": "0"}}},
        "ranking": [{"group": "9.1", "mass": 0.5}],
    }
    text = recall.page({"needle": ANSWERED}, second)
    own = text.partition("## A second family")[2]
    assert "| 6 groups drawn at random keep softmax | 128 | 0% (" in own
    assert "9.1 (0.50)" in own
    assert "## A second family" not in recall.page({"needle": ANSWERED})
    assert set(recall.SECOND_ROWS) == recall.SECOND_LABELS.keys()


def test_groups_drawn_at_random_are_a_control_with_several_draws():
    bench = recall.Bench.__new__(recall.Bench)
    bench.ranking = lambda: [
        {"group": f"{layer}.{group}", "mass": 1 / (1 + layer)}
        for layer in range(20)
        for group in (0, 1)
    ]
    assert bench.groups("3", 1) == ["0.0", "0.1", "1.0"]
    draws = [bench.groups("drawn-6", draw) for draw in range(recall.DRAWS)]
    assert draws == [bench.groups("drawn-6", draw) for draw in range(recall.DRAWS)]
    assert len({frozenset(draw) for draw in draws}) == recall.DRAWS
    assert all(len(set(draw)) == 6 for draw in draws)


def test_stored_answers_are_not_recomputed(tmp_path):
    bench = recall.Bench.__new__(recall.Bench)
    bench.options, bench.file = Options(results=tmp_path), recall.FILE
    assert bench.get("needle", "12", "0", compute=lambda: {"128": "1"}) == {"128": "1"}
    assert bench.get("needle", "12", "1", compute=lambda: {"128": "0"}) == {"128": "0"}
    assert bench.get("needle", "12", "0", compute=lambda: 1 / 0) == {"128": "1"}
    stored = load(recall.FILE, tmp_path)
    assert stored == {"needle": {"12": {"0": {"128": "1"}, "1": {"128": "0"}}}}


def test_rows_without_a_receipt_read_no_unseen_texts(tmp_path, monkeypatch):
    """Unseen texts are a receipt's, and ``linearize_source`` refuses them without one."""
    options = Options(only=("all", "remember-12"), runs=tmp_path, results=tmp_path)
    asked = {}

    def record(source, *, out, **given):
        asked[out.name] = given
        return SimpleNamespace(report=SimpleNamespace(to_dict=dict))

    monkeypatch.setattr(smollm2.training, "linearize_source", record)
    smollm2.run(options)
    assert asked["all"]["receipt"]
    assert asked["all"]["unseen"]
    assert not asked["remember-12"]["receipt"]
    assert "unseen" not in asked["remember-12"]
