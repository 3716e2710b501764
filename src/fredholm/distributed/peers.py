"""A rank that died, or no longer answers, by its number."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..errors import PeerError

if TYPE_CHECKING:
    from .shards import Shards

PATIENCE = 3.0  # seconds in which all that live notice that one does not


@contextmanager
def answering_peers(shards: Shards) -> Iterator[None]:
    """Messages of a ``with`` block; where one fails, say whose fault it is.

    Raises:
        PeerError: a rank died, or did not answer within the timeout of the process group.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, PeerError) or not _of_a_message(error):
            raise
        raise PeerError(_whose(shards, error)) from error


def _of_a_message(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _whose(shards: Shards, error: RuntimeError) -> str:
    """A roll call in the group's store: who meets an error writes so, and who lives meets one."""
    ranks = dist.get_process_group_ranks(shards.group)
    try:
        store: Any = dist.distributed_c10d._get_default_store()  # no public way leads to it
        store.set(f"fredholm/lost/{ranks[shards.rank]}", "1")
        time.sleep(PATIENCE)
        silent = [r for r in ranks if not store.check([f"fredholm/lost/{r}"])]
    except RuntimeError:  # the store was rank 0's
        silent = [0]
    names = ", ".join(f"rank {r}" for r in silent) or "a connection between the ranks"
    cause = "did not answer in time" if "timed out" in str(error).lower() else "died"
    return (
        f"{names} of the {shards.count} ranks of a sharded domain {cause}; start all of them "
        "again (the timeout is that of torch.distributed.init_process_group)"
    )
