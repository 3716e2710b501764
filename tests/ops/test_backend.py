"""The choice of a backend follows static facts, and one that cannot run says why."""

from __future__ import annotations

import pytest
import torch

from fredholm.errors import BackendError, OptionError
from fredholm.ops import backend
from fredholm.ops.backend import check_backend, choose_backend, interpreted, machine_refusal
from fredholm.ops.tuning import case_name, choose_tiles, load_table, power_of_two, save_tiles

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def machine(monkeypatch, *, installed=True, interpreter=False, capability=(9, 0)):
    monkeypatch.setattr(backend, "INSTALLED", installed)
    monkeypatch.setenv("TRITON_INTERPRET", "1" if interpreter else "0")
    monkeypatch.setattr(backend, "_capability", lambda index: capability)


def test_a_kernel_runs_only_when_named(monkeypatch):
    machine(monkeypatch)
    assert choose_backend("auto", "op", CUDA, lambda: None) == "torch"
    assert choose_backend("torch", "op", CUDA, lambda: None) == "torch"
    assert choose_backend("triton", "op", CUDA, lambda: None) == "triton"
    assert choose_backend("checked", "op", CUDA, lambda: None) == "triton"

    machine(monkeypatch, interpreter=True)
    assert choose_backend("auto", "op", CPU, lambda: None) == "torch"
    assert choose_backend("triton", "op", CPU, lambda: None) == "triton"


@pytest.mark.parametrize(
    ("facts", "device", "match"),
    [
        ({"installed": False}, CUDA, r"not installed.*fredholm\[triton\]"),
        ({}, CPU, "are on cpu.*CUDA"),
        ({"capability": (7, 5)}, CUDA, "capability 7.5.*8.0"),
        ({"interpreter": True}, CUDA, "CPU tensors, got cuda"),
    ],
)
def test_a_requested_kernel_that_the_machine_cannot_run_is_refused(
    monkeypatch, facts, device, match
):
    machine(monkeypatch, **facts)
    for requested in ("triton", "checked"):
        with pytest.raises(BackendError, match=match):
            choose_backend(requested, "the op", device, lambda: None)


def test_a_requested_kernel_that_does_not_support_the_case_is_refused(monkeypatch):
    machine(monkeypatch)
    with pytest.raises(BackendError, match="cannot run the op: float64 is not served"):
        choose_backend("triton", "the op", CUDA, lambda: "float64 is not served")


def test_an_unknown_backend_is_refused_with_a_suggestion():
    with pytest.raises(OptionError, match="did you mean 'triton'"):
        check_backend("tritn")
    with pytest.raises(OptionError, match="auto"):
        choose_backend("cuda", "op", CPU, lambda: None)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels run on the GPU here")
def test_the_test_run_interprets_kernels():
    assert interpreted()
    if backend.INSTALLED:
        assert machine_refusal(CPU) is None


def test_saved_tiles_override_the_default_ones(tmp_path):
    path = tmp_path / "tiles.json"
    case = case_name("forward", CPU, d=64, w=128)
    assert choose_tiles(path, case, {"rows": 64, "keys": 32}) == {"rows": 64, "keys": 32}
    save_tiles(path, {case: {"rows": 128}})
    save_tiles(path, {"other": {"rows": 16}})
    assert choose_tiles(path, case, {"rows": 64, "keys": 32}) == {"rows": 128, "keys": 32}
    assert sorted(load_table(path)) == [case, "other"]


def test_power_of_two_rounds_up():
    assert [power_of_two(n, 1) for n in (0, 1, 2, 3, 4, 5, 64, 65)] == [1, 1, 2, 4, 4, 8, 64, 128]
