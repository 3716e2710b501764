"""Tile sizes by measurement: for each kernel, the fastest of some candidates."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from fredholm.ops.tuning import Tiles, cases_chosen, save_tiles, trial

from ..kit.page import save
from ..kit.subject import Options
from .cases import KERNELS, move
from .timing import machine, make_clock

CANDIDATES: dict[str, tuple[int, ...]] = {
    "rows": (64, 128), "keys": (32, 64, 128), "warps": (4, 8), "stages": (1, 2, 3)
}  # fmt: skip


def candidates(smoke: bool) -> list[Tiles]:
    """Return all combinations of sizes, or two of them in a smoke run."""
    if smoke:
        return [{"rows": 16}, {"rows": 32}]
    return [dict(zip(CANDIDATES, sizes)) for sizes in itertools.product(*CANDIDATES.values())]


def tune(clock: Any, *, smoke: bool, only: str = "") -> dict[str, Any]:
    """Measure the fastest tiles for the first sizes of each kernel and write them to its table.

    A candidate that does not fit the device is left out. The smoke run tries one case and writes
    nothing.
    """
    found: dict[str, Any] = {}
    for name, kernel in KERNELS.items():
        if only not in name or (smoke and found):
            continue
        torch.manual_seed(0)
        sizes = kernel.small if smoke else next(iter(kernel.sizes.values()))
        x = move(kernel.make(**sizes), clock.device, torch.float32 if smoke else torch.bfloat16)
        leaves = [t for t in x.values() if t.requires_grad]

        def call(kernel=kernel, x=x, leaves=leaves) -> None:
            out = kernel.run(x, "triton")
            torch.autograd.grad(out, leaves, out.detach())

        with cases_chosen() as cases:
            call()
        for case, path in list(cases.items())[: 1 if smoke else None]:
            times: list[tuple[float, Tiles]] = []
            for tiles in candidates(smoke):
                if clock.over:
                    break
                with trial(case, tiles):
                    try:
                        times.append((clock(call, budget=0.1)["seconds"], tiles))
                    # Triton raises OutOfResources where the device has too little shared memory.
                    except Exception as error:
                        if type(error).__name__ != "OutOfResources":
                            raise
            if times:
                seconds, best = min(times, key=lambda pair: pair[0])
                slowest = max(seconds for seconds, _ in times)
                found[case] = {"tiles": best, "seconds": seconds, "slowest": slowest}
                if not smoke:
                    save_tiles(path, {case: best})
    return found


def run(options: Options) -> None:
    """Tune the kernels whose name contains the text of ``--only``, or all."""
    clock = make_clock(options)
    found = tune(clock, smoke=options.small, only=" ".join(options.only))
    result = {"smoke": options.small, "machine": machine(clock.device), "tuned": found}
    save(result, "gpu-tuned.json", options.results)
