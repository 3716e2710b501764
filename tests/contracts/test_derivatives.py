"""Forward mode, second derivatives, ``torch.func`` and ``vmap`` of the fast forms, against the
definition and against finite differences in float64.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap

from fredholm.errors import DerivativeError

from ..tolerances import assert_close
from .cases import BATCH
from .test_contract import signal


class Called(torch.nn.Module):
    """An operator, or its dense definition, as a function of features and parameters."""

    def __init__(self, operator, domain, *, dense=False):
        super().__init__()
        self.operator, self.domain, self.dense = operator, domain, dense
        named = {f"operator.{name}": p.detach() for name, p in operator.named_parameters()}
        self.names, self.values = list(named), list(named.values())

    def forward(self, u):
        return (self.operator.dense if self.dense else self.operator)(u, self.domain)

    def of(self, u, *values):
        return functional_call(self, dict(zip(self.names, values)), (u,))


@pytest.fixture
def operator(case):
    return case.operator()


def directions(inputs):
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in inputs]


def test_forward_mode_equals_the_definition_and_differences(case, operator):
    """A product with the Jacobian, by torch.func and by dual numbers."""
    domain = case.domains()[case.plain]
    fast, definition = (Called(operator, domain, dense=d) for d in (False, True))
    inputs = [signal(case).detach(), *fast.values]
    tangents = directions(inputs)
    _, expected = jvp(definition.of, tuple(inputs), tuple(tangents))
    assert_close(jvp(fast.of, tuple(inputs), tuple(tangents))[1], expected, "jvp")
    with forward_ad.dual_level():
        out = fast.of(*(forward_ad.make_dual(x, v) for x, v in zip(inputs, tangents)))
        assert_close(forward_ad.unpack_dual(out).tangent, expected, "tangent")
    step = 1e-6
    sides = [fast.of(*(x + s * v for x, v in zip(inputs, tangents))) for s in (step, -step)]
    difference = (sides[0] - sides[1]) / (2 * step)
    assert (difference - expected).abs().max() < 1e-6 * expected.abs().max()


def test_second_derivatives_equal_the_definition_and_differences(case, operator):
    """A product with the Hessian, by two backward passes."""
    domains = case.domains()
    domain = domains.get("causal padded", domains[case.plain])
    fast, definition = (Called(operator, domain, dense=d) for d in (False, True))
    values = [signal(case).detach(), *fast.values]
    along = directions(values)

    def gradient(called, inputs, **options):
        out = called.of(*inputs)
        above = directions([out])
        return torch.autograd.grad(out, inputs, above, materialize_grads=True, **options)

    def product(called):
        inputs = [x.clone().requires_grad_() for x in values]
        first = gradient(called, inputs, create_graph=True)
        rate = sum((g * v).sum() for g, v in zip(first, along))
        return torch.autograd.grad(rate, inputs, materialize_grads=True)

    found = product(fast)
    for name, g, h in zip(("u", *fast.names), found, product(definition)):
        assert_close(g, h, f"second derivative in {name}")
    step = 1e-6
    sides = [
        gradient(fast, [(x + s * v).requires_grad_() for x, v in zip(values, along)])
        for s in (step, -step)
    ]
    scale = max(g.abs().max() for g in found)
    for g, high, low in zip(found, *sides):
        assert (g - (high - low) / (2 * step)).abs().max() < 1e-6 * scale


def test_batched_gradients_equal_a_loop(case, operator):
    """``is_grads_batched=True``, which vectorized Jacobians use, equals a loop."""
    called = Called(operator, case.domains()[case.plain])
    u = signal(case).detach()
    inputs = [x.requires_grad_() for x in (u, *called.values)]
    out = called.of(*inputs)
    above = torch.stack([torch.randn_like(out) for _ in range(2)])

    def gradients(above, **options):
        arguments = {"retain_graph": True, "materialize_grads": True, **options}
        return torch.autograd.grad(out, inputs, above, **arguments)

    if "resolvent" in case.label:
        with pytest.raises(DerivativeError, match="take the gradients one by one"):
            gradients(above, is_grads_batched=True)
        return
    together = gradients(above, is_grads_batched=True)
    alone = [gradients(g) for g in above]
    for name, g, *each in zip(("u", *called.names), together, *alone):
        assert_close(g, torch.stack(each), f"gradients of {name}")


def test_vmap_over_samples_equals_a_loop(case, operator):
    """``vmap(grad(...))`` over a batch, and ``vmap`` alone, equal a loop over its elements."""
    domain = next(d for d in case.domains().values() if d.batch is None)
    called = Called(operator, domain)
    u = signal(case).detach()

    def loss(values, x):
        return called.of(x[None], *values).square().sum()

    with warnings.catch_warnings():
        # A missing batching rule warns.
        warnings.simplefilter("error")
        together = vmap(grad(loss), in_dims=(None, 0))(tuple(called.values), u)
        outputs = vmap(lambda x: operator(x[None], domain)[0])(u)
    assert_close(outputs, operator(u, domain), "vmap")
    values = [x.requires_grad_() for x in called.values]
    for b in range(BATCH):
        alone = torch.autograd.grad(loss(values, u[b]), values, materialize_grads=True)
        for name, g, h in zip(called.names, together, alone):
            assert_close(g[b], h, f"gradient of {name} of sample {b}")
