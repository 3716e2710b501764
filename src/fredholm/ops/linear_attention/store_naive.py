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
    batch, groups, n, _ = value.shape
    seen = torch.zeros(
        batch,
        groups,
        n,
        n,
        dtype=torch.bool,
        device=value.device,
    )
    for row in range(batch):
        places = visible[row].nonzero().flatten()[sinks:]
        features_by_group = key[row].unflatten(0, (groups, -1))
        for group in range(groups):
            features = features_by_group[group]
            fading = torch.ones(n, dtype=key.dtype, device=key.device)
            if decay is not None:
                # Only differences of the exponents' sums count: what all keys share cancels.
                clock = decay[row, group].cumsum(-1)
                fading = (clock - clock[-1]).exp()
            _fill(
                seen[row, group],
                features,
                value[row, group],
                fading,
                places,
                window,
                store,
            )
    return seen


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
    points = places.tolist()
    is_point = torch.zeros(
        value.shape[0],
        dtype=torch.bool,
        device=value.device,
    )
    is_point[places] = True

    # At each place: points up to it, and how many of them have left the window.
    number = is_point.cumsum(0)
    left = number - window

    chosen: list[int] = []
    block = block_of(window)
    # The first point of a block leaves the window as the one that is w places further on comes.
    for first in range(0, len(points) - window, block):
        stop = first + block
        in_state = is_point & (number <= first)
        in_state[chosen] = False

        candidates = [*chosen, *points[first:stop]]
        error = _error(features, value, in_state * fading, candidates)
        order = error.argsort(descending=True, stable=True)[:store]
        chosen = [candidates[i] for i in order.tolist()]

        # Queries of this block see the chosen points that have left the window.
        in_store = torch.zeros_like(is_point)
        in_store[chosen] = True
        during = (left > first) & (left <= stop)
        has_left = number <= left[:, None]
        seen |= during[:, None] & in_store & has_left


def _error(
    features: Tensor,
    value: Tensor,
    mass: Tensor,
    candidates: list[int],
) -> Tensor:
    """Return the mean over heads of the distance from the state's answer to a candidate's value.

    ``mass`` is each point's in the state, (n,), zero for the others.
    """
    weight = (features[:, candidates] @ features.mT) * mass
    total = weight.sum(-1, keepdim=True)
    least = vanishing(total.dtype)
    mean = weight @ value / total.clamp_min(least)

    # A state that holds nothing answers zero.
    answer = torch.where(total > least, mean, 0.0)
    distance = (answer - value[candidates]).norm(dim=-1)
    return distance.mean(0)
