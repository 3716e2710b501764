"""Monte Carlo: the estimator is unbiased in values and gradients, its variance equals the formula,
and N anchors are exact.
"""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.edges import Edges
from fredholm.errors import DomainError, OptionError, StrategyError
from fredholm.families.itnet.drawn import HiddenSamples
from fredholm.forms.monte_carlo import SampledKeys, Samples, at_anchors
from fredholm.forms.monte_carlo.drawn import _messages
from fredholm.kernels import add_proposal, auxiliary_loss
from fredholm.operators import (
    Anchors,
    ITNetOperator,
    MonteCarlo,
    OperatorSum,
    SoftmaxAttention,
    create_operator,
)
from fredholm.ops.anchors import lattice, spread_anchors

from ..contracts.cases import OperatorCase
from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 6
STANDARD = OperatorCase("itnet").standard_domains()
# Domains where a query sees few keys refuse to draw from them.
SPARSE = {
    name
    for name, domain in STANDARD.items()
    if isinstance(domain.pairs, Edges) or domain.reach is not None
}
DOMAINS = {name: domain for name, domain in STANDARD.items() if name not in SPARSE}
UNPAIRED = [name for name, domain in DOMAINS.items() if domain.pairs is None]


def operator(
    samples: int = 4, proposal: bool = True, name: str = "itnet", anchors: bool = False, **options
):
    strategy = MonteCarlo(samples=samples, anchors=anchors, loss_queries=2)
    options = {"width": 5, "frequencies": 3, "sigma": 1.0, "strategy": strategy} | options
    built = create_operator(name, DIM, HEADS, **options).double()
    if proposal:
        add_proposal(built, components=3, width=4, frequencies=2)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def signal(n: int = N):
    return torch.randn(2, n, DIM, dtype=torch.float64, requires_grad=True)


def repeated(domain, u, times):
    """Repeat the problem within the batch, for as many independent estimates."""
    parts = {
        name: getattr(domain, name).repeat(times, *[1] * (getattr(domain, name).dim() - 1))
        for name, dims in (("positions", 3), ("measure", 2), ("valid", 2), ("pairs", 4))
        if getattr(domain, name) is not None
        and getattr(domain, name).dim() == dims
        and getattr(domain, name).shape[0] > 1
    }
    return replace(domain, **parts), u.repeat(times, 1, 1)


@pytest.mark.parametrize("where", sorted(SPARSE))
def test_a_domain_with_few_neighbours_is_refused(where):
    with pytest.raises(StrategyError, match=r"expected an exact strategy.*few neighbours"):
        operator(samples=3)(signal(), STANDARD[where])


@pytest.mark.parametrize("where", list(DOMAINS))
def test_values_and_gradients_are_unbiased(where):
    op = operator(samples=3)
    domain = DOMAINS[where]
    u = signal().detach()
    direction = torch.randn(2, N, DIM, dtype=torch.float64)
    times = 400
    many, v = repeated(domain, u, times)
    v.requires_grad_()
    out = op(v, many)
    (grad,) = torch.autograd.grad((out * direction.repeat(times, 1, 1)).sum(), v)
    u.requires_grad_()
    expected = op.dense(u, domain)
    (wanted,) = torch.autograd.grad((expected * direction).sum(), u)
    for name, found, truth in (("value", out, expected), ("gradient", grad, wanted)):
        found = found.detach().unflatten(0, (times, 2))
        error = (found.mean(0) - truth).abs()
        bound = 4 * found.std(0) / times**0.5 + 1e-9
        assert (error > bound).double().mean() < 0.002, (
            f"{name}: {error.max():.2e} beyond 4 standard errors"
        )


