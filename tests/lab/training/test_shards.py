"""Training with the points of every sample sharded over processes equals training in one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm.data import FieldDataset, PointDataset, StoredRows, limit_samples
from fredholm.errors import DataError, DomainError, OptionError, RecipeError
from fredholm.lab.data.parts import PartDataset, Stretch
from fredholm.lab.training.evaluation import evaluate
from fredholm.lab.training.module import RecipeLearner
from fredholm.training import Interrupted, load_recipe, train
from tests.lab.training.test_processes import assert_one_run, finished, start
from tests.lab.training.together import stopping

HERE = Path(__file__).parent
SMALL = [
    *(f"import=[{HERE / 'cut.py'}]", "data.batch_size=5", "data.eval_batch_size=7"),
    *("data.augment={}", "training.precision=64", "training.epochs=2", "training.clip_norm=0.1"),
    *("training.ema_decay=0.9", "schedule.warmup_epochs=0", "training.checkpoint_steps=1"),
]
# Behind the model's name, which sets all of it.
BODY = [f"model.body.{text}" for text in ("dim=8", "heads=2", "depth=1", "dropout=0")]
JOBS = {
    "infvit": [
        *SMALL,
        *("data.name=digits", "data.limit=40", "model=infvit_linear_pico", "operator=linear_infsa"),
        *("model.encoder.patch=2", "model.body.drop_path=0", *BODY),
    ],
    "itnet": [
        *SMALL,
        *("data.name=cut-clouds", "model=itnet_nano", "operator=itnet", "operator.width=4", *BODY),
        "training.metric=auc",
    ],
    "ckcnn": [
        *SMALL,
        *("data.name=cut-sequences", "model=ckcnn_small", "operator=ckconv"),
        *(f"model.body.{text}" for text in ("widths=[4, 4]", "dropout=0", "input_dropout=0")),
    ],
    "steps": [
        *SMALL,
        *("data.name=cut-steps", "model=backbone_nano", "operator=softmax", *BODY),
        *("model.head.pool=every", "training.metric=matthews"),
    ],
    "field": [
        *SMALL,
        *("data.name=cut-fields", "model=itnet_nano", "operator=itnet_low_rank", *BODY),
    ],
}
CUT = ["training.devices=2", "parallel.domain=2"]
REFUSED = {
    "neighbours": ([*JOBS["itnet"], "model.encoder.neighbours=4"], "of 4 neighbours some may be"),
    "operator": ([*JOBS["steps"], "operator=lstm"], "expected a whole domain"),
    "points": ([*JOBS["infvit"], "model.encoder.patch=8"], "as the domain has points (1), got 2"),
    "evolution": (
        [*SMALL, "model=continuous_vit_micro", "operator={}", "model.encoder.patch=2"],
        "parallel.domain: expected 1 for a continuous model",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run every job with one process and with two, each with a shard of every sample."""
    folder = tmp_path_factory.mktemp("cut")
    jobs = [(name, [*overrides, *CUT], False) for name, overrides in JOBS.items()]
    jobs += [(f"no-{name}", [*wrong, *CUT], False) for name, (wrong, _) in REFUSED.items()]
    jobs += [("fsdp2", [*JOBS["infvit"], *CUT, "training.strategy=fsdp2"], False)]
    jobs += [(name, [*JOBS["infvit"], *CUT], name == "resumed") for name in ("resumed", "stopped")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FREDHOLM_TEST_ROWS", str(folder))
        for name, overrides in JOBS.items():
            train(load_recipe("digits", overrides), folder / "alone" / name)
        with pytest.MonkeyPatch.context() as stop:
            stop.setattr(RecipeLearner, "training_step", stopping)
            with pytest.raises(Interrupted):
                train(load_recipe("digits", JOBS["infvit"]), folder / "resumed")
        (folder / "jobs.json").write_text(json.dumps(jobs))
        process = start(str(HERE / "together.py"), str(folder))
        output = finished(process, 280)
        assert process.returncode == 0, output
        said = [json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in range(2)]
        yield folder, said


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_loss_curve_and_weights_equal_one_process(runs, name):
    folder, said = runs
    assert "error" not in said[0][name], said[0][name]
    assert_one_run(folder / "alone" / name, folder / name)
    one, two = (evaluate(place / name, trust_code=True) for place in (folder / "alone", folder))
    assert two["loss"] == pytest.approx(one["loss"], rel=1e-5)  # float32
    temperatures = [place / name / "calibration.json" for place in (folder / "alone", folder)]
    if temperatures[0].exists():
        first, second = (json.loads(path.read_text())["temperature"] for path in temperatures)
        assert second == pytest.approx(first, rel=1e-3)


@pytest.mark.slow
def test_weights_can_be_sharded_too(runs):
    folder, said = runs
    assert "error" not in said[0]["fsdp2"], said[0]["fsdp2"]
    assert_one_run(folder / "alone" / "infvit", folder / "fsdp2")


@pytest.mark.slow
def test_a_run_is_resumed_by_more_or_fewer_processes(runs):
    folder, said = runs
    assert "error" not in said[0]["resumed"], said[0]["resumed"]
    assert_one_run(folder / "alone" / "infvit", folder / "resumed")
    assert {each["stopped"]["kind"] for each in said} == {"Interrupted"}
    train(load_recipe("digits", JOBS["infvit"]), folder / "stopped", resume=True)
    assert_one_run(folder / "alone" / "infvit", folder / "stopped")


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_options_that_need_complete_samples_are_refused_before_the_run(runs, name):
    folder, said = runs
    assert REFUSED[name][1] in said[0][f"no-{name}"]["error"]
    assert sorted(each[f"no-{name}"]["said"] for each in said) == [False, True]
    assert not (folder / f"no-{name}").exists()


@pytest.mark.slow
def test_sharded_samples_combine_with_sharded_batches(runs, tmp_path):
    both = [*JOBS["infvit"], "training.devices=4", "parallel.domain=2"]
    train(load_recipe("digits", both), tmp_path / "four")
    assert_one_run(runs[0] / "alone" / "infvit", tmp_path / "four")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["parallel.domain=3", "training.devices=2"],
            "expected a divisor of 2 processes, got 3",
        ),
        (["parallel.domain=0"], "parallel.domain"),
        (
            ["parallel.domain=2", "training.devices=2", "data.cutmix=1.0"],
            "data.cutmix: expected 0 with .*, got 1",
        ),
    ],
)
def test_unsupported_recipes_are_refused_before_reading_data(recipe, overrides, message):
    with pytest.raises(RecipeError, match=message):
        recipe(*overrides)


