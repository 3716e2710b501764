"""Recurrent cells, one step each: over a line of points they are recurrences of one layer.

The converters of ``torch.nn.RNNCell``, ``LSTMCell`` and ``GRUCell``; the kernel is that of
``recurrence.py``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..domain import Domain
from ..integral import IntegralOperator
from ..integral.conversion import register_converter
from .recurrence import InitialState, RecurrentKernel

Cell = nn.RNNCell | nn.LSTMCell | nn.GRUCell
NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _call(
    cell: Any,
    u: Tensor,
    domain: Domain,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> Tensor | None:
    """The cell, point after point."""
    given = () if initial_state is None else initial_state
    parts = (given,) if isinstance(given, Tensor) else tuple(given)
    if linearization != "secant" or any(x.dim() == 3 and x.shape[1] != u.shape[0] for x in parts):
        return None  # a state for batches of another size cannot be called here
    # (1, width) or (1, B, width), as a recurrence of one layer has it.
    state: Any = tuple(x.reshape(-1, x.shape[-1]).expand(u.shape[0], -1) for x in parts) or None
    if state is not None and len(state) == 1:
        state = state[0]
    out = []
    for point in u.unbind(1):
        state = cell(point, state)
        out.append(state if isinstance(state, Tensor) else state[0])
    return torch.stack(out, 1)


@register_converter(
    *(f"torch.nn.modules.rnn.{name}Cell" for name in ("RNN", "LSTM", "GRU")), call=_call
)
def recurrent_cell(
    module: Cell,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> IntegralOperator:
    """A cell that is applied point after point and whose outputs are its states h: the recurrence
    of one layer with the cell's parameters, on the causal line with a mass of one per point.

    ``initial_state`` and ``linearization`` are those of
    :class:`fredholm.layers.recurrence.RecurrentKernel`.
    """
    options: dict[str, Any] = {"bias": module.bias, "batch_first": True, "device": "meta"}
    if isinstance(module, nn.RNNCell):
        layer = nn.RNN(
            module.input_size, module.hidden_size, nonlinearity=module.nonlinearity, **options
        )
    else:
        kind = nn.LSTM if isinstance(module, nn.LSTMCell) else nn.GRU
        layer = kind(module.input_size, module.hidden_size, **options)
    for name in NAMES:
        if getattr(module, name) is not None:
            setattr(layer, f"{name}_l0", getattr(module, name))
    kernel = RecurrentKernel(layer, initial_state=initial_state, linearization=linearization)
    return IntegralOperator(
        module.input_size, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
    )
