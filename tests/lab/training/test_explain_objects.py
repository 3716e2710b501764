"""The report of a run on images with known objects."""

from __future__ import annotations

import json
import re

import pytest
import torch

from fredholm.training import explain, load_recipe, train

from ..data.fixtures import write_clothes

SMALL = [
    *(
        "data.val_fraction=0.5",
        "data.image_size=42",
        "data.options={clutter: 2}",
        "data.batch_size=5",
    ),
    *(
        "model.body.depth=1",
        "model.body.dim=16",
        "model.body.heads=4",
        "training.epochs=1",
        "schedule.warmup_epochs=0",
    ),
]


@pytest.mark.slow
def test_the_report_of_infvit_has_maps_and_scores_of_objects(tmp_path):
    recipe = load_recipe(
        "infvit-linear-canvas", [*SMALL, f"data.path={write_clothes(tmp_path / 'clothes')}"]
    )
    train(recipe, tmp_path / "run")
    page = explain(tmp_path / "run")
    sections = re.findall(r'<section id="(\w+)"', page.read_text(encoding="utf-8"))
    assert {"training", "attention", "removal", "localisation", "centrality", "confusion"} <= set(
        sections
    )
    found = json.loads((page.parent / "numbers.json").read_text(encoding="utf-8"))["attention"][
        "localisation"
    ]
    assert set(found) == {"attention", "rollout", "incoming"}
    assert set(found["attention"]) == {"box", "mask"}
    assert found["attention"]["mask"]["roc_auc"]["n"] == 20
    assert (
        0
        < found["attention"]["mask"]["chance"]["mean"]
        <= found["attention"]["box"]["chance"]["mean"] + 1e-9
    )
    assert torch.tensor(found["rollout"]["box"]["mass"]["mean"]).isfinite()
