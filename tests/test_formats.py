"""Files written by earlier versions still load, resume and give the same results.

The files of `tests/fixtures/formats` were written by the commit that `made_with.json` names, with
its `make.py`. Only public names are imported here, so that modules may move. A format that changes
on purpose needs a reader of the files below, or a refusal by name in place of the test.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from .tolerances import assert_close

FORMATS = Path(__file__).parent / "fixtures" / "formats"
MODELS = sorted(path.parent.name for path in FORMATS.glob("models/*/config.json"))
CAUSAL = [name for name in MODELS if name.endswith("-causal")]
OPERATORS = sorted(path.name for path in FORMATS.glob("operators/*"))
RUNS = ["images", "series", "texts"]
CONVERSIONS = ["decoder", "encoder"]
FAMILIES = {
    *("itnet", "itnet_low_rank", "luna", "ckconv", "infsa", "linear_infsa", "softmax"),
    "linear_attention",
}


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def example(folder: Path) -> tuple[Any, torch.Tensor]:
    """Return the inputs of one call, by name where there are several, and its output."""
    tensors = load_file(folder / "example.safetensors")
    output = tensors.pop("output")
    named = {name.removeprefix("input."): value for name, value in tensors.items()}
    return named.get("input", named), output


def make_module() -> ModuleType:
    """Return the script that wrote the files, which has the arguments of its conversions."""
    path = FORMATS / "make.py"
    spec = importlib.util.spec_from_file_location("formats_make", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


make = make_module()


@pytest.fixture
def house(tmp_path, monkeypatch) -> Path:
    """Return a copy of the files in place of the folder that they were written in."""
    folder = Path(shutil.copytree(FORMATS, tmp_path / "formats"))
    for pattern in ("recipe.yaml", "source.json"):
        for path in folder.rglob(pattern):
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(str(make.HERE), str(folder)), encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path / "data"))
    return folder


def test_every_family_has_files():
    assert set(OPERATORS) == FAMILIES
    assert {name.removesuffix("-causal") for name in CAUSAL} == FAMILIES
    assert {"continuous-image", "continuous-text"} <= set(MODELS)
    note = read_json(FORMATS / "made_with.json")
    assert re.fullmatch(r"[0-9a-f]{40}", note["commit"])
    size = sum(path.stat().st_size for path in FORMATS.rglob("*") if path.is_file())
    assert size < 2.5e6


# --- models and causal states -------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_a_saved_model_gives_its_recorded_output(name):
    from fredholm.models import from_pretrained

    folder = FORMATS / "models" / name
    inputs, expected = example(folder)
    model = from_pretrained(folder)
    assert model.extra == {"classes": ["one", "two"]}
    assert_close(make.answer(model, inputs), expected)


@pytest.mark.parametrize("name", CAUSAL)
def test_a_saved_state_of_a_model_continues_the_text(name):
    from fredholm.models import from_pretrained

    folder = FORMATS / "models" / name
    tokens, expected = example(folder)
    model = from_pretrained(folder)
    state = model.load_state(folder / "state.pt")
    assert state.seen == make.SEEN
    with torch.no_grad():
        logits, _ = model.prefill(tokens[:, state.seen :], state)
        step, _ = model.step(tokens[:, state.seen], state)
    assert_close(logits, expected[:, make.SEEN :])
    assert_close(step, expected[:, make.SEEN])


@pytest.mark.parametrize("name", OPERATORS)
def test_a_saved_state_of_an_operator_gives_its_recorded_outputs(name):
    from fredholm import create_operator

    folder = FORMATS / "operators" / name
    u, expected = example(folder)
    operator = create_operator(name, **read_json(folder / "options.json")).double().eval()
    operator.load_state_dict(load_file(folder / "operator.safetensors"))
    state = operator.load_state(folder / "state.pt")
    with torch.no_grad():
        for i in range(make.SEEN, make.LENGTH):
            output, state = operator.step(u[:, i], state)
            assert_close(output, expected[:, i], f"output {i}")


# --- runs ---------------------------------------------------------------------------------------


def losses(run: Path) -> list[float]:
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [float(row[key]) for row in rows for key in ("train_loss", "val_loss")]


def all_weights(folder: Path, names: list[str]) -> torch.Tensor:
    """Return all parameters as one vector, since those of zero gradient change only by rounding and
    have no scale.
    """
    tensors = load_file(folder / "model" / "model.safetensors")
    assert sorted(tensors) == names
    return torch.cat([tensors[name].flatten() for name in names])


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_loads_evaluates_and_predicts_as_recorded(house, name):
    from fredholm.training import evaluate, load_run, predict

    run = house / "trained" / f"{name}-finished"
    inputs, output = example(run)
    model, _ = load_run(run)
    assert_close(make.answer(model, inputs), output)

    expected = read_json(run / "evaluation.json")
    found = evaluate(run)
    assert found.keys() >= expected.keys()  # metrics may be added but not removed
    assert found["n"] == expected["n"]
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)

    if name != "images":
        answers = predict(run, [make.recipes()[name]["data"]["path"]])
        recorded = read_json(run / "predicted.json")
        assert [row["class"] for row in answers] == [row["class"] for row in recorded]
        for row, before in zip(answers, recorded, strict=True):
            assert row["probabilities"] == pytest.approx(before["probabilities"], rel=1e-4)


@pytest.mark.parametrize("name", RUNS)
def test_an_interrupted_run_ends_with_the_weights_of_an_uninterrupted_one(house, name):
    """Bitwise when the same commit resumes (checked by `make.py`), here up to rounding."""
    from fredholm.training import load_recipe, train

    whole, run = (house / "trained" / f"{name}-{end}" for end in ("finished", "stopped"))
    assert not (run / "result.json").exists()
    before = losses(run)
    train(load_recipe(run), run, resume=True)
    names = sorted(load_file(whole / "model" / "model.safetensors"))
    assert_close(all_weights(run, names), all_weights(whole, names), "weights")
    assert losses(run)[: len(before)] == before
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)


def test_a_finished_run_is_not_retrained(house):
    from fredholm.training import load_recipe, train

    run = house / "trained" / "images-finished"
    expected = read_json(run / "result.json")
    assert train(load_recipe(run), run, resume=True).metrics == expected["metrics"]


# --- conversions --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_converted_model_gives_its_recorded_output(kind):
    pytest.importorskip("transformers")
    from fredholm.convert import load_linearized

    folder = FORMATS / "conversions" / f"{kind}-finished"
    inputs, expected = example(folder)
    model = load_linearized(folder / "model")
    with torch.no_grad():
        assert_close(model(**inputs).logits, expected)


def test_a_saved_cache_of_a_converted_decoder_continues():
    pytest.importorskip("transformers")
    from fredholm.convert import load_linearized

    folder = FORMATS / "conversions" / "decoder-finished"
    inputs, expected = example(folder)
    session = torch.load(folder / "session.pt", weights_only=False)
    model = load_linearized(folder / "model")
    with torch.no_grad():
        logits = model(input_ids=inputs["input_ids"][:, 8:], past_key_values=session).logits
    assert_close(logits, expected[:, 8:])


@pytest.mark.parametrize("kind", CONVERSIONS)
def test_a_resumed_conversion_equals_an_uninterrupted_one(house, kind, monkeypatch):
    pytest.importorskip("transformers")
    from fredholm import linearize

    place = house / "conversions"
    teacher = {"decoder": make.decoder, "encoder": make.encoder}[kind]()
    teacher.load_state_dict(load_file(place / f"{kind}.safetensors"))
    options = make.conversion_options(kind)
    if kind == "decoder":
        options["sinks"] = 0  # the default when these files were written
    resumed = linearize(teacher, **options, folder=place / f"{kind}-stopped", resume=True)

    # The finished one is read: a step of any optimiser would be training.
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_, **__: pytest.fail("trained again"))
    whole = linearize(teacher, **options, folder=place / f"{kind}-finished", resume=True)
    assert resumed.report.scores == pytest.approx(whole.report.scores, rel=1e-4)
    found, expected = resumed.model.state_dict(), whole.model.state_dict()
    assert found.keys() == expected.keys()
    left, right = (
        torch.cat([state[key].float().flatten() for key in expected]) for state in (found, expected)
    )
    assert_close(left, right, "weights")


# --- comparisons and estimators -----------------------------------------------------------------


def trained_steps(monkeypatch) -> list[int]:
    """Count the steps of every AdamW from now on."""
    count = [0]
    original = torch.optim.AdamW.step

    def stepping(self, *args, **options):
        count[0] += 1
        return original(self, *args, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", stepping)
    return count


def test_a_finished_comparison_predicts_as_recorded(house, monkeypatch):
    from fredholm.training import predict

    folder = house / "comparisons" / "finished"
    recorded = read_json(folder / "predicted.json")
    answers = predict(folder, [row["file"] for row in recorded])
    assert len(answers) == 3
    for row, before in zip(answers, recorded, strict=True):
        assert row["class"] == before["class"]
        assert row["probabilities"] == pytest.approx(before["probabilities"], rel=1e-5)

    known = read_json(folder / "choice.json")
    steps = trained_steps(monkeypatch)
    assert make.command(*make.COMPARE, "--out", str(folder)) == 0
    found = read_json(folder / "choice.json")
    assert steps == [0]
    for key in ("setting", "rungs", "finals"):
        assert found[key] == known[key]
    assert found["verdict"]["pick"] == known["verdict"]["pick"]


def test_an_interrupted_comparison_resumes_with_its_finalists(house, monkeypatch):
    folder = house / "comparisons" / "stopped"
    known = read_json(folder / "choice.json")
    steps = trained_steps(monkeypatch)
    assert make.command(*make.COMPARE, "--out", str(folder)) == 0
    found = read_json(folder / "choice.json")
    for key in ("setting", "rungs"):
        assert found[key] == known[key]
    [before] = known["finals"]["rows"]
    assert before in found["finals"]["rows"]

    # The finalist alone is trained, for the steps that the interrupted process had planned, or
    # fewer where the machine is slow: the comparison has so many minutes.
    assert found["finals"]["steps"] == known["finals"]["steps"]
    [(name, planned)] = known["finals"]["steps"].items()
    [row] = [row for row in found["finals"]["rows"] if row["operator"] == name]
    assert steps == [row["steps"]]
    assert 0 < row["steps"] <= planned
    assert {row["operator"] for row in found["finals"]["rows"]} == {
        before["operator"],
        *known["finals"]["steps"],
    }


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_a_saved_estimator_gives_its_recorded_predictions(name):
    from fredholm.estimators import FredholmClassifier, FredholmRegressor

    folder = FORMATS / "estimators" / name
    X, expected = example(folder)
    if name == "classifier":
        estimator = FredholmClassifier.load(folder)
        assert list(estimator.classes_) == ["down", "up"]
        found = estimator.predict_proba(X.numpy())
    else:
        found = FredholmRegressor.load(folder).predict(X.numpy())
    assert_close(torch.as_tensor(found), expected, dtype=torch.float32)
