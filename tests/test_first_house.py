"""What users of earlier modules have on disk still loads, resumes and says the same.

The files of ``tests/fixtures/first_house`` were made before modules changed place, by its
``make.py``. Only public names are imported here: where a name or a format changes on purpose, this
file says for whom it does.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fredholm.errors import RecipeError
from fredholm.families.ckconv.position_network import WeightNormLinear
from fredholm.lab.training.module import RecipeLearner
from fredholm.models import from_pretrained
from fredholm.models.migrate import migrate_name, migrate_recipe, old_keys
from fredholm.operators import Exact

from .tolerances import assert_close

HOUSE = Path(__file__).parent / "fixtures" / "first_house"
MODELS = sorted(path.parent for path in HOUSE.glob("models/*/*/config.json"))
RUNS = sorted(path.name.removesuffix("-finished") for path in HOUSE.glob("trained/*-finished"))
LINEARIZED = sorted(path.parent for path in HOUSE.glob("linearized/*/linear_attention.json"))
RECIPES = sorted(HOUSE.glob("recipes/*.yaml"))
PLATEAU = {"optimizer.name", "schedule.name", "schedule.warmup_epochs"} | {
    f"schedule.{key}" for key in ("factor", "patience")
}
MENDED = {
    "ckcnn-pmnist": PLATEAU | {"model.body.dropout", "model.body.input_dropout"},
    "ckcnn-scifar10": PLATEAU | {"model.body.dropout", "model.body.input_dropout"},
    "ckcnn-kjv": PLATEAU | {"optimizer.weight_decay", "data.batch_size"},
    "infvit-linear-cifar10": {"model.encoder.token", "operator.name", "operator.bias"},
    "infvit-pure-cifar10": {"model.encoder.token", "operator.name", "operator.bias"},
    "infvit-softmax-cifar10": {"model.encoder.token"},
    "itnet-modelnet40": {"training.label_smoothing", "model.encoder.sigma", "operator.sigma"},
    "itnet-glue-mlm": {
        *("schedule.name", "schedule.warmup_epochs", "schedule.warmup_steps"),
        *("training.epochs", "training.steps", "training.phases"),
        *("data.max_length", "model.encoder.initial"),
    },
    "itnet-glue": {"data.max_length"},
    "imagenet-s": {f"data.augment.{name}" for name in ("crop", "area", "randaugment", "erase")},
}
"""Keys of recipes that say now what their papers say, see tests/training/papers.yaml; and what
presets of that time have kept.
"""
PLANS = json.loads((HOUSE / "plans.json").read_text(encoding="utf-8"))


def example(folder: Path):
    """Inputs of one call, by name where there are several, and the output of that time."""
    tensors = load_file(folder / "example.safetensors")
    output = tensors.pop("output")
    named = {name.removeprefix("input."): value for name, value in tensors.items()}
    return named.get("input", named), output


@pytest.fixture
def here(monkeypatch, tmp_path_factory):
    """The folder that paths inside the kept recipes are relative to; data are generated anew."""
    monkeypatch.chdir(HOUSE)
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path_factory.getbasetemp() / "first-house-data"))


@pytest.fixture
def copied(here, tmp_path):
    def copy(folder: Path) -> Path:
        return Path(shutil.copytree(folder, tmp_path / folder.name))

    return copy


def name_of(folder: Path) -> str:
    return f"{folder.parent.name}/{folder.name}"


# --- models -------------------------------------------------------------------------------------


def test_there_is_something_to_load():
    families = {folder.parent.name for folder in MODELS}
    assert families == {"backbone", "ckcnn", "continuous", "infvit", "itnet", "lra"}
    assert min(len(MODELS), len(RECIPES)) > 40
    assert {"itnet", "luna", "ckcnn", "infvit-linear", "continuous", "softmax"} <= set(RUNS)
    assert len(LINEARIZED) == 3


@pytest.mark.parametrize("folder", MODELS, ids=name_of)
def test_a_saved_model_gives_its_output(folder):
    inputs, expected = example(folder)
    if isinstance(inputs, dict):
        from fredholm.encoders import Inputs

        inputs = Inputs(**inputs)
    model = from_pretrained(folder)
    assert model.extra == {"classes": ["one", "two"]}
    with torch.no_grad():
        assert_close(model(inputs), expected)


@pytest.mark.parametrize("folder", LINEARIZED, ids=lambda folder: folder.name)
def test_a_linearized_model_gives_its_output(folder):
    from fredholm.convert import load_linearized

    pytest.importorskip("transformers")
    inputs, expected = example(folder)
    model = load_linearized(folder)
    with torch.no_grad():
        found = model(**inputs).logits if isinstance(inputs, dict) else model(inputs)
    assert_close(found, expected)


# --- runs ---------------------------------------------------------------------------------------


def weights(run: Path) -> dict[str, torch.Tensor]:
    """By today's names: earlier ones had no ``body.`` in them."""
    tensors = load_file(run / "model" / "model.safetensors")
    return {migrate_name(name): tensor for name, tensor in tensors.items()}


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [float(row[key]) for row in rows for key in ("train_loss", "val_loss")]


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_loads_and_gives_its_output(here, name):
    from fredholm.training import load_run

    run = HOUSE / "trained" / f"{name}-finished"
    model, _ = load_run(run)
    inputs, expected = example(run)
    with torch.no_grad():
        assert_close(model(inputs), expected)


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_evaluates_as_it_did(copied, name):
    from fredholm.training import evaluate

    run = copied(HOUSE / "trained" / f"{name}-finished")
    expected = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
    found = evaluate(run)
    assert found.keys() >= expected.keys()  # a measure may join, none may go
    for key in ("dataset", "split", "n"):
        assert found[key] == expected[key]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    if "accuracy" in expected:  # two nearly equal classes may change places on another machine
        assert found["accuracy"] == pytest.approx(expected["accuracy"], abs=2 / expected["n"])


