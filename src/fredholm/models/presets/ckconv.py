"""The CKCNN's named models: those of CKConv's Table 8, and one for images."""

from __future__ import annotations

from typing import Any

from ..bodies.ckcnn import CKCNNConfig
from ..config import ModelConfig
from ..encoders import PixelConfig, SampleConfig, TokenConfig
from ..heads import LinearConfig, TiedConfig
from ..registry import register_model


def _sequence(
    omega: float,
    width: int = 30,
    *,
    channels: int = 1,
    length: int = 784,
    outputs: int = 10,
    pool: str = "last",
    **body: Any,
) -> ModelConfig:
    """Return a CKCNN over samples; ``omega`` is the frequency of its kernels' sines."""
    return ModelConfig(
        SampleConfig(channels=channels, length=length),
        CKCNNConfig(
            widths=(width, width),
            operator_options={"omega": omega},
            **body,
        ),
        LinearConfig(outputs=outputs, pool=pool, initial="kaiming"),
    )


@register_model
def ckcnn_small() -> ModelConfig:
    """98 thousand parameters, for sequences of 784 pixels."""
    return _sequence(31.09, dropout=0.1, input_dropout=0.1)


@register_model
def ckcnn_big() -> ModelConfig:
    """A million parameters."""
    return _sequence(30.5, 100, dropout=0.2, input_dropout=0.2)


@register_model
def ckcnn_copy() -> ModelConfig:
    """For the copy-memory problem: an answer at every point."""
    return _sequence(19.2, 10, length=120, pool="every")


@register_model
def ckcnn_adding() -> ModelConfig:
    """For the adding problem: one number."""
    return _sequence(14.55, 25, channels=2, length=100, outputs=1)


@register_model
def ckcnn_speech() -> ModelConfig:
    """For speech commands as 20 coefficients at 161 points."""
    return _sequence(30.9, channels=20, length=161, dropout=0.2)


@register_model
def ckcnn_speech_raw() -> ModelConfig:
    """For speech commands as 16,000 samples."""
    return _sequence(39.45, length=16000)


@register_model
def ckcnn_ptb() -> ModelConfig:
    """For the next character of a text; its head is its embedding."""
    return ModelConfig(
        TokenConfig(),
        CKCNNConfig(
            widths=(128, 100),
            input_dropout=0.1,
            operator_options={"omega": 25.78},
        ),
        TiedConfig(outputs=50, pool="every"),
    )


@register_model
def ckcnn_image() -> ModelConfig:
    """For images, with kernels of two dimensions; not in the paper."""
    return ModelConfig(
        PixelConfig(),
        CKCNNConfig(dropout=0.1, operator_options={"omega": 10.0}),
        LinearConfig(pool="mean", initial="kaiming"),
    )