def test_gradients_of_the_kernel_are_unbiased():
    op = operator(samples=3)
    domain = DOMAINS["lattice"]
    u = signal().detach()
    parameters = [p for name, p in op.named_parameters() if "proposal" not in name]

    def gradient(out):
        return torch.cat([g.flatten() for g in torch.autograd.grad(out.sum(), parameters)])

    times = 300
    found = torch.stack([gradient(op(u, domain)) for _ in range(times)])
    truth = gradient(op.dense(u, domain))

    # The mean of ``times`` draws has the standard error σ / √times. One of these 416 entries with a
    # σ is beyond four of them by chance in about 3% of all seeds; the test has one seed. The other
    # entries do not depend on the samples, and only round.
    standard_error = found.std(0) / times**0.5
    error = (found.mean(0) - truth).abs()
    assert (error <= 4 * standard_error + 1e-9).all()


def drawn(op):
    """Return the form that samples keys, with the operator's strategy."""
    return SampledKeys(op.strategy)


def probabilities(op, domain, u):
    """Return the problem, q (B, H, Nq, Nk) and the messages of all pairs."""
    problem = op.problem(u, domain)
    proposal = drawn(op).proposal(op.kernel, problem)
    every = torch.arange(domain.size).expand(u.shape[0], HEADS, domain.size, -1)
    seen = problem.quadrature.visible()
    density = proposal.density(every)
    density = density if seen is None else torch.where(seen, density, 0.0)
    return problem, density, _messages(op.kernel, problem, every)


@pytest.mark.parametrize("where", list(DOMAINS))
def test_the_proposal_is_a_distribution_above_its_floor(where):
    op = operator()
    domain = DOMAINS[where]
    problem, q, _ = probabilities(op, domain, signal().detach())
    weights = problem.quadrature.weights().expand_as(q)
    some = (weights > 0).any(-1)
    assert_close(q.sum(-1)[some], torch.ones_like(q.sum(-1)[some]))
    assert (q[weights > 0] >= op.strategy.floor / N - 1e-12).all()
    keys = drawn(op).draw(problem, drawn(op).proposal(op.kernel, problem))
    visible = problem.quadrature.visible()
    if visible is not None:
        seen = visible.expand_as(q).gather(-1, keys.index)
        assert (keys.weight[~seen] == 0).all()
        assert seen[some].all()


def variance_formula(problem, q, messages, samples):
    """Return Eq. 208 per query and head: (Σ_y |μ K u|² / q - |∫ K u|²) / S."""
    terms = problem.quadrature.weights()[..., None] * messages
    second = (terms.square().sum(-1) / q).sum(-1)
    return (second - terms.sum(3).square().sum(-1)) / samples, terms


@torch.no_grad()
def test_the_variance_is_the_formula():
    op = operator(samples=3)
    u = signal().detach()
    problem, q, messages = probabilities(op, DOMAINS["masses"], u)
    formula, terms = variance_formula(problem, q, messages, 3)
    times = 4000
    many = op.problem(*reversed(repeated(DOMAINS["masses"], u, times)))
    found = drawn(op).estimate(
        op.kernel, many, drawn(op).draw(many, drawn(op).proposal(op.kernel, many))
    )
    assert abs(found.unflatten(0, (times, 2)).var(0).sum() / formula.sum() - 1) < 0.05
    # Eq. 209, 210: q* is proportional to the terms' sizes and reaches the lower bound (Σ|μ K u|)².
    size = torch.linalg.vector_norm(terms, dim=-1)
    optimal = size / size.sum(-1, keepdim=True)
    best, _ = variance_formula(problem, optimal, messages, 3)
    bound = (size.sum(-1).square() - terms.sum(3).square().sum(-1)) / 3
    assert_close(best, bound)
    assert (formula >= bound - 1e-12).all()
    for _ in range(5):
        other = torch.rand_like(q)
        assert (
            variance_formula(problem, other / other.sum(-1, keepdim=True), messages, 3)[0]
            >= bound - 1e-12
        ).all()


