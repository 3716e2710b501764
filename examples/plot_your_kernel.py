"""
A kernel of your own in ten lines
=================================

Suppose that nearby points should count, that points of similar content should count, and that how
near and how similar is to be learned: a bilateral filter. Write down the weight of a pair and what
is carried over; everything else an operator does follows from that.
"""

import torch
from matplotlib import pyplot as plt

from fredholm import Domain, IntegralOperator
from fredholm.kernels import WeightedKernel

torch.manual_seed(0)

# %%
# ``weights`` gets a ``problem`` with the positions ``x``, ``y`` and the features ``ux``, ``uy`` of
# queries and keys, and returns one weight per pair.


class BilateralKernel(WeightedKernel):
    """exp(-|x - y|² / 2 reach²) · exp(-|u(x) - u(y)|² / 2 contrast²), times the identity."""

    def __init__(self, heads: int, dim: int, reach: float, contrast: float):
        super().__init__(heads, dim)
        self.scales = torch.nn.Parameter(torch.tensor([reach, contrast]))

    def weights(self, problem):
        near = torch.cdist(problem.x, problem.y)[:, None] / self.scales[0]
        alike = torch.cdist(problem.ux, problem.uy) / self.scales[1]
        return torch.exp(-(near.square() + alike.square()) / 2)

    def value_map(self):
        return torch.eye(self.d_in).expand(self.heads, -1, -1)


# %%
# Bound to an operator it works on any domain. Here are steps with noise on them, on a line of 200
# points. A constant channel of ones, filtered beside the signal, counts how much weight each point
# collected, and dividing by it makes a mean.

line = Domain.line(200)
steps = torch.where(line.positions[:, 0] < 0.35, 0.2, 1.0) - 0.5 * (line.positions[:, 0] > 0.7)
noisy = steps + 0.12 * torch.randn(200)
u = torch.stack([noisy, torch.ones(200)], dim=-1)[None]

kernel = BilateralKernel(1, 2, reach=0.06, contrast=0.3)
operator = IntegralOperator(2, heads=1, kernel=kernel, projection=False, residual=False)


def filtered() -> torch.Tensor:
    """Return the filtered signal."""
    total, mass = operator(u, line)[0].unbind(-1)
    return total / mass


# %%
# The kernel has gradients like any layer, so its two numbers can be trained:

before = filtered().detach()
optimizer = torch.optim.Adam(kernel.parameters(), lr=0.01)
for _ in range(100):
    loss = (filtered() - steps).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
after = filtered().detach()
print(f"noise {(noisy - steps).std():.3f}")
print(f"error before training {(before - steps).std():.3f}, after {(after - steps).std():.3f}")
print("reach {:.3f}, contrast {:.3f}".format(*kernel.scales.tolist()))

# %%
# The kernel does not look across an edge, so edges stay sharp where a blur would round them off.

figure, (left, right) = plt.subplots(
    1, 2, figsize=(9, 3.2), width_ratios=[1.9, 1], layout="constrained"
)
left.plot(noisy, ".", color="silver", label="noisy")
left.plot(after, label="filtered")
left.plot(steps, "--", color="black", linewidth=1, label="truth")
left.set(xlabel="point", ylim=(-0.2, 1.4))
left.legend(ncols=3)
right.imshow(operator.influence(u, line)[0, 0].detach(), cmap="magma")
right.set(title="kernel", xlabel="point y", ylabel="point x", xticks=[0, 100], yticks=[0, 100])
plt.show()

# %%
# The definition over all pairs, evaluation in blocks with little memory, masks, padding, causal
# order and steps one point at a time come with the base class. :doc:`/extending` registers such an
# operator by name, so that recipes, comparisons and reports can use it.
