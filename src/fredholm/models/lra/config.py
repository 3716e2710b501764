"""Configuration of the Long Range Arena's classifier and its presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError


@dataclass(frozen=True)
class LRAConfig:
    """A classifier of token sequences, or of pairs of them: only ``operator`` changes between the rows of a table.

    Attributes:
        encoder: ``text``, the only one: bytes, symbols and grey levels are all token numbers.
        vocabulary: how many token numbers there are, padding included.
        max_length: the longest sequence; every place has a learned vector.
        pair: inputs are pairs (B, 2, N), read by one encoder.
        num_classes: of the output.
        dim, depth, heads: width d, layers L, heads H.
        hidden: of the feed-forward networks, and of the classifier.
        operator: a registered operator's name.
        operator_options: its further options.
        dropout: after the embedding, after operators and inside feed-forward networks.
        pool: ``mean`` over the real tokens, or ``cls``.
    """

    encoder: str = "text"
    vocabulary: int = 257
    max_length: int = 1024
    pair: bool = False
    num_classes: int = 2
    dim: int = 64
    depth: int = 2
    heads: int = 2
    hidden: int = 128
    operator: str = "softmax"
    operator_options: dict[str, Any] = field(default_factory=dict)
    dropout: float = 0.1
    pool: str = "mean"

    def __post_init__(self) -> None:
        for name in ("vocabulary", "max_length", "num_classes", "dim", "depth", "heads", "hidden"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name} must be a positive integer, got {value!r}")
        if not isinstance(self.dropout, int | float) or not 0 <= self.dropout < 1:
            raise OptionError(f"dropout is a rate in [0, 1), got {self.dropout!r}")
        if self.encoder != "text":
            raise OptionError(
                f"the Long Range Arena's models read token numbers (encoder 'text'), got {self.encoder!r}"
            )
        if self.dim % self.heads:
            raise OptionError(f"heads must divide dim: {self.heads} does not divide {self.dim}")
        if self.pool not in ("mean", "cls"):
            raise OptionError(f"pool is 'mean' or 'cls', got {self.pool!r}")

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input the model is built for: the longest sequence (N,), or a pair of them (2, N)."""
        return (2, self.max_length) if self.pair else (self.max_length,)


def _official(**sizes: Any):
    return lambda: LRAConfig(**sizes)


PRESETS = {
    "lra_skyformer": LRAConfig,
    "lra_official_text": _official(dim=256, depth=4, heads=4, hidden=1024, pool="cls"),
    "lra_official_listops": _official(dim=512, depth=6, heads=8, hidden=2048, pool="cls"),
    "lra_official_retrieval": _official(dim=128, depth=4, heads=4, hidden=512, pool="cls"),
    "lra_official_image": _official(dim=32, depth=1, heads=1, hidden=64, pool="cls", dropout=0.3),
    "lra_official_pathfinder": _official(dim=128, depth=1, heads=4, hidden=128, dropout=0.2),
}
