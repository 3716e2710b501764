"""Fields, their equation, and questions on pictures."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch
from evidence.datasets import mosaics_qa, visual_questions
from evidence.datasets.darcy_equation import random_coefficients, solve_darcy
from PIL import Image

from fredholm.data import FieldDataset
from fredholm.errors import DataError, OptionError, ShapeError
from fredholm.lab import data

from .fixtures import write_idx


def centres(n: int) -> tuple[np.ndarray, np.ndarray]:
    x = (np.arange(n) + 0.5) / n
    return np.meshgrid(x, x, indexing="ij")


def test_the_solver_converges_to_a_manufactured_solution_at_second_order():
    """u = sin(πx) sin(2πy) with a = 1 + x + y²/2: f = −∇·(a∇u) by hand."""
    errors = []
    for n in (8, 16, 32):
        x, y = centres(n)
        a = 1 + x + y**2 / 2
        u = np.sin(np.pi * x) * np.sin(2 * np.pi * y)
        ux = np.pi * np.cos(np.pi * x) * np.sin(2 * np.pi * y)
        uy = 2 * np.pi * np.sin(np.pi * x) * np.cos(2 * np.pi * y)
        f = -(ux + y * uy - 5 * np.pi**2 * a * u)
        errors.append(np.linalg.norm(solve_darcy(a, f) - u) / np.linalg.norm(u))
    assert errors[-1] < 5e-3
    orders = [np.log2(errors[i] / errors[i + 1]) for i in range(2)]
    assert min(orders) > 1.9, orders


def test_the_solver_balances_fluxes_of_a_discontinuous_medium():
    """The source leaves through the border, so the sum of the border's fluxes is the area."""
    a = random_coefficients(16, 1, 3)[0]
    u = solve_darcy(a)
    border = (
        2 * (a[0] * u[0]).sum()
        + 2 * (a[-1] * u[-1]).sum()
        + 2 * (a[:, 0] * u[:, 0]).sum()
        + 2 * (a[:, -1] * u[:, -1]).sum()
    )
    assert border == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(DataError, match="positive, finite"):
        solve_darcy(a - 20)
    with pytest.raises(ShapeError, match="square grid"):
        solve_darcy(a[:4])


def test_a_medium_is_the_same_at_every_resolution():
    fine, coarse = random_coefficients(64, 3, 5), random_coefficients(16, 3, 5)
    assert set(np.unique(fine)) == {3.0, 12.0}
    assert (fine[:, 2::4, 2::4] == coarse).mean() > 0.9
    small = {"train": 6, "val": 2, "test": 3}
    parts = {
        n: data.create_dataset("darcy-generated", "test", options={**small, "resolution": n})
        for n in (8, 32)
    }
    assert parts[32].labels.shape == (3, 1, 32, 32)
    averaged = parts[32].labels.unflatten(2, (8, 4)).unflatten(4, (8, 4)).mean((3, 5))
    assert torch.allclose(averaged, parts[8].labels, atol=1e-7)
    assert parts[8].scale.equal(parts[32].scale), "both are scaled by the training fields"
    with pytest.raises(OptionError, match="expected 8, 16 or 32, got 12"):
        data.create_dataset("darcy-generated", "test", options={"resolution": 12})


def test_fetched_fields_are_read_and_damaged_ones_refused(tmp_path):
    for name, n, size in (("train_16", 20, 16), ("test_16", 4, 16), ("test_32", 4, 32)):
        fields = {"x": torch.rand(n, size, size) > 0.5, "y": torch.rand(n, size, size)}
        torch.save(fields, tmp_path / f"darcy_{name}.pt")
    assert len(data.create_dataset("darcy", "train", path=tmp_path)) == 18
    assert (
        data.create_dataset(
            "darcy", "test", path=tmp_path, options={"resolution": 32}
        ).labels.shape[-1]
        == 32
    )
    (tmp_path / "darcy_test_16.pt").write_bytes(b"no tensors")
    with pytest.raises(DataError, match="truncated or of another format"):
        data.create_dataset("darcy", "test", path=tmp_path)
    field = torch.rand(3, 1, 4, 4)
    with pytest.raises(DataError, match="answers of sample 2"):
        FieldDataset("x", "train", field, field.index_fill(0, torch.tensor([2]), torch.nan), ("u",))
    with pytest.raises(ShapeError, match=r"expected \(N, C, H, W\)"):
        FieldDataset("x", "train", field, field[..., :2], ("u",))


def test_answers_to_mosaic_questions_are_correct(tmp_path):
    options = {"train": 60, "val": 4, "test": 40, "cell": 6}
    write_idx(tmp_path, train=200, test=50)
    train = data.create_dataset("mosaics-qa", "train", path=tmp_path, options=options)
    inputs, _ = train.batch(torch.arange(60))
    assert inputs["image"].shape == (60, 1, 12, 12)
    assert inputs["tokens"].max() < len(train.vocabulary)
    assert inputs["tokens"].min() == 0
    assert (inputs["tokens"] != 1).all(), "every word is known"
    assert train.batch([7])[0]["image"].equal(inputs["image"][7:8])
    kinds = Counter(text.split()[0] + text.split()[1] for text in train.texts)
    assert set(kinds) == {"whatis", "howmany", "isthere"}
    again = data.create_dataset("mosaics-qa", "train", path=tmp_path, options=options)
    assert again.texts == train.texts
    only = data.create_dataset(
        "mosaics-qa", "test", path=tmp_path, options=options | {"kinds": ["existence"]}
    )
    assert {train.classes[i] for i in only.labels.tolist()} == {"yes", "no"}
    with pytest.raises(OptionError, match="kinds: expected some of"):
        data.create_dataset("mosaics-qa", "test", path=tmp_path, options={"kinds": ["colour"]})


