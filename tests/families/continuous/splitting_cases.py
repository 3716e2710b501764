"""A small evolution that every scheme can split, for the tests of splitting schemes."""

from __future__ import annotations

import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    OperatorTerm,
    PositivityConstraint,
)

D, N = 4, 3
DOMAIN = Domain.line(N)


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def spread(module, std=0.4):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=std)
    return module.double()


def make(knots=2, **options):
    """Return an evolution of attention and a network with a soft constraint."""
    groups = [
        [
            OperatorTerm.of("softmax", D, 2),
            FeedForwardTerm(D, 6, activation="tanh"),
            PositivityConstraint(penalty=0.5),
        ]
        for _ in range(knots)
    ]
    return spread(Evolution(groups, **options))
