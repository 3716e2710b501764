"""A training step on a domain in shards: peak memory by the number of processes, and what a limit
of memory stops.
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from .kit.machine import describe, machine_line
from .kit.page import PAGES, head, load, save, table
from .kit.subject import Options, Subject

FILE = "parallel.json"
SUBJECT = Subject(
    __name__,
    runs={"memory": ":run_memory", "limit": ":run_limit"},
    pages={PAGES / "parallel.md": ":page"},
)
COUNTS = (1, 2, 4)
LIMIT = 256  # MB of address space for a step, beyond what an idle process has
# name -> (preset, its changes, points)
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "InfViT, linear": (
        "infvit_linear_pico",
        {"body": {"dim": 64, "depth": 2, "heads": 4}, "head": {"outputs": 4}},
        32768,
    ),
    "ITNet, low rank": (
        "itnet_nano",
        {
            "encoder": {"kind": "points", "channels": 3, "neighbours": 0},
            "body": {
                "dim": 64,
                "depth": 2,
                "heads": 4,
                "operator": "itnet_low_rank",
                "operator_options": {"width": 32, "frequencies": 16},
            },
            "head": {"outputs": 4},
        },
        16384,
    ),
    "CKCNN": (
        "ckcnn_small",
        {"body": {"widths": [16, 16], "operator_options": {"width": 16}}, "head": {"outputs": 4}},
        16384,
    ),
    "ITNet, exact": (
        "itnet_nano",
        {
            "encoder": {"kind": "points", "channels": 3, "neighbours": 0},
            "body": {
                "dim": 64,
                "depth": 2,
                "heads": 4,
                "operator_options": {"width": 16, "frequencies": 8},
            },
            "head": {"outputs": 4},
        },
        2048,
    ),
}


def run_memory(options: Options) -> None:
    """Peak memory of a training step of each model over 1, 2 and 4 processes."""
    for name in options.chosen(CASES):
        rows = []
        for count in COUNTS:
            ranks = over(count, name, points(name, options), None)
            peak = max(rank["megabytes"] for rank in ranks)
            row = {"case": name, "points": points(name, options), "processes": count}
            row |= {"megabytes": peak, "numbers": max(rank["numbers"] for rank in ranks)}
            row["loss"] = ranks[0]["loss"]
            rows.append(row)
            print(row, flush=True)
        found = load(FILE, options.results) or {}
        kept = [row for row in found.get("memory", []) if row["case"] != name]
        save({**found, "machine": describe(), "memory": kept + rows}, FILE, options.results)


def run_limit(options: Options) -> None:
    """The first model under a limit of address space, by one process and by four."""
    found = load(FILE, options.results) or {}
    name, rows = next(iter(CASES)), []
    for count in (1, 4):
        ranks = over(count, name, points(name, options), 20 if options.small else LIMIT)
        failures = [rank["failure"] for rank in ranks if rank["failure"]]
        rows.append({"case": name, "processes": count, "failure": failures[0] if failures else ""})
        print(rows[-1], flush=True)
    save({**found, "limit": {"megabytes": LIMIT, "rows": rows}}, FILE, options.results)


def points(name: str, options: Options) -> int:
    return 256 if options.small else CASES[name][2]


def over(count: int, name: str, n: int, limit: int | None) -> list[dict[str, Any]]:
    """What each of ``count`` processes found out about its training step."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(folder, rank, count, name, n, limit))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        ended = time.monotonic() + 3600
        while any(p.is_alive() for p in processes) and time.monotonic() < ended:
            time.sleep(0.2)
            if any(p.exitcode for p in processes):  # the others would wait for it
                break
        for process in processes:
            process.kill() if process.is_alive() else None
            process.join()
        files = [Path(folder) / f"{rank}.json" for rank in range(count)]
        return [json.loads(f.read_text(encoding="utf-8")) for f in files if f.exists()]


def _rank(folder: str, rank: int, count: int, name: str, n: int, limit: int | None) -> None:
    """One process: its own points, made here and nowhere else, and one training step on them."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from fredholm.models import create_model
    from fredholm.parallel import count_traffic
    from fredholm.training.machine import peak_megabytes

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/g", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("domain",))
    torch.manual_seed(0)
    preset, changes, _ = CASES[name]
    model: Any = create_model(preset, **changes).eval()
    step(model, mesh, 64)  # loads what a first step loads
    if limit is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        most = used + (limit << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    found: dict[str, Any] = {"failure": ""}
    with count_traffic() as traffic:
        try:
            found["megabytes"] = peak_megabytes(lambda: found.update(loss=step(model, mesh, n)))
        except (RuntimeError, MemoryError) as error:
            found["failure"] = str(error).splitlines()[0] or type(error).__name__
    found["numbers"] = traffic.numbers
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    if found["failure"]:
        raise SystemExit(1)
    dist.destroy_process_group()


def step(model: Any, mesh: Any, n: int) -> float:
    """One training step on n points, of which this rank makes its share; the loss."""
    from fredholm.domain import Domain
    from fredholm.parallel import sum_gradients

    rank, count = mesh.get_local_rank(), mesh.size()
    start, stop = rank * n // count, (rank + 1) * n // count
    place = torch.arange(start, stop)[:, None] / n
    dim, width = model.encoder.position_dim, getattr(model.encoder, "dim", 1)
    positions = place if dim == 1 else torch.cat([place * (7.0 + k) % 1.0 for k in range(dim)], 1)
    causal = model.config.encoder.causal
    part = Domain.points(positions, causal=causal)
    part = Domain.from_shard(part, mesh, shape=(n,) if dim == 1 else None)
    u = torch.sin(place * torch.arange(1.0, width + 1))[None]
    loss = torch.nn.functional.cross_entropy(model.answer(u, part), torch.tensor([1]))
    model.zero_grad()
    (loss / count).backward()
    sum_gradients(model, part.shards)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-3 * parameter.grad
    return float(loss.detach())


def outcome(failure: str) -> str:
    """In the page's words; torch's message names a line of its source before what happened."""
    return failure.rpartition("DefaultCPUAllocator: ")[2].capitalize() if failure else "trains"


def page() -> str:
    """docs/results/parallel.md."""
    found = load(FILE) or {}
    text = head("Memory of a domain in shards", "parallel", FILE)
    rows, alone = [], {}
    for row in found.get("memory", []):
        whole = alone.setdefault(row["case"], row["megabytes"])
        share = row["megabytes"] * row["processes"] / whole
        shown = f"{row['megabytes']:.0f}", f"{share:.2f}", f"{row['numbers']:,}"
        rows.append((row["case"], f"{row['points']:,}", row["processes"], *shown))
    text += (
        "Peak resident memory of one training step (forward, backward, sum of the gradients, "
        "update), of the process that needs most, above what the process has when it is idle. The "
        "fourth column times the number of processes over that of one process is the fifth: 1 "
        "where memory falls as 1/P; CKCNN does "
        "not reach it. Numbers sent by one process in the step include the gradients. "
        "`python -m benchmarks run parallel memory`\n\n"
    )
    heads = ("model", "points", "processes", "MB", "P · MB / MB of one", "numbers sent")
    text += table(heads, rows) + "\n\n"
    limit = found.get("limit")
    if limit:
        text += (
            f"The same step with at most {limit['megabytes']} MB of address space beyond an idle "
            "process (`RLIMIT_AS`): `python -m benchmarks run parallel limit`\n\n"
        )
        answers = [(r["case"], r["processes"], outcome(r["failure"])) for r in limit["rows"]]
        text += table(("model", "processes", "outcome"), answers) + "\n\n"
    return text + machine_line(found.get("machine", {})) + "\n"
