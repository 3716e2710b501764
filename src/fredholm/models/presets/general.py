"""Named models that belong to none of the library's papers: the backbone of comparisons, and the
classifiers of the Long Range Arena.
"""

from __future__ import annotations

from ..bodies import BackboneConfig, ResidualConfig
from ..config import ModelConfig
from ..encoders import ImageConfig, TextConfig
from ..heads import LinearConfig, MLPConfig
from ..registry import register_model

# --- the backbone of comparisons ------------------------------------------------------------------


@register_model
def backbone_nano() -> ModelConfig:
    """Two blocks of width 32."""
    return ModelConfig(
        ImageConfig(frequencies=16, sigma=3.0),
        BackboneConfig(),
        LinearConfig(),
    )


# --- the Long Range Arena -------------------------------------------------------------------------
# Tay et al. 2021; Chen et al. 2021 (Skyformer), whose two-layer setting is the default; LUNA §5.1.
# Only the operator changes between the rows of a table.


def _arena(
    dim: int,
    depth: int,
    heads: int,
    hidden: int,
    pool: str = "mean",
    dropout: float = 0.1,
) -> ModelConfig:
    """Return a classifier with ``hidden`` units in its feed-forward networks and in its head."""
    return ModelConfig(
        TextConfig(max_length=1024, positions="learned"),
        ResidualConfig(
            dim=dim,
            depth=depth,
            heads=heads,
            operator="softmax",
            mlp_ratio=hidden / dim,
            dropout=dropout,
            scaled=False,
        ),
        MLPConfig(outputs=2, pool=pool, hidden=hidden),
    )


@register_model
def lra_skyformer() -> ModelConfig:
    """Skyformer's setting: two layers of width 64 for every task."""
    return _arena(64, 2, 2, 128)


@register_model
def lra_official_text() -> ModelConfig:
    """The Arena's model of texts as bytes."""
    return _arena(256, 4, 4, 1024, "cls")


@register_model
def lra_official_listops() -> ModelConfig:
    """The Arena's model of nested lists."""
    return _arena(512, 6, 8, 2048, "cls")


@register_model
def lra_official_retrieval() -> ModelConfig:
    """The Arena's model of pairs of documents."""
    return _arena(128, 4, 4, 512, "cls")


@register_model
def lra_official_image() -> ModelConfig:
    """The Arena's model of pictures as sequences of grey levels."""
    return _arena(32, 1, 1, 64, "cls", 0.3)


@register_model
def lra_official_pathfinder() -> ModelConfig:
    """The Arena's model of paths between two dots."""
    return _arena(128, 1, 4, 128, dropout=0.2)
