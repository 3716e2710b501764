"""Batches in an order that follows from (seed, epoch), so that a run can resume in the middle of an
epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from ...errors import CheckpointError, OptionError
from .augment import Augment
from .counter import permutation
from .kinds.dataset import LabelledDataset
from .vocabulary import check_count

# Augment, or another function of (stored samples, indices, seed=, epoch=) alone, such as
# HiddenTokens.hide.
Change = Augment | Callable[..., Any]
# The stream of random numbers of the order.
_ORDER = 0x0D


class EpochOrder:
    """The samples of batch k of epoch e, as a function of (seed, e, k) that does not depend on the
    number of processes.

    A permutation of 0 … n − 1 is cut into global batches of ``batch_size``; of each, process
    ``rank`` takes consecutive samples, and the processes' shares differ by at most one sample. No
    sample is repeated: if the last batch is smaller than the number of processes, some get nothing.
    O(n log n) per epoch.

    Args:
        n: number of samples.
        batch_size: samples per global batch.
        seed: of the order.
        shuffle: False leaves the samples in their order.
        drop_last: drop an incomplete last batch.
        rank, world_size: this process, and how many there are.

    Raises:
        OptionError: sizes below 1, a rank outside the world, more processes than a batch has
            samples, or a set too small for one batch.

    Example:
        >>> order = EpochOrder(5, 2, seed=0, shuffle=False)
        >>> [batch.tolist() for batch in order.batches(epoch=0, start=1)]
        [[2, 3], [4]]
        >>> second = EpochOrder(5, 2, seed=0, shuffle=False, rank=1, world_size=2)
        >>> [batch.tolist() for batch in second.batches(epoch=0)]
        [[1], [3], []]
        >>> order.position = (1, 2)
        >>> order.state_dict()["offset"]
        2
    """

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
    ):
        for name, value in (("n", n), ("batch_size", batch_size), ("world_size", world_size)):
            check_count(name, value)
        if not 0 <= rank < world_size:
            raise OptionError(f"rank: expected 0 to {world_size - 1}, got {rank}")
        # A process that never gets a sample would only slow the others down.
        if batch_size < world_size:
            raise OptionError(
                f"batch_size: expected a sample for each of {world_size} processes, got "
                f"{batch_size}; enlarge it, or start fewer processes"
            )
        if drop_last and n < batch_size:
            raise OptionError(
                f"batch_size: expected at most the {n} samples that there are, got {batch_size}; "
                "reduce it, or set drop_last=False"
            )
        self.n = n
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        # The epoch, and how many of its batches were handed out.
        self.position = (0, 0)

    def __len__(self) -> int:
        """Batches per epoch."""
        complete, rest = divmod(self.n, self.batch_size)
        return complete + (rest > 0 and not self.drop_last)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Int[Tensor, " b"]]:
        """Yield the sample numbers of this process's share of the batches of ``epoch``, from batch
        ``start`` on.
        """
        order = torch.arange(self.n)
        if self.shuffle:
            order = permutation(self.n, self.seed, epoch, _ORDER)
        for step in range(start, len(self)):
            batch = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield batch.tensor_split(self.world_size)[self.rank]

    def share(self, step: int) -> int:
        """Return how many samples of batch ``step`` this process has."""
        size = min(self.batch_size, self.n - step * self.batch_size)
        # tensor_split gives the remainder to the first parts, one sample each.
        return size // self.world_size + (self.rank < size % self.world_size)

    def identity(self) -> dict[str, Any]:
        """Return the arguments that must be equal for a saved position to mean the same samples."""
        names = ("n", "batch_size", "seed", "shuffle", "drop_last")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return the position and the order that it belongs to."""
        epoch, offset = self.position
        return {"epoch": epoch, "offset": offset, **self.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the position to a saved one, which another number of processes may have saved.

        Batches are global, so that the same epoch and batch mean the same samples whatever the
        number of processes. Only :meth:`identity` must agree with the saved state.

        Args:
            state: what :meth:`state_dict` returned: ``epoch``, ``offset`` (how many batches of that
                epoch were handed out) and the identity.

        Raises:
            CheckpointError: the state belongs to another order, or its position does not exist.
        """
        mine = self.identity()
        missing = [key for key in ("epoch", "offset", *mine) if key not in state]
        if missing:
            raise CheckpointError(
                "loader state: expected the state_dict of a loader, got one without "
                f"{', '.join(missing)}; load another checkpoint"
            )
        for key, value in mine.items():
            if state[key] != value:
                raise CheckpointError(
                    f"loader state: expected {key}={value!r}, got {state[key]!r}; resume with the "
                    "same, or start anew"
                )
        epoch = state["epoch"]
        offset = state["offset"]
        # An offset of len(self) is valid: the epoch had ended, and the next one follows.
        if epoch < 0 or not 0 <= offset <= len(self):
            raise CheckpointError(
                f"loader state: expected an epoch of 0 or more and a batch from 0 to {len(self)}, "
                f"got epoch {epoch}, batch {offset}; load another checkpoint"
            )
        self.position = (epoch, offset)


class ResumableLoader:
    """An iterable of (inputs, labels) batches that can save its position. It reads no batch ahead.

    A ``state_dict()`` taken after a training step is therefore exact. A caller that reads ahead
    passes ``state_dict(consumed=k)``.

    Iterating starts at the beginning of ``epoch``, or at the saved batch after ``load_state_dict``.
    ``len`` is always that of a full epoch, and the same for every process: one whose share of a
    batch is empty gets a sample anyway, which ``order.share`` does not count. An epoch that was
    iterated to its end is followed by the next, unless ``set_epoch`` chooses another.

    Example:
        >>> from fredholm.data import create_dataset
        >>> loader = make_loader(create_dataset("digits", "train"), 64, seed=0, shuffle=True)
        >>> batches = iter(loader)
        >>> images, labels = next(batches)
        >>> loader.state_dict()["offset"], tuple(images.shape)
        (1, (64, 1, 8, 8))
    """

    def __init__(
        self,
        dataset: LabelledDataset,
        order: EpochOrder,
        augment: Change | None = None,
    ):
        self.dataset = dataset
        self.order = order
        self.augment = augment
        # Whether the next iteration starts at the saved batch.
        self._resume = False
        # Whether the epoch was set since the last iteration began.
        self._chosen = False

    @property
    def batch_size(self) -> int:
        return self.order.batch_size

    @property
    def epoch(self) -> int:
        return self.order.position[0]

    @property
    def sampler(self) -> ResumableLoader:
        """This loader: trainers call ``loader.sampler.set_epoch(epoch)``."""
        return self

    @property
    def batch_sampler(self) -> None:
        """None; Lightning reads it from any loader with a ``sampler``."""
        return None

    def __len__(self) -> int:
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to iterate next; the present one keeps a resumed position.

        Raises:
            OptionError: a negative epoch.
        """
        if epoch < 0:
            raise OptionError(f"epoch: expected 0 or more, got {epoch}")
        if epoch != self.epoch:
            self.order.position = (epoch, 0)
            self._resume = False
        self._chosen = True

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        epoch, offset = self.order.position
        if offset >= len(self) and not self._chosen:
            epoch = epoch + 1
            offset = 0
        elif not self._resume:
            offset = 0
        self._resume = self._chosen = False
        self.order.position = (epoch, offset)
        for number, indices in enumerate(self.order.batches(epoch, offset), start=offset + 1):
            batch = self._make(indices, epoch)
            self.order.position = (epoch, number)
            yield batch

    def _make(self, indices: Tensor, epoch: int) -> tuple[Any, Tensor]:
        # All processes must take part in collective operations, so none goes without a sample.
        if not len(indices):
            indices = torch.zeros(1, dtype=torch.int64)
        augment = self.augment
        if augment is None:
            return self.dataset.batch(indices)

        def change(stored: Any) -> Any:
            return augment(stored, indices, seed=self.order.seed, epoch=epoch)

        return self.dataset.batch(indices, change)

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the position after the batches handed out, or after ``consumed`` batches of this
        epoch.

        Raises:
            OptionError: more were consumed than handed out.
        """
        state = self.order.state_dict()
        if consumed is None:
            return state
        if not 0 <= consumed <= state["offset"]:
            raise OptionError(
                f"consumed: expected 0 to the {state['offset']} batches handed out, got {consumed}"
            )
        return state | {"offset": consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken, batch for batch the same.

        Raises:
            CheckpointError: when the state belongs to another data set size, batch size or seed.
        """
        self.order.load_state_dict(state)
        self._resume = True
        self._chosen = False


def make_loader(
    dataset: LabelledDataset,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = False,
    augment: Change | None = None,
    drop_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
) -> ResumableLoader:
    """A loader whose order and augmentation follow from ``seed``; see :class:`EpochOrder` and
    :class:`ResumableLoader`. Of several processes, each reads its share of every batch.

    Raises:
        OptionError: for impossible sizes.

    Example:
        >>> from fredholm.data import create_dataset
        >>> len(make_loader(create_dataset("digits", "test"), 100))
        4
    """
    order = EpochOrder(
        len(dataset),
        batch_size,
        seed,
        shuffle,
        drop_last,
        rank,
        world_size,
    )
    return ResumableLoader(dataset, order, augment)
