"""Random cases of :mod:`evidence.fuzz`: an operator with options, its domains and its features.

Everything is drawn from the number of the case. Some of it is refused, for instance a window
without an order, or three neighbours among two points: the refusals are compared as well.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fredholm import Domain
from fredholm.edges import Edges
from fredholm.operators import IntegralOperator, create_operator

Draw = random.Random


@dataclass
class Case:
    """One operator on one domain.

    Attributes:
        query_domain: the queries' domain where they have their own.
        query: the queries' features where they are not ``u``.
    """

    number: int
    name: str
    options: dict[str, Any]
    operator: IntegralOperator
    domain: Domain
    query_domain: Domain | None
    u: Tensor
    query: Tensor | None

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        words = f"{self.name}({options}) on {self.domain}"
        return words if self.query_domain is None else f"{words}, queries on {self.query_domain}"


def make_case(number: int, names: list[str]) -> Case:
    """Draw a case from its number alone.

    Raises:
        FredholmError: the operator or the domain refuses what was drawn.
    """
    draw = Draw(number)
    torch.manual_seed(number)
    name = draw.choice(names)
    heads = draw.choice([1, 1, 2, 3])
    options = draw_options(name, draw)
    dim = heads * draw.choice([1, 2, 4, 5])
    if options.get("feature_map") == "luna" or options.get("preset") == "paper-gated":
        dim = heads * 4
    batch = draw.choice([1, 2, 3])
    p = options.get("position_dim", draw.choice([1, 1, 2]))

    # A window and a decay need an order, and a decay needs the queries at the domain's points.
    ordered = options.keys() & {"window", "decay"}
    domain = draw_domain(draw, p, batch, heads, draw.random() < (0.9 if ordered else 0.45))
    operator = create_operator(name, dim, heads, **options).double()
    # Away from the initial values every term counts.
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))

    target = query = None
    crossing = draw.random()
    if crossing < (0.05 if "decay" in options else 0.2):
        target = draw_targets(draw, p, batch, domain.causal)
        domain = draw_sight(draw, domain, target, batch, heads)
        query = draw_features(draw, target, batch, dim)
    elif crossing > 0.95:
        query = torch.randn(batch, domain.size, dim).double()
    else:
        domain = draw_pairs(draw, domain, batch, heads)
    u = draw_features(draw, domain, batch, dim)
    options = {"dim": dim, "heads": heads, **options}
    return Case(number, name, options, operator.eval(), domain, target, u, query)


def draw_features(draw: Draw, domain: Domain, batch: int, dim: int) -> Tensor:
    """Draw features; at padded points some are NaN, which must not reach any result."""
    u = torch.randn(batch, domain.size, dim).double()
    if domain.valid is not None and draw.random() < 0.3:
        u = torch.where(domain.valid[..., None], u, torch.nan)
    return u


# --- operators ------------------------------------------------------------------------------------


def draw_some(draw: Draw, **choices: list[Any]) -> dict[str, Any]:
    """Draw values for about half of the options; the others stay at their defaults."""
    return {name: draw.choice(values) for name, values in choices.items() if draw.random() < 0.5}


def draw_options(name: str, draw: Draw) -> dict[str, Any]:
    """Draw options of a library's operator; an operator registered by a user gets none."""
    flags = [True, False]
    activations = ["gelu", "silu", "tanh", "sin", "relu"]
    position = {"position_dim": draw.choice([1, 1, 2, 3])}
    small = {"frequencies": draw.randint(1, 4), "sigma": 1.0, "width": draw.randint(1, 6)}
    tiles = {"strategy": [{"name": "exact", "memory": 300}, {"name": "exact", "memory": 20_000}]}
    chunks = {"strategy": [{"name": "linear", "chunk": n} for n in (1, 3, 5)]}
    if name == "itnet":
        groups = ["query", "key", "product", "relative", "distance", "query_position"]
        chosen = tuple(draw.sample(groups, draw.randint(1, len(groups))))
        further = {"depth": [2, 3], "groups": [chosen], "output": ["full", "compact"], **tiles}
        further |= {"per_head_hidden": flags, "learned_frequencies": flags}
        return position | small | draw_some(draw, activation=activations, rank=[1, 3], **further)
    if name == "itnet_low_rank":
        further = {"activation": activations, "learned_frequencies": flags, "strategy": ["exact"]}
        return position | small | {"rank": draw.randint(1, 5)} | draw_some(draw, **further)
    if name == "luna":
        sizes = {"channels": draw.randint(1, 4), "directions": draw.randint(1, 3), "hidden": 4}
        further = {"per_head": flags, "shared": flags, "envelope": [None, "channels"], **chunks}
        activation = {"activation": ["relu", "gelu", "tanh"]}
        return sizes | draw_some(draw, tied=flags, **activation, **further) | draw_past(draw)
    if name == "linear_attention":
        maps = ["elu", "relu", "softplus", "performer", "hedgehog", "rff", "t2r"]
        options = draw_some(draw, feature_map=maps, tied=flags, bias=flags, **chunks)
        return options | draw_past(draw)
    if name == "ckconv":
        sizes = {"width": draw.randint(2, 6), "omega": 2.0, "length": draw.randint(2, 16)}
        further = {"origin": ["start", "centre"], "bias": flags, "horizon": [None, 3]}
        strategies = ["auto", "exact", "fft"]
        return position | sizes | draw_some(draw, strategy=strategies, **further)
    if name in ("infsa", "linear_infsa"):
        further: dict[str, list[Any]] = {"activation": ["relu", "gelu", "abs"], "bias": flags}
        further |= {"learned_decay": flags, "power": [0, 1, 2], "preset": ["paper", "released"]}
        if name == "infsa":
            return draw_some(draw, norm=["frobenius", "rows"], tied=flags, **further, **tiles)
        steps = {"steps": [1, 2], "centres": [1, 2, 3], "causal": ["exact", "streaming"]}
        return draw_some(draw, tied=flags, **steps, **further)
    if name == "softmax":
        return draw_some(draw, bias=flags, **tiles)
    return {}


