"""Configuration of the Long Range Arena's classifier and its presets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...errors import OptionError
from ..checks import check_counts, check_heads, check_known, check_rates


@dataclass(frozen=True)
class LRAConfig:
    """A classifier of token sequences, or of pairs of them: only ``operator`` changes between the
    rows of a table.

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
        counts = ("vocabulary", "max_length", "num_classes", "dim", "depth", "heads", "hidden")
        check_counts((name, getattr(self, name)) for name in counts)
        check_rates(self, "dropout")
        if self.encoder != "text":
            raise OptionError(
                "the Long Range Arena's models read token numbers (encoder 'text'), got "
                f"{self.encoder!r}"
            )
        check_heads(self.dim, self.heads)
        check_known(self, pool=("mean", "cls"))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input the model is built for: the longest sequence (N,), or a pair of them
        (2, N).
        """
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
