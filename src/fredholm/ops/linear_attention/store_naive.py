"""The definition of a store: row by row and group by group, the state summed anew each time."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .store import block_of
from .window_stretch import vanishing


@torch.no_grad()
def stored_naive(
    key: Float[Tensor, "b t n r"],
    value: Float[Tensor, "b g n c"],
    visible: Bool[Tensor, "b n"],
    *,
    window: int,
    sinks: int,
    store: int,
    decay: Float[Tensor, "b g n"] | None = None,
) -> Bool[Tensor, "b g n n"]:
    """Return which points each query sees in its store, see :mod:`.store`.

    Args:
        key: features ψ of all heads of a group, whose common factor does not matter.
        value: v.
        visible: points that are not hidden.
        window, sinks, store: w, the first points, and how many points the store holds.
        decay: exponents by which the state fades as each point comes, or None.

    Cost: O(N²) for each row and group.

    Example:
        >>> key, value = torch.ones(1, 1, 4, 1), torch.tensor([0.0, 9.0, 1.0, 2.0]).view(1, 1, 4, 1)
        >>> visible = torch.ones(1, 4, dtype=torch.bool)
        >>> stored_naive(key, value, visible, window=1, sinks=0, store=1)[0, 0, 3].tolist()
        [False, True, False, False]
    """
    b, groups, n = value.shape[:3]
    result = torch.zeros(b, groups, n, n, dtype=torch.bool, device=value.device)
    for row in range(b):
        places = visible[row].nonzero().flatten()[sinks:]
        for group in range(groups):
            features = key[row].unflatten(0, (groups, -1))[group]
            if decay is not None:
                # Only differences of the exponents' sums count: what all keys share cancels.
                clock = decay[row, group].cumsum(-1)
                fading = (clock - clock[-1]).exp()
            else:
                fading = torch.ones(n, dtype=key.dtype, device=key.device)
            _fill(result[row, group], features, value[row, group], fading, places, window, store)
    return result


def _fill(
    seen: Tensor,
    features: Tensor,
    value: Tensor,
    fading: Tensor,
    places: Tensor,
    window: int,
    store: int,
) -> None:
    """Write which points the queries of one row and group see in their store.

    Args:
        seen: (n, n).
        features: (heads of the group, n, r).
        value: (n, c).
        fading: what is left of each point in the state, up to a common factor, (n,).
        places: where the points behind the sinks are.
    """
    points, n = places.tolist(), value.shape[0]
    is_point = torch.zeros(n, dtype=torch.bool, device=value.device)
    is_point[places] = True
    number = is_point.cumsum(0)
    left = number - window

    chosen: list[int] = []
    # The first point of a block leaves the window as the one that is w places further on comes.
    for first in range(0, len(points) - window, block_of(window)):
        stop = first + block_of(window)
        in_state = is_point & (number <= first)
        in_state[chosen] = False
        candidates = [*chosen, *points[first:stop]]
        error = _error(features, value, in_state * fading, candidates)
        order = error.argsort(descending=True, stable=True)[:store]
        chosen = [candidates[i] for i in order.tolist()]

        in_store = torch.zeros_like(is_point)
        in_store[chosen] = True
        during = (left > first) & (left <= stop)
        seen |= during[:, None] & in_store & (number <= left[:, None])


def _error(features: Tensor, value: Tensor, mass: Tensor, candidates: list[int]) -> Tensor:
    """Return the mean over heads of the distance from the state's answer to a candidate's value.

    ``mass`` is each point's in the state, (n,), zero for the others.
    """
    asked = features[:, candidates]
    weight = (asked @ features.mT) * mass
    total = weight.sum(-1, keepdim=True)
    least = vanishing(total.dtype)
    answer = torch.where(total > least, weight @ value / total.clamp_min(least), 0.0)
    return (answer - value[candidates]).norm(dim=-1).mean(0)
