"""A metric by name selects weights, ends runs, and is shown in tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn

from fredholm.errors import CheckpointError, OptionError, RecipeError
from fredholm.lab.cli.main import main
from fredholm.lab.compare import choose
from fredholm.lab.compare.splits import Splits
from fredholm.lab.compare.trial import measure_of
from fredholm.lab.compare.verdict import is_sure, paired_difference
from fredholm.lab.data.kinds.dataset import IGNORED
from fredholm.lab.distill.linearize import judged_task
from fredholm.lab.report.results.scores import score_head
from fredholm.lab.training.checkpoints import (
    list_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from fredholm.lab.training.evaluation import load_run, run_dataset
from fredholm.lab.training.grid import recipe_cell
from fredholm.lab.training.metrics import METRICS, direction, register_metric
from fredholm.lab.training.sweeps import sweep
from fredholm.lab.training.tasks import Regression, Tally, create_task
from fredholm.training import (
    evaluate,
    evaluate_files,
    hub_folder,
    linearize_source,
    load_recipe,
    train,
)

SMALL = ["model.body.dim=8", "model.body.depth=1", "model.body.heads=2", "operator=softmax"]
FAST = [*SMALL, "optimizer.lr=1e-2", "training.epochs=6", "schedule.warmup_epochs=0"]
FAST += ["training.keep=best"]  # which few validation samples are not asked for by themselves
# A user's own score, as a recipe's import has it.
OWN = """
from fredholm.lab.training.metrics import register_metric

@register_metric("recall_of_ill")
def recall_of_ill(outputs, labels):
    return float((outputs.argmax(-1) == labels)[labels == 0].double().mean())
