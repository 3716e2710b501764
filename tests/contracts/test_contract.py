"""The contract of every registered operator: definition = fast path = causal step, in values and
gradients.
"""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import DomainError, FredholmError, OptionError, ShapeError

from ..tolerances import assert_close
from .cases import BATCH, POINTS, positions


def signal(case, seed: int = 3, n: int = POINTS) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(
        BATCH, n, case.dim, generator=generator, dtype=torch.float64
    ).requires_grad_()


def gradients(output: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    torch.manual_seed(4)
    direction = torch.randn(
        output.shape, dtype=output.dtype
    )  # randn_like would follow the memory layout
    found = torch.autograd.grad(output, inputs, direction, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found)]


def assert_same_function(fast, definition, inputs: list[torch.Tensor], names: list[str]) -> None:
    a = fast()
    b = definition()
    assert_close(a, b, "output")
    for name, g, h in zip(names, gradients(a, inputs), gradients(b, inputs)):
        assert_close(g, h, f"gradient of {name}")


def with_parameters(operator, **inputs):
    named = {**inputs, **dict(operator.named_parameters())}
    return list(named.values()), list(named)


@pytest.fixture
def operator(case):
    return case.operator()


def test_an_empty_batch_gives_an_empty_output_and_zero_gradients(case, operator):
    """On every domain that is not batched, with and without recording gradients."""
    operator.eval()
    empty = signal(case)[:0].detach().requires_grad_()
    leaves = [empty, *operator.parameters()]
    for where, domain in case.domains().items():
        if (domain.batch or 1) > 1:
            continue
        shape = (0, *operator(signal(case), domain).shape[1:])
        with torch.no_grad():
            assert operator(empty, domain).shape == shape, where

        answer = operator(empty, domain)
        assert answer.shape == shape, where
        for leaf, found in zip(leaves, gradients(answer, leaves)):
            assert found.shape == leaf.shape, where
            assert not found.any(), where


def test_forward_equals_the_definition(case, operator, where, side):
    domain = case.domains()[where]
    u = signal(case)
    assert_same_function(
        lambda: operator(u, domain),
        lambda: operator.dense(u, domain),
        *with_parameters(operator, u=u),
    )


@pytest.mark.on(
    *("lattice", "causal", "points", "padded", "causal padded", "padded line"),
    *("causal padded line", "masses"),
)
def test_forward_without_gradients_of_u_equals_the_definition(case, operator, where, side):
    """Special forms run under ``no_grad`` and where u needs no gradient."""
    domain = case.domains()[where]
    u = signal(case).detach()
    with torch.no_grad():
        assert_close(operator(u, domain), operator.dense(u, domain), "no_grad")
    named = dict(operator.named_parameters())
    if named:
        assert_same_function(
            lambda: operator(u, domain),
            lambda: operator.dense(u, domain),
            list(named.values()),
            list(named),
        )


def assert_queries_equal_the_definition(case, operator, u, domain, call):
    """Compare values and gradients of a call with queries, or see it refused."""
    if not case.cross:
        with pytest.raises(FredholmError):
            operator(u, domain, **call)
        return
    inputs, names = with_parameters(operator, u=u, query=call["query"])
    assert_same_function(
        lambda: operator(u, domain, **call),
        lambda: operator.dense(u, domain, **call),
        inputs,
        names,
    )


@pytest.mark.on("edges", "reach", "causal reach", "causal padded")
def test_queries_at_the_points_of_the_domain_equal_the_definition(case, operator, where):
    """With features of their own, where a point sees few others, and in the order of indices."""
    u = signal(case)
    query = signal(case, 5)
    domain = case.domains()[where]
    call = {"query": query, "query_domain": domain}
    assert_queries_equal_the_definition(case, operator, u, domain, call)
    if case.cross:
        assert_close(operator(u, domain, query=u, query_domain=domain), operator(u, domain))


