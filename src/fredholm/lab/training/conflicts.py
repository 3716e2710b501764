"""Combinations of a recipe's keys that no run can satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .recipe import Recipe, Schedule


def conflicts(recipe: Recipe) -> Iterator[str]:
    """List combinations of keys that no run can satisfy."""
    training = recipe.training
    size = recipe.data.image_size
    if recipe.data.cutmix > 0 and size is not None and min(size) < 2:
        height, width = size
        yield (
            "data.cutmix: expected 0 or images of 2x2 pixels and more, got "
            f"{recipe.data.cutmix:g} with {height}x{width} images"
        )

    if training.epochs is None and training.steps is None:
        yield "training.epochs: expected a number, got None; give it or training.steps"

    yield from _phase_conflicts(recipe)

    if training.weight_dropout and training.strategy == "fsdp2":
        yield (
            "training.weight_dropout: expected all weights in each process, got "
            f"{training.weight_dropout:g} with strategy='fsdp2'; use strategy='ddp'"
        )

    yield from _schedule_conflicts(recipe.schedule)
    yield from _domain_conflicts(recipe)

    if recipe.operator.name is None and recipe.operator.options:
        yield "operator.name: expected the operator that the options belong to, got none; add it"


def _phase_conflicts(recipe: Recipe) -> Iterator[str]:
    phases = recipe.training.phases
    if phases is None:
        return

    steps = recipe.training.steps
    total = sum(phase.steps for phase in phases)
    if total != steps:
        yield (
            f"training.phases: expected as many steps as training.steps={steps}, got {total} in all"
        )

    limit = recipe.data.max_length
    longest = max(phase.max_length or 0 for phase in phases)
    if limit is not None and longest > limit:
        yield (
            f"training.phases: expected max_length up to data.max_length={limit}, got {longest}; "
            "shorten it"
        )


def _domain_conflicts(recipe: Recipe) -> Iterator[str]:
    """List options that cannot be applied to parts of samples."""
    parts = recipe.parallel.domain
    if parts == 1:
        return

    # A recipe for one process may still be started by torchrun or srun with more.
    processes = recipe.training.devices * recipe.training.nodes
    if processes > 1 and processes % parts:
        yield f"parallel.domain: expected a divisor of {processes} processes, got {parts}"
    if recipe.data.cutmix > 0:
        yield (
            f"data.cutmix: expected 0 with parallel.domain={parts}, got {recipe.data.cutmix:g}; a "
            "patch would lie in several parts"
        )
    if recipe.training.weight_dropout:
        yield (
            f"training.weight_dropout: expected 0 with parallel.domain={parts}, got "
            f"{recipe.training.weight_dropout:g}; all parts need the same weights"
        )
    if recipe.training.phases:
        yield (
            f"training.phases: expected none with parallel.domain={parts}, got "
            f"{len(recipe.training.phases)}; parts cannot be cut again, remove them"
        )


# Keys that belong to some schedules only. The warm-up and ``min_lr_ratio`` belong to all.
_KEYS_OF_SCHEDULE = {
    "step": ("factor", "milestones", "every"),
    "plateau": ("factor", "patience", "metric"),
}


def _schedule_conflicts(schedule: Schedule) -> Iterator[str]:
    keys = sorted({key for keys in _KEYS_OF_SCHEDULE.values() for key in keys})
    for key in keys:
        value = getattr(schedule, key)
        if value is None or key in _KEYS_OF_SCHEDULE.get(schedule.name, ()):
            continue
        owners = [name for name, own_keys in _KEYS_OF_SCHEDULE.items() if key in own_keys]
        yield (
            f"schedule.{key}: expected schedule.name={' or '.join(owners)}, got {value!r} with "
            f"{schedule.name!r}; change the name or remove the key"
        )

    if schedule.name == "step":
        expected = "schedule.milestones, schedule.every: expected one of them with 'step'"
        if schedule.milestones is None and schedule.every is None:
            yield f"{expected}, got neither"
        if schedule.milestones is not None and schedule.every is not None:
            yield f"{expected}, got both"

    if schedule.warmup_steps is not None and schedule.warmup_epochs:
        yield (
            "schedule.warmup_steps: expected one length of the warm-up, got "
            f"{schedule.warmup_steps} with warmup_epochs={schedule.warmup_epochs:g}; remove one"
        )
