"""Second stage of a conversion: train the whole model to give its teacher's logits."""

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

# Rows of logits at a time: intermediate results stay in a processor's cache.
ROWS = 32

# Steps between two lines of progress.
EVERY = 20


class _Divergence(torch.autograd.Function):
    """Sum of the divergences of rows of logits.

    The forward pass also computes the gradient, which needs a single tensor of the logits' size.
    """

    @staticmethod
    def forward(
        ctx: Any,
        student: Tensor,
        teacher: Tensor,
        weight: Tensor,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=student.device)
        gradient = torch.empty_like(student)
        for start in range(0, len(student), ROWS):
            part = slice(start, start + ROWS)
            ours = student[part].float().log_softmax(-1)
            theirs = teacher[part].float().log_softmax(-1)
            target = theirs.exp()
            rows = (target * (theirs - ours)).sum(-1)
            total += (rows * weight[part]).sum().double()
            # The derivative of KL(p || s) by the student's logits is s - p.
            off = ours.exp_() - target
            gradient[part] = off * weight[part, None]
        ctx.save_for_backward(gradient)
        return total.to(torch.promote_types(student.dtype, torch.float32))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        (factor,) = upstream
        return gradient * factor.to(gradient.dtype), None, None


def logit_divergence(
    student: Float[Tensor, "*n c"],
    teacher: Float[Tensor, "*n c"],
    real: Bool[Tensor, " *n"] | None = None,
) -> Float[Tensor, ""]:
    r"""Return the mean over real rows of :math:`\mathrm{KL}(p \| s)` in nats, where p and s are the
    softmax of the teacher's and of the student's logits. Only the student receives gradients.

    Args:
        student, teacher: logits of c classes or tokens.
        real: rows that count; None for all.

    Cost: O(n·c) time, and the memory of one more tensor of the student's size.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0]])
        >>> round(float(logit_divergence(torch.tensor([[2.0, 0.0]]), logits)), 4)
        0.4338
    """
    student = student.reshape(-1, student.shape[-1])
    teacher = teacher.detach().reshape(-1, teacher.shape[-1])
    weight = torch.ones(len(student), device=student.device)
    if real is not None:
        weight = real.reshape(-1).to(weight.dtype)
    total = weight.sum().clamp(min=1.0)
    return _Divergence.apply(student, teacher, weight / total)


@torch.no_grad()
def cross_entropies(
    logits: Float[Tensor, "*n c"],
    labels: Int[Tensor, " *n"],
) -> Float[Tensor, " m"]:
    """Return minus the log-probability of each label that is not ignored (m of n)."""
    logits = logits.reshape(-1, logits.shape[-1])
    labels = labels.reshape(-1)
    result = []
    for rows, chosen in zip(logits.split(ROWS), labels.split(ROWS)):
        losses = nn.functional.cross_entropy(
            rows.float(),
            chosen,
            reduction="none",
            ignore_index=IGNORED,
        )
        result.append(losses)
    return torch.cat(result)[labels != IGNORED]


class Matching(Stage):
    """Matching: train all weights, or low-rank changes and the maps, on the teacher's logits.

    Args:
        replaced, loader, options, seed: see :class:`.stages.Stage`.
        teacher: gives the logits, and is not trained.
        say: receives a line every few steps; for texts with the ratio of both perplexities, on
            windows that were not trained on yet.
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
        # In a tuple, so that checkpoints do not contain it.
        self.teacher = (teacher.eval(),)
        self.say = say
        self.begun = time.monotonic()

        # Divergence, and cross-entropy above the teacher's, of the steps since the last line.
        self.recent: list[tuple[float, float]] = []
        self.lora: Lora | None = None
        if options.lora is not None:
            self.lora = Lora(replaced, options.lora, step_seed(seed, *self.name.encode()))

    def trained(self) -> list[nn.Parameter]:
        if self.lora is not None:
            return self.lora.parameters()
        return super().trained()

    def on_train_start(self) -> None:
        self.model.train()
        # Lightning moves submodules only.
        self.teacher[0].to(self.device)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        with torch.no_grad():
            target = outputs_of(self.teacher[0], inputs)
        if target.shape[-1] < 2:
            raise OptionError(
                f"match: expected logits of two classes or more, got {tuple(target.shape)} from "
                f"{type(self.teacher[0]).__name__}; leave the stage out, "
                "match=StageOptions(epochs=0)"
            )
        with self.window_of_step():
            logits = outputs_of(self.model, inputs)
        real = _real(inputs, logits)
        value = logit_divergence(logits, target, real)
        # Only tokens have a perplexity.
        excess = 0.0
        if labels.shape == logits.shape[:-1] and logits.dim() == 3:
            ours = cross_entropies(logits, labels)
            theirs = cross_entropies(target, labels)
            excess = float((ours - theirs).mean())
        self.recent.append((float(value.detach()), excess))
        return value

    def on_train_batch_end(
        self,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        step = self.global_step
        total = int(self.trainer.estimated_stepping_batches)
        total = min(total, self.last_step or total)
        if len(self.recent) < EVERY and step < total:
            return

        divergences, excesses = zip(*self.recent)
        divergence = sum(divergences) / len(divergences)
        excess = sum(excesses) / len(excesses)
        seconds = time.monotonic() - self.begun
        parts = [
            f"{self.name}: step {step}/{total}",
            f"KL {divergence:.4f}",
        ]
        if excess:
            parts.append(f"perplexity {exponential(excess):.4f} times the teacher's")
        parts.append(f"{seconds:.0f} s")
        self.say("  ".join(parts))
        self.recent = []

    def finish(self) -> None:
        if self.lora is not None:
            self.lora.merge()
            self.lora = None


class Lengthening(Matching):
    """Lengthening: continue the matching on longer windows, whose dependences reach further back
    than those of the first windows.
    """

    name = "lengthened"


def _real(inputs: Any, logits: Tensor) -> Tensor | None:
    """Return which rows of logits belong to real tokens; None for all."""
    if not isinstance(inputs, Mapping):
        return None
    mask = inputs.get("attention_mask")
    # Beside an encoder, that mask is the encoder's, and the decoder has its own.
    if "decoder_input_ids" in inputs:
        mask = inputs.get("decoder_attention_mask")
    if mask is None or logits.dim() < 3:
        return None
    if mask.shape != logits.shape[:-1]:
        return None
    return mask.bool()
