"""Pretrained starts with linear attention: distillation, its data and its time. Backbones of two
small random layers replace the fetched ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from fredholm.errors import CheckpointError
from fredholm.lab.compare import finals as ending
from fredholm.lab.compare import report, starts, students
from fredholm.lab.compare.backbones import Backbone, class_and_mean, mean_of_tokens
from fredholm.lab.compare.clock import Clock
from fredholm.lab.compare.finals import Finals
from fredholm.lab.compare.halving import Halving
from fredholm.lab.compare.plain import PLAIN
from fredholm.lab.compare.saved import Pick, load_pick, save_pick
from fredholm.lab.compare.starts import STARTS, Start, Started
from fredholm.lab.compare.trials import Trials

from ...linearize.models import bert, dinov2
from .test_starts import pictures, said


def reader(folder) -> Backbone:
    """Return a backbone of texts with letters as tokens."""
    model = bert().base_model.eval()

    def arguments(texts):
        rows = [torch.tensor([ord(c) % 30 + 1 for c in text[:20]]) for text in texts]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"input_ids": tokens, "attention_mask": (tokens > 0).long()}

    return Backbone(model, arguments, mean_of_tokens)


def viewer(folder) -> Backbone:
    model = dinov2().base_model.eval()
    return Backbone(model, lambda images: {"pixel_values": images[..., :8, :8]}, class_and_mean)


@pytest.fixture(autouse=True)
def fetched(monkeypatch):
    """Pretend that the weights are available."""
    starts._loaded.cache_clear()
    monkeypatch.setattr(starts, "describe", lambda name: {"fetched": True})
    monkeypatch.setattr(starts, "dataset_path", lambda name: Path(name))
    monkeypatch.setattr(students, "STEPS", 30)


def start(worded: bool = True, linear: bool = True) -> Start:
    given = ("minilm", True, reader) if worded else ("vit-s-focus", False, viewer)
    return Start("a small one", *given, linear=linear)


def begun(start: Start, data) -> students.Student:
    start.begin(data)
    assert start.student is not None
    return start.student


@pytest.mark.parametrize(("worded", "data"), [(True, said()), (False, pictures(8, 3))])
def test_features_approach_the_teachers(worded, data):
    taught, other = start(worded), start(worded, linear=False)
    student = begun(taught, data)
    teacher = other.features(other.view(data))
    inputs = taught.view(data).batch(torch.arange(40))[0]
    with torch.inference_mode():
        raw = student.backbone(taught.given(data, inputs))
    line = str(taught.prepare(Clock(1).timer))
    before = student.loss()
    after = taught.features(taught.view(data))
    assert not torch.allclose(after, teacher, atol=1e-3)
    assert (after - teacher).norm() < 0.8 * (raw - teacher).norm()
    assert f"learnt from 40 {data.kind.many}" in line
    assert f"{float(before):.2f} after" in line
    assert taught.prepare(Clock(1).timer) is None  # once
    assert torch.equal(other.features(other.view(data)), teacher)  # its own stays as it was


def test_features_are_cached_for_the_current_samples_only():
    data = said()
    (first, second) = (start(), start())
    first.fit(data, 0)
    state = torch.get_rng_state()
    second.fit(data, 1)
    assert torch.equal(torch.get_rng_state(), state)
    one, other = (s.features(s.view(data)) for s in (first, second))
    assert torch.equal(one, other)
    student = first.student
    fewer = data.select(torch.arange(30))
    first.fit(fewer, 0)  # a fold of the same search
    assert first.student is student
    another = begun(first, fewer)  # of another search
    assert another is not student
    assert not first.known
    assert len(another.samples) == 30


def test_labels_are_not_read():
    arguments, labels = begun(start(), said()).samples.batch([1, 3])
    assert set(arguments) == {"input_ids", "attention_mask"}
    assert not labels.any()


class Ticks:
    """A timer that advances by a second per call."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def finals(data, minutes, timer) -> tuple[Finals, list[str]]:
    lines: list[str] = []
    trials = Mock(spec=Trials)
    trials.splits = SimpleNamespace(train=data, val=data, test=data)
    trials.clock = Clock(minutes, timer=timer)
    state = {"finals": {"rows": []}, "sizes": {}}
    return Finals(trials, Mock(spec=Halving), state, lines.append, lambda: None), lines


@pytest.fixture
def alone(monkeypatch):
    """Return the name and a small linear start, without the frozen one."""
    name = "minilm-linear"
    small = start()
    monkeypatch.setattr(ending, "PLAIN", {name: replace(PLAIN[name], start=small)})
    return name, small


def test_the_estimate_includes_distillation(alone):
    name, small = alone
    needed = small._needs([said()] * 3, Ticks())[1]
    assert needed == 120 / 8 + 30  # a second for eight samples, and one a step
    made, lines = finals(said(), 30, Ticks())
    assert name in dict(made._beside())
    learnt = made.state["learnt"][name]
    assert lines == [f"{name}: {learnt}"]
    assert not small.known  # read when it is their turn


def test_too_little_time_for_distillation_is_reported(alone):
    name, small = alone
    made, lines = finals(said(), 3, Ticks())
    assert name not in dict(made._beside())
    (line,) = lines
    assert "30 steps of distillation and reading 120 texts takes about 0.8 minutes" in line
    assert "a share of 0.25" in line
    assert not begun(small, made.trials.splits.train).learned


def test_the_report_describes_the_training_of_linear_attention():
    line = {"operator": "minilm-linear", "test": 0.7, "sd": None, "seeds": 1}
    verdict = {"pick": "minilm-linear", "operator": None, "table": [line], "train": ""}
    state = {"verdict": verdict, "higher": True, "measure": "accuracy", "full_steps": 1}
    state |= {
        "percent": True,
        "finals": {"steps": {}},
        "learnt": {"minilm-linear": "learnt from 9 texts"},
    }
    found = dict(report.recommendation(state))
    assert "MiniLM with linear attention" in found["recommended"]
    assert found["its attention"] == "learnt from 9 texts"


def test_frozen_and_linear_starts_share_their_weights():
    for name in ("minilm", "vit-s"):
        frozen, linear = STARTS[name], STARTS[f"{name}-linear"]
        assert (frozen.linear, linear.linear) == (False, True)
        assert (frozen.weights, frozen.load) == (linear.weights, linear.load)


@pytest.mark.parametrize(("worded", "data"), [(True, said()), (False, pictures(8, 3))])
def test_a_saved_student_predicts_from_its_files(worded, data, tmp_path, monkeypatch):
    taught = start(worded)
    name = "minilm-linear" if worded else "vit-s-linear"
    monkeypatch.setitem(STARTS, name, taught)
    fitted = taught.fit(data, 0)
    save_pick(tmp_path, Pick(name, fitted, {}, {}, 1.0, "some"))
    inputs = taught.view(data).batch(torch.arange(40))[0]
    expected = fitted(inputs)
    taught.student = None
    found = load_pick(tmp_path).fitted
    assert isinstance(found, Started)
    assert found.reader is None
    with torch.inference_mode():
        assert torch.allclose(found(inputs), expected, atol=1e-5)
        assert not torch.allclose(replace(found, maps=2 * found.maps)(inputs), expected, atol=1e-3)
    with pytest.raises(CheckpointError, match=r"maps: expected .* numbers, got 3;"):
        replace(found, maps=torch.zeros(3))(inputs)
