"""Fields on grids as a torch data set."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import DataError, ShapeError
from ..stored import StoredRows
from .dataset import Cut, Indices, LabelledDataset, Transform, index_tensor, stretched
from .images import prepare_pictures
from .kind import Cloud, Kind, Line, Page, register_kind
from .sequences import padded


class Fields(Kind):
    """Fields on grids (N, C, H, W)."""

    name = "field"
    one = "field"
    many = "fields"
    encoder = "field"
    pictured = True
    assumed = False

    def fits(self, inputs: Any) -> bool:
        return isinstance(inputs, Tensor) and inputs.dim() == 4

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        return prepare_pictures(inputs, facts.mean, facts.std)


FIELDS = register_kind(Fields())


def _offset(mean: Sequence[float] | None, scale: Sequence[float]) -> dict[str, Any]:
    """Return the head's offset, at which a model of fields divided by their scale begins."""
    if mean is None:
        return {}
    offset = [m / s for m, s in zip(mean, scale, strict=True)]
    return {"offset": offset}


class FieldDataset(LabelledDataset):
    """Pairs of fields on one grid: a batch is (B, C, H, W) inputs and (B, K, H, W) answers, each
    channel divided by its scale.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        inputs, answers: (N, C, H, W) and (N, K, H, W) floats; tensors, or
            :class:`fredholm.data.StoredRows`, which stay on disk and are checked when a batch is
            read.
        classes: names of the K answered fields.
        input_shift, input_scale, scale: of each channel, from the training fields; answers are not
            shifted, so that relative errors stay the same.
        mean: of each answered field, at which models begin. None: at zero.

    Raises:
        ShapeError: fields that do not fit.
        DataError: values that are not finite.

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
        expected = (inputs.shape[0], len(classes), *inputs.shape[2:])
        if inputs.dim() != 4 or tuple(answers.shape) != expected:
            raise ShapeError(
                f"{name}: expected (N, C, H, W) and (N, {len(classes)}, H, W), got inputs "
                f"{tuple(inputs.shape)}, answers {tuple(answers.shape)}; bring both to one grid"
            )
        self._check_finite(name, split, torch.arange(len(inputs)), inputs, answers)
        # Rows on disk become floats when they are read.
        if isinstance(inputs, Tensor):
            inputs = inputs.float()
        if isinstance(answers, Tensor):
            answers = answers.float()
        super().__init__(name, split, answers, classes)
        self.fields = inputs
        self.channels = inputs.shape[1]
        self.shift = _on_grid(input_shift)
        self.input_scale = _on_grid(input_scale)
        self.scale = _on_grid(scale)
        self.offset = _offset(mean, scale)

    def raw(
        self,
        indices: Indices,
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k h w"]]:
        indices = index_tensor(indices)
        inputs = self.fields[indices]
        answers = self.labels[indices]
        if isinstance(self.fields, StoredRows) or isinstance(self.labels, StoredRows):
            self._check_finite(self.name, self.split, indices, inputs, answers)
        return inputs, answers

    @staticmethod
    def _check_finite(
        name: str,
        split: str,
        rows: Tensor,
        inputs: Tensor | StoredRows,
        answers: Tensor | StoredRows,
    ) -> None:
        """Refuse NaN and infinity in the samples ``rows``; rows on disk are not read for it."""
        for what, values in {"inputs": inputs, "answers": answers}.items():
            if not isinstance(values, Tensor):
                continue
            wrong = ~values.isfinite()
            if not wrong.any():
                continue
            samples = wrong.flatten(1).any(1)
            row = int(samples.nonzero()[0])
            raise DataError(
                f"{name} {split}: expected finite numbers, got NaN or infinity in the {what} "
                f"of sample {int(rows[row])}; leave the sample out"
            )

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Float[Tensor, "b c h w"], Float[Tensor, "b k h w"]]:
        """Return scaled inputs and answers of ``indices``; ``transform`` changes the inputs."""
        inputs, answers = self.raw(indices)
        inputs = (inputs - self.shift) / self.input_scale
        if transform is not None:
            inputs = transform(inputs)
        return inputs, answers / self.scale

    def stretch(self, axis: int, cut: Cut) -> FieldDataset | None:
        # A selection reads its rows through another data set, which would return whole fields.
        if axis != 2 or "raw" in vars(self):
            return None
        result = copy.copy(self)
        result.fields = stretched(self.fields, 2, cut)
        result.labels = stretched(self.labels, 2, cut)
        return result

    def encoder(self) -> dict[str, Any]:
        return {**super().encoder(), "channels": self.channels}

    def head(self) -> dict[str, Any]:
        return super().head() | self.offset

    def describe(self) -> dict[str, Any]:
        return {
            **super().describe(),
            "shift": self.shift.flatten().tolist(),
            "input_scale": self.input_scale.flatten().tolist(),
            "scale": self.scale.flatten().tolist(),
        }

    def __repr__(self) -> str:
        size = "x".join(map(str, self.fields.shape[1:]))
        return f"FieldDataset({self.name!r}, {self.split!r}, {len(self)} fields {size})"


def _on_grid(values: Sequence[float]) -> Float[Tensor, "c 1 1"]:
    """Return one number per channel, to be combined with fields (…, C, H, W)."""
    return torch.tensor(values)[:, None, None]


# --- on points ------------------------------------------------------------------------------------


class PointFields(Line):
    """Fields on points (N, points, d + C), coordinates first, NaN where a sample has fewer."""

    name = "field on points"
    one = "field"
    many = "fields"
    encoder = "points"
    assumed = False
    legend = " Where its points are."

    def prepare(self, inputs: Any, facts: Page) -> tuple[Any, list[Any] | None]:
        points = inputs.detach().float().cpu().numpy()
        return inputs, [Cloud(cloud) for cloud in points]


POINT_FIELDS = register_kind(PointFields())


class PointFieldDataset(LabelledDataset):
    """Fields whose samples have different points: a batch is (B, P, d + C) coordinates and inputs,
    and (B, K, P) answers, NaN where a sample has fewer points.

    Args:
        name, split: names of the data set and of its part, for errors and reports.
        inputs: (P, d + C) of each sample, coordinates first.
        answers: (P, K) of each.
        classes: names of the K answered fields.
        coordinates: d.
        scale: of each answered field, by which it is divided.
        mean: of each, at which models begin. None: at zero.

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
        self.fields = list(inputs)
        self.answers = list(answers)
        self.coordinates = coordinates
        self.scale = torch.tensor(scale)[:, None]
        self.offset = _offset(mean, scale)

    def raw(self, indices: Indices) -> tuple[Tensor, Tensor]:
        chosen = index_tensor(indices).tolist()
        inputs = padded([self.fields[i] for i in chosen])
        answers = padded([self.answers[i] for i in chosen])
        # Losses take channels first, as they are on a grid.
        return inputs, answers.mT

    def batch(
        self,
        indices: Indices,
        transform: Transform | None = None,
    ) -> tuple[Tensor, Tensor]:
        inputs, answers = super().batch(indices, transform)
        return inputs, answers / self.scale

    def encoder(self) -> dict[str, Any]:
        return {
            **super().encoder(),
            "channels": self.fields[0].shape[1],
            "position_dim": self.coordinates,
        }

    def head(self) -> dict[str, Any]:
        return {"pool": "every"} | self.offset

    def describe(self) -> dict[str, Any]:
        scale = self.scale.flatten().tolist()
        return super().describe() | {"scale": scale}

    def __repr__(self) -> str:
        return f"PointFieldDataset({self.name!r}, {self.split!r}, {len(self)} fields on points)"
