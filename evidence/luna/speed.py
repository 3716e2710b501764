"""Speed and memory of LUNA beside other linear attentions: curves in N, the feature map, causal
steps, and the tensors saved for the backward.

Our layers are checked against their definitions first. The peers `performer-pytorch` and
`linear-attention-transformer` are optional: ``pip install --no-deps --target DIR performer-pytorch
linear-attention-transformer axial-positional-embedding local-attention linformer product-key-memory
einops`` and ``PYTHONPATH=DIR`` make them available.
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
SOFTMAX_LONGEST = 8192
"""Longest length of softmax attention, whose step takes many seconds beyond it."""
STEPS = 5000


def performer() -> nn.Module:
    """Make performer-pytorch's attention with 64 features."""
    from performer_pytorch import SelfAttention  # type: ignore[import-not-found]

    return SelfAttention(DIM, heads=HEADS, dim_head=DIM // HEADS, nb_features=64, causal=False)


def linear_transformer() -> nn.Module:
    """Make linear-attention-transformer's attention.

    It takes the softmax of queries over features and that of keys over points.
    """
    from linear_attention_transformer.linear_attention_transformer import SelfAttention  # type: ignore[import-not-found]

    return SelfAttention(DIM, HEADS, causal=False, dim_head=DIM // HEADS)


class ByHand(nn.Module):
    """Linear attention with elu + 1 (Katharopoulos et al. 2020) in a few lines of torch."""

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
    """Make our layers, each checked against its definition, and the installed peers."""
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
    """Compute a forward, or the gradients of a training step."""
    if not backward:
        with torch.no_grad():
            return layer(u)
    return torch.autograd.grad(layer(u).sum(), [u, *layer.parameters()], allow_unused=True)


def curves(longest: int, seconds: float) -> list[dict[str, Any]]:
    """Time every layer at every length, forward, and forward and backward.

    A row has the median and the fastest time in milliseconds.
    """
    made = layers()
    rows: list[dict[str, Any]] = []
    for n in LENGTHS:
        if n > longest:
            break
        u = torch.randn(1, n, DIM, requires_grad=True)
        here = dict(made)
        if n > SOFTMAX_LONGEST:
            del here["softmax"]
        for backward, direction in ((False, "forward"), (True, "both")):
            ways = {name: partial(step, layer, u, backward) for name, layer in here.items()}
            for name, times in in_turn(ways, 15, seconds).items():
                row: dict[str, Any] = {"layer": name, "n": n, "backward": backward}
                row["rounds"] = len(times)
                row["ms"] = 1e3 * statistics.median(times)
                row["least"] = 1e3 * min(times)
                rows.append(row)
                print(f"N={n} {direction:7} {name:28} {row['ms']:9.1f} ms", flush=True)
    return rows


def exponent(rows: list[dict[str, Any]], layer: str, backward: bool) -> float:
    """Fit the exponent of a layer's time against N over all lengths."""
    curve = [row for row in rows if row["layer"] == layer and row["backward"] == backward]
    return slope((row["n"] for row in curve), (row["ms"] for row in curve))


def feature_map(scalars: int, seconds: float) -> list[dict[str, Any]]:
    """Time the map at many scalars, 8 channels, against the literal networks.

    The answers are checked in float64 first.
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
    """Measure the microseconds of a causal step around four positions.

    The state has a fixed size, so the time should not grow with the position.
    """
    layer = LunaAttention(DIM, HEADS)
    u, state = torch.randn(1, DIM), layer.init_state(1, Domain.line(count, causal=True))
    marks = (count // 100, count // 10, count // 2, count - 1)
    rows: list[dict[str, Any]] = []
    times: list[float] = []
    for t in range(count):
        found: list[Any] = []
        times.append(seconds_of(lambda s=state, f=found: f.append(layer.step(u, s))))
        _, state = found[0]
        if t in marks:
            rows.append({"position": t, "us": 1e6 * statistics.median(times[-count // 100 :])})
    return rows


def saved_bytes(make: Callable[[], Tensor], known: set[int]) -> int:
    """Count the bytes that autograd saves for the backward.

    Each storage counts once; storages at the addresses ``known`` don't count.
    """
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
    """Measure the bytes saved for the backward: per token by a layer, per scalar by the map.

    The map is compared with the literal networks.
    """
    rows = []
    for name, layer in layers().items():
        u = torch.randn(1, points, DIM, requires_grad=True)
        known = {p.untyped_storage().data_ptr() for p in [u, *layer.parameters()]}
        size = saved_bytes(lambda: layer(u), known)  # noqa: B023
        rows.append({"what": name, "unit": "token", "bytes": size / points})
    bank = LunaMap(64).bank
    u = torch.randn(1, 1, points, requires_grad=True)
    ways = {"map, piecewise": scalar_bank, "map, literal networks": scalar_bank_naive}
    for name, make in ways.items():
        size = saved_bytes(lambda: make(u, bank), set())  # noqa: B023
        rows.append({"what": name, "unit": "scalar", "bytes": size / points})
    return rows


def time(options: Options) -> None:
    """Measure curves up to 65,536 points, the map, steps and memory.

    It takes a few minutes on a quiet machine.
    """
    longest, seconds, scalars, count = LENGTHS[-1], 1.5, 1_000_000, STEPS
    if options.small:
        longest, seconds, scalars, count = 2048, 0.01, 1000, 200
    command = "python -m evidence time luna speed"
    found: dict[str, Any] = {"command": command, "machine": describe(), "dim": DIM, "heads": HEADS}
    found["map"] = feature_map(scalars, seconds)
    found["steps"] = steps(count)
    found["memory"] = memory(min(4096, longest))
    found["curves"] = curves(longest, seconds)
    save(found, FILE, options.results)
