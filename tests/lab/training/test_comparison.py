"""Comparisons: equal budgets, resumed grids, tables, and what a step costs."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import pytest
from evidence.choosing import speed
from evidence.choosing.speed import _as_option, crossover, measure

from fredholm.errors import DataError, OptionError
from fredholm.lab import compare as comparison
from fredholm.lab.cli.main import main
from fredholm.lab.compare import Setting, compare, grid
from fredholm.lab.compare.budgets import (
    count_flops,
    epochs_in,
    make_recipe,
    solve_size,
)
from fredholm.lab.compare.tables import best_first, score, summary, to_markdown
from fredholm.lab.compare.tasks import find_task, read_contenders
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.tasks import Regression
from fredholm.models import model_config
from fredholm.training import load_recipe

from ..data.fixtures import write_reviews

CHANGES = (
    "training.epochs=1",
    "schedule.warmup_epochs=0",
    "data.limit=128",
    "model.body.depth=1",
    "model.body.dim=16",
)
SETTING = Setting(changes=CHANGES)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Run a comparison of two operators with two seeds."""
    place = tmp_path_factory.mktemp("compare")
    return place, compare(["digits"], "softmax,gru", place, setting=SETTING, seeds=2)


def test_a_comparison_is_resumed_and_extended(done, monkeypatch):
    place, results = done
    rows = summary(results)
    assert [(row["operator"], row["n"], row["failed"]) for row in rows] == [
        ("softmax", 2, 0),
        ("gru", 2, 0),
    ]
    scores = [run["accuracy"] for run in results["tasks"][0]["rows"][0]["runs"]]
    assert rows[0]["mean"] == pytest.approx(sum(scores) / 2)
    assert scores[0] != scores[1]
    assert all(len(run["curve"]) == 1 for row in results["tasks"][0]["rows"] for run in row["runs"])
    assert json.loads((place / "compare.json").read_text()) == results
    with (place / "compare.csv").open() as file:
        assert [row["operator"] for row in csv.DictReader(file)] == ["softmax", "gru"]
    assert "| gru |" in (place / "compare.md").read_text()
    assert "<img" in (place / "index.html").read_text()

    monkeypatch.setattr(
        RecipeLearner, "training_step", lambda *_: pytest.fail("a finished run was trained again")
    )
    assert compare(["digits"], "softmax,gru", place, setting=SETTING, seeds=2) == results
    with pytest.raises(OptionError, match="choose another --out"):
        compare(["digits"], "softmax", place)


def test_concurrent_comparisons_keep_each_others_tasks(tmp_path):
    mine = tmp_path / "mine.yaml"
    begun = []
    mine.write_text("name: mine\ndata: {name: digits}\nmodel: {name: backbone_nano}\n")

    def meanwhile(line):
        if line.startswith("[1/") and not begun:
            begun.append(line)
            compare([str(mine)], "gru", tmp_path / "out", setting=SETTING)

    found = compare(["digits"], "softmax,gru", tmp_path / "out", setting=SETTING, report=meanwhile)
    assert begun
    assert {task["name"] for task in found["tasks"]} == {"digits", "mine"}
    assert all(row["runs"] for task in found["tasks"] for row in task["rows"])


def write_rows(path, sign):
    path.parent.mkdir()
    rows = [f"{sign * n},{n % 7},{'ab'[n % 2]}" for n in range(60)]
    path.write_text("\n".join(["x,y,label", *rows]))
    return str(path)


def test_tasks_of_one_name_are_refused(tmp_path):
    first = write_rows(tmp_path / "a" / "data.csv", 1)
    second = write_rows(tmp_path / "b" / "data.csv", -1)
    out = tmp_path / "out"
    changes = ("training.epochs=1", "schedule.warmup_epochs=0")
    setting = Setting(changes=(*changes, "model.body.depth=1", "model.body.dim=8"))
    with pytest.raises(OptionError, match=r"got .*a/data.csv' and .*b/data.csv', both named"):
        compare([first, second], "softmax", out, setting=setting)
    assert not out.exists()

    done = compare([first], "softmax", out, setting=setting)
    with pytest.raises(OptionError, match="expected the files with which 'data' was compared"):
        compare([second], "softmax", out, setting=setting)
    assert compare([first], "softmax", out, setting=setting) == done


