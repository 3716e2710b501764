"""Projections of attention kernels, rotary positions, and refusals of softmax attention."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from fredholm import inference
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, OptionError
from fredholm.kernels import LinearAttentionKernel, Rotary, SoftmaxKernel, TransposedLinear
from fredholm.operators import IntegralOperator, SoftmaxAttention, create_operator

from ..tolerances import assert_close

DIM, HEADS, N = 8, 4, 5


def layers(key: int = DIM, value: int = DIM, query: int = DIM):
    return tuple(nn.Linear(DIM, width).double() for width in (query, key, value))


def bind(kernel) -> IntegralOperator:
    return IntegralOperator(DIM, HEADS, kernel=kernel, residual=False).double()


def signal(n: int = N) -> torch.Tensor:
    return torch.randn(2, n, DIM, dtype=torch.float64)


@pytest.mark.parametrize("kind", [SoftmaxKernel, LinearAttentionKernel])
def test_a_packed_projection_equals_three_layers(kind):
    three = layers()
    packed = nn.Linear(DIM, 3 * DIM).double()
    with torch.no_grad():
        packed.weight.copy_(torch.cat([layer.weight for layer in three]))
        packed.bias.copy_(torch.cat([layer.bias for layer in three]))
    one, many = (
        bind(kind(DIM, HEADS, projections=packed)),
        bind(kind(DIM, HEADS, projections=three)),
    )
    many.projection = one.projection
    u = signal()
    for call in ({}, {"query": signal(3)}):
        assert_close(one(u, **call), many(u, **call))
        assert_close(one.dense(u, **call), many.dense(u, **call))


def test_packed_projections_need_one_matrix_product(monkeypatch):
    operator = bind(SoftmaxKernel(DIM, HEADS, projections=nn.Linear(DIM, 3 * DIM)))
    calls = []

    linear = nn.functional.linear

    def spy(u, weight, bias=None):
        calls.append(tuple(weight.shape))
        return linear(u, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", spy)
    operator.projection = None
    u, query = signal(), signal(3)
    operator(u)
    assert calls == [(3 * DIM, DIM)]
    operator(u, query=query)
    assert calls[1:] == [(DIM, DIM)] * 3


@pytest.mark.parametrize("kind", [SoftmaxKernel, LinearAttentionKernel])
def test_shared_keys_and_values_equal_repeated_ones(kind):
    few = layers(key=4, value=6)
    many = layers(value=12)
    with torch.no_grad():
        for mine, theirs, width in zip(few[1:], many[1:], (2, 3)):
            for target, source in ((theirs.weight, mine.weight), (theirs.bias, mine.bias)):
                target.copy_(source.unflatten(0, (2, width)).repeat_interleave(2, 0).flatten(0, 1))
    shared = bind(kind(DIM, HEADS, projections=few))
    whole = bind(kind(DIM, HEADS, projections=(few[0], *many[1:])))
    whole.projection = shared.projection
    u = signal()
    assert shared.kernel.d_out == 3
    assert_close(shared(u), whole(u))
    assert_close(shared.kernel_matrix(u), whole.kernel_matrix(u))


def test_a_transposed_linear_layer_is_linear():
    layer, bias = nn.Parameter(torch.randn(DIM, 3)), nn.Parameter(torch.randn(3))
    u = torch.randn(2, DIM)
    assert_close(TransposedLinear(layer, bias)(u), u @ layer + bias)
    assert_close(TransposedLinear(layer)(u), u @ layer)
    assert [name for name, _ in TransposedLinear(layer, bias).named_parameters()] == [
        "stored",
        "bias",
    ]


def test_each_packed_map_is_initialised_separately():
    kernel = SoftmaxKernel(64, 2, projections=nn.Linear(64, 192))
    kernel.reset_parameters()
    bound = (6 / 128) ** 0.5
    for part in kernel.packed.weight.chunk(3):
        assert 0.95 * bound < part.abs().max() <= bound
    assert (kernel.packed.bias == 0).all()


@pytest.mark.parametrize(
    ("projections", "message"),
    [
        (nn.Linear(DIM + 1, 24), r"read the width of u, 8, got \[9\]"),
        (nn.Linear(DIM, 20), "queries, keys and values of 4 heads, got 20"),
        (layers(query=6), "heads: expected a divisor of the width 6, got 4"),
        (layers(key=6, value=6), "got keys of 6 features and values of 6"),
        (layers(key=4, value=5), "got keys of 4 features and values of 5"),
    ],
)
def test_projections_of_mismatched_widths_are_refused(projections, message):
    with pytest.raises(OptionError, match=message):
        SoftmaxKernel(DIM, HEADS, projections=projections)


# --- rotary ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("p", "interleaved"), [(1, False), (1, True), (2, False), (2, True)])
def test_rotary_scores_depend_on_displacements_only(p, interleaved):
    turn = Rotary(8, position_dim=p, interleaved=interleaved, base=10.0)
    q, k = (torch.randn(2, HEADS, N, 10, dtype=torch.float64) for _ in range(2))
    x, y, shift = (torch.rand(n, N, p, dtype=torch.float64) * 9 for n in (1, 2, 2))
    shift = shift[:, :1]
    scores = turn(x, q) @ turn(y, k).mT
    assert_close(turn(x + shift, q) @ turn(y + shift, k).mT, scores)
    assert (turn(x + 1.0, q) @ turn(y, k).mT - scores).abs().max() > 0.1
    assert_close(turn(x, q).norm(dim=-1), q.norm(dim=-1))
    assert_close(turn(x, q)[..., 8:], q[..., 8:], "features beyond the width")
    assert_close(turn(torch.zeros_like(x), q), q)


def test_rotary_rotates_pairs_as_complex_numbers():
    u = torch.randn(1, 1, 3, 6, dtype=torch.float64)
    x = torch.rand(1, 3, 1, dtype=torch.float64) * 5
    rate = torch.tensor([1.0, 100.0 ** (-1 / 3), 100.0 ** (-2 / 3)], dtype=torch.float64)
    spin = torch.polar(torch.ones(3, 3, dtype=torch.float64), x[0] * rate)
    neighbours = torch.view_as_complex(u.unflatten(-1, (3, 2)).contiguous()) * spin
    assert_close(
        Rotary(6, base=100.0, interleaved=True)(x, u), torch.view_as_real(neighbours).flatten(-2)
    )
    halves = torch.complex(u[..., :3], u[..., 3:]) * spin
    assert_close(Rotary(6, base=100.0)(x, u), torch.cat([halves.real, halves.imag], -1))


def test_each_axis_of_a_grid_rotates_its_own_features():
    turn = Rotary(8, position_dim=2)
    u = torch.randn(1, 1, 1, 8)
    moved = turn(torch.tensor([[[0.0, 2.0]]]), u)
    assert_close(moved[..., :4], u[..., :4])
    assert_close(moved[..., 4:], Rotary(4)(torch.tensor([[[2.0]]]), u[..., 4:]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotary(3), "width: expected a multiple of 2, .*, got 3"),
        (lambda: Rotary(6, position_dim=2), "width: expected a multiple of 4, .*, got 6"),
        (lambda: SoftmaxKernel(8, 4, rotary=Rotary(4)), "for up to 2 features, .*, got 4"),
        (
            lambda: Rotary(2)(torch.zeros(1, 3, 2), torch.zeros(1, 1, 3, 4)),
            "dimension 1, got 2; build Rotary",
        ),
    ],
)
def test_wrong_rotary_widths_are_refused(make, message):
    with pytest.raises(OptionError, match=message):
        make()


def test_rotary_positions_receive_gradients_and_default_to_indices():
    operator = bind(SoftmaxKernel(DIM, HEADS, rotary=Rotary(2), causal=True))
    u = signal()
    index = torch.arange(N, dtype=torch.float64)[:, None].requires_grad_()
    out = operator(u, Domain.points(index, causal=True))
    assert_close(operator(u), out)
    assert_close(operator(u, Domain.points(index + 3.5, causal=True)), out, "all positions shifted")
    (g,) = torch.autograd.grad(out.square().sum(), index)
    assert g.abs().max() > 1e-6
    assert abs(float(g.sum())) < 1e-10 * float(g.abs().sum()), (
        "the output does not change when all points move together"
    )


# --- what is refused ------------------------------------------------------------------------------


def test_causal_attention_refuses_domains_without_order():
    operator = bind(SoftmaxKernel(DIM, HEADS, causal=True))
    u = signal()
    assert operator.kernel.default_domain(N, device=u.device, dtype=u.dtype).causal
    for call in (lambda: operator(u, Domain.line(N)), lambda: operator.plan(Domain.line(N))):
        with pytest.raises(DomainError, match="causal=True"):
            call()


def test_a_window_sees_the_point_and_those_before_it():
    operator = bind(SoftmaxKernel(DIM, HEADS, causal=True, window=2))
    seen = operator.weights(signal())[0, 0] > 0
    lag = torch.arange(N)[:, None] - torch.arange(N)
    assert seen.equal((lag >= 0) & (lag < 2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 2}, "expected causal=True beside window=2"),
        ({"window": 0, "causal": True}, "window: expected 1 point or more"),
    ],
)
def test_windows_without_an_order_or_a_point_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        SoftmaxKernel(DIM, HEADS, **options)


def test_active_dropout_is_refused_at_every_call():
    operator = bind(SoftmaxKernel(DIM, HEADS, dropout=0.1))
    u = signal()
    domain = Domain.line(N, causal=True)
    operator.train()
    for call in (
        lambda: operator(u),
        lambda: operator.dense(u),
        lambda: operator.init_state(2, domain),
    ):
        with pytest.raises(ConversionError, match=r"got dropout=0\.1; it is active"):
            call()
    assert operator.eval()(u).shape == u.shape
    operator.train().kernel.dropout = 0.0
    assert operator(u).shape == u.shape


# --- maps that are joined, replaced or pruned -----------------------------------------------------


def moved(kernel):
    kernel.query.weight.data = torch.randn_like(kernel.query.weight)


def replaced(kernel):
    kernel.key.weight = torch.nn.Parameter(torch.randn_like(kernel.key.weight))


def another_layer(kernel):
    kernel.value = torch.nn.Linear(8, 8)


def written(kernel):
    with torch.no_grad():
        kernel.query.weight.add_(1.0)
        kernel.key.bias.fill_(3.0)


def loaded(kernel):
    kernel.load_state_dict({name: torch.randn_like(x) for name, x in kernel.state_dict().items()})


CHANGES = [moved, replaced, another_layer, written, loaded, lambda kernel: kernel.double()]


@pytest.mark.parametrize("change", [lambda kernel: None, *CHANGES])
@pytest.mark.parametrize("name", ["softmax", "linear_attention"])
def test_one_product_equals_the_three_maps(name, change):
    operator = create_operator(name, 8, heads=2)
    change(operator.kernel)
    operator.to(operator.kernel.query.weight.dtype)
    for op in (operator, copy.deepcopy(operator), pickle.loads(pickle.dumps(operator))):
        u = torch.randn(2, 5, 8, dtype=op.kernel.query.weight.dtype)
        recorded = op(u)
        assert recorded.requires_grad
        with inference(op):
            assert_close(op(u), recorded)


class Added(nn.Module):
    """A layer that wraps another, as PEFT's do."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.change = nn.Linear(DIM, DIM)

    weight = property(lambda self: self.base_layer.weight)
    bias = property(lambda self: self.base_layer.bias)

    def forward(self, u):
        return self.base_layer(u) + self.change(u)


