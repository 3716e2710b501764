"""Weights of another run on the same kind of data: all have to fit, or the run is refused."""

from __future__ import annotations

import shutil

import pytest
import torch

from fredholm.errors import RecipeError
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.warm_start import start_from
from fredholm.training import load_recipe, load_run, train
from tests.lab.data.fixtures import write_image_folder

TINY = [
    *(
        "model.body.dim=16",
        "model.body.heads=2",
        "model.body.depth=1",
        "operator.width=4",
        "model.encoder.frequencies=4",
    ),
    *("operator.frequencies=4", "training.epochs=1", "schedule.warmup_epochs=0"),
    *("data.batch_size=4", "training.precision=32"),
]
SENTENCES = "sentence\tlabel\nwhat colour is it\t1\nnumber 1 is a dull film\t0\n"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a model of images and one of texts."""
    folder = tmp_path_factory.mktemp("starting")
    write_image_folder(folder / "pictures")
    (folder / "glue" / "SST-2").mkdir(parents=True)
    for name in ("train.tsv", "dev.tsv"):
        (folder / "glue" / "SST-2" / name).write_text(SENTENCES + SENTENCES.split("\n", 1)[1] * 9)
    for name in ("image", "text"):
        train(recipe(name, folder), folder / name)
    return folder


def recipe(name: str, folder, *overrides: str):
    model = ["model.name=itnet_b", "operator=itnet"]
    model += [] if name == "text" else ["model.encoder.patch=8"]
    own = {
        "image": ("digits", ["data.name=image-folder", "data.image_size=32", "model.head.pool=cls",
                             f"data.path={folder / 'pictures'}", "data.augment.shift=0"]),
        "text": ("itnet-glue", [f"data.path={folder / 'glue'}", "data.min_count=1",
                                "data.max_length=12", "init_from=null"]),
    }  # fmt: skip
    source, chosen = own[name]
    return load_recipe(source, [*model, *TINY, *chosen, f"name={name}", *overrides])


def fresh(name: str, folder, *overrides: str):
    """Return an untrained model and its data set."""
    chosen = recipe(name, folder, "seed=5", *overrides)
    dataset = build_dataset(chosen, "train")
    return build_model(chosen, dataset), dataset


def test_a_model_starts_from_the_weights_of_a_run(home):
    model, dataset = fresh("image", home)
    lines = start_from(model, home / "image", dataset)
    source = load_run(home / "image")[0].state_dict()
    for key, value in model.state_dict().items():
        assert value.equal(source[key]), key
    assert lines == [f"from {home / 'image'}: {len(source)} tensors copied; anew: none"]


def test_a_users_texts_keep_the_vocabulary_of_their_start(tmp_path):
    """The files have other words in another order."""
    words = ["good", "bad", "film", "the", "plot"]
    for name, known in (("base", words), ("mine", [*words[:0:-1], "song"])):
        rows = [f"{known[i % 5]} {known[i * i % 4]} a,{'yn'[i % 2]}" for i in range(40)]
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "\n".join(rows))
    small = ["data.kind=texts", "model.body.dim=16", "model.body.depth=1", "operator=softmax"]
    small += ["training.epochs=1"]
    base, mine = tmp_path / "base", tmp_path / "mine"
    train(load_recipe(tmp_path / "base.csv", small), base)
    start = [*small, f"init_from={base}", "optimizer.lr=1e-12"]
    train(load_recipe(tmp_path / "mine.csv", start), mine)
    before, after = (load_run(run)[0] for run in (base, mine))
    assert after.extra["vocabulary"] == before.extra["vocabulary"]
    vectors = [model.state_dict()["encoder.embed.weight"] for model in (before, after)]
    assert torch.allclose(*vectors, atol=1e-6)
    chosen = load_recipe(tmp_path / "mine.csv", small)
    dataset = build_dataset(chosen, "train")
    with pytest.raises(
        RecipeError, match=r"expected the vocabulary of the data .*, got that of .*base \(8 words\)"
    ):
        start_from(build_model(chosen, dataset), base, dataset)


def test_a_resumed_run_does_not_need_its_start(home):
    class Stop(Exception):
        pass

    def stop(line):
        if line.startswith("epoch 1"):
            raise Stop

    for name in ("image", "text"):
        base, run = home / f"{name}-base", home / f"{name}-stopped"
        shutil.copytree(home / name, base)
        init = "training.epochs=2", "training.checkpoint_steps=1", f"init_from={base}"
        chosen = recipe(name, home, *init, *(["data.min_count=3"] if name == "text" else []))
        with pytest.raises(Stop):
            train(chosen, run, report=stop)
        shutil.rmtree(base)
        train(chosen, run, resume=True)
        words = [load_run(home / of)[0].extra.get("vocabulary") for of in (name, run.name)]
        assert words[0] == words[1]


def test_unsuitable_starts_are_refused(home):
    model, dataset = fresh("image", home)
    with pytest.raises(
        RecipeError, match=r"reads 'image' data, got .*text, which reads 'text'; name a run on"
    ):
        start_from(model, home / "text", dataset)
    model, dataset = fresh("image", home, "model.encoder.patch=4")
    with pytest.raises(RecipeError, match=r"encoder.embed.weight is \(16, 192\) there"):
        start_from(model, home / "image", dataset)
    for several in ("[]", "[a]", f"[{home / 'image'}, {home / 'text'}]"):
        with pytest.raises(RecipeError, match=r"init_from: expected one finished run .*\(list\)"):
            recipe("image", home, f"init_from={several}")
