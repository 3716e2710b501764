"""The backend of a strategy changes no result of LUNA, linear attention, InfSA and CKConv."""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import BackendError, OptionError, StrategyError
from fredholm.integral import FFT
from fredholm.kernels import DiagonalStateSpaceKernel, LinearAttentionKernel
from fredholm.operators import (
    CKConv,
    Exact,
    InfSA,
    IntegralOperator,
    Linear,
    LunaAttention,
    Neumann,
    Resolvent,
)

from ..ops.triton_device import devices
from ..tolerances import assert_close

pytest.importorskip("triton")

DIM, HEADS, N = 8, 2, 9
LUNA = {"directions": 2, "channels": 2, "hidden": 3}


def elu(dim: int, heads: int) -> IntegralOperator:
    return IntegralOperator(dim, heads, kernel=LinearAttentionKernel(dim, heads), residual=False)


CASES = {
    "luna": (lambda: LunaAttention(DIM, HEADS, **LUNA), Linear, {}),
    "luna, maps of each head and side": (
        lambda: LunaAttention(DIM, HEADS, tied=False, per_head=True, **LUNA),
        Linear,
        {},
    ),
    "luna with an envelope": (
        lambda: LunaAttention(DIM, HEADS, preset="paper-gated", **LUNA),
        Linear,
        {},
    ),
    "linear attention": (lambda: elu(DIM, HEADS), Linear, {}),
    "infsa": (lambda: InfSA(DIM, HEADS), Exact, {}),
    "infsa, two hops": (lambda: InfSA(DIM, HEADS), Neumann, {"hops": 2}),
    "infsa, all hops": (lambda: InfSA(DIM, HEADS), Resolvent, {"tol": 1e-6}),
    "ckconv": (lambda: CKConv(DIM, HEADS), FFT, {}),
}


@devices
@pytest.mark.parametrize("name", list(CASES))
def test_triton_and_torch_backends_agree(name, device):
    make, strategy, options = CASES[name]
    op = make().to(device)
    u = torch.randn(2, N, DIM, device=device)
    domain = Domain.line(N, causal=True, measure="spacing" if name == "ckconv" else "uniform").to(
        device
    )
    found = []
    for backend in ("torch", "triton"):
        op.strategy = strategy(backend=backend, **options)
        out = op(u, domain)
        gradients = torch.autograd.grad(out.square().sum(), list(op.parameters()))
        found.append((out, torch.cat([g.flatten() for g in gradients])))
    for what, expected, actual in zip(("values", "gradients"), *found):
        assert_close(actual, expected, what)


@devices
def test_half_precision_tokens_are_widened_only_in_the_kernel(device):
    if device == "cpu":
        pytest.skip("the interpreter's bfloat16 is wrong")
    op = InfSA(DIM, HEADS, strategy=Neumann(1, backend="triton")).to(device)
    u = torch.randn(2, 300, DIM, device=device)
    expected = op(u)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert_close(op(u).float(), expected, dtype=torch.bfloat16)


@devices
def test_forms_without_a_kernel_are_refused(device):
    u = torch.randn(1, N, DIM, device=device)
    line = Domain.line(N, causal=True).to(device)
    luna = LunaAttention(DIM, HEADS, strategy=Linear(backend="triton"), **LUNA).to(device)
    with pytest.raises(StrategyError, match="quadratic form, which has no Triton kernel"):
        luna(u, line.replace(pairs=torch.ones(N, N, device=device).bool()))
    taps = IntegralOperator(
        DIM,
        HEADS,
        kernel=DiagonalStateSpaceKernel(HEADS, DIM // HEADS, state=2),
        strategy=FFT("triton"),
    )
    with pytest.raises(StrategyError, match="by FFT convolution, which has no Triton kernel"):
        taps.to(device)(u, line.replace(kind="spacing"))
    with pytest.raises(BackendError, match="float32, and the tensors are in float64"):
        luna.double()(u.double(), line)


@pytest.mark.parametrize("strategy", [Exact, Linear, Neumann, Resolvent, FFT])
def test_an_unknown_backend_is_named(strategy):
    with pytest.raises(OptionError, match="did you mean 'triton'"):
        strategy(backend="tritn")
