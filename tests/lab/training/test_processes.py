"""Several processes as one run: equal numbers, one writer, and a clear line when one dies."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fredholm.errors import OptionError
from fredholm.lab.training.checkpoints import Checkpoints
from fredholm.lab.training.fit import _graceful
from fredholm.lab.training.leases import read_holder
from fredholm.lab.training.module import RecipeLearner
from fredholm.lab.training.processes import TIMEOUT, Group, first_process, joined, timeout
from fredholm.training import Interrupted, TrainingFailed, load_recipe, train
from tests.lab.training.conftest import SMALL

HERE = Path(__file__).parent
EXACT = [
    *SMALL,
    *("training.precision=64", "training.ema_decay=0.9", "training.clip_norm=0.1"),
    *("data.batch_size=401", "data.eval_batch_size=59", "training.checkpoint_steps=1"),
    *("model.body.dropout=0", "data.augment={}", "training.epochs=2", "schedule.warmup_epochs=0"),
    "training.metric=auc",
]
STOP = [*EXACT, "training.epochs=4", "optimizer.lr=1e-9"]
STOP += ["training.early_stop={metric: val_accuracy, patience: 1}", "schedule.min_lr_ratio=1"]
RAGGED = [
    *(f"import=[{HERE / 'ragged.py'}]", "data.name=ragged", "model=backbone_nano"),
    *("operator=softmax", "model.body.dim=8", "model.body.heads=1", "model.head.pool=every"),
    *("training.precision=64", "training.epochs=2", "data.batch_size=7", "data.eval_batch_size=11"),
    *("model.body.dropout=0", "data.augment={}", "training.ema_decay=null"),
    "training.metric=balanced_accuracy",
]


def rows_of(folder: Path) -> list[dict[str, float]]:
    with (folder / "metrics.csv").open() as file:
        return [
            {key: float(value) for key, value in row.items() if key != "seconds" and value}
            for row in csv.DictReader(file)
        ]


def assert_one_run(alone: Path, together: Path):
    """Check that both have the same table of epochs and the same saved weights."""
    left, right = rows_of(alone), rows_of(together)
    assert len(left) == len(right)
    for one, other in zip(left, right):
        assert other == pytest.approx(one, rel=1e-9)
    weights, others = (load_file(run / "model" / "model.safetensors") for run in (alone, together))
    for name, value in weights.items():
        torch.testing.assert_close(others[name], value, rtol=1e-7, atol=1e-9)
    assert read_holder(together) is None


def start(*arguments: str, nodes: int = 1, node: int = 0, port: int = 0, each: int = 2, **changes):
    """Start torchrun with this machine's address, because a name would have to be resolved."""
    place = ["--standalone", "--local-addr=127.0.0.1"]
    if nodes > 1:
        place = [f"--nnodes={nodes}", f"--node-rank={node}", "--rdzv-backend=c10d"]
        place += [f"--rdzv-endpoint=127.0.0.1:{port}", "--local-addr=127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *place, f"--nproc-per-node={each}"]
    return popen(*command, *arguments, **changes)


def popen(*command: str, **changes: str):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **changes}
    environment["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # no warnings of names that nobody could tell
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, env=environment, **pipes)


