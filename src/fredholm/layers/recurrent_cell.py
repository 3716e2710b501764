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
from .parts import bind
from .recurrence import RecurrentKernel
from .trajectory.initial_state import InitialState, as_torch_takes_it, fits_batch, tensors_of

Cell = nn.RNNCell | nn.LSTMCell | nn.GRUCell
LAYERS: dict[type[nn.Module], Any] = {
    nn.RNNCell: nn.RNN,
    nn.LSTMCell: nn.LSTM,
    nn.GRUCell: nn.GRU,
}
NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


def _call(
    cell: Any,
    u: Tensor,
    domain: Domain,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> Tensor | None:
    """Call the cell point after point, or return None for another function: a linearization, or a
    state for batches of another size.
    """
    parts = tensors_of(initial_state)
    batch = u.shape[0]
    if linearization != "secant" or not fits_batch(parts, batch):
        return None

    # From (1, width) or (1, B, width), as a recurrence of one layer has it, to (B, width).
    rows = []
    for x in parts:
        row = x.reshape(-1, x.shape[-1])
        rows.append(row.expand(batch, -1))
    state: Any = as_torch_takes_it(tuple(rows))
    outputs = []
    for point in u.unbind(1):
        state = cell(point, state)
        outputs.append(tensors_of(state)[0])
    return torch.stack(outputs, 1)


@register_converter(
    *(f"torch.nn.modules.rnn.{name}Cell" for name in ("RNN", "LSTM", "GRU")),
    call=_call,
)
def recurrent_cell(
    module: Cell,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> IntegralOperator:
    """Convert a cell that is applied point after point and whose outputs are its states h: the
    recurrence of one layer with the cell's parameters, on the causal line with a mass of one per
    point.

    ``initial_state`` and ``linearization`` are those of
    :class:`fredholm.layers.recurrence.RecurrentKernel`.
    """
    options: dict[str, Any] = {
        "bias": module.bias,
        "batch_first": True,
        "device": "meta",
    }
    if isinstance(module, nn.RNNCell):
        options["nonlinearity"] = module.nonlinearity
    kind = next(layer for cell, layer in LAYERS.items() if isinstance(module, cell))
    layer = kind(module.input_size, module.hidden_size, **options)
    for name in NAMES:
        parameter = getattr(module, name)
        if parameter is not None:
            setattr(layer, f"{name}_l0", parameter)
    kernel = RecurrentKernel(layer, initial_state=initial_state, linearization=linearization)
    return bind(kernel)
