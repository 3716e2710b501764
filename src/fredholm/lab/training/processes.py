"""The processes of one run: their ranks, whether they agree, and which of them died.

torchrun and SLURM start processes and describe them in environment variables. The processes meet
here before any of them touches data or folder. Lightning then trains in the same process group.
Each process writes a heartbeat into the group's store once a second, so that the others can name
one that died.
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
from typing import Any, NamedTuple, TypeVar

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
from ...distributed.peers import is_message_error
from ...errors import FredholmError, OptionError, RecipeError
from .failures import TrainingFailed
from .recipe import Recipe
from .recipe_files import code_digests, differences

T = TypeVar("T")

# A process may take part in several runs, one after the other. Each has a store of its own.
_RUNS = itertools.count()

# The environment variable with the seconds that a process waits for the others.
TIMEOUT = "FREDHOLM_TIMEOUT"

# Seconds between two heartbeats.
BEAT = 1.0


def launcher() -> ClusterEnvironment:
    """Return the launcher of this process: torchrun, SLURM's srun, or none."""
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()

    # SLURM_NTASKS would not do: a batch script without srun has it as well.
    if "SLURM_STEP_NUM_TASKS" in os.environ and SLURMEnvironment.detect():
        return SLURMEnvironment(auto_requeue=False)
    return LightningEnvironment()


def first_process() -> bool:
    """Tell whether this process reports and writes: it is the only one, or rank 0."""
    environment = launcher()
    return not environment.creates_processes_externally or environment.global_rank() == 0


def check_alone(command: str) -> None:
    """Refuse a command for one process if a launcher has started several.

    Raises:
        OptionError: there are several processes; only the first of them reports it.
    """
    environment = launcher()
    if not environment.creates_processes_externally or environment.world_size() == 1:
        return
    error = OptionError(
        f"{command}: expected one process, got {environment.world_size()}; start it without "
        "torchrun or srun (only train takes several, and a --worker is started by itself)"
    )
    error.said = environment.global_rank() != 0
    raise error


class Group:
    """The processes of one run, or this one alone.

    Attributes:
        rank, size: the number of this process, and how many there are.
        devices, nodes: processes per machine, and machines.
        environment: the launcher, for Lightning's Trainer.
        store: key-value store that all processes write to; None for a single process.
        mesh: the processes that share the points of the same samples; None if every process holds
            complete samples.
    """

    store: Any = None
    mesh: DeviceMesh | None = None
    rank: int = 0
    size: int = 1
    devices: int = 1
    nodes: int = 1

    def __init__(self, environment: ClusterEnvironment | None = None):
        self.environment = environment or LightningEnvironment()
        if self.environment.creates_processes_externally:
            self.rank = self.environment.global_rank()
            self.size = self.environment.world_size()
            self.devices = _processes_here(self.size)
            self.nodes = self.size // self.devices

    @property
    def first(self) -> bool:
        return self.rank == 0

    def by_first(self, call: Callable[[], T]) -> T:
        """Call a function in rank 0 only, and return its result in all processes.

        Its error is raised in all of them as well.
        """
        if self.size == 1:
            return call()

        outcome = _Outcome()
        error = None
        if self.first:
            try:
                outcome = _Outcome(result=call())
            except FredholmError as caught:
                error = caught
                outcome = _Outcome(error=str(caught), exit_code=caught.exit_code)

        # torch broadcasts lists of objects.
        broadcast: list[Any] = [outcome]
        dist.broadcast_object_list(broadcast)
        (outcome,) = broadcast

        if error is not None:
            raise error
        if outcome.error is not None:
            raise _ReportedElsewhere(outcome.error, outcome.exit_code)
        return outcome.result

    def in_turn(self, call: Callable[[], T]) -> T:
        """Call a function in every process, in the first one of each machine before the others.

        What the first has downloaded and prepared, the others find.
        """
        if self.size == 1:
            return call()

        if self.environment.local_rank() == 0:
            result = call()
            dist.barrier()
            return result
        dist.barrier()
        return call()

    def agree(self, facts: dict[str, Any]) -> None:
        """Check that all processes were started with the same ``facts``.

        Raises:
            RecipeError: a process has another recipe, version or folder than rank 0.
        """
        if self.size == 1:
            return

        facts_of_ranks: list[dict[str, Any]] = [{}] * self.size
        dist.all_gather_object(facts_of_ranks, facts)
        expected, *_ = facts_of_ranks
        for rank, theirs in enumerate(facts_of_ranks):
            changed = differences(expected, theirs)
            if changed:
                raise RecipeError(
                    f"rank {rank} of {self.size}: expected the command, files and versions of rank "
                    f"0, got others: {', '.join(changed)}; start every process with the same ones"
                )

    # --- errors -----------------------------------------------------------------------------------

    def says(self, text: str) -> bool:
        """Tell whether this process is the first to report ``text``, an error of several."""
        if self.store is None:
            return True
        key = f"said/{hashlib.sha256(text.encode()).hexdigest()}"
        try:
            return self.store.add(key, 1) == 1
        except RuntimeError:
            # The store has died with rank 0, so rank 1 reports.
            return self.rank == 1

    def leave(self) -> None:
        """Record that this process ends by itself."""
        if self.store is not None:
            with contextlib.suppress(RuntimeError):
                self.store.set(f"left/{self.rank}", "1")

    def find_dead(self) -> Deaths:
        """Find the processes whose heartbeat has stopped. It takes two and a half beats."""
        assert self.store is not None
        self.store.set_timeout(timedelta(seconds=10))
        others = [rank for rank in range(self.size) if rank != self.rank]
        try:
            # Adding 0 reads the counter.
            before = {rank: self.store.add(f"alive/{rank}", 0) for rank in others}
            time.sleep(2.5 * BEAT)

            left = {rank for rank in others if self.store.check([f"left/{rank}"])}
            names = []
            for rank in others:
                if rank in left:
                    continue
                beats = self.store.add(f"alive/{rank}", 0)
                if beats == before[rank]:
                    who = self.store.get(f"who/{rank}").decode()
                    names.append(f"rank {rank} ({who})")
        except RuntimeError:
            # Rank 0 hosts the store.
            return Deaths(["rank 0"], any_left=False)
        return Deaths(names, bool(left))


