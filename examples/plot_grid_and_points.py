"""
One set of weights on a grid, on scattered points, on a finer grid
==================================================================

A convolution needs a grid, and its taps belong to one resolution. An integral does not: its kernel
is a function of positions, and a sum over whatever points there are approximates it. So the same
weights answer on a coarse grid, on a finer one, and on points without any grid.
"""

import torch
from matplotlib import pyplot as plt

from fredholm import Domain, ITNetOperator

torch.manual_seed(0)

# %%
# A smooth field on the unit square, known everywhere, with sixteen features at each place:

lift = torch.randn(3, 16)


def field(positions: torch.Tensor) -> torch.Tensor:
    """Return the features of a field at positions (N, 2)."""
    x, y = positions.unbind(-1)
    waves = [torch.sin(4 * x + 2 * y), torch.cos(5 * y), torch.exp(-8 * (x - y).square())]
    return (torch.stack(waves, -1) @ lift)[None]


# %%
# One operator, ITNet's, whose kernel is a small network of both positions and both features. It is
# untrained: what matters here is that its weights stay the same.

operator = ITNetOperator(16, heads=2, position_dim=2, width=16).eval()

# %%
# Three domains: 12 × 12 points of a grid, 700 scattered points, and 36 × 36 points of a grid.

domains = {
    "grid, 12 × 12": Domain.grid(12, 12),
    "700 scattered points": Domain.points(torch.rand(700, 2)),
    "grid, 36 × 36": Domain.grid(36, 36),
}
outputs = {}
with torch.no_grad():
    for name, domain in domains.items():
        outputs[name] = operator(field(domain.positions), domain)[0]
        print(f"{name:21s} {domain.size:5d} points, by {operator.plan(domain).path}")

# %%
# The library chose another algorithm for scattered points; the answer is the same function.

figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
channel = 2
low, high = outputs["grid, 36 × 36"][:, channel].aminmax()
for axis, (name, domain) in zip(axes, domains.items()):
    size = 28000 / domain.size
    marker = "o" if "scattered" in name else "s"
    x, y = domain.positions.T
    colours = outputs[name][:, channel]
    axis.scatter(x, y, c=colours, s=size, marker=marker, linewidths=0, vmin=low, vmax=high)
    axis.set(title=name, aspect="equal", xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
plt.show()

# %%
# How close are they? Integrals over finer grids approach one limit, here stood for by 48 × 48
# points, and so do the outputs, asked for at the same 64 places:

places = Domain.grid(8, 8)
query = field(places.positions)


def answers(domain: Domain) -> torch.Tensor:
    """Return the operator's outputs at the 64 places, integrated over a domain."""
    u = field(domain.positions)
    with torch.no_grad():
        return operator(u, domain, query=query, query_domain=places)


limit = answers(Domain.grid(48, 48))
sides = [4, 6, 9, 12, 18, 24]
errors = [(answers(Domain.grid(n, n)) - limit).norm() / limit.norm() for n in sides]

figure, axis = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
axis.loglog(sides, errors, "o-")
axis.set_xticks(sides, [f"{n} × {n}" for n in sides])
axis.minorticks_off()
axis.set(xlabel="points of the grid", ylabel="relative difference to the limit")
axis.grid(alpha=0.3)
plt.show()

# %%
# A model trained at one resolution can therefore be used at another, and on data that was never on
# a grid. Whether it is *accurate* there depends on the training, see :doc:`/choosing`.
