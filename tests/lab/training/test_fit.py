"""The training loop: its end, the saved weights, and what compressions and stages add."""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch
from torch import Tensor, nn

from fredholm import Domain, ITNetOperator
from fredholm.data import LabelledDataset, make_loader
from fredholm.encoders import Inputs
from fredholm.errors import OptionError
from fredholm.families.itnet.compress import Fitting
from fredholm.lab.distill import compress
from fredholm.lab.distill import fit as stage
from fredholm.lab.distill.progress import Progress
from fredholm.lab.training.build import Batches
from fredholm.lab.training.fit import Goal, Limits, fit
from fredholm.lab.training.learner import Descent, Learner
from fredholm.lab.training.leases import InUseError, hold
from fredholm.training import Interrupted, TrainingFailed


class Points(LabelledDataset):
    def __init__(self):
        super().__init__("points", "train", torch.linspace(-1, 1, 8), ())

    def batch(self, indices, transform=None):
        labels = self.labels[torch.as_tensor(indices)]
        return labels[:, None], labels


class Line(Learner):
    """A learner of one slope, whose validation score is ``value`` times the epoch."""

    scores = ("val_score",)
    value = 1.0

    def __init__(self):
        torch.manual_seed(0)
        super().__init__(
            nn.Linear(1, 1), lambda rank, size: make_loader(Points(), 2), Descent(0.1), seed=0
        )

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return (self.model(inputs)[:, 0] - labels).square().mean()

    def validation_step(self, batch, batch_idx: int) -> None:
        pass

    def on_validation_epoch_end(self) -> None:
        self.metrics = {"val_score": self.value * (self.current_epoch + 1)}


VALIDATION = Batches(make_loader(Points(), 8))


@pytest.mark.parametrize(
    ("value", "mode", "epoch"), [(1.0, "max", 3), (1.0, "min", 1), (math.nan, "max", 3)]
)
def test_the_best_weights_are_saved_or_the_last_without_finite_scores(value, mode, epoch):
    module = Line()
    kept = []
    module.value = value
    found = fit(
        module,
        limits=Limits(3),
        keep=lambda model: kept.append(model.weight.item()),
        validation=VALIDATION,
        best=Goal("val_score", mode),
    )
    assert (found.best_epoch, found.stopped, len(found.rows)) == (epoch, "all epochs done", 3)
    assert (kept[-1] == module.model.weight.item()) == (epoch == 3)


def test_a_number_of_steps_ends_a_fit_within_an_epoch():
    found = fit(Line(), limits=Limits(3, steps=5), keep=lambda model: None)
    assert (found.rows[-1]["step"], found.stopped) == (5, "all steps done")


class Slopes(Line):
    """A learner that records every step's gradient and inputs, and does not change."""

    def __init__(self):
        super().__init__()
        self.descent = Descent(0.0, weight_decay=0.0)
        self.steps, self.seen = [], []

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(inputs)
        return super().loss(inputs, labels)

    def on_before_optimizer_step(self, optimizer) -> None:
        self.steps.append((self.seen, self.model.weight.grad.clone()))
        self.seen = []


@pytest.mark.parametrize(("together", "sizes"), [(1, [1, 1, 1, 1]), (3, [3, 1]), (8, [4])])
def test_an_accumulated_step_is_the_mean_of_its_batches(together, sizes):
    learner = Slopes()
    limits = Limits(epochs=2, accumulate=together, clip_norm=None)
    fit(learner, limits=limits, keep=lambda model: None)
    assert [len(seen) for seen, _ in learner.steps] == 2 * sizes
    for seen, found in learner.steps:
        inputs = torch.cat(seen)
        loss = Line.loss(learner, inputs, inputs[:, 0])
        (expected,) = torch.autograd.grad(loss, learner.model.weight)
        torch.testing.assert_close(found, expected)


def test_ctrl_c_ends_a_fit_without_folder_after_the_step(capsys):
    class Stopped(Line):
        def training_step(self, batch, batch_idx: int) -> Tensor:
            if self.global_step == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return super().training_step(batch, batch_idx)

    with pytest.raises(Interrupted, match=r"at step 2; without a folder no state is saved$"):
        fit(Stopped(), limits=Limits(3), keep=lambda model: None)
    assert "saving" not in capsys.readouterr().err


