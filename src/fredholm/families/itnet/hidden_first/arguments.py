"""From a caller's arguments to the op's tensors: names, complete terms, shapes, and the arguments'
documentation, all read off :mod:`.terms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from ....errors import OptionError, ShapeError, suggest
from .terms import PAIR_TENSORS, PairTensor, check_second


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """All tensors by name, in order, None where there is none; positions and times with a batch.

    Raises:
        OptionError: a name that no tensor has.
    """
    for name in given:
        if name not in PAIR_TENSORS:
            raise OptionError(f"mlp_kernel takes no {name!r}{suggest(name, PAIR_TENSORS)}")
    tensors = {name: given.get(name) for name in PAIR_TENSORS}
    for name, fact in PAIR_TENSORS.items():
        x = tensors[name]
        if x is None:
            continue
        if fact.kind == "time":
            x = x.detach()
        if fact.sizes[0] == "b" and "h" not in fact.sizes and x.dim() == len(fact.sizes) - 1:
            x = x[None]
        tensors[name] = x
    return tensors


def check(tensors: Mapping[str, Any], mid: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Raise ShapeError unless every term is complete and its shapes fit."""
    _check_complete(tensors)
    sizes = _sizes(tensors, mid)
    for name, fact in PAIR_TENSORS.items():
        x = tensors[name]
        if x is not None and not _fits(fact, x, sizes):
            raise ShapeError(
                f"mlp_kernel's {name} has shape {tuple(x.shape)}, needs ({_wanted(fact, sizes)}): "
                "value gives batch, heads, keys and d, query_bias queries and hidden width, key e, "
                "mid or else query_bias the last hidden width"
            )
    check_second(tensors, sizes)
    before = sizes["w"]
    for weight, shift in mid:
        if weight.dim() != 2 or weight.shape[1] != before or shift.shape != weight.shape[:1]:
            got = f"{tuple(weight.shape)} and {tuple(shift.shape)}"
            raise ShapeError(
                f"a layer of mlp_kernel's mid has weight and bias {got}, needs (n, {before}) and "
                "(n,)"
            )
        before = weight.shape[0]


def _check_complete(tensors: Mapping[str, Any]) -> None:
    terms: dict[str, list[str]] = {}
    for name, fact in PAIR_TENSORS.items():
        if fact.term:
            terms.setdefault(fact.term, []).append(name)
    for names in terms.values():
        given = [name for name in names if tensors[name] is not None]
        if given and len(given) < len(names):
            missing = ", ".join(name for name in names if name not in given)
            raise ShapeError(
                f"mlp_kernel got {', '.join(given)} without {missing}: give all of "
                f"{', '.join(names)} or none"
            )


def _sizes(tensors: Mapping[str, Any], mid: Sequence[tuple[Tensor, Tensor]]) -> dict[str, int]:
    """The size of every dimension that one tensor decides for the others."""
    sizes: dict[str, int] = {}
    for name, fact in PAIR_TENSORS.items():
        x = tensors[name]
        if x is not None and x.dim() == len(fact.sizes):
            sizes |= {n: x.shape[fact.sizes.index(n)] for n in fact.decides.split()}
    if mid:
        sizes["v"] = mid[-1][0].shape[0]
    elif "w" in sizes:
        sizes["v"] = sizes["w"]
    return sizes


def _fits(fact: PairTensor, x: Tensor, sizes: Mapping[str, int]) -> bool:
    wanted = [sizes.get(size) for size in fact.sizes]
    return x.dim() == len(wanted) and all(
        want is None or got == want or (shared and got == 1)
        for got, want, shared in zip(x.shape, wanted, fact.shared)
    )


def _wanted(fact: PairTensor, sizes: Mapping[str, int]) -> str:
    return ", ".join(
        "any" if size not in sizes else f"{sizes[size]}{' or 1' if shared else ''}"
        for size, shared in zip(fact.sizes, fact.shared)
    )


# --- documentation --------------------------------------------------------------------------------

SYMBOLS = {"b": "B", "h": "H", "q": "Nq", "k": "Nk", "v": "w'"}


def documented(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``function`` with its docstring's ``{tensors}`` replaced by the list of the op's tensors."""
    function.__doc__ = (function.__doc__ or "").replace("{tensors}", describe(" " * 8))
    return function


def describe(indent: str) -> str:
    """One line for each tensor: what it is, its shape, what comes with it."""
    lines = []
    for name, fact in PAIR_TENSORS.items():
        shape = ", ".join(
            SYMBOLS.get(size, size) + (" | 1" if shared else "")
            for size, shared in zip(fact.sizes, fact.shared)
        )
        others = [n for n, f in PAIR_TENSORS.items() if f.term == fact.term and n != name]
        line = f"{name}: {fact.text}, ({shape}{',' if len(fact.sizes) == 1 else ''})"
        line += {"index": ", int64", "mask": ", float or boolean"}.get(fact.kind, "")
        lines.append(line + (f"; with {', '.join(others)}." if fact.term else "."))
    return f"\n{indent}".join(lines)
