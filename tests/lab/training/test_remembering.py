"""Training of the state's memory: exercises from texts, varying windows, and a control without
state.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fredholm import linearize
from fredholm.convert import replace_attention
from fredholm.errors import DataError, OptionError
from fredholm.lab.distill.data import TokenWindows
from fredholm.lab.distill.exercises import Exercises
from fredholm.lab.distill.matching import Lengthening, Matching
from fredholm.lab.distill.needles import SAID
from fredholm.linearization import LinearHeads
from fredholm.training import Interrupted, StageOptions, fine_tune

from .test_decoder_conversion import FAST, MATCH, OFF, TEXTS, VAL, Letters, llama, windows
from .test_needles import Framed

LENGTH = 256
PROSE = ("a quick brown fox jumps over one lazy dog and then sleeps under an old oak tree. " * 60,)


def exercises(share: float = 1.0, length: int = LENGTH, **options) -> Exercises:
    source = TokenWindows("letters", "train", PROSE, Letters(), length)
    return Exercises(source, Letters(), share, **options)


def text(tokens: torch.Tensor) -> str:
    return bytes(tokens.tolist()).decode()


# --- samples --------------------------------------------------------------------------------------


def test_exercises_state_a_fact_and_query_it_later():
    data = exercises()
    found = [text(data.exercise(i)) for i in range(18)]
    assert all(len(x) == LENGTH for x in found)
    needles = [x for x in found if "Remember it" in x]
    assert needles
    for one in needles:
        number = one.split("The pass key is ")[1][:5]
        assert SAID.format(number) in one
        assert one.count(number) >= 2
        assert one.rindex(number) > one.index("Remember it")
    lists = [x for x in found if x not in needles and any(c.isdigit() for c in x)]
    assert lists
    for one in lists:
        numbers = [x for x in one.replace("\n", " ").split() if x.isdigit()]
        assert any(numbers.count(x) > 1 for x in numbers)
    assert len(needles) + len(lists) < len(found)  # the others are copies


def test_a_fixed_share_of_the_windows_are_exercises():
    data, again = exercises(0.25), exercises(0.25)
    assert 0 < data.chosen.float().mean() < 0.6
    every = torch.arange(len(data))
    inputs, labels = data.batch(every)
    plain, following = data.base.batch(every)
    changed = (inputs["input_ids"] != plain["input_ids"]).any(1)
    assert changed.equal(data.chosen)
    assert labels[~changed].equal(following[~changed])
    assert labels[:, :-1].equal(inputs["input_ids"][:, 1:])
    assert inputs["input_ids"].equal(again.batch(every)[0]["input_ids"])
    assert not inputs["input_ids"].equal(exercises(0.25, seed=1).batch(every)[0]["input_ids"])


def test_an_exercise_has_only_the_beginning_of_its_window():
    """Windows are documents with little filler, so the statement often comes first."""
    source = TokenWindows("letters", "train", [PROSE[0][:160]] * 60, Framed(), 162)
    data = Exercises(source, Framed(), 1.0)
    for index in range(60):
        tokens = data.exercise(index).tolist()
        assert tokens[0] == 1
        assert 1 not in tokens[1:]


def test_exercises_keep_the_positions_of_their_windows():
    source = TokenWindows("letters", "train", PROSE, Letters(), LENGTH, reach=1024)
    data = Exercises(source, Letters(), 1.0)
    inputs, _ = data.batch([1])
    assert inputs["position_ids"].equal(source.batch([1])[0]["position_ids"])


def test_impossible_exercises_are_refused():
    for share in (0.0, 1.5):
        with pytest.raises(OptionError, match="exercises: expected a share above 0"):
            exercises(share)
    with pytest.raises(DataError, match=r"expected windows of .* tokens or more for an exercise"):
        [exercises(length=24).exercise(i) for i in range(8)]

    class Blind(Letters):
        def __call__(self, texts):
            return {"input_ids": [[1 if c.isdigit() else ord(c) for c in x] for x in texts]}

    source = TokenWindows("letters", "train", PROSE, Letters(), LENGTH)
    with pytest.raises(OptionError, match="a tokenizer that tells digits apart beside exercises"):
        Exercises(source, Blind(), 0.25)
    few = TokenWindows("letters", "train", ("a b " * 200,), Letters(), LENGTH)
    with pytest.raises(DataError, match="expected texts with 8 words or more"):
        Exercises(few, Letters(), 0.25)


# --- windows --------------------------------------------------------------------------------------


def test_windows_are_narrowed_inside_the_context_only():
    replaced = replace_attention(llama(), "hedgehog", window=8, sinks=1, store=3, keep="0.1")
    ids = torch.arange(1, 25)[None]
    with torch.no_grad():
        before = replaced.model(ids).logits
        narrow = replace_attention(llama(), "hedgehog", window=3, sinks=1, keep="0.1")
        narrow.fill(replaced.new_tensors(), Path("here"))
        with replaced.narrowed(3):
            assert replaced.model(ids).logits.equal(narrow.model(ids).logits)
        assert replaced.model(ids).logits.equal(before)
    for wrong in (0, 9):
        narrowed = replaced.narrowed(wrong)
        with pytest.raises(OptionError, match="expected a window of 1 to 8 tokens"), narrowed:
            pass


VARIED = {"vary_window": True, "batch_size": 2}
REMEMBERS = FAST | {
    "distil": StageOptions(epochs=1, lr=2e-2, steps=2, **VARIED),
    "match": StageOptions(epochs=1, lr=5e-3, steps=5, **VARIED),
    "lengthen": StageOptions(epochs=1, lr=1e-3, steps=3, **VARIED),
    "window": 16,
    "store": 4,
}


def remembering() -> dict:
    """Return exercises of two lengths, with plain validation windows."""
    return REMEMBERS | {"data": (exercises(0.5), VAL), "longer": exercises(0.5, LENGTH + 64)}


def test_windows_vary_over_steps_and_are_sometimes_full(monkeypatch):
    seen = []
    inner = LinearHeads.in_window

    def noting(self, *given):
        seen.append((self.window, self.store))
        return inner(self, *given)

    monkeypatch.setattr(LinearHeads, "in_window", noting)
    match = StageOptions(epochs=1, lr=5e-3, steps=12, **VARIED)
    linearize(llama(), **FAST | {"distil": OFF, "match": match, "store": 2, "window": 8})
    found = set(seen)
    assert (8, 2) in found
    assert {store for window, store in found if window < 8} == {0}
    assert len(found) > 3


@pytest.mark.slow
def test_a_resumed_training_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    """It is stopped in the second and in the third stage."""
    whole = linearize(llama(), **remembering(), folder=tmp_path / "whole")
    inner = Matching.training_step

    for kind, steps, resume in ((Matching, 4, False), (Lengthening, 2, True)):
        left = [0]

        def stopping(self, batch, index):
            left[0] += type(self) is kind  # noqa: B023
            if left[0] == steps:  # noqa: B023
                raise Interrupted("stopped")
            return inner(self, batch, index)

        with monkeypatch.context() as patch:
            patch.setattr(Matching, "training_step", stopping)
            with pytest.raises(Interrupted, match="resume=True"):
                linearize(llama(), **remembering(), folder=tmp_path / "c", resume=resume)
    resumed = linearize(llama(), **remembering(), folder=tmp_path / "c", resume=True)
    assert resumed.report.scores == whole.report.scores
    ours, theirs = (x.model.state_dict() for x in (resumed, whole))
    assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_a_window_that_cannot_vary_is_refused():
    varied = StageOptions(vary_window=True)
    with pytest.raises(OptionError, match="expected a window beside vary_window=True"):
        linearize(llama(), **FAST | {"window": 0, "distil": varied})
    with pytest.raises(
        OptionError, match="tune: expected vary_window in distil, match or lengthen"
    ):
        linearize(llama(), **FAST | {"tune": varied})
    with pytest.raises(OptionError, match="options: expected vary_window in distil, match"):
        fine_tune(llama(), data=FAST["data"], task="tokens", options=varied)


# --- the control ----------------------------------------------------------------------------------


def test_a_control_is_trained_equally_and_has_no_state():
    data = (windows("train", TEXTS), VAL)
    done = linearize(
        llama(), **FAST | {"data": data, "match": MATCH, "state": False, "keep": "0.1"}
    )
    assert "distilled" not in done.report.scores
    assert done.report.scores["matched"] < done.report.scores["before"]
    ids = torch.arange(1, 41)[None]
    with torch.no_grad():
        far = done.model(ids).logits
        for part in done.model.modules():
            if isinstance(part, LinearHeads):
                for values in (part.feature_map, part.key_map):
                    for p in values.parameters():
                        p.add_(1.0)
        assert done.model(ids).logits.equal(far)  # the maps decide nothing
    with pytest.raises(OptionError, match="expected a window beside state=False"):
        linearize(llama(), **FAST | {"window": 0, "state": False})
