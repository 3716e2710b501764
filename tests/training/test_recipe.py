"""Recipes: what is accepted, and the one line that each mistake gets."""

from __future__ import annotations

import pytest

from fredholm.errors import RecipeError
from fredholm.training import list_recipes, load_recipe, save_recipe
from fredholm.training.recipe_files import apply_overrides, differences, find_recipe

MISTAKES = [
    (["training.epoch=5"], "training.epoch: unknown key (received 5); did you mean 'epochs'?"),
    (["optimizer.lr=fast"], "optimizer.lr: received 'fast' (str); needs number"),
    (["training.epochs=3.5"], "training.epochs: received 3.5 (float); needs integer"),
    (["training.epochs=true"], "training.epochs: received True (bool); needs integer"),
    (["training.precision=bf61"], "did you mean 'bf16'?"),
    (["data.batch_size=0"], "data.batch_size: received 0 (int); needs greater than 0"),
    (["schedule.warmup_epochs=60"], "schedule.warmup_epochs: received 60 with training.epochs 60"),
    (["data.cutmix=1.0", "data.image_size=1"], "data.cutmix: received 1 with 1x1 images"),
    (["training.early_stop.metric=val_acuracy"], "did you mean 'val_accuracy'?"),
    (
        ["training.early_stop={metric: val_loss, mode: max}"],
        "training.early_stop.mode: received 'max' for val_loss",
    ),
    (["training.strategy=ddp"], "training.strategy: received 'ddp' with devices 1"),
    (["optimizer.betas=[0.9]"], "optimizer.betas: received [0.9] (list); needs at least 2 items"),
    (
        ["data=digits"],
        "data: received 'digits' (str); needs a section with keys: augment, batch_size",
    ),
    (["name=a b"], "name: received 'a b'"),
    (["data.name=digit"], "data.name: received 'digit'; needs a data set; did you mean 'digits'?"),
    (
        ["model=itnet_nanno"],
        "model.name: received 'itnet_nanno'; needs a model; did you mean 'itnet_nano'?",
    ),
    (["model.dimm=8"], "model.dimm: unknown key (received 8); did you mean 'dim'?"),
    (["model.operator=softmax"], "model.operator: received 'softmax'; set by operator.name"),
    (
        ["operator=sofmax"],
        "operator.name: received 'sofmax'; needs an operator; did you mean 'softmax'?",
    ),
    (["import=nowhere.py"], "import: received 'nowhere.py'; needs an existing .py file"),
    (["epochs"], "override: received 'epochs'; needs key=value"),
    (["optimizer.lr=[1"], "override 'optimizer.lr': line 1: not YAML"),
    (["seed.x=1"], "seed.x: received a value below seed=0, no section"),
]


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=[m[0][0] for m in MISTAKES])
def test_mistakes_get_one_line_naming_the_key(overrides, message):
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", overrides)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_every_problem_is_reported_at_once():
    with pytest.raises(RecipeError) as caught:
        load_recipe("digits", ["optimizer.lr=-1", "training.epochs=no", "dat=3"])
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    assert {line.split(":")[0] for line in lines} == {"optimizer.lr", "training.epochs", "dat"}


def test_overrides_are_typed_as_yaml():
    recipe = load_recipe(
        "digits",
        [
            "optimizer.lr=3e-4",
            "data.augment.flip=true",
            "training.ema_decay=null",
            "training.precision=32",
        ],
    )
    assert recipe.optimizer.lr == 3e-4
    assert recipe.data.augment.flip is True
    assert recipe.training.ema_decay is None
    assert recipe.training.precision == "32"


@pytest.mark.parametrize("order", [1, -1])
def test_a_new_operator_drops_the_old_ones_options(order):
    raw = {"operator": {"name": "itnet", "hidden": 8}}
    assert apply_overrides(dict(raw), ["operator=softmax"]) == {"operator": {"name": "softmax"}}
    chosen = ["operator.name=softmax", "operator.bias=true"][::order]
    assert apply_overrides(dict(raw), chosen) == {"operator": {"name": "softmax", "bias": True}}
    assert (
        apply_overrides({"operator": {"name": "itnet", "hidden": 8}}, ["operator.name=itnet"])
        == raw
    )


def test_a_key_given_twice_is_refused(tmp_path):
    file = tmp_path / "twice.yaml"
    file.write_text("data: {name: digits}\nmodel: itnet_nano\nseed: 1\nseed: 2\n")
    with pytest.raises(RecipeError, match=r"seed: given twice \(line 4\)"):
        load_recipe(file)


def test_a_recipe_survives_the_disk(tmp_path):
    recipe = load_recipe(
        "digits", ["training.early_stop={patience: 3}", "operator={name: softmax}"]
    )
    again = load_recipe(save_recipe(recipe, tmp_path / "recipe.yaml"))
    assert again.to_dict() == recipe.to_dict()
    assert differences(
        recipe.to_dict(), load_recipe("digits", ["operator=softmax", "seed=3"]).to_dict()
    ) == [
        "seed (0 -> 3)",
        "training.early_stop ({'metric': 'val_accuracy', 'patience': 3, 'mode': None} -> None)",
    ]


def test_an_imported_operator_can_be_named(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from fredholm.operators import register_operator\nfrom fredholm.families.softmax.operator import "
        "SoftmaxAttention\n"
        "@register_operator('mine')\ndef mine(dim, heads=1, **options):\n    return "
        "SoftmaxAttention(dim, heads, **options)\n"
    )
    file = tmp_path / "own.yaml"
    file.write_text("import: mine.py\ndata: {name: digits}\nmodel: itnet_nano\noperator: mine\n")
    recipe = load_recipe(file)
    assert (recipe.name, recipe.operator.name) == ("own", "mine")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(RecipeError, match=r"import: broken.py failed: ZeroDivisionError"):
        load_recipe(file, ["import=broken.py"])


def test_unknown_recipes_are_named():
    with pytest.raises(RecipeError, match="did you mean 'digits'"):
        find_recipe("digit")
    with pytest.raises(RecipeError, match=r"no file 'x/y.yaml'"):
        find_recipe("x/y.yaml")


@pytest.mark.parametrize("name", list_recipes())
def test_built_in_recipes_are_valid(name):
    assert load_recipe(name).name == name
