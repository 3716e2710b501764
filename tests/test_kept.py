"""Results that depend only on a domain are cached, and recomputed when it may have changed."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fredholm import Domain, SoftmaxAttention, create_operator
from fredholm.domain import default_line
from fredholm.integral.contract import Part

PLACE = {"device": torch.device("cpu"), "dtype": torch.float32}


def test_the_quadrature_is_cached_per_domain_and_dtype():
    domain = Domain.line(5, causal=True)
    assert domain.quadrature() is domain.quadrature()
    assert domain.quadrature(dtype=torch.float64) is not domain.quadrature()
    assert domain.quadrature(domain) is domain.quadrature()
    assert domain.quadrature(Domain.line(5)) is not domain.quadrature()  # two domains with times


@pytest.mark.parametrize("field", ["measure", "valid", "pairs"])
def test_writing_to_a_tensor_invalidates_the_cache(field):
    valid = torch.ones(1, 4, dtype=torch.bool)
    domain = Domain.line(4, valid=valid, pairs=torch.ones(4, 4, dtype=torch.bool)).replace(
        measure=torch.ones(4)
    )
    before = domain.quadrature().weights().clone()
    getattr(domain, field)[..., 0] = 0
    after = domain.quadrature().weights()
    assert not torch.equal(before, after)
    assert torch.equal(after, copy.deepcopy(domain).quadrature().weights())


def test_a_measure_that_requires_grad_is_not_cached():
    mass = torch.ones(3)
    domain = Domain.points(torch.rand(3, 2), measure=mass)
    domain.quadrature()
    mass.requires_grad_()  # which does not modify the data
    for _ in range(2):  # the first backward would free a cached graph
        domain.quadrature().weights().sum().backward()
    assert mass.grad is not None
    assert mass.grad.sum() == 6


def test_results_cached_under_no_grad_are_not_used_with_gradients():
    domain = Domain.line(3)
    with torch.inference_mode():
        kept = domain.quadrature()
    assert not kept.mass.is_inference()
    u = torch.randn(1, 3, 4, requires_grad=True)
    SoftmaxAttention(4)(u, domain).sum().backward()
    with torch.inference_mode():
        made_here = Domain.line(3)
        assert made_here.quadrature() is not made_here.quadrature()


def test_transforms_cache_nothing():
    domain = Domain.line(3)
    with FlopCounterMode(display=False):
        assert domain.quadrature() is not domain.quadrature()
    seen = []

    def f(x):
        seen.append(domain.quadrature())
        return x * seen[-1].mass.sum()

    torch.func.grad(f)(torch.tensor(1.0))
    assert seen[0] is not domain.quadrature()


def test_copies_start_with_an_empty_cache():
    domain = Domain.line(3)
    domain.quadrature()
    for other in (copy.copy(domain), copy.deepcopy(domain), pickle.loads(pickle.dumps(domain))):
        assert "_memo" not in other.__dict__
    assert "_memo" not in domain.replace(causal=True).__dict__


def test_default_lines_are_shared_until_modified():
    line = default_line(4, **PLACE)
    assert line is default_line(4, **PLACE)
    assert line is not default_line(4, causal=True, **PLACE)
    line.positions.add_(1.0)
    assert torch.equal(default_line(4, **PLACE).positions, Domain.line(4).positions)


def test_queries_on_the_same_domain_may_have_other_features():
    """With the keys' domain object as ``query_domain``, ``query`` is still read."""
    op = SoftmaxAttention(4)
    u = torch.randn(1, 3, 4)
    query = torch.randn(1, 3, 4)
    domain = Domain.line(3)
    out = op(u, domain, query=query, query_domain=domain)
    torch.testing.assert_close(out, op.dense(u, domain, query=query, query_domain=domain))
    assert not torch.allclose(out, op(u, domain))


class _Layer(nn.Module):
    part: Any = Part()


def test_a_part_is_a_module_none_or_missing():
    layer = _Layer()
    with pytest.raises(AttributeError, match="part"):
        _ = layer.part
    layer.part = None
    assert layer.part is None
    layer.part = nn.Linear(1, 1)
    assert layer.part is layer._modules["part"]
    assert list(layer.state_dict()) == ["part.weight", "part.bias"]


@pytest.mark.parametrize("name", ["itnet", "itnet_low_rank", "softmax", "luna", "ckconv"])
def test_one_query_of_another_domain_does_not_see_later_keys(name):
    """Optimisations of causal steps apply only to steps."""
    torch.manual_seed(0)
    op = create_operator(name, 8, 2).eval()
    u = torch.randn(2, 6, 8)
    query = torch.randn(2, 1, 8)
    past = Domain.points(torch.full((1, 1), 0.4))
    domain = Domain.points(torch.arange(6.0)[:, None] / 6, causal=True)
    given = {"query": query, "query_domain": past}
    torch.testing.assert_close(op(u, domain, **given), op.dense(u, domain, **given))


def test_a_default_line_with_learned_positions_is_not_shared():
    default_line(5, **PLACE).positions.requires_grad_()
    assert not default_line(5, **PLACE).positions.requires_grad