@pytest.mark.on("*", of="refused")
def test_unsupported_domains_are_refused(case, operator, where):
    with pytest.raises(DomainError):
        operator(signal(case), case.refused()[where])
    with pytest.raises(DomainError):
        operator.plan(case.refused()[where])


@pytest.mark.on("padded", "causal padded", "bias", "counting")
def test_queries_on_another_domain_equal_the_definition(case, operator, where, side):
    u = signal(case)
    query = signal(case, 5, 4)
    domain = case.domains()[where]
    if domain.pairs is not None:
        domain = domain.replace(pairs=domain.pairs[..., :4, :])
    call = {"query": query, "query_domain": Domain.points(positions(case.position_dim, 4, seed=9))}
    assert_queries_equal_the_definition(case, operator, u, domain, call)


@pytest.mark.parametrize("what", ["positions", "measure", "pairs"])
def test_gradients_of_the_domain_equal_the_definition(case, operator, what, side):
    where = "bias" if what == "pairs" else "masses"
    if where in case.refused():
        with pytest.raises(DomainError):
            operator(signal(case), case.refused()[where])
        return
    domain = case.domains()[where]
    u = signal(case)
    leaf = getattr(domain, what).clone().requires_grad_()
    domain = domain.replace(**{what: leaf})
    assert_same_function(
        lambda: operator(u, domain), lambda: operator.dense(u, domain), [u, leaf], ["u", what]
    )


# Splits of POINTS points: a number is a ``prefill`` of that length, None one ``step``. States after
# prefills are compared with those after steps, which covers the splits not listed.
STEPS: tuple[int | None, ...] = (None,) * POINTS
PREFILLS = (1, 2, 3)
MIXED = ((6,), (4, None, 1), (2, None, 3))


def advance(operator, u, domain, split):
    """Return the outputs of a split, and the state after each number of points."""
    state = operator.init_state(BATCH, domain)
    outputs = []
    states = {0: state}
    for part in split:
        t = state.seen
        if part is None:
            y, state = operator.step(u[:, t], state)
            y = y[:, None]
        else:
            y, state = operator.prefill(u[:, t : t + part], state)
        outputs.append(y)
        states[state.seen] = state
    return torch.cat(outputs, 1), states


def as_real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x) if x.is_complex() else x


@pytest.mark.on("causal*")
def test_any_split_into_steps_and_prefills_equals_forward(case, operator, where):
    """Steps, prefills, and one mixed split per domain in turn. One backward covers them all: each
    output is multiplied by its own direction.
    """
    domain = case.domains()[where]
    u = signal(case)
    turn = [name for name in case.domains() if name.startswith("causal")].index(where)
    expected = operator(u, domain)
    outputs = []
    for split in (STEPS, PREFILLS, MIXED[turn % len(MIXED)]):
        out, states = advance(operator, u, domain, split)
        assert_close(out, expected, f"output of {split}")
        outputs.append(out)
        if split is STEPS:
            stepped = states
        for seen, state in states.items():
            assert state.keys.keys() == stepped[seen].keys.keys(), (split, seen)
            for name, memory in state.keys.items():
                what = f"{name} of {split} after {seen}"
                assert_close(as_real(memory), as_real(stepped[seen].keys[name]), what)
    inputs, names = with_parameters(operator, u=u)
    directions = torch.randn(len(outputs), *expected.shape, dtype=expected.dtype)
    together = (torch.stack(outputs) * directions).sum()
    alone = (expected * directions.sum(0)).sum()
    for name, g, h in zip(names, gradients(together, inputs), gradients(alone, inputs)):
        assert_close(g, h, f"gradient of {name}")


@pytest.mark.on("causal")
def test_continuing_from_a_state_leaves_it_unchanged(case, operator, where):
    """Two continuations of one prefix are independent."""
    domain = case.domains()[where]
    u = signal(case)
    other = signal(case, 8)
    with torch.no_grad():
        _, prefix = operator.prefill(u[:, :2], operator.init_state(BATCH, domain))
        _, first = operator.step(u[:, 2], prefix)
        copies = copy.deepcopy((prefix.keys, first.keys))
        operator.step(other[:, 2], prefix)
    for state, before in zip((prefix, first), copies):
        for name, memory in state.keys.items():
            assert torch.equal(memory, before[name]), f"{name} was written to"


