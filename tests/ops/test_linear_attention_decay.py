"""Linear attention with a decay of the past: chunks, prefills and steps equal the dense density, in
values and gradients, and no rate overflows.
"""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import BackendError, StrategyError
from fredholm.ops.linear_attention import (
    JointFeatures,
    advance_moment,
    decayed_prefix_sums,
    linear_attention,
    linear_attention_naive,
)
from fredholm.ops.linear_attention.decayed import _traced_sums
from fredholm.quadrature import Quadrature

from ..tolerances import assert_close

B, H, N, R, D = 2, 3, 7, 4, 5
FLOOR = 1e-6
SHAPES = {"all": (1, 1, N), "head": (1, H, N), "token": (B, H, N)}


def inputs():
    torch.manual_seed(1)
    query, key, value = (torch.randn(B, H, N, size, dtype=torch.float64) for size in (R, R, D))
    return [query.exp().requires_grad_(), key.exp().requires_grad_(), value.requires_grad_()]


def rates(shape: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.rand(SHAPES[shape], generator=generator, dtype=torch.float64).requires_grad_()


def domains() -> dict[str, Domain]:
    line = Domain.line(N, causal=True, dtype=torch.float64)
    valid = torch.tensor([[True] * N, [False, True, True, False, True, True, False]])
    torch.manual_seed(5)
    return {
        "line": line,
        "counting": line.replace(kind="counting"),
        "masses": line.with_masses(torch.rand(N, dtype=torch.float64)),
        "padded": line.replace(valid=valid),
        "clock": Domain.timestamps(torch.rand(B, N, dtype=torch.float64).cumsum(-1), valid=valid),
    }


@pytest.mark.parametrize("floor", [FLOOR, None])
@pytest.mark.parametrize("chunk", [1, 3, 64])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("where", domains())
def test_chunks_equal_the_density(where, shape, chunk, floor):
    leaves = [*inputs(), rates(shape)]
    quadrature = domains()[where].quadrature().decayed(leaves[-1])
    actual = linear_attention(*leaves[:3], quadrature, floor=floor, chunk=chunk)
    expected = linear_attention_naive(*leaves[:3], quadrature.weights(), floor)
    assert_close(actual, expected)

    direction = torch.randn_like(expected)
    gradients = torch.autograd.grad(actual, leaves, direction, retain_graph=True)
    for found, wanted in zip(gradients, torch.autograd.grad(expected, leaves, direction)):
        assert_close(found, wanted, "gradient")


def test_gradients_pass_gradcheck():
    leaves = [*inputs(), rates("token")]
    domain = domains()["padded"]

    def call(query, key, value, rate):
        quadrature = domain.quadrature().decayed(rate)
        return linear_attention(query, key, value, quadrature, floor=FLOOR, chunk=3)

    assert torch.autograd.gradcheck(call, leaves)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)


def test_chunks_equal_the_recurrence():
    """S_t = e^(-d_t) S_(t-1) + ψ_t v_tᵀ, y_t = φ_tᵀ S_t: RetNet, Mamba-2 and gated linear attention
    with one gate per head.
    """
    query, key, value = (x.detach() for x in inputs())
    decay = rates("token").detach()
    state = torch.zeros(B, H, R, D, dtype=torch.float64)
    expected = []
    for t in range(N):
        gate = (-decay[:, :, t]).exp()[..., None, None]
        state = gate * state + key[:, :, t, :, None] * value[:, :, t, None]
        expected.append((query[:, :, t, None] @ state)[:, :, 0])
    sums = decayed_prefix_sums(query, key, value, decay, 3)
    assert_close(sums.out, torch.stack(expected, 2))
    assert_close(sums.moment, state)


@pytest.mark.parametrize("split", [(7,), (1, 1, 1, 1, 1, 1, 1), (4, 1, 2)])
def test_prefills_and_steps_equal_one_forward(split):
    query, key, value = (x.detach() for x in inputs())
    decay = rates("token").detach()
    quadrature = domains()["counting"].quadrature()
    whole = linear_attention(query, key, value, quadrature.decayed(decay), floor=FLOOR)

    memory = {}
    outs = []
    start = 0
    for size in split:
        part = slice(start, start + size)
        features = JointFeatures(query[:, :, part], key[:, :, part], None, value[:, :, part])
        measure = Quadrature(quadrature.mass[:, part], decay=decay[..., part])
        out, memory = advance_moment(features, measure, memory, floor=FLOOR, chunk=2)
        outs.append(out)
        start += size
    assert_close(torch.cat(outs, 2), whole)


@pytest.mark.parametrize("moment", [False, True])
def test_traced_sums_equal_eager_ones(moment):
    query, key, value = (x.detach() for x in inputs())
    decay = rates("head").detach()
    before = torch.randn(B, H, R, D, dtype=torch.float64) if moment else None
    eager = decayed_prefix_sums(query, key, value, decay, 2, before)
    traced = _traced_sums(query, key, value, decay, 2, 5, before)
    assert_close(traced.out, eager.out)
    assert_close(traced.moment, eager.moment)


@pytest.mark.parametrize("rate", [0.0, 1e-6, 1.0, 50.0, 1e4])
def test_float32_is_accurate_at_every_rate(rate):
    """Sums of exponents reach 3e6 here; only their differences inside a chunk are exponentiated."""
    torch.manual_seed(3)
    n = 300
    query, key, value = (torch.rand(1, 1, n, 4).requires_grad_() for _ in range(3))
    rates = torch.full((1, 1, n), rate).requires_grad_()
    line = Domain.line(n, causal=True)
    leaves = [query, key, value, rates]
    out = linear_attention(*leaves[:3], line.quadrature().decayed(rates), floor=FLOOR)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    exact = line.quadrature(dtype=torch.float64).decayed(doubles[3])
    expected = linear_attention_naive(*doubles[:3], exact.weights(), FLOOR)
    assert_close(out.double(), expected, "values", torch.float32)
    # Compared together: where the past has decayed to zero, single gradients vanish.
    found = torch.autograd.grad(out.square().sum(), leaves)
    wanted = torch.autograd.grad(expected.square().sum(), doubles)
    together = torch.cat([x.flatten() for x in found]).double()
    assert_close(together, torch.cat([x.flatten() for x in wanted]), "gradient", torch.float32)


def test_zero_rates_equal_no_decay():
    leaves = inputs()
    quadrature = domains()["padded"].quadrature()
    still = quadrature.decayed(torch.zeros(1, 1, N, dtype=torch.float64))
    assert_close(
        linear_attention(*leaves, still, floor=FLOOR, chunk=3),
        linear_attention(*leaves, quadrature, floor=FLOOR, chunk=3),
    )


@pytest.mark.parametrize("backend", ["triton", "checked"])
def test_the_triton_backend_refuses_a_decay(backend):
    quadrature = domains()["line"].quadrature().decayed(rates("all"))
    with pytest.raises(BackendError, match="beside a decay"):
        linear_attention(*inputs(), quadrature, floor=FLOOR, backend=backend)


def test_a_decay_without_causal_order_is_refused():
    quadrature = Domain.line(N, dtype=torch.float64).quadrature().decayed(rates("all"))
    with pytest.raises(StrategyError, match="order"):
        linear_attention(*inputs(), quadrature, floor=FLOOR)