@torch.no_grad()
def test_the_error_falls_as_one_over_the_root_of_samples():
    op = operator(proposal=False)
    n = 64
    u = signal(n)
    domain = Domain.line(n, dtype=torch.float64)
    exact = op.dense(u, domain)
    errors = []
    counts = (4, 16, 64)
    for samples in counts:
        op.strategy = MonteCarlo(samples=samples)
        errors.append(
            torch.stack([(op(u, domain) - exact).square().mean() for _ in range(20)])
            .mean()
            .sqrt()
            .log()
        )
    slope = (errors[-1] - errors[0]) / torch.tensor(counts[-1] / counts[0]).log()
    assert abs(float(slope) + 0.5) < 0.06


@pytest.mark.parametrize("where", ["causal padded", "masses"])
def test_gradients_of_fixed_samples_pass_gradcheck(where):
    op = operator()
    u = signal()
    domain = DOMAINS[where]
    op.strategy = MonteCarlo(samples=3)
    problem = op.problem(u.detach(), domain)
    samples = drawn(op).draw(problem, drawn(op).proposal(op.kernel, problem))
    samples = Samples(samples.index, samples.weight.detach())
    names = [n for n, _ in op.kernel.named_parameters()]
    parameters = [p.detach().requires_grad_() for p in op.kernel.parameters()]

    def call(u, *values):
        own = copy.copy(op.kernel)
        problem = op.problem(u, domain)
        return torch.func.functional_call(
            Estimate(own), {f"kernel.{n}": v for n, v in zip(names, values)}, (problem, samples)
        )

    assert torch.autograd.gradcheck(call, (u, *parameters), fast_mode=True)


class Estimate(torch.nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel = kernel

    def forward(self, problem, samples):
        return SampledKeys(MonteCarlo(samples=3)).estimate(self.kernel, problem, samples)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"depth": 3},
        {"output": "compact"},
        {"groups": ("relative", "query")},
        {"groups": ("distance",)},
        {"groups": ()},
    ],
    ids=str,
)
@pytest.mark.parametrize("where", ["lattice", "causal padded"], ids=["table", "columns"])
def test_the_split_form_equals_the_pair_form(options, where):
    op = operator(proposal=False, **options)
    u = signal()
    problem = op.problem(u, DOMAINS[where])
    assert (problem.layout.grid is None) == (where == "causal padded"), (
        "a regular grid reads a table of displacements"
    )
    samples = drawn(op).draw(problem, drawn(op).proposal(op.kernel, problem))
    split = HiddenSamples(op.strategy)
    keys = split.key_terms(op.kernel, problem)
    fast = split.integral(op.kernel, problem, samples, keys)
    plain = SampledKeys(op.strategy).integral(op.kernel, problem, samples, {})
    assert_close(fast, plain)
    leaves = [u, *op.kernel.parameters()]
    found = [
        torch.autograd.grad(x.square().sum(), leaves, allow_unused=True, retain_graph=True)
        for x in (fast, plain)
    ]
    for x, g, e in zip(leaves, *found):
        g, e = (torch.zeros_like(x) if part is None else part for part in (g, e))
        assert_close(g, e, "gradient")


def test_blocks_of_queries_do_not_change_the_result(monkeypatch):
    op = operator()
    u = signal()
    domain = DOMAINS["causal"]
    problem = op.problem(u, domain)
    samples = drawn(op).draw(problem, drawn(op).proposal(op.kernel, problem))
    whole = drawn(op).estimate(op.kernel, problem, samples)
    monkeypatch.setattr("fredholm.forms.monte_carlo.drawn.BYTES", 1)
    parts = drawn(op).estimate(op.kernel, problem, samples)
    assert_close(parts, whole)
    for a, b in zip(
        *(torch.autograd.grad(x.square().sum(), u, retain_graph=True) for x in (parts, whole))
    ):
        assert_close(a, b, "gradient")


