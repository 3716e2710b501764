"""The whole's gradient from the parts'."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .collectives import summed
from .shards import Shards


@torch.no_grad()
def sum_gradients(parameters: nn.Module | Iterable[Tensor], shards: Shards) -> None:
    r"""Replace the gradient of every parameter by its sum over the ranks, in place.

    What is differentiated is the *sum* of what the ranks call ``backward`` on. A loss over points
    is such a sum: each rank takes the terms of its points. A loss behind a read-out is computed
    alike on every rank and would count P times: divide it by ``shards.count``. With that, a rank's
    parameters have the part of the gradient that its points cause, and this sum is the whole's; the
    gradient of a rank's features is the whole's already. (``DistributedDataParallel`` over the
    same ranks takes the mean instead: then no loss is divided, and one over points is multiplied
    by P.)

    Every rank needs gradients of the same parameters. Sends the number of them, in one message for
    each dtype.
    """
    found = parameters.parameters() if isinstance(parameters, nn.Module) else parameters
    alike: dict[tuple, list[Tensor]] = {}
    for parameter in found:
        if parameter.grad is not None:
            alike.setdefault((parameter.grad.dtype, parameter.grad.device), []).append(parameter)
    for group in alike.values():
        grads = [parameter.grad for parameter in group if parameter.grad is not None]
        parts = summed(torch.cat([grad.flatten() for grad in grads]), shards)
        for parameter, part in zip(group, parts.split([grad.numel() for grad in grads])):
            parameter.grad = part.view_as(parameter).clone()
