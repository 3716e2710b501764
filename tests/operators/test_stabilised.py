"""Exponential features divided by their largest exponent: the normalised result is the same, and
nothing overflows or vanishes.
"""

from __future__ import annotations

import copy

import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.errors import OptionError
from fredholm.kernels import FEATURE_MAPS, FeatureMap, PositiveRandomFeatures
from fredholm.operators import Linear, LinearAttention, LunaAttention
from fredholm.ops.linear_attention import linear_density

from ..tolerances import assert_close

B, N, DIM, HEADS = 2, 70, 16, 4
VALID = torch.arange(N) < torch.tensor([[N], [50]])
MAPS = ["performer", "hedgehog"]


def domains():
    line = Domain.line(N, dtype=torch.float64)
    return {
        "line": line,
        "causal": line.replace(causal=True),
        "padded": line.replace(valid=VALID),
        "causal padded": line.replace(causal=True, valid=VALID),
    }


def plain(op, u, domain):
    """Return the response by plain features in float64, with a negligible floor."""
    problem = op.problem(u, domain)
    kernel = op.kernel
    weights = problem.quadrature.weights()
    query, key = (
        kernel.query_features(problem.x, problem.ux),
        kernel.key_features(problem.y, problem.uy),
    )
    response = (linear_density(query, key, weights, 1e-300) * weights) @ kernel.values(
        problem.y, problem.uy
    )
    return op._finish(response + kernel.offset(problem), u, domain.valid)


