"""Results that depend on weights alone, computed once while a model only answers.

:class:`inference` is the switch. Kernels and forms wrap work that depends on nothing but weights
and fixed positions in :func:`fredholm.integral.prepared`; outside the switch that simply does the
work, and a kernel that does not know of it is right as well.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from ..arguments import refuse_kind
from ..errors import InferenceError, OptionError
from .contract import MEMOS

Value = TypeVar("Value")

VERSION = attrgetter("_version")
# The most values that a module caches under one name, each for another set of positions.
GRIDS = 4
# Guards MEMOS. It is reentrant because a collected generator may leave a context while another one
# is entered, in the same thread.
COUNTING = threading.RLock()


@dataclass
class _Entered:
    """A context that a thread is in, and the grad mode to restore when it is left."""

    context: inference
    grad_enabled: bool


class _GradModes(threading.local):
    """The contexts that this thread is in, in the order in which it entered them."""

    def __init__(self):
        self.entered: list[_Entered] = []

    def enter(self, context: inference) -> None:
        """Note a context, and switch gradients off."""
        self.entered.append(_Entered(context, torch.is_grad_enabled()))
        torch.set_grad_enabled(False)

    def leave(self, context: inference) -> None:
        """Restore the mode from before the context. Where another context was entered since, that
        one will restore it instead.
        """
        places = [i for i, entry in enumerate(self.entered) if entry.context is context]
        if not places:
            # Another thread entered it, whose mode cannot be reached from here.
            return

        last = places[-1]
        left = self.entered.pop(last)
        if last == len(self.entered):
            torch.set_grad_enabled(left.grad_enabled)
        else:
            self.entered[last].grad_enabled = left.grad_enabled


GRAD_MODES = _GradModes()


class inference:
    r"""A context in which a model, an operator or a converted transformer only answers: results
    that its weights alone decide are computed at the first call and cached until the context is
    left.

    Such results are LUNA's knots, ITNet's table of displacements and folded first layer, CKConv's
    taps and spectrum on a grid, projections side by side, and the like; answers are those outside,
    to rounding. Inside, the model is in evaluation mode and no gradients are recorded. Contexts may
    be nested, entered again, and overlap, in one thread or several; leaving the last one drops the
    cache, also after an exception, and restores the modes. Whether gradients are recorded is a
    thread's own: others that call the model enter a context too, or ``torch.no_grad()``.

    A module that is called with other weights meanwhile (``torch.func.functional_call``, an
    Evolution between two knots) is another to all threads. Weights, ``state_dict``, copies and
    pickles do not change. Compiled code is right inside, and caches nothing.

    Args:
        model: any module.

    Raises:
        OptionError: an argument that is not a module.
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

    # An object, because anything but a module is refused with a message of our own.
    def __init__(self, model: object):
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
        GRAD_MODES.enter(self)
        return self.model

    def __exit__(self, *error: object) -> None:
        GRAD_MODES.leave(self)
        with COUNTING:
            for memo in self._entered.pop():
                memo.leave()


class Entry(NamedTuple):
    """A cached value and the tensors, beside the weights, that it was computed from."""

    sources: tuple[Source, ...]
    value: Any


