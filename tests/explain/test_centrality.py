"""Token chains: closed forms, dense against matrix-free for any operator, and broken chains."""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import ConvergenceError, DomainError, OptionError
from fredholm.explain import alignment, eigenvector_alignment, token_chain
from fredholm.explain.kernels import pair_weights
from fredholm.kernels import SoftmaxKernel
from fredholm.operators import create_operator

from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 7
OPTIONS = {"itnet": {"width": 4, "frequencies": 2}, "infsa": {}, "softmax": {}, "linear_infsa": {}}
QUANTITIES = ("row_sums", "absorption", "outgoing", "incoming", "katz")


def make(name, **options):
    torch.manual_seed(1)
    return create_operator(name, DIM, HEADS, **OPTIONS[name], **options).double()


def features():
    return torch.randn(2, N, DIM, dtype=torch.float64, requires_grad=True)


def domains():
    double = {"dtype": torch.float64}
    valid = torch.tensor([[True] * N, [True] * (N - 2) + [False] * 2])
    mask = torch.rand(N, N) > 0.3
    return {
        "line": Domain.line(N, **double),
        "causal": Domain.line(N, causal=True, **double),
        "padded": Domain.points(torch.rand(2, N, 1, **double), valid=valid),
        "mask": Domain.points(torch.rand(N, 1, **double), pairs=mask),
        "masses": Domain.points(torch.rand(N, 1, **double), measure=torch.rand(N, **double)),
    }


@pytest.mark.parametrize("where", list(domains()))
@pytest.mark.parametrize("name", list(OPTIONS))
def test_every_quantity_equals_the_chains_dense_and_matrix_free(name, where):
    op = make(name)
    u = features()
    domain = domains()[where]
    chain = token_chain(op, u, domain)
    real = torch.ones(1, N, dtype=torch.bool) if domain.valid is None else domain.valid
    seen = (real[:, None, :, None] & real[:, None, None, :]).double()
    walk = chain.decay[..., None, None] * pair_weights(op, u, domain).detach() * seen
    visits = torch.eye(N).double() + walk
    power = walk
    for _ in range(10):  # the sum of 2048 powers
        power = power @ power
        visits = visits + power @ visits
    ends = real[:, None, :, None].double()
    assert_close(chain.fundamental(), visits * ends, "fundamental matrix")
    assert_close(chain.outgoing, (visits @ ends)[..., 0] * ends[..., 0], "outgoing")
    assert_close(chain.incoming, (visits.mT @ ends)[..., 0] * ends[..., 0], "incoming")
    assert_close(chain.katz, chain.outgoing - ends[..., 0].expand_as(chain.outgoing), "Katz")
    assert (chain.absorption >= 0.05 * ends[..., 0] - 1e-12).all()
    absorbed = visits @ chain.absorption[..., None]
    assert_close(absorbed * ends, ends.expand_as(absorbed), "every walk stops somewhere")
    if where not in ("causal", "padded"):
        return
    free = token_chain(op, u, domain, dense=0, tol=1e-12, budget=3 * 8 * 2 * HEADS * N)
    assert free.matrix is None
    for quantity in QUANTITIES:
        assert_close(getattr(free, quantity), getattr(chain, quantity), quantity)
    assert_close(
        free.fundamental([3, 0]),
        chain.fundamental()[:, :, [3, 0]],
        "rows of the fundamental matrix",
    )
    assert_close(chain.fundamental([3, 0]), chain.fundamental()[:, :, [3, 0]], "dense rows")


def test_chains_depend_on_the_kernels_class_and_not_on_attribute_names():
    class Foreign(SoftmaxKernel):
        """A kernel whose attributes have names of InfSA's kernels but other meanings."""

        decay = 0.3
        steps = 7
        activation = "relu"

        def tokens(self):
            return "words"

    op = make("softmax")
    u = features()
    chain = token_chain(op, u)
    aligned = eigenvector_alignment(op, u)
    op.kernel.__class__ = Foreign
    other = token_chain(op, u)
    again = eigenvector_alignment(op, u)
    assert other.requested == chain.requested == 0.7
    assert_close(other.outgoing, chain.outgoing, "outgoing")
    assert_close(again.cosine, aligned.cosine, "alignment")
    assert token_chain(make("infsa"), u).requested == 1.0


