"""GLUE scores each task by its own measures and averages the runs of a folder."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from evidence.__main__ import main as evidence_main
from evidence.datasets.glue import TASKS
from evidence.glue import evaluate_glue

from evidence import glue
from fredholm.errors import DataError, TrustError
from fredholm.lab.cli.main import main
from fredholm.lab.training.metrics import pearson
from fredholm.training import evaluate, load_recipe, train
from tests.lab.data.test_language import write_glue

SMALL = [
    *("data.batch_size=8", "schedule.warmup_epochs=0", "training.epochs=1", "init_from=null"),
    *(
        "model.name=itnet_nano",
        "model.body.depth=1",
        "model.body.dim=8",
        "model.body.heads=2",
        "model.head.pool=mean",
    ),
    *(
        "model.encoder.frequencies=4",
        "operator.width=4",
        "operator.frequencies=4",
        "data.min_count=1",
    ),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train CoLA, MRPC with two seeds, STS-B, QQP with one truncated row, and other runs."""
    folder = tmp_path_factory.mktemp("glue")
    files = write_glue(folder / "files", repeat=60)
    with (files / "QQP" / "dev.tsv").open("a") as file:
        file.write("7\t3\t4\tWho?\tWhen?\t0\n" * 120 + "9\t3\t4\tHow")
    runs = {"cola": 0, "mrpc": 0, "mrpc-again": 1, "stsb": 0, "qqp": 0}
    for name, seed in runs.items():
        given = [f"data.path={files}", f"data.options.task={name.partition('-')[0]}"]
        recipe = load_recipe("itnet-glue", [*SMALL, *given, f"seed={seed}"])
        train(recipe, folder / "runs" / name)
    shutil.copytree(folder / "runs/cola", folder / "runs/unfinished")
    shutil.rmtree(folder / "runs/unfinished/model")
    return folder


def test_each_task_is_judged_by_its_own_measures(home, capsys):
    found = evaluate(home / "runs/mrpc")
    assert list(found["scores"]) == ["f1", "accuracy"]
    assert found["scores"]["f1"] == found["f1"]
    assert main(["evaluate", str(home / "runs/mrpc")]) == 0
    assert f"F1 {found['f1']:.4f}, accuracy {found['accuracy']:.4f}" in capsys.readouterr().out
    assert main(["evaluate", str(home / "runs/cola")]) == 0
    shown = capsys.readouterr().out
    assert "test: Matthews' correlation " in shown
    assert "accuracy 0" not in shown.splitlines()[0]
    assert main(["evaluate", str(home / "runs/stsb")]) == 0
    shown = capsys.readouterr().out
    assert "test: Spearman's correlation " in shown
    assert ", Pearson's correlation " in shown


def test_skipped_rows_are_reported(home, capsys):
    assert main(["evaluate", str(home / "runs/qqp")]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.endswith("QQP/dev.tsv: 1 of 123 rows break off and are skipped, first line 124")
    assert "n 122" in second
    lines = []
    files = home / "files/QQP/train.tsv"
    kept = files.read_text()
    files.write_text(kept + "9\t3\t4\tHow")
    given = [f"data.path={home / 'files'}", "data.options.task=qqp"]
    train(load_recipe("itnet-glue", [*SMALL, *given]), home / "again", report=lines.append)
    files.write_text(kept)
    assert sum("1 of 121 rows break off and are skipped" in line for line in lines) == 1


def test_the_glue_score_is_the_mean_of_all_tasks(home, capsys):
    found = evaluate_glue(home / "runs")
    one, two = (evaluate(home / "runs" / name)["f1"] for name in ("mrpc", "mrpc-again"))
    assert found["tasks"]["mrpc"]["scores"]["f1"] == pytest.approx((one + two) / 2)
    assert list(found["tasks"]) == ["cola", "mrpc", "stsb", "qqp"], "in the order of TASKS"
    assert found["missing"] == ["sst2", "mnli", "qnli", "rte"]
    chief = [row["scores"][TASKS[name].measures[0]] for name, row in found["tasks"].items()]
    assert found["mean"] == pytest.approx(sum(chief) / 4, nan_ok=True)
    assert evidence_main(["run", "glue", "--runs", str(home / "runs")]) == 0
    shown = capsys.readouterr().out
    assert "mrpc  F1 " in shown
    assert "(mean of 2 runs)" in shown
    assert "1 of 123 rows break off" in shown
    assert shown.splitlines()[-1].startswith("mean of 4 tasks ")
    assert shown.splitlines()[-1].endswith("; no run of sst2, mnli, qnli, rte")
    assert json.loads((home / "runs/glue.json").read_text())["tasks"]["qqp"]["n"] == 122


def test_a_mean_with_an_undefined_correlation_is_none(monkeypatch, home):
    def measured(run, *rest, **more):
        measures = TASKS[run.name.partition("-")[0]].measures
        return {"scores": dict.fromkeys(measures, None if run.name == "stsb" else 0.5), "n": 3}

    monkeypatch.setattr(glue, "evaluate", measured)
    found = evaluate_glue(home / "runs")
    assert found["mean"] is found["tasks"]["stsb"]["scores"]["spearman"] is None
    assert found["tasks"]["mrpc"]["scores"]["f1"] == 0.5
    shown = "\n".join(glue.score_lines(found))
    assert "stsb  Spearman's correlation undefined, Pearson's correlation undefined, n 3" in shown
    assert "mean of 4 tasks undefined; no run of" in shown


def test_a_folder_without_such_runs_is_refused(home, tmp_path, capsys):
    with pytest.raises(DataError, match="expected finished runs on tasks of GLUE, got none"):
        evaluate_glue(tmp_path)
    assert evidence_main(["run", "glue", "--runs", str(tmp_path)]) == 2
    assert "expected finished runs on tasks of GLUE, got none" in capsys.readouterr().err


def test_code_of_a_run_needs_its_import(home, tmp_path, capsys):
    run = tmp_path / "runs/mrpc"
    shutil.copytree(home / "runs/mrpc", run)
    own = run / "code/own.py"
    own.parent.mkdir(exist_ok=True)
    own.write_text(f"OWN = {str(tmp_path)!r}\n")
    recipe = run / "recipe.yaml"
    text = recipe.read_text()
    assert "import: []" in text
    recipe.write_text(text.replace("import: []", "import: [code/own.py]"))

    command = ["run", "glue", "--runs", str(run.parent)]
    assert evidence_main(command) == TrustError.exit_code
    assert "takes --import FILE instead" in capsys.readouterr().err
    assert not (run.parent / "glue.json").exists()
    assert evidence_main([*command, "--import", str(own)]) == 0
    assert (run.parent / "glue.json").is_file()


def test_pearson_s_correlation_of_a_column_and_a_row():
    outputs, labels = torch.randn(9, 1), torch.randn(9)
    centred = [x.flatten().double() - x.double().mean() for x in (outputs, labels)]
    expected = centred[0] @ centred[1] / (centred[0].norm() * centred[1].norm())
    assert pearson(outputs, labels) == pytest.approx(float(expected))
