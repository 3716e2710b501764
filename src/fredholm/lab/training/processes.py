"""The processes of one run: who they are, whether they agree, and which of them died.

torchrun and SLURM start processes and say in the environment which is which. They meet here, before
any of them touches data or folder; Lightning then trains in the same process group. Each writes a
sign of life into the group's store, once a second, so that the others can name the one that died.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.rendezvous import rendezvous

from ... import __version__
from ...errors import FredholmError, OptionError, RecipeError
from .failures import TrainingFailed
from .recipe import Recipe
from .recipe_files import code_digests, differences

T = TypeVar("T")
_JOINS = itertools.count()  # a process may take part in one run after the other
TIMEOUT = "FREDHOLM_TIMEOUT"  # seconds that a process waits for the others
BEAT = 1.0  # seconds between two signs of life


def launcher() -> ClusterEnvironment:
    """What started this process: torchrun, SLURM's srun, or nothing of the kind."""
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    # Not SLURM_NTASKS, which a batch script without srun has as well.
    if "SLURM_STEP_NUM_TASKS" in os.environ and SLURMEnvironment.detect():
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def first_process() -> bool:
    """Whether this process is the one that speaks and writes: of several, rank 0."""
    environment = launcher()
    return not environment.creates_processes_externally or environment.global_rank() == 0


def check_alone(command: str) -> None:
    """Refuse a command that works in one process where a launcher has started several of it.

    Raises:
        OptionError: there are several; said by the first of them.
    """
    environment = launcher()
    if not environment.creates_processes_externally or environment.world_size() == 1:
        return
    error = OptionError(
        f"{command}: received {environment.world_size()} processes; works in one: start it without "
        "torchrun or srun (only train takes several, and a --worker is started by itself)"
    )
    error.said = environment.global_rank() != 0
    raise error


