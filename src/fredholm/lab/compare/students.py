"""Pretrained starts with linear attention: what softmax did, learnt from a search's own samples."""

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
from ..distill.fit import Run, StageOptions, run_stage
from ..distill.progress import Progress
from ..distill.stages import Distillation
from ..training.tasks import create_task
from .backbones import Backbone

# The map that came as near in half of the time as LUNA's did, on texts by MiniLM and on pictures
# by the ViT-S; from 100 steps on it came no nearer.
MAP = "hedgehog"
STEPS, SIZE, RATE = 120, 8, 1e-2
SEED = 0


class Arguments(LabelledDataset):
    """Samples as a backbone's arguments; what their labels are is not seen.

    Args:
        dataset: of a batch's inputs.
        arguments: from such inputs.
    """

    def __init__(self, dataset: Any, arguments: Callable[[Any], dict[str, Tensor]]):
        super().__init__(dataset.name, dataset.split, torch.zeros(len(dataset)), ())
        self.whole, self.arguments = dataset, arguments

    def batch(self, indices: Any, transform: Any = None) -> tuple[dict[str, Tensor], Tensor]:
        """Arguments of ``indices``, and zeros."""
        indices = torch.as_tensor(indices)
        return self.arguments(self.whole.batch(indices)[0]), self.labels[indices]


class Student:
    r"""A backbone with linear attention in the place of its softmax, the rest as it was.

    The features φ of each head, and they alone, minimise
    :math:`\mathrm{KL}(\mathrm{softmax}(QK^\top/\sqrt e)\,\|\,\phi(Q)\phi(K)^\top / Z)` over at most
    ``STEPS`` · ``SIZE`` training samples, every layer given what the teacher gives it, as
    :func:`fredholm.linearization` distils. The same samples give the same features.

    Args:
        train: training samples.
        view: of some of them, a data set whose batches ``given`` understands.
        given: a batch's inputs as a backbone reads them.
        teacher: makes the backbone with softmax, when it is first needed.
    """

    def __init__(
        self,
        train: Any,
        view: Callable[[Any], Any],
        given: Callable[[Any, Any], Any],
        teacher: Callable[[], Backbone],
    ):
        self._train = train
        self.dataset = view(limit_samples(train, STEPS * SIZE))
        self.given, self._teacher = given, teacher
        self.learned = False

    def learns_from(self, train: Any) -> bool:
        """Whether these are its training samples."""
        return self._train is train

    @property
    def plan(self) -> str:
        """What learning is, in words."""
        return f"{STEPS} steps of distillation"

    @cached_property
    def replaced(self) -> Replaced:
        """The converted model, its maps as they begin or as they were learnt."""
        with torch.inference_mode(False):
            return _converted(self.teacher, self.samples.batch([0])[0])

    @property
    def maps(self) -> Float[Tensor, " p"]:
        """All parameters of the features, which are all that it learns."""
        return torch.cat([value.detach().flatten() for value in _parameters(self.replaced)])

    @cached_property
    def teacher(self) -> Backbone:
        return self._teacher()

    @cached_property
    def samples(self) -> Arguments:
        """What it learns from."""
        return Arguments(
            self.dataset, lambda inputs: self.teacher.arguments(self.given(self.dataset, inputs))
        )

    @property
    def backbone(self) -> Backbone:
        """With linear attention, as it is now."""
        return Backbone(self.replaced.model, self.teacher.arguments, self.teacher.pool)

    def loss(self) -> Tensor:
        """The mean divergence of the layers from their teacher, on a few samples."""
        first = torch.arange(min(SIZE, len(self.samples)))
        with self.replaced.mode("distil"):
            self.replaced.model(**self.samples.batch(first)[0])
            return torch.stack(list(self.replaced.losses().values())).mean()

    def seconds(self, timer: Callable[[], float]) -> float:
        """Of all its learning, from a step that changes nothing."""
        maps = list(self.replaced.new_parameters().values())
        for _ in range(2):  # the first one is slower
            start = timer()
            for value in maps:
                value.requires_grad_(True)
            torch.autograd.grad(self.loss(), maps, allow_unused=True)
        self.replaced.model.requires_grad_(False)
        return STEPS * (timer() - start)

    def learn(self) -> Backbone:
        """The student once it has learnt, which it does once."""
        if not self.learned:
            options = StageOptions(
                epochs=STEPS,
                lr=RATE,
                batch_size=SIZE,
                steps=STEPS,  # epochs of a batch or more
            )
            run = Run(create_task(), "32", SEED, _quiet)
            report = ConversionReport.of(self.replaced, type(self.teacher.model).__name__)
            given = self.replaced, self.samples, None, options, report
            with torch.inference_mode(False), torch.random.fork_rng():
                run_stage(run, Progress(None, {}, False), "distilled", Distillation, *given)
            self.replaced.model.eval()
            self.learned = True
        return self.backbone


class Recalled(Student):
    """A student that has learnt before.

    Args:
        maps: see :attr:`Student.maps`.
        example: inputs as the backbone reads them.
        teacher: makes the backbone with softmax, when it is first needed.
    """

    def __init__(self, maps: Float[Tensor, " p"], example: Any, teacher: Callable[[], Backbone]):
        self._maps, self._example, self._teacher = maps, example, teacher
        self.learned = True

    @cached_property
    def replaced(self) -> Replaced:
        """The converted model with these maps."""
        with torch.inference_mode(False):
            replaced = _converted(self.teacher, self.teacher.arguments(self._example))
            parameters = _parameters(replaced)
            sizes = [value.numel() for value in parameters]
            if sum(sizes) != len(self._maps):
                raise CheckpointError(
                    f"maps: received {len(self._maps):,} numbers; needs {sum(sizes):,}, of other "
                    "weights or another version"
                )
            with torch.no_grad():
                for value, given in zip(parameters, self._maps.split(sizes), strict=True):
                    value.copy_(given.view_as(value))
        return replaced

    def learns_from(self, train: Any) -> bool:
        return False


def _converted(teacher: Backbone, arguments: dict[str, Tensor]) -> Replaced:
    """The teacher's model with linear attention, its maps as they begin."""
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        replaced = replace_attention(teacher.model, MAP, inputs=arguments)
    replaced.model.eval().requires_grad_(False)
    return replaced


def _parameters(replaced: Replaced) -> list[Tensor]:
    """What is learnt, in the order of the names."""
    return [value for _, value in sorted(replaced.new_parameters().items())]


def _quiet(line: str) -> None:
    """Say nothing."""