@pytest.mark.parametrize("what", ["positions", "measure"])
def test_gradients_of_positions_and_measure_are_unbiased(what):
    op = operator(samples=3)
    domain = DOMAINS["masses"]
    u = signal().detach()
    leaf = getattr(domain, what).clone().requires_grad_()
    torch.manual_seed(1)
    times = 150
    found = torch.stack(
        [
            torch.autograd.grad(op(u, domain.replace(**{what: leaf})).sum(), leaf)[0]
            for _ in range(times)
        ]
    )
    (truth,) = torch.autograd.grad(op.dense(u, domain.replace(**{what: leaf})).sum(), leaf)
    assert ((found.mean(0) - truth).abs() < 4.5 * found.std(0) / times**0.5).all()


# --- the proposal ---------------------------------------------------------------------------------


def test_the_auxiliary_loss_trains_only_the_proposal():
    op = operator(samples=5)
    u = signal()
    domain = DOMAINS["causal"]
    assert auxiliary_loss(op) is None
    out = op(u, domain)
    of_task = torch.autograd.grad(
        out.square().sum(), list(op.kernel.proposal.parameters()), allow_unused=True
    )
    assert all(g is None for g in of_task), (
        "samples and weights are constants of the task's gradient"
    )
    loss = auxiliary_loss(op)
    assert auxiliary_loss(op) is None, "a loss is taken once"
    for name, parameter in op.named_parameters():
        (g,) = torch.autograd.grad(loss, parameter, retain_graph=True, allow_unused=True)
        assert (g is not None and g.abs().max() > 0) == ("proposal" in name), name
    assert torch.autograd.grad(loss, u, allow_unused=True)[0] is None


def test_the_auxiliary_loss_lowers_the_variance():
    op = operator(samples=16, name="itnet")
    u = signal(24).detach()
    u[:, :3] *= 6  # few keys matter
    op.strategy = MonteCarlo(samples=16, loss_queries=12)
    domain = Domain.line(24, dtype=torch.float64)
    optimizer = torch.optim.Adam(op.kernel.proposal.parameters(), lr=0.03)

    def variance():
        with torch.no_grad():
            problem, q, messages = probabilities(op, domain, u)
            return variance_formula(problem, q, messages, 16)[0].sum()

    before = variance()
    for _ in range(50):
        op(u, domain)
        optimizer.zero_grad()
        auxiliary_loss(op).backward()
        optimizer.step()
    assert variance() < 0.7 * before


def test_the_auxiliary_loss_averages_layers_and_is_absent_in_evaluation():
    layers = torch.nn.ModuleList([operator(samples=3), operator(samples=3)])
    u = signal()
    for layer in layers:
        layer(u)
    parts = [layer.kernel.proposal._loss for layer in layers]
    assert_close(auxiliary_loss(layers), sum(parts) / 2)
    for layer in layers.eval():
        layer(u)
    assert auxiliary_loss(layers) is None


def test_copies_carry_no_graph():
    op = operator()
    op(signal())
    for twin in (copy.deepcopy(op), pickle.loads(pickle.dumps(op))):
        assert auxiliary_loss(twin) is None
        twin.load_state_dict(op.state_dict(), strict=True)
    assert auxiliary_loss(op) is not None


# --- evenly spread keys ---------------------------------------------------------------------------


@pytest.mark.parametrize("where", list(DOMAINS))
def test_evaluation_is_deterministic_and_independent_of_the_batch(where):
    op = operator(samples=3).eval()
    u = signal().detach()
    domain = DOMAINS[where]
    assert op.plan(domain).path == "evenly spread keys"
    found = op(u, domain)
    assert torch.equal(found, op(u, domain))
    for b in range(2):
        alone = OperatorCase.element(domain, b)
        assert_close(
            op(u[b : b + 1, : alone.size], alone)[0],
            found[b, : alone.size],
            "without the batch and its padding",
        )
    assert auxiliary_loss(op) is None, "nothing to train"


def test_evaluation_does_not_depend_on_later_points():
    op = operator(samples=3).eval()
    u = signal()
    domain = DOMAINS["causal"]
    for t in range(N - 1):
        (g,) = torch.autograd.grad(op(u, domain)[:, t].sum(), u)
        assert g[:, t + 1 :].abs().max() == 0


