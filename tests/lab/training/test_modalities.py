"""Recipes of clouds, graphs, questions and fields: each builds, and its model takes a step on small
official files.
"""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
import torch

from fredholm.errors import DataError, RecipeError, ShapeError
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.tasks import create_task, relative_error, task_of
from fredholm.training import evaluate, explain, load_recipe, predict, train
from tests.parts import parts

from ...tolerances import assert_close
from ..data.test_clouds import CUBE
from ..data.test_fields_questions import write_nlvr2, write_vqa
from ..data.test_graph_data import write_molecules, write_tu

FIELDS = (
    "data.name=darcy-generated",
    "data.options.train=12",
    "data.options.val=4",
    "data.options.test=4",
    "data.batch_size=4",
)
TINY = (
    "model.body.dim=16",
    "model.body.heads=2",
    "model.body.depth=1",
    "operator.width=4",
    "operator.frequencies=4",
)


def test_fields_are_scored_by_relative_error():
    task = create_task("field")
    labels = torch.rand(3, 2, 4, 5)
    outputs = torch.rand(3, 20, 2)
    expected = (outputs - labels.flatten(2).mT).flatten(1).norm(dim=1) / labels.flatten(1).norm(
        dim=1
    )
    assert_close(task.loss(outputs, labels), expected.mean())
    total, _, count = task.sums(outputs, labels)
    assert task.metrics([float(total), 0.0, count]) == {
        "val_loss": pytest.approx(float(expected.mean()))
    }
    report = task.summary([(outputs, labels)], ("a", "b"))
    assert report["loss"] == pytest.approx(float(expected.mean()))
    assert report["worst"] == pytest.approx(float(expected.max()))
    assert relative_error(torch.ones(1, 1), torch.zeros(1, 1)).item() == 1.0
    with pytest.raises(ShapeError, match=r"expected \(3, 20, 2\) for .*, got \(3, 20, 1\)"):
        task.loss(outputs[..., :1], labels)


def test_answers_to_questions_are_scored():
    task = create_task("answers")
    outputs, scores = (
        torch.tensor([[9.0, -9.0], [-9.0, 9.0]]),
        torch.tensor([[1.0, 0.0], [0.5, 0.3]]),
    )
    _, score, count = task.sums(outputs, scores)
    assert float(score) / count == pytest.approx(0.65)
    assert task.summary([(outputs, scores)], ("a", "b"))["accuracy"] == pytest.approx(0.65)
    loss = (
        torch.nn.functional.binary_cross_entropy_with_logits(outputs, scores, reduction="sum") / 2
    )
    assert_close(task.loss(outputs, scores), loss)


def sections(page: str) -> set[str]:
    return set(re.findall(r'<section id="([\w-]+)"', page))


@pytest.mark.slow
def test_the_recipe_of_fields_trains_and_evaluates_at_another_resolution(tmp_path):
    recipe = load_recipe("itnet-darcy", [*FIELDS, *TINY, "training.epochs=2"])
    result = train(recipe, tmp_path / "run")
    assert set(result.metrics) == {"train_loss", "val_loss"}
    coarse = evaluate(tmp_path / "run")
    fine = evaluate(tmp_path / "run", overrides=["data.options.resolution=32"])
    assert coarse["loss"] != fine["loss"] > 0
    assert (
        json.loads((tmp_path / "run/evaluation-data.options.resolution=32.json").read_text())[
            "loss"
        ]
        == fine["loss"]
    )
    page = explain(tmp_path / "run").read_text()
    assert f">{coarse['loss']:.2%}<" in page, "the relative error stands where an accuracy would"
    assert {"training", "profile", "maps"} <= sections(page)
    with pytest.raises(DataError, match="nothing: no such file or folder"):
        predict(tmp_path / "run", [tmp_path / "nothing"])
    np.savez(tmp_path / "media.npz", inputs=np.ones((2, 16, 16)))
    answers = predict(tmp_path / "run", [tmp_path / "media.npz"])
    assert np.array(answers[0]["values"]).shape == (1, 16, 16)


