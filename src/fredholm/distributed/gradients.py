"""The gradient over a complete domain, from those of its shards."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from .collectives import summed
from .shards import Shards


@torch.no_grad()
def sum_gradients(parameters: nn.Module | Iterable[Tensor], shards: Shards) -> None:
    r"""Replace the gradient of every parameter by its sum over the ranks, in place.

    The *sum* of the losses on which the ranks call ``backward`` is differentiated. A loss over
    points is such a sum: each rank computes the terms of its own points. A loss behind a read-out
    is computed equally on every rank and would count P times: divide it by ``shards.count``. Then
    each rank's parameters have the part of the gradient that its points cause, and the sum is the
    gradient over the complete domain. The gradient of a rank's features is right without a sum.

    ``DistributedDataParallel`` over the same ranks takes the mean instead: then do not divide a
    loss behind a read-out, and multiply a loss over points by P.

    Every rank needs gradients of the same parameters. Sends one number per parameter, in one
    message for each dtype and device.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    groups: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            kind = parameter.grad.dtype, parameter.grad.device
            group = groups.setdefault(kind, [])
            group.append(parameter)

    # One message per group: all of its gradients one after the other, in a flat tensor.
    for group in groups.values():
        flat = [parameter.grad.flatten() for parameter in group if parameter.grad is not None]
        total = summed(torch.cat(flat), shards)
        sizes = [parameter.numel() for parameter in group]
        for parameter, part in zip(group, total.split(sizes)):
            parameter.grad = part.view_as(parameter).clone()
