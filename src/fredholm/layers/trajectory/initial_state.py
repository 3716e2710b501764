"""The state of a recurrence before its first point: h, and of an LSTM (h, c)."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

from ...errors import OptionError, ShapeError

InitialState = Tensor | tuple[Tensor, Tensor]


class Parts(NamedTuple):
    """The tensors of a state; None where the recurrence has none."""

    h: Tensor | None = None
    c: Tensor | None = None


def tensors_of(state: InitialState | None) -> tuple[Tensor, ...]:
    """Return the tensors of a state as a user writes it, none for zeros."""
    if state is None:
        return ()
    if isinstance(state, Tensor):
        return (state,)
    return tuple(state)


def check_state(layer: nn.RNNBase, state: InitialState | None, width: int) -> Parts:
    """Return the parts of an initial state for a layer of this ``width`` of h.

    Raises:
        OptionError: other tensors than the layer's states, shapes or dtypes that do not fit.
    """
    if state is None:
        return Parts()
    parts = tensors_of(state)
    is_lstm = layer.mode == "LSTM"
    if len(parts) != 1 + is_lstm or not all(isinstance(x, Tensor) for x in parts):
        need = "one tensor h"
        if is_lstm:
            need = "a pair of tensors (h, c)"
        raise OptionError(
            f"initial_state of {type(layer).__name__}: expected {need}, got {_describe(state)}"
        )

    # A state for each layer and direction.
    directions = 1
    if layer.bidirectional:
        directions = 2
    rows = layer.num_layers * directions
    for name, x, size in zip("hc", parts, (width, layer.hidden_size)):
        if x.dim() not in (2, 3) or x.shape[0] != rows or x.shape[-1] != size:
            raise OptionError(
                f"initial_state: expected {name} of shape ({rows}, {size}) or ({rows}, B, {size}), "
                f"got {tuple(x.shape)}"
            )
        dtype = layer.weight_ih_l0.dtype
        if x.dtype != dtype:
            raise OptionError(
                f"initial_state: expected {name} of the layer's dtype {dtype}, got {x.dtype}"
            )
    return Parts(*parts)


def fits_batch(parts: tuple[Tensor, ...], batch: int) -> bool:
    """Return whether a state is for every batch, or for one of this size."""
    return all(x.dim() == 2 or x.shape[1] == batch for x in parts)


def for_batch(x: Tensor, batch: int) -> Float[Tensor, "r b n"]:
    """Return one tensor of a state with a row per sample.

    Raises:
        ShapeError: a state for a batch of another size.
    """
    if x.dim() == 2:
        x = x[:, None]
    elif x.shape[1] not in (1, batch):
        raise ShapeError(
            f"initial_state: expected a state for a batch of {batch}, like u, got one for a batch "
            f"of {x.shape[1]}"
        )
    return x.expand(-1, batch, -1)


def as_torch_takes_it(parts: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...] | None:
    """Return the state argument of torch's layers and cells: None, h or (h, c)."""
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    return parts


def _describe(state: InitialState) -> str:
    if isinstance(state, Tensor):
        return f"a tensor {tuple(state.shape)}"
    return f"{type(state).__name__} of {[type(x).__name__ for x in state]}"