def test_the_length_of_softmax_walks_follows_the_decay():
    chain = token_chain(make("softmax"), features())
    assert chain.requested == 0.7
    assert not chain.limited.any()
    assert_close(chain.outgoing, torch.full_like(chain.outgoing, 1 / 0.3), "γ = 0.7")
    near = token_chain(make("softmax"), features(), decay=1.0, margin=0.01)
    assert near.limited.all()
    assert_close(near.outgoing, torch.full_like(near.outgoing, 100.0), "γ lowered to 0.99")


def test_row_sums_above_one_lower_the_decay_and_warn():
    u = torch.zeros(1, 196, DIM, dtype=torch.float64)
    u[..., 0], u[0, 0, 1] = 1.0, 1e3
    operators = {
        norm: create_operator("infsa", DIM, 1, norm=norm, decay=0.7).double()
        for norm in ("frobenius", "rows")
    }
    chains = {}
    for norm, op in operators.items():
        with torch.no_grad():
            op.kernel.query.weight.zero_()[0, 1] = 1.0
            op.kernel.key.weight.zero_()[0, 0] = 1.0
        chains[norm] = token_chain(op, u)
    assert chains["frobenius"].row_sums.max().item() == pytest.approx(
        9.8, rel=1e-2
    )  # R would be -8.8
    assert chains["frobenius"].limited.all()
    assert chains["frobenius"].absorption.min().item() == pytest.approx(0.05)
    assert not chains["rows"].limited.any()
    assert chains["rows"].absorption.min().item() == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize("dense", [1024, 0])
def test_stationary_distribution_is_a_left_eigenvector(dense):
    u = features()
    op = make("softmax")
    chain = token_chain(op, u, dense=dense)
    state = chain.stationary()
    moved = (state[:, :, None] @ op.weights(u).detach())[:, :, 0]
    assert_close(moved, state, "πP = π", torch.float32)
    assert_close(state.sum(-1), torch.ones(2, HEADS).double(), "probabilities", torch.float32)
    uniform = token_chain(make("softmax"), torch.zeros(1, N, DIM).double(), dense=dense).stationary(
        damping=0.5
    )
    assert_close(uniform, torch.full((1, HEADS, N), 1 / N, dtype=torch.float64), "constant tokens")


def test_causal_walks_end_at_the_first_token_and_empty_rows_jump_uniformly():
    causal = token_chain(make("softmax"), features(), domains()["causal"], tol=1e-6).stationary()
    assert_close(
        causal[..., 0],
        torch.ones(2, HEADS).double(),
        "the first token sees itself only",
        torch.bfloat16,
    )
    mask = torch.zeros(N, N, dtype=torch.bool)
    empty = token_chain(
        make("softmax"), features(), Domain.line(N, dtype=torch.float64, pairs=mask)
    )
    assert_close(
        empty.stationary(),
        torch.full((2, HEADS, N), 1 / N, dtype=torch.float64),
        "no row sees anything",
    )
    assert_close(empty.outgoing, torch.ones(2, HEADS, N).double(), "every walk stops at once")


def test_divergence_is_an_error_that_names_the_radius():
    chain = token_chain(make("softmax"), features(), dense=0, tol=1e-12, max_iterations=2)
    with pytest.raises(ConvergenceError, match="spectral radius"):
        _ = chain.incoming
    with pytest.raises(ConvergenceError, match="still moves") as failure:
        chain.stationary()
    assert 0 < failure.value.radius < 1


def test_wrong_input_is_refused():
    u = features()
    with pytest.raises(OptionError, match="non-negative weights"):
        token_chain(make("infsa", activation="gelu"), u)
    with pytest.raises(OptionError, match="non-negative weights"):
        token_chain(make("infsa", activation="gelu"), u, dense=0)
    for options in ({"decay": 0.0}, {"margin": 1.0}, {"margin": 0.0}, {"tol": 0.0}):
        with pytest.raises(OptionError, match="a chain needs"):
            token_chain(make("softmax"), u, **options)
    with pytest.raises(OptionError, match="rows="):
        token_chain(make("softmax"), u, dense=0).fundamental()
    with pytest.raises(OptionError, match="damping"):
        token_chain(make("softmax"), u).stationary(damping=0.0)


