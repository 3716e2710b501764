"""Pretrained starts with linear attention that has learnt, from a search's own samples, to imitate
softmax.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import CheckpointError
from ...linearization import ConversionReport, Replaced, replace_attention
from ..data import LabelledDataset, limit_samples
from ..data.kinds.dataset import Indices, Transform, index_tensor
from ..distill.fit import Run, StageOptions, run_stage
from ..distill.progress import Progress
from ..distill.stages import Distillation
from ..training.grid import quiet
from ..training.tasks import create_task
from .backbones import Backbone
from .fitted import AGAIN

# On texts with MiniLM and on pictures with the ViT-S this feature map came as near to softmax as
# LUNA's, in half of the time. From 100 steps on it came no nearer.
MAP = "hedgehog"

# Steps of distillation, samples per step, and the learning rate.
STEPS = 120
SIZE = 8
RATE = 1e-2
SEED = 0


class Arguments(LabelledDataset):
    """Samples as a backbone's arguments, without their labels.

    Args:
        dataset: the samples.
        arguments: makes the backbone's arguments from the inputs of a batch.
    """

    def __init__(
        self,
        dataset: Any,
        arguments: Callable[[Any], dict[str, Tensor]],
    ):
        labels = torch.zeros(len(dataset))
        super().__init__(dataset.name, dataset.split, labels, ())
        self.whole = dataset
        self.arguments = arguments

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return the arguments of some samples, and zeros in the place of their labels."""
        indices = index_tensor(indices)
        inputs, _ = self.whole.batch(indices, transform)
        return self.arguments(inputs), self.labels[indices]


class Student:
    r"""A backbone in which linear attention replaces softmax; the rest stays as it was.

    Only the feature map φ of each head is trained. It minimises
    :math:`\mathrm{KL}(\mathrm{softmax}(QK^\top/\sqrt e)\,\|\,\phi(Q)\phi(K)^\top / Z)` over at most
    ``STEPS`` · ``SIZE`` training samples. Every layer reads what the teacher's layer reads, as in
    the distillation of :func:`fredholm.linearization`. The same samples give the same maps.

    Args:
        train: training samples, of which at most ``STEPS`` · ``SIZE`` are used.
        view: turns a data set into one whose batches ``given`` reads: that of texts has the texts
            as they are written in place of token numbers.
        given: turns such a data set and the inputs of one of its batches into what a backbone
            reads, texts or normalised pixels.
        teacher: loads the backbone with softmax, when it is first needed.

    Attributes:
        dataset: the view of the samples that it learns from.
        learned: whether the maps have been trained; :meth:`learn` trains them once.
    """

    def __init__(
        self,
        train: Any,
        view: Callable[[Any], Any],
        given: Callable[[Any, Any], Any],
        teacher: Callable[[], Backbone],
    ):
        # `learns_from` compares this object with the training samples of a later search.
        self._train = train
        some = limit_samples(train, STEPS * SIZE)
        self.dataset = view(some)
        self.given = given
        self._teacher = teacher
        self.learned = False

    def learns_from(self, train: Any) -> bool:
        """Return whether these are its training samples."""
        return self._train is train

    @property
    def plan(self) -> str:
        """Describe its learning in words."""
        return f"{STEPS} steps of distillation"

    @cached_property
    def replaced(self) -> Replaced:
        """The converted model, with its maps as they are now."""
        with torch.inference_mode(False):
            arguments, _ = self.samples.batch([0])
            return _converted(self.teacher, arguments)

    @property
    def maps(self) -> Float[Tensor, " p"]:
        """All parameters of the feature maps, which are all that it learns."""
        parameters = _parameters(self.replaced)
        return torch.cat([value.detach().flatten() for value in parameters])

    @cached_property
    def teacher(self) -> Backbone:
        return self._teacher()

    @cached_property
    def samples(self) -> Arguments:
        """The samples that it learns from."""

        def arguments(inputs: Any) -> dict[str, Tensor]:
            given = self.given(self.dataset, inputs)
            return self.teacher.arguments(given)

        return Arguments(self.dataset, arguments)

    @property
    def backbone(self) -> Backbone:
        """The backbone with linear attention as it is now."""
        return Backbone(
            self.replaced.model,
            self.teacher.arguments,
            self.teacher.pool,
        )

    def loss(self) -> Tensor:
        """Return the mean divergence of the layers from their teacher, on a few samples."""
        count = min(SIZE, len(self.samples))
        arguments, _ = self.samples.batch(torch.arange(count))
        with self.replaced.mode("distil"):
            self.replaced.model(**arguments)
            losses = list(self.replaced.losses().values())
            return torch.stack(losses).mean()

    def seconds(self, timer: Callable[[], float]) -> float:
        """Estimate the seconds of learning from one step, which changes nothing."""
        maps = list(self.replaced.new_parameters().values())
        # The first step is slower; the second one counts.
        start = 0.0
        for _ in range(2):
            start = timer()
            for value in maps:
                value.requires_grad_(True)
            torch.autograd.grad(self.loss(), maps, allow_unused=True)
        self.replaced.model.requires_grad_(False)
        return STEPS * (timer() - start)

    def learn(self) -> Backbone:
        """Train the feature maps at the first call; return the backbone."""
        if self.learned:
            return self.backbone

        # An epoch has a step or more, so STEPS epochs never end before STEPS steps.
        options = StageOptions(
            epochs=STEPS,
            lr=RATE,
            batch_size=SIZE,
            steps=STEPS,
        )
        kind = type(self.teacher.model).__name__
        report = ConversionReport.of(self.replaced, kind)
        progress = Progress(None, {}, False)
        run = Run(
            create_task(),
            "32",
            SEED,
            quiet,
            progress,
            self.replaced,
            report,
        )
        with torch.inference_mode(False), torch.random.fork_rng():
            run_stage(
                run,
                "distilled",
                Distillation,
                self.samples,
                None,
                options,
            )
        self.replaced.model.eval()
        self.learned = True
        return self.backbone


