"""The inputs of a program: names, shapes with the sizes left free, and made-up batches of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.export import Dim

from ..errors import OptionError
from ..models.config import ModelConfig
from ..models.encoders.encoder import Axis, EncoderConfig, Part
from ..models.encoders.inputs import Inputs

LARGEST_BATCH = 4096
LARGEST_COUNT = 65536
SMALLEST_COUNT = 3
"""At fewer points some operators take paths of their own, which a program has no branches for."""
FIRST_TRACED = 5
"""Sizes that programs are traced at begin here, lengths of sequences at :data:`FIRST_LENGTH`."""
FIRST_LENGTH = 65
"""The first length of a sequence beyond one block of 64 points, as causal forms compute in.

Inductor simplifies indices by the sizes of tracing: at 6 points it takes ``index // 64``, the block
of a point, for zero, and the package then answers wrongly from 65 points on.
"""


NamedShape = tuple[int | str, ...]
"""The shape of a tensor, free sizes by their names."""


class Sizes(NamedTuple):
    """The sizes of one made-up batch: samples, and the extent of each free axis."""

    batch: int
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """The tensors that a model reads, and which of their sizes may change from call to call.

    Attributes:
        encoder: the configuration of the model's encoder, which makes up inputs.
        axes: the dimensions beside the batch whose sizes are free, one of each name.
        avoid: sizes that are dimensions of the model. A program is traced at others, since a
            compiler takes equal sizes for the same one.
        smallest: the least count along each free axis, such as patches along a side.
    """

    encoder: EncoderConfig
    axes: tuple[Axis, ...]
    avoid: frozenset[int]
    smallest: int = SMALLEST_COUNT

    @property
    def names(self) -> list[str]:
        """The names of the tensors, in the order in which a program takes them."""
        return [part.name for part in self.encoder.parts]

    @property
    def shape(self) -> NamedShape | dict[str, NamedShape]:
        """The shape of the input, with the batch and free sizes by name and all others as numbers,
        those of training. For a model of several tensors, the shape of each by the tensor's name.

        Example:
            >>> from fredholm.models import create_model
            >>> signature_of(create_model("itnet_nano")).shape
            ('batch', 1, 'height', 'width')
        """
        shapes: dict[str, NamedShape] = {}
        for part in self.encoder.parts:
            # ``part.shape`` is of one sample. With the batch in front, the position in the list is
            # the dimension that an axis names.
            named: list[int | str] = ["batch", *part.shape]
            for axis in self._free(part):
                named[axis.dimension] = axis.name
            shapes[part.name] = tuple(named)
        if self.encoder.one_tensor:
            return shapes["inputs"]
        return shapes

    @property
    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """The free sizes of each tensor as :func:`torch.export.export` takes them, by dimension."""
        sizes: dict[str, Any] = {}
        for axis in self.axes:
            largest = axis.largest or LARGEST_COUNT
            size = Dim(
                axis.name,
                min=self._fewest(axis),
                max=largest // axis.multiple,
            )
            # Patches vary one by one, a side in pixels by a patch's side.
            if axis.multiple > 1:
                size = axis.multiple * size
            sizes[axis.name] = size

        # Tensors that share an axis share its object: a tracer takes their sizes for one number.
        batch_size = Dim("batch", min=1, max=LARGEST_BATCH)
        batch = {0: batch_size}
        return tuple(
            batch | {axis.dimension: sizes[axis.name] for axis in self._free(part)}
            for part in self.encoder.parts
        )

    def traced_sizes(self) -> Sizes:
        """Return the sizes that a program is traced at: none of them is a dimension of the model
        or another of these sizes.
        """
        batch = next(_sizes_outside(self.avoid, FIRST_TRACED))
        lengths = self._lengths()

        # Every count is one of those that the model and the sizes before it leave over.
        taken = self.avoid | {batch}
        extents = []
        for axis in self.axes:
            first = FIRST_TRACED
            if axis.name in lengths:
                first = FIRST_LENGTH
            least = max(first, self._fewest(axis))
            count = next(_sizes_outside(taken, least))
            taken |= {count}
            extents.append(_extent(axis, count))
        return Sizes(batch, tuple(extents))

    def checked_sizes(self) -> list[Sizes]:
        """Return three sets of sizes to compare a program with its model at: those that it was
        traced at, one sample of the smallest size, and a larger batch of larger ones.

        Extents are sizes of tensors, such as pixels; each is a count, such as of patches, times the
        multiple of its axis. Where an axis has a largest size, no extent exceeds it.
        """
        traced = self.traced_sizes()

        # If a compiler took a free size for a constant, the program fails or answers otherwise at
        # one of the other two sets.
        smallest = [_extent(axis, self._fewest(axis)) for axis in self.axes]

        # From n patches, points or tokens to 2n + 1, which is no multiple of the traced count n.
        larger = [
            _extent(axis, 2 * (extent // axis.multiple) + 1)
            for axis, extent in zip(self.axes, traced.extents, strict=True)
        ]
        return [
            traced,
            Sizes(1, tuple(smallest)),
            Sizes(traced.batch + 2, tuple(larger)),
        ]

    def _fewest(self, axis: Axis) -> int:
        """Return the least count along an axis: patches, points or tokens."""
        return max(self.smallest, math.ceil(axis.smallest / axis.multiple))

    def _lengths(self) -> set[str]:
        """Return the names of axes along which alone the points of a tensor vary: lengths of texts
        and series, but not the sides of pictures.
        """
        free = [self._free(part) for part in self.encoder.parts]
        return {axes[0].name for axes in free if len(axes) == 1}

    def _free(self, part: Part) -> list[Axis]:
        """Return the dimensions of one tensor whose sizes are free."""
        names = {axis.name for axis in self.axes}
        return [axis for axis in part.axes if axis.name in names]

    def example(self, sizes: Sizes, seed: int = 0) -> Tensor | Inputs:
        """Return a batch of random inputs of these sizes.

        Free axes have the extents of ``sizes``, all others their size in training. Where the
        encoder knows padding, the end of the last sample is padded.
        """
        named = zip(self.axes, sizes.extents, strict=True)
        extents = {axis.name: extent for axis, extent in named}
        shapes = {}
        for part in self.encoder.parts:
            shape = [sizes.batch, *part.shape]
            for axis in self._free(part):
                shape[axis.dimension] = extents[axis.name]
            shapes[part.name] = shape
        generator = torch.Generator().manual_seed(seed)
        return self.encoder.batch(shapes, generator)


def tensors_of(inputs: Tensor | Inputs) -> dict[str, Tensor]:
    """Return the tensors of a batch by name, in the order in which a program takes them."""
    if isinstance(inputs, Inputs):
        return inputs.tensors
    return {"inputs": inputs}


def signature_of(model: nn.Module, fixed: Sequence[str] = ()) -> Signature:
    """Return the signature of a model's program: the tensors that it takes, and their free sizes.

    The batch is always free. So is every axis of the inputs that neither ``fixed`` nor the model's
    body fixes.

    Args:
        model: a :class:`fredholm.models.Model`.
        fixed: names of axes, such as ``height``, that keep the size of the model's training.

    Raises:
        OptionError: a model without a configuration, or whose encoder does not list its tensors; an
            axis that its inputs do not have.

    Example:
        >>> from fredholm.models import create_model
        >>> signature_of(create_model("itnet_nano"), fixed=["height"]).shape
        ('batch', 1, 28, 'width')
    """
    config = getattr(model, "config", None)
    if not isinstance(config, ModelConfig):
        raise OptionError(
            f"export: expected a fredholm.models.Model, got {type(model).__name__}; trace other "
            "modules with torch.export.export"
        )
    # Several tensors may have the same axis, such as the nodes of a graph: one entry per name.
    axes: dict[str, Axis] = {}
    for part in config.encoder.parts:
        for axis in part.axes:
            axes.setdefault(axis.name, axis)
    unknown = [name for name in fixed if name not in axes]
    if unknown:
        raise OptionError(
            f"fixed: expected names among {', '.join(axes) or 'none'}, got {', '.join(unknown)}"
        )

    # Some bodies fix axes of their own: what they read depends on these sizes.
    kept = {*fixed, *config.body.fixed_axes}
    free = [axis for axis in axes.values() if axis.name not in kept]

    # Stages divide the points along an axis by ``reduction``. SMALLEST_COUNT must be left after the
    # last stage, so that its operators take the path that was traced.
    smallest = SMALLEST_COUNT * config.body.reduction
    return Signature(
        config.encoder,
        tuple(free),
        frozenset(_dimensions(model)),
        smallest,
    )


def _dimensions(model: nn.Module) -> Iterator[int]:
    """Yield the sizes of a model's weights and every whole number of its configuration."""
    for tensor in (*model.parameters(), *model.buffers()):
        yield from tensor.shape
    config: Any = model.config
    yield from _numbers(config.to_dict())


def _numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for part in value.values():
            yield from _numbers(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield value


def _sizes_outside(avoid: frozenset[int], first: int) -> Iterator[int]:
    """Yield the numbers from ``first`` on that are not in ``avoid``, in growing order, without end.

    Example:
        >>> sizes = _sizes_outside(frozenset({5, 7}), 5)
        >>> next(sizes), next(sizes)
        (6, 8)
    """
    for size in itertools.count(first):
        if size not in avoid:
            yield size


def _extent(axis: Axis, count: int) -> int:
    """Return a size of an axis that is about ``count`` times its multiple and not too large."""
    extent = axis.multiple * count
    if axis.largest is None:
        return extent
    largest_count = axis.largest // axis.multiple
    return min(extent, largest_count * axis.multiple)
