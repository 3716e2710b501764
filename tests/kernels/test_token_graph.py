"""Kernels of token graphs against the paper's formulas; presets, options and degenerate input."""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError
from fredholm.explain import eigenvector_alignment
from fredholm.families.infsa import naive
from fredholm.kernels import CentreKernel, HopKernel, StreamingCentreKernel
from fredholm.operators import InfSA, LinearInfSA, Neumann, Resolvent

from ..tolerances import assert_close

DIM = 8
HEADS = 2
WIDTH = 4
N = 9
EPS = 1e-6


def features(n=N, seed=0):
    return torch.randn(
        1, n, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def heads(layer, u):
    return layer(u).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def merged(out, operator):
    return operator.projection(out.transpose(1, 2).flatten(2))


def masses(n=N):
    return Domain.points(torch.arange(n, dtype=torch.float64)[:, None], measure="counting")


# --- the formulas ---------------------------------------------------------------------------------


def matrices(operator):
    """The weight matrices (H, e, d) of queries, keys and values, as leaves."""
    kernel = operator.kernel
    layers = (kernel.query, kernel.query if kernel.tied else kernel.key, kernel.value)
    return [x.weight.detach().unflatten(0, (HEADS, WIDTH)).requires_grad_() for x in layers]


def assert_defined(operator, domain, definition, **options):
    """Compare the operator with W_O after the paper's definition: values, and gradients of u and
    weights.
    """
    u = [features().requires_grad_() for _ in range(2)]
    layers = matrices(operator)
    scale = operator.kernel.scale  # of the inner products, which the paper does not have
    response = definition(u[1], scale * layers[0], *layers[1:], **options)
    found = operator(u[0], domain)
    expected = merged(response, operator)
    assert_close(found, expected)
    direction = torch.randn_like(expected)
    kernel = operator.kernel
    weights = [x.weight for x in (kernel.query, kernel.key, kernel.value) if x is not None]
    by_operator = torch.autograd.grad(found, [u[0], *weights], direction)
    by_definition = [*torch.autograd.grad(expected, [u[1], *layers], direction)]
    if kernel.tied:  # one matrix, whose gradient is the sum of its two uses
        by_definition[1] = by_definition[1] + by_definition.pop(2)
    for a, b in zip(by_operator, by_definition, strict=True):
        assert_close(a.reshape(b.shape), b, "gradient")


@pytest.mark.parametrize("preset", ["paper", "released"])
@pytest.mark.parametrize("power", [0, 1, 3])
def test_pure_form_is_equation_12(preset, power):
    op = InfSA(DIM, HEADS, preset=preset, power=power).double()
    gamma = {"paper": 0.7, "released": 0.95}[preset]
    assert_defined(op, masses(), naive.hop, decay=gamma, layer=power)
    exact = InfSA(DIM, HEADS, preset=preset, power=power, eps=0.0).double()
    u = features()
    exact.load_state_dict(op.state_dict())
    assert_close(exact(u), exact(u, masses()), "without ε the measure's scale cancels")


@pytest.mark.parametrize("activation", list(naive.PHI))
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("strategy", "definition", "options"),
    [
        ("auto", naive.hop, {}),
        (Neumann(1), naive.truncated_series, {"hops": 1}),
        (Neumann(3), naive.truncated_series, {"hops": 3}),
        (Resolvent(1e-13), naive.resolvent, {}),
        (Resolvent(1e-13, method="gmres"), naive.resolvent, {}),
    ],
)
def test_hops_equal_the_papers_series(strategy, definition, options, causal, activation):
    torch.manual_seed(0)
    op = InfSA(DIM, HEADS, strategy=strategy, activation=activation, tied=causal).double()
    domain = masses().replace(causal=causal)
    assert_defined(op, domain, definition, activation=activation, causal=causal, **options)


