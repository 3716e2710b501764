"""A run small enough to be trained many times: one small block, a few dozen steps."""

from __future__ import annotations

import pytest

SMALL = [
    *("training.epochs=3", "data.batch_size=400", "schedule.warmup_epochs=1"),
    *("optimizer.lr=2e-3", "training.keep=best"),
    *(
        "operator=softmax",
        "model.body.depth=1",
        "model.body.dim=16",
        "model.body.heads=2",
        "model.encoder.patch=4",
    ),
]


@pytest.fixture
def recipe():
    """Factory of the digits recipe made small, with further overrides."""
    from fredholm.training import load_recipe

    def make(*overrides: str):
        return load_recipe("digits", [*SMALL, *overrides])

    return make
