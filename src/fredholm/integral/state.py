"""What is remembered of a prefix: tensors and plain numbers, which fork, move and are saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..domain import Domain
from ..errors import CheckpointError, OptionError
from ..files import replacing, storing
from ..quadrature import Quadrature
from .contract import Form, Memory

FORMAT = "fredholm state 1"
CONTINUES = (torch.float32, torch.float64)

Kind = TypeVar("Kind", bound="State")


@dataclass(frozen=True, eq=False)
class State:
    """What an operator or a model remembers of a prefix: a dataclass of tensors, plain numbers and
    further states.

    Nothing writes to a state: ``step`` and ``prefill`` return a new one, so that the same state may
    be continued twice.
    """

    def copy(self: Kind) -> Kind:
        """The same with tensors of its own; gradients go through."""
        return _mapped(self, Tensor.clone)

    def __deepcopy__(self: Kind, memo: object) -> Kind:
        return self.copy()

    def detach(self: Kind) -> Kind:
        """The same without its history, for truncated backpropagation."""
        return _mapped(self, Tensor.detach)

    def to(
        self: Kind, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Kind:
        """The same on another device, or for a model of another precision; positions and masses
        keep theirs.

        Raises:
            OptionError: a dtype but float32 and float64: sums over a prefix are not made in half
                precision.
        """
        if dtype is not None and dtype not in CONTINUES:
            raise OptionError(
                f"a state goes on in float32 or float64, got dtype={dtype}; sums over a prefix "
                "lose in half precision: begin with init_state on the converted model"
            )
        moved = self if device is None else _mapped(self, lambda x: x.to(device))
        return moved if dtype is None else _converted(moved, dtype)

    def save(self, path: str | Path) -> Path:
        """Write the state to a file of tensors and plain numbers, which is read without executing
        code, by ``load_state`` of an operator or model built alike.

        Example:
            >>> import tempfile
            >>> from fredholm import Domain, SoftmaxAttention
            >>> operator, line = SoftmaxAttention(8), Domain.line(5, causal=True)
            >>> _, state = operator.prefill(torch.randn(1, 4, 8), operator.init_state(1, line))
            >>> path = state.save(tempfile.mkdtemp() + "/prefix.pt")
            >>> operator.load_state(path).seen
            4
        """
        with replacing(path) as temporary:
            torch.save({"format": FORMAT, "state": _plain(self)}, temporary)
        return Path(path)


@dataclass(frozen=True, eq=False)
class CausalState(State):
    """What a causal operator remembers of a prefix.

    Attributes:
        domain: all points, those to come included.
        quadrature: their weights.
        seen: how many points came.
        keys: the form's memory of them, tensors with the batch on dimension 0.
        form: the algorithm that the state began with and keeps.
        batch: how many sequences it is about.
        operator: its class and sizes, in words.
    """

    domain: Domain
    quadrature: Quadrature
    seen: int
    keys: Memory
    form: Form
    batch: int
    operator: str


def load_state(
    path: str | Path, begin: Callable[[Domain, int], Kind], device: torch.device
) -> Kind:
    """The state in a file of :meth:`State.save`.

    Args:
        begin: makes the state before the first point, for the file's domain and batch.
        device: where it goes on.

    Raises:
        CheckpointError: no such file, or one of something else, or of a state of an operator of
            another class or other sizes, or of one that goes on by another algorithm than this
            operator would begin with.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"no state at {path}; write one with state.save(path)")
    try:
        with storing(path):
            saved = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no file of state.save ({error})") from error
    except Exception as error:  # pickle's own errors have no common base that torch keeps
        if type(error).__module__ in ("_pickle", "pickle"):
            raise CheckpointError(f"{path} is no file of state.save ({error})") from error
        raise
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise CheckpointError(f"{path} is no file of state.save ({FORMAT!r})")
    domain, batch = _outermost(saved["state"])
    return _filled(begin(domain, batch), saved["state"], path)