def test_double_precision_applies_to_inputs_of_several_tensors():
    class Several(Points):
        def batch(self, indices, transform=None):
            x, labels = super().batch(indices)
            return Inputs(x=x, place=labels.sign().long()), labels

    class Slope(Line):
        def loss(self, inputs, labels):
            assert (inputs["x"].dtype, inputs["place"].dtype) == (torch.float64, torch.int64)
            return super().loss(inputs["x"], labels)

    module = Slope()
    module.loader = lambda rank, size: make_loader(Several(), 2)
    fit(module, limits=Limits(1, precision="64"), keep=lambda model: None)
    assert module.model.weight.dtype == torch.float64


def test_wrong_precisions_and_non_finite_losses_are_refused():
    with pytest.raises(OptionError, match="precision: expected one of 32, 64, bf16"):
        Limits(1, precision="fp8")
    module = Line()
    with torch.no_grad():
        module.model.weight.fill_(math.inf)
    with pytest.raises(TrainingFailed, match=r"step 0 \(epoch 1, batch 1\); lower the learning"):
        fit(module, limits=Limits(1), keep=lambda model: None)


def test_a_stage_keeps_parameters_frozen():
    from fredholm import linearize
    from fredholm.training import StageOptions
    from tests.lab.training.test_conversion import Counting
    from tests.linearize import models

    teacher = models.bert()
    teacher.bert.embeddings.word_embeddings.weight.requires_grad_(False)
    data = (Counting(8, 0), Counting(8, 1))
    once = StageOptions(epochs=1, lr=1e-2)
    rest = {"tune": StageOptions(epochs=0), "probe": False}
    student = linearize(teacher, "hedgehog", data=data, distil=once, **rest).model
    frozen = {name for name, value in student.named_parameters() if not value.requires_grad}
    assert frozen == {"bert.embeddings.word_embeddings.weight"}


def test_a_stage_locks_its_folder(tmp_path, monkeypatch):
    from fredholm.training import fine_tune
    from tests.lab.training.test_conversion import Counting
    from tests.linearize import models

    def entered(*_, **__):
        with hold(tmp_path / "run" / "stage-tuned"):
            pytest.fail("two processes in one folder")

    monkeypatch.setattr(stage, "fit", entered)
    with pytest.raises(InUseError, match="in use by process"):
        fine_tune(models.bert(), data=(Counting(16, 0),) * 2, folder=tmp_path / "run")


# --- compression ----------------------------------------------------------------------------------


def fitting() -> Fitting:
    torch.manual_seed(0)
    exact = ITNetOperator(8, 2, width=4, frequencies=2).eval()
    signals = [(torch.randn(2, 6, 8), Domain.line(6)) for _ in range(3)]
    return Fitting(exact, 2, signals, held_out=signals[:1], width=4)


def test_a_resumed_compression_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    monkeypatch.setattr(compress, "PATIENCE", 5)
    whole = fitting()
    ways = {}
    steps = 20
    expected = compress.fit_layer(Progress(tmp_path / "whole", {}, False), 1, whole, steps)

    inner = compress.Factors.training_step

    def stopping(self, batch, batch_idx):
        if self.global_step == 8:  # within the second window of the plateau
            os.kill(os.getpid(), signal.SIGINT)
        return inner(self, batch, batch_idx)

    monkeypatch.setattr(compress.Factors, "training_step", stopping)
    with pytest.raises(Interrupted, match="--resume"):
        compress.fit_layer(Progress(tmp_path / "stopped", {}, False), 1, fitting(), steps)
    monkeypatch.setattr(compress.Factors, "training_step", inner)
    for way in ("resumed", "read"):
        again = fitting()
        progress = Progress(tmp_path / "stopped", {}, True)
        ways[way] = compress.fit_layer(progress, 1, again, steps)
        for name, value in again.student.state_dict().items():
            assert value.equal(whole.student.state_dict()[name]), (way, name)
    assert ways == {"resumed": expected, "read": expected}


def test_a_compression_stops_when_nothing_improves(tmp_path, monkeypatch):
    monkeypatch.setattr(compress, "PATIENCE", 5)
    monkeypatch.setattr(compress, "LR", 1e-12)
    report = compress.fit_layer(Progress(None, {}, False), 1, fitting(), 100)
    assert report["steps"] == 10
