"""Recipes: accepted values, and one line per mistake."""

from __future__ import annotations

import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from fredholm.errors import RecipeError
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.recipe_files import (
    apply_overrides,
    differences,
    imported_code,
)
from fredholm.lab.training.recipe_paths import find_recipe
from fredholm.training import list_recipes, load_recipe, save_recipe

MISTAKES = [
    (["training.epoch=5"], "training.epoch: unknown key (got 5); did you mean 'epochs'?"),
    (["optimizer.lr=fast"], "optimizer.lr: expected number, got 'fast' (str)"),
    (["training.epochs=3.5"], "training.epochs: expected integer, got 3.5 (float)"),
    (["training.epochs=true"], "training.epochs: expected integer, got True (bool)"),
    (["training.precision=bf61"], "did you mean 'bf16'?"),
    (["data.batch_size=0"], "data.batch_size: expected greater than 0, got 0 (int)"),
    (["data.cutmix=1.0", "data.image_size=1"], "2x2 pixels and more, got 1 with 1x1 images"),
    (["training.early_stop.metric=val_acuracy"], "did you mean 'val_accuracy'?"),
    (
        ["training.early_stop={metric: val_loss, mode: max}"],
        "training.early_stop.mode: expected 'min' for val_loss, got 'max'",
    ),
    (
        ["training.strategy=horovod"],
        "training.strategy: expected 'auto', 'ddp' or 'fsdp2', got 'horovod'",
    ),
    (["optimizer.betas=[0.9]"], "optimizer.betas: expected at least 2 items"),
    (
        ["data=digits"],
        "data: expected a section with keys: augment, batch_size",
    ),
    (["name=a b"], ", got 'a b'"),
    (["data.name=digit"], "data.name: expected a data set, got 'digit'; did you mean 'digits'?"),
    (
        ["model=itnet_nanno"],
        "model.name: expected a model, got 'itnet_nanno'; did you mean 'itnet_nano'?",
    ),
    (["model.dimm=8"], "model.dimm: unknown key (got 8); did you mean model.body.dim?"),
    (["model.body.dimm=8"], "model.body.dimm: unknown key (got 8); did you mean 'dim'?"),
    (["model.depth=8"], "model.depth: unknown key (got 8); did you mean model.body.depth?"),
    (["model.head=every"], "model.head: expected a section"),
    (["model.body.kind=blocks"], "model.body.kind: expected a kind of body, got 'blocks'"),
    (
        ["model.head.outputs=3"],
        "model.head.outputs: expected in the data set, got 3 here; remove it",
    ),
    (
        ["model.body.operator=softmax"],
        "model.body.operator: expected in operator.name, got 'softmax' here; remove it",
    ),
    (
        ["operator=sofmax"],
        "operator.name: expected an operator, got 'sofmax'; did you mean 'softmax'?",
    ),
    (["name=a b"], "name: expected letters, digits and . _ , = + - alone"),
    (["import=nowhere.py"], "import: expected an existing .py file, got 'nowhere.py'"),
    (["epochs"], "override: expected key=value, got 'epochs'"),
    (["optimizer.lr=[1"], "override 'optimizer.lr': line 1: not YAML"),
    (["seed.x=1"], "seed.x: expected a section at seed, got 0"),
    (["optimizer.lr=.inf"], "optimizer.lr: expected a finite number, got inf"),
    (["optimizer.lr=-.inf"], "optimizer.lr: expected a finite number, got -inf"),
    (["optimizer.lr=.nan"], "optimizer.lr: expected a finite number, got nan"),
    (["operator.omega=.inf"], "operator.omega: expected a finite number, got inf"),
    ([f"seed={10**40}"], "seed: expected a number of 63 bits or fewer, got 133"),
    (
        [f"training.epochs={10**20}"],
        "training.epochs: expected a number of 63 bits or fewer, got 67",
    ),
    (
        [f"training.epochs={10**12}"],
        "training.epochs: expected less than 2147483648, got 1000000000000",
    ),
    (["training.epochs=" + "9" * 5000], "override 'training.epochs': Exceeds the limit"),
    (
        ["training.max_minutes=1e300"],
        "training.max_minutes: expected less than 1000000000, got 1e+300",
    ),
    (["seed=" + "[" * 100_000], "override 'seed': expected at most 32 levels of nesting"),
    (["seed=" + "[" * 50 + "]" * 50], "override 'seed': expected at most 32 levels of nesting"),
    ([".".join("a" * 5000) + "=1"], "a.a.a.a: expected at most 32 levels of nesting"),
    (
        ["seed=" + "9" * 200_000],
        "override 'seed': expected at most 131,072 characters, got 200,000",
    ),
    (["seed={[1]: 2}"], "override 'seed': line 1: expected a plain value as a key, got a list"),
    (["data.options={1: 2}"], "data.options.1.[key]: expected string, got 1 (int)"),
    (["name=" + "a" * 5000 + " b"], ", got 'aaa"),
    (["data.limit=2024-99-99"], "override 'data.limit': month must be in 1..12"),
]


