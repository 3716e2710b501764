"""A search for an operator: its rungs, its time, its recommendation and the splits it reads."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import yaml
from evidence.ten_sets.beside import further

from fredholm.errors import CheckpointError, OptionError
from fredholm.lab import compare as comparison
from fredholm.lab.cli.main import main
from fredholm.lab.compare import choose, finals, halving, splits, trial, trials
from fredholm.lab.compare import search as searching
from fredholm.lab.compare.clock import Clock, Pace, share_steps
from fredholm.lab.compare.plain import BOOSTING, MINIROCKET, PLAIN, boosting, words
from fredholm.lab.compare.report import to_markdown
from fredholm.lab.compare.saved import load_pick
from fredholm.lab.compare.search import open_search
from fredholm.lab.compare.splits import Splits
from fredholm.lab.compare.stress import halve, keep, lose
from fredholm.lab.compare.tasks import find_task, options_of, read_contenders
from fredholm.lab.compare.trials import Trials
from fredholm.lab.compare.verdict import conclude, is_sure, paired_difference, paired_interval
from fredholm.lab.training.failures import Interrupted, TrainingFailed
from fredholm.lab.training.leases import InUseError, hold, read_holder
from fredholm.training import load_recipe, load_run, predict, train

FLAGS = {"id": "walk", "label": "gait"}
CHANGES = ("data.id=walk", "data.label=gait", "model.body.dim=8", "model.body.depth=1")


class Ticks:
    """A clock that advances by a hundredth of a second per call."""

    def __init__(self):
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.01
        return self.now


@pytest.fixture(scope="module")
def walks(tmp_path_factory):
    """Write a table of 40 series, fast or slow."""
    path = tmp_path_factory.mktemp("walks") / "walks.csv"
    rng = np.random.default_rng(0)
    lines = ["walk,time,hip,gait"]
    for walk in range(40):
        gait = ("slow", "brisk")[walk % 2]
        values = np.sin((1 + 2 * (walk % 2)) * np.arange(12) / 4) + 0.1 * rng.normal(size=12)
        lines += [f"w{walk},{time},{value:.3f},{gait}" for time, value in enumerate(values)]
    path.write_text("\n".join(lines))
    return path


def search(walks, out, **given):
    given = {"operators": "softmax,linear_attention", "seeds": 2, "timer": Ticks()} | given
    return choose(walks, 0.1, out=out, changes=CHANGES, **given)


@pytest.fixture(scope="module")
def chosen(walks, tmp_path_factory):
    """Return a finished search, its messages, and the splits in the order of reading."""
    place = tmp_path_factory.mktemp("choice")
    said = []
    read = []
    plain = splits.build_dataset

    def build(recipe, part):
        read.append((part, sum(line.startswith("rung") for line in said)))
        return plain(recipe, part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(splits, "build_dataset", build)
        patch.setattr(halving, "TUNING", math.inf)  # time for all learning rates
        state = search(walks, place, report=said.append)
    return place, state, said, read


def test_the_pick_is_made_on_validation_and_only_finalists_read_the_test(chosen):
    _, state, said, read = chosen
    rows = state["rungs"][0]["rows"]
    assert {row["operator"] for row in rows} == {"softmax", "linear_attention"}
    assert len({row["lr"] for row in rows}) == 3
    assert all("test" not in row for row in rows)
    assert [part for part, _ in read] == ["train", "val", "test"]
    assert read[-1][1] == len(state["rungs"])  # after the last rung
    table = state["verdict"]["table"]
    order = [(-line["val"], line["val_loss"]) for line in table]
    assert order[1:] == sorted(order[1:])
    best = max(line["val"] for line in table)
    assert best - table[0]["val"] <= 1 / state["samples"]["val"] + 1e-9  # the fastest of ties
    assert state["verdict"]["pick"] == table[0]["operator"]
    assert {line["operator"] for line in table} > {BOOSTING, MINIROCKET}
    assert set(table[0]["stress"]) == {"30% lost", "50% lost", "half the rate"}
    assert any("0.0 of 0.1 min" in line for line in said)  # progress says the time


def test_a_resumed_search_ends_with_the_same_result(chosen, walks, monkeypatch):
    place, state, _, _ = chosen
    monkeypatch.setattr(trial, "learn", lambda *_: pytest.fail("a finished trial ran again"))
    again = search(walks, place)
    assert again["finals"]["rows"] == state["finals"]["rows"]
    assert again["verdict"]["pick"] == state["verdict"]["pick"]
    assert again["percent"] is True
    with pytest.raises(OptionError, match="choose another --out"):
        search(walks, place, seeds=3)


def test_a_search_with_trials_of_a_removed_method_is_refused(chosen, walks, tmp_path):
    place, state, _, _ = chosen
    row = {**state["finals"]["rows"][0], "operator": "vit-s-linear"}
    folder = shutil.copytree(place, tmp_path / "search")
    changed = {**state, "finals": {**state["finals"], "rows": [row]}}
    (folder / "choice.json").write_text(json.dumps(changed))
    with pytest.raises(CheckpointError, match=r"got 'vit-s-linear'.* `fredholm linearize`"):
        search(walks, folder)


def test_a_folder_in_use_is_refused(chosen, walks):
    place, state, _, _ = chosen
    with hold(place), pytest.raises(InUseError, match="in use by process"):
        search(walks, place)
    assert search(walks, place)["finals"]["rows"] == state["finals"]["rows"]
    assert read_holder(place) is None


class Slow:
    """Trials of 20 seconds each by its clock; Ctrl-C interrupts trial ``stop``."""

    def __init__(self):
        self.ticks = Ticks()
        self.spent = 0.0
        self.done = []
        self.stop = None

    def timer(self) -> float:
        return self.ticks() + self.spent

    def __call__(self, splits, cell, report):
        if len(self.done) == self.stop:
            raise Interrupted("stopped")
        self.done.append(cell.place.name)
        self.spent += 20.0
        cell.place.mkdir(parents=True)
        operator = cell.settings["method"] == "model"
        judged = {"score": 0.5 + 0.1 * operator, "loss": 1.0, "per_class": {}}
        result = {"val": judged, "steps": 20 * operator, "seconds": 20.0}
        return result | ({"test": judged | {"each": "01"}} if cell.settings["test"] else {})


def test_slow_trials_are_reused_after_a_resume(walks, tmp_path, monkeypatch):
    work = Slow()
    monkeypatch.setattr(trials, "run_trial", work)

    def go_on():
        names = "softmax,linear_attention,gru,convolution"
        given = {"operators": names, "out": tmp_path, "changes": CHANGES, "timer": work.timer}
        return choose(walks, 10.0, seeds=2, **given)

    work.stop = 2
    with pytest.raises(Interrupted):
        go_on()
    begun = json.loads((tmp_path / "choice.json").read_text())
    assert begun["spent"] >= 40.0
    work.stop = None
    state = go_on()
    assert state["rungs"][0]["steps"] == begun["rungs"][0]["steps"]
    assert len(work.done) == len(set(work.done))
    done = [*work.done]
    for spent in (state["spent"], 600.0):  # with time left, and without
        (tmp_path / "choice.json").write_text(json.dumps(state | {"spent": spent}))
        again = go_on()
        assert again["finals"] == state["finals"]
        assert len(again["rungs"]) == len(state["rungs"])
        assert work.done == done
    # Rungs that were ended stay as they are, whatever became of their trials' results.
    shutil.rmtree(tmp_path / "trials")
    again = go_on()
    assert again["rungs"] == state["rungs"]
    assert {name for name in work.done[len(done) :] if not name.startswith("final")} == set()


@pytest.mark.parametrize("option", ["accumulate=2", "precision=64", "precision=bf16"])
def test_a_trial_trains_as_the_recommended_command_does(option, walks, tmp_path):
    changes = (*CHANGES, f"training.{option}", "training.keep=last", "data.batch_size=8")
    opened = open_search(
        walks, 1.0, operators="softmax", out=tmp_path / "out", changes=changes, timer=Ticks()
    )
    recipe = opened.trials.recipe("softmax", None, 4)
    model, steps = trial.learn(recipe, opened.splits.train, None)
    train(recipe, tmp_path / "run")
    trained, _ = load_run(tmp_path / "run")
    assert steps == 4
    for name, weight in trained.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    assert trial.judge(trial._answers(model), opened.splits.test, 8).loss > 0


def test_steps_count_and_cost_accumulated_batches(walks, tmp_path):
    def opened(accumulate):
        changes = (*CHANGES, "data.batch_size=8", f"training.accumulate={accumulate}")
        given = {"operators": "softmax", "changes": (*changes, "training.epochs=10")}
        return open_search(walks, 1.0, out=tmp_path / str(accumulate), timer=Ticks(), **given)

    # Of three batches per epoch, the last step of the epoch has what is left.
    for accumulate, steps, samples in ((1, 3, 8), (2, 2, 12), (5, 1, 24)):
        found = opened(accumulate)
        assert found.trials.steps_per_epoch == steps
        assert found.trials.samples_per_step == samples
        assert found.state["full_steps"] == 10 * steps
        # Each reading of this clock takes a hundredth of a second, and so does a batch.
        size = found.trials.size(found.trials.contenders["softmax"])
        assert size["step"] == pytest.approx(0.01 * samples / 8)


def test_options_that_trials_leave_out_are_listed(walks, tmp_path):
    said = []
    changes = (*CHANGES, "training.ema_decay=0.9", "data.mixup=0.2")
    given = {"operators": "softmax", "changes": changes, "timer": Ticks()}
    open_search(walks, 1.0, out=tmp_path, report=said.append, **given)
    line = "trained here without training.ema_decay, data.mixup, which a training in full has"
    assert line in said


def judged_by_seed(splits, cell, report):
    """Return the result of a trial at once; its scores follow from its seed and fold."""
    cell.place.mkdir(parents=True)
    operator = cell.settings["method"] == "model"
    seed = cell.given.recipe.seed
    score = 0.5 + 0.3 * operator + 0.01 * seed
    judged = {"score": score, "loss": 1.0, "per_class": {}}
    result = {"val": judged, "steps": 20 * operator, "seconds": 1.0}
    return result | ({"test": judged | {"each": "01"}} if cell.settings["test"] else {})


@pytest.mark.parametrize(("change", "folds"), [("data.limit=24", 1), ("data.limit=null", 5)])
def test_a_method_that_draws_nothing_has_one_row_per_fold(
    change, folds, walks, tmp_path, monkeypatch
):
    monkeypatch.setattr(trials, "run_trial", judged_by_seed)
    given = {"operators": "softmax", "out": tmp_path, "changes": (*CHANGES, change)}
    state = choose(walks, 10.0, seeds=7, timer=Ticks(), **given)
    assert state["folds"] == folds
    lines = {line["operator"]: line for line in state["verdict"]["table"]}
    seeds = {name: line["seeds"] for name, line in lines.items()}
    assert seeds == {"softmax": 7, MINIROCKET: 7, BOOSTING: folds}
    assert lines[MINIROCKET]["sd"] > 0, "each seed draws other convolutions"
    assert (lines[BOOSTING]["sd"] is None) == (folds == 1)

    rows_ = state["finals"]["rows"]
    given_ = {"higher": True, "each": True, "folds": folds}
    found = paired_difference(rows_, "softmax", BOOSTING, **given_)
    assert found["seeds"] == 7, "each seed is compared with the one result on its fold"
    mean, low, high = found["over_seeds"]
    assert low < mean < high
    alone = paired_difference(rows_, BOOSTING, BOOSTING, **given_)
    assert alone["seeds"] == folds
    assert (alone["over_seeds"] is None) == (folds == 1)

    # A state of an earlier version repeats the row for every seed.
    first = next(row for row in rows_ if row["operator"] == BOOSTING)
    repeated = [*rows_, *({**first, "seed": seed} for seed in range(folds, 7))]
    changed = {**state, "finals": {**state["finals"], "rows": repeated}}
    (tmp_path / "choice.json").write_text(json.dumps(changed))
    again = choose(walks, 10.0, seeds=7, timer=Ticks(), **given)
    assert again["verdict"] == state["verdict"]


@pytest.mark.parametrize(
    ("change", "seeds", "judged"),
    [("data.limit=24", 3, 4), ("data.limit=null", 3, 20), ("data.limit=null", 7, 32)],
)
def test_a_tie_is_one_of_the_samples_that_were_judged(
    change, seeds, judged, walks, tmp_path, monkeypatch
):
    monkeypatch.setattr(trials, "run_trial", judged_by_seed)
    monkeypatch.setattr(splits, "MAX_VALIDATION_SAMPLES", 4)
    passed = []

    def noted(*given):
        passed.append(given)
        return conclude(*given)

    monkeypatch.setattr(searching, "conclude", noted)
    given = {"operators": "softmax", "out": tmp_path, "changes": (*CHANGES, change)}
    choose(walks, 10.0, seeds=seeds, timer=Ticks(), **given)
    (_, _, _, resolution, _), *_ = passed
    assert resolution == pytest.approx(1 / judged)


def test_methods_draw_by_the_seed_as_they_state(walks, tmp_path):
    path = tmp_path / "said.csv"
    lines = [f"{'a fine' if n % 2 else 'a dull'} film {n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["text,label", *lines]))
    series = Splits(load_recipe(str(walks), CHANGES)).train
    texts = Splits(load_recipe(str(path))).train
    cases = ((BOOSTING, series), (MINIROCKET, series), (BOOSTING, texts), ("words", texts))
    for name, samples in cases:
        method = PLAIN[name]
        inputs, _ = samples.batch(torch.arange(len(samples)))
        one, other = (method.fit(samples, seed)(inputs) for seed in (0, 1))
        assert torch.equal(one, other) != method.draws


def test_further_seeds_of_a_finalist_do_not_change_the_search(chosen, walks, tmp_path):
    place, state, _, _ = chosen
    copied = tmp_path / "choice"
    shutil.copytree(place, copied)
    given = {"operators": "softmax,linear_attention", "seeds": 2, "timer": Ticks()}
    opened = open_search(walks, 0.1, out=copied, changes=CHANGES, **given)
    names = [next(iter(state["finals"]["steps"])), BOOSTING]
    rows = further(opened, names, 3)
    assert [row["operator"] for row in rows if row["seed"] == 2] == names
    assert all("score" in row["test"] for row in rows)
    assert opened.state["finals"]["rows"] == state["finals"]["rows"]


def test_the_recommendation_has_the_users_names_and_a_valid_command(chosen, walks):
    place, state, _, _ = chosen
    page = (place / "index.html").read_text()
    assert page.index("<h2>Recommendation") < page.index("<h2>Finalists")
    for name in ("walks: which operator?", "brisk", "slow"):
        assert name in page
    text = to_markdown(state)
    assert text.startswith("**walks**")
    assert all(part in text for part in ("recommended:", "how sure:", "ten times the length:"))
    words_ = shlex.split(state["verdict"]["train"])
    assert words_[:3] == ["fredholm", "train", str(walks)]
    recipe = load_recipe(words_[2], words_[3:])
    assert recipe.operator.name == state["verdict"]["operator"]
    assert recipe.model.body["dim"] == state["sizes"][recipe.operator.name]["dim"]
    assert recipe.training.epochs == load_recipe(str(walks), CHANGES).training.epochs


def test_the_recommended_command_avoids_taken_names_of_runs(chosen, walks, tmp_path, monkeypatch):
    place, state, _, _ = chosen
    assert "--name" not in state["verdict"]["train"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "walks").mkdir(parents=True)
    copied = tmp_path / "choice"
    shutil.copytree(place, copied)
    assert search(walks, copied)["verdict"]["train"].endswith(" --name walks-2")


def test_a_recommended_method_is_saved_and_replaced_by_an_operator(
    chosen, walks, tmp_path, monkeypatch
):
    place, state, _, _ = chosen
    copied = tmp_path / "choice"
    shutil.copytree(place, copied)
    known = conclude(state["finals"]["rows"], state["higher"], state["each"])
    for pick in (MINIROCKET, known["operator"]):
        monkeypatch.setattr(searching, "conclude", lambda *_, pick=pick: known | {"pick": pick})
        lines = to_markdown(search(walks, copied)).splitlines()
        said = {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}
        training = "train in full"
        if pick == MINIROCKET:
            training = "train best operator"
        assert said[training].startswith("fredholm train")
        assert (copied / "method").is_dir() == ("predict" in said) == (pick == MINIROCKET)
        if pick == MINIROCKET:
            samples = "(fitted to training and validation samples)"
            assert said["predict"] == f"fredholm predict {copied} FILE... {samples}"
            answers = predict(copied, [walks])
            assert len(answers) == 40
            assert {answer["class"] for answer in answers} == {"slow", "brisk"}
            found = load_pick(copied)
            rows_ = [r for r in state["finals"]["rows"] if r["operator"] == MINIROCKET]
            assert min(r["temperature"] for r in rows_) <= found.temperature
            assert found.temperature <= max(r["temperature"] for r in rows_)


def test_few_samples_are_cross_validated_without_the_test(walks):
    recipe = load_recipe(str(walks), CHANGES)
    made = Splits(recipe)
    held = []
    ids = made._source.collection.ids
    for fold in range(made.folds):
        train, val = made.fold(fold)
        assert len(train) + len(val) == 32
        assert sorted(val.labels.unique().tolist()) == [0, 1]
        held.append(val)
    assert (made.folds, sum(map(len, held)), len(made.test)) == (5, 32, 8)
    parts = np.concatenate(made._parts)
    assert len(ids) == 40
    assert (made._source.parts[parts] != 2).all()
    assert len(set(parts.tolist())) == 32


def grouped(path, groups, label):
    """Write a table of six rows per group."""
    rng = np.random.default_rng(0)
    rows = [f"{rng.normal():.3f},{n // 6},{label(n)}" for n in range(6 * groups)]
    path.write_text("\n".join(["x,who,label", *rows]))
    return path


@pytest.mark.parametrize("label", [lambda n: "ab"[n % 2], lambda n: n / 7], ids=["class", "number"])
def test_cross_validation_does_not_divide_groups(tmp_path, label):
    path = grouped(tmp_path / "a.csv", 12, label)
    made = Splits(load_recipe(str(path), ["data.group=who"]))
    who = made._source.collection.groups
    pool = np.flatnonzero(made._source.parts != 2)
    assert made.folds == 5
    assert sorted(np.concatenate(made._parts)) == sorted(pool)
    for number, held in enumerate(made._parts):
        train, val = made.fold(number)
        assert not set(who[held]) & set(who[np.setdiff1d(pool, held)])
        assert (len(train), len(val)) == (len(pool) - len(held), len(held))
    assert not set(who[pool]) & set(who[made._source.parts == 2])
    few = grouped(tmp_path / "few.csv", 5, label)  # of which the test takes one
    assert Splits(load_recipe(str(few), ["data.group=who"])).folds == 1


def test_classes_of_few_samples_are_not_cross_validated(tmp_path):
    rows = [f"{n},{'abcde'[n % 5]}" for n in range(20)]
    (tmp_path / "a.csv").write_text("\n".join(["x,label", *rows]))
    assert Splits(load_recipe(str(tmp_path / "a.csv"))).folds == 1


def test_a_slow_first_call_does_not_count_as_step_time(walks, tmp_path, monkeypatch):
    now = [0.0]
    build = trials.build_model

    def cold(recipe, dataset):
        model, seconds = build(recipe, dataset), [20.0]  # of the first call

        def wait(*_):
            now[0] += seconds[0]
            seconds[0] = 0.003

        model.register_forward_pre_hook(wait)
        return model

    monkeypatch.setattr(trials, "build_model", cold)
    begun = open_search(
        walks, 0.1, operators="gru", out=tmp_path, changes=CHANGES, timer=lambda: now[0]
    )
    size = begun.trials.size(begun.trials.contenders["gru"])
    assert size["step"] == pytest.approx(0.003)


def test_each_fold_is_scaled_by_its_training_samples(tmp_path):
    x = np.random.default_rng(0).normal(size=(60, 2))
    lines = [f"{a},{b},{a + b}" for a, b in x]
    (tmp_path / "a.csv").write_text("\n".join(["x,y,label", *lines]))
    made = Splits(load_recipe(str(tmp_path / "a.csv")))
    assert made.folds == 5
    units = []
    for number in range(5):
        train, val = made.fold(number)
        values = train.batch(range(len(train)))[0][..., 0]
        assert torch.allclose(values.mean(0), torch.zeros(2), atol=1e-6)
        assert torch.allclose(values.std(0, correction=0), torch.ones(2), atol=1e-6)
        assert abs(float(train.labels.mean())) < 1e-6
        test = made.tested(number)
        assert len(test) == len(made.test) == 12
        for part in (val, test):
            assert (part.units, part.source["scaling"]) == (train.units, train.source["scaling"])
        units.append(train.units)
    assert len(set(units)) == 5
    assert made.train.units == made.test.units  # those of the recipe's own split


def test_steps_are_allocated_by_time():
    paces = {"a": Pace(0.01), "b": Pace(0.04), "slow": Pace(3.0)}
    steps = share_steps(paces, 2, 20.0, 500)
    assert steps["slow"] == 0  # ten steps are more than four equal shares
    assert steps["a"] == steps["b"] > 100
    assert sum(2 * paces[name].seconds(steps[name]) for name in "ab") <= 20.0
    assert share_steps(paces, 2, 1e6, 500) == {"a": 500, "b": 500, "slow": 500}
    with pytest.raises(OptionError, match="minutes: expected a positive number, got 0"):
        Clock(0)


def planned(paces, left, full=1000, folds=1):
    """Return the trials of a search with that many seconds left, its state, and its messages."""
    clock = SimpleNamespace(left=left, minutes=left / 60, spent=0.0)
    trials = Mock(spec=Trials, clock=clock, pace=lambda name, test=False: paces[name])
    state = {"full_steps": full, "folds": folds, "rungs": [], "sizes": {name: {} for name in paces}}
    said = []
    return trials, state | {"finals": {"plain_seconds": 0.0}}, said


def _planned_rung(trials, state, said, paces):
    rungs = halving.Halving(trials, state, said.append, print)
    plan = rungs._plan_rung(0, [(name, 1e-3) for name in paces])
    assert plan is not None
    return plan


def test_with_little_time_the_slowest_operators_are_dropped_by_name():
    paces = {"a": Pace(0.01), "b": Pace(0.02), "c": Pace(0.02), "d": Pace(0.02), "slow": Pace(1.0)}
    trials, state, said = planned(paces, 60.0)
    plan = _planned_rung(trials, state, said, paces)
    assert set(plan["steps"]) == set("abcd")
    assert min(plan["steps"].values()) >= 100
    assert sum(paces[name].seconds(n) for name, n in plan["steps"].items()) <= 15.0
    why = (
        "100 steps take 100 s, its share is 3 s; compare again with more --minutes and another "
        "--out, or with fewer --operators"
    )
    assert said == [f"slow: left out: {why}"]
    assert state["left_out"] == {"slow": why}, "for the page"
    trials, state, said = planned(paces, 4 * 160.0)
    plan = _planned_rung(trials, state, said, paces)
    assert (set(plan["steps"]), said) == (set(paces), [])


def test_later_rungs_have_at_least_as_many_steps():
    paces = {name: Pace(0.01) for name in "abcdef"}
    trials, state, _ = planned(paces, 60.0, folds=5)
    found = halving.Halving(trials, state, print, print)
    alive: halving.Alive = [(name, 1e-3) for name in paces]
    for steps, folds, count in ((50, 2, 6), (120, 1, 6), (250, 1, 4), (400, 0, 0)):
        state["rungs"] = [{"steps": dict.fromkeys(paces, steps)}]
        plan = found._plan_rung(1, alive) or {"steps": {}}
        assert (len(plan.get("folds", [])), len(plan["steps"])) == (folds, count)
        assert min(plan["steps"].values(), default=steps) >= steps


def test_with_little_time_there_are_fewer_seeds_and_finalists():
    paces = {name: Pace(0.02) for name in ("a", "b", "c", "gru")}
    alive: halving.Alive = [(name, 1e-3) for name in "abc"]
    for left, finalists, steps in (
        (500, "abc", 10 / 9 * 500),  # five seeds of at least half a training
        (150, "abc", 500),  # three
        (80, "ab", 500),  # of two
        (45, "ab", 250),
        (8, "ab", 100),
    ):
        trials, state, said = planned(paces, float(left))
        last = finals.Finals(trials, Mock(spec=halving.Halving), state, said.append, print)
        plan = last._plan(alive, 5, [])
        assert set(plan) == set(finalists)
        assert min(plan.values()) >= steps
    assert set(last._plan(alive, 5, ["gru"])) == {"a", "b", "gru"}


def test_too_little_time_is_reported(walks, tmp_path):
    with pytest.raises(OptionError, match="expected time for one trial"):
        choose(walks, 1e-4, operators="softmax", out=tmp_path, changes=CHANGES, timer=Ticks())


def rows(operator, val, tests):
    return [
        {"operator": operator, "seed": seed, "lr": 1.0, "seconds": 1.0}
        | {"val": {"score": val, "loss": 1.0}}
        | {"test": {"score": each.count("1") / len(each), "each": each}}
        for seed, each in enumerate(tests)
    ]


def test_the_recommendation_follows_validation_and_its_interval():
    one = rows("one", 0.9, ["1111111101", "1111111110"])
    other = rows("other", 0.8, ["0000000100", "0000000010"])
    found = conclude(one + other, higher=True, each=True)
    assert (found["pick"], found["runner_up"]) == ("one", "other")
    assert found["sure"] == is_sure(found["difference"]) is True
    best_on_test = rows("lucky", 0.1, ["1111111111", "1111111111"])
    found = conclude(one + best_on_test, higher=True, each=True)
    assert (found["pick"], found["sure"]) == ("one", False)  # by validation alone
    assert conclude([{"operator": "one", "seed": 0, "error": "no"}], higher=True, each=True) == {}
    # Of errors less is better.
    assert conclude(one + other, higher=False, each=True)["pick"] == "other"


def timed(operator, val, seconds, each="1111111111"):
    return [row | {"seconds": seconds} for row in rows(operator, val, [each, each])]


def test_ties_go_to_the_method_that_trains_faster():
    slow, fast = timed("slow", 1.0, 9.0), timed("fast", 0.99, 0.5)
    worse = timed("worse", 0.9, 0.1)
    found = conclude(slow + fast + worse, higher=True, each=True, resolution=0.02)
    assert (found["pick"], found["runner_up"], found["ties"]) == ("fast", "slow", ["slow"])
    assert [line["operator"] for line in found["table"]] == ["fast", "slow", "worse"]
    found = conclude(slow + fast + worse, higher=True, each=True)
    assert found["pick"] == "slow"
    assert "ties" not in found
    equal = conclude(slow + timed("fast", 1.0, 0.5), higher=True, each=True)
    assert equal["pick"] == "fast"


def test_perfect_accuracy_has_an_interval():
    found = conclude(timed("one", 1.0, 1.0) + timed("other", 0.9, 1.0), higher=True, each=True)
    line, difference = found["table"][0], found["difference"]
    assert (line["test"], line["samples"]) == (1.0, 10)
    assert line["interval"] == pytest.approx([0.722, 1.0], abs=1e-3)
    assert difference["over_samples"][0] == 0.0
    assert difference["over_samples"][1] == pytest.approx(-0.278, abs=1e-3)
    assert difference["over_samples"][2] == pytest.approx(0.278, abs=1e-3)
    assert not found["sure"]


def test_the_interval_of_paired_shares_has_its_coverage():
    draw = np.random.default_rng(0)
    held = 0
    for _ in range(500):
        hard = draw.random(40) < 0.2  # samples on which both err more often
        one = draw.random(40) < np.where(hard, 0.6, 1.0)
        other = draw.random(40) < np.where(hard, 0.5, 0.95)
        _, low, high = paired_interval(one.astype(float).tolist(), other.astype(float).tolist())
        held += low <= 0.92 - 0.86 <= high
    assert 0.93 <= held / 500 <= 0.99


def test_samples_are_halved_and_dropped_as_gaps():
    series = torch.arange(40.0).view(2, 20, 1)
    half = halve(series, timed=False)
    assert half[:, ::2].equal(series[:, ::2])
    assert half[:, 1::2].isnan().all()
    lost = lose(torch.randn(8, 500, 1), 0.3, timed=False).isnan()
    assert lost.float().mean() == pytest.approx(0.3, abs=0.03)
    assert not lost[:, 0].any()
    timed = torch.stack([torch.arange(4.0), torch.tensor([5.0, 6, 7, 8])], -1)[None]
    kept = keep(timed, torch.tensor([[False, True, False, True]]), timed=True)
    assert kept.tolist() == [[[0.0, 5.0], [1.0, 6.0], [3.0, 8.0]]]


def test_methods_beside_the_operators_are_trained(walks, tmp_path):
    recipe = load_recipe(str(walks), CHANGES)
    made = Splits(recipe)
    found = trial.judge(boosting(made.train, 0), made.test, 64)
    assert found.score == 1.0
    assert found.loss < 0.1
    path = tmp_path / "said.csv"
    lines = [f"{'a fine' if n % 2 else 'a dull'} film {n},{n % 2}" for n in range(40)]
    path.write_text("\n".join(["text,label", *lines]))
    texts = Splits(load_recipe(str(path)))
    for method in (words, boosting):
        assert trial.judge(method(texts.train, 0), texts.test, 64).score == 1.0


def test_an_undefined_metric_is_reported(walks):
    data = Mock(classes=(), measures=("spearman",), task="regression", split="val", batch=None)
    data.metric = None
    pairs = [(torch.zeros(4, 1), torch.arange(4.0))]
    with pytest.raises(
        TrainingFailed, match="Spearman's correlation is not defined on the val split"
    ):
        trial._judged(pairs, data)


@pytest.mark.parametrize("name", ["ckcnn-pmnist", "itnet-glue-mlm"])
def test_trials_replace_schedules_and_phases_of_a_recipe(name, tmp_path):
    splits, clock = Mock(spec=Splits), Mock(spec=Clock)
    made = Trials(find_task(name), {}, splits, tmp_path, clock, {}, batch=4)
    recipe = made.recipe("softmax", None, 7)
    assert (recipe.schedule.name, recipe.training.steps, recipe.training.phases) == (
        "cosine", 7, None,
    )  # fmt: skip


OWN = """
from pathlib import Path
from fredholm.kernels import SoftmaxKernel
from fredholm.operators import IntegralOperator, register_operator

