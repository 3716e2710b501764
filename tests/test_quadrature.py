"""Quadrature: measure, padding, order and pairs become weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import tensor

from fredholm.domain import Domain
from fredholm.errors import DomainError, ShapeError
from fredholm.kernels import Problem
from fredholm.operators import create_operator
from fredholm.quadrature import reciprocal, take_rows

from .tolerances import assert_close


def weights(domain: Domain, *args) -> torch.Tensor:
    return domain.quadrature(*args).weights()


def test_uniform_masses_are_one_over_the_visible_points():
    assert weights(Domain.line(4)).tolist() == [[[[0.25] * 4]]]
    valid = tensor([[True, True, True, True], [True, False, True, False]])
    found = weights(Domain.points(torch.rand(2, 4, 1), valid=valid))
    assert found.shape == (2, 1, 1, 4)
    assert found.flatten(1).tolist() == [[0.25] * 4, [0.5, 0.0, 0.5, 0.0]]


def test_causal_uniform_averages_the_past_and_is_prefix_invariant():
    domain = Domain.line(5, length=9.0, causal=True)
    expected = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    assert_close(weights(domain)[0, 0], expected)
    for t in range(1, 6):
        assert weights(domain[:t]).equal(weights(domain)[..., :t, :t])
    valid = tensor([[False, True, False, True, True]])
    padded = weights(Domain.points(torch.rand(1, 5, 1), valid=valid, causal=True))[0, 0]
    assert_close(
        padded,
        tensor(
            [
                [0.0, 0.0, 0.0, 0.0, 0.0],
                [0.0, 1.0, 0.0, 0.0, 0.0],
                [0.0, 1.0, 0.0, 0.0, 0.0],
                [0.0, 0.5, 0.0, 0.5, 0.0],
                [0.0, 1 / 3, 0.0, 1 / 3, 1 / 3],
            ]
        ),
    )


@pytest.mark.parametrize(
    ("domain", "mass"),
    [
        (Domain.line(3, measure="counting"), [1.0, 1.0, 1.0]),
        (Domain.line(4, measure="spacing"), [0.25] * 4),
        (Domain.line(4, length=2.0, measure="spacing"), [0.5] * 4),
        (Domain.grid(2, 2, measure="spacing"), [0.25] * 4),
        (Domain.timestamps(tensor([0.0, 1.0, 3.0]), causal=False), [1.0, 1.5, 2.0]),
        (Domain.points(torch.rand(3, 1), measure=tensor([2.0, 0.0, 3.0])), [2.0, 0.0, 3.0]),
    ],
)
def test_other_kinds_are_not_renormalised(domain, mass):
    assert weights(domain).tolist() == [[[mass]]]
    causal = weights(domain.replace(causal=True))[0, 0]
    assert causal.equal(tensor(mass).expand(len(mass), -1).tril())


def test_probability_is_renormalised_over_the_visible():
    domain = Domain.line(3).with_masses(tensor([1.0, 3.0, 4.0]), normalised=True)
    assert weights(domain).flatten().tolist() == [0.125, 0.375, 0.5]
    causal = weights(domain.replace(causal=True))[0, 0]
    assert causal.tolist() == [[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.125, 0.375, 0.5]]
    assert weights(Domain.line(3).with_masses(tensor([1.0, 3.0, 4.0]))).flatten().tolist() == [
        1.0,
        3.0,
        4.0,
    ]


def test_a_causal_window_averages_its_points():
    window = torch.ones(5, 5).triu(-1).bool()
    found = weights(Domain.line(5, causal=True, pairs=window))[0, 0]
    expected = torch.ones(5, 5).tril().triu(-1)
    assert_close(found, expected / expected.sum(-1, keepdim=True))


def test_float_pairs_are_log_densities_and_minus_infinity_hides():
    bias = tensor([[0.0, 1.0], [-torch.inf, 2.0]])
    counting = weights(Domain.line(2, measure="counting", pairs=bias))[0, 0]
    assert_close(counting, bias.exp())
    uniform = Domain.line(2, pairs=bias).quadrature()
    # The visible mass counts keys without their density, which is a factor of the kernel.
    assert_close(uniform.weights()[0, 0], bias.exp() / tensor([[2.0], [1.0]]))
    assert uniform.visible()[0, 0].tolist() == [[True, True], [False, True]]


def test_pairs_may_differ_per_batch_and_head():
    pairs = torch.rand(2, 3, 4, 4) > 0.4
    pairs[:, :, torch.arange(4), torch.arange(4)] = True
    found = weights(Domain.line(4, pairs=pairs))
    assert found.shape == (2, 3, 4, 4)
    assert_close(found, pairs / pairs.sum(-1, keepdim=True))
    assert weights(Domain.line(4, pairs=pairs[:, 0])).equal(found[:, :1])
    assert weights(Domain.line(4, pairs=pairs[0, 0])).equal(found[:1, :1])


def test_a_query_without_visible_points_has_zero_weights():
    hidden = torch.eye(3).bool()
    hidden[1] = False
    domain = Domain.line(3, pairs=hidden)
    assert weights(domain)[0, 0].tolist() == [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    valid = tensor([[False, False]])
    assert weights(Domain.points(torch.rand(1, 2, 1), valid=valid)).flatten().tolist() == [0.0, 0.0]


def test_order_across_two_domains_compares_times():
    keys = Domain.line(4, length=4.0, causal=True)
    queries = Domain.points(tensor([[0.25], [-1.0], [9.0]]))
    assert_close(
        weights(keys, queries)[0, 0],
        tensor([[0.5, 0.5, 0.0, 0.0], [0.0] * 4, [0.25] * 4]),
        "mean over not later keys",
    )


def test_mismatched_pairs_are_refused():
    with pytest.raises(ShapeError, match=r"\(\.\.\., 2, 3\) for these queries, got \(3, 3\)"):
        Domain.line(3, pairs=torch.ones(3, 3).bool()).quadrature(Domain.line(2))


def examples() -> dict[str, Domain]:
    valid = tensor([[True] * 5, [True, False, True, True, False]])
    window = torch.ones(5, 5).triu(-2).bool()
    return {
        "line": Domain.line(5),
        "causal": Domain.line(5, causal=True),
        "padded": Domain.points(torch.rand(2, 5, 1), valid=valid),
        "causal padded": Domain.points(torch.rand(2, 5, 1), valid=valid, causal=True),
        "window": Domain.line(5, causal=True, pairs=window),
        "bias": Domain.line(5, causal=True, pairs=torch.randn(2, 3, 5, 5), measure="counting"),
        "masses": Domain.line(5, causal=True).with_masses(torch.rand(2, 5), normalised=True),
        "times": Domain.timestamps(torch.rand(2, 5).cumsum(-1)),
    }


@pytest.mark.parametrize("name", list(examples()))
def test_rows_equal_those_of_the_dense_weights(name):
    domain = examples()[name]
    quadrature = domain.quadrature()
    dense = quadrature.weights()
    rows = [3, 0, 3]
    expected = dense if dense.shape[2] == 1 else dense[:, :, rows]
    for index in (rows, tensor(rows)):
        assert quadrature.weights(index).equal(expected)
    problem = Problem(
        torch.rand(1, 5, 1),
        torch.rand(1, 5, 1),
        torch.rand(2, 3, 5, 2),
        torch.rand(2, 3, 5, 2),
        quadrature,
    )
    assert problem.rows(rows).quadrature.weights().equal(expected)
    seen = quadrature.visible(rows)
    assert seen is None or (expected[~seen.expand_as(expected)] == 0).all()


@pytest.mark.parametrize("name", [name for name, domain in examples().items() if domain.causal])
def test_row_t_equals_the_visible_points_of_query_t(name):
    quadrature = examples()[name].quadrature()
    dense = quadrature.weights()
    for t in range(5):
        row = quadrature.row(t)
        assert row.weights().expand(*dense.shape[:2], 1, -1).equal(dense[:, :, t : t + 1, : t + 1])
        assert dense[:, :, t, t + 1 :].abs().sum() == 0


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(0, 999),
)
def test_renormalised_rows_sum_to_one_wherever_something_is_visible(
    n, batch, causal, padded, masked, masses, seed
):
    g = torch.Generator().manual_seed(seed)
    valid = torch.rand(batch, n, generator=g) > 0.3 if padded else None
    pairs = torch.rand(batch, 2, n, n, generator=g) > 0.5 if masked else None
    domain = Domain.points(
        torch.rand(batch, n, 1, generator=g), valid=valid, pairs=pairs, causal=causal
    )
    if masses:
        domain = domain.with_masses(torch.rand(batch, n, generator=g) + 0.01, normalised=True)
    quadrature = domain.quadrature()
    dense = quadrature.weights().expand(batch, 2, n, n)
    visible = quadrature.visible()
    visible = (
        torch.ones_like(dense, dtype=torch.bool) if visible is None else visible.expand_as(dense)
    )
    expected = torch.ones(n, n).tril().bool() if causal else torch.ones(n, n).bool()
    expected = expected.expand(batch, 2, n, n)
    expected = expected if valid is None else expected & valid[:, None, None]
    expected = expected if pairs is None else expected & pairs
    assert visible.equal(expected)
    assert (dense[~visible] == 0).all()
    assert (dense >= 0).all()
    assert_close(dense.sum(-1), visible.any(-1).float(), "row sums")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prefills_of_long_half_precision_domains_are_causal(dtype):
    domain = Domain.line(2100, causal=True, measure="counting", dtype=dtype)
    part = domain.quadrature().stretch(2060, 2100)
    assert part.weights()[0, 0].equal(torch.ones(40, 2100, dtype=dtype).tril(2060))
    operator = create_operator("softmax", 8, 2)
    u = torch.randn(1, 600, 8)
    domain = Domain.line(600, causal=True, dtype=dtype)
    first, state = operator.prefill(u[:, :300], operator.init_state(1, domain))
    second, _ = operator.prefill(u[:, 300:], state)
    assert_close(torch.cat([first, second], 1), operator(u, domain))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_the_measure_receives_gradients(causal, normalised):
    mass = (torch.rand(2, 4, dtype=torch.float64) + 0.1).requires_grad_()
    valid = tensor([[True] * 4, [False, True, True, False]])
    points = Domain.points(torch.rand(2, 4, 1, dtype=torch.float64), valid=valid, causal=causal)

    def dense(mass):
        return points.with_masses(mass, normalised=normalised).quadrature().weights()

    assert torch.autograd.gradcheck(dense, (mass,))
    (g,) = torch.autograd.grad(dense(mass).square().sum(), mass)
    assert (g[~valid] == 0).all()
    assert g[valid].abs().max() > 0


def test_densities_receive_gradients_only_at_visible_pairs():
    bias = torch.randn(3, 3, dtype=torch.float64)
    bias[0, 2] = -torch.inf
    bias.requires_grad_()
    domain = Domain.line(3, dtype=torch.float64, pairs=bias)
    (g,) = torch.autograd.grad(weights(domain).sum(), bias)
    assert g.isfinite().all()
    assert g[0, 2] == 0
    assert_close(g[1], bias[1].detach().exp() / 3)


def test_reciprocals_of_zero_are_zero_and_rows_are_taken_from_any_axis():
    assert reciprocal(tensor([2.0, 0.0])).tolist() == [0.5, 0.0]
    assert take_rows(torch.arange(3)[:, None], [2, 0], 0).tolist() == [[2], [0]]
    assert take_rows(torch.arange(3)[:, None], [2, 0], 1).tolist() == [[0, 0], [1, 1], [2, 2]]


def test_one_query_is_repeated_as_often_as_its_row_is_listed():
    operator = create_operator("softmax", 8, heads=2)
    u = torch.randn(1, 5, 8)
    where = {"query": u[:, :1], "query_domain": Domain.line(1)}
    matrix = operator.kernel_matrix(u, Domain.line(5), **where)
    found = operator.kernel_matrix(u, Domain.line(5), **where, rows=[0, 0])
    assert found.shape[2] == 2
    assert_close(found, matrix.expand_as(found))
    weights = operator.weights(u, Domain.line(5), **where, rows=[0, 0])
    assert weights.shape == (1, 2, 2, 5)
    assert Domain.line(3).quadrature(dtype=torch.float64).weights().dtype == torch.float64


def test_equality_and_triangularity_are_static_facts():
    assert Domain.line(3, causal=True).quadrature().triangular
    assert not Domain.line(3, causal=True).quadrature(Domain.line(2)).triangular
    assert Domain.line(3, measure="counting").quadrature().equal
    assert not Domain.line(3, measure="spacing").quadrature().equal
    learned = Domain.line(3).replace(measure=torch.ones(3, requires_grad=True))
    assert not learned.quadrature().equal


def test_queries_on_the_domain_itself_are_its_own_points():
    """Its order is that of the indices, also where two points have one first coordinate."""
    for domain in (
        Domain.grid(2, 3, causal=True),
        Domain.points(torch.zeros(4, 2), causal=True),
        Domain.line(8, reach=2),
        Domain.line(8, causal=True, reach=2),
        Domain.graph(tensor([[0, 2, 1], [2, 0, 3]]), 4, sparse=True, causal=True),
    ):
        assert domain.quadrature(domain) is domain.quadrature()
        for copy in (domain.to(domain.positions.device), domain.replace()):
            assert copy is not domain
            assert domain.quadrature(copy) is domain.quadrature()


def test_a_copy_with_another_fact_or_tensor_is_another_domain():
    mask = torch.ones(1, 4, dtype=torch.bool)
    line = Domain.line(4, causal=True, valid=mask)
    assert line.same_as(line.replace(shape=(4,), valid=mask))
    others = (
        line.replace(causal=False),
        line.replace(reach=1),
        line.replace(valid=None),
        line.replace(valid=mask.clone()),
        line.replace(positions=line.positions.clone()),
        line.to(torch.float64),
        line[:3],
        Domain.line(4, causal=True, valid=mask),
    )
    for other in others:
        assert not line.same_as(other)


@pytest.mark.parametrize("causal", [False, True])
def test_a_reach_refuses_queries_on_another_domain(causal):
    domain = Domain.line(8, causal=causal, reach=2)
    for other in (Domain.line(8), Domain.points(torch.rand(8, 1)), Domain.line(5, causal=causal)):
        with pytest.raises(DomainError, match=r"beside reach, got queries on Domain\((8|5) points"):
            domain.quadrature(other)