def test_alignment_is_one_for_the_eigenvector_and_below_otherwise():
    u = torch.rand(3, 30, DIM, dtype=torch.float64)  # positive similarities: power steps converge
    found = {}
    for steps in (1, 50):
        op = make("linear_infsa", steps=steps)
        with torch.no_grad():
            op.kernel.query.weight.copy_(torch.eye(DIM))
        found[steps] = eigenvector_alignment(op, u)
    assert_close(found[50].cosine, torch.ones(3, HEADS).double(), "cosine", torch.float32)
    assert found[50].spearman.min() > 0.999
    assert (found[1].cosine < found[50].cosine).all()
    assert found[1].cosine.min() > 0.9
    with pytest.raises(OptionError, match="non-negative"):
        eigenvector_alignment(make("infsa", activation="gelu"), features())
    with pytest.raises(DomainError, match="without order"):
        eigenvector_alignment(make("linear_infsa"), u, Domain.line(30, causal=True))


@pytest.mark.parametrize("budget", [1, 2**27])
def test_alignment_of_several_centres_covers_all_queries(budget, monkeypatch):
    monkeypatch.setattr(alignment, "BUDGET", budget)
    op = make("linear_infsa", centres=3)
    masses = torch.rand(N, dtype=torch.float64)
    with torch.no_grad():
        op.kernel.probes.mul_(20)
    u = 3 * features().detach()
    places = Domain.points(torch.rand(N, 1, dtype=torch.float64), measure=masses)
    rows = op.kernel.weights(op.problem(u, places)).detach()
    mean = (places.measure[:, None] * rows).sum(2)
    found = eigenvector_alignment(op, u, places)
    _, vector = alignment._centred_weights(op.kernel, op.problem(u, places), 200)
    cosine = torch.nn.functional.cosine_similarity
    assert_close(found.cosine, cosine(mean, vector, dim=-1))
    assert (found.cosine - cosine(rows[:, :, 0], vector, dim=-1)).abs().max() > 0.1

    # The order of points does not matter.
    order = torch.tensor([*range(3, N), *range(3)])
    turned = Domain.points(places.positions[order], measure=places.measure[order])
    assert_close(eigenvector_alignment(op, u[:, order], turned).cosine, found.cosine)


@pytest.mark.parametrize("dense", [1024, 0])
@pytest.mark.parametrize("name", list(OPTIONS))
def test_a_point_without_mass_is_not_a_state_of_the_chain(name, dense):
    measure = torch.tensor([0.0, *[1.0] * (N - 1)], dtype=torch.float64)
    both = Domain.points(torch.rand(N, 1, dtype=torch.float64), measure=measure)
    rest = Domain.points(both.positions[1:], measure=measure[1:])
    op = make(name)
    u = features().detach()
    whole, part = (
        token_chain(op, u, both, dense=dense),
        token_chain(op, u[:, 1:], rest, dense=dense),
    )
    for quantity in ("incoming", "outgoing", "absorption"):
        assert (getattr(whole, quantity)[..., 0] == 0).all()
        assert_close(
            getattr(whole, quantity)[..., 1:], getattr(part, quantity), quantity, torch.float32
        )


@pytest.mark.parametrize("power", [0, 3])
@pytest.mark.parametrize("name", ["infsa", "linear_infsa"])
def test_the_chain_of_every_block_has_one_decay(name, power):
    """The weights of block l contain the l-th power or none; M = γ Â in each (Eq. 13)."""
    op = make(name)
    u = features()
    plain = token_chain(op, u)
    op.kernel.power = power
    chain = token_chain(op, u)
    assert_close(chain.outgoing, plain.outgoing, "outgoing")
    assert_close(chain.incoming, plain.incoming, "incoming")
