"""The cases of the contract suite: an operator, its domains, and the domains that it refuses.

Operators that are not registered (converted layers) have their cases in a list ``CASES`` in a file
of ``families/``.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F

from fredholm.domain import Domain
from fredholm.operators import create_operator, list_operators

BATCH, POINTS, DIM, HEADS = 2, 6, 8, 2


def positions(dim: int, n: int = POINTS, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, dim, generator=generator, dtype=torch.float64)


class OperatorCase:
    """A registered operator with options; a subclass overrides :meth:`operator` or :meth:`domains`.

    The operator must refuse domains that it does not accept.

    Attributes:
        dim: width of u.
        transforms: a Fourier transform mixes the rounding errors of all points.
        invariant: parameters that the output does not depend on; every other parameter must receive
            a gradient.
        plain: the domain of tests that need only one.
        cross: queries may have another domain.
        permutes: points may come in any order.
        traced: the operator compiles and exports.
        any_length: one export serves any number of points.
        orders: the orders that compile and export, causal (True) or not.
        measure: the measure of the traced domains.
    """

    dim: int = DIM
    transforms = False
    invariant: frozenset[str] = frozenset()
    plain = "points"
    cross = True
    permutes = True
    traced = True
    any_length = True
    orders: tuple[bool, ...] = (False, True)
    measure = "uniform"

    def __init__(self, name: str, label: str = "", **options):
        self.name, self.options = name, options
        self.position_dim = options.get("position_dim", 1)
        self.label = label or name

    def operator(self) -> torch.nn.Module:
        """Return the operator in float64, with its parameters moved off their initial values.

        There every term counts.
        """
        torch.manual_seed(1)
        operator = create_operator(self.name, DIM, HEADS, **self.options).double()
        with torch.no_grad():
            for parameter in operator.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return operator

    def domains(self) -> dict[str, Domain]:
        """Return the domains of POINTS points that the operator must accept, by name.

        Batched domains have BATCH elements, or one that the batch shares.
        """
        return self.standard_domains() | self.padded_grids()

    def refused(self) -> dict[str, Domain]:
        """Return the other standard domains, which the operator must refuse with a DomainError."""
        accepted = self.domains()
        return {
            name: domain for name, domain in self.standard_domains().items() if name not in accepted
        }

    def padded_grids(self) -> dict[str, Domain]:
        """Return sequences of several lengths on one line with regular points."""
        if self.position_dim > 1:
            return {}
        valid = torch.tensor([[True] * POINTS, [True] * (POINTS - 2) + [False] * 2])
        orders = {"padded line": False, "causal padded line": True}
        return {
            name: Domain.line(POINTS, causal=c, valid=valid, dtype=torch.float64)
            for name, c in orders.items()
        }

    @staticmethod
    def element(domain: Domain, b: int) -> Domain:
        """Return the domain of a batch's element b, without the padding at its end.

        Padding between its points stays.
        """

        def of_element(x: torch.Tensor) -> torch.Tensor:
            return x[b if len(x) > 1 else 0]

        positions, measure = domain.positions, domain.measure
        if positions.dim() == 3:
            positions = of_element(positions)
        if measure.dim() == 2:
            measure = of_element(measure)
        alone = replace(domain, positions=positions, measure=measure, valid=None)
        if domain.valid is None:
            return alone

        valid = of_element(domain.valid)
        n = int(valid.nonzero().max()) + 1
        if not bool(valid[:n].all()):
            alone = replace(alone, valid=valid[None])
        return alone[:n] if n < domain.size else alone

    def standard_domains(self) -> dict[str, Domain]:
        """Return one domain of every kind, as copies, so that tests do not share caches."""
        # Families draw their further domains after this seed, the same at every call.
        torch.manual_seed(2)
        return {name: replace(domain) for name, domain in standard(self.position_dim).items()}


@cache
def standard(p: int) -> dict[str, Domain]:
    """Return one domain of every kind, at positions in p dimensions."""
    n = POINTS
    generator = torch.Generator().manual_seed(2)

    def masses(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64) + 0.1

    double = {"dtype": torch.float64}
    if p == 1:
        lattice = Domain.line(n, **double)
        line = Domain.line(n, causal=True, **double)
    else:
        lattice = Domain.grid(2, n // 2, *[1] * (p - 2), **double)
        line = Domain.points(positions(p), causal=True)
    valid = torch.tensor([[True] * n, [True] * (n - 2) + [False] * 2])
    gaps = torch.tensor([[1, 0, 1, 1, 0, 1], [0, 1, 1, 0, 0, 1]]).bool()
    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 0], [1, 2, 3, 4, 5, 0, 3]])
    band = torch.ones(n, n).triu(-2).bool()
    bias = torch.randn(1, HEADS, n, n, generator=generator, dtype=torch.float64)
    batch_points = torch.stack([positions(p, seed=s) for s in range(BATCH)])
    return {
        "lattice": lattice,
        "causal": line,
        "points": Domain.points(batch_points),
        "padded": Domain.points(batch_points, valid=valid),
        "masses": Domain.points(positions(p), measure=masses(n)),
        "probability": Domain.points(positions(p)).with_masses(masses(BATCH, n), normalised=True),
        "counting": Domain.points(positions(p), measure="counting"),
        "graph": Domain.graph(edges, n, positions=positions(p)),
        "bias": Domain.points(positions(p), pairs=bias),
        "causal padded": Domain.points(batch_points, valid=valid, causal=True),
        "causal gaps": replace(line, valid=gaps),
        "shared": Domain.points(batch_points[:1], valid=gaps[:1]),
        "causal shared": Domain.points(batch_points[:1], valid=gaps[:1], causal=True),
        "causal window": Domain.points(positions(p), pairs=band, causal=True),
        "causal masses": line.with_masses(masses(n)),
        **sparse(p, line.replace(valid=gaps)),
    }


def sparse(p: int, line: Domain) -> dict[str, Domain]:
    """Return domains where a point sees few others; ``line`` has an order and gaps."""
    n = POINTS
    generator = torch.Generator().manual_seed(6)
    # One node is isolated, one edge comes twice, one has weight zero.
    edge_index = torch.tensor([[0, 1, 2, 3, 0, 0, 4, 2], [1, 2, 3, 0, 3, 3, 1, 0]])
    weight = torch.rand(8, generator=generator, dtype=torch.float64) + 0.1
    weight[6] = 0.0
    corners = positions(2)
    cells = torch.tensor([[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]])
    mesh = Domain.mesh(F.pad(corners, (0, 1)), cells, adjacent=True)
    return {
        "edges": Domain.graph(
            edge_index,
            n,
            positions=positions(p),
            edge_weight=weight,
            self_loops=False,
            sparse=True,
        ),
        "radius": Domain.points(positions(p), radius=0.3 * p, measure="counting"),
        "reach": Domain.points(positions(p)).replace(reach=1),
        "causal reach": line.replace(reach=2),
        "mesh": mesh.replace(positions=positions(p), kind="weighted"),
    }


class SoftmaxCase(OperatorCase):
    invariant = frozenset({"kernel.key.bias"})


class CKConvCase(OperatorCase):
    """The direction of a weight with one input is a sign, so the output does not depend on it."""

    transforms = True

    @property
    def invariant(self) -> frozenset[str]:
        return frozenset({"kernel.network.layers.0.direction"} if self.position_dim == 1 else ())


class GraphCase(OperatorCase):
    """A token graph, which takes no queries on another domain."""

    cross = False


class StreamingCase(GraphCase):
    """Running sums over all earlier points, which take no pairs in causal order."""

    def domains(self):
        unserved = ("causal window", "causal reach")
        return {name: d for name, d in super().domains().items() if name not in unserved}


class WindowCase(OperatorCase):
    """Softmax on the last points, whose domains have an order."""

    plain = "causal"
    permutes = False
    orders = (True,)
    # Blocks of keys overlap, and torch.export takes their number as a constant.
    any_length = False

    def domains(self):
        return {name: domain for name, domain in super().domains().items() if domain.causal}


class DecayCase(WindowCase):
    """A decay of the past, whose domains have an order and whose queries are their points.

    The rates are large, so that they matter among 6 points.
    """

    cross = False

    @property
    def any_length(self):
        return "window" not in self.options

    def operator(self):
        operator = super().operator()
        with torch.no_grad():
            decay = operator.kernel.decay
            decay.log_rate.copy_(torch.linspace(-1.0, 0.5, HEADS))
            if decay.bias is not None:
                decay.bias.fill_(0.5)
        return operator

    def domains(self):
        """Return the standard domains, and clocks of one or of each sample, which have gaps."""
        generator = torch.Generator().manual_seed(7)
        steps = torch.rand(BATCH, POINTS, generator=generator, dtype=torch.float64) + 0.1
        gaps = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 1, 0]]).bool()
        times = steps.cumsum(-1)
        return super().domains() | {
            "causal clock": Domain.timestamps(times[0]),
            "causal clocks with gaps": Domain.timestamps(times, valid=gaps),
        }


def cases(names: list[str] | None = None) -> list[OperatorCase]:
    """Return every registered operator; those with variants occur more than once."""
    special: dict[str, list[OperatorCase]] = {
        "softmax": [SoftmaxCase("softmax")],
        "ckconv": [
            CKConvCase("ckconv", width=5, omega=2.0, length=POINTS),
            CKConvCase(
                "ckconv",
                "ckconv-2d",
                position_dim=2,
                width=4,
                omega=1.0,
                length=POINTS,
                origin="centre",
            ),
        ],
        "infsa": [
            GraphCase("infsa", learned_decay=True, bias=True),
            GraphCase(
                "infsa", "infsa-rows-tied", norm="rows", activation="gelu", tied=True, power=2
            ),
        ],
        "linear_infsa": [
            GraphCase("linear_infsa"),
            GraphCase("linear_infsa", "linear_infsa-steps", steps=2, power=2),
            GraphCase(
                "linear_infsa",
                "linear_infsa-centres",
                # with ReLU an untied response jumps where the last positive score vanishes
                tied=False,
                activation="abs",
                centres=2,
                bias=True,
                learned_decay=True,
            ),
            StreamingCase(
                "linear_infsa", "linear_infsa-streaming", causal="streaming", steps=2, centres=2
            ),
        ],
        "itnet_low_rank": [
            OperatorCase("itnet_low_rank", rank=3, width=5, frequencies=3, sigma=1.0),
            OperatorCase(
                "itnet_low_rank",
                "itnet_low_rank-2d",
                position_dim=2,
                rank=5,
                width=4,
                frequencies=2,
                sigma=1.0,
                learned_frequencies=True,
                activation="silu",
            ),
            OperatorCase(
                "itnet_low_rank",
                "itnet_low_rank-exact",
                rank=2,
                width=4,
                frequencies=2,
                strategy="exact",
            ),
        ],
        "luna": [
            OperatorCase("luna", channels=3, directions=2, hidden=4),
            OperatorCase(
                "luna",
                "luna-heads-envelope",
                channels=2,
                directions=2,
                hidden=4,
                per_head=True,
                envelope="channels",
            ),
            OperatorCase(
                "luna",
                "luna-shared-gelu",
                channels=2,
                directions=3,
                hidden=4,
                shared=True,
                activation="gelu",
            ),
            WindowCase("luna", "luna-window", channels=3, directions=2, hidden=4, window=2),
            WindowCase(
                "luna",
                "luna-window-sinks",
                channels=3,
                directions=2,
                hidden=4,
                window=2,
                sinks=1,
            ),
            DecayCase(
                "luna", "luna-decay", channels=3, directions=2, hidden=4, decay="head", half_life=2
            ),
        ],
        "linear_attention": [
            OperatorCase("linear_attention"),
            OperatorCase("linear_attention", "linear_attention-performer", feature_map="performer"),
            OperatorCase(
                "linear_attention", "linear_attention-hedgehog", feature_map="hedgehog", tied=False
            ),
            WindowCase(
                "linear_attention",
                "linear_attention-window",
                feature_map="hedgehog",
                tied=False,
                window=2,
            ),
            WindowCase(
                "linear_attention",
                "linear_attention-window-sinks",
                feature_map="hedgehog",
                tied=False,
                window=2,
                sinks=2,
            ),
            DecayCase("linear_attention", "linear_attention-decay", decay="token", half_life=2),
            DecayCase(
                "linear_attention",
                "linear_attention-decay-window",
                feature_map="hedgehog",
                tied=False,
                decay="token",
                window=2,
                sinks=1,
            ),
            DecayCase(
                "linear_attention",
                "linear_attention-decay-exponential",
                feature_map="hedgehog",
                tied=False,
                decay="token",
                half_life=2,
            ),
        ],
        "itnet": [
            OperatorCase("itnet", width=5, frequencies=3, sigma=1.0),
            OperatorCase(
                "itnet",
                "itnet-2d-compact",
                position_dim=2,
                width=5,
                frequencies=3,
                sigma=1.0,
                output="compact",
            ),
            OperatorCase(
                "itnet", "itnet-3d-deep", position_dim=3, width=4, frequencies=2, sigma=1.0, depth=3
            ),
            OperatorCase(
                "itnet",
                "itnet-per-head",
                width=4,
                frequencies=2,
                sigma=1.0,
                per_head_hidden=True,
                learned_frequencies=True,
            ),
            OperatorCase(
                "itnet",
                "itnet-content",
                width=4,
                groups=("query", "key", "product"),
                activation="silu",
            ),
            OperatorCase("itnet", "itnet-raw", position_dim=2, width=4, frequencies=0),
            OperatorCase(
                "itnet",
                "itnet-position",
                width=4,
                frequencies=2,
                sigma=1.0,
                groups=("relative", "distance"),
            ),
        ],
    }
    found = []
    for name in list_operators():
        found += special.get(name, [OperatorCase(name)])
    from . import families

    for module in pkgutil.iter_modules(families.__path__):
        found += importlib.import_module(f"{families.__name__}.{module.name}").CASES
    return [case for case in found if not names or case.name in names]
