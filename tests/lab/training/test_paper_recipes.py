"""The papers' recipes on tiny data in the official layouts: models are built, a step is finite, and
a missing folder gives one line.
"""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evidence.datasets.speech_commands import WORDS

from fredholm.errors import DataError
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.module import RecipeLearner, schedule_of
from fredholm.lab.training.tasks import task_of
from fredholm.training import load_recipe

from ..data.fixtures import write_cifar_binary, write_idx, write_image_folder

TS = "@problemName CharacterTrajectories\n@timeStamps false\n@classLabel true {}\n@data\n"


def trajectories(folder: Path) -> Path:
    """Write twenty letters of three channels."""
    letters = [chr(97 + i) for i in range(20)]
    for part in ("TRAIN", "TEST"):
        rows = [":".join(["1,2,3,4", "4,3,2,1", f"0,{i},0,1", letters[i % 20]]) for i in range(80)]
        text = TS.format(" ".join(letters)) + "\n".join(rows) + "\n"
        (folder / f"CharacterTrajectories_{part}.ts").write_text(text)
    return folder


def speech(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    for word in WORDS:
        (folder / word).mkdir()
        for i in range(8):
            with wave.open(str(folder / word / f"{i}.wav"), "wb") as file:
                file.setnchannels(1)
                file.setsampwidth(2)
                file.setframerate(16_000)
                file.writeframes(rng.integers(-999, 999, 16_000, dtype=np.int16).tobytes())
    return folder


def physionet(folder: Path) -> Path:
    for i in range(40):
        hours = [f"{80 + i + h}|NaN|{h}|{i % 2}" for h in range(5)]
        (folder / f"p{i:06}.psv").write_text("\n".join(["HR|O2Sat|ICULOS|SepsisLabel", *hours]))
    return folder


def ptb(folder: Path) -> Path:
    for part in ("train", "valid", "test"):
        (folder / f"ptb.{part}.txt").write_text(" the cat sat on the mat <unk> \n" * 40)
    return folder


def reviews(folder: Path) -> Path:
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / part / label).mkdir(parents=True)
            for i in range(12):
                (folder / part / label / f"{i}_1.txt").write_text(f"a {label} film {i}")
    return folder


def listops(folder: Path) -> Path:
    rows = ["Source\tTarget", *(f"( ( [MAX {i % 10} ) 3 ] )\t{max(i % 10, 3)}" for i in range(40))]
    for part in ("train", "val", "test"):
        (folder / f"basic_{part}.tsv").write_text("\n".join(rows) + "\n")
    return folder


def papers(folder: Path) -> Path:
    for part in ("train", "eval", "test"):
        rows = [f"{i % 2}.0\ta{i}\tb{i}\tone {i}\tanother {i}\n" for i in range(40)]
        (folder / f"new_aan_pairs.{part}.tsv").write_text("".join(rows))
    return folder


def pictures(folder: Path) -> Path:
    return write_image_folder(folder / "imagenet", each=12)


# The data of a recipe, and the paper's number of parameters if the data have its size.
RECIPES: dict[str, tuple[Any, int | None]] = {
    "infvit-linear-imagenet": (pictures, None),
    "infvit-pure-imagenet": (pictures, None),
    "infvit-softmax-imagenet": (pictures, None),
    "imagenet-s": (pictures, None),
    "ckcnn-character-trajectories": (trajectories, 100_670),
    "ckcnn-speech": (speech, 118_240),
    "ckcnn-speech-raw": (speech, 98_290),
    "ckcnn-physionet": (physionet, None),
    "ckcnn-ptb": (ptb, None),
    "ckcnn-smnist-big": (lambda folder: write_idx(folder / "idx", train=80), 1_030_000),
    "ckcnn-pmnist-big": (lambda folder: write_idx(folder / "idx", train=80), 1_030_000),
    "ckcnn-scifar10-big": (lambda folder: write_cifar_binary(folder / "cifar"), 1_040_000),
    "lra-text-official": (reviews, None),
    "lra-listops-official": (listops, None),
    "lra-retrieval-official": (papers, None),
    "lra-image-official": (lambda folder: write_cifar_binary(folder / "cifar"), None),
}
SLOW = ("ckcnn-speech-raw", "ckcnn-scifar10-big", "infvit-pure-imagenet", "infvit-softmax-imagenet")
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in RECIPES]
WIDE = ("infvit", "imagenet-s", "lra-listops")  # built, but too large for a step here


@pytest.mark.parametrize("name", NAMES)
def test_the_papers_recipes_train_a_step_on_official_files(name, tmp_path):
    write, parameters = RECIPES[name]
    recipe = load_recipe(name, [f"data.path={write(tmp_path)}"])
    data = build_dataset(recipe, "train")
    large = name.startswith(WIDE)
    with torch.device("meta" if large else "cpu"):
        model: Any = build_model(recipe, data)
    if parameters is not None:
        found = sum(p.numel() for p in model.parameters())
        assert found == pytest.approx(parameters, rel=0.01)
    augment = data.augmentation(recipe.data.augment.model_dump())
    indices = torch.arange(2)
    change = None if augment is None else lambda x: augment(x, indices, seed=0, epoch=0)
    inputs, labels = data.batch(indices, change)
    if large:
        return
    learner = RecipeLearner(model, recipe, lambda rank, world: None, task=task_of(data))
    loss = learner.loss(inputs, labels)
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert 0 < schedule_of(recipe).share(0, *(recipe.schedule.warmup_steps or 1, 9000, 100)) <= 1


@pytest.mark.parametrize("name", ["infvit-linear-imagenet", "ckcnn-speech", "lra-text-official"])
def test_a_missing_folder_is_named(name, tmp_path):
    recipe = load_recipe(name, [f"data.path={tmp_path / 'nowhere'}"])
    with pytest.raises(DataError, match=r"expected the folder of .*, got .*nowhere, which is"):
        build_dataset(recipe, "train")
