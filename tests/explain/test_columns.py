"""Column sums and largest keys, against the full weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm import Domain, create_operator
from fredholm.convert import as_operator
from fredholm.errors import OptionError
from fredholm.explain import column_sums, top_keys
from fredholm.explain.kernels import pair_weights

OPERATORS = ("softmax", "itnet", "luna", "linear_attention", "infsa", "ckconv")


CASES = [(name, causal) for name in OPERATORS for causal in (False, True)]
CASES.remove(("infsa", True))  # its walks have no order


@pytest.mark.parametrize(("name", "causal"), CASES)
def test_tiles_give_the_column_sums_and_largest_keys_of_all_weights(name, causal):
    operator = create_operator(name, 8, heads=2)
    u = torch.randn(3, 11, 8)
    valid = torch.arange(11) < torch.tensor([11, 7, 10])[:, None]
    domain = Domain.line(11, causal=causal, valid=valid)
    weights = pair_weights(operator, u, domain).double() * valid[:, None, :, None]
    weights = weights.detach()

    for budget in (1, 500, 2**27):
        torch.testing.assert_close(
            column_sums(operator, u, domain, budget=budget), weights.sum(2), rtol=1e-5, atol=1e-7
        )
        top = top_keys(operator, u, domain, k=3, budget=budget)
        torch.testing.assert_close(
            top.weights, weights.topk(3).values, rtol=1e-5, atol=1e-7, check_dtype=True
        )
        torch.testing.assert_close(weights.gather(-1, top.keys), top.weights, rtol=1e-5, atol=1e-7)


def test_padded_keys_receive_nothing():
    operator = create_operator("softmax", 8, heads=2)
    u = torch.randn(2, 6, 8)
    valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    sums = column_sums(operator, u, Domain.line(6, valid=valid))
    assert (sums[1, :, 4:] == 0).all()
    torch.testing.assert_close(sums.sum(-1), torch.tensor([[6.0, 6.0], [4.0, 4.0]]).double())


def test_a_strided_convolution_with_fewer_queries_than_keys_works():
    operator = as_operator(nn.Conv1d(8, 8, 3, stride=2, padding=1))
    u = torch.randn(1, 9, 8)
    domain = Domain.line(9, measure="counting")
    weights = pair_weights(operator, u, domain).detach().double()
    assert weights.shape[2:] == (5, 9)
    torch.testing.assert_close(column_sums(operator, u, domain, budget=200), weights.sum(2))
    assert top_keys(operator, u, domain, k=2, budget=200).keys.shape[2:] == (5, 2)


@pytest.mark.parametrize("k", [0, 8])
def test_k_outside_the_keys_is_refused(k):
    operator = create_operator("softmax", 8, heads=2)
    with pytest.raises(OptionError, match=f"expected k from 1 to 7, the number of keys, got {k}"):
        top_keys(operator, torch.randn(1, 7, 8), k=k)


def test_a_budget_below_one_byte_is_refused():
    operator = create_operator("softmax", 8, heads=2)
    with pytest.raises(OptionError, match="expected a budget of at least 1 byte, got 0"):
        column_sums(operator, torch.randn(1, 7, 8), budget=0)
