"""Linear attention without an order, whose features are made for one piece of points at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...quadrature import Quadrature
from .chunked import Moment, check_order

KeyPiece = tuple[Tensor, Tensor, Tensor | None]


def attend_in_pieces(
    keys: Callable[[slice, Tensor | None], KeyPiece],
    queries: Callable[[slice], Tensor],
    sizes: tuple[int, int],
    quadrature: Quadrature,
    *,
    floor: float | None,
    piece: int,
) -> Tensor:
    """Return :func:`linear_attention` without an order, where inference never holds all features.

    Args:
        keys: of a span and the factor's exponent so far (:attr:`Moment.shift`): features, values,
            and the exponent.
        queries: of a span, features.
        sizes: numbers of queries and keys.
        quadrature, floor: see :func:`linear_attention`.
        piece: points in a piece.

    Cost: O(N·r·c) time; memory O(piece·(r + c) + N·c).

    Raises:
        StrategyError: see :func:`linear_attention`.

    Example:
        >>> u = torch.ones(1, 1, 3, 2)
        >>> out = attend_in_pieces(
        ...     lambda part, shift: (u[:, :, part], u[:, :, part], None),
        ...     lambda part: u[:, :, part],
        ...     (3, 3), Domain.line(3).quadrature(), floor=1e-6, piece=2,
        ... )
        >>> out[0, 0, 0].tolist()
        [1.0, 1.0]
    """
    check_order(quadrature)
    query_count, key_count = sizes

    # First all keys: in memory are one piece and the moment (B, H, r, c). Then all queries.
    moment = Moment(quadrature, floor)
    for part in _pieces(key_count, piece):
        moment.add(part, *keys(part, moment.shift))
    responses = [moment.respond(part, queries(part)) for part in _pieces(query_count, piece)]
    return torch.cat(responses, 2)


def _pieces(count: int, piece: int) -> list[slice]:
    return [slice(start, min(start + piece, count)) for start in range(0, count, piece)]
