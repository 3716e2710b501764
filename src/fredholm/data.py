"""Data sets by their public names: where they come from, how they are split, varied and batched.

``create_dataset(name, split)`` gives a torch data set, ``make_loader`` resumable batches of it,
``fetch(name)`` brings one here. Names are looked up when they are first used, so that importing
this module does not wait for torch.
"""

from typing import Any

from .lab import data as _data

__all__ = _data.__all__  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    return getattr(_data, name)