class Memo:
    """The cache of one module, and the weights that its values were computed from.

    Attributes:
        module: the module. Its submodules have memos of their own.
        contexts: number of open :class:`inference` contexts around the module; they may nest.
        was_training: whether the module was in training mode when it entered a context.
        entries: lists of values by name and autocast dtype. A list has one value for each set of
            positions, the last used first, and at most :data:`GRIDS` of them.
        tables: its modules' tables of parameters, buffers and submodules; None before the first
            call, which sets all attributes that describe the weights.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.contexts = 0
        self.was_training = False
        self.tables: list[dict[str, Any]] | None = None
        self.entries: dict[Hashable, list[Entry]] = {}

    def enter(self) -> None:
        """Enter one more context, in which the module only answers."""
        self.contexts += 1
        self.was_training |= self.module.training
        self.module.training = False

    def leave(self) -> None:
        """Leave one context. After the last one, drop the cached values and restore the mode."""
        self.contexts -= 1
        if self.contexts:
            return

        del MEMOS[self.module]
        if self.was_training:
            # Not ``train()``, which would switch the submodules as well: they restore themselves.
            self.module.training = True

    def get(
        self,
        name: Hashable,
        make: Callable[[], Value],
        of: Sequence[Tensor],
    ) -> Value:
        """Return the value of ``make`` at the first call with this name and these tensors."""
        self.check()
        key = (name, self.autocast())
        # Threads share a memo: a list is replaced, never changed.
        entries = self.entries.get(key, [])
        for entry in entries:
            if all(source.equals(x) for source, x in zip(entry.sources, of)):
                if entry is not entries[0]:
                    others = [other for other in entries if other is not entry]
                    self.entries[key] = [entry, *others]
                return entry.value

        # In inference mode the value would be a tensor that autograd refuses later.
        with torch.inference_mode(False), torch.no_grad():
            value = make()
        # Fake tensors and tensors of torch.func are of the present call alone.
        if all(type(x) is Tensor or type(x) is nn.Parameter for x in _parts(value)):
            entry = Entry(tuple(Source(x) for x in of), value)
            self.entries[key] = [entry, *entries][:GRIDS]
        return value

    def check(self) -> None:
        """Check that the module is not trained, and that its weights are those of the first call.

        Raises:
            InferenceError: otherwise.
        """
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
            self._note_weights()
        elif _identities(self.tables) != self.identities or self._marks() != self.marks:
            raise InferenceError(
                f"weights of {name} have changed inside fredholm.inference since its first call, "
                "and what was computed from them has not; leave the context, change them, and "
                "enter it again"
            )

    def _note_weights(self) -> None:
        """Remember which weights there are, where they lie and how often each was written to."""
        tables = []
        for module in self.module.modules():
            for table in (module._parameters, module._buffers, module._modules):
                if table:
                    tables.append(table)
        self.identities = _identities(tables)

        self.tensors = [x for x in _values(tables) if isinstance(x, Tensor)]
        # Inference tensors do not count writes.
        self.counted = [x for x in self.tensors if not x.is_inference()]
        self.device = "cpu"
        if self.tensors:
            self.device = self.tensors[0].device.type
        self.marks = self._marks()

        # Last, because other threads take the presence of tables for that of all attributes.
        self.tables = tables

    def _marks(self) -> list[int]:
        """Return how often each weight was written to, and its address in memory."""
        return [*map(VERSION, self.counted), *map(Tensor.data_ptr, self.tensors)]

    def autocast(self) -> torch.dtype | None:
        """Return the dtype of autocast, in which the same work has another result, or None."""
        if self.device == "meta" or not torch.is_autocast_enabled(self.device):
            return None
        return torch.get_autocast_dtype(self.device)


class Source:
    """A tensor that a value was computed from, as it was then."""

    def __init__(self, x: Tensor):
        # An inference tensor does not count writes, so that a copy is compared by value.
        self.x = x
        if x.is_inference():
            self.x = x.clone()
        # The clone is an inference tensor too where inference mode is on.
        self.version = 0
        if not self.x.is_inference():
            self.version = self.x._version

    def equals(self, x: Tensor) -> bool:
        """Whether ``x`` has the same values: it is the same memory, or compares equal on a CPU.

        On a GPU a comparison of values would wait for the device, at every call.
        """
        source = self.x
        if source.dtype != x.dtype or source.shape != x.shape or source.device != x.device:
            return False
        if not source.is_inference() and source._version != self.version:
            return False

        same_memory = source.data_ptr() == x.data_ptr() and source.stride() == x.stride()
        if same_memory and not x.is_inference():
            return x._version == self.version
        return x.device.type == "cpu" and torch.equal(source, x)


def _values(tables: list[dict[str, Any]]) -> Iterator[Any]:
    """Return all parameters, buffers and submodules in the tables of modules."""
    return chain.from_iterable(map(dict.values, tables))


def _identities(tables: list[dict[str, Any]]) -> list[int]:
    """Return the identity of each object in the tables of modules."""
    return [*map(id, _values(tables))]


def _parts(value: Any) -> list[Any]:
    """Return the tensors of a value, which is one or a tuple of them."""
    parts = value
    if not isinstance(value, (tuple, list)):
        parts = (value,)
    return [x for x in parts if x is not None]