class Group:
    """The processes of one run, or this one alone.

    Attributes:
        rank, size: which process of how many.
        devices, nodes: processes a machine, and machines.
        environment: what Lightning's Trainer is given.
        store: what all of them can write to; None where there is one process.
        mesh: those that have parts of the same samples as this one; None where samples are whole.
    """

    store: Any = None
    mesh: Any = None
    rank, size, devices, nodes = 0, 1, 1, 1

    def __init__(self, environment: ClusterEnvironment | None = None):
        self.environment = environment or LightningEnvironment()
        if self.environment.creates_processes_externally:
            self.rank, self.size = self.environment.global_rank(), self.environment.world_size()
            self.devices = _processes_here(self.size)
            self.nodes = self.size // self.devices

    @property
    def first(self) -> bool:
        return self.rank == 0

    def by_first(self, call: Callable[[], T]) -> T:
        """What ``call`` returns in rank 0, where alone it is called; its error is that of all."""
        if self.size == 1:
            return call()
        outcome: list[Any] = [None, None, None]
        error = None
        if self.first:
            try:
                outcome[0] = call()
            except FredholmError as caught:
                error = caught
                outcome[1:] = str(caught), caught.exit_code
        dist.broadcast_object_list(outcome)
        if error is not None:
            raise error
        if outcome[1] is not None:
            raise _SaidElsewhere(outcome[1], outcome[2])
        return outcome[0]

    def in_turn(self, call: Callable[[], T]) -> T:
        """What ``call`` returns, in one process of each machine before the others: what the first
        has fetched and prepared, they find.
        """
        if self.size == 1:
            return call()
        ahead = self.environment.local_rank() == 0
        result = call() if ahead else None
        dist.barrier()
        return call() if not ahead else result  # type: ignore[return-value]

    def agree(self, facts: dict[str, Any]) -> None:
        """Compare what the processes were started with.

        Raises:
            RecipeError: one has another recipe, version or folder than rank 0.
        """
        if self.size == 1:
            return
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, facts)
        for rank, theirs in enumerate(everyone):
            changed = differences(everyone[0], theirs)
            if changed:
                raise RecipeError(
                    f"rank {rank} of {self.size} was started with something else than rank 0: "
                    f"{', '.join(changed)}; start every process with the same command, files and "
                    "versions"
                )

    # --- errors -----------------------------------------------------------------------------------

    def says(self, text: str) -> bool:
        """Whether this process is the first to say ``text``, which several have to say."""
        if self.store is None:
            return True
        try:
            return self.store.add(f"said/{hashlib.sha256(text.encode()).hexdigest()}", 1) == 1
        except RuntimeError:  # the store died with rank 0
            return self.rank == 1

    def leave(self) -> None:
        """Say that this process ends of itself."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):
                self.store.set(f"left/{self.rank}", "1")

    def dead(self) -> tuple[list[str], bool]:
        """Processes that gave no sign of life for a while, by name, and whether another one ended
        of itself.
        """
        assert self.store is not None
        self.store.set_timeout(timedelta(seconds=10))
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            before = {rank: self.store.add(f"alive/{rank}", 0) for rank in others}
            time.sleep(2.5 * BEAT)
            left = {rank for rank in others if self.store.check([f"left/{rank}"])}
            silent = [
                rank
                for rank in others
                if rank not in left and self.store.add(f"alive/{rank}", 0) == before[rank]
            ]
            names = [f"rank {r} ({self.store.get(f'who/{r}').decode()})" for r in silent]
        except RuntimeError:
            return ["rank 0"], False
        return names, bool(left)


class _SaidElsewhere(FredholmError):
    """Another process has said what is wrong."""

    said = True

    def __init__(self, text: str, exit_code: int):
        super().__init__(text)
        self.exit_code = exit_code


@contextlib.contextmanager
def joined(recipe: Recipe) -> Iterator[Group]:
    """The processes of this run, met for the length of a ``with`` block.

    An error that several have is marked as said in all but one of them. An error that follows from
    a process that died becomes one that names it.

    Raises:
        OptionError: the environment does not fit ``training.devices`` and ``training.nodes``, or
            the address is in use.
        TrainingFailed: the others did not come, or one died.
    """
    group = Group(launcher())
    _check_numbers(recipe, group)
    if group.size == 1:
        yield Group()
        return
    group.store = _connect(group)
    stop = _give_signs(group)
    try:
        group.mesh = _mesh(group, recipe.parallel.domain)
        yield group
    except FredholmError as error:
        error.said = error.said or not group.says(str(error))
        raise
    except RuntimeError as error:
        # What gloo and the store say of a connection; other errors are this process's own.
        with _unhurried():
            names, left = group.dead() if _of_others(error) else ([], False)
        if not names and not left:
            raise
        text = (
            f"{' and '.join(names)} of {group.size} died or no longer answers; see its own "
            "messages, and continue with the same command and --resume"
        )
        failure = TrainingFailed(text)
        failure.said = not names or not group.says(text)
        raise failure from error
    finally:
        stop.set()
        group.leave()
        if dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _unhurried() -> Iterator[None]:
    """Without SIGTERM, which torchrun sends to the others as soon as one process died: it would end
    them before they know which one.
    """
    try:
        before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ValueError:  # not the main thread: the caller handles signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _of_others(error: Exception) -> bool:
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()


def timeout() -> timedelta:
    """How long a process waits for the others: FREDHOLM_TIMEOUT seconds, else ten minutes.

    Raises:
        OptionError: it is not a positive number.
    """
    text = os.environ.get(TIMEOUT) or "600"
    try:
        result = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        result = timedelta(0)
    if result <= timedelta(0):
        raise OptionError(f"{TIMEOUT}: received {text!r}; needs a positive number of seconds")
    return result


def _processes_here(size: int) -> int:
    """Processes of this machine; every machine must have as many."""
    torchrun = os.environ.get("LOCAL_WORLD_SIZE")
    if torchrun is not None and TorchElasticEnvironment.detect():
        here = int(torchrun)
    else:
        here = size // int(os.environ.get("SLURM_STEP_NUM_NODES") or 1)
    if here < 1 or size % here:
        raise OptionError(
            f"processes: received {size} in all, {here} of them on this machine; needs as many on "
            "every machine"
        )
    return here


def _check_numbers(recipe: Recipe, group: Group) -> None:
    """The recipe may leave the numbers to the launcher, or agree with it."""
    options = recipe.training
    for name, real in (("devices", group.devices), ("nodes", group.nodes)):
        wanted = getattr(options, name)
        if wanted not in (1, real):
            what = "this run was started on" if group.size > 1 else "this is"
            way = (
                f"leave training.{name} out, or start as many"
                if group.size > 1
                else "start the command on every machine with torchrun --nnodes or srun, see "
                "docs/scaling.md"
            )
            raise OptionError(f"training.{name}: received {wanted}; {what} {real}; {way}")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else group.devices
    if group.devices > gpus:
        raise OptionError(
            f"processes: received {group.devices} on this machine, which has {gpus} GPUs; start "
            "one process for each"
        )
    if options.strategy != "auto" and group.size == 1:
        raise OptionError(
            f"training.strategy: received {options.strategy!r} for one process; needs "
            "training.devices of 2 or more, torchrun or srun; or leave it out"
        )
    count = recipe.parallel.domain
    if group.size % count:
        raise OptionError(
            f"parallel.domain: received {count}; this run has {group.size} processes: needs a "
            "divisor of them, or training.devices of so many"
        )
    if recipe.data.batch_size < group.size // count:
        raise OptionError(
            f"data.batch_size: received {recipe.data.batch_size} for {group.size} processes; needs "
            f"a sample for each {'of them' if count == 1 else f'{count} of them'}"
        )


def _connect(group: Group) -> Any:
    """Meet the others; the store that all of them can write to."""
    environment, wait = group.environment, timeout()
    address, port = environment.main_address, environment.main_port
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = address, str(port)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    try:
        store, rank, size = next(
            rendezvous(f"env://?rank={group.rank}&world_size={group.size}", timeout=wait)
        )
        store.set_timeout(wait)
        store = PrefixStore(f"fredholm-{next(_JOINS)}", store)
        dist.init_process_group(
            backend,
            store=PrefixStore("group", store),
            rank=rank,
            world_size=size,
            timeout=wait,
        )
    except (RuntimeError, OSError) as error:
        text = str(error).partition("\n")[0]
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            raise OptionError(
                f"{address}:{port}: the address is in use; choose another MASTER_PORT, with "
                "torchrun --rdzv-endpoint HOST:PORT or --master-port"
            ) from error
        raise TrainingFailed(
            f"rank {group.rank} of {group.size}: not all processes met at {address}:{port} within "
            f"{wait.total_seconds():g} s ({text}); look at the messages of the others"
        ) from error
    return store


def _mesh(group: Group, count: int) -> Any:
    """Of ``count`` processes each that have parts of the same samples, this one's row of the mesh
    data x domain; None for whole samples.
    """
    if count == 1:
        return None
    rows = [range(start, start + count) for start in range(0, group.size, count)]
    # Every process makes all of the groups. A dead one is waited for as long as everywhere else.
    groups: list[Any] = [dist.new_group(list(row), timeout=timeout()) for row in rows]
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    own = groups[group.rank // count]
    return DeviceMesh.from_group(own, kind, mesh_dim_names=("domain",))


def _give_signs(group: Group) -> threading.Event:
    """Count up in the store, once a second, until the event is set."""
    assert group.store is not None
    stop, store = threading.Event(), group.store.clone()
    store.set(f"who/{group.rank}", f"process {os.getpid()} on {socket.gethostname()}")

    def beat() -> None:
        with contextlib.suppress(RuntimeError):  # the store died, which others will say
            while not stop.wait(BEAT):
                store.add(f"alive/{group.rank}", 1)

    threading.Thread(target=beat, daemon=True, name="fredholm-alive").start()
    return stop


def _named(paths: Any) -> Any:
    """Files by their names."""
    if isinstance(paths, list):
        return [Path(path).name for path in paths]
    return None if paths is None else Path(paths).name


def facts_of(recipe: Recipe, folder: Path, resume: bool, overwrite: bool) -> dict[str, Any]:
    """All that must be the same in every process."""
    code = code_digests(recipe)
    plain = recipe.to_dict()
    # Where files lie may differ between machines.
    plain["import"] = sorted(code)
    plain["data"]["path"], plain["init_from"] = _named(recipe.data.path), _named(recipe.init_from)
    versions = {"fredholm": __version__, "torch": torch.__version__}
    asked = {"name": folder.name, "resume": resume, "overwrite": overwrite}
    return {"recipe": plain, "code": code, "version": versions, "run": asked}
