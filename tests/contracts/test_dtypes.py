"""The rule of dtypes for all operators: features have the parameters' dtype, outputs the features';
autocast overrides both. Operators also run on the meta device.
"""

from __future__ import annotations

import copy

import pytest
import torch

from fredholm.errors import DomainError, ShapeError

from ..tolerances import assert_close
from .cases import BATCH, POINTS
from .test_contract import signal

HALF = (torch.bfloat16, torch.float16)


@pytest.fixture
def operator(case):
    return case.operator()


@pytest.mark.parametrize("dtype", HALF)
def test_half_precision_agrees_with_float64(case, operator, dtype):
    """Parameters, features and outputs in half precision, positions and masses in float32: the same
    numbers in float64 agree up to rounding.
    """
    low = copy.deepcopy(operator).to(dtype)
    same = copy.deepcopy(low).double()
    u = signal(case).detach().to(dtype)
    domain = case.domains()[case.plain]
    out = low(u, domain.to(torch.float32))
    assert out.dtype == dtype
    assert_close(out.double(), same(u.double(), domain), "output", dtype)
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in low.parameters())
    if "causal" not in case.domains():
        return
    line = case.domains()["causal"]
    first, state = low.prefill(u[:, :3], low.init_state(BATCH, line.to(torch.float32)))
    last, _ = low.step(u[:, 3], state)
    steps = torch.cat([first, last[:, None]], 1)
    assert steps.dtype == dtype
    assert_close(steps.double(), same(u.double(), line)[:, :4], "steps", dtype)


def test_masses_beyond_half_precision_agree_with_float64(case, operator):
    """A mass of 100,000 per point and correspondingly small features: one forward, and a step after
    a prefill.
    """
    low = copy.deepcopy(operator).half()
    same = copy.deepcopy(low).double()
    u = (1e-2 * signal(case).detach()).half()
    for where in {case.plain, "causal"} & set(case.domains()):
        domain = case.domains()[where]
        domain = domain.with_masses(torch.full((domain.size,), 1e5, dtype=torch.float64))
        try:
            expected = same(u.double(), domain)
        except DomainError:
            continue
        single = domain.to(torch.float32)
        assert_close(low(u, single).double(), expected, where, torch.float16)
        if where == "causal":
            first, state = low.prefill(u[:, :3], low.init_state(BATCH, single))
            last, _ = low.step(u[:, 3], state)
            steps = torch.cat([first, last[:, None]], 1).double()
            assert_close(steps, expected[:, :4], "steps", torch.float16)


def test_features_of_another_dtype_are_refused(case, operator):
    domain = case.domains()[case.plain]
    u = signal(case).detach()
    single = copy.deepcopy(operator).float()
    floats = domain.to(torch.float32)
    for wrong in (torch.int64, torch.bool, torch.complex64):
        with pytest.raises(ShapeError, match=rf"floating-point numbers, got {wrong}"):
            single(u.to(wrong), floats)
    if not any(p.is_floating_point() for p in single.parameters()):
        return
    for wrong in (torch.float64, *HALF):
        with pytest.raises(ShapeError, match=rf"the operator's parameters, .*, got {wrong}; "):
            single(u.to(wrong), floats)
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ShapeError, match=r"parameters, .*, got torch.float64; "),
    ):
        single(u, floats)


def test_autocast_sets_the_dtype_of_the_output(case, operator):
    domain = case.domains()[case.plain].to(torch.float32)
    single = copy.deepcopy(operator).float()
    u = signal(case).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert single(u.float(), domain).dtype == torch.bfloat16
        assert single(u.bfloat16(), domain).dtype == torch.bfloat16
        assert operator(u, case.domains()[case.plain]).dtype == torch.float64


def test_operators_run_on_the_meta_device(case):
    """Build the operator there and call it on every domain."""
    with torch.device("meta"):
        operator = case.operator().float()
    u = torch.empty(BATCH, POINTS, case.dim, device="meta")
    for domain in case.domains().values():
        out = operator(u, domain.to("meta").to(torch.float32))
        assert out.is_meta
        assert out.shape[:2] == u.shape[:2]
    out.sum().backward()
