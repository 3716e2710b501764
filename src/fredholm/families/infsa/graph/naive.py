"""The edge product in its plainest form: what the tiled op must equal."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import OptionError, suggest
from ....ops.activations import ACTIVATIONS as POINTWISE
from ....ops.activations import Activation

ACTIVATIONS: dict[str, Activation] = {
    "relu": POINTWISE["relu"],
    "gelu": POINTWISE["gelu"],
    "abs": Activation(torch.abs, torch.abs_, lambda g, s: g.mul_(s.sign())),
}
STATISTICS = ("squares", "sums", "none")


def activated(scores: Tensor, activation: str) -> Tensor:
    """φ(scores) for an activation of :data:`ACTIVATIONS`.

    Raises:
        OptionError: an unknown activation.

    Example:
        >>> activated(torch.tensor([-1.0, 2.0]), "abs").tolist()
        [1.0, 2.0]
    """
    return find_activation(activation).function(scores)


def find_activation(name: str) -> Activation:
    """The :class:`Activation` of that name, or an OptionError."""
    if name not in ACTIVATIONS:
        raise OptionError(f"unknown activation {name!r}{suggest(name, ACTIVATIONS)}")
    return ACTIVATIONS[name]


def edge_product_naive(
    query: Float[Tensor, "b h q e"],
    key: Float[Tensor, "b h k e"],
    value: Float[Tensor, "b h k d"],
    mass: Float[Tensor, "#b #k"],
    density: Float[Tensor, "#b #h q k"] | None = None,
    *,
    causal: bool = False,
    activation: str = "relu",
    statistic: str = "squares",
) -> tuple[Float[Tensor, "b h q d"], Float[Tensor, "b h q"]]:
    """:func:`edge_product` with every pair held at once: the definition. O(Nq·Nk) memory.

    Example:
        >>> one = torch.ones(1, 1, 2, 1)
        >>> out, row = edge_product_naive(one, one, one, torch.ones(1, 2), causal=True)
        >>> out.flatten().tolist(), row.flatten().tolist()
        ([1.0, 2.0], [1.0, 2.0])
    """
    pairs = activated(query @ key.mT, activation)
    if density is not None:
        pairs = pairs * density
    if causal:
        pairs = pairs.tril()
    weights = mass[:, None, None, :]
    rows = {
        "squares": lambda: (pairs.square() * weights).sum(-1),
        "sums": lambda: (pairs.abs() * weights).sum(-1),
        "none": lambda: pairs.new_zeros(pairs.shape[:-1]),
    }
    return pairs @ value, rows[statistic]()