def _outermost(saved: Mapping[str, Any]) -> tuple[Domain, int]:
    """The domain of a saved state, and the batch of it or of its first layer."""
    parts: list[Any] = [saved]
    for part in parts:
        if isinstance(part, Mapping) and "batch" in part:
            return _domain(saved["domain"]), part["batch"]
        if isinstance(part, Mapping):
            parts.extend(part.values())
        elif isinstance(part, (list, tuple)):
            parts.extend(part)
    return _domain(saved["domain"]), 1


def _domain(saved: Mapping[str, Any]) -> Domain:
    shape = saved["shape"]
    return Domain(**{**saved, "shape": None if shape is None else tuple(shape)})


# --- trees of states, tensors and plain things ----------------------------------------------------


def _mapped(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """``x`` with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, dict):
        return {name: _mapped(part, change) for name, part in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_mapped(part, change) for part in x)
    if isinstance(x, (State, Domain, Quadrature)):
        fields = {f.name: _mapped(getattr(x, f.name), change) for f in dataclasses.fields(x)}
        return type(x)(**fields)
    return x


def _converted(x: Any, dtype: torch.dtype) -> Any:
    """``x`` with the memories of its states in another precision, complex ones alike."""
    if isinstance(x, CausalState):
        return dataclasses.replace(x, keys={k: _precise(v, dtype) for k, v in x.keys.items()})
    if isinstance(x, (list, tuple)):
        return type(x)(_converted(part, dtype) for part in x)
    if isinstance(x, State):
        fields = {f.name: _converted(getattr(x, f.name), dtype) for f in dataclasses.fields(x)}
        return type(x)(**fields)
    return x


def _precise(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.is_complex():
        return x.to(dtype.to_complex())
    return x.to(dtype) if x.is_floating_point() else x


def _plain(x: Any) -> Any:
    """Tensors, numbers, names, lists and dictionaries: what is read without executing code."""
    if isinstance(x, Tensor):
        return x.detach().clone()  # not the memory that it is a part of
    if isinstance(x, dict):
        return {name: _plain(part) for name, part in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(part) for part in x]
    if isinstance(x, Form):
        return [type(x).__name__, repr(x.strategy)]
    if isinstance(x, Quadrature):  # follows from the domain
        return None
    if isinstance(x, (State, Domain)):
        return {f.name: _plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    return x


def _filled(begun: Any, saved: Any, path: Path) -> Any:
    """A state before the first point, with what was saved of a later one in its place."""
    if isinstance(begun, CausalState):
        theirs = saved["operator"]
        if theirs != begun.operator:
            raise CheckpointError(
                f"the state at {path} is of {theirs}, this operator is {begun.operator}; load it "
                "with an operator or model built alike"
            )
        form = [type(begun.form).__name__, repr(begun.form.strategy)]
        if list(saved["form"]) != form:
            raise CheckpointError(
                f"the state at {path} goes on by {saved['form'][0]} of {saved['form'][1]}, this "
                f"operator by {form[0]} of {form[1]}; set op.strategy to what it was"
            )
        return dataclasses.replace(
            begun,
            domain=_domain(saved["domain"]),
            quadrature=_domain(saved["domain"]).quadrature(),
            **{name: saved[name] for name in ("seen", "keys", "batch")},
        )
    if isinstance(begun, (list, tuple)):
        if len(begun) != len(saved):
            raise CheckpointError(
                f"the state at {path} has {len(saved)} layers, the model {len(begun)}"
            )
        return type(begun)(_filled(one, part, path) for one, part in zip(begun, saved))
    if isinstance(begun, State):
        fields = {f.name: getattr(begun, f.name) for f in dataclasses.fields(begun)}
        return type(begun)(
            **{name: _filled(part, saved[name], path) for name, part in fields.items()}
        )
    return _domain(saved) if isinstance(begun, Domain) else saved