@pytest.mark.on("edges", "causal reach", "causal window", "causal padded")
@torch.no_grad()
def test_copied_moved_and_saved_states_continue(case, operator, where, tmp_path):
    """Also where a point sees few others, and the domain of the state has edges or a reach."""
    if where == "edges" and "causal window" not in case.domains():
        pytest.skip("the operator refuses pairs in an order")
    domain = case.domains()[where].replace(causal=True)
    u = signal(case)
    expected = operator(u, domain)[:, 3]
    _, state = operator.prefill(u[:, :3], operator.init_state(BATCH, domain))
    path = state.save(tmp_path / "state.pt")
    for again in (state.copy(), state.detach(), state.to("cpu"), operator.load_state(path)):
        out, _ = operator.step(u[:, 3], again)
        assert_close(out, expected)


@pytest.mark.on("causal*")
def test_outputs_do_not_depend_on_later_points(case, operator, where):
    domain = case.domains()[where]
    u = signal(case)
    expected = operator(u, domain)
    for t in range(POINTS - 1):
        (g,) = torch.autograd.grad(expected[:, t].sum(), u, retain_graph=True)
        leak = g[:, t + 1 :].abs().max()
        assert leak <= (1e-12 * g.abs().max() if case.transforms else 0), (
            f"output {t} depends on later points"
        )
        assert_close(
            operator(u[:, : t + 1], domain[: t + 1]),
            expected[:, : t + 1],
            f"prefix of {t + 1} points",
        )


def test_every_parameter_receives_a_gradient(case, operator):
    u = signal(case)
    domain = case.domains()[case.plain]
    named = dict(operator.named_parameters())
    for name, g in zip(named, gradients(operator(u, domain), list(named.values()))):
        size, scale = g.abs().max().item(), named[name].abs().max().item()
        if name in case.invariant:
            assert size < 1e-12 * max(scale, 1), (
                f"{name} is listed as an exact invariance but has gradient {size:.1e}"
            )
        else:
            assert size > 1e-12, f"{name} receives no gradient"


@pytest.mark.on("padded", "causal padded")
def test_padding_changes_no_output_and_no_gradient(case, operator, where, side):
    domain = case.domains()[where]
    u = signal(case)
    real = domain.valid[..., None]
    expected = operator(u, domain)
    assert expected.isfinite().all()
    for filler in (float("nan"), 1e3):
        dirty = torch.where(real, u, filler)
        spoiled = domain.replace(positions=torch.where(real, domain.positions, filler))
        assert_close(operator(dirty, spoiled), expected, f"padding filled with {filler}")
        (g,) = torch.autograd.grad(operator(dirty, spoiled).sum(), u)
        assert g.isfinite().all()
        assert g[~domain.valid].abs().max() == 0
    alone = case.element(domain, 1)
    assert_close(
        operator(u[1:, : alone.size], alone),
        expected[1:, : alone.size],
        "batch element without its padding",
    )


def test_permuting_points_permutes_outputs(case, operator):
    if not case.permutes:
        pytest.skip("points in another order are another domain")
    domain = case.domains()["masses"]
    u = signal(case)
    order = torch.randperm(POINTS)
    shuffled = domain.replace(positions=domain.positions[order], measure=domain.measure[order])
    assert_close(operator(u[:, order], shuffled), operator(u, domain)[:, order])


def test_batching_is_invariant(case, operator):
    domain = case.domains()[case.plain]
    u = signal(case)
    together = operator(u, domain)
    for b in range(BATCH):
        assert_close(operator(u[b : b + 1], case.element(domain, b)), together[b : b + 1])


