"""Causal states: the tensors that an operator keeps of the points so far. They can be copied, moved
and saved.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..domain import Domain
from ..edges import Edges
from ..errors import CheckpointError, OptionError
from ..files import replacing, storing
from ..quadrature import Quadrature
from .contract import Form, Memory

FORMAT = "fredholm state 1"
# Dtypes in which sums over a prefix are continued.
CONTINUES = (torch.float32, torch.float64)

Kind = TypeVar("Kind", bound="State")


@dataclass(frozen=True, eq=False)
class State:
    """The state of an operator or a model after some points: a dataclass of tensors, plain numbers
    and further states.

    Nothing writes to a state: ``step`` and ``prefill`` return a new one, so that the same state may
    be continued twice.
    """

    def copy(self: Kind) -> Kind:
        """Return a state with tensors of its own; gradients go through."""
        return _mapped(self, Tensor.clone)

    def __deepcopy__(self: Kind, memo: object) -> Kind:
        return self.copy()

    def detach(self: Kind) -> Kind:
        """Return the state without its autograd history, for truncated backpropagation."""
        return _mapped(self, Tensor.detach)

    def to(
        self: Kind,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> Kind:
        """Return the state on another device, or for a model of another precision; positions and
        masses keep their dtype.

        Raises:
            OptionError: a dtype other than float32 and float64: sums over a prefix lose digits in
                half precision.
        """
        if dtype is not None and dtype not in CONTINUES:
            raise OptionError(
                f"dtype: expected float32 or float64, in which a state goes on, got {dtype}; sums "
                "over a prefix lose digits in half precision: begin with init_state on the "
                "converted model"
            )
        state = self
        if device is not None:
            state = _mapped(state, lambda x: x.to(device))
        if dtype is not None:
            state = _converted(state, dtype)
        return state

    def save(self, path: str | Path) -> Path:
        """Write the state to a file, and return its path. ``load_state`` of an operator or model
        built alike reads it.

        The file holds tensors and plain numbers, and is read without executing code.

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
    """The state of a causal operator after some points.

    Attributes:
        domain: all points, including those still to come.
        quadrature: their weights.
        seen: number of points processed so far.
        keys: what the form stores of these points, tensors with the batch on dimension 0.
        form: the algorithm, the same for all steps of the state.
        batch: number of sequences.
        operator: class and sizes of the operator, in words.
    """

    domain: Domain
    quadrature: Quadrature
    seen: int
    keys: Memory
    form: Form
    batch: int
    operator: str


def load_state(
    path: str | Path,
    begin: Callable[[Domain, int], Kind],
    device: torch.device,
) -> Kind:
    """Read the state in a file of :meth:`State.save`.

    Args:
        path: the file.
        begin: returns the state before the first point, for the file's domain and batch.
        device: where the state goes on.

    Raises:
        CheckpointError: no such file, or one of something else, or of a state of an operator of
            another class or other sizes, or of one that goes on by another algorithm than this
            operator would begin with.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            f"{path}: expected a file of state.save, got none; write one with state.save(path)"
        )
    saved = _read(path, device)
    if not isinstance(saved, dict) or saved.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: expected a file of state.save ({FORMAT!r}), got something else; write one "
            "with state.save(path)"
        )
    domain, batch = _outermost(saved["state"])
    return _filled(begin(domain, batch), saved["state"], path)


def _read(path: Path, device: torch.device) -> Any:
    """Return the content of a file, read without executing code."""
    try:
        with storing(path):
            saved = torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, ValueError, KeyError, TypeError) as error:
        raise _not_a_state(path, error) from error
    except Exception as error:
        # Pickle's own errors have no common base class that torch passes on.
        if type(error).__module__ in ("_pickle", "pickle"):
            raise _not_a_state(path, error) from error
        raise
    return saved


def _not_a_state(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"{path}: expected a file of state.save, got another one ({error}); write one with "
        "state.save(path)"
    )


def _outermost(saved: Mapping[str, Any]) -> tuple[Domain, int]:
    """Return the domain of a saved state, and the batch of it or of its first layer."""
    batch = 1
    parts: list[Any] = [saved]
    # Breadth first: parts are appended while the loop runs.
    for part in parts:
        # Edges have a batch as well, but only the state of an operator names its operator.
        if isinstance(part, Mapping) and "operator" in part:
            batch = part["batch"]
            break
        if isinstance(part, Mapping):
            parts.extend(part.values())
        elif isinstance(part, (list, tuple)):
            parts.extend(part)
    return _domain(saved["domain"]), batch


def _domain(saved: Mapping[str, Any]) -> Domain:
    """Return the domain of saved fields.

    A file holds the grid's extents as a list, and edges as their fields.
    """
    fields = dict(saved)
    if fields["shape"] is not None:
        fields["shape"] = tuple(fields["shape"])
    if isinstance(fields["pairs"], Mapping):
        fields["pairs"] = Edges(**fields["pairs"])

    # Files of earlier versions do not say whether positions are times. These versions took every
    # domain without a grid for timestamps where its measure was "spacing".
    without_grid = fields["shape"] is None
    fields.setdefault("timed", without_grid and fields["kind"] == "spacing")
    return Domain(**fields)


# --- trees of states, tensors and plain things ----------------------------------------------------


def _mapped(x: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return ``x`` with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if isinstance(x, dict):
        return {name: _mapped(part, change) for name, part in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(_mapped(part, change) for part in x)
    if isinstance(x, (State, Domain, Quadrature, Edges)):
        fields = {f.name: _mapped(getattr(x, f.name), change) for f in dataclasses.fields(x)}
        return type(x)(**fields)
    return x


def _converted(x: Any, dtype: torch.dtype) -> Any:
    """Return ``x`` with the memories of its states in another precision."""
    if isinstance(x, CausalState):
        keys = {name: _precise(tensor, dtype) for name, tensor in x.keys.items()}
        return dataclasses.replace(x, keys=keys)
    if isinstance(x, (list, tuple)):
        return type(x)(_converted(part, dtype) for part in x)
    if isinstance(x, State):
        fields = {f.name: _converted(getattr(x, f.name), dtype) for f in dataclasses.fields(x)}
        return type(x)(**fields)
    return x


def _precise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a real tensor in ``dtype``, a complex one of such parts, and others as they are."""
    if x.is_complex():
        return x.to(dtype.to_complex())
    if x.is_floating_point():
        return x.to(dtype)
    return x


