"""A stage of a conversion: the whole model learns the logits of its teacher, end to end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...errors import OptionError
from ...linearization import Replaced
from ..data.kinds.dataset import IGNORED
from ..training.learner import Loader, step_seed
from ..training.metrics import exponential
from .lora import Lora
from .stages import Stage, outputs_of

ROWS = 32  # of logits at a time: what is made of them stays in a processor's cache
EVERY = 20  # steps between two lines of progress


class _Divergence(torch.autograd.Function):
    """Summed divergences of rows of logits; the gradient is made on the way, in one tensor."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, weight: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=student.device)
        gradient = torch.empty_like(student)
        for start in range(0, len(student), ROWS):
            part = slice(start, start + ROWS)
            ours, theirs = (x[part].float().log_softmax(-1) for x in (student, teacher))
            share = theirs.exp()
            rows = (share * (theirs - ours)).sum(-1)
            total += (rows * weight[part]).sum().double()
            gradient[part] = (ours.exp_() - share) * weight[part, None]
        ctx.save_for_backward(gradient)
        return total.to(torch.promote_types(student.dtype, torch.float32))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[0].to(gradient.dtype), None, None


def logit_divergence(
    student: Float[Tensor, "*n c"],
    teacher: Float[Tensor, "*n c"],
    real: Bool[Tensor, " *n"] | None = None,
) -> Float[Tensor, ""]:
    r"""Mean over real rows of :math:`\mathrm{KL}(p \| s)`, :math:`p, s` the softmax of the
    teacher's logits and of the student's, in nats; gradients go to the student alone.

    Args:
        student, teacher: logits of c classes or tokens.
        real: rows that count; None for all.

    Cost: O(n·c) time; one tensor of the student's size beside the two.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0]])
        >>> round(float(logit_divergence(torch.tensor([[2.0, 0.0]]), logits)), 4)
        0.4338
    """
    student, teacher = (x.reshape(-1, x.shape[-1]) for x in (student, teacher.detach()))
    weight = torch.ones(len(student), device=student.device)
    if real is not None:
        weight = real.reshape(-1).to(weight.dtype)
    return _Divergence.apply(student, teacher, weight / weight.sum().clamp(min=1.0))


@torch.no_grad()
def cross_entropies(
    logits: Float[Tensor, "*n c"], labels: Int[Tensor, " *n"]
) -> Float[Tensor, " m"]:
    """Minus the log-probability of each label that is asked for, a few rows at a time."""
    logits, labels = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1)
    result = [
        nn.functional.cross_entropy(rows.float(), asked, reduction="none", ignore_index=IGNORED)
        for rows, asked in zip(logits.split(ROWS), labels.split(ROWS))
    ]
    return torch.cat(result)[labels != IGNORED]


class Matching(Stage):
    """All weights, or low-rank changes of them and the maps, learn the teacher's logits.

    Args:
        teacher: gives the logits; it learns nothing.
        say: receives a line every few steps; of texts the ratio of both perplexities on windows
            that were not trained on yet.
    """

    name = "matched"

    def __init__(
        self,
        replaced: Replaced,
        loader: Loader,
        options: Any,
        seed: int,
        teacher: nn.Module,
        say: Callable[[str], None],
    ):
        super().__init__(replaced, loader, options, seed)
        self.teacher = (teacher.eval(),)  # in a tuple, so that it is no part of the state
        self.say, self.begun = say, time.monotonic()
        self.recent: list[list[float]] = []  # divergence and excess of the last steps
        self.lora = (
            None
            if options.lora is None
            else Lora(replaced, options.lora, step_seed(seed, *self.name.encode()))
        )

    def trained(self) -> list[nn.Parameter]:
        if self.lora is not None:
            return self.lora.parameters()
        return super().trained()

    def on_train_start(self) -> None:
        self.model.train()
        self.teacher[0].to(self.device)  # which is no part of what Lightning moves

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        with torch.no_grad():
            target = outputs_of(self.teacher[0], inputs)
        if target.shape[-1] < 2:
            raise OptionError(
                f"match: {type(self.teacher[0]).__name__} gives {tuple(target.shape)}, one number "
                "a sample, and no logits that could be matched; leave the stage out, "
                "match=StageOptions(epochs=0)"
            )
        with self.window_of_step():
            logits = outputs_of(self.model, inputs)
        value = logit_divergence(logits, target, _real(inputs, logits))
        row = [float(value.detach()), 0.0]
        if labels.shape == logits.shape[:-1] and logits.dim() == 3:
            excess = cross_entropies(logits, labels) - cross_entropies(target, labels)
            row[1] = float(excess.mean())
        self.recent.append(row)
        return value

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        step, total = self.global_step, int(self.trainer.estimated_stepping_batches)
        total = min(total, self.last_step or total)
        if len(self.recent) < EVERY and step < total:
            return
        near, excess = (sum(column) / len(self.recent) for column in zip(*self.recent))
        ratio = f"  perplexity {exponential(excess):.4f} times the teacher's" if excess else ""
        seconds = time.monotonic() - self.begun
        self.say(f"{self.name}: step {step}/{total}  KL {near:.4f}{ratio}  {seconds:.0f} s")
        self.recent = []

    def finish(self) -> None:
        if self.lora is not None:
            self.lora.merge()
            self.lora = None


class Lengthening(Matching):
    """The same on longer windows, after it: what lies further back than the first windows reached
    is seen for the first time.
    """

    name = "lengthened"


def _real(inputs: Any, logits: Tensor) -> Tensor | None:
    """Which rows of logits belong to real tokens; None for all."""
    given = inputs if isinstance(inputs, Mapping) else {}
    both = "decoder_input_ids" in given  # the other mask is the encoder's
    mask = given.get("decoder_attention_mask" if both else "attention_mask")
    if mask is None or logits.dim() < 3 or mask.shape != logits.shape[:-1]:
        return None
    return mask.bool()