class Recalled(Student):
    """A student that has learnt before.

    Args:
        maps: see :attr:`Student.maps`.
        example: inputs as the backbone reads them.
        teacher: loads the backbone with softmax, when it is first needed.
    """

    def __init__(
        self,
        maps: Float[Tensor, " p"],
        example: Any,
        teacher: Callable[[], Backbone],
    ):
        self._maps = maps
        self._example = example
        self._teacher = teacher
        self.learned = True

    @cached_property
    def replaced(self) -> Replaced:
        """The converted model with these maps."""
        with torch.inference_mode(False):
            arguments = self.teacher.arguments(self._example)
            replaced = _converted(self.teacher, arguments)
        parameters = _parameters(replaced)
        sizes = [value.numel() for value in parameters]
        if sum(sizes) != len(self._maps):
            # The weights of the start, or the feature map, are those of another version.
            raise CheckpointError(
                f"maps: expected {sum(sizes):,} numbers, got {len(self._maps):,}; {AGAIN}"
            )
        with torch.inference_mode(False), torch.no_grad():
            maps = self._maps.split(sizes)
            for value, saved in zip(parameters, maps, strict=True):
                value.copy_(saved.view_as(value))
        return replaced

    def learns_from(self, train: Any) -> bool:
        return False


def _converted(
    teacher: Backbone,
    arguments: dict[str, Tensor],
) -> Replaced:
    """Return the teacher's model with linear attention and untrained maps."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        replaced = replace_attention(teacher.model, MAP, inputs=arguments)
    replaced.model.eval().requires_grad_(False)
    return replaced


def _parameters(replaced: Replaced) -> list[Tensor]:
    """Return the parameters that are learnt, in the order of their names."""
    by_name = sorted(replaced.new_parameters().items())
    return [value for _, value in by_name]
