"""The tiled edge product equals its definition; walks on its graph equal dense linear algebra;
solvers check themselves.
"""

from __future__ import annotations

import inspect
import math
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fredholm.errors import ConvergenceError, OptionError, ShapeError
from fredholm.families.infsa.graph import (
    ACTIVATIONS,
    EdgeOptions,
    TokenGraph,
    edge_product,
    resolvent,
    sum_of_hops,
)
from fredholm.families.infsa.naive import edge_product_naive

from ..tolerances import assert_close

B, H, N, E, D = 2, 3, 7, 4, 5
DENSITIES = {"none": None, "shared": (1, 1), "heads": (1, H), "batch": (B, 1)}


def inputs(density="none", equal=False, dtype=torch.float64, n=N):
    g = torch.Generator().manual_seed(0)
    shape = DENSITIES[density]
    tensors = [
        torch.randn(B, H, n, E, generator=g),
        torch.randn(B, H, n, E, generator=g),
        torch.randn(B, H, n, D, generator=g),
    ]
    tensors += [torch.rand(B, 1 if equal else n, generator=g) + 0.1]
    if shape is not None:
        tensors.append(torch.rand(*shape, n, n, generator=g))
    return [x.to(dtype).requires_grad_() for x in tensors]


@pytest.mark.parametrize("memory", [64, None])
@pytest.mark.parametrize("density", list(DENSITIES))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_tiles_equal_the_definition(activation, causal, density, memory):
    for statistic in ("squares", "sums", "none"):
        for equal in (False, True):
            x = inputs(density, equal)
            rules = {"causal": causal, "activation": activation, "statistic": statistic}
            found = edge_product(*x, options=EdgeOptions(**rules, memory=memory))
            expected = edge_product_naive(*x, **rules)
            weight = [torch.randn_like(y) for y in expected]
            both = [
                torch.autograd.grad(
                    sum((y * w).sum() for y, w in zip(out, weight)), x, allow_unused=True
                )
                for out in (found, expected)
            ]
            for a, b in zip(found, expected):
                assert_close(a, b, statistic)
            for i, (a, b) in enumerate(zip(*both)):
                assert_close(
                    torch.zeros_like(x[i]) if a is None else a,
                    torch.zeros_like(x[i]) if b is None else b,
                    f"{i}",
                )


def test_the_custom_op_passes_opcheck():
    x = [t[:1, :1] if t.dim() == 4 else t[:1] for t in inputs("shared")]
    torch.library.opcheck(torch.ops.fredholm.affinity_product, (*x, True, "gelu", "squares", 300))


def test_nothing_quadratic_is_saved_for_the_backward():
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        out, row = edge_product(*inputs(n=64))
    assert max(saved) <= B * H * 64 * D < 64 * 64 * B * H
    assert out.isfinite().all()
    assert row.isfinite().all()


def test_flops_are_counted():
    x = inputs()
    with FlopCounterMode(display=False) as counter:
        out, _ = edge_product(*x)
    assert counter.get_total_flops() == 2 * B * H * N * N * (E + D)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * B * H * N * N * (3 * E + 2 * D)


def test_wrong_arguments_are_named():
    q, k, v, m = inputs()
    with pytest.raises(OptionError, match="did you mean 'relu'"):
        edge_product(q, k, v, m, options=EdgeOptions(activation="rellu"))
    with pytest.raises(OptionError, match="statistic"):
        edge_product(q, k, v, m, options=EdgeOptions(statistic="cubes"))
    with pytest.raises(OptionError, match="one byte or more for a tile, got 0"):
        edge_product(q, k, v, m, options=EdgeOptions(memory=0))
    with pytest.raises(
        ShapeError, match="as many queries as keys in a causal product, got 3 and 7"
    ):
        edge_product(q[:, :, :3], k, v, m, options=EdgeOptions(causal=True))
    with pytest.raises(ShapeError, match="expected query"):
        # The tests' own check of shapes is unwrapped.
        inspect.unwrap(edge_product)(q, k[..., :2], v, m)


# --- walks ----------------------------------------------------------------------------------------


def graph(causal=False, density="none", norm="frobenius", decay=0.9, n=N, **options):
    q, k, v, m, *rho = inputs(density, n=n)
    gamma = torch.full((H,), decay, dtype=torch.float64)
    rho = rho[0] if rho else None
    return TokenGraph(q, k, m, None, rho, gamma, causal, False, norm=norm, **options), v


def dense(g: TokenGraph) -> torch.Tensor:
    """Return M in plain operations: relu, no scale."""
    pairs = torch.relu(g.query @ g.key.mT) * (1.0 if g.density is None else g.density)
    pairs = pairs.tril() if g.causal else pairs
    mass = g.mass[:, None]
    row = ((pairs.square() if g.norm == "frobenius" else pairs) * mass[:, :, None]).sum(-1)
    if g.norm == "rows":
        norm = row.cummax(-1).values if g.causal else row.amax(-1, keepdim=True)
    else:
        total = mass * row
        total = total.cumsum(-1) if g.causal else total.sum(-1, keepdim=True)
        norm = total.clamp(min=1e-300).sqrt()  # no NaN where a prefix has no edge
    return g.decay[:, None, None] * pairs * mass[:, :, None] / (norm + g.eps)[..., None]