def test_another_recipe_does_not_replace_a_task_of_its_name(done, tmp_path):
    _, results = done
    entry = results["tasks"][0]
    mine = tmp_path / "digits.yaml"
    mine.write_text("name: digits\ndata: {name: digits}\nmodel: {name: backbone_nano}\n")
    (tmp_path / "compare.json").write_text(json.dumps(results))
    with pytest.raises(OptionError, match="expected the recipe with which 'digits' was compared"):
        compare([str(mine)], "softmax", tmp_path, setting=SETTING)
    assert json.loads((tmp_path / "compare.json").read_text())["tasks"] == [entry]


def test_a_recipe_is_compared_without_its_initial_weights():
    with pytest.warns(UserWarning, match="compared without init_from"):
        task = find_task("itnet-paraphrase")
    assert make_recipe(task, read_contenders("softmax")[0]).init_from is None


def test_solved_sizes_depend_on_the_setting_and_the_recipe(tmp_path, monkeypatch):
    solved = []

    def solve(task, contender, *_):
        if len(solved) == 1:
            raise KeyboardInterrupt
        solved.append(contender.label)
        return {"dim": 16, "parameters": 1, "off": 0.0, "epochs": None}

    def plan(*changes, names="softmax"):
        task = find_task(str(tmp_path / "mine.yaml"))
        setting = Setting(changes=changes)
        grid.plan(task, read_contenders(names), tmp_path / "out", setting, 1, print)
        return len(solved)

    def write(lr):
        text = f"name: mine\ndata: {{name: digits}}\noptimizer: {{lr: {lr}}}\n"
        (tmp_path / "mine.yaml").write_text(text + "model: {name: backbone_nano}\n")

    write(1e-3)
    monkeypatch.setattr(grid, "_solve_or_refuse", solve)
    with pytest.raises(KeyboardInterrupt):
        plan(names="softmax,gru")
    solved.append("")
    assert plan() == 2, "what was solved is read"
    assert plan("model.body.depth=1") == 3
    assert plan("model.body.depth=1") == 3
    write(2e-3)
    assert plan("model.body.depth=1") == 4
    (tmp_path / "own.py").write_text("")
    write("2e-3}\nimport: [own.py]\nschedule: {name: cosine")
    assert plan("model.body.depth=1") == 5
    (tmp_path / "own.py").write_text("# another width\n")
    assert plan("model.body.depth=1") == 6, "the code that the recipe imports has changed"
    write(2e-3)
    assert plan("model.body.depth=1") == 7

    kept = tmp_path / "out" / "mine" / "sizes.json"
    kept.write_text(json.dumps(json.loads(kept.read_text())["sizes"]))
    assert plan() == 8, "sizes of nobody knows which setting are solved again"


def test_several_workers_give_the_results_of_one(done, tmp_path):
    _, results = done
    other = compare(["digits"], "softmax", tmp_path, setting=SETTING, seeds=1, worker=True)
    mine, theirs = results["tasks"][0]["rows"][0], other["tasks"][0]["rows"][0]
    assert mine["runs"][0]["accuracy"] == pytest.approx(theirs["runs"][0]["accuracy"], abs=0.02)
    assert mine["dim"] == theirs["dim"]


@pytest.mark.parametrize("budget", ["params", "flops"])
def test_budgets_are_met(budget):
    task = find_task("digits")
    contenders = read_contenders("itnet,ckconv,gru,softmax")
    dataset = build_dataset(make_recipe(task, contenders[0]), "train")
    for contender in contenders:
        size = solve_size(task, contender, dataset, budget)
        model = build_model(make_recipe(task, contender, (f"model.body.dim={size.dim}",)), dataset)
        assert size.parameters == sum(p.numel() for p in model.parameters())
        assert size.flops == count_flops(model, dataset.example())
        wider = build_model(
            make_recipe(task, contender, (f"model.body.dim={size.dim + 2}",)), dataset
        )
        target = solve_size(task, read_contenders("softmax")[0], dataset, budget)
        if budget == "params":
            excess = sum(p.numel() for p in wider.parameters()) / target.parameters - 1
        else:
            excess = count_flops(wider, dataset.example()) / target.flops - 1
        # No other width is closer to the budget.
        assert abs(size.off) <= max((excess - size.off) / 2, 0.01) + 1e-9, contender


def test_time_budgets_are_met_by_epochs():
    task = find_task("digits")
    contender = read_contenders("softmax")[0]
    recipe = make_recipe(task, contender)
    dataset = build_dataset(recipe, "train")
    few, many = (epochs_in(recipe, dataset, minutes, steps=2) for minutes in (1e-9, 10.0))
    assert few == 1 < many
    exact = make_recipe(task, contender, ("training.precision=64",))
    assert epochs_in(exact, dataset, 10.0, steps=2) > 1
    with pytest.raises(OptionError, match="minutes"):
        epochs_in(recipe, dataset, 0.0)


