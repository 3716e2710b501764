"""Reports on models of texts: steps, maps over tokens, and tables of mistakes."""

from __future__ import annotations

import json
import re

import pytest
import torch

from fredholm.errors import ShapeError
from fredholm.explain import ReportOptions, Samples, report, report_run
from fredholm.lab.data import Vocabulary
from fredholm.lab.report.importance import Word, read_texts, word_support
from fredholm.lab.report.kernels import QUANTITIES, draw_steps, evolution_section
from fredholm.lab.report.style import LIGHT
from fredholm.models import create_model
from fredholm.models.trajectory import trajectory
from tests.parts import parts

from .conftest import tiny_images, tiny_model

NUMBERS = torch.tensor(
    [[3, 4, 5, 6], [4, 2, 0, 0], [7, 8, 2, 0], [5, 5, 3, 2], [8, 0, 0, 0], [2, 3, 4, 0]]
)
TEXTS = ["<b>one</b>", "two", "three " * 300, "four", "five", "six"]


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
    model = text_model()
    folder = tmp_path_factory.mktemp("report")
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


def test_examples_are_texts_beside_their_predictions(written):
    _, folder = written
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;one&lt;/b&gt;" in page
    assert "<b>one</b>" not in page
    assert "4 of 6 texts were classified wrongly" in page
    assert "33.33%" in page
    assert "three three" in page
    assert page.count("three ") < 130, "a long text is cut"
    assert "three …" in page
    assert (
        "continuous" not in page or "continuous model with the softmax operator: 2 layers" in page
    )


