"""Operators with a decay of the past: initial rates, time, and errors."""

from __future__ import annotations

import math

import pytest
import torch

from fredholm.distributed import Shards
from fredholm.domain import Domain
from fredholm.errors import BackendError, DomainError, OptionError
from fredholm.kernels import Layout
from fredholm.operators import Linear, LinearAttention, LunaAttention, create_operator

from ..tolerances import assert_close

DIM, HEADS, N = 8, 2, 6
NAMES = ["luna", "linear_attention"]


def flat(decay: str, half_life: float, **options) -> LinearAttention:
    """Return an operator whose features are all one, so that its weights are the decays alone."""
    return LinearAttention(
        DIM, HEADS, feature_map=torch.ones_like, decay=decay, half_life=half_life, **options
    ).double()


def signal(n: int = N) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, n, DIM, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("decay", ["head", "token"])
def test_weights_halve_after_the_half_life(decay):
    weights = flat(decay, 2.0).weights(signal(), Domain.line(N, causal=True, dtype=torch.float64))
    single = {"dtype": torch.float32}  # that of the parameters as they were drawn
    assert_close(weights[..., 5, 3], weights[..., 5, 5] / 2, **single)
    assert_close(weights[..., 5, 1], weights[..., 5, 5] / 4, **single)
    assert_close(weights.sum(-1), torch.ones(2, HEADS, N, dtype=torch.float64))


@pytest.mark.parametrize("decay", ["head", "token"])
def test_the_default_half_life_is_700_tokens(decay):
    rates = LunaAttention(DIM, HEADS, decay=decay).kernel.decay.rates(torch.randn(1, 3, DIM))
    assert_close(rates, torch.full_like(rates, math.log(2) / 700), dtype=torch.float32)


def test_rates_integrate_over_timestamps():
    times = torch.tensor([0.0, 0.5, 3.0, 3.0, 4.0, 9.0], dtype=torch.float64)
    clock = Domain.timestamps(times)
    weights = flat("head", 1.0).weights(signal(), clock)
    elapsed = times[:, None] - times
    wanted = (clock.measure * 0.5**elapsed).tril()
    assert_close(weights[0, 0], wanted / wanted.sum(-1, keepdim=True), dtype=torch.float32)


def test_a_batch_of_lines_decays_by_steps():
    """Lines of several sizes have no grid in common, and their points are steps all the same."""
    lines = [Domain.line(n, causal=True, measure="spacing", dtype=torch.float64) for n in (4, N)]
    operator = flat("head", 1.0)
    u = signal()
    out = operator(u, Domain.collate(lines))
    assert_close(out[:1, :4], operator(u[:1, :4], lines[0]))
    assert_close(out[1:], operator(u[1:], lines[1]))


def test_padding_does_not_decay():
    valid = torch.tensor([[True, False, True, True, False, True]] * 2)
    line = Domain.line(N, causal=True, dtype=torch.float64)
    operator = flat("token", 1.0)
    u = signal()
    torch.nn.init.normal_(operator.kernel.decay.weight)
    alone = operator(u[:, valid[0]], Domain.line(4, causal=True, dtype=torch.float64))
    assert_close(operator(u, line.replace(valid=valid))[:, valid[0]], alone)


def test_a_saved_state_continues_the_forward(tmp_path):
    operator = flat("token", 2.0)
    u = signal()
    clock = Domain.timestamps(torch.rand(N, dtype=torch.float64).cumsum(0))
    _, state = operator.prefill(u[:, :4], operator.init_state(2, clock))
    path = state.save(tmp_path / "state.pt")
    loaded = operator.load_state(path)
    out, _ = operator.prefill(u[:, 4:], loaded.copy())
    assert_close(out, operator(u, clock)[:, 4:])

    # Files of earlier versions do not say that positions are times.
    saved = torch.load(path, weights_only=True)
    del saved["state"]["domain"]["timed"]
    torch.save(saved, path)
    assert operator.load_state(path).domain.timed


@pytest.mark.parametrize("name", NAMES)
def test_only_a_decay_adds_parameters(name):
    plain = create_operator(name, DIM, HEADS).state_dict()
    assert not [key for key in plain if "decay" in key]
    fading = create_operator(name, DIM, HEADS, decay="head").state_dict()
    assert fading.keys() - plain.keys() == {"kernel.decay.log_rate"}


@pytest.mark.parametrize("name", NAMES)
def test_a_decay_does_not_change_the_other_initial_weights(name):
    torch.manual_seed(0)
    plain = create_operator(name, DIM, HEADS).state_dict()
    torch.manual_seed(0)
    fading = create_operator(name, DIM, HEADS, decay="token").state_dict()
    for key, value in plain.items():
        assert torch.equal(fading[key], value), key


@pytest.mark.parametrize("name", NAMES)
def test_domains_without_order_and_other_queries_are_refused(name):
    operator = create_operator(name, DIM, HEADS, decay="head")
    u = torch.randn(2, N, DIM)
    with pytest.raises(DomainError, match="causal domain beside decay"):
        operator(u, Domain.line(N))
    with pytest.raises(DomainError, match="own points beside decay"):
        operator(u, Domain.line(N, causal=True), query=u, query_domain=Domain.line(N))


@pytest.mark.parametrize("name", NAMES)
def test_sharded_edges_are_refused_by_their_name(name):
    operator = create_operator(name, DIM, HEADS, decay="head")
    loops = torch.arange(N).expand(2, -1)
    graph = Domain.graph(loops, N, sparse=True, causal=True)
    part = graph.replace(shards=Shards(None, 0, (N,)))
    with pytest.raises(DomainError, match="one process beside decay, got edges in shards"):
        operator.kernel.check(Layout.of(part))


@pytest.mark.parametrize("name", NAMES)
def test_the_triton_backend_is_refused(name):
    operator = create_operator(name, DIM, HEADS, decay="head", strategy=Linear(backend="triton"))
    with pytest.raises(BackendError, match="beside a decay"):
        operator(torch.randn(2, N, DIM), Domain.line(N, causal=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": "heads"}, "expected 'head', 'token' or None"),
        ({"half_life": 3.0}, "beside it"),
        ({"decay": "head", "half_life": 0.0}, "expected a positive number"),
        ({"decay": "head", "half_life": math.inf}, "expected a positive number"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        LunaAttention(DIM, HEADS, **options)