@pytest.mark.parametrize("activation", ["relu", "abs"])
@pytest.mark.parametrize(("preset", "tied"), [("paper", True), ("released", False)])
def test_linear_form_is_equations_16_to_21(preset, tied, activation):
    torch.manual_seed(0)
    op = LinearInfSA(DIM, HEADS, preset=preset, activation=activation).double()
    assert op.kernel.tied == tied
    gamma = {"paper": 0.7, "released": 0.95}[preset]
    assert_defined(op, masses(), naive.linear, decay=gamma, activation=activation)


def test_power_steps_reach_the_perron_vector_of_positive_similarities():
    u = features(40).abs()
    found = []
    for steps in (1, 3, 40):
        op = LinearInfSA(DIM, HEADS, steps=steps).double()
        with torch.no_grad():
            op.kernel.query.weight.copy_(torch.eye(DIM))
        perron = (
            torch.linalg.eigh(heads(op.kernel.query, u) @ heads(op.kernel.query, u).mT)
            .eigenvectors[..., -1]
            .abs()
        )
        found.append(
            torch.nn.functional.cosine_similarity(op.weights(u)[:, :, 0], perron, dim=-1)
            .min()
            .item()
        )
    assert found[0] < found[1] < found[2] <= 1 + 1e-9
    assert found[2] > 1 - 1e-9


def test_more_steps_lead_away_from_the_perron_vector_of_rectified_similarities():
    """On independent tokens, whose similarities have both signs: the steps' own limit is that of
    K Kᵀ without the rectifier between.
    """
    tokens = torch.randn(1, 196, 192, generator=torch.Generator().manual_seed(0))

    def cosine(steps):
        torch.manual_seed(1)
        operator = LinearInfSA(192, 16, steps=steps)
        return eigenvector_alignment(operator, tokens, iterations=50).cosine.mean().item()

    assert cosine(20) < cosine(5) < cosine(1) < 0.8


def test_several_centres_give_responses_of_their_rank():
    op = LinearInfSA(DIM, HEADS, centres=3).double()
    weights = op.weights(features())
    assert torch.linalg.matrix_rank(weights).tolist() == [[3, 3]]
    assert torch.linalg.matrix_rank(
        LinearInfSA(DIM, HEADS).double().weights(features())
    ).tolist() == [[1, 1]]
    assert_close(
        weights.sum(-1), torch.full((1, HEADS, N), 0.7).double(), "weights sum to γ", torch.float32
    )


def test_streaming_scores_a_key_with_the_statistics_of_its_time():
    op = LinearInfSA(DIM, HEADS, causal="streaming", eps=0.0).double()
    u = features()
    q, v = heads(op.kernel.query, u), heads(op.kernel.value, u)
    energy = q.norm(dim=-1)
    score = torch.stack(
        [
            ((energy[:, :, : t + 1, None] * q[:, :, : t + 1]).sum(2) * q[:, :, t]).sum(-1).relu()
            / energy[:, :, : t + 1].sum(-1)
            for t in range(N)
        ],
        -1,
    )
    rows = [
        (score[:, :, : t + 1, None] * v[:, :, : t + 1]).sum(2)
        / score[:, :, : t + 1].sum(-1)[..., None]
        for t in range(N)
    ]
    expected = merged(0.7 * torch.stack(rows, 2), op)
    assert_close(op(u, Domain.line(N, causal=True, dtype=torch.float64)), expected)


@pytest.mark.parametrize("kind", [InfSA, LinearInfSA])
def test_a_learned_decay_receives_a_gradient_and_starts_at_its_option(kind):
    op = kind(DIM, HEADS, learned_decay=True, decay=0.3).double()
    u = features()
    assert_close(op.kernel.decay(), torch.full((HEADS,), 0.3).double(), "γ", torch.float32)
    loss = op(u).square().sum()
    loss.backward()
    found = op.kernel.decay_logit.grad
    step = 1e-6
    for h in range(HEADS):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                op.kernel.decay_logit[h] += sign * step
                values.append(op(u).square().sum())
                op.kernel.decay_logit[h] -= sign * step
        assert found[h].item() == pytest.approx(
            ((values[0] - values[1]) / (2 * step)).item(), rel=1e-5
        )
        assert abs(found[h]) > 1e-6
    op.kernel.reset_parameters()
    assert_close(op.kernel.decay(), torch.full((HEADS,), 0.3).double(), "γ again", torch.float32)


