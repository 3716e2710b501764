"""The sizes of the MLP kernel's tiles, from the memory that one may take.

A *block* is the set of (head, batch) pairs whose moments are held together; the terms of a tile
that all batch entries share are made once per block. A *chunk* of a block fills one tile.
"""

from __future__ import annotations

from dataclasses import dataclass

from .first_layer import shared_terms_differ
from .terms import Tensors

KEY_TILE = 512
MOMENT_TILES = 8  # the moments of a block may take as much memory as this many tiles


@dataclass(frozen=True)
class Plan:
    """Tile sizes.

    Attributes:
        keys, queries, group: a tile holds ``group`` (head, batch) pairs × ``queries`` × hidden
            width × ``keys``.
        block: (head, batch) pairs whose moments are held together, at most ``block_heads`` heads.
        rows: queries whose moments are held together; many, because each such set reads the whole
            readout once.
        sizes: numbers in a tile, in its shared terms, its rows of scaled queries, and the moments
            held together.
    """

    keys: int
    queries: int
    group: int
    block: int
    block_heads: int
    rows: int
    sizes: tuple[int, int, int, int]

    @staticmethod
    def make(x: Tensors, memory: int) -> Plan:
        b, h, k, d = x.value.shape
        q, w = x.query_bias.shape[2:]
        widest = max([w, *(weight.shape[0] for weight in x.mid[::2])])
        elements = max(1, memory // x.value.element_size())
        keys = max(1, min(k, KEY_TILE, elements // widest))
        # nearly equal tiles: the last one is then as efficient as the first
        keys = -(-k // -(-k // keys))
        queries = max(1, min(q, elements // (widest * keys)))
        group = min(b * h, max(1, elements // (widest * keys * queries)))
        moment = x.readout.shape[-1] * d
        block = min(b * h, max(group, MOMENT_TILES * elements // (queries * moment)))
        rows = min(q, max(queries, MOMENT_TILES * elements // (block * moment)))
        heads = group if shared_terms_differ(x) else h
        e = 0 if x.key is None else x.key.shape[-1]
        tile = queries * keys
        sizes = (
            group * tile * widest,
            min(heads, h) * tile * w,
            group * queries * w * (e + 1),
            block * rows * moment,
        )
        return Plan(keys, queries, group, block, heads, rows, sizes)