def test_maps_have_queries_at_real_tokens(written):
    _, folder = written
    numbers = json.loads((folder / "numbers.json").read_text())
    queries = numbers["maps"]["layer 1"]["queries"]
    chosen = torch.randperm(6, generator=torch.Generator().manual_seed(0))[0]
    length = int((NUMBERS[chosen] != 0).sum())
    assert queries == sorted({0, length // 2, length - 1})


def test_steps_equal_the_trajectory(written):
    model, folder = written
    numbers = json.loads((folder / "numbers.json").read_text())["steps"]
    assert set(numbers) == {"2", "4", "8"}
    chosen = torch.randperm(6, generator=torch.Generator().manual_seed(0))[:4]
    expected = trajectory(model, NUMBERS[chosen], 4)
    for key, values in expected.items():
        assert numbers["4"][key] == pytest.approx(values, rel=1e-5)
    assert (folder / "steps.png").is_file()


def test_every_panel_of_steps_is_titled_by_its_quantity():
    path = {key: [0.0, 1.0] for key in ("time", *QUANTITIES)}
    figure = draw_steps(LIGHT, {2: path, 4: path})
    assert [axes.get_title() for axes in figure.axes] == list(QUANTITIES.values())
    assert figure.axes[0].get_legend_handles_labels()[1] == ["2 steps", "4 steps"]


def test_other_models_have_no_steps():
    images, _ = tiny_images(2)
    assert evolution_section(tiny_model(), images, seed=0) == (None, {})


def test_exact_recovery_is_shown_only_at_its_number_of_steps():
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
    [
        (NUMBERS, TEXTS[:2], "expected one for each of 6 rows .* got 2"),
        (NUMBERS[:0], None, "at least one text"),
    ],
)
def test_mismatched_texts_are_refused(numbers, texts, message, tmp_path):
    with pytest.raises(ShapeError, match=message):
        report(text_model(), Samples(numbers, texts=texts), out_dir=tmp_path)


def test_without_texts_their_numbers_are_shown(tmp_path):
    page = report(
        text_model(),
        Samples(NUMBERS, torch.zeros(6, dtype=torch.long)),
        out_dir=tmp_path,
        options=ReportOptions(samples=2),
    )
    assert "<p>4 2</p>" in page.read_text(encoding="utf-8")


def read_digits(texts):
    """Return token numbers from words that are numbers."""
    rows = [torch.tensor([int(word) for word in text.split()]) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


class Sees(torch.nn.Module):
    """A model that predicts class 1 for texts with the word 7 or 8, and class 0 otherwise."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, numbers):
        there = ((numbers == 7) | (numbers == 8)).any(1).float()
        return torch.stack([1 - there, there], 1) * self.weight


@pytest.mark.parametrize(
    ("text", "decisive"),
    [("1 2 7 3", {2}), ("1 7 8 2 3", {1, 2}), ("1 2 3 4 5 6 7 8 1 2 3 4", {6, 7})],
)
def test_decisive_words_are_marked_even_beside_another_one(text, decisive):
    found = word_support(Sees(), text, read_digits, called=1)
    largest = max(word.support for word in found)
    assert {i for i, word in enumerate(found) if abs(word.support) > 0.15 * largest} == decisive
    assert [word.text for word in found] == text.split()


def test_the_support_of_a_word_is_its_change_of_the_log_odds():
    once = word_support(Sees(), "1 7 2", read_digits, called=1)[1]
    assert once.support == pytest.approx(6.0)  # from -3 without the word to 3
    assert once.without == pytest.approx(torch.sigmoid(torch.tensor(-3.0)).item())
    assert word_support(Sees(), "1 7 2", read_digits, called=0)[1].support == pytest.approx(-6.0)
    assert word_support(Sees(), "7", read_digits, called=1) == [Word("7")]


def film_model(**options):
    """Return a model that knows a few words, its texts, and their numbers."""
    vocabulary = Vocabulary("words", ("fine", "dull", "film", "a", "it", "is", "so"))
    model = text_model(**options)
    model.extra = {"vocabulary": vocabulary.to_dict(), "max_length": 8}
    texts = ["a fine film", "so dull it is", "a film it is"]
    return model, texts, read_texts(model.extra)


def answers_without(text, read, model):
    """Return the model's outputs for a text without each of its words."""
    words = text.split()
    texts = [" ".join(words[:i] + words[i + 1 :]) for i in range(len(words))]
    with torch.no_grad():
        return model(read(texts)).double()


def test_numbers_without_a_word_are_in_the_units_of_the_files(tmp_path):
    model, texts, read = film_model(num_classes=1)
    model.extra |= {"units": [50.0, 10.0], "classes": ["stars"]}
    page = report(
        model,
        Samples(read(texts), texts=texts, targets=torch.tensor([40.0, 50.0, 60.0])),
        out_dir=tmp_path,
        options=ReportOptions(samples=2),
    ).read_text(encoding="utf-8")
    found = torch.tensor([float(it) for it in re.findall(r'title="without it: ([^"]*)"', page)])
    outputs = torch.cat([answers_without(text, read, model)[:, 0] for text in texts])
    expected = outputs * 10 + 50
    off = (found[:, None] - expected).abs().amin(1)
    assert len(found) > 3
    assert off.max() < 0.01


def test_confidences_of_a_run_are_calibrated(tmp_path):
    """Those of examples, and of texts without a word."""
    model, texts, read = film_model()
    temperature = 4.0
    numbers = read(texts)
    labels = torch.tensor([1, 0, 1])
    model.save_pretrained(tmp_path / "model", classes=["bad", "good"], **model.extra)
    (tmp_path / "calibration.json").write_text(json.dumps({"temperature": temperature}))
    page = report_run(
        tmp_path,
        Samples(numbers, labels, texts=texts),
        options=ReportOptions(samples=2),
    ).read_text(encoding="utf-8")

    with torch.no_grad():
        logits = model(numbers).double()
    probability = (logits / temperature).softmax(-1).amax(1)
    raw = logits.softmax(-1).amax(1)
    assert f"{probability[0]:.0%}" != f"{raw[0]:.0%}", "the test must tell them apart"
    for each in probability.tolist():
        assert f"</b> {each:.0%}</p>" in page

    found = re.findall(r'title="without it: (\w+) (\d+%)"', page)
    expected = set()
    for text in texts:
        shares = (answers_without(text, read, model) / temperature).softmax(-1)
        for bad, good in shares.tolist():
            expected |= {("bad", f"{bad:.0%}"), ("good", f"{good:.0%}")}
    assert found
    assert set(found) <= expected


def test_marked_words_are_on_the_page(tmp_path):
    model, texts, read = film_model()
    model.extra |= {"classes": ["bad", "good"]}
    page = report(
        model,
        Samples(read(texts), torch.tensor([1, 0, 1]), texts=texts),
        out_dir=tmp_path,
        options=ReportOptions(samples=2),
    ).read_text(encoding="utf-8")
    marks = re.findall(r'<mark class="(for|against)\d" title="without it: \w+ \d+%"', page)
    assert len(marks) >= 3
    assert ">film</mark>" in page
    assert "supports the prediction" in page
