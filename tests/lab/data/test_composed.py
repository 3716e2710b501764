"""Composed images and boxes with correct positions of objects."""

from __future__ import annotations

import pickle

import pytest
import torch
from evidence.datasets.boxes import read_annotation
from evidence.datasets.cifar_mosaic import ANIMALS
from evidence.datasets.composed import boxes_of

from fredholm.errors import DataError, OptionError
from fredholm.lab import data

from .fixtures import cifar_arrays, write_cifar_binary, write_clothes, write_image_folder


@pytest.fixture
def clothes(tmp_path):
    return write_clothes(tmp_path)


def canvas(folder, split="test", **options):
    return data.create_dataset("fashion-canvas", split, path=folder, val_fraction=0.5, **options)


def test_a_canvas_shows_the_article_at_its_mask(clothes):
    found = canvas(clothes)
    images, labels = found.raw(torch.arange(len(found)))
    masks, boxes = (found.masks(torch.arange(len(found)), kind) for kind in ("mask", "box"))
    assert images.shape == (20, 1, 56, 56)
    assert labels.tolist() == [i % 10 for i in range(20)]
    for i in range(20):
        assert (images[i, 0][masks[i]] == 200 + i).all()
        assert masks[i].sum() == 14 * (6 + i % 10)
        assert boxes[i].equal(masks[i]), "a rectangle is its own box"
        rest = images[i, 0][~masks[i]]
        assert 0 < rest.max() < 0.8 * 220 + 1, "fragments are dimmer"
    corners = [tuple(m.nonzero()[0].tolist()) for m in masks]
    assert len(set(corners)) > 15


def test_a_canvas_depends_only_on_its_index(clothes):
    found = canvas(clothes)
    whole = found.raw(torch.arange(20))[0]
    assert found.raw([7, -20, 3])[0].equal(whole[[7, 0, 3]])
    assert canvas(clothes).raw([4])[0].equal(whole[[4]])
    assert not canvas(clothes, options={"seed": 1}).raw([4])[0].equal(whole[[4]])
    assert found.masks([5])[0].equal(found.masks(torch.arange(20))[5])
    with pytest.raises(IndexError):
        found.raw([20])
    inputs, label = found[3]
    assert inputs.shape == (1, 56, 56)
    assert label == 3


def test_selected_images_keep_their_masks(clothes):
    whole = canvas(clothes)
    found = whole.select(torch.tensor([2, 9, 4, 7])).select(torch.tensor([3, 1]))
    place = torch.tensor([7, 9])
    assert found.raw([0, -1])[0].equal(whole.raw(place)[0])
    for kind in ("mask", "box"):
        assert found.masks([0, -1], kind).equal(whole.masks(place, kind))
    shown = found.shown(torch.tensor([0, 1]))
    assert shown["masks"].equal(whole.masks(place))
    assert shown["boxes"].equal(whole.masks(place, "box"))


@pytest.mark.parametrize(("room", "made"), [(20 * 56 * 56, [3, 19]), (0, [3, 3, 21])])
def test_images_are_cached_when_they_fit_into_memory(clothes, monkeypatch, room, made):
    monkeypatch.setattr("evidence.datasets.composed.KEPT_BYTES", room)
    found = canvas(clothes)
    asked = []
    compose = found.compose
    found.compose = lambda indices: (asked.append(len(indices)), compose(indices))[1]
    expected = compose(torch.tensor([3, 3, 7]))[0]
    for _ in range(2):
        images = found.raw([3, -17, 7])[0]
        assert images.equal(expected)
        images[:] = 0  # what is handed out is the caller's
    every = torch.arange(20).repeat_interleave(1 + (torch.arange(20) == 5))
    assert found.raw(every)[0].equal(compose(every)[0])
    assert asked == made


def test_canvases_have_their_splits_sizes_and_counts(clothes):
    assert [len(canvas(clothes, split)) for split in ("train", "val", "test")] == [10, 10, 20]
    assert not canvas(clothes, "train").raw([0])[0].equal(canvas(clothes, "val").raw([0])[0])
    assert len(canvas(clothes, "train", options={"train": 4})) == 4
    assert canvas(clothes, image_size=(28, 60)).raw([0])[0].shape == (1, 1, 28, 60)
    plain = canvas(clothes, options={"clutter": 0}).raw([0])[0][0, 0]
    assert (plain[~canvas(clothes).masks([0])[0]] < 41).all(), "noise alone"