class _Outcome(NamedTuple):
    """The result of a call in rank 0, or its error."""

    result: Any = None
    error: str | None = None
    exit_code: int = 0


class Deaths(NamedTuple):
    """The processes that died, by name, and whether another one ended by itself."""

    names: list[str]
    any_left: bool


class _ReportedElsewhere(FredholmError):
    """An error that another process has reported."""

    said = True

    def __init__(self, text: str, exit_code: int):
        super().__init__(text)
        self.exit_code = exit_code


@contextlib.contextmanager
def joined(recipe: Recipe) -> Iterator[Group]:
    """Let the processes of a run meet, for the length of a ``with`` block.

    An error that several processes have is marked as reported in all but one of them. An error that
    follows from the death of a process becomes one that names this process.

    Raises:
        OptionError: the environment does not fit ``training.devices`` and ``training.nodes``, or
            the address is in use.
        TrainingFailed: not all processes met, or one died.
    """
    group = Group(launcher())
    _check_numbers(recipe, group)
    if group.size == 1:
        yield Group()
        return
    group.store = _connect(group)
    stop = _start_heartbeat(group)
    at_start = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    try:
        group.mesh = _make_mesh(group, recipe.parallel.domain)
        yield group
    except FredholmError as error:
        error.said = error.said or not group.says(str(error))
        raise
    except RuntimeError as error:
        if not is_message_error(error):
            raise

        # A connection is lost when its process died, or when it ended by itself because of an error
        # of its own, which it has reported. torchrun sends SIGTERM to all others as soon as one
        # process died; it would end them before they know which one.
        _set_sigterm(signal.SIG_IGN)
        deaths = group.find_dead()
        if not deaths.names and not deaths.any_left:
            raise
        text = (
            f"{' and '.join(deaths.names)} of {group.size} died or no longer answers; see its own "
            "messages, and continue with the same command and --resume"
        )
        failure = TrainingFailed(text)
        failure.said = not deaths.names or not group.says(text)
        raise failure from error
    finally:
        stop.set()
        group.leave()
        if dist.is_initialized():
            dist.destroy_process_group()
        _set_sigterm(at_start)


def _set_sigterm(handler: Any) -> None:
    """Set the handler of SIGTERM; in a thread, where only the caller may, do nothing."""
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGTERM, handler)


def timeout() -> timedelta:
    """Return how long a process waits for the others.

    It is FREDHOLM_TIMEOUT in seconds, by default ten minutes.

    Raises:
        OptionError: the variable is not a positive number.
    """
    text = os.environ.get(TIMEOUT) or "600"
    try:
        result = timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        result = timedelta(0)
    if result <= timedelta(0):
        raise OptionError(f"{TIMEOUT}: expected a positive number of seconds, got {text!r}")
    return result


def _processes_here(size: int) -> int:
    """Return the number of processes on this machine, which all machines must have."""
    torchrun = os.environ.get("LOCAL_WORLD_SIZE")
    if torchrun is not None and TorchElasticEnvironment.detect():
        here = int(torchrun)
    else:
        here = size // int(os.environ.get("SLURM_STEP_NUM_NODES") or 1)
    if here < 1 or size % here:
        raise OptionError(
            f"processes: expected as many on every machine, got {here} on this one and {size} in "
            "all"
        )
    return here


