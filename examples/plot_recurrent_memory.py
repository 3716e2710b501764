"""
What an LSTM and a GRU remember
===============================

A recurrent layer passes a state from step to step, so it is hard to say how much of step 5 is left
at step 40. As an integral operator it can be read off: the kernel at :math:`(x, y)` is the matrix
that takes the input of step :math:`y` to the output of step :math:`x`.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn

from fredholm import as_operator
from fredholm.layers import memory_profile

torch.manual_seed(0)
u = torch.randn(1, 48, 8)

# %%
# An LSTM forgets through its forget gate. A bias added to that gate opens it, which many libraries
# do before training. Here are three LSTMs that differ in that bias, and two GRUs, whose update gate
# has the same role.


def lstm(bias: float) -> nn.Module:
    """Return an LSTM with a bias on its forget gates."""
    torch.manual_seed(1)
    layer = nn.LSTM(8, 16, batch_first=True)
    layer.bias_hh_l0.data[16:32] += bias
    return layer


def gru(bias: float) -> nn.Module:
    """Return a GRU with a bias on its update gates."""
    torch.manual_seed(1)
    layer = nn.GRU(8, 16, batch_first=True)
    layer.bias_hh_l0.data[16:32] += bias
    return layer


layers = {
    "LSTM": lstm(0.0),
    "LSTM, bias 0.7": lstm(0.7),
    "LSTM, bias 1.5": lstm(1.5),
    "GRU": gru(0.0),
    "GRU, bias 1.5": gru(1.5),
}
operators = {name: as_operator(layer) for name, layer in layers.items()}

# %%
# Nothing is approximated: every operator answers as its layer does.

for name, operator in operators.items():
    difference = (operator(u) - layers[name](u)[0]).abs().max()
    print(f"{name:14s} largest difference {difference:.0e}")

# %%
# One picture per layer. Row :math:`x` is an output; the further a row reaches to the left, the
# further back the layer remembers.

figure, axes = plt.subplots(1, 5, figsize=(9, 2.3), layout="constrained", sharey=True)
for axis, (name, operator) in zip(axes, operators.items()):
    picture = operator.influence(u)[0, 0].detach().sqrt()
    axis.imshow(picture, cmap="magma")
    axis.set_title(name, fontsize=10)
    axis.set(xticks=[0, 24], xlabel="input at step y")
axes[0].set(yticks=[0, 24], ylabel="output at step x")
plt.show()

# %%
# :func:`fredholm.layers.memory_profile` averages the kernel over pairs of one distance, here for
# the last eight outputs: how much of an input is left after so many steps.

figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
for name, operator in operators.items():
    profile = memory_profile(operator, u, rows=list(range(40, 48))).detach()
    axis.plot(profile / profile[0], label=name)
axis.set(yscale="log", ylim=(1e-3, 1.5), xlabel="steps back", ylabel="share left of an input")
axis.grid(alpha=0.3)
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# A straight line is exponential forgetting, and the bias sets its rate. With your own trained layer
# in the place of these, the picture shows what it has learned to keep.
