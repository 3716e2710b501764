"""Configurations of torch's recurrences with all options: RNN with tanh and relu, LSTM, GRU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fredholm.domain import Domain

from .measure import Configuration

BATCH, POINTS, DIM, WIDTH = 3, 6, 3, 4
LENGTHS = (6, 2, 5)


def recurrence(
    label: str,
    kind: str,
    *,
    initial: str = "",
    padded: bool = False,
    dim: int = DIM,
    width: int = WIDTH,
    **options: Any,
) -> Configuration:
    """Return a configuration of a recurrence.

    Args:
        label: in the documentation's table.
        kind: name of the class in ``torch.nn``.
        initial: ``"shared"`` for one initial state, ``"batch"`` for one per sequence.
        padded: whether the sequences have different lengths.
        dim, width: of the layer.
        options: of the layer.
    """

    def build() -> nn.Module:
        layer = getattr(nn, kind)(dim, width, **options)
        # Initial states are parameters of the layer, so that their gradients are compared too.
        if initial:
            rows = layer.num_layers * (2 if layer.bidirectional else 1)
            batch = () if initial == "shared" else (BATCH,)
            widths = (layer.proj_size or width, width)[: 1 + (kind == "LSTM")]
            layer.start = nn.ParameterList(
                [nn.Parameter(torch.randn(rows, *batch, w)) for w in widths]
            )
        return layer

    def reference(layer: Any, u: Tensor) -> Tensor:
        state = None
        if initial:
            states = []
            for start in layer.start:
                states.append(
                    start if start.dim() == 3 else start[:, None].repeat(1, u.shape[0], 1)
                )
            state = tuple(states) if kind == "LSTM" else states[0]
        if padded:
            lengths = torch.tensor(LENGTHS)
            packed = pack_padded_sequence(u, lengths, batch_first=True, enforce_sorted=False)
            output, _ = layer(packed, state)
            output, _ = pad_packed_sequence(output, batch_first=True)
            return output
        if layer.batch_first:
            return layer(u, state)[0]
        return layer(u.transpose(0, 1), state)[0].transpose(0, 1)

    def apply(call: Callable[..., Tensor], u: Tensor) -> Tensor:
        if not padded:
            return call(u)
        valid = torch.arange(POINTS) < torch.tensor(LENGTHS)[:, None]
        causal = not options.get("bidirectional", False)
        return call(u, Domain.line(POINTS, causal=causal, measure="counting", valid=valid))

    def conversion(layer: Any) -> dict[str, Any]:
        if not initial:
            return {}
        state = tuple(layer.start) if kind == "LSTM" else layer.start[0]
        return {"initial_state": state}

    return Configuration(
        family="recurrence",
        label=label,
        build=build,
        inputs=lambda: (torch.randn(BATCH, POINTS, dim),),
        reference=reference,
        apply=apply,
        options=conversion,
    )


def _family(name: str, kind: str, **fixed: Any) -> list[Configuration]:
    """Return the configurations of a recurrence with each of its options."""
    both = {"bidirectional": True}
    return [
        recurrence(name, kind, **fixed),
        recurrence(f"{name}, no bias", kind, bias=False, **fixed),
        recurrence(f"{name}, batch first", kind, batch_first=True, **fixed),
        recurrence(f"{name}, 3 layers", kind, num_layers=3, **fixed),
        recurrence(f"{name}, bidirectional", kind, **both, **fixed),
        recurrence(f"{name}, bidirectional, 2 layers", kind, num_layers=2, **both, **fixed),
        recurrence(f"{name}, initial state", kind, initial="shared", **fixed),
        recurrence(f"{name}, padded", kind, padded=True, **fixed),
        recurrence(
            f"{name}, bidirectional, 2 layers, padded, an initial state for each sequence",
            kind,
            num_layers=2,
            initial="batch",
            padded=True,
            **both,
            **fixed,
        ),
    ]


def cell(kind: str, **options: Any) -> Configuration:
    """Return a configuration of a cell, which is applied point after point."""

    def reference(layer: Any, u: Tensor) -> Tensor:
        state, out = None, []
        for point in u.unbind(1):
            state = layer(point, state)
            out.append(state if isinstance(state, Tensor) else state[0])
        return torch.stack(out, 1)

    label = ", ".join([kind, *(f"{name}={value}" for name, value in options.items())])
    return Configuration(
        family="recurrence",
        label=label,
        build=lambda: getattr(nn, kind)(DIM, WIDTH, **options),
        inputs=lambda: (torch.randn(BATCH, POINTS, DIM),),
        reference=reference,
    )


CONFIGURATIONS = [
    cell("RNNCell"),
    cell("RNNCell", nonlinearity="relu", bias=False),
    cell("LSTMCell"),
    cell("GRUCell"),
    *_family("RNN tanh", "RNN"),
    *_family("RNN relu", "RNN", nonlinearity="relu"),
    *_family("LSTM", "LSTM"),
    *_family("GRU", "GRU"),
    recurrence("LSTM, projected", "LSTM", proj_size=2),
    recurrence(
        "LSTM, projected, bidirectional, 2 layers, initial state",
        "LSTM",
        proj_size=2,
        num_layers=2,
        bidirectional=True,
        initial="shared",
    ),
    recurrence("LSTM, one feature to one", "LSTM", dim=1, width=1),
    recurrence("GRU, dropout in evaluation mode", "GRU", num_layers=2, dropout=0.5),
]


def _speed(label: str, kind: str, shape: tuple[int, int, int], width: int, **options: Any):
    made = recurrence(label, kind, dim=shape[-1], width=width, batch_first=True, **options)
    return label, made.build, lambda: torch.randn(shape), made.reference, made.apply


# Rows of :mod:`.speed`, timed against the layer itself.
SPEED = [
    _speed("LSTM 128→256, B=8, N=256", "LSTM", (8, 256, 128), 256),
    _speed(
        "GRU 64→128, 2 layers, bidirectional, B=16, N=128",
        "GRU",
        (16, 128, 64),
        128,
        num_layers=2,
        bidirectional=True,
    ),
    _speed("RNN 32→64, B=4, N=512", "RNN", (4, 512, 32), 64),
]