def draw_past(draw: Draw) -> dict[str, Any]:
    """Draw a window with sinks, a decay, both or neither, of kernels with features."""
    options: dict[str, Any] = {}
    if draw.random() < 0.3:
        options["window"] = draw.choice([1, 2, 3, 6])
        options |= draw_some(draw, sinks=[1, 2, 4])
    if draw.random() < 0.3:
        options["decay"] = draw.choice(["head", "token"])
        options |= draw_some(draw, half_life=[0.5, 2.0, 10.0])
    return options


# --- domains --------------------------------------------------------------------------------------


def draw_domain(draw: Draw, p: int, batch: int, heads: int, causal: bool) -> Domain:
    """Draw one of the kinds of domain that positions of dimension p allow."""
    n = draw.choice([1, 2, 3, 5, 8, 13, 21])
    kinds = ["points", "batch", "grid", "graph", "join"] + ["line", "line", "timestamps"] * (p == 1)
    kind = draw.choice(kinds)
    options: dict[str, Any] = {"causal": causal}
    if kind == "graph":
        return draw_graph(draw, torch.rand(n, p).double(), causal)
    if kind == "join":
        parts = [Domain.points(torch.rand(k, p).double()) for k in (n, draw.randint(1, 4))]
        balance = draw.choice([None, (0.5, 0.5), (1.0, 3.0)])
        return Domain.join(*parts, balance=balance).replace(causal=causal)
    if kind == "grid":
        shape = tuple(draw.choice([1, 2, 3, 4]) for _ in range(p))
        n = torch.Size(shape).numel()
    if draw.random() < 0.3:
        options["valid"] = draw_padding(draw, batch, n)
    if kind == "timestamps":
        rows = () if draw.random() < 0.5 else (batch,)
        return Domain.timestamps(torch.rand(*rows, n).double().cumsum(-1) + 0.1, **options)

    masses = [torch.rand(n).double() + 0.1, torch.rand(batch, n).double() + 0.1]
    options["measure"] = draw.choice(["uniform", "uniform", "counting", *masses])
    normalised = isinstance(options["measure"], Tensor) and draw.random() < 0.5
    if kind == "grid":
        domain = Domain.grid(*shape, dtype=torch.float64, **options)
    elif kind == "line":
        length = draw.choice([None, 16.0])
        domain = Domain.line(n, length=length, dtype=torch.float64, **options)
    else:
        rows = (batch,) if kind == "batch" else ()
        domain = Domain.points(torch.rand(*rows, n, p).double(), **options)
    return domain.with_masses(domain.measure, normalised=True) if normalised else domain


