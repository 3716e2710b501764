"""The definition: a dense kernel integrated with quadrature weights."""

from __future__ import annotations

import pytest
import torch

from fredholm.ops.dense import dense_apply, kernel_norm

from ..tolerances import assert_close


def loop(matrix, weights, signal):
    """Return the sum, entry by entry."""
    b, h, q, k, o, i = matrix.shape
    weights, signal = weights.expand(b, h, q, k), signal.expand(b, h, k, i)
    out = torch.zeros(b, h, q, o, dtype=matrix.dtype)
    for index in torch.cartesian_prod(*map(torch.arange, (b, h, q, k))).tolist():
        b_, h_, q_, k_ = index
        out[b_, h_, q_] = out[b_, h_, q_] + weights[b_, h_, q_, k_] * (
            matrix[b_, h_, q_, k_] @ signal[b_, h_, k_]
        )
    return out


@pytest.mark.parametrize(
    "shared", ["", "weights of batch", "weights of heads", "weights of queries", "signal of heads"]
)
def test_dense_apply_equals_the_sum(shared):
    b, h, q, k, o, i = 2, 3, 4, 5, 2, 3
    matrix = torch.randn(b, h, q, k, o, i, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(
        1 if shared == "weights of batch" else b, 1 if shared == "weights of heads" else h,
        1 if shared == "weights of queries" else q, k, dtype=torch.float64, requires_grad=True,
    )  # fmt: skip
    signal = torch.randn(
        b, 1 if shared == "signal of heads" else h, k, i, dtype=torch.float64, requires_grad=True
    )
    inputs = (matrix, weights, signal)
    actual = dense_apply(*inputs)
    expected = loop(*inputs)
    assert_close(actual, expected)
    direction = torch.randn_like(expected)
    for g, e in zip(
        torch.autograd.grad(actual, inputs, direction),
        torch.autograd.grad(expected, inputs, direction),
    ):
        assert_close(g, e, "gradient")


def test_the_kernel_norm_is_weighted_frobenius():
    matrix = torch.zeros(1, 1, 1, 2, 2, 2)
    matrix[0, 0, 0, 0] = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    assert kernel_norm(matrix, torch.tensor([[[[0.5, 1.0]]]])).tolist() == [[[[2.5, 0.0]]]]
