"""Models of forces between particles, from positions (S, N, 2) and charges (S, N, 1).

The forces have shape (S, N, 2).

All of them have residual blocks of an interaction and a network per particle. They differ in how
particles interact and in how positions come in:

- ``itnet``, ``softmax``, ``infsa``: the library's operators; positions are Fourier features of each
  particle, and ITNet's kernel reads those of displacements as well. ITNet integrates by the
  counting measure: forces are sums, not means.
- ``itnet, relative``: ITNet without absolute positions, in features and kernel, and with a second
  hidden layer in its kernel. It reads displacements alone, like the models below.
- ``softmax, relative``: attention whose keys and values have a network of the displacement added.
- ``interaction network``: a sum over messages, each a network of both particles and their
  displacement.
- ``egnn``: a network of both particles and their distance, whose sums of displacements turn with
  the system.

References: Battaglia et al. 2016 (interaction networks); Satorras et al. 2021 (EGNN); Shaw et al.
2018 (relative positions in keys and values).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from fredholm import Domain
from fredholm.kernels import FourierFeatures
from fredholm.operators import create_operator

from ..kit.contest import parameters

HEADS, FREQUENCIES, BLOCKS = 4, 8, 2
KERNEL_WIDTH = 12
"""Hidden units of ITNet's kernel, whose matrices are 7 × 7 with 4 heads at width 28."""
RELATIVE_ITNET = "itnet, relative"
RELATIVE_KERNEL = {
    "width": 14,
    "epsilon": 1.0,
    "groups": ("relative", "distance", "query", "key", "product"),
}
"""Options of the kernel that reads displacements and both ends, but no absolute positions."""
NAMES = ("itnet", "softmax", "softmax, relative", "interaction network", "egnn", "infsa")
ALL_NAMES = ("itnet", RELATIVE_ITNET, *NAMES[1:])
"""Models of the later contests."""
ABSOLUTE = ("itnet", "softmax", "infsa")
"""Models that receive absolute positions."""
OPERATORS = (*ABSOLUTE, RELATIVE_ITNET)
LAYERS = {RELATIVE_ITNET: 2, "softmax, relative": 1, "interaction network": 2, "egnn": 2}
"""Default number of hidden layers in a model's network of a pair."""


@dataclass(frozen=True)
class Design:
    """What a model is built from.

    Attributes:
        name: of the model.
        sigma: bandwidth of its Fourier features.
        dim: width.
        layers: hidden layers of the network of a pair; None for the model's own number in
            :data:`LAYERS`.
        blocks: residual blocks.
    """

    name: str
    sigma: float
    dim: int
    layers: int | None = None
    blocks: int = BLOCKS

    @property
    def pair_layers(self) -> int:
        """Hidden layers of the network of a pair."""
        return LAYERS[self.name] if self.layers is None else self.layers


def network(d_in: int, hidden: int, d_out: int, layers: int = 1) -> nn.Sequential:
    """Return a network with ``layers`` hidden layers."""
    parts = [nn.Linear(d_in, hidden), nn.GELU()]
    for _ in range(layers - 1):
        parts += [nn.Linear(hidden, hidden), nn.GELU()]
    return nn.Sequential(*parts, nn.Linear(hidden, d_out))


def message_network(d_in: int, hidden: int, layers: int) -> nn.Sequential:
    """Return the network of a message: ``layers`` hidden layers with SiLU, and no output layer."""
    sizes = [d_in, *[hidden] * layers]
    parts: list[nn.Module] = []
    for size, following in pairwise(sizes):
        parts += [nn.Linear(size, following), nn.SiLU()]
    return nn.Sequential(*parts)


class Pairs(nn.Module):
    """Features of every pair's displacement: Fourier features and the distance, (S, N, N, f)."""

    def __init__(self, sigma: float):
        super().__init__()
        self.fourier = FourierFeatures(2, FREQUENCIES, sigma)
        self.size = 2 * FREQUENCIES + 3

    def forward(self, positions: Tensor) -> Tensor:
        displacement = positions[:, :, None] - positions[:, None]
        distance = distance_of(displacement)
        return torch.cat([self.fourier(displacement), displacement, distance], -1)


def distance_of(displacement: Tensor) -> Tensor:
    """Return distances (..., 1).

    That of a particle to itself is a little above zero, where the square root has a gradient.
    """
    return (displacement.square().sum(-1, keepdim=True) + 1e-12).sqrt()


class OperatorBlock(nn.Module):
    """One of the library's operators on the particles as a domain."""

    def __init__(self, design: Design):
        super().__init__()
        operator = design.name.partition(",")[0]
        options = {}
        self.measure = "uniform"
        if operator == "itnet":
            self.measure = "counting"
            options = {
                "position_dim": 2,
                "width": KERNEL_WIDTH,
                "frequencies": FREQUENCIES,
                "sigma": design.sigma,
            }
        if design.name == RELATIVE_ITNET:
            # These replace the width above. The depth counts the output layer too.
            options |= RELATIVE_KERNEL | {"depth": design.pair_layers + 1}
        self.operator = create_operator(operator, design.dim, HEADS, **options)

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        return self.operator(h, Domain.points(positions, measure=self.measure))