@contextmanager
def at_once():
    """Limit the test to two CPU seconds, a hundred times what a mistake takes."""
    load_recipe("digits")  # what is imported when first used does not count
    before = time.process_time()
    try:
        yield
    finally:
        assert time.process_time() - before < 2


@pytest.mark.parametrize(("overrides", "message"), MISTAKES, ids=[m[0][0][:40] for m in MISTAKES])
def test_mistakes_give_one_line_with_the_key(overrides, message):
    with pytest.raises(RecipeError) as caught, at_once():
        load_recipe("digits", overrides)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefghi", "bcdefghij")
)
FILES = {
    "aliases-that-multiply": (BOMB.encode(), "expands to more than 10,000 values; write fewer"),
    "an-alias-of-itself": (b"data: &a {options: *a}", "expected at most 32 levels of nesting"),
    "aliases-of-themselves": (b"data: &a [*a, *a]", "expected at most 32 levels of nesting"),
    "deep-lists": (b"[" * 100_000, "expected at most 32 levels of nesting"),
    "deep-blocks": (b"- " * 50_000, "expected at most 32 levels of nesting"),
    "binary": (bytes(range(256)), "expected a recipe in YAML, got no text (byte 128 is not UTF-8)"),
    "zeros": (bytes(100), "not YAML: unacceptable character #x0000"),
    "long": (b"#" * 10_000_000, "expected a recipe in YAML, got more than 131,072 bytes"),
    "code": (b"!!python/object/apply:os.system [ls]", "not YAML: could not determine"),
}


@pytest.mark.parametrize(("content", "message"), FILES.values(), ids=FILES)
def test_files_that_are_not_recipes_give_one_line_quickly(tmp_path, content, message):
    file = tmp_path / "odd.yaml"
    file.write_bytes(content)
    for read in (load_recipe, imported_code):  # the command line asks for the code first
        with pytest.raises(RecipeError) as caught, at_once():
            read(file)
        assert message in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert len(str(caught.value)) < 500


def test_expanding_yaml_aliases_are_refused():
    value = ["x"] * 9
    for _ in range(12):
        value = [value] * 9
    with pytest.raises(RecipeError, match="expands to more than 10,000 values"), at_once():
        load_recipe({"data": {"name": "digits", "options": {"a": value}}, "model": "itnet_nano"})


@pytest.mark.parametrize("word", ["off", "no", "on", "yes", "No", "OFF"])
def test_words_stay_strings_where_strings_are_expected(word, tmp_path):
    recipe = load_recipe(
        "digits", [f"name={word}", f"data.path={word}", "operator=infsa", f"operator.norm={word}"]
    )
    assert (recipe.name, recipe.operator.options["norm"]) == (word, word)
    assert recipe.data.path == str(Path.cwd() / word)
    assert load_recipe("digits", [f"model.head.pool={word}"]).model.head["pool"] == word
    again = load_recipe(save_recipe(recipe, tmp_path / "recipe.yaml"))
    assert again.to_dict() == recipe.to_dict()


@pytest.mark.parametrize(
    ("word", "value"), [("off", False), ("no", False), ("on", True), ("yes", True), ("true", True)]
)
def test_words_become_booleans_where_booleans_are_expected(word, value, tmp_path):
    recipe = load_recipe(
        "digits",
        [
            *(f"data.augment.flip={word}", f"data.options={{a: {word}, on: [{word}]}}"),
            *("operator=softmax", f"operator.bias={word}"),
        ],
    )
    assert recipe.data.augment.flip is value
    assert recipe.operator.options == {"bias": value}
    assert recipe.data.options == {"a": value, "on": [value]}
    # An option of several types, none of them text: bool | Mapping[str, ...].
    assert (
        load_recipe("digits", [f"operator.proposal={word}"]).operator.options["proposal"] is value
    )
    save_recipe(recipe, tmp_path / "recipe.yaml")
    assert load_recipe(tmp_path / "recipe.yaml").to_dict() == recipe.to_dict()


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_runs_for_one_epoch(name):
    recipe = load_recipe(name, ["training.epochs=1"])
    assert 0 <= recipe.warmup_epochs < 1
    given = recipe.schedule.warmup_epochs
    assert recipe.warmup_epochs == (given if given < 1 else 0.5)