def _check_numbers(recipe: Recipe, group: Group) -> None:
    """Check the numbers of processes in a recipe against those that there are.

    A recipe may leave the numbers to the launcher, whose value is 1 then, or agree with it.
    """
    training = recipe.training
    for name, actual in (("devices", group.devices), ("nodes", group.nodes)):
        wanted = getattr(training, name)
        if wanted not in (1, actual):
            raise OptionError(_numbers_differ(name, wanted, actual, launched=group.size > 1))

    gpus = group.devices
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
    if group.devices > gpus:
        raise OptionError(
            f"processes: expected at most one for each of the {gpus} GPUs of this machine, got "
            f"{group.devices}; start fewer"
        )
    if training.strategy != "auto" and group.size == 1:
        raise OptionError(
            f"training.strategy: expected 'auto' for one process, got {training.strategy!r}; leave "
            "it out, or start several by training.devices, torchrun or srun"
        )

    parts = recipe.parallel.domain
    if group.size % parts:
        raise OptionError(
            f"parallel.domain: expected a divisor of the {group.size} processes of this run, got "
            f"{parts}; change it or training.devices"
        )
    if recipe.data.batch_size < group.size // parts:
        owners = f"{group.size} processes"
        if parts > 1:
            owners += f", {parts} of which share each"
        raise OptionError(
            f"data.batch_size: expected samples for {owners}, got {recipe.data.batch_size}; raise "
            "it"
        )


def _numbers_differ(
    name: str,
    wanted: int,
    actual: int,
    launched: bool,
) -> str:
    """Explain a number of processes that differs from the recipe's."""
    if launched:
        return (
            f"training.{name}: expected {actual}, on which this run was started, got {wanted}; "
            f"leave training.{name} out, or start as many"
        )
    return (
        f"training.{name}: expected {actual} without a launcher, got {wanted}; start the command "
        "on every machine with torchrun --nnodes or srun, see docs/scaling.md"
    )


def _connect(group: Group) -> Any:
    """Meet the other processes, and return the store that all of them can write to."""
    wait = timeout()
    address = group.environment.main_address
    port = group.environment.main_port
    os.environ["MASTER_ADDR"] = address
    os.environ["MASTER_PORT"] = str(port)
    backend = "gloo"
    if torch.cuda.is_available():
        backend = "cpu:gloo,cuda:nccl"
    try:
        store, rank, size = next(
            rendezvous(f"env://?rank={group.rank}&world_size={group.size}", timeout=wait)
        )
        store.set_timeout(wait)
        store = PrefixStore(f"fredholm-{next(_RUNS)}", store)
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


def _make_mesh(group: Group, parts: int) -> DeviceMesh | None:
    """Make the mesh of the ``parts`` processes that share samples with this one.

    Ranks form a matrix data x domain; the mesh is this rank's row. It is None for one part.
    """
    if parts == 1:
        return None

    # Creating a group is collective: every process creates all of them, in the same order.
    groups: list[Any] = []
    for start in range(0, group.size, parts):
        row = list(range(start, start + parts))
        groups.append(dist.new_group(row, timeout=timeout()))

    device_type = "cpu"
    if torch.cuda.is_available():
        device_type = "cuda"
    own_group = groups[group.rank // parts]
    return DeviceMesh.from_group(own_group, device_type, mesh_dim_names=("domain",))


def _start_heartbeat(group: Group) -> threading.Event:
    """Increment this process's counter in the store once per beat, until the event is set."""
    assert group.store is not None
    stop = threading.Event()
    store = group.store.clone()
    store.set(f"who/{group.rank}", f"process {os.getpid()} on {socket.gethostname()}")

    def beat() -> None:
        # If the store has died, the other threads report it.
        with contextlib.suppress(RuntimeError):
            while not stop.wait(BEAT):
                store.add(f"alive/{group.rank}", 1)

    threading.Thread(target=beat, daemon=True, name="fredholm-alive").start()
    return stop


def _file_name(path: str | None) -> str | None:
    """Reduce a path to the name of its file; folders may differ between machines."""
    if path is None:
        return None
    return Path(path).name


def facts_of(
    recipe: Recipe,
    folder: Path,
    resume: bool,
    overwrite: bool,
) -> dict[str, Any]:
    """Return everything that must be equal in all processes of a run."""
    code = code_digests(recipe)
    plain = recipe.to_dict()
    plain["import"] = sorted(code)
    plain["data"]["path"] = _file_name(recipe.data.path)
    plain["init_from"] = _file_name(recipe.init_from)
    return {
        "recipe": plain,
        "code": code,
        "version": {"fredholm": __version__, "torch": torch.__version__},
        "run": {
            "name": folder.name,
            "resume": resume,
            "overwrite": overwrite,
        },
    }