def test_errors_of_queries_are_independent():
    """In the mean over queries, which a classifier reads, few keys per query have a smaller error
    than the same keys for all, and more keys a smaller one.
    """
    torch.manual_seed(3)
    op = operator(proposal=False).eval()
    u = signal(64).detach()
    domain = Domain.line(64, dtype=torch.float64)
    truth = op.dense(u, domain).mean(1)
    error = {}
    for samples, anchors in ((4, False), (16, False), (16, True)):
        op.strategy = MonteCarlo(samples=samples, anchors=anchors)
        error[samples, anchors] = (op(u, domain).mean(1) - truth).norm() / truth.norm()
    assert error[16, False] < 0.5 * error[4, False]
    assert error[4, False] < 0.5 * error[16, True]


def test_the_lattice_is_evenly_spread():
    points = lattice(3, 5, 16)
    assert points.shape == (3, 5, 16, 2)
    for rows in points.flatten(0, 1):
        assert sorted((rows[:, 0] * 16).floor().tolist()) == list(range(16)), (
            "one in every interval"
        )
        gaps = rows[:, 1].sort().values.diff()
        assert gaps.max() < 3 / 16
    assert len({tuple(r) for r in points[..., 0, :].flatten(0, 1).tolist()}) == 15, (
        "every head and query has its own"
    )
    assert torch.equal(lattice(3, 9, 16)[:, :5], points), "whatever comes after"


# --- anchors --------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", UNPAIRED)
@pytest.mark.parametrize("name", ["itnet", "itnet_low_rank"])
def test_n_anchors_equal_the_definition(where, name):
    op = operator(samples=N, name=name, anchors=True).eval()
    u = signal()
    domain = DOMAINS[where]
    assert op.plan(domain).path == "anchors"
    found = op(u, domain)
    truth = op.dense(u, domain)
    assert_close(found, truth)
    leaves = [u, *(p for n, p in op.named_parameters() if "proposal" not in n)]
    for g, e in zip(*(torch.autograd.grad(x.square().sum(), leaves) for x in (found, truth))):
        assert_close(g, e, "gradient")


@pytest.mark.parametrize("where", UNPAIRED)
def test_anchors_have_the_mass_of_their_clusters(where):
    op = operator(samples=3, anchors=True).eval()
    u = signal().detach()
    domain = DOMAINS[where]
    anchors = Anchors.of(domain, 3)
    problem = op.problem(u, domain)
    part = at_anchors(problem, None, op.strategy.samples)
    found, total = torch.broadcast_tensors(
        *(p.quadrature.weights().sum(-1) for p in (part, problem))
    )
    assert_close(found, total, "mass a query sees")
    expected = op(u, domain)
    op.strategy = MonteCarlo(samples=3, anchors=anchors)
    assert_close(op(u, domain), expected, "anchors made once")
    assert_close(op(u, domain), expected, "and again")


def test_causal_anchors_do_not_depend_on_later_points():
    op = operator(samples=3, anchors=True).eval()
    u = signal()
    domain = DOMAINS["causal"]
    for t in range(N - 1):
        (g,) = torch.autograd.grad(op(u, domain)[:, t].sum(), u)
        assert g[:, t + 1 :].abs().max() == 0
        assert g[:, : t + 1].abs().max() > 0


def test_anchors_are_exact_for_kernels_constant_on_clusters():
    op = operator(samples=2, groups=("key_position",), anchors=True).eval()
    x = torch.tensor([0.1, 0.1, 0.1, 0.8, 0.8, 0.8], dtype=torch.float64)[:, None]
    u = torch.randn(1, 2, DIM, dtype=torch.float64).repeat_interleave(3, 1)
    assert_close(op(u, Domain.points(x)), op.dense(u, Domain.points(x)))


