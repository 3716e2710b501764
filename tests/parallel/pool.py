"""Processes that wait for jobs: started once, one gloo group for as long as they live."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PRELOAD = ["torch", "torch.distributed.device_mesh", "fredholm.operators", "tests.parallel.jobs"]


class Pool:
    """``pool.run(job, *arguments)`` calls ``job(mesh, *arguments)`` on every rank and returns what
    each returned, or raises the first rank's failure.
    """

    def __init__(self, count: int):
        # a server of its own, so that nobody inherits this process's threads
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.count, self.pipes, self.processes = count, [], []
        folder = tempfile.mkdtemp()
        for rank in range(count):
            ours, theirs = context.Pipe()
            arguments = (rank, count, str(Path(folder) / "group"), theirs)
            process = context.Process(target=_work, args=arguments, daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, job: Callable[..., Any], *arguments: Any) -> list[Any]:
        for pipe in self.pipes:
            pipe.send((job, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes):
            if not pipe.poll(60):
                raise TimeoutError(f"rank {rank} did not answer {job.__name__}{arguments}")
            answers.append(pipe.recv())
        for rank, (failure, _) in enumerate(answers):
            assert failure is None, f"rank {rank}:\n{failure}"
        return [answer for _, answer in answers]

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def _work(rank: int, count: int, file: str, pipe: Connection) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=count)
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("domain",))
    while (order := pipe.recv()) is not None:
        job, arguments = order
        try:
            pipe.send((None, job(mesh, *arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))
    dist.destroy_process_group()