"""


def table(path: Path, count: int = 400) -> Path:
    """Write rows of which one in eight is ill, which two columns partly predict."""
    draw = np.random.default_rng(0)
    ill = np.arange(count) % 8 == 0
    x, z = draw.normal(size=(2, count)) + 1.2 * ill
    lines = [f"{a:.4f},{b:.4f},{'ill' if c else 'well'}" for a, b, c in zip(x, z, ill)]
    path.write_text("\n".join(["x,z,state", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def by_area(tmp_path_factory) -> Path:
    """Train a run on such a table by the area under the ROC curve."""
    folder = tmp_path_factory.mktemp("metric")
    source = table(folder / "state.csv")
    train(load_recipe(str(source), [*FAST, "training.metric=auc"]), folder / "run")
    return folder / "run"


def history(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_weights_with_the_best_score_are_saved(by_area):
    scores = [float(row["val_auc"]) for row in history(by_area)]
    assert len(set(scores)) > 1
    result = json.loads((by_area / "result.json").read_text())
    assert result["best_epoch"] == 1 + int(np.argmax(scores))
    assert result["metrics"]["val_auc"] == max(scores)
    model, place = load_run(by_area)
    val = run_dataset(model, place, "val")
    inputs, labels = val.batch(range(len(val)))
    with torch.inference_mode():
        outputs = model(inputs)
    area = sklearn.roc_auc_score(labels, outputs.softmax(-1)[:, 1])
    assert max(scores) == pytest.approx(area, abs=1e-9)


def test_an_evaluation_prints_the_metric_first(by_area, capsys):
    result = evaluate(by_area)
    assert list(result["scores"]) == ["auc", "balanced_accuracy", "accuracy"]
    assert main(["evaluate", str(by_area)]) == 0
    assert f"AUC {result['auc']:.4f}, balanced accuracy" in capsys.readouterr().out


def test_an_evaluation_on_files_has_the_metric(by_area, tmp_path, capsys):
    files = [table(tmp_path / "more.csv"), table(tmp_path / "other.csv", 80)]
    found = evaluate_files(by_area, files)
    assert list(found["scores"]) == ["auc", "accuracy"]
    assert found["scores"]["auc"] == found["auc"]
    assert main(["evaluate", str(by_area), *map(str, files)]) == 0
    assert f"AUC {found['auc']:.4f}, accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("metric", ["rmse", "absolute_error"])
def test_a_validation_has_the_units_of_the_files(tmp_path, metric):
    lines = [f"{i % 7},{1000 + 50.5 * (i % 7)}" for i in range(60)]
    source = tmp_path / "price.csv"
    source.write_text("\n".join(["size,price", *lines]) + "\n")
    run = tmp_path / "run"
    changes = [*FAST, "training.epochs=2", f"training.metric={metric}"]
    result = train(load_recipe(str(source), changes), run)

    found = evaluate(run, "val")
    assert result.metrics[f"val_{metric}"] == pytest.approx(found[metric], rel=1e-5)
    # The loss is the one that is trained, of standardised numbers.
    model, _ = load_run(run)
    _, scale = model.extra["units"]
    assert scale > 10
    assert result.metrics["val_loss"] * scale**2 == pytest.approx(found["loss"], rel=1e-5)

    # The card of the run gives both losses, and says how they compare.
    evaluate(run)
    card = (hub_folder(run, tmp_path / "hub") / "README.md").read_text()
    assert "| val_loss |" in card
    assert "| test_loss |" in card
    assert "are of standardised numbers" in card

    # So does a conversion that is judged by the metric.
    once = {"distil": {"epochs": 0}, "tune": {"epochs": 0}, "say": lambda line: None}
    report = linearize_source(run, "elu", out=tmp_path / "out", metric=metric, **once).report
    assert report.scores["teacher"] == pytest.approx(found[metric], rel=1e-5)


def test_scores_of_other_units_are_not_continued(tmp_path):
    lines = [f"{i % 7},{1000 + 50.5 * (i % 7)}" for i in range(60)]
    source = tmp_path / "price.csv"
    source.write_text("\n".join(["size,price", *lines]) + "\n")

    def resumed_from_an_earlier_version(metric: str):
        """Take the units from the checkpoints of a run, and resume it."""
        recipe = load_recipe(str(source), [*FAST, "training.epochs=2", f"training.metric={metric}"])
        run = tmp_path / metric
        train(recipe, run)
        (run / "result.json").unlink()
        for path in list_checkpoints(run / "checkpoints"):
            state = read_checkpoint(path)
            del state["callbacks"]["KeepModel"]["units"]
            write_checkpoint(state, path)
        return train(recipe, run, resume=True)

    with pytest.raises(CheckpointError, match="expected scores in the units of the files, got"):
        resumed_from_an_earlier_version("absolute_error")
    # A correlation and a loss are the same as before.
    for metric in ("r2", "loss"):
        assert resumed_from_an_earlier_version(metric).epochs == 2


def test_a_run_stops_when_the_metric_stops_improving(by_area, tmp_path):
    """With a learning rate of zero no score exceeds the first."""
    source = by_area.parent / "state.csv"
    still = [*FAST, "optimizer.lr=1e-12", "training.metric=f1", "training.early_stop={patience: 2}"]
    result = train(load_recipe(str(source), still), tmp_path / "still")
    assert (result.epochs, result.best_epoch, result.stopped) == (3, 1, "no more improvement")
    chosen = [*still, "optimizer.lr=1e-6", "schedule={name: plateau, metric: val_f1, patience: 0}"]
    train(load_recipe(str(source), [*chosen, "training.early_stop=null"]), tmp_path / "plateau")
    rates = [float(row["lr"]) for row in history(tmp_path / "plateau")]
    assert rates[-1] == pytest.approx(1e-8)  # ten times less an epoch, as far as torch takes it


def test_a_user_defined_score_selects_the_weights(by_area, tmp_path):
    (tmp_path / "own_score.py").write_text(OWN)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"name: own\nimport: own_score.py\ndata: {{path: {by_area.parent / 'state.csv'}}}\n"
        "model: backbone_nano\n"
    )
    chosen = [*FAST, "training.epochs=2", "training.metric=recall_of_ill"]
    train(load_recipe(recipe, chosen), tmp_path / "run")
    scores = [float(row["val_recall_of_ill"]) for row in history(tmp_path / "run")]
    best = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert best["val_recall_of_ill"] == max(scores)
    result = evaluate(tmp_path / "run")
    assert result["recall_of_ill"] == result["per_class"]["ill"]
    found = evaluate_files(tmp_path / "run", [by_area.parent / "state.csv"])
    assert found["scores"]["recall_of_ill"] == found["per_class"]["ill"]


def test_the_table_of_a_sweep_shows_the_metric(by_area, tmp_path):
    source = str(by_area.parent / "state.csv")
    chosen = [*FAST, "training.epochs=1", "training.metric=auc", "optimizer.lr=1e-3,1e-2"]
    cells, rows = sweep(source, chosen, tmp_path)
    assert [row["metric"] for row in rows] == ["auc", "auc"]
    assert [row["mean"] for row in rows] == [cell["auc"] for cell in cells]
    assert "| cell | test AUC | n |" in (tmp_path / "table.md").read_text()


def test_an_undefined_score_of_the_test_split_fails_its_cell(tmp_path):
    """Of two classes the test split has only one."""
    for split, letters in (("train", "ab"), ("val", "ab"), ("test", "a")):
        lines = [f"{i % 5},{letters[i % len(letters)]}" for i in range(40)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    chosen = [*FAST, "training.epochs=1", "training.metric=auc"]
    cells, _ = sweep(str(tmp_path), chosen, tmp_path.parent / "undefined")
    assert cells[0]["error"] == "training.metric: auc is not defined on the test split"


def test_a_comparison_is_ordered_by_the_metric(by_area, tmp_path):
    found = choose(
        by_area.parent / "state.csv",
        0.3,
        operators="softmax",
        seeds=1,
        changes=["training.metric=auc", "model.body.dim=8", "training.epochs=4"],
        out=tmp_path / "compared",
    )
    assert (found["measure"], found["higher"], found["percent"]) == ("AUC", True, False)
    assert all(0 <= line["val"] <= 1 for line in found["verdict"]["table"])
    assert "training.metric=auc" in found["verdict"]["train"]


@pytest.mark.parametrize("metric", ["auc", "loss"])
def test_trials_are_scored_by_the_metric_of_the_run(by_area, metric):
    """Few samples are cross-validated, which no recipe builds."""
    recipe = load_recipe(str(by_area.parent / "state.csv"), [f"training.metric={metric}"])
    splits = Splits(recipe)
    assert splits.folds > 1
    sets = [
        splits.train,
        splits.test,
        *splits.fold(1),
        splits.tested(1),
        splits.samples_to_fit().dataset,
    ]
    assert {measure_of(one) for one in sets} == {(metric, metric == "auc")}


def test_methods_are_ordered_by_the_direction_of_the_score(tmp_path):
    """R² grows as squared errors fall."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=120)
    lines = [f"{a:.4f},{10 * a + 0.1 * b:.4f}" for a, b in zip(x, draw.normal(size=120))]
    (tmp_path / "line.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    found = choose(
        tmp_path / "line.csv",
        0.3,
        operators="softmax",
        seeds=2,
        changes=["training.metric=r2", "model.body.dim=8", "training.epochs=1"],
        out=tmp_path / "compared",
    )
    table = found["verdict"]["table"]
    assert found["verdict"]["pick"] == table[0]["operator"] != "softmax"
    assert table[0]["val"] > table[1]["val"]
    rows = [
        {"operator": name, "seed": s, "test": {"score": score, "each": [error + s / 100] * 4}}
        for name, score, error in (("good", 0.9, 0.1), ("bad", 0.1, 0.9))
        for s in (0, 1)
    ]
    difference = paired_difference(rows, "good", "bad", higher=True, each=False)
    assert is_sure(difference | {"over_seeds": [0.8, 0.7, 0.9]})


