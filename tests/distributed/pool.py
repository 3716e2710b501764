"""Processes that wait for jobs: started once, one gloo group for as long as they live."""

from __future__ import annotations

import multiprocessing
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

PRELOAD = ["torch", "torch.distributed.device_mesh", "fredholm.operators", "tests.distributed.jobs"]


class Pool:
    """A group of processes: ``pool.run(job, *arguments)`` calls a job on every rank.

    It calls ``job(mesh, *arguments)`` and returns the results of all ranks, or raises the failure
    of the first rank that has one.
    """

    def __init__(self, count: int, seconds: float = 1800):
        # Processes of a separate server do not inherit this process's threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.count = count
        self.pipes = []
        self.processes = []
        folder = tempfile.mkdtemp()
        for rank in range(count):
            ours, theirs = context.Pipe()
            arguments = (rank, count, str(Path(folder) / "group"), theirs, seconds)
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

    def ask(self, rank: int, job: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of one rank, after all others are done."""
        for pipe in self.pipes:
            pipe.send((job, arguments))
        assert self.pipes[rank].poll(60), f"rank {rank} did not answer"
        failure, answer = self.pipes[rank].recv()
        for process in self.processes:
            process.kill()
        assert failure is None, failure
        return answer

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()


def _work(rank: int, count: int, file: str, pipe: Connection, seconds: float) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    ways = {"init_method": f"file://{file}", "timeout": timedelta(seconds=seconds)}
    dist.init_process_group("gloo", rank=rank, world_size=count, **ways)
    mesh = init_device_mesh("cpu", (count,), mesh_dim_names=("domain",))
    while (order := pipe.recv()) is not None:
        job, arguments = order
        try:
            pipe.send((None, job(mesh, *arguments)))
        except Exception:
            pipe.send((traceback.format_exc(), None))
    dist.destroy_process_group()
