"""Cost models predict the counted FLOPs, and the roofline is a bound."""

from __future__ import annotations

import pytest
import torch
from evidence.performance.costs import COSTS, Cost
from torch.nn.attention import SDPBackend, sdpa_kernel

from fredholm.domain import Domain
from fredholm.models import counter
from fredholm.operators import create_operator, list_operators

OPTIONS = {
    "itnet": {"width": 16, "frequencies": 16, "sigma": 3.0},
    "itnet_low_rank": {"width": 16, "rank": 4, "frequencies": 16, "sigma": 3.0},
    "ckconv": {"width": 16, "origin": "centre"},
}


def test_every_cost_model_belongs_to_an_operator():
    assert set(COSTS) <= set(list_operators())


@pytest.mark.parametrize("name", sorted(COSTS))
def test_predicted_flops_equal_counted_ones(name):
    heads = 1 if name == "ckconv" else 4
    options = OPTIONS.get(name, {})
    # On fewer points the operators choose other forms.
    for n, d in ((256, 32), (512, 64)):
        operator = create_operator(name, d, heads, **options)
        with counter() as found, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            operator(torch.zeros(1, n, d), Domain.line(n))
        assert COSTS[name](n, d, heads, **options).flops == pytest.approx(
            found.get_total_flops(), rel=0.02
        )


@pytest.mark.parametrize("name", sorted(COSTS))
def test_bytes_include_at_least_the_signal_and_the_weight_matrices(name):
    cost = COSTS[name](256, 64, 4)
    assert cost.bytes > 4 * 2 * 256 * 64
    assert cost.flops > 0
    assert cost.functions >= 0


def test_the_least_time_is_the_larger_of_products_and_memory():
    cost = Cost(flops=10.0, functions=4.0, bytes=100.0)
    assert cost.seconds(matrix_rate=10, function_rate=4, bandwidth=1000) == 2.0
    assert cost.seconds(matrix_rate=10, function_rate=4, bandwidth=10) == 10.0
    assert cost.intensity == 0.1
