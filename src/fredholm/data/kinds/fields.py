"""Fields on grids as a torch data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import DataError, ShapeError
from ..stored import StoredRows
from .dataset import LabelledDataset, Transform
from .images import prepare_pictures
from .kind import Kind, Page, register_kind


class Fields(Kind):
    """Fields on grids (N, C, H, W)."""

    name, one, many, encoder = "field", "field", "fields", "field"
    pictured, assumed = True, False

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 4

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        return prepare_pictures(inputs, facts.mean, facts.std)


FIELDS = register_kind(Fields())


def _floats(values: Tensor | StoredRows) -> Any:
    return values.float() if isinstance(values, Tensor) else values


class FieldDataset(LabelledDataset):
    """Pairs of fields on one grid: a batch is (B, C, H, W) inputs and (B, K, H, W) answers, each
    channel divided by its scale.

    Args:
        name, split: what this is.
        inputs, answers: (N, C, H, W) and (N, K, H, W) floats; tensors, or
            :class:`fredholm.data.StoredRows`, which stay on disk and are checked when a batch is
            read.
        classes: names of the K answered fields.
        input_shift, input_scale, scale: of each channel, from the training fields; answers are not
            shifted, so that relative errors stay.

    Raises:
        ShapeError: fields that do not fit.
        DataError: values that are no finite numbers.

    Example:
        >>> a, u = torch.rand(3, 1, 4, 4), torch.rand(3, 1, 4, 4)
        >>> FieldDataset("tiny", "train", a, u, ("u",)).batch([0, 2])[1].shape
        torch.Size([2, 1, 4, 4])
    """

    kind = FIELDS
    task = "field"

    def __init__(
        self,
        name: str,
        split: str,
        inputs: Tensor | StoredRows,
        answers: Tensor | StoredRows,
        classes: Sequence[str],
        *,
        input_shift: Sequence[float] = (0.0,),
        input_scale: Sequence[float] = (1.0,),
        scale: Sequence[float] = (1.0,),
    ):
        super().__init__(name, split, _floats(answers), classes)
        good = inputs.dim() == 4 and answers.dim() == 4 and inputs.shape[::2] == answers.shape[::2]
        if not good or inputs.shape[3] != answers.shape[3] or answers.shape[1] != len(classes):
            got = f"inputs {tuple(inputs.shape)}, answers {tuple(answers.shape)}"
            raise ShapeError(
                f"{name}: received {got}; needs (N, C, H, W) and (N, {len(classes)}, H, W)"
            )
        self.fields, self.channels = _floats(inputs), inputs.shape[1]
        self._check(torch.arange(len(inputs)), inputs, answers)
        self.shift, self.input_scale = (
            torch.tensor(x)[:, None, None] for x in (input_shift, input_scale)
        )
        self.scale = torch.tensor(scale)[:, None, None]

    def raw(
        self, indices: Tensor | Sequence[int]
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k h w"]]:
        indices = torch.as_tensor(indices, dtype=torch.int64)
        inputs, answers = self.fields[indices], self.labels[indices]
        if isinstance(self.fields, StoredRows) or isinstance(self.labels, StoredRows):
            self._check(indices, inputs, answers)
        return inputs, answers

    def _check(self, rows: Tensor, *values: Tensor | StoredRows) -> None:
        """Refuse samples ``rows`` that have values that are no finite numbers."""
        for what, some in zip(("inputs", "answers"), values):
            if isinstance(some, Tensor) and not bool(some.isfinite().all()):
                bad = int((~some.isfinite()).flatten(1).any(1).nonzero()[0])
                raise DataError(
                    f"{self.name} {self.split}: {what} of sample {int(rows[bad])} have a value "
                    "that is no finite number"
                )

    def batch(
        self, indices: Tensor | Sequence[int], transform: Transform | None = None
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k h w"]]:
        """Scaled inputs and answers of ``indices``; ``transform`` changes the inputs."""
        inputs, answers = self.raw(indices)
        inputs = (inputs - self.shift) / self.input_scale
        return (inputs if transform is None else transform(inputs)), answers / self.scale

    def encoder(self) -> dict[str, Any]:
        return {**super().encoder(), "channels": self.channels}

    def __repr__(self) -> str:
        size = "x".join(map(str, self.fields.shape[1:]))
        return f"FieldDataset({self.name!r}, {self.split!r}, {len(self)} fields {size})"
