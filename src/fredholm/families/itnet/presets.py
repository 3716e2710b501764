"""ITNet's named models: the sizes of its Table 10, full and compact, and two small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .config import ITNetConfig


def _size(
    dim: int,
    depth: int,
    heads: int,
    drop_path: float,
    *,
    width: int = 128,
    rank: int | None = None,
    **fields: Any,
) -> Callable[[], ITNetConfig]:
    """One size of Table 10; with ``rank`` the compact output.

    The full output has the parameters that Table 11's structure adds up to; the compact one, at
    these ranks, those that Table 10 prints.
    """
    compact = {} if rank is None else {"output": "compact", "rank": rank}
    return lambda: ITNetConfig(
        dim=dim,
        depth=depth,
        heads=heads,
        drop_path=drop_path,
        operator_options={"width": width} | compact,
        **fields,
    )


_IMAGENET: dict[str, Any] = {
    "image_size": (224, 224),
    "patch": 16,
    "channels": 3,
    "num_classes": 1000,
    "pool": "cls",
}
_MODELNET: dict[str, Any] = {
    "encoder": "points",
    "channels": 3,
    "num_classes": 40,
    "point_features": "fourier",
    "neighbours": 16,
    "sigma": 1.0,
}
_SMALL: dict[str, Any] = {"dropout": 0.0, "frequencies": 16, "sigma": 3.0}

PRESETS = {
    "itnet_s": _size(384, 12, 6, 0.1, **_IMAGENET),
    "itnet_s_compact": _size(384, 12, 6, 0.1, rank=2, **_IMAGENET),
    "itnet_b": _size(768, 12, 12, 0.2, **_IMAGENET),
    "itnet_b_compact": _size(768, 12, 12, 0.2, rank=5, **_IMAGENET),
    "itnet_l": _size(1024, 24, 16, 0.3, **_IMAGENET),
    "itnet_l_compact": _size(1024, 24, 16, 0.3, rank=8, **_IMAGENET),
    "itnet_pc": _size(128, 6, 4, 0.1, width=64, **_MODELNET),
    "itnet_pc_compact": _size(128, 6, 4, 0.1, width=64, rank=2, **_MODELNET),
    "itnet_micro": lambda: ITNetConfig(
        dim=64,
        depth=3,
        heads=4,
        operator_options={"width": 16, "frequencies": 16, "sigma": 3.0},
        **_SMALL,
    ),
    "itnet_nano": lambda: ITNetConfig(
        dim=32,
        depth=2,
        heads=2,
        operator_options={"width": 16, "frequencies": 16, "sigma": 3.0},
        **_SMALL,
    ),
}