def test_released_and_paper_presets_differ_where_documented():
    paper, released = (CentreKernel(DIM, HEADS, preset=name) for name in ("paper", "released"))
    assert (paper.gamma, paper.scale, paper.tied) == (0.7, 1.0, True)
    assert (released.gamma, released.scale, released.tied) == (0.95, 1 / WIDTH, False)
    assert "key.weight" not in paper.state_dict()
    assert HopKernel(DIM, HEADS, preset="released", decay=0.5).gamma == 0.5


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("decay", [1.0, 1.5, 0.0, -0.2, float("nan")])
def test_a_decay_outside_its_interval_is_refused(decay):
    with pytest.raises(OptionError, match=r"got nan|γ in \(0, 1\), got"):
        HopKernel(DIM, HEADS, decay=decay)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "papers"}, "did you mean 'paper'"),
        ({"activation": "softplus"}, "known: abs, gelu, relu"),
        ({"norm": "frobenious"}, "did you mean 'frobenius'"),
        ({"power": -1}, "power and eps of 0 or more, got -1"),
        ({"eps": -1.0}, "power and eps of 0 or more, got 1 and -1.0"),
        ({"scale": 0.0}, "expected a positive scale or 'width', got 0.0"),
        ({"learned_decay": True, "power": 0}, "never change"),
        (
            {"tied": True, "projections": torch.nn.Linear(DIM, 3 * DIM)},
            "expected separate maps beside tied keys",
        ),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(OptionError, match=message):
        HopKernel(DIM, HEADS, **options)
    for bad in ({"steps": 0}, {"centres": 0}):
        with pytest.raises(OptionError, match="expected steps and centres of 1 or more"):
            CentreKernel(DIM, HEADS, **bad)


def test_queries_on_another_domain_and_streams_of_pairs_are_refused():
    with pytest.raises(DomainError, match="one set of tokens"):
        InfSA(DIM, HEADS).double()(features(), query=features(3))
    pairs = Domain.line(N, causal=True, pairs=torch.ones(N, N, dtype=torch.bool))
    with pytest.raises(DomainError, match="use causal='exact'"):
        LinearInfSA(DIM, HEADS, causal="streaming").plan(pairs)


OPERATORS = {
    "one hop": lambda **o: InfSA(DIM, HEADS, **o),
    "row norm": lambda **o: InfSA(DIM, HEADS, norm="rows", **o),
    "hops": lambda **o: InfSA(DIM, HEADS, strategy=Neumann(3), **o),
    "resolvent": lambda **o: InfSA(DIM, HEADS, strategy=Resolvent(1e-10), **o),
    "gmres": lambda **o: InfSA(DIM, HEADS, strategy=Resolvent(1e-10, method="gmres"), **o),
    "linear": lambda **o: LinearInfSA(DIM, HEADS, tied=False, **o),
    "streaming": lambda **o: LinearInfSA(DIM, HEADS, tied=False, causal="streaming", **o),
}


def checked(operator, u, domain):
    """Return the output after checking that it and its gradients are finite."""
    u = u.clone().requires_grad_()
    out = operator(u, domain)
    grads = torch.autograd.grad(out.square().sum(), [u, *operator.parameters()], allow_unused=True)
    assert out.isfinite().all()
    assert all(g is None or g.isfinite().all() for g in grads)
    return out.detach()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", list(OPERATORS))