def test_a_warm_up_shorter_than_the_run_is_unchanged(tmp_path):
    recipe = load_recipe("digits", ["training.epochs=3", "schedule.warmup_epochs=2.5"])
    assert recipe.warmup_epochs == 2.5
    assert load_recipe("digits", ["schedule.warmup_epochs=60"]).warmup_epochs == 30


def test_all_problems_are_reported_together():
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
def test_another_operator_drops_the_options_of_the_old_one(order):
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


def test_a_saved_recipe_loads_unchanged(tmp_path):
    recipe = load_recipe(
        "digits", ["training.early_stop={patience: 3}", "operator={name: softmax}"]
    )
    again = load_recipe(save_recipe(recipe, tmp_path / "recipe.yaml"))
    assert again.to_dict() == recipe.to_dict()
    assert differences(
        recipe.to_dict(), load_recipe("digits", ["operator=softmax", "seed=3"]).to_dict()
    ) == [
        "seed (0 -> 3)",
        "training.early_stop ({'metric': None, 'patience': 3, 'mode': None} -> None)",
    ]


def test_an_imported_operator_can_be_named(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from fredholm.operators import register_operator\n"
        "from fredholm.families.softmax.operator import SoftmaxAttention\n"
        "@register_operator('mine')\ndef mine(dim, heads=1, **options):\n    return "
        "SoftmaxAttention(dim, heads, **options)\n"
    )
    file = tmp_path / "own.yaml"
    file.write_text("import: mine.py\ndata: {name: digits}\nmodel: itnet_nano\noperator: mine\n")
    recipe = load_recipe(file)
    assert (recipe.name, recipe.operator.name) == ("own", "mine")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"import: broken.py failed: ZeroDivisionError"):
        load_recipe(file, ["import=broken.py"])


def test_imports_of_overrides_are_relative_to_the_working_directory(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    for folder in (home, tmp_path):
        (folder / "twice.py").write_text("")
    monkeypatch.chdir(tmp_path)
    mine = home / "mine.yaml"
    mine.write_text("import: twice.py\ndata: {name: digits}\nmodel: itnet_nano\n")
    assert load_recipe(mine).imports == [str(home / "twice.py")]
    for source in (mine, "digits"):
        found = load_recipe(source, ["import=twice.py"])
        assert found.imports == [str(tmp_path / "twice.py")]
    with pytest.raises(RecipeError, match="import: expected"):
        load_recipe("digits", ["import=5"])


def test_unknown_recipes_are_named():
    with pytest.raises(RecipeError, match="did you mean 'digits'"):
        find_recipe("digit")
    with pytest.raises(RecipeError, match=r"no file 'x/y.yaml'"):
        find_recipe("x/y.yaml")


@pytest.mark.parametrize("name", list_recipes())
def test_built_in_recipes_are_valid(name):
    assert load_recipe(name).name == name


def test_a_recipe_as_dictionary_is_not_changed():
    base = {"name": "demo", "data": {"name": "digits"}, "model": {"name": "itnet_nano"}}
    base |= {"training": {"epochs": 10}}
    load_recipe(base, ["training.epochs=1", "operator.name=softmax"])
    assert load_recipe(base).training.epochs == 10
    assert base["training"] == {"epochs": 10}


def test_imports_of_one_name_are_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ops.py").write_text("")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "import: [a/ops.py, b/ops.py]\ndata: {name: digits}\nmodel: {name: itnet_nano}\n"
        "operator: {name: itnet}\n"
    )
    with pytest.raises(RecipeError, match="expected files of different names"):
        load_recipe(path)


@pytest.mark.parametrize(
    ("option", "owner", "fix"),
    [
        ("heads", "the model", "change model.body.heads instead"),
        ("position_dim", "the data set", "remove it"),
    ],
)
def test_options_defined_elsewhere_are_refused_by_name(option, owner, fix):
    recipe = load_recipe("digits", ["operator=softmax", f"operator.{option}=3", "name=x"])
    with pytest.raises(
        RecipeError, match=f"operator.{option}: .* {owner} defines it, got 3; {fix}"
    ):
        build_model(recipe, build_dataset(recipe, "train"))