def draw_graph(draw: Draw, positions: Tensor, causal: bool) -> Domain:
    """Draw a graph with repeated edges, as a mask or as edges; some weights may be zero."""
    n = positions.shape[0]
    weight = torch.rand(2 * n).double()
    weights = [None, None, weight, torch.where(weight < 0.3, 0.0, weight)]
    return Domain.graph(
        torch.randint(n, (2, 2 * n)),
        n,
        positions=positions,
        edge_weight=draw.choice(weights),
        self_loops=draw.random() < 0.7,
        sparse=draw.random() < 0.5,
        causal=causal,
    )


def draw_padding(draw: Draw, batch: int, n: int) -> Tensor:
    """Draw which points are real, (B, N): the first ones, or any, in rare cases none."""
    if draw.random() < 0.6:
        lengths = torch.tensor([draw.randint(1, n) for _ in range(batch)])
        return torch.arange(n) < lengths[:, None]
    return torch.rand(batch, n) < 0.7


def draw_mask(draw: Draw, queries: int, keys: int, batch: int, heads: int) -> Tensor:
    """Draw a mask or a bias of all pairs, for all samples and heads or for each."""
    rows = draw.choice([(), (batch,), (batch, heads), (1, heads)])
    bias = torch.randn(*rows, queries, keys).double()
    visible = (bias > -0.5) | torch.eye(queries, keys).bool()
    return draw.choice([bias, visible, bias.masked_fill(~visible, -torch.inf)])


def draw_pairs(draw: Draw, domain: Domain, batch: int, heads: int) -> Domain:
    """Draw who sees whom within a domain that has no pairs yet: mostly everyone."""
    kind = draw.choice(["all"] * 8 + ["dense", "edges", "radius", "neighbours", "box", "reach"])
    if kind == "all" or domain.pairs is not None:
        return domain
    if kind in ("dense", "edges"):
        pairs = draw_mask(draw, domain.size, domain.size, batch, heads)
        return domain.replace(pairs=Edges.of_mask(pairs) if kind == "edges" else pairs)
    if kind == "reach":
        return domain.replace(reach=draw.choice([0, 1, 2, 5]))
    search: dict[str, Any] = {"radius": draw.choice([0.15, 0.4, 1.0])}
    if kind == "neighbours":
        search = {"neighbours": draw.randint(1, 3)}
    if kind == "box":
        search = {"radius": 0.3, "box": [1.0] * domain.dim}
    found = Domain.points(domain.positions, valid=domain.valid, **search)
    return domain.replace(pairs=found.pairs)


def draw_targets(draw: Draw, p: int, batch: int, causal: bool) -> Domain:
    """Draw a second domain, where the queries are."""
    n = draw.randint(1, 6)
    kind = draw.choice(["points", "batch", "grid"] + ["timestamps"] * (p == 1))
    options: dict[str, Any] = {"causal": causal and draw.random() < 0.5}
    if kind == "grid":
        return Domain.grid(*(draw.randint(1, 3) for _ in range(p)), dtype=torch.float64, **options)
    if draw.random() < 0.3:
        options["valid"] = draw_padding(draw, batch, n)
    rows = (batch,) if kind == "batch" else ()
    if kind == "timestamps":
        return Domain.timestamps(torch.rand(n).double().cumsum(-1) + 0.1, **options)
    return Domain.points(torch.rand(*rows, n, p).double(), **options)


def draw_sight(draw: Draw, domain: Domain, target: Domain, batch: int, heads: int) -> Domain:
    """Draw who of a domain is seen from a second one; pairs within the domain are dropped."""
    domain = domain.replace(pairs=None, reach=None)
    kind = draw.choice(["all", "all", "dense", "edges", "radius", "neighbours"])
    if kind == "radius":
        return domain.near(target, radius=draw.choice([0.15, 0.4, 1.0]))
    if kind == "neighbours":
        return domain.near(target, neighbours=draw.randint(1, 3))
    if kind == "all":
        return domain
    pairs = draw_mask(draw, target.size, domain.size, batch, heads)
    return domain.replace(pairs=Edges.of_mask(pairs) if kind == "edges" else pairs)