class RelativeAttention(nn.Module):
    """Attention with a network of the displacement in keys and values."""

    def __init__(self, design: Design):
        super().__init__()
        dim = design.dim
        self.pairs = Pairs(design.sigma)
        self.relative = network(self.pairs.size, dim, 2 * dim, design.pair_layers)
        self.projection = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        systems, points, dim = h.shape
        query, key, value = self.projection(h).chunk(3, -1)
        of_key, of_value = self.relative(self.pairs(positions)).chunk(2, -1)
        keys = (key[:, None] + of_key).view(systems, points, points, HEADS, -1)
        values = (value[:, None] + of_value).view(systems, points, points, HEADS, -1)

        heads = query.view(systems, points, HEADS, -1)
        scores = torch.einsum("sqhd,sqkhd->sqhk", heads, keys) * heads.shape[-1] ** -0.5
        mixed = torch.einsum("sqhk,sqkhd->sqhd", scores.softmax(-1), values)
        return self.out(mixed.reshape(systems, points, dim))


class Messages(nn.Module):
    """A sum of messages from all other particles."""

    def __init__(self, design: Design):
        super().__init__()
        self.pairs = Pairs(design.sigma)
        hidden = design.dim
        self.message = message_network(2 * design.dim + self.pairs.size, hidden, design.pair_layers)
        self.out = nn.Linear(hidden, design.dim)

    def forward(self, h: Tensor, positions: Tensor) -> Tensor:
        messages = self.message(torch.cat([*ends(h), self.pairs(positions)], -1))
        return self.out((messages * others(h)).sum(2))


def ends(h: Tensor) -> tuple[Tensor, Tensor]:
    """Return the features of both ends of every pair, (S, N, N, d) each."""
    points = h.shape[1]
    return h[:, :, None].expand(-1, -1, points, -1), h[:, None].expand(-1, points, -1, -1)


def others(h: Tensor) -> Tensor:
    """Return one for every pair of two particles and zero for a particle with itself, (N, N, 1)."""
    return (1 - torch.eye(h.shape[1], dtype=h.dtype, device=h.device))[..., None]


INTERACTIONS: dict[str, Callable[[Design], nn.Module]] = {
    "softmax, relative": RelativeAttention,
    "interaction network": Messages,
    **dict.fromkeys(OPERATORS, OperatorBlock),
}


class ForceModel(nn.Module):
    """An embedding, residual blocks of an interaction and a network per particle, and a readout."""

    def __init__(self, design: Design):
        super().__init__()
        dim = design.dim
        # Models whose interactions read displacements don't depend on absolute positions.
        self.fourier = None
        d_in = 1
        if design.name in ABSOLUTE:
            self.fourier = FourierFeatures(2, FREQUENCIES, design.sigma)
            d_in += 2 * FREQUENCIES
        self.embed = nn.Linear(d_in, dim)
        make = INTERACTIONS[design.name]
        blocks = range(design.blocks)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * design.blocks + 1))
        self.interactions = nn.ModuleList(make(design) for _ in blocks)
        self.networks = nn.ModuleList(network(dim, 2 * dim, dim) for _ in blocks)
        self.readout = nn.Linear(dim, 2)

    def forward(self, positions: Tensor, charges: Tensor) -> Tensor:
        inputs = [charges]
        if self.fourier is not None:
            inputs.append(self.fourier(positions))
        h = self.embed(torch.cat(inputs, -1))
        for block, (interact, per_point) in enumerate(zip(self.interactions, self.networks)):
            h = h + interact(self.norms[2 * block](h), positions)
            h = h + per_point(self.norms[2 * block + 1](h))
        return self.readout(self.norms[-1](h))


class EquivariantModel(nn.Module):
    """EGNN with fixed positions: forces are sums of displacements, weighted by a network."""

    def __init__(self, design: Design):
        super().__init__()
        dim = design.dim
        self.fourier = FourierFeatures(1, FREQUENCIES, design.sigma)
        size = 2 * dim + 2 * FREQUENCIES + 1
        self.embed = nn.Linear(1, dim)
        blocks = range(design.blocks)
        self.messages = nn.ModuleList(
            message_network(size, dim, design.pair_layers) for _ in blocks
        )
        self.weights = nn.ModuleList(network(dim, dim, 1) for _ in blocks)
        self.updates = nn.ModuleList(network(2 * dim, dim, dim) for _ in blocks)

    def forward(self, positions: Tensor, charges: Tensor) -> Tensor:
        displacement = positions[:, :, None] - positions[:, None]
        distance = distance_of(displacement)
        pairs = torch.cat([self.fourier(distance), distance], -1)
        h = self.embed(charges)
        forces = torch.zeros_like(positions)
        for message, weight, update in zip(self.messages, self.weights, self.updates):
            found = message(torch.cat([*ends(h), pairs], -1)) * others(h)
            forces = forces + (displacement * weight(found)).sum(2)
            h = h + update(torch.cat([h, found.sum(2)], -1))
        return forces


def make_model(design: Design) -> nn.Module:
    """Return a model by its design."""
    if design.name == "egnn":
        return EquivariantModel(design)
    return ForceModel(design)


def sized(
    name: str,
    sigma: float,
    target: int,
    make: Callable[[Design], nn.Module] = make_model,
    *,
    layers: int | None = None,
    blocks: int = BLOCKS,
) -> Design:
    """Return the design whose width brings its number of parameters nearest to ``target``.

    Example:
        >>> abs(parameters(make_model(sized("egnn", 0.5, 17_000))) - 17_000) < 850
        True
    """
    step = HEADS if name in (*OPERATORS, "softmax, relative") else 1
    widths = range(4 * step, 16 * HEADS + 1, step)
    designs = [Design(name, sigma, dim, layers, blocks) for dim in widths]
    return min(designs, key=lambda one: abs(parameters(make(one)) - target))