@pytest.mark.parametrize(
    ("name", "decay"),
    [
        *((name, "as it was") for name in RUNS),
        *((name, "today") for name in RUNS if "ckcnn" in name),
    ],
)
def test_an_interrupted_run_reaches_the_weights_of_one_that_was_not(
    copied, name, decay, monkeypatch
):
    # The first house divided an epoch's last step, where it has fewer batches, as a whole one; the
    # training loss of its tables was a mean over samples; decay fell on directions.
    monkeypatch.setattr("fredholm.lab.training.learner.Learner._short", lambda self, batch_idx: 1.0)
    monkeypatch.setattr(RecipeLearner, "weight", lambda self, labels: len(labels))
    if decay == "as it was":
        monkeypatch.setattr(WeightNormLinear, "parts", {})
    whole, run = (
        HOUSE / "trained" / f"{name}-finished",
        copied(HOUSE / "trained" / f"{name}-stopped"),
    )
    assert not (run / "result.json").exists()
    if name == "luna":  # as a user would
        from fredholm.lab.cli.main import main

        where = ["--runs", str(run.parent), "--name", run.name, "--resume"]
        assert main(["train", str(run), *where]) == 0
    else:
        from fredholm.training import load_recipe, train

        train(load_recipe(run), run, resume=True)
    found, expected = weights(run), weights(whole)
    assert found.keys() >= expected.keys()  # a measure may join, none may go
    # All weights on one scale: those whose gradient is zero move by rounding errors alone.
    left, right = (torch.cat([w[key].flatten() for key in expected]) for w in (found, expected))
    if decay == "today":  # moments found their parameters again: a few steps, a little decay
        assert_close(left, right, "weights", torch.bfloat16)
        return
    assert_close(left, right, "weights")
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)


def test_a_finished_run_is_not_trained_again(copied):
    from fredholm.training import load_recipe, train

    run = copied(HOUSE / "trained" / "itnet-finished")
    expected = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert train(load_recipe(run), run, resume=True).metrics == expected["metrics"]


def test_a_run_of_the_next_token_continues_a_text_as_it_did(here):
    from fredholm.training import generate

    run = HOUSE / "trained" / "next-token-finished"
    expected = json.loads((run / "generated.json").read_text(encoding="utf-8"))
    found = generate(run, expected["prompt"], length=len(expected["tokens"]), seed=3)
    assert found["text"] == expected["text"]
    assert found["log_probability"] == pytest.approx(expected["log_probability"], rel=1e-5)


