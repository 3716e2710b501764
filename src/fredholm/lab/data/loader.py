"""Batches in an order that follows from (seed, epoch), and that can be taken up again in the middle
of an epoch.
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

# Augment, or another function of (what is stored, indices, seed=, epoch=) alone, such as
# HiddenTokens.hide.
Change = Augment | Callable[..., Any]
_ORDER = 0x0D  # the stream of random numbers of the order


class EpochOrder:
    """Which samples form batch k of epoch e, as a function of (seed, e, k), whatever the number of
    processes.

    A permutation of 0 … n − 1 is cut into batches of ``batch_size``; of each, process ``rank``
    takes its share, consecutive samples, and shares differ by at most one sample. No sample is
    repeated: of a last batch that is smaller than the number of processes, some get nothing. With
    ``drop_last`` an incomplete last batch is left out. O(n log n) an epoch.

    Args:
        n: samples.
        batch_size: samples a batch, of all processes together.
        seed: of the order.
        shuffle: False leaves the samples in their order.
        drop_last: leave out an incomplete last batch.
        rank, world_size: which of how many processes.

    Raises:
        OptionError: for sizes below 1, a rank outside the world, more processes than a batch has
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
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}: received {value!r}; needs an integer of 1 or more")
        if not 0 <= rank < world_size:
            raise OptionError(f"rank: received {rank}; needs 0 to {world_size - 1}")
        if batch_size < world_size:
            raise OptionError(
                f"batch_size: received {batch_size} for {world_size} processes; needs a sample for "
                "each of them"
            )
        self.n, self.batch_size, self.seed, self.shuffle = n, batch_size, seed, shuffle
        self.drop_last, self.rank, self.world_size = drop_last, rank, world_size
        if drop_last and n < batch_size:
            raise OptionError(
                f"batch_size: a batch takes {batch_size} samples, of {n}; needs a smaller one, or "
                "drop_last=False"
            )
        self.position = (0, 0)  # epoch, batches of it that were handed out

    def __len__(self) -> int:
        """Batches an epoch."""
        return self.n // self.batch_size if self.drop_last else -(-self.n // self.batch_size)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Int[Tensor, " b"]]:
        """The sample numbers of this process's share of the batches of ``epoch`` from batch
        ``start`` on.
        """
        order = (
            permutation(self.n, self.seed, epoch, _ORDER) if self.shuffle else torch.arange(self.n)
        )
        for step in range(start, len(self)):
            chunk = order[step * self.batch_size : (step + 1) * self.batch_size]
            yield chunk.tensor_split(self.world_size)[self.rank]

    def share(self, step: int) -> int:
        """How many samples of batch ``step`` are this process's."""
        size = min(self.batch_size, self.n - step * self.batch_size)
        return size // self.world_size + (self.rank < size % self.world_size)

    def identity(self) -> dict[str, Any]:
        """What must be equal for a saved position to mean the same samples."""
        names = ("n", "batch_size", "seed", "shuffle", "drop_last")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """The position and the order it belongs to."""
        epoch, offset = self.position
        return {"epoch": epoch, "offset": offset, **self.identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up the saved position, which another number of processes may have saved.

        Raises:
            CheckpointError: when the state belongs to another order, or its position does not
                exist.
        """
        mine = self.identity()
        missing = [key for key in ("epoch", "offset", *mine) if key not in state]
        if missing:
            raise CheckpointError(
                f"loader state: lacks {', '.join(missing)}; needs the state_dict of a loader"
            )
        for key, value in mine.items():
            if state[key] != value:
                raise CheckpointError(
                    f"loader state: {key} was {state[key]!r} and is {value!r}; resume with the "
                    "same, or start anew"
                )
        epoch, offset = state["epoch"], state["offset"]
        if epoch < 0 or not 0 <= offset <= len(self):
            raise CheckpointError(
                f"loader state: epoch {epoch}, batch {offset}; needs epoch >= 0 and a batch from 0 "
                f"to {len(self)}"
            )
        self.position = (epoch, offset)


class ResumableLoader:
    """An iterable of (inputs, labels) batches that knows where it is; batches are made when asked
    for, none ahead.

    So the batches handed out are those that training steps have used, except for the one in a
    step's hands: ``state_dict()`` taken after a step is exact. A caller that reads ahead passes
    ``state_dict(consumed=k)``.

    Iterating starts at the beginning of ``epoch``, or at the saved batch after ``load_state_dict``;
    ``len`` is always that of a whole epoch, and the same for every process: one whose share of a
    batch is empty gets a sample all the same, which ``order.share`` does not count. An epoch that
    was iterated to its end is followed by the next, unless ``set_epoch`` says otherwise.

    Example:
        >>> from fredholm.data import create_dataset
        >>> loader = make_loader(create_dataset("digits", "train"), 64, seed=0, shuffle=True)
        >>> batches = iter(loader)
        >>> images, labels = next(batches)
        >>> loader.state_dict()["offset"], tuple(images.shape)
        (1, (64, 1, 8, 8))
    """

    def __init__(self, dataset: LabelledDataset, order: EpochOrder, augment: Change | None = None):
        self.dataset = dataset
        self.order = order
        self.augment = augment
        self._resume = False
        self._chosen = False  # the epoch was set since the last iteration began

    @property
    def batch_size(self) -> int:
        return self.order.batch_size

    @property
    def epoch(self) -> int:
        return self.order.position[0]

    @property
    def sampler(self) -> ResumableLoader:
        """Itself: trainers call ``loader.sampler.set_epoch(epoch)``."""
        return self

    @property
    def batch_sampler(self) -> None:
        """None: Lightning asks for it wherever there is a ``sampler``."""
        return None

    def __len__(self) -> int:
        return len(self.order)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch to iterate next; the present one keeps a resumed position.

        Raises:
            OptionError: when ``epoch`` is negative.
        """
        if epoch < 0:
            raise OptionError(f"epoch: received {epoch}; needs 0 or more")
        if epoch != self.epoch:
            self.order.position = (epoch, 0)
            self._resume = False
        self._chosen = True

    def __iter__(self) -> Iterator[tuple[Any, Tensor]]:
        epoch, offset = self.order.position
        if offset >= len(self) and not self._chosen:
            epoch, offset = epoch + 1, 0
        elif not self._resume:
            offset = 0
        self._resume = self._chosen = False
        self.order.position = (epoch, offset)
        for number, indices in enumerate(self.order.batches(epoch, offset), start=offset + 1):
            batch = self._make(indices, epoch)
            self.order.position = (epoch, number)
            yield batch

    def _make(self, indices: Tensor, epoch: int) -> tuple[Any, Tensor]:
        augment = self.augment
        if not len(indices):  # what others do together, this process must do as well
            indices = torch.zeros(1, dtype=torch.int64)
        if augment is None:
            return self.dataset.batch(indices)
        return self.dataset.batch(
            indices, lambda images: augment(images, indices, seed=self.order.seed, epoch=epoch)
        )

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Where to go on: after the batches handed out, or after ``consumed`` batches of this
        epoch.

        Raises:
            OptionError: when more were consumed than handed out.
        """
        state = self.order.state_dict()
        if consumed is not None:
            if not 0 <= consumed <= state["offset"]:
                raise OptionError(
                    f"consumed: received {consumed}; needs 0 to the {state['offset']} batches "
                    "handed out"
                )
            state["offset"] = consumed
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state`` was taken, batch for batch the same.

        Raises:
            CheckpointError: when the state belongs to another data set size, batch size or seed.
        """
        self.order.load_state_dict(state)
        self._resume, self._chosen = True, False


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
    order = EpochOrder(len(dataset), batch_size, seed, shuffle, drop_last, rank, world_size)
    return ResumableLoader(dataset, order, augment)