@pytest.mark.parametrize("kind", mosaics_qa.KINDS)
def test_answers_equal_those_by_hand(kind):
    names = mosaics_qa.NAMES
    yes = 0
    for key in range(200):
        cells = [key % 10, (key // 3) % 10, key % 4, (key // 7) % 10]
        text, answer = mosaics_qa.ask(cells, kind, 9, key)
        shown = [names[c] for c in cells]
        if "right of" in text:
            place = shown.index(text.split()[-2])
            assert place in (0, 2)
            assert shown.count(shown[place]) == 1
            assert answer == shown[place + 1]
        elif "what is in" in text:
            assert answer == shown[mosaics_qa.PLACES.index(" ".join(text.split()[4:6]))]
        elif "how many" in text:
            assert int(answer) == shown.count(text.split()[6]) >= 1
        else:
            assert (answer == "yes") == (text.split()[3] in shown)
            yes += answer == "yes"
    if kind == "existence":
        assert 70 < yes < 130, "yes and no are equally frequent"


def write_vqa(folder, n: int = 12):
    """Write VQA v2's two files per year and its pictures."""
    for year in visual_questions.YEARS:
        (folder / year).mkdir(parents=True)
        questions, annotations = [], []
        for i in range(n):
            Image.new("RGB", (20, 14), (20 * (i % 3), 9, 9)).save(
                folder / year / f"COCO_{year}_{i:012d}.jpg"
            )
            questions.append(
                {
                    "image_id": i,
                    "question": f"what colour is number {i % 3} ?",
                    "question_id": 10 * i,
                }
            )
            answers = [
                {
                    "answer": ("Red.", "the red", "blue")[(i + j) % 2 * 2 if j < 4 else i % 2],
                    "answer_id": j,
                }
                for j in range(10)
            ]
            annotations.append(
                {"question_id": 10 * i, "image_id": i, "answers": answers, "answer_type": "other"}
            )
        (folder / f"v2_OpenEnded_mscoco_{year}_questions.json").write_text(
            json.dumps({"questions": questions})
        )
        (folder / f"v2_mscoco_{year}_annotations.json").write_text(
            json.dumps({"annotations": annotations})
        )
    return folder


def write_nlvr2(folder, n: int = 8):
    """Write NLVR2's lines and its pairs of pictures."""
    for part, where in (("train", "images/train/7"), ("dev", "dev"), ("test1", "test1")):
        (folder / where).mkdir(parents=True)
        lines = []
        for i in range(n):
            for side in (0, 1):
                Image.new("RGB", (16, 16), (i, 100 * side, 3)).save(
                    folder / where / f"{part}-{i}-0-img{side}.png"
                )
            row = {
                "identifier": f"{part}-{i}-0-1",
                "sentence": "the left one is darker",
                "label": ("True", "False")[i % 2],
            }
            lines.append(json.dumps(row | ({"directory": 7} if part == "train" else {})))
        (folder / f"{part}.json").write_text("\n".join(lines) + "\n")
    return folder


def test_official_files_of_vqa_v2_are_read(tmp_path):
    options = {"image_size": 8, "answers": 5, "min_count": 1}
    train = data.create_dataset(
        "vqa-v2", "train", path=write_vqa(tmp_path), val_fraction=0.25, options=options
    )
    test = data.create_dataset("vqa-v2", "test", path=tmp_path, options=options)
    assert (len(train), len(test), train.task) == (9, 12, "answers")
    assert set(train.classes) <= {"red", "blue"}
    inputs, scores = test.batch([0, 1])
    assert inputs["image"].shape == (2, 3, 8, 8)
    assert scores.shape == (2, len(train.classes))
    assert ((scores >= 0) & (scores <= 1)).all()
    given = Counter(visual_questions.read_vqa(tmp_path, "val2014")[0].answers)
    assert scores[0, train.classes.index("red")] == min(given["red"] / 3, 1)
    (tmp_path / "v2_mscoco_val2014_annotations.json").write_text('{"annotations": []}')
    with pytest.raises(DataError, match="expected questions that fit"):
        data.create_dataset("vqa-v2", "test", path=tmp_path, options=options)
    with pytest.raises(OptionError, match="expected path"):
        data.create_dataset("vqa-v2", "test")


def test_official_files_of_nlvr2_are_read(tmp_path):
    train = data.create_dataset(
        "nlvr2", "train", path=write_nlvr2(tmp_path), options={"image_size": 8}
    )
    inputs, labels = train.batch([0, 1])
    assert inputs["image"].shape == (2, 2, 3, 8, 8)
    assert labels.tolist() == [1, 0]
    assert (inputs["image"][0, 0, 1] < inputs["image"][0, 1, 1]).all(), (
        "the left picture comes first"
    )
    (tmp_path / "dev.json").write_text('{"sentence": "no label"}\n')
    with pytest.raises(DataError, match="line 1: expected a sentence, an identifier and a label"):
        data.create_dataset("nlvr2", "val", path=tmp_path)
