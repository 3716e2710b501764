"""What a method beside the operators has learned: arrays and plain values, which alone decide its
answers, so that one that was saved answers as the one that was fitted.
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

LEAST = 1e-7  # of a probability
UNSAVED = {"saved": False}  # of a dataclass's field that decides no answer
_KIND = "part"  # the key of a part's class
PARTS: Registry[type[Any]] = Registry("part of a method", home=f"{__package__}.plain")


@dataclass(frozen=True, eq=False)
class Part:
    """A dataclass of tensors, of what JSON holds, and of further parts; its subclasses are known by
    their names.

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
    """A method that was fitted: ``fitted(inputs)`` are its outputs (B, classes), logarithms of
    probabilities up to a constant, or (B, 1) numbers.
    """

    @abstractmethod
    def __call__(self, inputs: Any) -> Tensor:
        raise NotImplementedError


def dismantle(part: Part, prefix: str = "") -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A part as what JSON holds, and tensors by dotted names."""
    values: dict[str, Any] = {_KIND: type(part).__name__}
    tensors: dict[str, Tensor] = {}
    for field in fields(part):
        if not field.metadata.get("saved", True):
            continue
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[prefix + field.name] = value
        elif isinstance(value, Part):
            values[field.name], below = dismantle(value, f"{prefix}{field.name}.")
            tensors |= below
        else:
            values[field.name] = value
    return values, tensors


def rebuild(values: Mapping[str, Any], tensors: Mapping[str, Tensor], prefix: str = "") -> Any:
    """The part that :func:`dismantle` took apart; no code comes from the files.

    Raises:
        CheckpointError: a part that this version does not know, or fields that are not its own.
    """
    name = values.get(_KIND)
    if name not in PARTS:
        raise CheckpointError(f"part: received {name!r}; this version does not know it")
    cls = PARTS[str(name)]
    given = {key: value for key, value in values.items() if key != _KIND}
    for key, value in given.items():
        if isinstance(value, Mapping) and _KIND in value:
            given[key] = rebuild(value, tensors, f"{prefix}{key}.")
    for field in fields(cls):
        if prefix + field.name in tensors:
            given[field.name] = tensors[prefix + field.name]
    try:
        return cls(**given)
    except TypeError as error:
        raise CheckpointError(f"{name}: {error}; another version saved it") from error


@dataclass(frozen=True, eq=False)
class Linear(Part):
    """``rows @ weights.mT + bias``, in doubles.

    Attributes:
        weights: (outputs, features).
        bias: (outputs,).
    """

    weights: Tensor
    bias: Tensor

    @classmethod
    def of(cls, model: Any, scaler: Any = None) -> Linear:
        """A linear model of scikit-learn on rows that its standard scaler brought to one scale."""
        weights = torch.atleast_2d(torch.as_tensor(model.coef_, dtype=torch.float64))
        bias = torch.atleast_1d(torch.as_tensor(model.intercept_, dtype=torch.float64))
        if scaler is not None:
            weights = weights / torch.as_tensor(scaler.scale_, dtype=torch.float64)
            if scaler.with_mean:
                bias = bias - weights @ torch.as_tensor(scaler.mean_, dtype=torch.float64)
        return cls(weights.contiguous(), bias.clone())

    def __call__(self, rows: Any) -> Float[Tensor, "b outputs"]:
        """Of a tensor, or of a sparse matrix of scipy."""
        if isinstance(rows, Tensor):
            return rows.double() @ self.weights.mT + self.bias
        return torch.from_numpy(rows @ self.weights.numpy().T) + self.bias


@dataclass(frozen=True, eq=False)
class Logistic(Part):
    """Logarithms of the probabilities of a logistic regression.

    Attributes:
        linear: one output for two classes, else one for each.
        classes: that it was fitted to.
        count: of all classes.
    """

    linear: Linear
    classes: list[int]
    count: int

    @classmethod
    def of(cls, model: Any, count: int, scaler: Any = None) -> Logistic:
        """That of scikit-learn."""
        return cls(Linear.of(model, scaler), model.classes_.tolist(), count)

    def __call__(self, rows: Any) -> Float[Tensor, "b classes"]:
        return log_probabilities(self.linear(rows), self.classes, self.count)


def log_probabilities(
    scores: Float[Tensor, "b k"], classes: Sequence[int], count: int
) -> Float[Tensor, "b classes"]:
    """Of the softmax of scores of the ``classes`` that were trained on, at least :data:`LEAST`,
    which is what the others have; a single score is that of the second class beside zero.

    Example:
        >>> log_probabilities(torch.tensor([[0.0]]), [0, 2], 3).exp().tolist()[0][::2]
        [0.5, 0.5]
    """
    if scores.shape[1] == 1:
        scores = torch.cat([torch.zeros_like(scores), scores], 1)
    result = torch.full((len(scores), count), LEAST, dtype=torch.float64)
    result[:, list(classes)] = scores.double().softmax(1).clamp(min=LEAST)
    return result.log().float()