def test_a_run_starts_from_the_weights_of_a_run(here, tmp_path):
    from fredholm.training import load_recipe, train

    run = HOUSE / "trained" / "text-finished"
    said: list[str] = []
    changes = [f"init_from={run}", "training.epochs=1", "schedule.warmup_epochs=0"]
    train(load_recipe(run, changes), tmp_path / "run", report=said.append)
    assert any("text-finished" in line for line in said), said


def predict(run: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: a run's file registers an operator."""
    words = ["predict", str(run), str(HOUSE / "own_kernel" / "seven.png"), "--json", "--trust-code"]
    return subprocess.run(
        [sys.executable, "-m", "fredholm.lab.cli.main", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        cwd=run.parent,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_run_with_a_kernel_of_its_own_predicts_as_it_did_once_its_definition_is_named(tmp_path):
    """Its kernel derives from plain ``Kernel``, whose methods say which definition it meant."""
    run = shutil.copytree(HOUSE / "own_kernel" / "run", tmp_path / "run")
    refused = predict(run)
    assert refused.returncode == 2
    assert "derive it from fredholm.kernels.WeightedKernel" in refused.stderr

    code = run / "code" / "my_kernel.py"
    text = code.read_text(encoding="utf-8")
    code.write_text(re.sub(r"\bKernel\b", "WeightedKernel", text), encoding="utf-8")
    done = predict(run)
    assert done.returncode == 0, done.stderr[-3000:]
    [found] = json.loads(done.stdout)
    [expected] = json.loads((HOUSE / "own_kernel" / "predicted.json").read_text(encoding="utf-8"))
    assert found["class"] == expected["class"]
    assert found["probabilities"] == pytest.approx(expected["probabilities"], rel=1e-5)


# --- recipes and plans --------------------------------------------------------------------------


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_accepted_with_its_keys_where_they_are_now(path):
    """A user's own recipe is told the new keys rather than read as if it had them."""
    from fredholm.lab.training.recipe_files import differences
    from fredholm.lab.training.recipe_text import parse
    from fredholm.training import load_recipe

    raw = {"name": path.stem, **parse(path.read_text(encoding="utf-8"), path.name)}
    moved = old_keys(raw["model"])
    if moved:
        with pytest.raises(RecipeError) as caught:
            load_recipe(path)
        assert all(f"model.{key}: " in str(caught.value) for key in moved)
        assert "it is now model." in str(caught.value)
    recipe = load_recipe(migrate_recipe(raw))
    changed = differences(recipe.to_dict(), load_recipe(path.stem).to_dict())
    assert {line.partition(" ")[0] for line in changed} == MENDED.get(path.stem, set())


def step_now(said: str, domain) -> str:
    """What a step's form said, as it reads now: an FFT and a scan have no step of their own, and
    name the strategy whose step they take; a convolution on a line keeps the units of its lags.
    """
    line = domain.shape is not None and len(domain.shape) == 1
    if line and domain.valid is None and domain.pairs is None:
        said = said.replace("hidden units by query block", "hidden units of each lag, kept")
    return re.sub(r"^(FFT\(backend='auto'\)|Scan\(\)) by", f"{Exact()!r} by", said)


DIRECT = (
    f"{Exact()!r} by direct convolution: the kernel depends on the displacement alone, and on few "
    "points a transform costs more than the products"
)


def plan_now(said: str) -> str:
    """What a plan said, as it reads now: few points are convolved directly."""
    return DIRECT if "FFT convolution, hidden units first" in said else said


@cache
def operator_cases():
    from .contracts.cases import cases

    return {case.label: case for case in cases()}


@pytest.mark.parametrize("label", PLANS)
def test_plan_says_what_it_said(label):
    from fredholm.errors import FredholmError

    case = operator_cases()[label]
    operator, served, refused = case.operator(), case.domains(), case.refused()
    for where, said in PLANS[label]["served"].items():
        assert str(operator.plan(served[where])) == plan_now(said["plan"]), where
        if "step" in said:
            plan = operator.init_state(2, served[where]).form.plan()
            step = f"{plan.strategy} by {plan.path}"
            assert step == step_now(said["step"]["plan"], served[where]), where
    for where, said in PLANS[label]["refused"].items():
        with pytest.raises(FredholmError) as caught:
            operator.plan(refused[where])
        assert {"error": type(caught.value).__name__, "message": str(caught.value)} == said