class Doubled(nn.Linear):
    def forward(self, u):
        return 2 * super().forward(u)


class Quantised(nn.Module):
    weight = bias = lambda self: None  # methods, as torch's quantised layers have them


OTHERS = {
    "around": Added,
    "derived": lambda layer: Doubled(DIM, DIM),
    "quantised": lambda layer: Quantised(),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("name", ["softmax", "luna", "linear_infsa"])
def test_replacing_a_map_by_a_layer_that_would_not_run_is_refused(name, other):
    operator = create_operator(name, DIM, 2)
    u = torch.randn(1, N, DIM)
    operator.kernel.query = OTHERS[other](operator.kernel.query)
    for context in (torch.enable_grad, torch.no_grad):
        with context(), pytest.raises(OptionError, match=r"query: .*whose forward would not"):
            operator(u)


@pytest.mark.parametrize("other", ["around", "quantised"])
def test_layers_that_replace_the_projection_run(other):
    operator = create_operator("softmax", DIM, 2)
    u = torch.randn(1, N, DIM)
    before = operator(u)
    operator.projection = OTHERS[other](operator.projection)
    operator.projection.forward = torch.zeros_like
    assert before.any()
    assert not operator(u).any()


def test_pruned_and_parametrised_maps_equal_their_layers():
    operator = create_operator("softmax", DIM, 2)
    u = torch.randn(1, N, DIM)
    prune.random_unstructured(operator.kernel.query, "weight", 0.5)
    parametrizations.weight_norm(operator.kernel.key)
    descent = torch.optim.SGD(operator.parameters(), lr=0.1)
    for _step in range(2):
        descent.zero_grad()
        operator(u).square().mean().backward()
        descent.step()
    assert operator.kernel.query.weight_orig.grad.any()
    plain = SoftmaxKernel(DIM, 2)
    for part in ("query", "key", "value"):
        layer = getattr(operator.kernel, part)
        layer(u)  # which writes a pruned weight
        getattr(plain, part).load_state_dict({"weight": layer.weight, "bias": layer.bias})
    expected = operator(u)
    operator.kernel = plain
    assert_close(operator(u), expected)


def test_scores_are_float32_under_autocast_inside_a_transform():
    op = SoftmaxAttention(8, 2)
    u = 4 * torch.randn(3, 5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = op(u)
        found = torch.func.vmap(lambda x: op(x[None])[0])(u)
    torch.testing.assert_close(found.float(), expected.float(), rtol=0.02, atol=0.02)


def test_similar_masses_keep_different_weights_in_bfloat16():
    """Their logarithms are far from zero, where bfloat16 has steps of a sixteenth."""
    masses = torch.full((4096,), 1 / 4096)
    masses[::2] *= 1.05
    op = SoftmaxAttention(4, 1).to(torch.bfloat16)
    with torch.no_grad():
        op.kernel.query.weight.zero_()  # equal scores
    u = torch.zeros(1, 4096, 4)
    u[:, ::2] = 1.0
    line = Domain.line(4096).with_masses(masses, normalised=True)
    same = copy.deepcopy(op).double()
    found, expected = op(u.bfloat16(), line)[0, 0], same(u.double(), line)[0, 0]
    assert (found.double() - expected).norm() < 0.01 * expected.norm()