def test_every_length_equals_the_definition_on_the_default_domain(case, operator):
    if case.position_dim != 1:
        pytest.skip("the default domain is a line")
    for n in (POINTS, 3, 1):
        u = signal(case, n=n)
        domain = operator.kernel.default_domain(n, device=u.device, dtype=u.dtype)
        assert_close(operator(u), operator.dense(u, domain), f"{n} points")


def test_rows_weights_and_influence_agree_with_the_kernel_matrix(case, operator):
    domains = case.domains()
    u = signal(case)
    domain = domains.get("causal padded", domains[case.plain])
    matrix, influence = operator.kernel_matrix(u, domain), operator.influence(u, domain)
    kernel = operator.kernel
    assert matrix.shape == (BATCH, operator.heads, POINTS, POINTS, kernel.d_out, kernel.d_in)
    assert influence.shape == (BATCH, operator.heads, POINTS, POINTS)
    mass = domain.quadrature(operator.kernel.output_domain(domain)).weights()
    assert_close(influence, torch.linalg.matrix_norm(matrix) * mass, "influence")
    rows = [4, 0]
    assert_close(
        operator.kernel_matrix(u, domain, rows=rows), matrix[:, :, rows], "rows of the matrix"
    )
    assert_close(operator.influence(u, domain, rows=rows), influence[:, :, rows], "its rows")
    visible = domain.quadrature().visible()
    if visible is not None:
        assert influence[~visible.expand_as(influence)].abs().max() == 0
    if not operator.has_weights:
        with pytest.raises(OptionError, match="influence"):
            operator.weights(u, domain)
        return
    weights = operator.weights(u, domain)
    scale = torch.linalg.matrix_norm(kernel.value_map())[:, None, None]
    assert_close(weights.abs() * scale, influence, "weights")
    assert_close(operator.weights(u, domain, rows=rows), weights[:, :, rows], "rows of the weights")


def test_gradients_pass_gradcheck(case, operator):
    domains = case.domains()
    domain = domains.get("causal padded", domains[case.plain])
    u = signal(case).detach().requires_grad_()
    names = [n for n, _ in operator.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in operator.parameters()]

    def call(u, *values):
        return torch.func.functional_call(operator, dict(zip(names, values)), (u, domain))

    assert torch.autograd.gradcheck(call, (u, *parameters), fast_mode=True)


def test_float32_and_bf16_autocast_agree_with_float64(case, operator):
    domain = case.domains()[case.plain]
    u = signal(case).detach()
    expected = operator(u, domain)
    single = copy.deepcopy(operator).float()
    assert_close(
        single(u.float(), domain.to(torch.float32)).double(), expected, "float32", torch.float32
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = single(u.float(), domain.to(torch.float32))
    assert_close(half.double(), expected, "bf16 autocast", torch.bfloat16)


def test_copies_pickles_and_state_dicts_give_the_same_output(case, operator):
    domain = case.domains()[case.plain]
    u = signal(case)
    expected = operator(u, domain)
    other = case.operator()
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(operator.state_dict(), strict=True)
    for twin in (copy.deepcopy(operator), pickle.loads(pickle.dumps(operator)), other):
        assert_close(twin(u, domain), expected)


def test_memory_format_changes_no_value(case, operator):
    u = signal(case)
    domain = case.domains()[case.plain]
    moved = copy.deepcopy(operator).to(memory_format=torch.channels_last)
    out = moved(u, domain)
    assert_close(out, operator(u, domain))
    out.sum().backward()
    with torch.no_grad():
        assert_close(moved(u, domain), out)
    assert_close(moved.dense(u, domain), out)


def test_the_plan_names_its_path_and_its_reason(case, operator):
    plan = operator.plan(case.domains()[case.plain])
    assert plan.path
    assert plan.reason
    assert plan.path in str(plan)


def test_shape_errors_name_the_shape(case, operator):
    domain = case.domains()[case.plain]
    u = signal(case)
    with pytest.raises(ShapeError, match=rf"\(B, N, {case.dim}\)"):
        operator(u[..., :-1], domain)
    with pytest.raises(ShapeError, match="points"):
        operator(u[:, :-1], domain)