@pytest.mark.parametrize("norm", ["frobenius", "rows"])
@pytest.mark.parametrize("causal", [False, True])
def test_norms_bound_the_radius_and_the_rows(causal, norm):
    g, _ = graph(causal, "shared", norm, decay=1.0 - 1e-9)
    matrix = dense(g)
    radius = torch.linalg.eigvals(matrix).abs().amax()
    assert radius <= 1 + 1e-9
    if norm == "rows":
        assert matrix.sum(-1).max() <= 1 + 1e-9
    elif not causal:
        weighted = matrix.square() * g.mass[:, None, :, None] / g.mass[:, None, None]
        assert_close(
            weighted.sum((-1, -2)).sqrt(),
            torch.ones(B, H).double(),
            "Hilbert-Schmidt norm",
            torch.float32,
        )
    else:
        assert_close(radius, matrix.diagonal(dim1=-2, dim2=-1).max(), "radius of a triangle")


@pytest.mark.parametrize("memory", [None, 64], ids=["few", "tiles"])
@pytest.mark.parametrize("norm", ["frobenius", "rows"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("density", ["none", "heads"])
def test_products_and_hops_equal_dense_matrices(causal, density, norm, memory):
    g, v = graph(causal, density, norm, memory=memory)
    matrix = dense(g)
    out, factor = g.start(v)
    assert_close(out, matrix @ v, "one hop")
    assert_close(g.apply(v, factor), matrix @ v, "one more hop")
    assert_close(g.apply_transposed(v, factor), matrix.mT @ v, "transposed")
    assert_close(sum_of_hops(g, v, 3), matrix @ (v + matrix @ (v + matrix @ v)), "three hops")


@pytest.mark.parametrize("n", [N, 150])
@pytest.mark.parametrize("density", ["none", "heads"])
@pytest.mark.parametrize(
    ("causal", "method"), [(True, "neumann"), (False, "neumann"), (False, "gmres")]
)
def test_resolvent_and_its_gradients_are_the_dense_solution(causal, method, density, n):
    g, v = graph(causal, density, n=n)
    out, report = resolvent(g, v, tol=1e-12, max_iterations=400, method=method)
    matrix = dense(g)
    expected = torch.linalg.solve(torch.eye(n).double() - matrix, matrix @ v)
    assert_close(out, expected, "solution")
    assert report.method == ("substitution" if causal else method)
    assert report.residual <= 1e-12
    leaves = [x for x in (g.query, g.key, v, g.mass, g.density) if x is not None]
    weight = torch.randn_like(out)
    for a, b in zip(
        torch.autograd.grad(out, leaves, weight), torch.autograd.grad(expected, leaves, weight)
    ):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("method", ["neumann", "gmres"])
def test_radius_is_estimated_and_gmres_takes_fewer_products(method):
    torch.manual_seed(0)
    q = torch.randn(1, 1, 40, 4).double().abs()
    g = TokenGraph(
        q, q, torch.ones(1, 40).double(), None, None, torch.tensor([0.99]).double(), False, True
    )
    exact = float(torch.linalg.eigvals(dense(g)).abs().max())
    _, report = resolvent(
        g, torch.randn(1, 1, 40, 3).double(), tol=1e-10, max_iterations=2000, method=method
    )
    assert report.radius == pytest.approx(exact, rel=1e-3)
    assert report.iterations < (40 if method == "gmres" else 1000)
    assert method == "gmres" or report.iterations > 200


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("causal", "method"), [(True, "neumann"), (False, "neumann"), (False, "gmres")]
)
def test_a_token_that_is_not_finite_spoils_its_own_sample_alone(causal, method, bad):
    g, v = graph(causal, "none")
    q, k, v = (x.detach().clone() for x in (g.query, g.key, v))
    for x in (q, k, v):
        x[1, :, -2] = bad
    options = {"tol": 1e-10, "max_iterations": 400, "method": method}
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, report = resolvent(replace(g, query=q, key=k), v, **options)
    assert math.isnan(report.residual)
    assert not out[1].isfinite().all()
    alone = [x[:1].detach().requires_grad_() for x in leaves]
    first = replace(g, query=alone[0], key=alone[1], mass=g.mass[:1])
    expected, _ = resolvent(first, alone[2], **options)
    assert_close(out[:1], expected, dtype=torch.float32)
    found = torch.autograd.grad(out.square().sum(), leaves)
    for a, b in zip(found, torch.autograd.grad(expected.square().sum(), alone)):
        assert_close(a[:1], b, "gradient", dtype=torch.float32)


def test_divergence_is_an_error_that_names_the_radius():
    g, v = graph(decay=0.9)
    with pytest.raises(ConvergenceError, match="spectral radius about 0\\.") as failure:
        resolvent(g, v, tol=1e-12, max_iterations=4, method="neumann")
    assert 0 < failure.value.radius < 1
    assert failure.value.iterations == 4
    assert failure.value.residual > 1e-12
    # No operator accepts so large a decay; the solver must still not return a wrong answer.
    g, v = graph(decay=5.0)
    with pytest.raises(ConvergenceError, match="no limit") as failure:
        resolvent(g, v, tol=1e-6, max_iterations=4000, method="neumann")
    assert failure.value.radius > 1
