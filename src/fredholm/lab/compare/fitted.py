"""Fitted methods beside the operators, as arrays and plain values.

These alone determine a method's answers, so that one read from its files answers like the one that
was fitted.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...errors import CheckpointError
from ...registry import Registry

# The least probability of a class.
LEAST = 1e-7

# Metadata of a dataclass field that has no effect on the answers and is not saved.
UNSAVED = {"saved": False}

AGAIN = "run the same `fredholm compare` again, which writes it anew"
"""The fix for every damaged or outdated file of a comparison."""

# The key under which the class of a part is saved.
_KIND = "part"

PARTS: Registry[type[Any]] = Registry("part of a method", home=f"{__package__}.plain")


@dataclass(frozen=True, eq=False)
class Part:
    """A dataclass of tensors, of values that JSON holds, and of further parts.

    Subclasses are saved under their names.

    Example:
        >>> weights = Linear(torch.ones(1, 2).double(), torch.zeros(1).double())
        >>> values, tensors = dismantle(weights)
        >>> values, sorted(tensors)
        ({'part': 'Linear'}, ['bias', 'weights'])
        >>> rebuild(values, tensors)(torch.tensor([[2.0, 3.0]])).tolist()
        [[5.0]]
    """

    def __init_subclass__(cls) -> None:
        PARTS.add(cls.__name__, cls)


@dataclass(frozen=True, eq=False)
class Fitted(Part):
    """A fitted method, a function from inputs to outputs.

    Outputs are (B, classes), logarithms of probabilities up to a constant, or (B, 1) numbers.
    """

    @abstractmethod
    def __call__(self, inputs: Any) -> Tensor:
        raise NotImplementedError


def dismantle(
    part: Part,
    prefix: str = "",
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a part's plain values, nested, and its tensors by dotted names."""
    values: dict[str, Any] = {_KIND: type(part).__name__}
    tensors: dict[str, Tensor] = {}
    for field in fields(part):
        if not field.metadata.get("saved", True):
            continue
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[prefix + field.name] = value
        elif isinstance(value, Part):
            inner, below = dismantle(value, f"{prefix}{field.name}.")
            values[field.name] = inner
            tensors |= below
        else:
            values[field.name] = value
    return values, tensors


def rebuild(
    values: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    prefix: str = "",
) -> Any:
    """Return the part that :func:`dismantle` took apart, with all parts inside it.

    Executes no code from the files: the class is looked up by name among :data:`PARTS`.

    Args:
        values: plain values by field. A mapping with the key ``part`` is a part inside this one.
        tensors: of all parts, by dotted names such as ``linear.weights``.
        prefix: of this part's tensors, ``""`` or ending in a dot.

    Raises:
        CheckpointError: a part that this version does not know, or with other fields.
    """
    name = values.get(_KIND)
    if name not in PARTS:
        raise CheckpointError(f"part: expected one of {', '.join(PARTS)}, got {name!r}; {AGAIN}")
    cls = PARTS[str(name)]

    arguments: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and _KIND in value:
            arguments[key] = rebuild(value, tensors, f"{prefix}{key}.")
        elif key != _KIND:
            arguments[key] = value
    for field in fields(cls):
        if prefix + field.name in tensors:
            arguments[field.name] = tensors[prefix + field.name]

    # Another version's part may lack fields or have further ones.
    try:
        return cls(**arguments)
    except TypeError as error:
        raise CheckpointError(
            f"{name}: expected the fields of this version, got others ({error}); {AGAIN}"
        ) from error


@dataclass(frozen=True, eq=False)
class Linear(Part):
    """``rows @ weights.mT + bias``, in float64.

    Attributes:
        weights: (outputs, features).
        bias: (outputs,).
    """

    weights: Tensor
    bias: Tensor

    @classmethod
    def of(cls, model: Any, scaler: Any = None) -> Linear:
        """Return a linear model of scikit-learn that was fitted to rows which its standard scaler
        ``scaler`` had scaled, as one on unscaled rows.
        """
        weights = torch.atleast_2d(_double(model.coef_))
        bias = torch.atleast_1d(_double(model.intercept_))
        if scaler is not None:
            weights = weights / _double(scaler.scale_)
            if scaler.with_mean:
                bias = bias - weights @ _double(scaler.mean_)
        return cls(weights.contiguous(), bias.clone())

    def __call__(self, rows: Any) -> Float[Tensor, "b outputs"]:
        """Apply the model to a tensor or a sparse matrix of scipy."""
        if isinstance(rows, Tensor):
            return rows.double() @ self.weights.mT + self.bias
        weighted = rows @ self.weights.numpy().T
        return torch.from_numpy(weighted) + self.bias


def _double(values: Any) -> Tensor:
    """Return numbers as a tensor in float64."""
    return torch.as_tensor(values, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Logistic(Part):
    """Logistic regression; returns logarithms of probabilities.

    Attributes:
        linear: one output for two classes, else one per class.
        classes: indices of the classes in its training samples.
        count: of all classes.
    """

    linear: Linear
    classes: list[int]
    count: int

    @classmethod
    def of(
        cls,
        model: Any,
        count: int,
        scaler: Any = None,
    ) -> Logistic:
        """Return a logistic regression of scikit-learn, see :meth:`Linear.of`."""
        linear = Linear.of(model, scaler)
        return cls(linear, model.classes_.tolist(), count)

    def __call__(self, rows: Any) -> Float[Tensor, "b classes"]:
        scores = self.linear(rows)
        return log_probabilities(scores, self.classes, self.count)


def log_probabilities(
    scores: Float[Tensor, "b k"],
    classes: Sequence[int],
    count: int,
) -> Float[Tensor, "b classes"]:
    """Return the logarithm of the softmax of scores, for all ``count`` classes, in float32.

    A class without a score, since the training samples lacked it, has the probability
    :data:`LEAST`, and no class has less: its logarithm stays finite. A row may therefore sum to
    slightly more than 1.

    Args:
        scores: one column per class in ``classes``. Two classes may have a single column, the
            second one's score where the first one's is 0, as scikit-learn's decision functions do.
        classes: indices of the classes that have scores.
        count: of all classes.

    Example:
        >>> log_probabilities(torch.tensor([[0.0]]), [0, 2], 3).exp().tolist()[0][::2]
        [0.5, 0.5]
    """
    if scores.shape[1] == 1:
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    shape = (len(scores), count)
    result = torch.full(shape, LEAST, dtype=torch.float64)
    probabilities = scores.double().softmax(1)
    result[:, list(classes)] = probabilities.clamp(min=LEAST)
    return result.log().float()