@pytest.mark.parametrize("case", domains())
@pytest.mark.parametrize("feature_map", MAPS)
def test_stabilised_features_equal_plain_ones(feature_map, case):
    op = create_operator("linear_attention", DIM, HEADS, feature_map=feature_map).double()
    domain = domains()[case]
    u = torch.randn(B, N, DIM, dtype=torch.float64)
    expected = plain(op, u, domain)
    assert torch.allclose(op(u, domain), expected, atol=1e-12)
    assert torch.allclose(op.dense(u, domain), expected, atol=1e-12)
    if domain.causal:
        state = op.init_state(B, domain)
        steps = []
        for t in range(N):
            y, state = op.step(u[:, t], state)
            steps.append(y)
        assert torch.allclose(torch.stack(steps, 1), expected, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", MAPS)
def test_large_keys_and_queries_are_finite(feature_map, causal):
    """Exponents in the hundreds, where plain features are infinite or all zero."""
    op = create_operator("linear_attention", DIM, HEADS, feature_map=feature_map)
    with torch.no_grad():
        op.kernel.query.weight.mul_(30)
        op.kernel.key.weight.mul_(30)
    u = torch.randn(1, 30, DIM, requires_grad=True)
    domain = Domain.line(30, causal=causal)
    kernel = op.kernel
    features = kernel.key_features(domain.positions[None], u[:, None])
    assert features.isinf().any() or (features == 0).all(-1).any(), "the case is hard enough"
    y = op(u, domain)
    y.square().sum().backward()
    assert u.grad is not None
    assert u.grad.isfinite().all()
    wide = op.double()(u.detach().double(), Domain.line(30, causal=causal, dtype=torch.float64))
    if not causal:  # there, keys far below a later one underflow
        assert torch.allclose(y.double(), wide, atol=1e-4)
    assert y.isfinite().all()


@pytest.mark.parametrize("feature_map", MAPS)
def test_the_largest_exponent_ignores_padding(feature_map):
    """Padding keys equal the bias, here a huge one, which must not push real keys out of range."""
    op = create_operator("linear_attention", DIM, HEADS, feature_map=feature_map)
    with torch.no_grad():
        op.kernel.key.weight.mul_(20)
    u = torch.randn(1, 12, DIM)
    valid = (torch.arange(12) < 8)[None]
    padded = op(u, Domain.line(12).replace(valid=valid))[:, :8]
    assert torch.allclose(padded, op(u[:, :8], Domain.line(8)), atol=1e-5)
    with torch.no_grad():
        op.kernel.key.bias.fill_(400.0)
        op.kernel.key.weight.mul_(0).add_(torch.randn_like(op.kernel.key.weight))
    steps = Domain.line(12, causal=True).replace(valid=valid)
    assert op(u, steps)[:, :8].isfinite().all()


def test_maps_return_the_exponent_they_divided_by():
    phi = PositiveRandomFeatures(4, features=8)
    x = torch.randn(2, 3, 5, 4)
    features, shift = phi.of_keys(x)
    assert torch.allclose(features * shift.exp()[..., None, None], phi(x), rtol=1e-5)
    assert features.amax((-2, -1)).allclose(torch.ones(2, 3))
    assert phi.of_queries(x).amax(-1).allclose(torch.ones(2, 3, 5))
    later, same = phi.of_keys(x[:, :, :1], least=shift)
    assert same.equal(shift)
    assert torch.allclose(later, features[:, :, :1])
    hidden, none = phi.of_keys(x, torch.zeros(2, 5, dtype=torch.bool))
    assert hidden.abs().max() == 0
    assert none.eq(-torch.inf).all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", [*FEATURE_MAPS])
def test_inference_in_pieces_equals_the_definition(name, padded):
    torch.manual_seed(0)
    operator = LinearAttention(8, 2, feature_map=name).double()
    u = 3 * torch.randn(2, 9, 8, dtype=torch.float64)
    domain = Domain.line(9, dtype=torch.float64)
    if padded:
        domain = domain.replace(valid=torch.arange(9) < torch.tensor([[9], [5]]))
    whole = operator(u, domain)
    operator.strategy = Linear(piece=4)
    assert_close(operator(u, domain), whole, "a gradient may be asked for")
    with torch.no_grad():
        assert_close(operator(u, domain), operator.dense(u, domain))


def test_only_inference_with_pointwise_maps_computes_features_in_pieces():
    seen = []

    class Watched(FeatureMap):
        def features_of(self, x):
            seen.append(x.shape[2])
            return x.exp()

    operator = LinearAttention(
        8, 2, feature_map=Watched(4, 2, features=4), strategy=Linear(piece=4)
    )
    u = torch.randn(1, 9, 8)
    operator(u)
    assert seen == [18]  # few queries and keys, together
    seen.clear()
    with torch.no_grad():
        operator(u)
        assert seen == [4, 4, 1] * 2
        seen.clear()
        Watched.pointwise = False
        operator(u)
        assert seen == [9, 9]
    assert not LinearAttention(8, 2, feature_map=lambda x: x.softmax(2)).kernel.pointwise
    assert LunaAttention(8, 2, cap="running").eval().kernel.pointwise
    assert not LunaAttention(8, 2, cap="running").kernel.pointwise


@pytest.mark.parametrize("name", ["luna", "hedgehog", "performer"])
def test_converted_heads_in_pieces_equal_one_pass(name, monkeypatch):
    from fredholm.linearization import heads

    torch.manual_seed(0)
    part = heads.LinearHeads(2, 4, feature_map=name)
    query, key, value = (2 * torch.randn(2, 2, 9, 4) for _ in range(3))
    seen = heads.Seen(torch.arange(9) < torch.tensor([[9], [4]]))
    with torch.no_grad():
        whole = part(query, key, value, seen)
        monkeypatch.setattr(heads, "PIECE", 4)
        assert_close(part(query, key, value, seen), whole, dtype=torch.float32)
    with pytest.raises(OptionError, match="piece: expected at least one point, got 0"):
        Linear(piece=0)


@pytest.mark.parametrize("feature_map", MAPS)
def test_a_later_large_key_does_not_change_earlier_outputs(feature_map):
    """The floor of the denominator does not depend on later keys: keys e^40 larger at the end of a
    causal line change no earlier output, in one forward, prefills or steps.
    """
    torch.manual_seed(0)
    op = LinearAttention(DIM, HEADS, feature_map=feature_map).double()
    u = torch.randn(1, 6, DIM, dtype=torch.float64)
    u[:, 4:] *= 15
    line = Domain.line(6, causal=True, dtype=torch.float64)
    with torch.no_grad():
        whole = op(u, line)
        assert_close(whole[:, :4], op(u[:, :4], line[:4]), "before the large keys")
        assert_close(op.dense(u, line), whole, "definition")
        first, state = op.prefill(u[:, :5], op.init_state(1, line))
        last, _ = op.step(u[:, 5], state)
        assert_close(torch.cat([first, last[:, None]], 1), whole, "stretch and step")


@pytest.mark.parametrize("n", [6, 70])
def test_float32_is_accurate_beside_a_key_of_e_75(n):
    """The last key is e^75 above all others."""
    torch.manual_seed(0)
    op = LinearAttention(8, 1, feature_map="hedgehog")
    u = torch.randn(1, n, 8)
    line = Domain.line(n, causal=True)
    with torch.no_grad():  # Hedgehog's exponents are those of a key and of its negative
        u[0, -1] = torch.linalg.lstsq(op.kernel.key.weight, torch.full((8, 1), 75.0)).solution[:, 0]
    u.requires_grad_()
    whole = op(u, line)[:, :-1]
    before = op(u[:, :-1], line[: n - 1])
    assert_close(whole, before, "before the large key")
    assert_close(op.dense(u, line)[:, :-1], before, "definition")
    (found,) = torch.autograd.grad(whole.square().sum(), u)
    assert_close(found, torch.autograd.grad(before.square().sum(), u)[0], "gradient")


@pytest.mark.parametrize(("feature_map", "size"), [("hedgehog", 8.0), ("performer", 4.0)])
@pytest.mark.parametrize("causal", [False, True])
def test_features_with_different_largest_exponents_equal_the_softmax(feature_map, size, causal):
    """The reference is a log-sum-exp without floor. The last step equals the last point of the
    forward, and gradients stay finite for larger features.
    """
    line = Domain.line(20, causal=causal)
    for seed in range(4):
        torch.manual_seed(seed)
        op = create_operator("linear_attention", DIM, 2, feature_map=feature_map)
        u = size * torch.randn(1, 20, DIM)
        double = copy.deepcopy(op.kernel).double()
        wide = u.double()[:, None]
        query, key = (double.feature_map.exponents(double._heads(wide, part)) for part in (0, 1))
        scores = torch.logsumexp(query[:, :, :, None] + key[:, :, None], -1)
        if causal:
            scores = scores.masked_fill(torch.ones(20, 20).triu(1).bool(), -torch.inf)
        assert_close(op.weights(u, line).double(), scores.softmax(-1), dtype=torch.float32)
        exact = copy.deepcopy(op).double()
        wanted = scores.softmax(-1) @ double.values(wide[:, 0, :, :1], wide)
        wanted = exact._finish(
            wanted + exact.kernel.offset(exact.problem(u.double(), line)), u.double(), None
        )
        assert_close(op(u, line).double(), wanted, dtype=torch.float32)
        if causal:
            first, state = op.prefill(u[:, :19], op.init_state(1, line))
            last, _ = op.step(u[:, 19], state)
            assert_close(torch.cat([first, last[:, None]], 1).double(), wanted, dtype=torch.float32)
        for more in (1, 3, 8):
            far = (more * u).requires_grad_()
            found = torch.autograd.grad((op(far, line) ** 2).sum(), [far, *op.parameters()])
            assert all(gradient.isfinite().all() for gradient in found)
