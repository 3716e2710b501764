"""Each paper's own algorithm, written out, beside ours with the same weights: LUNA's networks per
scalar, InfSA's N × N graph.

ITNet's and CKConv's are in :mod:`benchmarks.hidden_first` and :mod:`benchmarks.ckconv`.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import infsa, luna
from .registry import Case, register


@register("published")
def published(points: int = 1024, scalars: int = 16384) -> Iterator[Case]:
    """InfSA forward and backward; LUNA's feature map, separate networks and one shared, forward and
    both.
    """
    yield infsa.pure(points, 128, 4)
    for case in luna.map_cases(scalars, 5):
        case.name = f"luna map, {case.name}"
        yield case
