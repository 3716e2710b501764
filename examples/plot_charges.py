"""
Charges that attract: learning a law of force
=============================================

Charges push and pull each other, and the force on each is a sum over all the others. This is an
integral operator whose kernel is the law of force. Here ITNet's operator sees positions, charges
and forces, is never told the law, and learns it; then the law is read off its kernel.
"""

import torch
from matplotlib import pyplot as plt

from fredholm import Domain, IntegralOperator
from fredholm.kernels import MLPKernel

torch.manual_seed(0)

# %%
# Sixteen charges in the unit square, plus or minus, with a force that falls off with the distance
# r as r / (r² + 0.15²)^(3/2), which is Coulomb's law with its peak cut off:

POINTS = 16


def law(displacement: torch.Tensor) -> torch.Tensor:
    """Return the force between two unit charges at a displacement (..., 2)."""
    square = displacement.square().sum(-1, keepdim=True)
    return displacement / (square + 0.15**2) ** 1.5


def systems(count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return positions (B, N, 2), charges (B, N, 1) and the field at every charge (B, N, 2)."""
    positions = torch.rand(count, POINTS, 2)
    charges = torch.randint(0, 2, (count, POINTS, 1)) * 2.0 - 1
    pairs = positions[:, :, None] - positions[:, None]
    return positions, charges, (law(pairs) * charges[:, None]).sum(2)


# %%
# The kernel is a network that may look at the displacement x - y and the distance, and at nothing
# else. Its value is a matrix, whose first column takes a charge to a field in the plane. The
# measure ``counting`` asks for sums; the default takes means.

kernel = MLPKernel(
    1, 2, position_dim=2, width=64, groups=("relative", "distance"), frequencies=16, sigma=0.5
)
operator = IntegralOperator(2, heads=1, kernel=kernel, projection=False, residual=False)


def predict(positions: torch.Tensor, charges: torch.Tensor) -> torch.Tensor:
    """Return the operator's field at every charge."""
    u = torch.cat([charges, torch.zeros_like(charges)], dim=-1)
    return operator(u, Domain.points(positions, measure="counting"))


# %%
# A short training on random systems:

optimizer = torch.optim.Adam(operator.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=600)
for _ in range(600):
    positions, charges, field = systems(16)
    loss = (predict(positions, charges) - field).square().mean() / field.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

positions, charges, field = systems(200)
with torch.no_grad():
    error = (predict(positions, charges) - field).norm() / field.norm()
print(f"relative error on new systems: {error:.3f}")

# %%
# What has it learned? ``kernel_matrix`` holds the matrix of every pair, here of one charge and of
# points to the right of it: the force against the distance.

distance = torch.linspace(0.01, 0.7, 80)
points = torch.stack([0.15 + distance, torch.full_like(distance, 0.5)], dim=-1)
charge = Domain.points(torch.tensor([[0.15, 0.5]]), measure="counting")
places = {"query": torch.zeros(1, 80, 2), "query_domain": Domain.points(points)}
with torch.no_grad():
    learned = operator.kernel_matrix(torch.zeros(1, 1, 2), charge, **places)[0, 0, :, 0, :, 0]

# %%
# And the field of three charges, as the operator gives it at places where there is no charge:

three = torch.tensor([[0.25, 0.3], [0.75, 0.35], [0.5, 0.75]])
signs = torch.tensor([[1.0], [-1.0], [1.0]])
grid = Domain.grid(17, 17)
u = torch.cat([signs, torch.zeros_like(signs)], dim=-1)[None]
sources = Domain.points(three, measure="counting")
with torch.no_grad():
    arrows = operator(u, sources, query=torch.zeros(1, grid.size, 2), query_domain=grid)[0]
arrows = torch.nn.functional.normalize(arrows, dim=-1)

figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
left.plot(distance, law(points - charge.positions)[:, 0], color="black", label="the law")
left.plot(distance, learned[:, 0], "--", linewidth=2.5, label="the learned kernel")
left.plot(distance, learned[:, 1], ":", label="sideways")
left.set(xlabel="distance", ylabel="force on a unit charge")
left.legend()
right.quiver(*grid.positions.T, *arrows.T, color="gray", scale=24, width=0.004)
for place, sign in zip(three, signs):
    right.scatter(*place, s=220, color="tab:red" if sign > 0 else "tab:blue", zorder=2)
    right.annotate(
        "+" if sign > 0 else "-", place, color="white", ha="center", va="center", weight="bold"
    )
right.set(title="field of three charges", aspect="equal", xticks=[], yticks=[])
plt.show()

# %%
# The kernel was trained on sixteen charges and answers for three, or for a thousand: the law does
# not depend on how many there are.
