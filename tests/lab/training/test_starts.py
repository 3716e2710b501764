"""Pretrained starts: inputs, one reading per sample, and reports of skipped ones. One-line
functions replace the fetched backbones.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from fredholm.lab.compare import finals as ending
from fredholm.lab.compare import starts
from fredholm.lab.compare.clock import Clock
from fredholm.lab.compare.finals import Finals
from fredholm.lab.compare.halving import Halving
from fredholm.lab.compare.plain import BOOSTING, PLAIN, WORDS, serves
from fredholm.lab.compare.report import left_out
from fredholm.lab.compare.starts import STARTS, Start
from fredholm.lab.compare.trial import judge
from fredholm.lab.compare.trials import Trials
from fredholm.lab.data.kinds.fields import FieldDataset
from fredholm.lab.data.kinds.images import ArrayDataset
from fredholm.lab.data.kinds.language import HiddenTokens
from fredholm.lab.data.kinds.texts import TextDataset
from fredholm.lab.data.vocabulary import Vocabulary
from fredholm.lab.training.tasks import TASKS, Regression, register_task

TEXTS = [f"{'a FINE' if n % 2 else 'a dull'} film of {n} minutes" for n in range(40)]


def said(task: str = "classification") -> TextDataset:
    labels = torch.arange(40) % 2
    words = Vocabulary.of_words(["film"], 1)
    targets = 2.0 * labels if task == "regression" else None
    return TextDataset("said", "train", TEXTS, labels, ("dull", "fine"), words, 2, targets, task)


def pictures(side: int = 8, channels: int = 1) -> ArrayDataset:
    """Return dark and bright pictures."""
    labels = torch.arange(40) % 2
    noise = torch.randint(
        60, (40, channels, side, side), generator=torch.Generator().manual_seed(0)
    )
    images = (noise + 150 * labels[:, None, None, None]).to(torch.uint8)
    scale = {"mean": (0.3,) * channels, "std": (0.2,) * channels}
    return ArrayDataset("grey", "train", images, labels, ("dark", "bright"), **scale)


@pytest.fixture
def start(monkeypatch):
    """Return a start that checks texts for the word FINE, and its list of read texts."""
    given = []

    def load(folder):
        def features(texts):
            given.extend(texts)
            return torch.tensor([[float("FINE" in text), 1.0 / len(text)] for text in texts])

        return features

    monkeypatch.setattr(starts, "describe", lambda name: {"fetched": True})
    return Start("a line", "minilm", True, load), given


def test_original_texts_are_read_once(start):
    start, given = start
    data = said()  # whose own batches know one word of each
    for _ in range(2):
        found = judge(start.fit(data, 0), start.view(data), 7)
        assert found.score == 1.0
    assert sorted(given) == sorted(TEXTS)
    inputs, labels = start.view(data).batch(torch.tensor([3, 0]))
    assert (inputs, labels.tolist()) == ([TEXTS[3], TEXTS[0]], [1, 0])


def test_texts_with_numeric_labels_are_regressed(start):
    start, _ = start
    data = said("regression")
    answers = start.fit(data, 0)(TEXTS[:4])
    assert torch.allclose(answers.float(), torch.tensor([[0.0], [2.0], [0.0], [2.0]]), atol=0.2)


@pytest.mark.parametrize(("side", "channels", "seen"), [(8, 1, 70), (100, 3, 98), (230, 3, 224)])
def test_pictures_are_resized_to_multiples_of_the_patch(monkeypatch, side, channels, seen):
    shapes = []

    def load(folder):
        def features(images):
            shapes.append(tuple(images.shape[1:]))
            return images.mean((2, 3))

        return features

    start = Start("a mean", "vit-s-focus", False, load)
    data = pictures(side, channels)
    assert judge(start.fit(data, 0), start.view(data), 9).score == 1.0
    assert set(shapes) == {(3, seen, seen)}
    pixels = starts._pixels(data, data.batch(torch.arange(2))[0])
    whole = data.raw(torch.arange(2))[0].float() / 255
    scale = torch.tensor(starts.STD)[:, None, None]
    back = pixels * scale + torch.tensor(starts.MEAN)[:, None, None]
    assert torch.allclose(back.mean((2, 3)), whole.expand(-1, 3, -1, -1).mean((2, 3)), atol=0.02)


def test_the_estimate_counts_all_samples(start, monkeypatch):
    """It counts training samples up to a limit, and every sample of the other splits."""
    start, given = start
    monkeypatch.setattr(starts, "MOST", 30)
    seconds = iter(range(4))
    doing, needed = start._needs((said(), said(), said()), lambda: next(seconds))
    assert doing == "reading 110 texts"
    assert needed == pytest.approx(110 / starts.TRIED)

    given.clear()
    model = start.fit(said(), 0)
    assert len(given) == 30
    judge(model, start.view(said()), 7)
    assert len(given) == 40


def test_starts_support_texts_or_pictures():
    assert serves("minilm", said()) is None
    assert serves("vit-s", pictures()) is None
    assert "needs texts" in str(serves("minilm", pictures()))
    assert "needs pictures" in str(serves("vit-s", said()))
    assert "needs series" in str(serves("minirocket", said()))
    assert serves("words", said("regression")) is not None


def finals(data, minutes=5.0) -> tuple[Finals, list[str]]:
    lines: list[str] = []
    splits = SimpleNamespace(train=data, val=data, test=data)
    trials = Mock(spec=Trials)
    trials.splits = splits
    trials.clock = Clock(minutes)
    state = {"finals": {"rows": []}, "rungs": [], "sizes": {}}
    return Finals(trials, Mock(spec=Halving), state, lines.append, lambda: None), lines


def test_support_follows_the_data_set_and_task_not_their_attributes():
    hidden = HiddenTokens(said(), 0.5)  # whose ``texts`` are a data set of tokens
    assert not STARTS["minilm"].fits(hidden)
    assert STARTS["minilm"].fits(said())
    fields = FieldDataset("f", "train", *torch.zeros(2, 2, 1, 4, 4), ("p",))
    fields.mean, fields.shape = (0.0,), (1, 4, 4)  # of something else
    assert not STARTS["vit-s"].fits(fields)
    try:
        register_task("grade")(type("Grade", (Regression,), {}))
        graded = said("regression")
        graded.task = "grade"
        assert serves(BOOSTING, graded) is None
        assert serves(WORDS, graded) is not None
        assert "one answer per sample" in str(serves(BOOSTING, hidden))
    finally:
        TASKS._entries.pop("grade", None)


def test_missing_weights_are_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path))
    for data, name in ((said(), "minilm"), (pictures(), "vit-s")):
        made, lines = finals(data)
        assert name not in dict(made._beside())
        fetch = f"fredholm data fetch {STARTS[name].weights}"
        assert lines == [f"{name}: left out: its weights are not here; {fetch} brings them"]
        reasons = left_out(made.state)
        assert list(reasons) == [STARTS[name].title]
        assert all(fetch in why for why in reasons.values())


def test_too_little_time_for_a_start_is_reported(start, monkeypatch):
    start, _ = start
    method = PLAIN["minilm"]
    monkeypatch.setattr(ending, "PLAIN", {"minilm": replace(method, start=start)})
    made, lines = finals(said())
    assert dict(made._beside())["minilm"] is None
    assert not lines
    made, lines = finals(said(), 1e-9)
    start.known.clear()
    assert "minilm" not in dict(made._beside())
    assert "reading 120 texts takes about" in lines[0]
    made.state["finals"]["rows"] = [{"operator": "minilm"}]  # one that was tried stays
    made.state["left_out"] = {}
    assert "minilm" in dict(made._beside())
