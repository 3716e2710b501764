"""The run-time check of annotations in all tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jaxtyping
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from .typechecker import checked, jaxtyped

if TYPE_CHECKING:
    from nowhere import Unknown  # type: ignore[import-not-found]  # pyright: ignore

Rows = tuple[Float[Tensor, " n"], Float[Tensor, " n"]]


@jaxtyped(typechecker=checked)
def added(a: Float[Tensor, " n"], b: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    return a if len(a) == 3 else a[:-1]


@jaxtyped(typechecker=checked)
def first(rows: Rows) -> Float[Tensor, " n"]:
    return rows[0]


@jaxtyped(typechecker=checked)
def scaled(x: float, times: int = 2, *, unknown: Unknown | None = None) -> str:
    """Plain types."""
    return "x" * times if x > 0 else None  # type: ignore[return-value]


class Counter:
    start = 3

    @jaxtyped(typechecker=checked)
    def __init__(self, start: int | None = None):
        super().__init__()
        self.start = self.start if start is None else start


def test_shapes_of_arguments_and_results_are_checked():
    three, four = torch.zeros(3), torch.zeros(4)
    assert added(three, three) is three
    for a, b in ((three, four), (four, four), (three.long(), three)):
        with pytest.raises(jaxtyping.TypeCheckError):
            added(a, b)
    assert first((three, three)) is three
    with pytest.raises(jaxtyping.TypeCheckError):
        first((three, four))


def test_plain_types_are_checked_unless_only_imported_for_static_checks():
    assert scaled(1, 3, unknown=object()) == "xxx"  # type: ignore[arg-type]
    assert scaled.__doc__ == "Plain types."
    assert scaled.__annotations__["x"] == "float", "as it is written"
    for wrong in (lambda: scaled("1"), lambda: scaled(1.0, 2.5), lambda: scaled(-1.0)):
        with pytest.raises(jaxtyping.TypeCheckError):
            wrong()
    assert Counter().start == 3
    with pytest.raises(jaxtyping.TypeCheckError):
        Counter("4")  # type: ignore[arg-type]


def test_annotations_of_the_package_are_checked():
    from fredholm.ops.anchors import nearest_anchor
    from fredholm.ops.backend import at_least_single

    with pytest.raises(jaxtyping.TypeCheckError):
        nearest_anchor(torch.zeros(2, 3, 1), torch.zeros(3, 2, dtype=torch.int64))
    with pytest.raises(jaxtyping.TypeCheckError):
        at_least_single("float32")  # type: ignore[arg-type]