def test_unsuitable_operators_are_reported_and_failures_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(
        RecipeLearner,
        "configure_optimizers",
        lambda self: (_ for _ in ()).throw(RuntimeError("no luck")),
    )
    refused = comparison.ComparedTask(
        "clouds",
        "no grid",
        "digits",
        ("model=backbone_nano", *CHANGES[:3]),
        {"convolution": {"taps": 2}},
    )
    monkeypatch.setitem(comparison.tasks._TASKS._entries, "clouds", refused)
    results = compare(["clouds"], "convolution,softmax", tmp_path)
    rows = {row["operator"]: row for row in summary(results)}
    assert "expected an odd number" in rows["convolution"]["refused"]
    assert (rows["softmax"]["n"], rows["softmax"]["failed"]) == (0, 1)
    text = to_markdown(results)
    assert "| convolution | does not serve |" in text
    assert "| softmax | failed |" in text


def test_the_rows_of_a_table_are_timed(done, tmp_path, monkeypatch):
    place, _ = done
    (tmp_path / "compare.json").write_text((place / "compare.json").read_text())
    alone = speed._child(
        "scaling", {"operator": "gru", "lengths": [16], "repeats": 1}
    )  # in a process of its own
    assert [curve["lengths"] for curve in alone] == [[16], [16]]
    parts = {"step": speed.step, "scaling": speed.scale}
    monkeypatch.setattr(speed, "_child", lambda what, arguments: parts[what](**arguments))
    found = measure(tmp_path, lengths=(16, 64), repeats=1)
    assert {(s["task"], s["operator"]) for s in found["steps"]} == {
        ("digits", "softmax"),
        ("digits", "gru"),
    }
    assert all(s["milliseconds"] > 0 and s["points_a_second"] > 0 for s in found["steps"])
    curves = {(c["operator"], c["direction"]): c for c in found["scaling"]}
    assert len(curves) == 4
    assert curves["gru", "step"]["lengths"] == [16, 64]
    assert curves["softmax", "forward"]["crossover"] is None
    with pytest.raises(OptionError, match="expected two lengths"):
        measure(tmp_path, lengths=(16,))
    with pytest.raises(DataError, match="run fredholm compare first"):
        measure(tmp_path / "nowhere")


def test_crossovers_are_found_between_lengths():
    quadratic = {"lengths": [10, 100, 1000], "milliseconds": [0.1, 10.0, 1000.0]}
    linear = {"lengths": [10, 100, 1000], "milliseconds": [1.0, 10.0, 100.0]}
    assert crossover(linear, quadratic) == pytest.approx(100)
    assert crossover(quadratic, linear) is None
    assert crossover({"lengths": [10], "milliseconds": [0.05]}, quadratic) == 0
    assert crossover({"lengths": [], "milliseconds": []}, quadratic) is None


def test_rows_are_ordered_by_their_score():
    one = {"metric": "loss", "direction": "min", "sd": None, "n": 1}
    rows = [{**one, "mean": mean} for mean in (0.3, None, 0.1)]
    assert [row["mean"] for row in best_first(rows)] == [0.1, 0.3, None]
    assert score(rows[0]) == "0.3"
    assert score({**rows[1], "refused": "no"}) == "does not serve"


def test_a_task_is_compared_by_its_metric(tmp_path, monkeypatch):
    def metrics(_, sums):
        return {"val_loss": sums[0] / sums[2], "val_near": 1 / (1 + sums[0] / sums[2])}

    plain = Regression.summary_of_pairs

    def summary_of_pairs(*given):
        found = plain(*given)
        return found | {"near": 1 / (1 + found["loss"])}

    monkeypatch.setattr(Regression, "metric", ("val_near", "max"))
    monkeypatch.setattr(Regression, "measure", "nearness")
    monkeypatch.setattr(Regression, "metrics", metrics)
    lines = []
    setting = Setting(changes=(*CHANGES, "data.options.length=8"))
    arguments = ["adding"], "softmax,gru", tmp_path

    found = compare(*arguments, setting=setting, report=lines.append)
    error = found["tasks"][0]["rows"][0]["runs"][0]["error"]
    assert error.startswith("evaluation: expected the task's metric 'near', got ")
    assert "loss, pearson" in error
    assert (
        sum("failed: evaluation: expected the task's metric 'near'" in line for line in lines) == 2
    )

    monkeypatch.setattr(Regression, "summary_of_pairs", summary_of_pairs)
    found = compare(["adding"], "softmax,gru", tmp_path / "whole", setting=setting)
    rows = best_first(summary(found))
    run = found["tasks"][0]["rows"][0]["runs"][0]
    assert run["near"] == pytest.approx(1 / (1 + run["loss"]))
    assert rows[0]["mean"] > rows[1]["mean"]
    assert {(row["metric"], row["direction"]) for row in rows} == {("near", "max")}
    text = to_markdown(found)
    assert "test nearness" in text
    assert text.index(f"| {rows[0]['operator']} |") < text.index(f"| {rows[1]['operator']} |")
    assert "validation near" in (tmp_path / "whole" / "index.html").read_text()


