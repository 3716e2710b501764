"""Processes of one gloo group that do one job each, on one thread, and say what came of it."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

Job = Callable[..., dict[str, Any]]


def over(count: int, job: Job, *arguments: Any, seconds: float = 3600) -> list[dict[str, Any]]:
    """``job(mesh, *arguments)`` of each of ``count`` processes, a function of a module; ranks that
    ended without an answer are left out.
    """
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_rank, args=(folder, rank, count, job, arguments))
            for rank in range(count)
        ]
        for process in processes:
            process.start()
        ended = time.monotonic() + seconds
        while any(p.is_alive() for p in processes) and time.monotonic() < ended:
            time.sleep(0.2)
            if any(p.exitcode for p in processes):  # the others would wait for it
                break
        for process in processes:
            process.kill() if process.is_alive() else None
            process.join()
        files = [Path(folder) / f"{rank}.json" for rank in range(count)]
        return [json.loads(f.read_text(encoding="utf-8")) for f in files if f.exists()]


def _rank(folder: str, rank: int, count: int, job: Job, arguments: tuple) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/g", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("domain",))
    found = job(mesh, *arguments)
    (Path(folder) / f"{rank}.json").write_text(json.dumps(found), encoding="utf-8")
    dist.destroy_process_group()
