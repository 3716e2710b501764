"""
Depth as time: what an extra layer is worth
===========================================

A transformer with residual connections can be read as a differential equation for its features,
solved by taking one term at a time: attention, then the network, then the next layer. Numerical
analysis calls this operator splitting and knows how the error falls with the number of steps. Here
it is measured.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn

from fredholm.families.continuous.splitting import (
    Evolution,
    FeedForwardTerm,
    LinearTerm,
    OperatorTerm,
    convergence,
)

torch.manual_seed(0)

# %%
# An equation with three terms: softmax attention, a small network and a linear map.

terms = [
    OperatorTerm.of("softmax", 8, 2),
    FeedForwardTerm(8, 16, activation="tanh"),
    LinearTerm(8),
]
evolution = Evolution(terms, horizon=1.0).double()
for parameter in evolution.parameters():
    nn.init.normal_(parameter, std=0.3)
u = torch.randn(1, 12, 8, dtype=torch.float64)

# %%
# Three ways to take the steps. *Lie* applies the terms one after the other, which is what a stack
# of layers does. *Strang* goes there and back in half steps. *Parallel* applies all terms to the
# same input and averages.

steps = (4, 8, 16, 32, 64)
schemes = ["lie", "strang", "parallel"]
found = {name: convergence(evolution, u, scheme=name, steps=steps) for name in schemes}
for name, result in found.items():
    print(f"{name:8s} order {result.order:.2f}, error with 64 steps {result.errors[-1]:.1e}")

# %%
# The error is measured against the equation itself, solved without splitting.

figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
for name, result in found.items():
    axis.loglog(steps, result.errors, "o-", label=f"{name}, order {result.order:.1f}")
axis.set_xticks(steps, steps)
axis.minorticks_off()
axis.set(xlabel="steps", ylabel="relative error at the end")
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %%
# Twice the steps halve the error of Lie's scheme and quarter Strang's. A trained model can be run
# with more steps, or fewer, than it was trained with; :doc:`/splitting` does so with PyTorch's own
# encoder layers.