@pytest.mark.slow
def test_the_recipe_of_graphs_trains(tmp_path):
    write_molecules(tmp_path / "data")
    common = [
        f"data.path={tmp_path / 'data'}",
        "data.batch_size=4",
        "data.val_fraction=0.25",
        "training.epochs=2",
    ]
    recipe = load_recipe(
        "itnet-graphs", [*common, *TINY, "schedule.warmup_epochs=0", "data.options.eigenvectors=2"]
    )
    train(recipe, tmp_path / "run")
    assert 0 <= evaluate(tmp_path / "run")["accuracy"] <= 1
    page = explain(tmp_path / "run").read_text()
    assert {"training", "profile", "confusion"} <= sections(page)
    assert "test graphs" in page
    config = json.loads((tmp_path / "run/model/config.json").read_text())["config"]
    encoder = config["encoder"]
    assert (encoder["kind"], encoder["eigenvectors"], encoder["channels"]) == ("graph", 2, 15)


def _modelnet(folder):
    for part in ("train", "test"):
        for kind in ("bed", "sofa"):
            (folder / kind / part).mkdir(parents=True)
            for i in range(4):
                (folder / kind / part / f"{kind}_{i}.off").write_bytes(CUBE)


def _tu(folder):
    folder.mkdir()
    write_tu(folder)


FULL = {
    "itnet-modelnet40": (_modelnet, "data.val_fraction=0.25", "data.options.points=12"),
    "itnet-vqa-v2": (write_vqa, "data.options.image_size=32", "data.options.min_count=1"),
    "itnet-nlvr2": (write_nlvr2, "data.options.image_size=32"),
    "itnet-graphs": (_tu, "data.name=tu-folder"),
}


@pytest.mark.parametrize("name", FULL)
def test_the_full_recipes_train_a_step_on_official_files(name, tmp_path):
    write, *overrides = FULL[name]
    write(tmp_path / "data")
    recipe = load_recipe(
        name, [f"data.path={tmp_path / 'data'}", *overrides, *TINY, "data.batch_size=4"]
    )
    dataset = build_dataset(recipe, "train")
    model = build_model(recipe, dataset)
    inputs, labels = dataset.batch(torch.arange(4))
    task = task_of(dataset)
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.AdamW(model.weight_decay_groups(0.1), lr=1e-3)
    task.loss(model(inputs), labels, recipe.training.label_smoothing).backward()
    optimizer.step()
    moved = [not a.equal(b) for a, b in zip(before, model.parameters())]
    assert sum(moved) >= 2, "the head learns at once, the rest once it is no longer zero"
    assert torch.isfinite(task.loss(model(inputs), labels))


@pytest.mark.parametrize(
    ("name", "millions"), [("itnet-modelnet40", 2.8), ("itnet-vqa-v2", 150), ("itnet-nlvr2", 148)]
)
def test_models_have_the_papers_sizes(name, millions):
    """Built on the meta device; the counts equal those of training up to the vocabulary of the
    official texts.
    """
    from fredholm import models

    recipe = load_recipe(name)
    size = {"image_size": 224, "channels": 3}
    overrides = {
        "itnet-modelnet40": {},
        "itnet-vqa-v2": {"encoder": "multimodal", "vocabulary": 8000, "num_classes": 3129} | size,
        "itnet-nlvr2": {"encoder": "multimodal", "vocabulary": 4000, "num_classes": 2, "views": 2}
        | size,
    }[name]
    given = parts(**overrides | recipe.model.encoder)
    with torch.device("meta"):
        model = models.create_model(recipe.model.name, **given)
    found = sum(p.numel() for p in model.parameters()) / 1e6
    assert found == pytest.approx(millions, rel=0.08)


@pytest.mark.parametrize(
    ("recipe", "override", "message"),
    [
        ("itnet-kicad", "data.augment.flip=true", "data.augment.flip: .*kicad holds points"),
        ("itnet-kicad", "data.image_size=8", "data.image_size: .*kicad holds points"),
        ("itnet-darcy", "data.augment.jitter=0.1", "data.augment.jitter: .*darcy holds field"),
        ("digits", "data.augment.rotate=true", "data.augment.rotate: .*digits holds images"),
        ("itnet-mosaics-qa", "data.mixup=0.5", "data.mixup: .*mosaics-qa holds question"),
        (
            "itnet-graphs",
            "model.encoder.eigenvectors=3",
            "model.encoder.eigenvectors: expected in the data set",
        ),
        ("itnet-kicad", "model.neighbors=3", "did you mean model.encoder.neighbours"),
    ],
)
def test_options_of_other_data_are_refused(recipe, override, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe, [override])
