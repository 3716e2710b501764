"""The CKCNN's named models: those of CKConv's Table 8, and one for images."""

from __future__ import annotations

from typing import Any

from .config import CKCNNConfig


def _sequence(omega: float, width: int = 30, **fields: Any):
    return lambda: CKCNNConfig(widths=(width, width), operator_options={"omega": omega}, **fields)


PRESETS = {
    "ckcnn_small": _sequence(31.09, dropout=0.1, input_dropout=0.1),
    "ckcnn_big": _sequence(30.5, 100, dropout=0.2, input_dropout=0.2),
    "ckcnn_copy": _sequence(19.2, 10, length=120, head="every"),
    "ckcnn_adding": _sequence(14.55, 25, channels=2, length=100, num_classes=1),
    "ckcnn_speech": _sequence(30.9, channels=20, length=161, dropout=0.2),
    "ckcnn_speech_raw": _sequence(39.45, length=16000),
    "ckcnn_ptb": lambda: CKCNNConfig(
        encoder="text",
        vocabulary=50,
        num_classes=50,
        widths=(128, 100),
        head="every",
        tied=True,
        input_dropout=0.1,
        operator_options={"omega": 25.78},
    ),
    "ckcnn_image": lambda: CKCNNConfig(
        encoder="image", causal=False, head="mean", dropout=0.1, operator_options={"omega": 10.0}
    ),
}
