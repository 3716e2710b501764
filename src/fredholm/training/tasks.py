"""What a data set asks of a model: the loss that is minimised and what validation reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from ..errors import ShapeError

NUMBERS = ("regression", "field")  # tasks without classes, known by their loss
IGNORED = -100  # the label of a point that no loss counts


@dataclass(frozen=True)
class Task:
    """One of ``classification``, ``steps`` (a class at every point), ``tokens`` (a token at every
    point, kept by its loss), ``answers`` (a score in [0, 1] for every class, by binary
    cross-entropy; its accuracy is the score of the class called), ``field`` (numbers at every point
    of a grid, by relative L2 error) and ``regression`` (one number, by mean squared error).

    Example:
        >>> task = Task("regression")
        >>> out, target = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0])
        >>> task.loss(out, target).item(), task.metrics([4.0, 0.0, 2.0])
        (2.0, {'val_loss': 2.0})
    """

    name: str = "classification"

    @property
    def outputs(self) -> int | None:
        """How many numbers the model gives, where that is not the number of classes."""
        return 1 if self.name == "regression" else None

    @property
    def metric(self) -> tuple[str, str]:
        """The metric by which the best weights are known, and its direction."""
        return ("val_loss", "min") if self.name in (*NUMBERS, "tokens") else ("val_accuracy", "max")

    def loss(self, outputs: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
        """The mean over a batch, and over its points."""
        outputs, labels = self.pairs(outputs, labels)
        if self.name == "regression":
            return mse_loss(outputs, labels)
        if self.name == "field":
            return relative_error(outputs, labels).mean()
        if self.name == "answers":
            return binary_cross_entropy_with_logits(outputs, labels) * labels.shape[-1]
        return cross_entropy(outputs, labels, label_smoothing=smoothing)

    def pairs(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and labels one by one: logits (N, C) and classes (N,) or shares (N, C), or two
        lists of numbers.

        Raises:
            ShapeError: outputs of another kind of head.
        """
        if self.name == "regression":
            if outputs.numel() != labels.numel():
                raise ShapeError(
                    f"a regression needs one number a sequence, got {tuple(outputs.shape)}; set "
                    "num_classes=1"
                )
            return outputs.float().flatten(), labels.float().flatten()
        if self.name == "field":
            labels = labels.flatten(2).mT
        if self.name in ("field", "answers") and outputs.shape != labels.shape:
            raise ShapeError(
                f"task {self.name!r} needs outputs {tuple(labels.shape)}, got "
                f"{tuple(outputs.shape)}"
            )
        if self.name in ("steps", "tokens"):
            if outputs.dim() != 3 or outputs.shape[:2] != labels.shape:
                need = f"({', '.join(map(str, labels.shape))}, classes)"
                raise ShapeError(
                    f"a class at every point needs logits {need}, got {tuple(outputs.shape)}; "
                    "set head='every' (CKCNN) or pool='every' (ITNet)"
                )
            counted = labels != IGNORED
            return outputs[counted], labels[counted]
        return outputs, labels

    def sums(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, int]:
        """Summed loss, how many were right, and how many there were."""
        outputs, labels = self.pairs(outputs.float(), labels)
        if self.name == "regression":
            return mse_loss(outputs, labels, reduction="sum"), torch.zeros(()), len(labels)
        if self.name == "field":
            return relative_error(outputs, labels).sum(), torch.zeros(()), len(labels)
        if self.name == "answers":
            called = outputs.argmax(-1, keepdim=True)
            return (
                self.loss(outputs, labels) * len(labels),
                labels.gather(1, called).sum(),
                len(labels),
            )
        return (
            cross_entropy(outputs, labels, reduction="sum"),
            (outputs.argmax(-1) == labels).sum(),
            len(labels),
        )

    def metrics(self, sums: list[float]) -> dict[str, float]:
        """What validation reports, from the sums over all batches."""
        loss, correct, count = sums
        found = {"val_loss": loss / count}
        return found if self.name in NUMBERS else found | {"val_accuracy": correct / count}


def relative_error(outputs: Tensor, labels: Tensor) -> Tensor:
    r""":math:`\|o - l\|_2 / \|l\|_2` of each sample (B, …); where the answer is zero, the error
    itself.

    Example:
        >>> relative_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[3.0, 4.0]])).item()
        0.800000011920929
    """
    error, size = (x.flatten(1).norm(dim=1) for x in (outputs - labels, labels))
    return error / torch.where(size > 0, size, 1.0)


def task_of(dataset: Any) -> Task:
    """The task of a data set; images and texts are classified."""
    return Task(getattr(dataset, "task", "classification"))