@pytest.mark.parametrize("eps", [1e-6, 0.0])
def test_degenerate_tokens_give_finite_values_and_gradients(name, causal, eps):
    op = OPERATORS[name](eps=eps).double()
    domain = Domain.line(N, causal=causal, dtype=torch.float64)
    bias = op.projection.bias.detach()
    one = checked(op, features(1), Domain.line(1, causal=causal, dtype=torch.float64))
    assert one.shape == (1, 1, DIM)
    constant = checked(op, features(1).expand(-1, N, -1), domain)
    if not causal or name in (
        "linear",
        "streaming",
    ):  # a prefix of equal tokens has the norm of its triangle
        assert_close(constant, constant[:, :1].expand(-1, N, -1), "equal tokens have equal outputs")
    assert_close(
        checked(op, torch.zeros(1, N, DIM).double(), domain),
        bias.expand(1, N, DIM),
        "zero features",
    )
    with torch.no_grad():
        op.kernel.key.weight.copy_(-op.kernel.query.weight)
    same = features(1).expand(-1, N, -1)
    negative = checked(op, same, domain)  # every similarity is -|q|²
    if name in ("linear", "streaming"):  # the weights fall back to the energies', here uniform
        with torch.no_grad():
            mean = merged(0.7 * heads(op.kernel.value, same), op)
        assert_close(negative, mean, "fallback", torch.float32 if eps else None)
    else:
        assert_close(negative, bias.expand(1, N, DIM), "no edge at all")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in OPERATORS if name != "streaming"])
def test_a_row_without_visible_tokens_gives_the_bias(name, causal):
    op = OPERATORS[name]().double()
    mask = torch.ones(N, N, dtype=torch.bool)
    mask[3] = False
    domain = Domain.line(N, causal=causal, dtype=torch.float64, pairs=mask)
    out = checked(op, features(), domain)
    assert_close(out[0, 3], op.projection.bias.detach(), "a query that sees nothing")
    assert (out[0, 4] - op.projection.bias).abs().max() > 1e-3


def test_frobenius_row_sums_break_the_chain_and_the_row_norm_does_not():
    u = torch.zeros(1, 196, DIM).double()
    u[..., 0] = 1.0  # all keys alike, and one query that dominates
    u[0, 0, 1] = 1e3
    rows = {}
    for norm in ("frobenius", "rows"):
        op = InfSA(DIM, 1, norm=norm, decay=0.7).double()
        with torch.no_grad():
            op.kernel.query.weight.zero_()[0, 1] = 1.0
            op.kernel.key.weight.zero_()[0, 0] = 1.0
        rows[norm] = op.weights(u).sum(-1).max().item()
    assert rows["frobenius"] == pytest.approx(0.7 * 14, rel=1e-3)
    assert rows["rows"] == pytest.approx(0.7, rel=1e-3)


def test_streaming_state_does_not_grow():
    op = LinearInfSA(DIM, HEADS, causal="streaming").double()
    assert isinstance(op.kernel, StreamingCentreKernel)
    state = op.init_state(1, Domain.line(N, causal=True))
    sizes = set()
    for t in range(N):
        _, state = op.step(features()[:, t], state)
        sizes.add(sum(x.numel() for x in state.keys.values()))
    assert sizes == {HEADS * 2 * (2 * WIDTH + 1)}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("strategy", ["auto", {"name": "neumann", "hops": 3}])
def test_few_pairs_are_multiplied_in_float32_under_autocast(causal, strategy):
    """A score of 300 has a square beyond float16, and a walk feeds its rounding back."""
    torch.manual_seed(0)
    op = InfSA(8, strategy=strategy)
    u = 30 * torch.randn(1, 16, 8)
    domain = Domain.line(16, causal=causal)
    expected = op(u, domain)
    with torch.autocast("cpu", dtype=torch.float16):
        found = op(u, domain)
        state = op.init_state(1, domain) if causal else None
        outs = []
        for t in range(16 if causal else 0):
            out, state = op.step(u[:, t], state)
            outs.append(out)
    rough = {"rtol": 0.02, "atol": 0.02 * expected.abs().max().item()}
    torch.testing.assert_close(found.float(), expected, **rough)
    if causal:
        torch.testing.assert_close(torch.stack(outs, 1).float(), expected, **rough)