def test_clusters_of_bfloat16_positions_equal_float32s():
    x = torch.randn(2, 40, 3).bfloat16()
    mass = torch.ones(2, 40)
    for found, expected in zip(spread_anchors(x, mass, 5), spread_anchors(x.float(), mass, 5)):
        assert torch.equal(found, expected)


def test_anchors_avoid_duplicates_and_massless_points():
    x = torch.tensor([[[0.0], [0.0], [0.0], [1.0]]])
    index, cluster = spread_anchors(x, torch.tensor([[1.0, 1.0, 1.0, 1.0]]), 3)
    assert set(index[0].tolist()) <= {0, 3}
    assert cluster.tolist() == [[0, 0, 0, cluster[0, 3]]]
    index, _ = spread_anchors(x, torch.tensor([[0.0, 1.0, 1.0, 0.0]]), 2)
    assert set(index[0].tolist()) <= {1, 2}, "an anchor has mass"


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["ckconv", "itnet"])
def test_keys_are_drawn_in_half_precision(name, dtype, training):
    """Positions stay in float32, and a matrix that is computed from them meets half features."""
    torch.manual_seed(0)
    options = {"length": 16} if name == "ckconv" else {"width": 5}
    op = create_operator(name, DIM, 1, **options).train(training)
    op.strategy = MonteCarlo(samples=4, anchors=False)
    u = torch.randn(2, 16, DIM)
    torch.manual_seed(1)
    expected = op(u)
    torch.manual_seed(1)
    out = copy.deepcopy(op).to(dtype)(u.to(dtype))
    assert out.dtype == dtype
    assert_close(out.float(), expected, dtype=dtype)


# --- refusals -------------------------------------------------------------------------------------


def test_unsupported_cases_are_refused():
    op = operator(samples=7)
    u = signal()
    assert not MonteCarlo().exact
    for mode in (True, False):
        with pytest.raises(OptionError, match="has points, 6, got samples=7"):
            op.train(mode)(u)
    with pytest.raises(OptionError, match="got samples=7"):
        Anchors.of(DOMAINS["lattice"], 7)
    with pytest.raises(DomainError, match="pairs forbid"):
        operator(anchors=True).eval()(u, DOMAINS["bias"])
    wrong = object.__new__(MonteCarlo)  # bypasses the tests' check of types
    vars(wrong).update(vars(MonteCarlo()) | {"anchors": 8})
    with pytest.raises(OptionError, match=r"^expected anchors=True, False or Anchors\.of"):
        inspect.unwrap(MonteCarlo.__post_init__)(wrong)
    given = operator(samples=7, anchors=Anchors.of(Domain.line(N).to(torch.float64), 2)).eval()
    assert given(u, Domain.line(N)).isfinite().all(), "the given anchors count, not samples"
    small = operator(samples=2).eval()
    small.strategy = MonteCarlo(samples=2, anchors=Anchors.of(Domain.line(9), 2))
    with pytest.raises(DomainError, match="domain of 6 points, got those of 9"):
        small(u)
    with pytest.raises(StrategyError, match=r"MonteCarlo cannot integrate SoftmaxKernel.*two ends"):
        SoftmaxAttention(DIM, HEADS, strategy="monte_carlo").double()(u)
    causal = DOMAINS["causal"]
    with pytest.raises(StrategyError, match="no causal step"):
        op.step(u[:, 0], op.init_state(2, causal))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "1 or more, got 0"),
        ({"floor": 0.0}, r"\(0, 1\], got 0"),
        ({"floor": 1.5}, "got 1.5"),
        ({"loss_queries": 0}, "1 or more"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        MonteCarlo(**options)
    with pytest.raises(OptionError, match="components"):
        add_proposal(ITNetOperator(8, 2, width=4), components=0)


def test_proposals_are_added_only_to_kernels_that_sample():
    total = OperatorSum(8, 2, parts=["itnet", "softmax"])
    assert add_proposal(total) == 1
    assert add_proposal(as_operator(nn.MaxPool1d(2), dim=4)) == 0