def test_an_explanation_names_the_metric():
    head = score_head(
        {"n": 9, "accuracy": 0.5, "loss": 1.0, "bits": 1.2, "scores": {"bits": 1.2}}, ""
    )
    assert ("Bits", "1.2", "on 9 ") in head
    assert "Loss" in [name for name, *_ in head]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["training.metric=acu"], "training.metric: expected a metric, got 'acu'; did you mean"),
        (
            ["schedule={name: plateau, metric: val_auc}"],
            "schedule.metric: expected a metric, got 'val_auc'",
        ),
        (
            ["training.early_stop.metric=val_f1"],
            "training.early_stop.metric: expected a metric, got 'val_f1'",
        ),
        (
            ["training.metric=bits", "training.early_stop={metric: val_bits, mode: max}"],
            "training.early_stop.mode: expected 'min' for val_bits, got 'max'",
        ),
    ],
)
def test_wrong_metrics_are_refused(overrides, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", overrides)
    assert message in str(caught.value)


def test_a_score_of_another_task_is_refused_before_the_run(tmp_path):
    lines = [f"{i},{i * 2.5}" for i in range(40)]
    (tmp_path / "numbers.csv").write_text("\n".join(["x,y", *lines]) + "\n")
    recipe = load_recipe(str(tmp_path / "numbers.csv"), [*FAST, "training.metric=auc"])
    with pytest.raises(
        RecipeError, match=r"training.metric: expected one of .* for regression, got 'auc'"
    ):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_user_defined_score_to_minimise_may_stop_a_run(tmp_path):
    (tmp_path / "own_score.py").write_text(OWN.replace('"recall_of_ill"', '"misses", mode="min"'))
    (tmp_path / "recipe.yaml").write_text(
        "name: own\nimport: own_score.py\ndata: digits\nmodel: backbone_nano\n"
        "training: {metric: misses, early_stop: {metric: val_misses, mode: min}}\n".replace(
            "data: digits", "data: {name: digits}"
        )
    )
    assert load_recipe(tmp_path / "recipe.yaml").training.metric == "misses"
    with pytest.raises(
        RecipeError, match=r"early_stop.mode: expected 'min' for val_misses, got 'max'"
    ):
        load_recipe(tmp_path / "recipe.yaml", ["training.early_stop.mode=max"])


@pytest.mark.parametrize("name", ["loss", "error", "per_class", "Two words"])
def test_reserved_names_of_scores_are_refused(name):
    with pytest.raises(OptionError, match=r"metric name: expected .*, got"):
        register_metric(name)


def test_a_task_defines_the_direction_of_its_metric():
    class Grade(Regression):
        name = "grade-of-a-test"
        metric = ("val_grade", "min")

        def metrics(self, sums):
            return super().metrics(sums) | {"val_grade": sums[0]}

    assert Grade().judge_by("grade").metric == ("val_grade", "min")


def test_a_score_is_not_derived_from_another_loss():
    class Absolute(Regression):
        name = "absolute-of-a-test"

        def sums(self, outputs, labels):
            outputs, labels = self.pairs(outputs, labels)
            return (outputs - labels).abs().sum(), torch.zeros(()), len(labels)

    tally = Tally(Absolute().judge_by("rmse"))
    tally.add(torch.tensor([[0.0], [0.0]]), torch.tensor([0.0, 10.0]))
    assert tally.metrics()["val_rmse"] == pytest.approx(50**0.5)


def test_scores_are_nan_where_the_loss_is_nan():
    tally = Tally(create_task().judge_by("auc"))
    tally.add(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1]))
    assert np.isnan(tally.metrics()["val_auc"])