with open(Path(__file__).with_suffix(".log"), "a") as file:
    file.write("ran\\n")


@register_operator("{name}")
class Own(IntegralOperator):
    small = {{"scale": 0.5}}

    def __init__(self, dim, heads=1, *, scale: float = 1.0, **options):
        super().__init__(dim, heads, kernel=SoftmaxKernel(dim, heads), **options)
"""


def test_a_user_defined_operator_is_compared_and_its_file_runs_once(walks, tmp_path):
    (tmp_path / "mine.py").write_text(OWN.format(name="mine_compared"))
    recipe = tmp_path / "own.yaml"
    model = {"name": "backbone_nano", "body": {"dim": 8, "depth": 1}}
    data = {"path": str(walks), **FLAGS, "batch_size": 8}
    recipe.write_text(
        json.dumps({"import": "mine.py", "data": data, "model": model, "training": {"epochs": 1}})
    )
    results = comparison.compare([str(recipe)], "mine_compared", tmp_path / "table")
    assert [row["operator"] for row in results["tasks"][0]["rows"]] == ["mine_compared"]
    assert results["tasks"][0]["title"] == "own"
    assert "error" not in results["tasks"][0]["rows"][0]["runs"][0]
    (told,) = (tmp_path / "table").rglob("recipe.yaml")
    assert yaml.safe_load(told.read_text())["operator"] == {"name": "mine_compared", "scale": 0.5}
    own = read_contenders("{name: mine_compared, scale: 2.0}")[0]
    assert options_of(find_task("digits"), own) == {"scale": 2.0}
    state = choose(
        recipe, 0.1, operators="mine_compared,gru", out=tmp_path / "out", seeds=1, timer=Ticks()
    )
    assert "mine_compared" in {row["operator"] for row in state["rungs"][0]["rows"]}
    assert (tmp_path / "mine.log").read_text() == "ran\n"


def test_an_operator_is_registered_by_the_changes(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.mkdir()
    (home / "near.py").write_text(OWN.format(name="near_compared"))
    monkeypatch.chdir(home)
    small = ("training.epochs=1", "schedule.warmup_epochs=0", "data.limit=128")
    changes = ("import=near.py", *small, "model.body.depth=1", "model.body.dim=8")
    sets = [part for change in changes for part in ("--set", change)]
    operators = ["--operators", "near_compared"]
    assert main(["compare", "--task", "digits", *operators, *sets, "--out", "table"]) == 0
    told = yaml.safe_load(next((home / "table").rglob("recipe.yaml")).read_text())
    assert told["operator"]["name"] == "near_compared"

    (home / "next.py").write_text(OWN.format(name="next_compared"))
    given = {"operators": "next_compared", "changes": ("import=next.py", *changes[1:])}
    opened = open_search("digits", 0.1, out=tmp_path / "out", timer=Ticks(), **given)
    assert list(opened.trials.contenders) == ["next_compared"]


PARTS = """
import torch
from fredholm.data import Entry, SequenceDataset, register_dataset
from fredholm.encoders import SequenceConfig
from fredholm.models import LinearConfig, ModelConfig, ResidualConfig, register_model


