"""Fields on grids as a torch data set."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ....errors import DataError, ShapeError
from ..stored import StoredRows
from .dataset import Cut, LabelledDataset, Transform, stretched
from .images import prepare_pictures
from .kind import Cloud, Kind, Page, register_kind


class Fields(Kind):
    """Fields on grids (N, C, H, W)."""

    name, one, many, encoder = "field", "field", "fields", "field"
    pictured, assumed = True, False

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 4

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        return prepare_pictures(inputs, facts.mean, facts.std)


FIELDS = register_kind(Fields())


def _offset(mean: Sequence[float] | None, scale: Sequence[float]) -> dict[str, Any]:
    """The head's offset, for fields that are divided by their scale."""
    return {} if mean is None else {"offset": [m / s for m, s in zip(mean, scale, strict=True)]}


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
        mean: of each answered field; models of these data begin there. None: at zero.

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
        mean: Sequence[float] | None = None,
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
        self.offset = _offset(mean, scale)

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

    def stretch(self, axis: int, cut: Cut) -> FieldDataset | None:
        if axis != 2 or "raw" in vars(self):
            return None
        result = copy.copy(self)
        result.fields, result.labels = (stretched(x, 2, cut) for x in (self.fields, self.labels))
        return result

    def encoder(self) -> dict[str, Any]:
        return {**super().encoder(), "channels": self.channels}

    def head(self) -> dict[str, Any]:
        return super().head() | self.offset

    def describe(self) -> dict[str, Any]:
        scales = {"shift": self.shift, "input_scale": self.input_scale, "scale": self.scale}
        return super().describe() | {name: v.flatten().tolist() for name, v in scales.items()}

    def __repr__(self) -> str:
        size = "x".join(map(str, self.fields.shape[1:]))
        return f"FieldDataset({self.name!r}, {self.split!r}, {len(self)} fields {size})"


# --- on points ------------------------------------------------------------------------------------


class PointFields(Kind):
    """Fields on points (N, points, d + C), coordinates first, NaN where a sample has fewer."""

    name, one, many, encoder = "field on points", "field", "fields", "points"
    assumed = False
    legend = " Where its points are."

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        points = inputs.detach().float().cpu().numpy()
        return inputs, [Cloud(cloud) for cloud in points]

    def size(self, inputs: Any) -> str:
        return f"{inputs.shape[1]} points"


POINT_FIELDS = register_kind(PointFields())


class PointFieldDataset(LabelledDataset):
    """Fields on points of their own: a batch is (B, P, d + C) coordinates and inputs, and (B, K, P)
    answers, NaN where a sample has fewer points.

    Args:
        name, split: what this is.
        inputs: (P, d + C) of each sample, coordinates first.
        answers: (P, K) of each.
        classes: names of the K answered fields.
        coordinates: d.
        scale: of each answered field, by which it is divided.
        mean: of each; models of these data begin there. None: at zero.

    Example:
        >>> places, u = torch.rand(5, 2), torch.rand(5, 1)
        >>> data = PointFieldDataset("tiny", "train", [places], [u], ("u",), coordinates=2)
        >>> [part.shape for part in data.batch([0])]
        [torch.Size([1, 5, 2]), torch.Size([1, 1, 5])]
    """

    kind = POINT_FIELDS
    task = "field"

    def __init__(
        self,
        name: str,
        split: str,
        inputs: Sequence[Tensor],
        answers: Sequence[Tensor],
        classes: Sequence[str],
        *,
        coordinates: int,
        scale: Sequence[float] = (1.0,),
        mean: Sequence[float] | None = None,
    ):
        super().__init__(name, split, torch.arange(len(inputs)), classes)
        self.fields, self.answers = list(inputs), list(answers)
        self.coordinates, self.scale = coordinates, torch.tensor(scale)[:, None]
        self.offset = _offset(mean, scale)

    def raw(self, indices: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        chosen = torch.as_tensor(indices, dtype=torch.int64).tolist()
        inputs, answers = (
            pad_sequence([rows[i] for i in chosen], batch_first=True, padding_value=torch.nan)
            for rows in (self.fields, self.answers)
        )
        return inputs, answers.mT

    def batch(
        self, indices: Tensor | Sequence[int], transform: Transform | None = None
    ) -> tuple[Tensor, Tensor]:
        inputs, answers = self.raw(indices)
        return (inputs if transform is None else transform(inputs)), answers / self.scale

    def encoder(self) -> dict[str, Any]:
        sizes = {"channels": self.fields[0].shape[1], "position_dim": self.coordinates}
        return {**super().encoder(), **sizes}

    def head(self) -> dict[str, Any]:
        return {"pool": "every"} | self.offset

    def describe(self) -> dict[str, Any]:
        return super().describe() | {"scale": self.scale.flatten().tolist()}

    def __repr__(self) -> str:
        return f"PointFieldDataset({self.name!r}, {self.split!r}, {len(self)} fields on points)"
