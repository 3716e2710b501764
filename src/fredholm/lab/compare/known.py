"""Built-in tasks of comparisons, small enough for a CPU."""

from __future__ import annotations

from ..checkout import import_evidence
from .tasks import ComparedTask, register_task


def _backbone(*overrides: str) -> tuple[str, ...]:
    return ("model=backbone_nano", *overrides)


# A larger step than the recipes' own, for trainings of a few epochs.
_SHORT = "optimizer={name: adamw, lr: 3e-3, weight_decay: 0.01}"

KNOWN = (
    ComparedTask(
        "digits",
        "8x8 handwritten digits, 16 patches",
        "digits",
        _backbone("model.encoder.patch=2", "training.epochs=20", "training.ema_decay=null"),
    ),
    ComparedTask(
        "fashion-mnist",
        "4,000 pictures of clothes, 16 patches of 7x7 pixels",
        "fashion-mnist",
        _backbone(
            "model.encoder.patch=7",
            "data.limit=4000",
            "data.batch_size=64",
            "training.epochs=6",
            "training.ema_decay=null",
        ),
    ),
    ComparedTask(
        "cifar10",
        "4,000 colour photographs, 64 patches of 4x4 pixels",
        "cifar10",
        _backbone(
            "data.limit=4000",
            "data.batch_size=64",
            "data.mixup=0.0",
            "training.epochs=8",
            "training.ema_decay=null",
            _SHORT,
            "schedule.warmup_epochs=1",
        ),
    ),
    ComparedTask(
        "movie-reviews",
        "sentiment of 3,000 sentences, at most 24 words",
        "reviews",
        _backbone(
            "data.limit=3000",
            "data.max_length=24",
            "training.epochs=5",
            "model.body.dropout=0.2",
            _SHORT,
        ),
    ),
    ComparedTask(
        "movie-bytes",
        "sentiment of 3,000 sentences as at most 128 bytes",
        "reviews",
        _backbone(
            "data.limit=3000",
            "data.tokens=bytes",
            "data.max_length=128",
            "training.epochs=6",
            _SHORT,
        ),
    ),
    ComparedTask(
        "kjv",
        "the next character of the King James Bible, 2,000 windows of 64",
        "itnet-kjv",
        _backbone(
            "model.encoder.causal=true",
            "model.head.pool=every",
            "data.max_length=64",
            "data.limit=2000",
            "training.epochs=3",
            "schedule.warmup_epochs=0.3",
        ),
    ),
)

for _task in KNOWN:
    register_task(_task)

# A checkout has further tasks, those of the papers' tables.
import_evidence("tasks")