def test_an_undefined_validation_score_is_null_in_json(tmp_path):
    for split, letters in (("train", "ab"), ("val", "a"), ("test", "ab")):
        lines = [f"{i % 5},{letters[i % len(letters)]}" for i in range(40)]
        (tmp_path / f"{split}.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    recipe = load_recipe(str(tmp_path), [*FAST, "training.epochs=1", "training.metric=auc"])
    run = tmp_path.parent / "null"
    result = train(recipe, run)
    assert json.loads((run / "result.json").read_text())["metrics"]["val_auc"] is None
    assert np.isnan(train(recipe, run, resume=True).metrics["val_auc"])
    assert (result.metric, evaluate(run)["auc"] is not None) == ("val_auc", True)


@pytest.mark.parametrize(("task", "usual"), [("field", "loss"), ("regression", "spearman")])
def test_a_conversion_has_a_default_score(task, usual):
    assert judged_task(task, None).chosen == usual


def test_logits_of_all_tokens_are_never_stored():
    task = create_task("tokens")
    with pytest.raises(
        OptionError, match="expected one of accuracy, bits, loss, perplexity for tokens"
    ):
        task.judge_by("f1")
    tally = Tally(task.judge_by("bits"))
    tally.add(torch.zeros(1, 3, 4), torch.tensor([[2, 3, IGNORED]]))
    assert tally.stored == []
    assert tally.metrics()["val_bits"] == pytest.approx(2.0)


def test_a_metric_by_default_does_not_change_cells_of_a_table(tmp_path):
    """Tables of recipes without a metric are reused."""
    settings = recipe_cell(load_recipe("digits"), tmp_path).settings
    assert "metric" not in settings["recipe"]["training"]
    named = recipe_cell(load_recipe("digits", ["training.metric=auc"]), tmp_path).settings
    assert named["recipe"]["training"]["metric"] == "auc"


# --- scores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", METRICS)
def test_scores_over_batches_equal_those_of_the_split(name):
    """Scores over batches, from sums or from all outputs, equal the function of the split."""
    torch.manual_seed(0)
    if METRICS[name].of == "classes":
        task = "classification"
        outputs = torch.randn(50, 3)
        labels = torch.randint(3, (50,))
    else:
        task = "regression"
        outputs = torch.randn(50, 1)
        labels = torch.randn(50)
    tally = Tally(create_task(task).judge_by(name))
    for part in torch.arange(50).split(7):
        tally.add(outputs[part], labels[part])
    expected = METRICS[name](outputs.squeeze(-1) if task == "regression" else outputs, labels)
    assert tally.metrics()[f"val_{name}"] == pytest.approx(expected, rel=1e-5)


def test_scores_equal_scikit_learns():
    torch.manual_seed(0)
    logits, labels = torch.randn(60, 4), torch.randint(3, (60,))  # one class never there
    balanced = sklearn.recall_score(
        labels, logits.argmax(-1), labels=[0, 1, 2], average="macro", zero_division=0
    )
    assert METRICS["balanced_accuracy"](logits, labels) == pytest.approx(balanced)
    numbers, truth = torch.randn(60), torch.randn(60)
    assert METRICS["r2"](numbers, truth) == pytest.approx(sklearn.r2_score(truth, numbers))
    error = sklearn.mean_absolute_error(truth, numbers)
    assert METRICS["absolute_error"](numbers, truth) == pytest.approx(error)
    error = sklearn.root_mean_squared_error(truth, numbers)
    assert METRICS["rmse"](numbers, truth) == pytest.approx(error)
    smaller = {name for name in METRICS if direction(name) == "min"}
    assert {"bits", "perplexity", "rmse", "absolute_error"} <= smaller
    assert not {"auc", "f1", "r2", "accuracy"} & smaller
