"""What weights alone decide, computed once while a model only answers.

:class:`inference` is the switch; :func:`fredholm.integral.prepared` is what kernels and forms write
around work that depends on nothing but weights and fixed positions. Outside the switch it just does
the work, and a kernel that has never heard of it is right as well.
"""

from __future__ import annotations

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


class inference:
    r"""A context in which a model, an operator or a converted transformer only answers: what its
    weights alone decide is computed at the first call and kept until the context is left.

    Kept are LUNA's knots, ITNet's table of displacements and folded first layer, CKConv's taps and
    spectrum on a grid, projections side by side, and the like; results are those outside, to
    rounding. Inside, the model is in evaluation mode and no gradients are recorded. Contexts may be
    nested, entered again, and overlap; leaving the outermost one drops everything, also after an
    exception, and brings back the modes. Weights, ``state_dict``, copies and pickles know nothing
    of it. Compiled code is right inside, and keeps nothing.

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
        self._entered: list[tuple[list[nn.Module], list[nn.Module], Any]] = []

    def __enter__(self) -> nn.Module:
        parts = list(self.model.modules())
        trained = [part for part in parts if part.training]
        for part in trained:
            part.training = False
        for part in parts:
            memo = MEMOS.setdefault(part, Memo(part))
            memo.entered += 1
        quiet = torch.no_grad()
        quiet.__enter__()
        self._entered.append((parts, trained, quiet))
        return self.model

    def __exit__(self, *error: object) -> None:
        parts, trained, quiet = self._entered.pop()
        quiet.__exit__(*error)
        for part in parts:
            memo = MEMOS[part]
            memo.entered -= 1
            if not memo.entered:
                del MEMOS[part]
        for part in trained:
            part.training = True


class Memo:
    """What one module has prepared, and the weights that it was prepared from."""

    def __init__(self, module: nn.Module):
        self.module, self.entered = module, 0
        self.tables: list[dict[str, Any]] | None = None  # where the weights are looked up
        self.kept: dict[Any, list[tuple[tuple[Source, ...], Any]]] = {}

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
        elif self._weights() != self.weights or self._places() != self.places:
            raise InferenceError(
                f"weights of {name} have changed inside fredholm.inference since its first call, "
                "and what was computed from them has not; leave the context, change them, and "
                "enter it again"
            )

    def _look(self) -> None:
        parts = self.module.modules()
        self.tables = [x for m in parts for x in (m._parameters, m._buffers, m._modules) if x]
        self.weights = self._weights()
        values = chain.from_iterable(map(dict.values, self.tables))
        self.tensors = [x for x in values if isinstance(x, Tensor)]
        self.counted = [x for x in self.tensors if not x.is_inference()]
        self.device = self.tensors[0].device.type if self.tensors else "cpu"
        self.places = self._places()

    def _weights(self) -> list[int]:
        assert self.tables is not None
        return [*map(id, chain.from_iterable(map(dict.values, self.tables)))]

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


def _tensors(value: Any) -> list[Any]:
    """The parts of what was prepared."""
    parts = value if isinstance(value, (tuple, list)) else (value,)
    return [x for x in parts if x is not None]
