"""LUNA's speed and memory beside other linear attentions: curves in N, the feature map, single
steps, what the backward keeps.

Our layers are checked against their definitions first. `performer-pytorch` and
`linear-attention-transformer` are timed where they can be imported (``pip install --no-deps
--target DIR performer-pytorch linear-attention-transformer axial-positional-embedding
local-attention linformer product-key-memory einops`` and ``PYTHONPATH=DIR``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.kernels import LunaMap
from fredholm.lab.training.machine import seconds_of
from fredholm.operators import IntegralOperator, LinearAttention, LunaAttention, create_operator
from fredholm.ops.feature_map import scalar_bank, scalar_bank_naive

from ..kit.clock import in_turn
from ..kit.machine import describe
from ..kit.page import save
from ..kit.statistics import slope
from ..kit.subject import Options
from .literal import DIM, HEADS, check_layer, map_cases

FILE = "luna-speed.json"
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
SOFTMAX_LONGEST = 8192  # beyond, a step takes many seconds
STEPS = 5000


def performer() -> nn.Module:
    """performer-pytorch's attention with 64 features."""
    from performer_pytorch import SelfAttention  # type: ignore[import-not-found]

    return SelfAttention(DIM, heads=HEADS, dim_head=DIM // HEADS, nb_features=64, causal=False)


def linear_transformer() -> nn.Module:
    """linear-attention-transformer's attention: softmax of queries over features and of keys over
    points.
    """
    from linear_attention_transformer.linear_attention_transformer import SelfAttention  # type: ignore[import-not-found]

    return SelfAttention(DIM, HEADS, causal=False, dim_head=DIM // HEADS)


class ByHand(nn.Module):
    """Linear attention with elu + 1 (Katharopoulos et al. 2020) as one writes it down in torch."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, u: Tensor) -> Tensor:
        heads = self.maps(u).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
        query, key, value = heads.chunk(3, 1)
        query, key = F.elu(query) + 1, F.elu(key) + 1
        total = query @ key.sum(2, keepdim=True).mT
        found = query @ (key.mT @ value) / total
        return self.out(found.transpose(1, 2).flatten(2))


PEERS = {
    "elu + 1 by hand": ByHand,
    "performer-pytorch": performer,
    "linear-attention-transformer": linear_transformer,
}


def layers() -> dict[str, nn.Module]:
    """Ours, each checked against its definition, and what peers there are."""
    torch.manual_seed(0)
    made: dict[str, nn.Module] = {
        "softmax": create_operator("softmax", DIM, HEADS),
        "elu + 1": LinearAttention(DIM, HEADS),
        "performer": LinearAttention(
            DIM, HEADS, feature_map="performer", feature_options={"features": 64}
        ),
        "hedgehog": LinearAttention(DIM, HEADS, feature_map="hedgehog"),
        "t2r": LinearAttention(DIM, HEADS, feature_map="t2r"),
        "luna": LunaAttention(DIM, HEADS),
        "luna, shared network": LunaAttention(DIM, HEADS, shared=True),
    }
    for operator in made.values():
        assert isinstance(operator, IntegralOperator)
        check_layer(operator, 24)
    for name, make in PEERS.items():
        try:
            made[name] = make()
        except ImportError as error:
            print(f"{name}: not timed, {error}", flush=True)
    return made


def step(layer: nn.Module, u: Tensor, backward: bool) -> object:
    """One forward, or one training step's gradients."""
    if not backward:
        with torch.no_grad():
            return layer(u)
    return torch.autograd.grad(layer(u).sum(), [u, *layer.parameters()], allow_unused=True)


def curves(longest: int, seconds: float) -> list[dict[str, Any]]:
    """Milliseconds of every layer at every length, forward and forward + backward: median, and the
    fastest.
    """
    made, rows = layers(), []
    for n in (n for n in LENGTHS if n <= longest):
        u = torch.randn(1, n, DIM, requires_grad=True)
        for backward in (False, True):
            here = {k: layer for k, layer in made.items() if k != "softmax" or n <= SOFTMAX_LONGEST}
            ways = {k: partial(step, op, u, backward) for k, op in here.items()}
            for name, times in in_turn(ways, 15, seconds).items():
                found = {"layer": name, "n": n, "backward": backward, "rounds": len(times)}
                rows.append(
                    {**found, "ms": 1e3 * statistics.median(times), "least": 1e3 * min(times)}
                )
                print(
                    f"N={n} {'both' if backward else 'forward':7} {name:28} {rows[-1]['ms']:9.1f} "
                    "ms",
                    flush=True,
                )
    return rows


def exponent(rows: list[dict[str, Any]], layer: str, backward: bool) -> float:
    """Slope of log time over log N by least squares, over all lengths."""
    mine = [row for row in rows if row["layer"] == layer and row["backward"] == backward]
    return slope((row["n"] for row in mine), (row["ms"] for row in mine))


def feature_map(scalars: int, seconds: float) -> list[dict[str, Any]]:
    """The map at many scalars, 8 channels, against the literal networks; answers are checked in
    float64 first.
    """
    kinds = {"separate": "one network a channel", "shared": "one shared network"}
    whats = {"forward": "forward", "both": "forward + backward"}
    rows = []
    for case in map_cases(scalars, 15):
        kind, what = case.name.split()
        ways = {name: entry.run for name, entry in case.entries.items()}
        times = in_turn(ways, case.repeats, seconds)
        found = {name: 1e3 * statistics.median(each) for name, each in times.items()}
        rows.append({"networks": kinds[kind], "what": whats[what], "scalars": scalars, **found})
        print(rows[-1], flush=True)
    return rows


@torch.no_grad()
def steps(count: int) -> list[dict[str, Any]]:
    """Microseconds of a causal step around some positions: nothing grows but the position."""
    layer, rows = LunaAttention(DIM, HEADS), []
    u, state = torch.randn(1, DIM), layer.init_state(1, Domain.line(count, causal=True))
    marks, times = (count // 100, count // 10, count // 2, count - 1), []
    for t in range(count):
        found: list[Any] = []
        times.append(seconds_of(lambda s=state, f=found: f.append(layer.step(u, s))))
        state = found[0][1]
        if t in marks:
            rows.append({"position": t, "us": 1e6 * statistics.median(times[-count // 100 :])})
    return rows


def kept(make: Callable[[], Tensor], known: set[int]) -> int:
    """Bytes that autograd keeps for the backward, each storage once, those of ``known`` left out."""
    found: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in known:
            found[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        alive = make()
    assert alive.requires_grad
    return sum(found.values())


def memory(points: int) -> list[dict[str, Any]]:
    """Bytes a token that a layer keeps for its backward, and that the map keeps a scalar, beside
    the literal networks.
    """
    rows = []
    for name, layer in layers().items():
        u = torch.randn(1, points, DIM, requires_grad=True)
        known = {p.untyped_storage().data_ptr() for p in [u, *layer.parameters()]}
        size = kept(lambda: layer(u), known)  # noqa: B023
        rows.append({"what": name, "unit": "token", "bytes": size / points})
    bank = LunaMap(64).bank
    u = torch.randn(1, 1, points, requires_grad=True)
    for name, make in {
        "map, piecewise": scalar_bank,
        "map, literal networks": scalar_bank_naive,
    }.items():
        size = kept(lambda: make(u, bank), set())  # noqa: B023
        rows.append({"what": name, "unit": "scalar", "bytes": size / points})
    return rows


def time(options: Options) -> None:
    """Curves up to 65,536 points, the map, steps and memory; a few minutes on a quiet machine."""
    longest, seconds, scalars = (
        (2048, 0.01, 1000) if options.small else (LENGTHS[-1], 1.5, 1_000_000)
    )
    command = "python -m evidence time luna"
    found: dict[str, Any] = {"command": command, "machine": describe(), "dim": DIM, "heads": HEADS}
    found["map"] = feature_map(scalars, seconds)
    found["steps"] = steps(200 if options.small else STEPS)
    found["memory"] = memory(min(4096, longest))
    found["curves"] = curves(longest, seconds)
    save(found, FILE, options.results)
