"""Models of the Long Range Arena: padding, pairs, presets, and recipes that train on the official
layouts.
"""

from __future__ import annotations

import json

import pytest
import torch
from evidence.datasets import kjv_web

from fredholm.errors import OptionError, ShapeError
from fredholm.models import create_model, from_pretrained, list_models, save_pretrained
from fredholm.training import list_recipes, load_recipe, train
from tests.lab.data.test_lra import official_aan, official_imdb, official_pathfinder, verse_pairs
from tests.parts import parts

OPERATORS = {
    "softmax": {},
    "luna": {},
    "linear_attention": {},
    "hedgehog": {"operator": "linear_attention", "operator_options": {"feature_map": "hedgehog"}},
}


def build(name: str = "softmax", **overrides):
    torch.manual_seed(0)
    return create_model(
        "lra_skyformer",
        **parts(**{"operator": name, "max_length": 12, **OPERATORS.get(name, {}), **overrides}),
    )


@pytest.mark.parametrize("name", OPERATORS)
def test_padding_changes_no_output_and_pairs_share_one_encoder(name):
    model = build(name).eval()
    numbers = torch.randint(1, 257, (3, 7))
    padded = torch.cat([numbers, numbers.new_zeros(3, 5)], 1)
    assert torch.allclose(model(numbers), model(padded), atol=1e-5)
    twins = build(name, views=2).eval()
    twins.encoder.load_state_dict(model.encoder.state_dict())
    twins.body.load_state_dict(model.body.state_dict())
    pairs = torch.stack([numbers, numbers.flip(0)], 1)
    features, _domain = twins.features(pairs)
    alone = model.features(numbers)[0]
    assert torch.allclose(features[0::2], alone, atol=1e-5)
    assert torch.allclose(features[1::2].flip(0), alone, atol=1e-5)
    a = alone.mean(1)
    b = alone.mean(1).flip(0)
    expected = torch.nn.Sequential.forward(twins.head, torch.cat([a, b, a * b, a - b], -1))
    assert torch.allclose(twins(pairs), expected, atol=1e-5)
    for wrong in (numbers, pairs[:, :1], pairs[None]):
        with pytest.raises(ShapeError, match="B, 2, N"):
            twins(wrong)


def test_presets_have_the_published_sizes():
    assert len(list_models("lra_*")) == 6
    found = {
        name.split("_")[-1]: create_model(name, **parts(max_length=8)).config
        for name in list_models("lra_official*")
    }
    assert {
        k: (c.body.depth, c.body.dim, c.body.heads, c.head.hidden) for k, c in found.items()
    } == {
        "text": (4, 256, 4, 1024),
        "listops": (6, 512, 8, 2048),
        "retrieval": (4, 128, 4, 512),
        "image": (1, 32, 1, 64),
        "pathfinder": (1, 128, 4, 128),
    }
    c = create_model("lra_skyformer", **parts(max_length=8)).config
    b = c.body
    assert (b.depth, b.dim, b.heads, c.head.hidden, c.pool) == (2, 64, 2, 128, "mean")
    assert round(b.mlp_ratio * b.dim) == c.head.hidden


def test_wrong_configurations_are_refused():
    for wrong, message in (
        ({"heads": 3}, "heads that divide dim=64, got heads=3"),
        ({"pool": "max"}, "head.pool: expected one of .*, got 'max'"),
        ({"views": 3}, "one view or two for 'mlp', got 3"),
        ({"dropout": 1.0}, "dropout: expected a rate .*, got 1.0"),
        ({"depth": 0}, "depth: expected a positive integer, got 0"),
    ):
        with pytest.raises(OptionError, match=message):
            build(**wrong)


def test_a_saved_model_gives_identical_logits(tmp_path):
    model = build("luna", pool="cls").eval()
    save_pretrained(model, tmp_path / "model")
    numbers = torch.randint(1, 257, (2, 9))
    assert torch.equal(from_pretrained(tmp_path / "model").eval()(numbers), model(numbers))


FIXTURES = {
    "listops": (
        None,
        [
            "data.options={min_length: 4, max_length: 30, max_depth: 4, max_args: 4, train: 16, "
            "val: 4, test: 4}"
        ],
    ),
    "text": (official_imdb, ["data.max_length=16"]),
    "retrieval": (official_aan, ["data.options.max_length=16"]),
    "pathfinder": (
        official_pathfinder,
        ["data.name=lra-pathfinder", "data.options={}", "training.max_minutes=0.2"],
    ),
}


@pytest.mark.parametrize("task", FIXTURES)
def test_full_recipes_build_and_train_on_the_official_layout(task, tmp_path, monkeypatch):
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path / "root"))
    write, changes = FIXTURES[task]
    if write is not None:
        (tmp_path / "files").mkdir()
        write(tmp_path / "files")
        changes = [*changes, f"data.path={tmp_path / 'files'}"]
    changes += [
        "data.batch_size=4",
        "data.eval_batch_size=4",
        "training.epochs=1",
        "schedule.warmup_epochs=0",
    ]
    recipe = load_recipe(f"lra-{task}-full", changes)
    assert recipe.model.name == "lra_skyformer"
    assert recipe.operator.name == "luna"
    result = train(recipe, tmp_path / "run")
    assert result.steps >= 1
    assert "val_accuracy" in result.metrics
    saved = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert saved["config"]["head"]["kind"] == "mlp"


def test_the_retrieval_stand_in_trains(tmp_path, monkeypatch):
    monkeypatch.setattr(kjv_web, "read_pairs", verse_pairs)
    changes = [
        f"data.path={tmp_path}",
        "data.batch_size=16",
        "training.epochs=1",
        "operator=softmax",
    ]
    assert (
        train(
            load_recipe("lra-retrieval", [*changes, "schedule.warmup_epochs=0"]), tmp_path / "run"
        ).steps
        == 7
    )


def test_recipes_of_the_arena_differ_only_in_the_operator():
    names = [name for name in list_recipes() if name.startswith("lra-")]
    assert len(names) == 15
    for name in names:
        one, other = (
            load_recipe(name, [f"operator={kind}"]).model_dump() for kind in ("softmax", "luna")
        )
        assert one.pop("operator") != other.pop("operator")
        assert one == other
