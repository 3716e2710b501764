"""Run one function on every rank of a gloo group of local processes with one thread each."""

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
    """Run ``job(mesh, *arguments)`` in ``count`` processes and return the results in rank order.

    The job must be importable, since the processes are spawned. After ``seconds``, or as soon as
    one rank fails, all are ended; ranks without a result are left out.
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
            # The other ranks would wait for a failed one in their next collective.
            if any(p.exitcode for p in processes):
                break
        for process in processes:
            if process.is_alive():
                process.kill()
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
