"""No custom op has a derivative that is silently zero: what it lacks its plain form has, or it is
refused by name.
"""

from __future__ import annotations

import re
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import fredholm
from fredholm.errors import DerivativeError
from fredholm.families.ckconv import CKConv
from fredholm.families.ckconv.grid_convolution import grid_convolution
from fredholm.families.infsa.graph import EdgeOptions, edge_product
from fredholm.families.itnet.hidden_first import mlp_kernel
from fredholm.integral import Exact
from fredholm.models.depth import FeedForward
from fredholm.ops.attention import attention
from fredholm.ops.custom_op import custom_op, differentiable_op
from fredholm.ops.feature_map import Bank, scalar_bank
from fredholm.ops.linear_attention import Banks, banked_attention, linear_attention
from fredholm.ops.scan import scan

from ..tolerances import assert_close
from .triton_device import devices

SOURCE = Path(fredholm.__file__).parent


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


BANK = Bank(draw(1, 2, 3), draw(1, 2, 3), draw(1, 2, 1, 3), draw(1, 2, 1))
LAGS, READOUT = draw(11, 2), draw(1, 1, 1, 2)
RATE, WIDE, SCALE = draw(3), draw(1, 1, 1, 3), draw(1, 3, 1)


# each as a function of one tensor (2, 1, 6, 1) whose points come third
OPS = {
    "affinity_product": lambda u: edge_product(u, u, u, torch.ones(1, 6).double())[0],
    "grid_convolution": lambda u: grid_convolution(u, LAGS, READOUT, (6,)),
    "mlp_kernel": lambda u: mlp_kernel(u, u, u, WIDE, query_bias=u * RATE, scale=SCALE),
    "piecewise_linear": lambda u: scalar_bank(u.flatten(2).repeat(1, 1, 50), BANK),
    "scalar_bank": lambda u: scalar_bank(u.flatten(2), BANK, activation="gelu"),
    "scan": lambda u: scan(0.5 * u[:, 0], u[:, 0]),
}  # fmt: skip


@pytest.fixture(params=list(OPS))
def case(request):
    return request.param, OPS[request.param], draw(2, 1, 6, 1, seed=3)


def test_the_first_derivative_is_correct(case):
    _, function, u = case
    assert torch.autograd.gradcheck(function, u.requires_grad_(), fast_mode=True)


def test_the_second_derivative_equals_the_plain_forms(case):
    _, function, u = case
    assert torch.autograd.gradgradcheck(function, u.requires_grad_(), fast_mode=True)


def test_a_third_derivative_is_correct(case):
    _, function, u = case
    rate = torch.ones((), dtype=u.dtype, requires_grad=True)

    def second(rate):
        (g,) = torch.autograd.grad(function(rate * u).square().sum(), rate, create_graph=True)
        (h,) = torch.autograd.grad(g, rate, create_graph=True)
        return h

    (third,) = torch.autograd.grad(second(rate), rate)
    step = 1e-5
    sides = [second((rate + s).detach().requires_grad_()).detach() for s in (step, -step)]
    torch.testing.assert_close(third, (sides[0] - sides[1]) / (2 * step), rtol=1e-6, atol=1e-6)


def forward_mode(function, u, along):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(u, along))).tangent


def by_element(function, u):
    return torch.func.vmap(lambda x: function(x[None])[0])(u)


GRADIENTS = {
    "grad": lambda f, u, v: (torch.func.grad(lambda x: f(x).square().sum())(u) * v).sum(),
    "grad of vmap": lambda f, u, v: (
        torch.func.grad(lambda x: by_element(f, x).square().sum())(u) * v
    ).sum(),
    "vmap of grad": lambda f, u, v: (
        torch.func.vmap(torch.func.grad(lambda x: f(x[None]).square().sum()))(u) * v
    ).sum(),
    "jacfwd": lambda f, u, v: (torch.func.jacfwd(lambda x: f(x).square().sum())(u) * v).sum(),
}
TANGENTS = {
    "jvp": lambda f, u, v: torch.func.jvp(f, (u,), (v,))[1],
    "jvp of vmap": lambda f, u, v: torch.func.jvp(lambda x: by_element(f, x), (u,), (v,))[1],
    "dual numbers": forward_mode,
    "dual numbers that require grad": lambda f, u, v: forward_mode(f, u.requires_grad_(), v),
}


