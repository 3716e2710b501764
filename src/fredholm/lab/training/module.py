"""Training by a recipe."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...distributed import Shards
from ...kernels import auxiliary_loss
from ...models.decay import dropped_weights, in_todays_order
from ...modes import evaluating
from .build import build_mixer
from .evaluation import as_weights, on_device
from .failures import TrainingFailed
from .learner import Descent, Learner, Loader, step_seed
from .recipe import Phase, Recipe
from .schedules import Schedule
from .tasks import Pairs, Tally, Task, create_task, joined_pairs, task_of

Mixer = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


class RecipeLearner(Learner):
    """Training of ``model`` by ``recipe`` on (inputs, labels) batches, for what the ``task`` asks.

    ``loader(rank, world_size)`` makes the resumable training loader of one process; ``mixer``
    blends inputs and labels. ``mesh`` has the processes that have parts of the same samples as this
    one; None where samples are whole.
    """

    scores = ("val_loss", "val_accuracy")

    def __init__(
        self,
        model: nn.Module,
        recipe: Recipe,
        loader: Loader,
        mixer: Mixer | None = None,
        task: Task | None = None,
        mesh: Any = None,
    ):
        super().__init__(model, loader, descent_of(recipe), recipe.seed)
        self.task = task or create_task()
        self.recipe, self.mixer, self.mesh = recipe, mixer, mesh
        self.task.shards = None if mesh is None else Shards.over(mesh)
        self.parts = 1 if mesh is None else mesh.size()  # processes that have parts of one sample
        self.tally = Tally(self.task)

    def forward(self, inputs: Any) -> Tensor:
        return self.model(inputs) if self.mesh is None else self.model(inputs, mesh=self.mesh)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.mixer is not None:
            inputs, labels = batch
            # Of the samples, of which other processes may have other parts.
            place = self.global_rank // self.parts
            seed = step_seed(self.seed, self.current_epoch, batch_idx, place)
            generator = torch.Generator().manual_seed(seed)
            batch = self.mixer(inputs, labels, generator)
        return super().training_step(batch, batch_idx)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        options = self.recipe.training
        inputs, labels = in_phase(options.phases, self.global_step, inputs, labels)
        outputs = forward_of(self.model, self, inputs, options.weight_dropout)
        return self.task.loss(outputs, labels, options.label_smoothing)

    def weight(self, labels: Tensor) -> float:
        # processes with parts of the same samples have all of them the samples' one answer
        alike = 1 if self.task.points is not None else self.parts
        return self.task.weight(labels) / alike

    def penalty(self) -> Tensor | None:
        return auxiliary_loss(self.model)

    def trained(self) -> list[Any]:
        return self.model.weight_decay_groups(self.recipe.optimizer.weight_decay)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        states = checkpoint.get("optimizer_states", [])
        checkpoint["optimizer_states"] = [in_todays_order(state, self.model) for state in states]
        super().on_load_checkpoint(checkpoint)

    def cure(self) -> str:
        lr = self.recipe.optimizer.lr
        return f"lower optimizer.lr ({lr:g}) or lengthen schedule.warmup_epochs"

    def validation_step(self, batch, batch_idx: int) -> None:
        inputs, labels = batch
        outputs = self(inputs)
        loader: Any = self.trainer.val_dataloaders
        if self.trainer.world_size > 1 and not loader.order.share(batch_idx):
            return  # none of the batch's samples is this process's
        self.tally.add(outputs, labels)

    def on_validation_epoch_end(self) -> None:
        tally, self.tally = self.tally, Tally(self.task)
        self.metrics = tally.metrics(self.reduced(tally.sums), self.gathered(tally))
        loss = self.metrics.get("val_loss", 0.0)
        if not math.isfinite(loss):
            raise TrainingFailed(
                f"val_loss: {loss} after epoch {self.current_epoch + 1}; {self.cure()}"
            )
        self.log_dict(self.metrics, prog_bar=True, logger=True, sync_dist=False)

    def gathered(self, tally: Tally) -> Pairs | None:
        """Outputs and labels of all processes, where the metric needs them."""
        if not self.task.keeps or self.trainer.world_size == 1:
            return tally.pairs()
        # those that have parts of a sample all have its one answer
        mine = self.mesh is None or self.task.points is not None or self.mesh.get_local_rank() == 0
        parts: list[Any] = [None] * self.trainer.world_size
        torch.distributed.all_gather_object(parts, tally.pairs() if mine else None)
        return joined_pairs(parts)


def forward_of(model: nn.Module, call: Any, inputs: Any, dropout: float) -> Tensor:
    """The outputs of a step: of ``call``, or of the model without a share of its weights."""
    if not dropout:
        return call(inputs)
    return functional_call(model, dropped_weights(model, dropout), (inputs,))


def in_phase(
    phases: list[Phase] | None, step: int, inputs: Any, labels: Tensor
) -> tuple[Any, Tensor]:
    """A batch of texts (B, …, N) as far as the phase of a step reads them, and what is asked there.

    Example:
        >>> phases = [Phase(steps=10, max_length=2), Phase(steps=5)]
        >>> texts, labels = torch.ones(1, 4).long(), torch.zeros(1, 4).long()
        >>> [in_phase(phases, step, texts, labels)[1].shape[1] for step in (0, 9, 10)]
        [2, 2, 4]
    """
    for phase in phases or ():
        step -= phase.steps
        if step < 0:
            length = phase.max_length
            if length is None or not isinstance(inputs, Tensor):
                return inputs, labels
            asked = labels.dim() > 1 and labels.shape[-1] == inputs.shape[-1]
            return inputs[..., :length], labels[..., :length] if asked else labels
    return inputs, labels


@torch.no_grad()
def rehearse(model: Any, batches: Any, mesh: Any) -> None:
    """Refuse, before there is a run, a model that has an operator without an exchange between
    processes: by a training step's forward on a few of the points of the first sample.

    Raises:
        OptionError: an encoder that reads whole samples.
        DomainError: an operator that needs all points.
    """
    inputs, _ = batches.loader.dataset.batch([0])
    axis, few = model.encoder.axis, 4 * model.encoder.grain
    inputs = inputs.narrow(axis, 0, min(few, inputs.shape[axis]))
    model.train()
    model(as_weights(model, inputs), mesh=mesh)


@torch.no_grad()
def judge_few(model: Any, recipe: Recipe, dataset: Any) -> None:
    """Refuse, before there is a run, a model whose answers are not those that the task asks for: by
    the loss of two samples, blended as the recipe says. Neither the model nor the random numbers
    that follow are changed.

    Raises:
        ShapeError: a head of another kind.
    """
    inputs, labels = dataset.batch(torch.arange(min(2, len(dataset))))
    mixer, place = build_mixer(recipe, len(dataset.classes)), on_device(model)
    with torch.random.fork_rng([place] if place.type == "cuda" else []):
        if mixer is not None:
            inputs, labels = mixer(inputs, labels, torch.Generator().manual_seed(0))
        try:
            with evaluating(model), autocast_of(recipe, place):
                outputs = model(inputs.to(place))
        except Exception:  # it may need more points than two samples have: a training step says so
            return
    task_of(dataset).loss(outputs, labels.to(place), recipe.training.label_smoothing)


def autocast_of(recipe: Recipe, device: torch.device) -> torch.autocast:
    """The precision of a recipe's forward."""
    half = recipe.training.precision == "bf16"
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def descent_of(recipe: Recipe) -> Descent:
    """A recipe's optimiser and schedule; the groups of parameters have weight decays of their
    own.
    """
    options = recipe.optimizer
    first, second = options.betas
    return Descent(
        lr=options.lr,
        weight_decay=options.weight_decay,
        betas=(float(first), float(second)),
        eps=options.eps,
        name=options.name,
        schedule=schedule_of(recipe),
    )


def schedule_of(recipe: Recipe) -> Schedule:
    """A recipe's schedule; what it leaves out is :class:`Schedule`'s default."""
    given = recipe.schedule
    keys = {"factor", "patience", "metric", "every", "warmup_steps"}
    milestones = () if given.milestones is None else tuple(given.milestones)
    return Schedule(
        given.name,
        warmup=recipe.warmup_epochs,
        # Of a length in steps it is not known here how many epochs they are.
        of=recipe.training.epochs if recipe.training.steps is None else None,
        floor=given.min_lr_ratio,
        milestones=milestones,
        **given.model_dump(include=keys, exclude_none=True),
    )
