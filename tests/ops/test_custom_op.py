"""No custom op has a derivative that is silently zero: what it lacks is refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.autograd import forward_ad

import fredholm
from fredholm.errors import DerivativeError
from fredholm.families.ckconv.grid_convolution import grid_convolution
from fredholm.families.infsa.graph import edge_product
from fredholm.families.itnet.hidden_first import mlp_kernel
from fredholm.ops.custom_op import custom_op, differentiable_op
from fredholm.ops.feature_map import Bank, scalar_bank
from fredholm.ops.scan import scan

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


def test_the_first_derivative_is_there(case):
    _, function, u = case
    assert torch.autograd.gradcheck(function, u.requires_grad_(), fast_mode=True)


def test_a_second_derivative_is_right_or_refused(case):
    name, function, u = case
    u.requires_grad_()
    (first,) = torch.autograd.grad(function(u).square().sum(), u, create_graph=True)
    if name == "scan":
        assert torch.autograd.gradgradcheck(function, u)
        return
    with pytest.raises(DerivativeError, match=f"fredholm::{name}_backward has no derivative"):
        torch.autograd.grad(first.square().sum(), u)


def forward_mode(function, u):
    with forward_ad.dual_level():
        function(forward_ad.make_dual(u, torch.ones_like(u)))


TRANSFORMS = {
    "jvp": lambda f, u: torch.func.jvp(f, (u,), (torch.ones_like(u),)),
    "jacfwd": lambda f, u: torch.func.jacfwd(f)(u),
    "grad": lambda f, u: torch.func.grad(lambda x: f(x).sum())(u),
    "hessian": lambda f, u: torch.func.hessian(lambda x: f(x).sum())(u),
    "dual numbers": forward_mode,
    "dual numbers that require grad": lambda f, u: forward_mode(f, u.requires_grad_()),
    "grad of vmap": lambda f, u: torch.func.grad(
        lambda x: torch.func.vmap(lambda y: f(y[None]))(x).sum()
    )(u),
}


@pytest.mark.parametrize("transform", list(TRANSFORMS))
def test_transforms_without_a_rule_are_refused(case, transform):
    name, function, u = case
    with pytest.raises(DerivativeError, match=f"fredholm::{name} was called under"):
        TRANSFORMS[transform](function, u)


def test_transforms_that_do_not_follow_the_op_pass(case):
    """Tangents of other tensors, and vmap by itself."""
    _, function, u = case
    value, tangent = torch.func.jvp(lambda x: x.sum() * function(u), (u,), (torch.ones_like(u),))
    torch.testing.assert_close(value, u.sum() * function(u))
    torch.testing.assert_close(tangent, u.numel() * function(u))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_vmap_passes():
    u = draw(2, 1, 6, 1, seed=3)
    single = torch.func.vmap(lambda x: OPS["affinity_product"](x[None])[0])(u)
    torch.testing.assert_close(single, OPS["affinity_product"](u))


def test_lists_and_missing_tensors():
    """Gradients of optional tensors and of lists arrive where they belong."""
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
    with pytest.raises(DerivativeError, match="fredholm::test_plain has no derivative"):
        op(x).sum().backward()


def test_every_op_is_registered_in_one_way():
    register = re.compile(
        r"library\.(custom_op|define|impl)\(|register_(autograd|fake|flop_formula)\("
    )
    files = {p.name for p in SOURCE.rglob("*.py") if register.search(p.read_text())}
    assert files == {"custom_op.py"}
