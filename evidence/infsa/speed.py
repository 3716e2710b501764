"""Speed of InfSA: the tiled pure form against the N² form, the linear form's time per token, and
the memory of both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fredholm.domain import Domain
from fredholm.lab.training.machine import process_megabytes
from fredholm.operators import InfSA, LinearInfSA

from ..kit.clock import (
    Case,
    Entry,
    difference,
    in_turn,
    median_and_spread,
    require,
    time_cases,
    with_gradients,
)
from ..kit.machine import describe
from ..kit.memory import LENGTHS as MEMORY
from ..kit.memory import operator_memory
from ..kit.page import load, save
from ..kit.subject import Options

FILE = "infsa-speed.json"
LENGTHS = (4096, 16384, 65536, 331776)
SMALL = (256, 512, 1024)


def keep(part: str, found: Any, options: Options) -> None:
    """Replace one part of the file and leave the others unchanged."""
    parts = load(FILE, options.results) or {}
    parts[part] = {"machine": describe(), "small": options.small, "found": found}
    save(parts, FILE, options.results)


def quadratic(operator: Any, u: Tensor) -> Tensor:
    """Compute the published form with the operator's weights.

    It materialises the N × N matrix of each head, applies ReLU, divides by the Frobenius norm and
    multiplies by the values.
    """
    query, key, value = operator.kernel.tokens(u[:, None])
    graph = torch.relu(query @ key.mT)
    graph = graph / (graph.norm(dim=(-2, -1), keepdim=True) + operator.kernel.eps)
    out = (operator.kernel.gamma * graph) @ value
    return operator.projection(out.transpose(1, 2).flatten(2))


def pure(points: int, dim: int, heads: int) -> Case:
    """Return the case of both forms' forward and backward; the reference is N² in float64."""
    torch.manual_seed(0)
    operator = InfSA(dim, heads)
    domain = Domain.line(points, measure="counting")
    u = torch.randn(1, points, dim, requires_grad=True)
    inputs = [u, *operator.parameters()]

    def reference() -> Tensor:
        double = InfSA(dim, heads).double()
        double.load_state_dict(operator.state_dict())
        v = u.detach().double().requires_grad_()
        return with_gradients(quadratic(double, v), [v, *double.parameters()])

    pairs = heads * points * points * dim // heads
    entries = {
        "tiled": Entry(lambda: with_gradients(operator(u, domain), inputs), 2.0 * 7 * pairs),
        "N × N": Entry(lambda: with_gradients(quadratic(operator, u), inputs), 2.0 * 6 * pairs),
    }
    note = f"B=1 N={points} d={dim} H={heads}"
    return Case("infsa forward+backward", reference, entries, tolerance=1e-3, note=note, repeats=5)


def definition(operator: Any, u: Tensor) -> Tensor:
    """Compute the linear form by its definition, each query's weights times all values."""
    value = operator.kernel.tokens(u[:, None]).value
    return operator.projection((operator.weights(u) @ value).transpose(1, 2).flatten(2))


def linear(
    lengths: tuple[int, ...], dim: int, heads: int, repeats: int = 5
) -> list[dict[str, Any]]:
    """Time one layer's forward per token and measure the process's peak memory at each length.

    The answer is first checked on 128 tokens.
    """
    torch.manual_seed(0)
    operator = LinearInfSA(dim, heads)
    rows = []
    with torch.no_grad():
        u = torch.randn(1, 128, dim)
        error = difference(operator(u), definition(operator.double(), u.double()))
        require("linear InfSA", error, 1e-4)
        operator.float()
        for n in lengths:
            u, domain = torch.randn(1, n, dim), Domain.line(n)
            times = in_turn({"": lambda u=u, d=domain: operator(u, d)}, repeats)[""]
            median, spread = median_and_spread(times)
            row = {"n": n, "microseconds_per_token": 1e6 * median / n, "spread": 1e6 * spread / n}
            rows.append(row | {"peak_megabytes": process_megabytes()})
            print("linear", rows[-1], flush=True)
    return rows


def time_linear(options: Options) -> None:
    """Measure one layer of the paper's size."""
    dim, heads = (96, 8) if options.small else (768, 64)
    rows = linear(SMALL if options.small else LENGTHS, dim, heads)
    times = [row["microseconds_per_token"] for row in rows]
    found = {"lengths": rows, "slowest_to_fastest": max(times) / min(times)}
    keep("linear", found | {"note": f"B=1 d={dim} H={heads}"}, options)


def timed(options: Options) -> Iterator[dict[str, Any]]:
    """Time both ways of the pure form and yield their rows."""
    case = pure(256, 64, 2) if options.small else pure(4096, 256, 4)
    yield from time_cases([case])


def time_pure(options: Options) -> None:
    keep("pure", list(timed(options)), options)


def time_memory(options: Options) -> None:
    """Measure both forms' memory against N."""
    lengths = SMALL if options.small else MEMORY
    rows = [operator_memory(name, lengths) for name in ("infsa", "linear_infsa")]
    keep("memory", rows, options)


def committed() -> list[dict[str, Any]]:
    """Return the committed rows, for ``check``."""
    return load(FILE)["pure"]["found"]
