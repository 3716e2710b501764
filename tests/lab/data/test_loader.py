"""Order and resuming: a resumed loader gives the remaining batches."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.data import Augment, EpochOrder, make_loader
from fredholm.errors import CheckpointError, OptionError
from fredholm.lab import data


@pytest.fixture(scope="module")
def digits():
    return data.create_dataset("digits", "val")  # 179 images


def same(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_an_epoch_has_every_sample_once():
    for drop_last, steps in ((False, 4), (True, 3)):
        order = EpochOrder(103, 32, seed=1, drop_last=drop_last)
        batches = list(order.batches(0))
        assert len(batches) == len(order) == steps
        seen = torch.cat(batches)
        assert len(seen.unique()) == len(seen) == (96 if drop_last else 103)
    assert not torch.equal(next(order.batches(0)), next(order.batches(1)))
    assert same(order.batches(2, start=1), list(order.batches(2))[1:])
    assert torch.equal(
        torch.cat(list(EpochOrder(10, 4, shuffle=False).batches(3))), torch.arange(10)
    )


@pytest.mark.parametrize("world", [2, 3, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_processes_share_each_batch_of_one_process(world, drop_last):
    n, size = 107, 20
    alone = EpochOrder(n, size, seed=2, drop_last=drop_last)
    ranks = [
        EpochOrder(n, size, seed=2, drop_last=drop_last, rank=r, world_size=world)
        for r in range(world)
    ]
    per_rank = [list(order.batches(4)) for order in ranks]
    for step, whole in enumerate(alone.batches(4)):
        parts = [batches[step] for batches in per_rank]
        assert torch.equal(torch.cat(parts), whole)
        sizes = [len(part) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        assert sizes == [order.share(step) for order in ranks]
    assert {len(batches) for batches in per_rank} == {len(alone)} == {len(order) for order in ranks}


def test_a_process_without_samples_keeps_step(digits):
    """With four processes and a last batch of three samples, the fourth gets an uncounted one."""
    loader = make_loader(digits, 8, rank=3, world_size=4)
    batches = list(loader)
    assert len(batches) == len(make_loader(digits, 8))
    assert loader.order.share(len(batches) - 1) == 0
    assert len(batches[-1][1]) == 1


def test_a_position_is_valid_for_any_number_of_processes():
    alone, shared = EpochOrder(103, 32), EpochOrder(103, 32, rank=1, world_size=2)
    alone.position = (1, 2)
    shared.load_state_dict(alone.state_dict())
    assert shared.position == (1, 2)


@pytest.mark.parametrize(
    "options",
    [
        {"n": 0},
        {"batch_size": 0},
        {"rank": 2},
        {"rank": -1},
        {"world_size": 0},
        {"batch_size": 200, "drop_last": True},
        {"world_size": 11},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError, match=r"expected .*, got"):
        EpochOrder(**({"n": 100, "batch_size": 10} | options))


@pytest.mark.parametrize("stop", [0, 1, 3, 5, 6])
def test_resuming_gives_the_remaining_batches(digits, stop):
    def loader(seed=5):
        return make_loader(digits, 32, seed=seed, shuffle=True, augment=Augment(crop=1, flip=True))

    whole = loader()
    expected = [batch for epoch in range(3) for batch in whole]
    first = loader()
    taken = list(first)  # epoch 0
    iterator = iter(first)
    taken += [next(iterator) for _ in range(stop)]
    state = first.state_dict()
    assert (state["epoch"], state["offset"]) == ((1, stop) if stop else (0, 6))
    second = loader()
    second.load_state_dict(state)
    assert second.state_dict() == state
    taken += list(second)
    if len(taken) < len(expected):
        taken += list(second)
    assert len(taken) == len(expected) == 18
    for a, b in zip(taken, expected, strict=True):
        assert same(a, b)


def test_set_epoch_after_resuming_keeps_the_position(digits):
    loader = make_loader(digits, 32, seed=0, shuffle=True)
    loader.set_epoch(4)
    expected = list(loader)
    other = make_loader(digits, 32, seed=0, shuffle=True)
    other.load_state_dict({**loader.state_dict(), "offset": 2})
    other.set_epoch(4)  # as a trainer does when it enters the interrupted epoch
    assert all(same(a, b) for a, b in zip(list(other), expected[2:], strict=True))
    other.set_epoch(4)
    assert len(list(other)) == 6
    other.load_state_dict(loader.state_dict())
    other.set_epoch(4)
    assert list(other) == []  # that epoch is over
    other.set_epoch(5)
    assert len(list(other)) == 6
    with pytest.raises(OptionError, match="epoch: expected 0 or more, got -1"):
        other.set_epoch(-1)


def test_an_interrupted_iteration_starts_again(digits):
    loader = make_loader(digits, 32)
    first = next(iter(loader))
    assert same(first, next(iter(loader)))
    assert (
        sum(len(labels) for _, labels in loader) == sum(len(labels) for _, labels in loader) == 179
    )


def test_batches_are_created_lazily_and_counted_when_consumed(digits, monkeypatch):
    loader = make_loader(digits, 32, seed=0, shuffle=True)
    made = []
    original = digits.batch
    monkeypatch.setattr(digits, "batch", lambda *args: made.append(1) or original(*args))
    iterator = iter(loader)
    assert loader.state_dict()["offset"] == 0 == len(made)
    next(iterator), next(iterator), next(iterator)
    assert loader.state_dict()["offset"] == 3 == len(made)
    assert loader.state_dict(consumed=2)["offset"] == 2
    with pytest.raises(OptionError, match=r"consumed: expected .*, got 4"):
        loader.state_dict(consumed=4)


def test_states_of_another_order_are_refused(digits):
    loader = make_loader(digits, 32, seed=0, shuffle=True)
    state = loader.state_dict()
    for key, value in {
        "n": 5,
        "batch_size": 16,
        "seed": 1,
        "shuffle": False,
        "drop_last": True,
    }.items():
        with pytest.raises(CheckpointError, match=rf"loader state: expected {key}=.*, got {value}"):
            loader.load_state_dict({**state, key: value})
    for key, value in {"offset": 7, "epoch": -1}.items():
        with pytest.raises(CheckpointError, match="expected an epoch of 0 or more"):
            loader.load_state_dict({**state, key: value})
    with pytest.raises(CheckpointError, match="got one without offset"):
        loader.load_state_dict({k: v for k, v in state.items() if k != "offset"})


def test_augmentation_does_not_depend_on_batch_size_or_processes(digits):
    def images(batch_size, rank=0, world=1):
        loader = make_loader(
            digits,
            batch_size,
            seed=3,
            augment=Augment(crop=2, flip=True),
            rank=rank,
            world_size=world,
        )
        loader.set_epoch(2)
        return torch.cat([images for images, _ in loader])

    whole = images(179)
    assert torch.equal(images(10), whole)
    assert torch.equal(images(90, rank=1, world=2)[:45], whole[45:90])


class Recorder:
    """Record the digest of every batch, in order."""

    def __init__(self):
        self.sums: list[float] = []


def fit(digits, folder, recorder, stop_at=None, resume=None):
    """Train three epochs of a linear classifier with Lightning, optionally stopped and saved after
    a step.
    """
    import lightning.pytorch as pl

    class Linear(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(64, 10)

        def training_step(self, batch, batch_idx):
            images, labels = batch
            recorder.sums.append(float(images.double().sum()))
            return nn.functional.cross_entropy(self.layer(images.flatten(1)), labels)

        def on_train_batch_end(self, *_):
            if self.global_step == stop_at:
                self.trainer.save_checkpoint(folder / "stopped.ckpt")
                raise KeyboardInterrupt

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    model = Linear()
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(max_epochs=3, accelerator="cpu", devices=1, **quiet)
    loader = make_loader(digits, 32, seed=1, shuffle=True, augment=Augment(shift=1))
    try:
        trainer.fit(model, loader, ckpt_path=resume, weights_only=True)
    except (KeyboardInterrupt, SystemExit):
        assert stop_at is not None
    return model.layer.weight.detach().clone()


@pytest.mark.parametrize("stop_at", [3, 8, 12])
@pytest.mark.filterwarnings("ignore")
def test_lightning_resumes_within_an_epoch_bit_for_bit(digits, tmp_path, stop_at):
    pytest.importorskip("lightning")
    whole, first, second = Recorder(), Recorder(), Recorder()
    expected = fit(digits, tmp_path, whole)
    fit(digits, tmp_path, first, stop_at=stop_at)
    resumed = fit(digits, tmp_path, second, resume=tmp_path / "stopped.ckpt")
    assert len(first.sums) == stop_at
    assert first.sums + second.sums == whole.sums
    assert len(whole.sums) == 18
    assert torch.equal(resumed, expected)


@pytest.mark.filterwarnings("ignore")
def test_lightning_validates_and_sets_the_epoch_of_shortened_epochs(digits):
    pl = pytest.importorskip("lightning.pytorch")
    seen: dict[str, list] = {"train": [], "val": []}

    class Probe(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 10)

        def training_step(self, batch, batch_idx):
            seen["train"].append(float(batch[0].double().sum()))
            return self.layer(batch[0].flatten(1)).square().mean()

        def validation_step(self, batch, batch_idx):
            seen["val"].append(len(batch[1]))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=1,
        limit_train_batches=2,
        num_sanity_val_steps=1,
        **quiet,
    )
    trainer.fit(Probe(), make_loader(digits, 32, shuffle=True), make_loader(digits, 100))
    assert seen["val"] == [100] + [100, 79] * 2
    order = EpochOrder(len(digits), 32)
    expected = [
        float(digits.batch(b)[0].double().sum())
        for epoch in (0, 1)
        for b in list(order.batches(epoch))[:2]
    ]
    assert seen["train"] == expected