def test_sharding_is_refused_in_one_process(recipe, tmp_path):
    with pytest.raises(
        OptionError, match=r"domain: expected a divisor of the 1 processes .*, got 2"
    ):
        train(recipe("parallel.domain=2"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# --- data of a process ----------------------------------------------------------------------------


def test_stored_rows_are_read_in_part(tmp_path):
    values = np.random.default_rng(0).random((4, 3, 7, 5), dtype=np.float32)
    np.save(tmp_path / "rows.npy", values)
    rows = StoredRows(tmp_path / "rows.npy").stretch(2, 1, 4)
    assert rows.shape == (4, 3, 3, 5)
    assert torch.equal(rows[[2, 0]], torch.from_numpy(values[[2, 0]][:, :, 1:4]))
    assert torch.equal(rows.select(torch.tensor([3]))[[0]], torch.from_numpy(values[3:, :, 1:4]))


@pytest.mark.parametrize("stored", [False, True])
def test_shards_combine_to_the_samples(tmp_path, stored):
    media, flow = (torch.rand(3, 1, 7, 4) for _ in range(2))
    if stored:
        for name, values in (("media", media), ("flow", flow)):
            np.save(tmp_path / f"{name}.npy", values.numpy())
        media, flow = (StoredRows(tmp_path / f"{name}.npy") for name in ("media", "flow"))
    data = FieldDataset("flow", "train", media, flow, ("u",), scale=(2.0,))
    for whole in (data, limit_samples(data, 2)):
        parts = [PartDataset(whole, Stretch(rank, 3, axis=2, labels=2)) for rank in range(3)]
        for each in zip(*(part.batch([1, 0]) for part in parts), whole.batch([1, 0])):
            assert torch.equal(torch.cat(each[:3], 2), each[3])
    turned = parts[1].batch([1], lambda fields: fields.flip(2))[0]
    assert torch.equal(turned, whole.batch([1])[0].flip(2)[:, :, 3:5])


def test_a_shard_of_a_cloud_may_be_empty():
    clouds = torch.rand(2, 6, 3)
    clouds[1, 2:] = torch.nan
    data = PointDataset("few", "train", clouds, torch.zeros(2), ("a",))
    part = PartDataset(data, Stretch(1, 2, axis=1)).batch([0, 1])[0]
    assert part[0].isfinite().all()
    assert part[1].isnan().all()


def test_samples_that_cannot_be_sharded_are_named():
    values = torch.rand(2, 1, 6, 4)
    data = FieldDataset("flow", "train", values, values, ("u",))
    with pytest.raises(DataError, match="a sample: expected a multiple of 4 entries, got 6"):
        PartDataset(data, Stretch(0, 2, axis=2, labels=2, grain=4)).batch([0])
    with pytest.raises(DomainError, match="as many ranks as the domain has points"):
        PartDataset(data, Stretch(0, 7, axis=2, labels=2)).batch([0])