def _plain(x: Any) -> Any:
    """Return ``x`` as tensors, numbers, names, lists and dictionaries, which are read without
    executing code.
    """
    if isinstance(x, Tensor):
        # A view would be saved with the memory that it is a part of.
        return x.detach().clone()
    if isinstance(x, dict):
        return {name: _plain(part) for name, part in x.items()}
    if isinstance(x, (list, tuple)):
        return [_plain(part) for part in x]
    if isinstance(x, Form):
        return [type(x).__name__, repr(x.strategy)]
    if isinstance(x, Quadrature):
        # It follows from the domain.
        return None
    if isinstance(x, (State, Domain, Edges)):
        return {f.name: _plain(getattr(x, f.name)) for f in dataclasses.fields(x)}
    return x


def _filled(begun: Any, saved: Any, path: Path) -> Any:
    """Return a state before the first point with the values of a saved one in their places."""
    if isinstance(begun, CausalState):
        return _filled_state(begun, saved, path)
    if isinstance(begun, (list, tuple)):
        if len(begun) != len(saved):
            raise CheckpointError(
                f"{path}: expected a state of {len(begun)} layers, as the model has, got one of "
                f"{len(saved)}; load it with a model built alike"
            )
        return type(begun)(_filled(one, part, path) for one, part in zip(begun, saved))
    if isinstance(begun, State):
        fields = {f.name: getattr(begun, f.name) for f in dataclasses.fields(begun)}
        filled = {name: _filled(part, saved[name], path) for name, part in fields.items()}
        return type(begun)(**filled)
    if isinstance(begun, Domain):
        return _domain(saved)
    return saved


def _filled_state(
    begun: CausalState,
    saved: Mapping[str, Any],
    path: Path,
) -> CausalState:
    """Return an operator's state with saved values.

    Raises:
        CheckpointError: a state of another operator or another form.
    """
    operator = saved["operator"]
    if operator != begun.operator:
        raise CheckpointError(
            f"{path}: the state is of {operator}, this operator is {begun.operator}; load it "
            "with an operator or model built alike"
        )
    form = [type(begun.form).__name__, repr(begun.form.strategy)]
    if list(saved["form"]) != form:
        raise CheckpointError(
            f"{path}: the state goes on by {saved['form'][0]} of {saved['form'][1]}, this "
            f"operator by {form[0]} of {form[1]}; set op.strategy to what it was"
        )

    domain = _domain(saved["domain"])
    return dataclasses.replace(
        begun,
        domain=domain,
        quadrature=domain.quadrature(),
        seen=saved["seen"],
        keys=saved["keys"],
        batch=saved["batch"],
    )
