"""The report of a model of texts: its steps, its maps over tokens, and its mistakes as tables."""

from __future__ import annotations

import json

import pytest
import torch

from fredholm.errors import ShapeError
from fredholm.explain import ReportOptions, Samples, report
from fredholm.lab.report.evolution import evolution_section
from fredholm.models import create_model
from fredholm.models.trajectory import trajectory
from tests.parts import parts

from .conftest import tiny_images, tiny_model

NUMBERS = torch.tensor(
    [[3, 4, 5, 6], [4, 2, 0, 0], [7, 8, 2, 0], [5, 5, 3, 2], [8, 0, 0, 0], [2, 3, 4, 0]]
)
TEXTS = ["<b>one</b>", "two", "three " * 60, "four", "five", "six"]


def text_model(**options):
    torch.manual_seed(0)
    sizes = {
        "vocabulary": 9,
        "max_length": 8,
        "dim": 8,
        "heads": 2,
        "depth": 2,
        "frequencies": 4,
        "num_classes": 2,
    }
    model = create_model("continuous_text_micro", **parts(**sizes | options))
    torch.nn.init.normal_(model.head.weight)
    return model.eval()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    model, folder = text_model(), tmp_path_factory.mktemp("report")
    with torch.no_grad():
        labels = 1 - model(NUMBERS).argmax(-1)
    labels[:2] = 1 - labels[:2]
    report(
        model,
        Samples(NUMBERS, labels, texts=TEXTS, classes=["bad", "good"]),
        out_dir=folder,
        options=ReportOptions(samples=4),
    )
    return model, folder


def test_examples_are_tables_of_texts(written):
    _, folder = written
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page
    assert "4 of 6 texts were given a wrong class" in page
    assert "33.33%" in page
    assert "three three" in page
    assert page.count("three ") < 40, "a long text is cut"
    assert (
        "continuous" not in page or "continuous model with the softmax operator: 2 layers" in page
    )


def test_maps_ask_real_tokens(written):
    _, folder = written
    numbers = json.loads((folder / "numbers.json").read_text())
    queries = numbers["maps"]["layer 1"]["queries"]
    chosen = torch.randperm(6, generator=torch.Generator().manual_seed(0))[0]
    length = int((NUMBERS[chosen] != 0).sum())
    assert queries == sorted({0, length // 2, length - 1})


def test_steps_are_those_of_the_trajectory(written):
    model, folder = written
    numbers = json.loads((folder / "numbers.json").read_text())["steps"]
    assert set(numbers) == {"2", "4", "8"}
    chosen = torch.randperm(6, generator=torch.Generator().manual_seed(0))[:4]
    expected = trajectory(model, NUMBERS[chosen], 4)
    for key, values in expected.items():
        assert numbers["4"][key] == pytest.approx(values, rel=1e-5)
    assert (folder / "steps.png").is_file()


def test_other_models_have_no_steps():
    images, _ = tiny_images(2)
    assert evolution_section(tiny_model(), images, seed=0) == (None, {})


def test_exact_recovery_is_shown_at_its_own_steps_only():
    section, numbers = evolution_section(text_model(norm="post", scheme="relaxed"), NUMBERS, seed=0)
    assert section is not None
    assert set(numbers) == {"2"}


def test_convolutional_stages_show_steps_without_kernels(tmp_path):
    torch.manual_seed(0)
    stages = ((4, 1, 1, 2), (8, 2, 2, 2))
    model = create_model(
        "continuous_cvt_micro",
        **parts(stages=stages, image_size=(8, 8), num_classes=3),
    )
    images, labels = tiny_images(6)
    page = report(
        model,
        Samples(images, labels, mean=[0.3], std=[0.35]),
        out_dir=tmp_path,
        options=ReportOptions(samples=3),
    )
    text = page.read_text(encoding="utf-8")
    assert 'id="steps"' in text
    assert 'id="profile"' not in text


@pytest.mark.parametrize(
    ("numbers", "texts", "message"),
    [(NUMBERS, TEXTS[:2], "received 2 for 6 rows"), (NUMBERS[:0], None, "at least one text")],
)
def test_texts_that_do_not_fit(numbers, texts, message, tmp_path):
    with pytest.raises(ShapeError, match=message):
        report(text_model(), Samples(numbers, texts=texts), out_dir=tmp_path)


def test_without_texts_their_numbers_are_shown(tmp_path):
    page = report(
        text_model(),
        Samples(NUMBERS, torch.zeros(6, dtype=torch.long)),
        out_dir=tmp_path,
        options=ReportOptions(samples=2),
    )
    assert "<td>4 2</td>" in page.read_text(encoding="utf-8")