@pytest.mark.parametrize("transform", [*GRADIENTS, *TANGENTS])
def test_transforms_differentiate_the_plain_form(case, transform):
    _, function, u = case
    along = draw(*u.shape, seed=4)
    x = u.clone().requires_grad_()
    found = (GRADIENTS | TANGENTS)[transform](function, u, along)
    sides = [function(u.detach() + s * along) for s in (1e-6, -1e-6)]
    if transform in GRADIENTS:
        (expected,) = torch.autograd.grad(function(x).square().sum(), x)
        torch.testing.assert_close(found, (expected * along).sum())
    else:
        torch.testing.assert_close(found, (sides[0] - sides[1]) / 2e-6, rtol=1e-6, atol=1e-7)


def test_the_hessian_equals_two_backward_passes(case):
    _, function, u = case
    x = u.clone().requires_grad_()
    along = draw(*u.shape, seed=4)
    (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
    (expected,) = torch.autograd.grad((first * along).sum(), x)
    hessian = torch.func.hessian(lambda x: function(x).square().sum())(u)
    torch.testing.assert_close(torch.tensordot(hessian, along, 4), expected)


def test_transforms_that_do_not_differentiate_the_op_run_it():
    """Tangents of other tensors, and vmap alone, which calls the op once per element."""
    u = draw(2, 1, 6, 1, seed=3)
    calls = []
    op = custom_op(
        "test_followed",
        "(Tensor x) -> Tensor",
        lambda x: calls.append(x.shape) or 2 * x,
        fake=torch.empty_like,
        plain=lambda x: 2 * x,
    )
    _, tangent = torch.func.jvp(lambda x: x.sum() * op(u), (u,), (torch.ones_like(u),))
    torch.testing.assert_close(tangent, u.numel() * 2 * u)
    assert calls == [u.shape]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(torch.func.vmap(op)(u), 2 * u)
    assert calls[1:] == [u.shape[1:]] * 2
    assert torch.equal(torch.func.jvp(op, (u,), (u,))[1], 2 * u)
    assert len(calls) == 3


def test_without_a_plain_form_other_derivatives_are_refused():
    op = differentiable_op(
        "test_no_plain",
        tensors="Tensor x",
        options="int n",
        forward=lambda x, n: n * x,
        backward=lambda grad, x, n, needs: [n * grad],
        fake=lambda x, n: torch.empty_like(x),
        flops=(lambda *_: 1, lambda *_: 1),
    )
    u = torch.ones(3, requires_grad=True)
    (first,) = torch.autograd.grad(op(u, 2).square().sum(), u, create_graph=True)
    with pytest.raises(
        DerivativeError, match="got fredholm::test_no_plain_backward, which has none"
    ):
        torch.autograd.grad(first.sum(), u)
    for name in ("grad", "jacfwd"):
        with pytest.raises(DerivativeError, match="ordinary call of fredholm::test_no_plain, got"):
            getattr(torch.func, name)(lambda x: op(x, 2).sum())(u.detach())


@pytest.mark.parametrize("chunk", ["Exact", "FeedForward"])
def test_recomputed_blocks_can_be_transformed(chunk):
    """Blocks are recomputed in the backward; torch.func has no rule for a checkpoint."""
    u = draw(2, 6, 4)
    if chunk == "Exact":
        function = CKConv(4, width=3, length=6, strategy=Exact(memory=1)).double()
    else:
        function = FeedForward(4, chunk=2).double()
    x = u.clone().requires_grad_()
    (expected,) = torch.autograd.grad(function(x).square().sum(), x)
    found = torch.func.grad(lambda x: function(x).square().sum())(u)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("masked", [False, True])
def test_fused_attention_is_differentiable_twice(masked):
    query, key, value = (draw(1, 2, n, 3, seed=n).requires_grad_() for n in (5, 6, 7))
    key, value = key[:, :, :5], value[:, :, :5]
    domain = fredholm.Domain.line(5, causal=not masked, dtype=torch.float64)
    if masked:
        domain = domain.replace(pairs=draw(5, 5))
    call = lambda *x: attention(*x, domain.quadrature())  # noqa: E731
    inputs = [x.detach().requires_grad_() for x in (query, key, value)]
    assert torch.autograd.gradgradcheck(call, inputs, fast_mode=True)
    tangents = [draw(*x.shape, seed=9) for x in inputs]
    _, found = torch.func.jvp(call, tuple(inputs), tuple(tangents))
    sides = [call(*(x + s * v for x, v in zip(inputs, tangents))) for s in (1e-6, -1e-6)]
    torch.testing.assert_close(found, (sides[0] - sides[1]) / 2e-6, rtol=1e-6, atol=1e-7)


LINE = fredholm.Domain.line(6, causal=True)
TRITON = {
    "edge_product": lambda u, b: edge_product(
        u, u, u, torch.ones(1, 6).to(u), options=EdgeOptions(causal=True), backend=b
    )[0],
    "grid_convolution": lambda u, b: grid_convolution(
        u, LAGS.to(u), READOUT.to(u), (6,), backend=b
    ),
    "mlp_kernel": lambda u, b: mlp_kernel(
        u, u, u, WIDE.to(u), query_bias=u * RATE.to(u), scale=SCALE.to(u), backend=b
    ),
    "linear_attention": lambda u, b: linear_attention(
        u.exp(), u.exp(), u, LINE.to(u.device).quadrature(), floor=1e-6, backend=b
    ),
    "banked_attention": lambda u, b: banked_attention(
        u.mT, u.mT, u, LINE.to(u.device).quadrature(),
        Banks(*2 * [Bank(*(x.to(u) for x in BANK))], activation="gelu"), floor=1e-6, backend=b,
    ),
}  # fmt: skip


@devices
@pytest.mark.parametrize("name", TRITON)
def test_triton_kernels_differentiate_twice_by_their_plain_forms(name, device):
    pytest.importorskip("triton")
    u, along = (draw(2, 1, 6, 1, seed=n).float().to(device) for n in (3, 4))
    results = []
    for backend in ("triton", "torch"):
        function = partial(TRITON[name], b=backend)
        _, tangent = torch.func.jvp(function, (u,), (along,))
        x = u.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x).square().sum(), x, create_graph=True)
        results.append((tangent, *torch.autograd.grad((first * along).sum(), x)))
    for found, expected in zip(*results):
        assert_close(found, expected)


