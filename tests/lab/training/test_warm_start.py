"""Weights of other runs, between images, texts and both: matching ones are copied, and the others
reported.
"""

from __future__ import annotations

import shutil

import pytest
import torch

from fredholm.data import Vocabulary
from fredholm.errors import RecipeError
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.warm_start import start_from
from fredholm.training import evaluate, load_recipe, load_run, train
from tests.lab.data.fixtures import write_image_folder
from tests.lab.data.test_fields_questions import write_vqa

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
    """Train a model of images and one of texts, and write the files of a model of both."""
    folder = tmp_path_factory.mktemp("starting")
    write_image_folder(folder / "pictures")
    write_vqa(folder / "vqa")
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
        "vqa": ("itnet-vqa-v2", [f"data.path={folder / 'vqa'}", "data.options.image_size=32",
                                 "data.options.min_count=1", "data.options.max_length=12"]),
    }  # fmt: skip
    source, chosen = own[name]
    return load_recipe(source, [*model, *TINY, *chosen, f"name={name}", *overrides])


def fresh(name: str, folder, *overrides: str):
    """Return an untrained model, its data set, and its initial tensors."""
    chosen = recipe(name, folder, "seed=5", *overrides)
    dataset = build_dataset(chosen, "train")
    model = build_model(chosen, dataset)
    return model, dataset, {key: value.clone() for key, value in model.state_dict().items()}


def test_a_model_of_pictures_and_texts_starts_from_both_models(home):
    model, dataset, before = fresh("vqa", home)
    lines = start_from(model, [home / "image", home / "text"], dataset)
    after = model.state_dict()
    image, text = (load_run(home / name)[0] for name in ("image", "text"))
    pictures = image.state_dict()
    for key, value in after.items():
        if key.startswith("body."):
            assert value.equal(pictures[key]), key
        elif key.startswith("encoder.image."):
            assert value.equal(pictures[key.replace("encoder.image.", "encoder.")]), key
        elif key != "encoder.words.weight":
            assert value.equal(before[key]), f"{key} starts anew"
    words = Vocabulary.from_dict(text.extra["vocabulary"])
    for number, word in enumerate(dataset.vocabulary.words, 2):
        row = after["encoder.words.weight"][number]
        if word in words.words:
            assert row.equal(text.state_dict()["encoder.embed.weight"][words.encode(word)[0]]), word
        else:
            assert row.equal(before["encoder.words.weight"][number]), word
    assert {"what", "colour", "is", "number", "1"} < set(words.words)
    assert lines[0] == f"from {home / 'image'}: {len(pictures) - 3} tensors copied"
    assert lines[1].startswith("left out: ")
    assert all(f"{key} (another task)" in lines[1] for key in ("head.weight", "encoder.token"))
    assert lines[2].startswith(f"from {home / 'text'}: 1 tensor copied, of the ")
    assert "encoder.position.weight (no place here)" in lines[3]
    assert " that an earlier run gave" in lines[3]
    anew = "encoder.fourier.matrix, encoder.modality, encoder.position.weight, encoder.token"
    assert lines[4] == f"anew: {anew}, head.bias, head.weight"


def test_the_recipe_with_two_starts_trains(home):
    lines = []
    chosen = recipe("vqa", home, f"init_from=[{home / 'image'}, {home / 'text'}]")
    train(chosen, home / "both", report=lines.append)
    assert lines[0].startswith(f"from {home / 'image'}: ")
    assert evaluate(home / "both")["n"] == 12
    model, dataset, _ = fresh("image", home)
    assert start_from(model, home / "both", dataset)[0].startswith(f"from {home / 'both'}: ")
    source = load_run(home / "both")[0].state_dict()
    assert model.state_dict()["encoder.embed.weight"].equal(source["encoder.image.embed.weight"])
    model, dataset, before = fresh("text", home)
    lines = start_from(model, home / "both", dataset)
    number = dataset.vocabulary.encode("colour")[0]
    words = Vocabulary.from_dict(load_run(home / "both")[0].extra["words"])
    row = model.state_dict()["encoder.embed.weight"][number]
    assert row.equal(source["encoder.words.weight"][words.encode("colour")[0]])
    unknown = dataset.vocabulary.encode("film")[0]
    assert model.state_dict()["encoder.embed.weight"][unknown].equal(
        before["encoder.embed.weight"][unknown]
    )
    key = "body.blocks.0.operator.kernel.fourier.matrix"
    assert model.state_dict()[key].equal(before[key])
    assert (
        f"{key} (({source[key].shape[0]}, 2) there, ({source[key].shape[0]}, 1) here)" in lines[1]
    )


def test_embeddings_follow_words_instead_of_numbers(home):
    """A question's vocabulary is that of its data; embeddings are copied by word."""
    chosen = recipe("vqa", home, f"init_from={home / 'text'}", "optimizer.lr=1e-12")
    train(chosen, home / "from-text")
    found, text = load_run(home / "from-text")[0], load_run(home / "text")[0]
    theirs = Vocabulary.from_dict(text.extra["vocabulary"])
    mine = found.extra["words"]
    row = Vocabulary.from_dict(mine).encode("colour")[0]
    assert torch.allclose(
        found.state_dict()["encoder.words.weight"][row],
        text.state_dict()["encoder.embed.weight"][theirs.encode("colour")[0]],
        atol=1e-6,
    )


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
    model, dataset, _ = fresh("vqa", home, "model.body.dim=8")
    with pytest.raises(RecipeError, match=r"width 8, .* got 16 .*; set model\.body\.dim"):
        start_from(model, [home / "image", home / "text"], dataset)
    model, dataset, _ = fresh("vqa", home)
    with pytest.raises(
        RecipeError,
        match=r"expected weights that fit the model, got none in .*image; .*an earlier run gave",
    ):
        start_from(model, [home / "image", home / "image"], dataset)
    with pytest.raises(RecipeError, match="init_from"):
        recipe("vqa", home, "init_from=[]")
    model, dataset, _ = fresh("image", home, "model.encoder.patch=4")
    with pytest.raises(RecipeError, match=r"encoder.embed.weight is \(16, 192\) there"):
        start_from(model, home / "image", dataset)
