"""
Attention, convolution and recurrence: three pictures of one equation
=====================================================================

Convolutions, attention and recurrent layers are usually taught as three different things. Each of
them answers a position :math:`x` with a weighted sum over the other positions :math:`y`:

.. math:: (T u)(x) = W u(x) + \\int K\\big(x, y, u(x), u(y)\\big)\\, u(y)\\, d\\mu(y)

They differ in the weights :math:`K`, and these can be drawn. :func:`fredholm.as_operator` takes a
PyTorch layer and returns the same layer in this form, with its own weights.
"""

import torch
from matplotlib import pyplot as plt
from torch import nn

from fredholm import as_operator
from fredholm.explain import explore

# sphinx_gallery_capture_repr = ("_repr_html_",)

torch.manual_seed(0)

# %%
# A signal that repeats itself every eight steps, in sixteen channels:

steps = torch.arange(32)
angles = 2 * torch.pi * steps[:, None] / 8 * torch.tensor([1, 2])
waves = torch.cat([angles.cos(), angles.sin()], dim=1)
u = (waves @ torch.randn(4, 16))[None]
print(u.shape)

# %%
# Three ordinary PyTorch layers. Trained layers show more than fresh ones, so each gets a little of
# what training would give it: a smooth filter, queries and keys that recognise each other, and
# forget gates that stay open.

convolution = nn.Conv1d(16, 16, kernel_size=9, padding=4)
convolution.weight.data *= torch.hann_window(11, periodic=False)[1:-1]

attention = nn.MultiheadAttention(16, num_heads=1, batch_first=True)
queries, keys, _ = attention.in_proj_weight.data.chunk(3)
keys.copy_(queries)

lstm = nn.LSTM(16, 16, batch_first=True)
lstm.bias_hh_l0.data[16:32] += 2.0

# %%
# As operators they give the same outputs as before:

layers = {"Convolution": convolution, "Attention": attention, "LSTM": lstm}
operators = {name: as_operator(layer) for name, layer in layers.items()}
expected = [convolution(u.mT).mT, attention(u, u, u)[0], lstm(u)[0]]

for (name, operator), output in zip(operators.items(), expected):
    print(name, torch.allclose(operator(u), output, atol=1e-5))

# %%
# ``influence`` is the size of the kernel for every pair: how strongly the output at :math:`x`
# depends on the input at :math:`y`.

figure, axes = plt.subplots(1, 3, figsize=(9, 3.3), layout="constrained")
for axis, (name, operator) in zip(axes, operators.items()):
    picture = operator.influence(u)[0, 0].detach().sqrt()
    axis.imshow(picture, cmap="magma")
    axis.set(title=name, xlabel="takes from step y", xticks=[0, 8, 16, 24], yticks=[0, 8, 16, 24])
axes[0].set_ylabel("output at step x")
plt.show()

# %%
# The same kernels to try out: point at a step, or move with Tab and the arrow keys, and see what
# the output there takes from every step. The first slider changes the layer. Every report of
# ``fredholm explain`` has this figure for your own data.

explore(operators, u)

# %%
# The **convolution** is a band: its weight depends on the distance :math:`x - y` alone.
# **Attention** follows the content: steps that look alike, eight apart, read each other, however
# far away they are. The **LSTM** is a triangle, because it knows only the past, and a row fades to
# the left as fast as the layer forgets.
#
# From here on it does not matter which layer an operator came from. The same tools draw it, compare
# it, run it point by point and time it.
