"""What weights alone decide, computed once while a model only answers.

:class:`inference` is the switch; :func:`fredholm.integral.prepared` is what kernels and forms write
around work that depends on nothing but weights and fixed positions. Outside the switch it just does
the work, and a kernel that has never heard of it is right as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..arguments import refuse_kind
from ..errors import InferenceError, OptionError
from .contract import MEMOS

Value = TypeVar("Value")

VERSION = attrgetter("_version")
GRIDS = 4  # values of one name that a module keeps at once: those of so many sets of positions
COUNTING = threading.RLock()  # a collected generator may leave a context while another is entered


class _Quiet(threading.local):
    """The contexts that this thread is in, in order, each with the grad mode to bring back."""

    def __init__(self):
        self.entered: list[list[Any]] = []

    def enter(self, context: inference) -> None:
        self.entered.append([context, torch.is_grad_enabled()])
        torch.set_grad_enabled(False)

    def leave(self, context: inference) -> None:
        """Bring back the mode; where another context was entered since, that one does."""
        places = [i for i, (one, _) in enumerate(self.entered) if one is context]
        if not places:  # entered by another thread, whose mode cannot be reached from here
            return
        _, before = self.entered.pop(places[-1])
        if places[-1] == len(self.entered):
            torch.set_grad_enabled(before)
        else:
            self.entered[places[-1]][1] = before


QUIET = _Quiet()


class inference:
    r"""A context in which a model, an operator or a converted transformer only answers: what its
    weights alone decide is computed at the first call and kept until the context is left.

    Kept are LUNA's knots, ITNet's table of displacements and folded first layer, CKConv's taps and
    spectrum on a grid, projections side by side, and the like; results are those outside, to
    rounding. Inside, the model is in evaluation mode and no gradients are recorded. Contexts may be
    nested, entered again, and overlap, in one thread or several; leaving the last one drops
    everything, also after an exception, and brings back the modes. Whether gradients are recorded
    is a thread's own: others that call the model enter a context too, or ``torch.no_grad()``.
    A module that is called with other weights meanwhile (``torch.func.functional_call``, an
    Evolution between two knots) is another to all threads. Weights, ``state_dict``, copies and
    pickles know nothing of it. Compiled code is right inside, and keeps nothing.

    Args:
        model: any module.

    Raises:
        OptionError: what is no module.
        InferenceError: by a call inside where gradients are recorded for the weights, after
            ``model.train()``, or where weights have changed since the first call.

    Cost: the check of a call, about 0.2 µs per weight of the operator.

    Example:
        >>> import fredholm
        >>> operator, u = fredholm.LunaAttention(8, heads=2), torch.randn(1, 5, 8)
        >>> before = operator(u)
        >>> with fredholm.inference(operator):
        ...     torch.allclose(operator(u), before, atol=1e-6)
        True
    """

    def __init__(self, model: object):  # anything else is refused by name
        if not isinstance(model, nn.Module):
            raise OptionError(refuse_kind("model", model, "a module: a model or an operator"))
        self.model = model
        self._entered: list[list[Memo]] = []

    def __enter__(self) -> nn.Module:
        parts = list(self.model.modules())
        with COUNTING:
            memos = [MEMOS.setdefault(part, Memo(part)) for part in parts]
            for memo in memos:
                memo.enter()
            self._entered.append(memos)
        QUIET.enter(self)
        return self.model

    def __exit__(self, *error: object) -> None:
        QUIET.leave(self)
        with COUNTING:
            for memo in self._entered.pop():
                memo.leave()


class Memo:
    """What one module has prepared, and the weights that it was prepared from."""

    def __init__(self, module: nn.Module):
        self.module, self.entered, self.trained = module, 0, False
        self.tables: list[dict[str, Any]] | None = None  # where the weights are looked up
        self.kept: dict[Any, list[tuple[tuple[Source, ...], Any]]] = {}

    def enter(self) -> None:
        """One more context; the module only answers."""
        self.entered += 1
        self.trained |= self.module.training
        self.module.training = False

    def leave(self) -> None:
        """One context fewer; after the last the module is as it was."""
        self.entered -= 1
        if not self.entered:
            del MEMOS[self.module]
            if self.trained:
                self.module.training = True

    def get(self, name: Any, make: Callable[[], Value], of: Sequence[Tensor]) -> Value:
        """What ``make`` returned at the first call with this name and these tensors."""
        self.check()
        key = (name, self.autocast())
        entries = self.kept.setdefault(key, [])
        for sources, value in entries:
            if all(source.is_still(x) for source, x in zip(sources, of)):
                return value
        # not as an inference tensor, which could not meet tensors with gradients
        with torch.inference_mode(False), torch.no_grad():
            value = make()
        if all(type(x) is Tensor or type(x) is nn.Parameter for x in _tensors(value)):
            entries.insert(0, (tuple(Source(x) for x in of), value))
            del entries[GRIDS:]
        return value

    def check(self) -> None:
        """InferenceError where the module is trained."""
        name = type(self.module).__name__
        if self.module.training:
            raise InferenceError(
                f"{name} was put into training mode inside fredholm.inference; leave the context "
                "to train, or call .eval()"
            )
        if torch.is_grad_enabled() and any(p.requires_grad for p in self.module.parameters()):
            raise InferenceError(
                f"{name} was called with gradients enabled inside fredholm.inference, where its "
                "parameters get none; leave the context to train, or set requires_grad_(False)"
            )
        if self.tables is None:
            self._look()
        elif _identities(self.tables) != self.weights or self._places() != self.places:
            raise InferenceError(
                f"weights of {name} have changed inside fredholm.inference since its first call, "
                "and what was computed from them has not; leave the context, change them, and "
                "enter it again"
            )

    def _look(self) -> None:
        parts = self.module.modules()
        tables = [x for m in parts for x in (m._parameters, m._buffers, m._modules) if x]
        self.weights = _identities(tables)
        values = chain.from_iterable(map(dict.values, tables))
        self.tensors = [x for x in values if isinstance(x, Tensor)]
        self.counted = [x for x in self.tensors if not x.is_inference()]
        self.device = self.tensors[0].device.type if self.tensors else "cpu"
        self.places = self._places()
        self.tables = tables  # last: by it another thread's call knows that all is there

    def _places(self) -> list[int]:
        """Where the weights lie, and how often each was written to."""
        return [*map(VERSION, self.counted), *map(Tensor.data_ptr, self.tensors)]

    def autocast(self) -> torch.dtype | None:
        """The dtype of autocast, in which the same work has another result."""
        if self.device == "meta" or not torch.is_autocast_enabled(self.device):
            return None
        return torch.get_autocast_dtype(self.device)


class Source:
    """A tensor that something was prepared from."""

    def __init__(self, x: Tensor):
        # an inference tensor does not tell when it is written to
        self.x = x.clone() if x.is_inference() else x
        self.version = self.x._version if not self.x.is_inference() else 0

    def is_still(self, x: Tensor) -> bool:
        """Whether ``x`` has the same values: it is the same memory, or compares equal on a CPU."""
        mine = self.x
        if mine.dtype != x.dtype or mine.shape != x.shape or mine.device != x.device:
            return False
        if not mine.is_inference() and mine._version != self.version:
            return False
        same = mine.data_ptr() == x.data_ptr() and mine.stride() == x.stride()
        if same and not x.is_inference():
            return x._version == self.version
        return x.device.type == "cpu" and torch.equal(mine, x)


def _identities(tables: list[dict[str, Any]]) -> list[int]:
    """What lies in the tables of modules."""
    return [*map(id, chain.from_iterable(map(dict.values, tables)))]


def _tensors(value: Any) -> list[Any]:
    """The parts of what was prepared."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return [x for x in parts if x is not None]
