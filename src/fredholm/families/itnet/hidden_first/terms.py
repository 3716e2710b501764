r"""The terms of ITNet's first layer, and the one description of the tensors that they take.

The pre-activation of a hidden unit at a pair (query i, key j) is a sum of terms, written down below
as on paper (:data:`FIRST_LAYER`). Each tensor that they take is one field of :class:`Tensors`,
which says its shape, the end of a pair it belongs to, what comes with it, and what the Triton
kernels make of it. The op's schema, its checks, how tiles see their inputs and the arguments in the
documentation are all read off these fields.

One more term is a function and its fields here, its value and gradient on a tile in
:mod:`.first_layer`, and the kernel that supplies it. Triton kernels refuse it by name until its
fields say that they know it.
"""

# ruff: noqa: RUF009  the default of a dataclass field that `tensor` makes is a field

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from ....errors import ShapeError
from ....ops.tiles import distances


@dataclass(frozen=True)
class PairTensor:
    """Description of one of the op's tensors, before any call.

    Attributes:
        shape: names of its dimensions: b batch entries, h heads, q queries, k keys, d columns of a
            value, w hidden units, v those of the last layer, e columns of the product, f of the
            second one, p coordinates. ``b|1`` may be shared (size 1); other names fit any size.
        decides: those of them that this tensor decides for all others.
        side: ``"query"`` or ``"key"``, the end of a pair it belongs to, ``"pair"`` or ``"layer"``.
        text: what it is, for the documentation.
        term: tensors of one term are given together or not at all.
        kind: ``"float"``, ``"index"`` (int64), ``"mask"`` (float or boolean) or ``"time"`` (of any
            dtype, only compared). Indices and times have no gradient.
        required: whether every call has it.
        tile: the order of the dimensions after head and batch in which tiles read it, where it is
            not that of ``shape``.
        triton: whether the Triton kernels know it: ``""``, ``"values"``, or ``"gradients"`` too.
        single: whether they keep it in float32 beside half precision: it is small, and only added.
        sizes, shared: from ``shape``: the names alone, and whether each dimension may have size 1.
    """

    shape: str
    side: str
    text: str
    decides: str = ""
    term: str = ""
    kind: str = "float"
    required: bool = False
    tile: str = ""
    triton: str = ""
    single: bool = False
    sizes: tuple[str, ...] = field(init=False)
    shared: tuple[bool, ...] = field(init=False)

    def __post_init__(self) -> None:
        words = self.shape.split()
        object.__setattr__(
            self,
            "sizes",
            tuple(word.removesuffix("|1") for word in words),
        )
        object.__setattr__(
            self,
            "shared",
            tuple(word.endswith("|1") for word in words),
        )


def tensor(
    shape: str,
    side: str,
    text: str,
    **facts: Any,
) -> Any:
    """Return a field of :class:`Tensors`."""
    return field(default=None, metadata={"pair": PairTensor(shape, side, text, **facts)})


@dataclass(frozen=True)
class Tensors:
    """The tensors of one call, in the order of the op's schema: as the op takes them, or as tiles
    read them (:func:`.forward.prepare`), or the gradients of either.

    Fields typed Any are there in every prepared call; among gradients they too are None where none
    is wanted.
    """

    query: Tensor | None = tensor(
        "b|1 h|1 q e",
        "query",
        "q",
        term="product",
        triton="gradients",
    )
    key: Any = tensor(
        "b|1 h|1 k e",
        "key",
        "k",
        decides="e",
        term="product",
        triton="gradients",
    )
    value: Any = tensor(
        "b h k d",
        "key",
        "v",
        decides="b h k d",
        required=True,
        triton="gradients",
    )
    readout: Any = tensor(
        "h o d v",
        "layer",
        "R",
        required=True,
        tile="v d o",
        triton="gradients",
    )
    query_bias: Any = tensor(
        "b|1 h|1 q w", "query", "q^b", decides="q w", required=True, triton="gradients",
        single=True,
    )  # fmt: skip
    key_bias: Tensor | None = tensor(
        "b|1 h|1 k w",
        "key",
        "k^b",
        tile="w k",
        triton="gradients",
    )
    scale: Tensor | None = tensor(
        "h|1 w e",
        "layer",
        "α",
        term="product",
        triton="gradients",
    )
    query2: Tensor | None = tensor(
        "b|1 h|1 q f", "query", "q', met by the last f ≤ e columns of ``key``", decides="f",
        term="second", triton="gradients",
    )  # fmt: skip
    scale2: Tensor | None = tensor(
        "h|1 w f",
        "layer",
        "α'",
        term="second",
        triton="gradients",
    )
    table: Tensor | None = tensor(
        "h|1 w T", "layer", "r, whose column I_i - J_j, in [0, T), a pair reads", term="table",
        triton="gradients",
    )  # fmt: skip
    query_index: Tensor | None = tensor(
        "q", "query", "I: one integer per point serves any regular grid", term="table",
        kind="index", triton="values",
    )  # fmt: skip
    key_index: Tensor | None = tensor(
        "k",
        "key",
        "J",
        term="table",
        kind="index",
        triton="values",
    )
    distance_scale: Tensor | None = tensor(
        "h|1 w",
        "layer",
        "δ",
        term="distance",
        triton="gradients",
        single=True,
    )
    query_positions: Tensor | None = tensor(
        "b|1 q p",
        "query",
        "x, or without batch",
        term="distance",
        triton="values",
        single=True,
    )
    key_positions: Tensor | None = tensor(
        "b|1 k p", "key", "y, or without batch", decides="p", term="distance", triton="values",
        single=True,
    )  # fmt: skip
    density: Tensor | None = tensor(
        "b|1 h|1 q k",
        "pair",
        "ρ",
        kind="mask",
        triton="values",
    )
    query_time: Tensor | None = tensor(
        "b|1 q", "query", "t of queries, or without batch", term="time", kind="time",
        triton="values",
    )  # fmt: skip
    key_time: Tensor | None = tensor(
        "b|1 k", "key", "t of keys, or without batch: visible where not later than the query's",
        term="time", kind="time", triton="values",
    )  # fmt: skip
    # Weights and biases of further hidden layers in turn, W, b, W, b, ...
    mid: list[Tensor] = field(default_factory=list)