def test_gradients_reach_optional_tensors_and_lists():
    """Each gradient reaches its own tensor."""
    op = differentiable_op(
        "test_lists",
        tensors="Tensor x, Tensor? y, Tensor[] z",
        options="int n",
        forward=lambda x, y, z, n: n * x + sum((i + 2) * t for i, t in enumerate(z)),
        fake=lambda x, y, z, n: torch.empty_like(x),
        backward=lambda grad, x, y, z, n, needs: [
            rate * grad for rate, needed in zip([n, 0, *range(2, 2 + len(z))], needs) if needed
        ],
        flops=(lambda *_: 1, lambda *_: 1),
    )
    fixed = torch.ones(2, dtype=torch.float64)
    x, a, b = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    assert torch.autograd.gradcheck(lambda *t: op(t[0], None, [t[1], fixed, t[2]], 5), (x, a, b))
    torch.library.opcheck(torch.ops.fredholm.test_lists, (x, None, [a, b], 5))
    (alone,) = torch.autograd.grad(op(x.detach(), None, [a.detach(), b], 5).sum(), b)
    assert alone.tolist() == [3.0, 3.0]


def test_an_op_without_a_backward_refuses_to_be_differentiated():
    op = custom_op("test_plain", "(Tensor x) -> Tensor", torch.sin, fake=torch.empty_like)
    x = torch.ones(2, requires_grad=True)
    assert torch.equal(op(x), x.sin())
    with pytest.raises(DerivativeError, match="got fredholm::test_plain, which has none; detach"):
        op(x).sum().backward()


def test_every_op_is_registered_in_one_way():
    register = re.compile(
        r"library\.(custom_op|define|impl)\(|register_(autograd|fake|flop_formula)\("
    )
    files = {p.name for p in SOURCE.rglob("*.py") if register.search(p.read_text())}
    assert files == {"custom_op.py"}