def read(request):
    draws = torch.Generator().manual_seed(("train", "val", "test").index(request.split))
    labels = torch.arange(24) % 2
    values = torch.randn(24, 12, 1, generator=draws) + 2 * labels[:, None, None]
    size = {"shape": (12, 1)}
    return SequenceDataset(
        "steps_compared", request.split, labels, ("low", "high"), values.__getitem__, **size
    )


register_dataset(
    Entry(
        name="steps_compared",
        title="Low or high",
        licence_package="none needed",
        licence_data="none needed",
        kind=SequenceDataset.kind,
        read=read,
    )
)


@register_model
def steps_pico():
    body = ResidualConfig(dim=8, depth=1, heads=2, operator="softmax")
    return ModelConfig(SequenceConfig(channels=1, length=12), body, LinearConfig(pool="mean"))
"""


def test_a_user_defined_data_set_and_model_are_compared(tmp_path):
    (tmp_path / "parts.py").write_text(PARTS)
    recipe = tmp_path / "steps.yaml"
    recipe.write_text(
        "import: parts.py\ndata: {name: steps_compared, batch_size: 8}\nmodel: steps_pico\n"
        "training: {epochs: 2}\n"
    )
    state = choose(
        recipe, 0.1, operators="softmax,gru", out=tmp_path / "out", seeds=1, timer=Ticks()
    )
    assert (state["kind"], state["classes"]) == ("sequences", ["low", "high"])
    assert state["samples"] == {"train": 24, "val": 24}
    assert {row["operator"] for row in state["rungs"][0]["rows"]} == {"softmax", "gru"}
    assert {BOOSTING, MINIROCKET} < {line["operator"] for line in state["verdict"]["table"]}
    words_ = shlex.split(state["verdict"]["train"])
    assert load_recipe(words_[2], words_[3:]).data.name == "steps_compared"


def test_failure_of_every_trial_gives_an_exit_code(walks, tmp_path, monkeypatch, capsys):
    def fail(*_):
        raise TrainingFailed("no luck")

    monkeypatch.setattr(trial, "learn", fail)
    flags = ["--id", "walk", "--label", "gait", "--operators", "softmax", "--minutes", "5"]
    assert main(["compare", str(walks), *flags, "--out", str(tmp_path / "a")]) == 1
    assert "every trial failed: no luck" in capsys.readouterr().err
    monkeypatch.setattr(comparison.grid, "train_and_score", fail)
    flags = ["--operators", "softmax", "--out", str(tmp_path / "b")]
    assert main(["compare", "--task", "digits", *flags]) == 1
    assert "1 of 1 trainings failed: no luck" in capsys.readouterr().err