def finished(process: subprocess.Popen, seconds: float) -> str:
    """Return the output of a process after its end. One that does not end is killed and fails with
    its output.
    """
    try:
        return process.communicate(timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its processes
        pytest.fail(f"not over after {seconds:g} s\n{process.communicate(timeout=60)[0]}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


# --- two processes, started once ------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Run jobs with two processes and with one; return the folders and each process's report."""
    folder = tmp_path_factory.mktemp("together")
    alone = folder / "alone"
    train(load_recipe("digits", EXACT), alone / "exact")
    train(load_recipe("digits", STOP), alone / "stop")
    train(load_recipe("digits", RAGGED), alone / "ragged")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RecipeLearner, "training_step", _stopping(RecipeLearner.training_step))
        with pytest.raises(Interrupted):
            train(load_recipe("digits", EXACT), folder / "resumed")
    (folder / "taken").mkdir()
    (folder / "taken" / "notes.txt").write_text("mine")
    sharded = "training.strategy=fsdp2"
    jobs = [
        ("ddp", EXACT, False),
        ("fsdp2", [*EXACT, sharded], False),
        ("stop", STOP, False),
        ("ragged", RAGGED, False),
        ("resumed", [*EXACT, sharded], True),
        ("stopped", [*EXACT, sharded], False),
        ("unlike", EXACT, False),
        ("taken", EXACT, False),
        ("nan", [*EXACT, "optimizer.lr=1e200"], False),
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    process = start(str(HERE / "together.py"), str(folder))
    output = finished(process, 280)
    assert process.returncode == 0, output
    said = [json.loads((folder / f"outcome-{rank}.json").read_text()) for rank in range(2)]
    return folder, said


def _stopping(original):
    def step(self, batch, batch_idx):
        if self.trainer.fit_loop.total_batch_idx == 4:
            raise Interrupted("stopped")
        return original(self, batch, batch_idx)

    return step


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_averages_clipping_and_uneven_batches_agree_with_one_process(runs, strategy):
    folder, said = runs
    assert_one_run(folder / "alone" / "exact", folder / strategy)
    assert [each[strategy]["steps"] for each in said] == [6, 6]
    assert said[0][strategy]["lines"] == 2
    assert said[1][strategy]["lines"] == 0  # rank 0 alone reports


@pytest.mark.slow
def test_early_stop_agrees_with_one_process(runs):
    folder, _ = runs
    assert len(rows_of(folder / "alone" / "stop")) == 2  # of four epochs
    assert_one_run(folder / "alone" / "stop", folder / "stop")


@pytest.mark.slow
def test_parts_of_a_batch_are_weighted_by_their_labels(runs):
    folder, _ = runs
    assert_one_run(folder / "alone" / "ragged", folder / "ragged")


@pytest.mark.slow
def test_a_run_is_resumed_by_another_number_of_processes(runs):
    folder, said = runs
    assert_one_run(folder / "alone" / "exact", folder / "resumed")  # by one, then sharded over two
    assert {each["stopped"]["kind"] for each in said} == {"Interrupted"}
    train(load_recipe("digits", EXACT), folder / "stopped", resume=True)  # the other way round
    assert_one_run(folder / "alone" / "exact", folder / "stopped")


@pytest.mark.slow
def test_an_error_of_all_processes_is_printed_once(runs):
    folder, said = runs
    for job, kind, text in (
        ("unlike", "RecipeError", r"rank 1 of 2: .*optimizer.lr \(0.001 -> 0.002\)"),
        ("taken", "OptionError", "is not a run folder"),
        ("nan", "TrainingFailed", "loss: (nan|inf)"),
    ):
        assert re.search(text, said[0][job]["error"])
        assert said[0][job]["kind"] == kind
        assert sorted(each[job]["said"] for each in said) == [False, True]
    assert not (folder / "unlike").exists()
    assert [p.name for p in (folder / "taken").iterdir()] == ["notes.txt"]


def test_sigterm_after_a_lost_connection_does_not_end_the_process():
    """torchrun's SIGTERM may arrive between the error and the search for the dead process."""
    before = signal.getsignal(signal.SIGTERM)
    pair = Group()
    pair.size = 2
    try:
        with pytest.raises(RuntimeError, match="gloo"), _graceful(Checkpoints(None), pair):
            raise RuntimeError("gloo: connection closed by peer")
        os.kill(os.getpid(), signal.SIGTERM)  # ended the process before
    finally:
        signal.signal(signal.SIGTERM, before)


# --- from the command line ------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_process_is_named_and_the_run_resumes(tmp_path):
    folder = tmp_path / "killed"
    chosen = [*EXACT, "data.batch_size=100", "training.checkpoint_steps=2"]
    process = start(str(HERE / "worker.py"), str(folder), "0.1", *chosen)
    wait_for_checkpoint(process, folder, "step-*4.ckpt")
    _, second = sorted(_children(process.pid), key=lambda p: p != read_holder(folder).process)
    os.kill(second, signal.SIGKILL)
    output = finished(process, 120)
    assert process.returncode == 1
    ours = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(ours) == 1, output
    assert f"rank 1 (process {second} on" in ours[0]
    assert "continue with the same command and --resume" in ours[0]
    recipe = load_recipe("digits", [*chosen, "name=killed"])
    train(recipe, folder, resume=True)
    train(recipe, tmp_path / "whole")
    assert_one_run(tmp_path / "whole", folder)


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_stopping_one_process_stops_all_with_a_checkpoint(tmp_path, which):
    """In the middle of an accumulation, as at a cluster's time limit."""
    folder = tmp_path / "told"
    chosen = [*EXACT, "data.batch_size=20", "training.accumulate=4", "training.checkpoint_steps=2"]
    process = start(str(HERE / "worker.py"), str(folder), "0.1", *chosen)
    wait_for_checkpoint(process, folder, "step-*2.ckpt")
    time.sleep(0.15)
    ranks = sorted(_children(process.pid), key=lambda p: p != read_holder(folder).process)
    os.kill(ranks[which], signal.SIGTERM)
    output = finished(process, 60)
    assert process.returncode != 0, output
    assert "--resume" in output
    train(load_recipe("digits", [*chosen, "name=told"]), folder, resume=True)
    train(load_recipe("digits", [*chosen, "name=told"]), tmp_path / "whole")
    assert_one_run(tmp_path / "whole", folder)


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, pattern: str) -> None:
    deadline = time.monotonic() + 120
    while not any((folder / "checkpoints").glob(pattern)):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "no checkpoint within two minutes"
        time.sleep(0.02)


def _children(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True)
    return [int(line) for line in found.stdout.split()]


@pytest.mark.slow
def test_two_torchruns_on_the_loopback_form_one_run(tmp_path):
    port = free_port()
    base = ["-m", "fredholm", "train", "digits", *EXACT, "--runs", str(tmp_path)]
    agents = [
        start(*base, "--name", "two", nodes=2, node=node, port=port, each=1) for node in range(2)
    ]
    outputs = [finished(agent, 200) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert sum(output.count("epoch 2/2") for output in outputs) == 1
    train(load_recipe("digits", EXACT), tmp_path / "one")
    assert_one_run(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_devices_start_processes_without_a_launcher(tmp_path):
    lines: list[str] = []
    chosen = load_recipe("digits", [*EXACT, "training.devices=2"])
    result = train(chosen, tmp_path / "two", report=lines.append)
    assert [line[:9] for line in lines if line.startswith("epoch")] == ["epoch 1/2", "epoch 2/2"]
    assert train(chosen, tmp_path / "two", resume=True) == result
    train(load_recipe("digits", EXACT), tmp_path / "one")
    assert_one_run(tmp_path / "one", tmp_path / "two")
    with pytest.raises(OptionError, match="holds a finished run"):
        train(chosen, tmp_path / "two")
    nan = tmp_path / "nan"
    with pytest.raises(TrainingFailed, match=r"^loss: "):
        train(load_recipe("digits", [*EXACT, "training.devices=2", "optimizer.lr=1e200"]), nan)


@pytest.mark.slow
def test_the_variables_of_srun_form_one_run(tmp_path):
    """The variables of srun, without SLURM."""
    base = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1"}
    base |= {"SLURM_JOB_NAME": "train", "SLURM_NODEID": "0", "SLURM_NTASKS_PER_NODE": "2"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-m", "fredholm", "train", "digits", *EXACT]
    command += ["training.epochs=1", "--runs", str(tmp_path)]
    tasks = [
        popen(*command, **base, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank)) for rank in (0, 1)
    ]
    outputs = [finished(task, 200) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert "epoch 1/1" in outputs[0]
    assert outputs[1] == ""


# --- without other processes ----------------------------------------------------------------------


@pytest.fixture
def launched(monkeypatch):
    """Set the environment of torchrun for one of two processes."""

    def arrange(**changes: str) -> None:
        facts = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        facts |= {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1"}
        facts |= {"MASTER_PORT": str(free_port()), "GROUP_RANK": "0", TIMEOUT: "1"}
        for name, value in (facts | changes).items():
            monkeypatch.setenv(name, value)

    return arrange


def test_an_address_in_use_is_named(launched, recipe):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        launched(MASTER_PORT=str(port))
        with pytest.raises(OptionError, match=rf"127.0.0.1:{port}: the address is in use"):
            joined(recipe()).__enter__()


def test_absent_processes_end_in_a_timeout(launched, recipe):
    launched()
    with pytest.raises(TrainingFailed, match=r"rank 0 of 2: not all processes met at 127.0.0.1"):
        joined(recipe()).__enter__()


@pytest.mark.parametrize(
    ("overrides", "changes", "message"),
    [
        (["training.devices=4"], {}, "training.devices: expected 2, .* was started, got 4"),
        (["data.batch_size=1"], {}, "data.batch_size: expected samples for 2 processes, got 1"),
        ([], {"LOCAL_WORLD_SIZE": "3"}, "processes: .* got 3 on this one and 2 in all"),
        ([], {TIMEOUT: "soon"}, f"{TIMEOUT}: expected a positive number .*, got 'soon'"),
    ],
)
def test_mismatched_numbers_of_processes_are_refused(launched, recipe, overrides, changes, message):
    launched(**changes)
    with pytest.raises(OptionError, match=message):
        joined(recipe(*overrides)).__enter__()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.nodes=2", "expected 1 without a launcher, got 2; start the command on every"),
        ("training.strategy=ddp", "training.strategy: expected 'auto' for one process, got 'ddp'"),
    ],
)
def test_options_of_several_processes_are_refused_in_one(tmp_path, recipe, override, message):
    with pytest.raises(OptionError, match=message):
        train(recipe(override), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_environment_decides_which_process_prints(launched, monkeypatch):
    assert first_process()
    assert (Group().rank, Group().size, Group().first) == (0, 1, True)
    assert timeout().total_seconds() == 600
    launched(RANK="1", LOCAL_RANK="1")
    assert not first_process()
    # A batch script that calls no srun has some of SLURM's variables.
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert first_process()


def test_fsdp_is_a_strategy_by_name(recipe):
    assert recipe("training.strategy=fsdp").training.strategy == "fsdp2"