def test_a_mosaic_has_one_animal_in_its_labelled_cell(tmp_path):
    folder = write_cifar_binary(tmp_path / "cifar")
    found = data.create_dataset("cifar-mosaic", "test", path=folder, options={"cells": 3})
    images, labels = found.raw(torch.arange(len(found)))
    masks = found.masks(torch.arange(len(found)))
    pixels, numbers = (torch.from_numpy(x) for x in cifar_arrays("test_batch"))
    animals = [i for i in range(20) if int(numbers[i]) in ANIMALS]
    assert found.classes == ("bird", "cat", "deer", "dog", "frog", "horse")
    assert images.shape == (len(animals), 3, 96, 96)
    assert masks.sum((1, 2)).tolist() == [32 * 32] * len(animals)
    vehicles = pixels[[i for i in range(20) if i not in animals]]
    for row, source in enumerate(animals):
        assert labels[row] == int(numbers[source]) - ANIMALS[0]
        assert images[row][:, masks[row]].equal(pixels[source].flatten(1))
        cells = (
            images[row]
            .unflatten(2, (3, 32))
            .unflatten(1, (3, 32))
            .permute(1, 3, 0, 2, 4)
            .flatten(0, 1)
        )
        alike = [bool((vehicles == cell).flatten(1).all(1).any()) for cell in cells]
        assert sum(alike) == 8
    assert found.masks([2], "box").equal(masks[[2]])


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "fashion-canvas",
            {"options": {"clutter": -1}},
            "clutter: expected an integer",
        ),
        ("fashion-canvas", {"options": {"fragment": 29}}, "a side from 1 to 28"),
        (
            "fashion-canvas",
            {"options": {"train": 99}},
            "train: expected at most 10",
        ),
        ("fashion-canvas", {"options": {"cluter": 1}}, "did you mean 'clutter'"),
        ("fashion-canvas", {"image_size": 20}, "no smaller"),
        (
            "cifar-mosaic",
            {"options": {"cells": 1}},
            "cells: expected an integer of 2",
        ),
        ("cifar-mosaic", {"image_size": 32}, "set cells"),
    ],
)
def test_wrong_options_are_refused(clothes, name, options, message):
    with pytest.raises(OptionError, match=message):
        data.create_dataset(name, "train", path=clothes, val_fraction=0.5, **options)
    with pytest.raises(OptionError, match="kind: expected one of mask, box, got 'boxes'"):
        canvas(clothes).masks([0], "boxes")


def test_composed_sets_use_the_files_of_their_base(tmp_path):
    assert data.dataset_path("fashion-canvas", tmp_path) == data.dataset_path(
        "fashion-mnist", tmp_path
    )
    assert data.describe("cifar-mosaic", tmp_path)["state"] == "not fetched"
    with pytest.raises(DataError, match="fredholm data fetch fashion-mnist"):
        data.create_dataset("fashion-canvas", "train", root=tmp_path)


def test_boxes_enclose_masks():
    masks = torch.zeros(2, 5, 6, dtype=torch.bool)
    masks[0, 1, 2] = masks[0, 3, 4] = True
    found = boxes_of(masks)
    assert found[0].nonzero().tolist() == [[i, j] for i in (1, 2, 3) for j in (2, 3, 4)]
    assert not found[1].any()


XML = """<annotation><folder>val</folder><filename>{name}</filename>
<size><width>14</width><height>{height}</height><depth>3</depth></size>
<object><name>n01751748</name>
<bndbox><xmin>{box[0]}</xmin><ymin>{box[1]}</ymin><xmax>{box[2]}</xmax><ymax>{box[3]}</ymax></bndbox>
</object></annotation>"""


def test_annotations_have_sizes_and_boxes(tmp_path):
    file = tmp_path / "5.xml"
    file.write_text(XML.format(name="5", height=28, box=(0, 7, 14, 14)))
    found = read_annotation(file)
    assert found.size == (14, 28)
    assert found.objects == (("n01751748", (0.0, 7.0, 14.0, 14.0)),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><size>", "expected <size>"),
        ("<annotation></annotation>", "no <size><width>"),
        (XML.format(name="5", height=14, box=(3, 0, 2, 14)), "inside the picture"),
        (XML.format(name="5", height=14, box=(0, 0, 7, 15)), "inside the picture"),
        (XML.format(name="5", height=14, box=("a", 0, 7, 15)), "could not convert"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>', "declares entities"),
    ],
)
def test_damaged_annotations_are_named(tmp_path, text, message):
    file = tmp_path / "5.xml"
    file.write_text(text)
    with pytest.raises(DataError, match=message):
        read_annotation(file)
    with pytest.raises(DataError, match="cannot be read"):
        read_annotation(file.with_name("6.xml"))


def test_image_folders_have_no_boxes(tmp_path):
    """Earlier versions read ImageNet's annotations."""
    write_image_folder(tmp_path)
    given = {"path": tmp_path, "image_size": (8, 8)}
    found = data.create_dataset("image-folder", "test", **given)
    first, labels = found.batch([1, 0])
    some = pickle.loads(pickle.dumps(found.select(torch.tensor([1, 0]))))
    again, same = some.batch([0, 1])
    assert again.equal(first)
    assert same.equal(labels)
    assert found.masks([0], "box") is None
    with pytest.raises(OptionError, match="expected none for image-folder, got boxes; leave"):
        data.create_dataset("image-folder", "test", **given, options={"boxes": "marks"})