def test_labels_name_their_options():
    for contender in read_contenders("softmax,{name: luna, channels: 4, hidden: 8}"):
        assert read_contenders(_as_option(contender.label)) == [contender]


@pytest.mark.parametrize("name", comparison.list_tasks())
def test_tasks_are_valid_recipes(name):
    recipe = make_recipe(find_task(name), read_contenders("itnet")[0])
    assert recipe.operator.options["width"] == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--task", "digit"], "did you mean 'digits'"),
        (["--operators", "softmax,gruu"], "did you mean 'gru'"),
        (["--task", "digits,digits"], "both named 'digits'; rename one, or leave it out"),
        (["--operators", "gru,gru"], "expected each of them once"),
        (["--budget", "money"], "budget: expected one of params, flops, time, got 'money'"),
        (["--budget", "time"], "minutes: expected a number with budget 'time', got None"),
        (["digits", "--budget", "time"], "--budget: expected a table of tasks, got 'digits'"),
        (["digits", "--worker"], "--worker: expected a table of tasks, got 'digits'"),
        (["./here", "--task", "regression"], "use --predict regression"),
        (["--task", "regression"], "fredholm compare ./mydata --predict regression"),
        (["--predict", "steps"], "--predict: expected files with it, got 'steps'"),
        (["--label", "gait"], "--label: expected files with it, got 'gait'"),
        (["--minutes", "3"], "minutes: expected none with budget 'params', got 3"),
        (["--seeds", "0"], "seeds: expected 1 or more, got 0"),
    ],
)
def test_wrong_calls_give_one_line(arguments, message, capsys, tmp_path):
    assert main(["compare", *arguments, "--out", str(tmp_path / "out")]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_the_command_prints_its_tables(done, capsys):
    place, _ = done
    changes = [part for change in CHANGES for part in ("--set", change)]
    assert (
        main(
            ["compare", "--operators", "softmax,gru", "--seeds", "2", "--out", str(place), *changes]
        )
        == 0
    )
    assert "| softmax |" in capsys.readouterr().out
    assert main(["compare", "--list"]) == 0
    assert "japanese-vowels" in capsys.readouterr().out


def test_the_backbone_has_the_encoder_of_the_recipe(tmp_path):
    file = tmp_path / "mine.yaml"

    def encoder(text: str) -> dict:
        file.write_text(text)
        return make_recipe(find_task(str(file)), read_contenders("gru")[0]).model.encoder

    given = {"kind": "scales", "scales": [4, 14]}
    mine = f"data: {{name: mnist}}\nmodel: {{name: itnet_nano, encoder: {json.dumps(given)}}}\n"
    assert encoder(mine) == given
    given = "{spacing: 2.0, mask: point}"
    mine = f"data: {{name: adding}}\nmodel: {{name: ckcnn_small, encoder: {given}}}\n"
    with pytest.warns(UserWarning, match="compared without the encoder's mask, for .* 'sequence'"):
        assert encoder(mine) == {"spacing": 2.0}


def test_any_recipe_is_compared_with_baselines_in_the_backbone(tmp_path):
    write_reviews(tmp_path)
    task = find_task("reviews")
    task = replace(task, overrides=(*task.overrides, f"data.path={tmp_path}"))
    recipe = make_recipe(task, read_contenders("gru")[0])
    given = load_recipe("reviews")
    assert (given.model.name, recipe.model.name) == ("itnet_nano", "backbone_nano")
    preset = model_config("itnet_nano").body
    assert recipe.model.body["dim"] == given.model.body.get("dim", preset.dim)
    assert build_model(recipe, build_dataset(recipe, "val")).config.body.operator == "gru"
