"""The number of a rank that died or no longer answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ..errors import PeerError

if TYPE_CHECKING:
    from .shards import Shards

PATIENCE = 3.0
"""Seconds within which all living ranks notice that one of them died."""


@contextmanager
def answering_peers(shards: Shards) -> Iterator[None]:
    """Name the rank that died when a message in a ``with`` block fails.

    Raises:
        PeerError: a rank died, or did not answer within the timeout of the process group.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, PeerError) or not is_message_error(error):
            raise
        raise PeerError(_explain(shards, error)) from error


def is_message_error(error: RuntimeError) -> bool:
    """Tell a failed message (an error of gloo or of the store) from this process's own errors."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def _explain(shards: Shards, error: RuntimeError) -> str:
    """Explain a failed message by a roll call in the group's store.

    When a rank dies, every living rank meets an error, and writes so into the store. The ranks that
    have not written after a while are the dead ones.
    """
    ranks = dist.get_process_group_ranks(shards.group)
    try:
        # torch has no public way to the store of the default group.
        store: Any = dist.distributed_c10d._get_default_store()
        store.set(f"fredholm/lost/{ranks[shards.rank]}", "1")
        time.sleep(PATIENCE)
        silent = [r for r in ranks if not store.check([f"fredholm/lost/{r}"])]
    except RuntimeError:
        # Rank 0 hosts the store.
        silent = [0]
    names = ", ".join(f"rank {r}" for r in silent) or "a connection between the ranks"
    cause = "died"
    if "timed out" in str(error).lower():
        cause = "did not answer in time"
    return (
        f"{names} of the {shards.count} ranks of a sharded domain {cause}; start all of them "
        "again (the timeout is that of torch.distributed.init_process_group)"
    )