PAIR_TENSORS: dict[str, PairTensor] = {
    f.name: f.metadata["pair"] for f in fields(Tensors) if "pair" in f.metadata
}
_TYPES = {True: "Tensor", False: "Tensor?"}
SCHEMA = ", ".join(f"{_TYPES[fact.required]} {name}" for name, fact in PAIR_TENSORS.items())
"""The op's tensor arguments in the language of torch's operator schemas."""


# --- the first layer on paper: every pair at once -------------------------------------------------


def query_term(x: Tensors) -> Tensor:
    """q^b_i."""
    return x.query_bias[:, :, :, None, :]


def key_term(x: Tensors) -> Tensor | None:
    """k^b_j."""
    if x.key_bias is None:
        return None
    return x.key_bias[:, :, None, :, :]


def product_term(x: Tensors) -> Tensor | None:
    """Σ_c α_c q_ic k_jc."""
    return _product(x, x.query, x.scale, x.key)


def second_term(x: Tensors) -> Tensor | None:
    """Σ_c α'_c q'_ic k_{j,e-f+c}."""
    if x.query2 is None:
        return None
    first = x.key.shape[-1] - x.query2.shape[-1]
    return _product(
        x,
        x.query2,
        x.scale2,
        x.key[..., first:],
    )


def table_term(x: Tensors) -> Tensor | None:
    """r at I_i - J_j."""
    if x.table is None or x.query_index is None or x.key_index is None:
        return None
    # (H, w, T) read at (Nq, Nk), with the hidden units last.
    place = x.query_index[:, None] - x.key_index
    return x.table[:, :, place].permute(0, 2, 3, 1)


def distance_term(x: Tensors) -> Tensor | None:
    """δ |x_i - y_j|."""
    if x.distance_scale is None or x.query_positions is None or x.key_positions is None:
        return None
    far = distances(x.query_positions, x.key_positions)[:, None]
    return far[..., None] * x.distance_scale[:, None, None, :]


FIRST_LAYER: tuple[Callable[[Tensors], Tensor | None], ...] = (
    query_term, key_term, product_term, second_term, table_term, distance_term,
)  # fmt: skip


def _product(
    x: Tensors,
    query: Tensor | None,
    scale: Tensor | None,
    key: Tensor | None,
) -> Tensor | None:
    """Return Σ_c scale_c query_c key_c of all pairs, (B, H, Nq, Nk, w); None without a query."""
    if query is None or scale is None or key is None:
        return None
    b, h = x.value.shape[:2]
    query = query.expand(b, h, -1, -1)
    scale = scale.expand(h, -1, -1)
    key = key.expand(b, h, -1, -1)
    return torch.einsum("bhqe,hwe,bhke->bhqkw", query, scale, key)


# --- what terms ask of one another beyond their shapes --------------------------------------------


def check_second(
    tensors: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> None:
    """Refuse a second product without keys, or wider than they are: it multiplies their last
    columns.
    """
    if tensors["key"] is None:
        raise ShapeError(
            "mlp_kernel's query2: expected key beside it, got None; query2 multiplies its last "
            "columns"
        )
    if sizes["f"] > sizes["e"]:
        raise ShapeError(
            f"mlp_kernel's query2: expected at most key's {sizes['e']} columns, got {sizes['f']}; "
            "query2 multiplies its last columns"
        )


BEYOND_SHAPES: dict[str, Callable[[Mapping[str, Any], Mapping[str, int]], None]] = {
    "second": check_second,
}
"""By term: called with the tensors and the sizes of a call that has the term."""


# --- documentation --------------------------------------------------------------------------------

SYMBOLS = {"b": "B", "h": "H", "q": "Nq", "k": "Nk", "v": "w'"}


def documented(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return ``function`` with its docstring's ``{tensors}`` replaced by the list of the op's
    tensors.
    """
    function.__doc__ = (function.__doc__ or "").replace("{tensors}", describe(" " * 8))
    return function


def describe(indent: str) -> str:
    """Return one line for each tensor: its meaning, its shape, and the tensors of the same term."""
    notes = {"index": ", int64", "mask": ", float or boolean"}
    lines = []
    for name, fact in PAIR_TENSORS.items():
        words = []
        for size, shared in zip(fact.sizes, fact.shared):
            word = SYMBOLS.get(size, size)
            if shared:
                word += " | 1"
            words.append(word)
        shape = ", ".join(words)
        if len(words) == 1:
            shape += ","

        note = notes.get(fact.kind, "")
        line = f"{name}: {fact.text}, ({shape}){note}"
        if fact.term:
            of_term = [n for n, other in PAIR_TENSORS.items() if other.term == fact.term]
            of_term.remove(name)
            line += f"; with {', '.join(of_term)}"
        lines.append(f"{line}.")
    return f"\n{indent}".join(lines)
