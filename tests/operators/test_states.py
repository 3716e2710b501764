"""States of causal operators and models can be copied, moved, and saved for another process."""

from __future__ import annotations

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fredholm.domain import Domain
from fredholm.edges import Edges
from fredholm.errors import CheckpointError, OptionError, ShapeError
from fredholm.integral.state import State, load_state
from fredholm.models import create_model
from fredholm.operators import (
    Exact,
    LunaAttention,
    SoftmaxAttention,
    create_operator,
    list_operators,
)
from fredholm.quadrature import Quadrature
from tests.parts import parts

POINTS, SEEN = 6, 3
TEXT = {
    "encoder": "text",
    "causal": True,
    "pool": "every",
    "vocabulary": 9,
    "num_classes": 9,
    "max_length": 8,
    "operator": "luna",
}

# Other tests register operators of their own, which a fresh process does not know.
NAMES = [name for name in list_operators() if not name.startswith("tests-")]


def operator_of(name: str):
    torch.manual_seed(0)
    return create_operator(name, 8, 2).eval()


def line_of(operator) -> Domain:
    made = operator.kernel.default_domain(POINTS, device=torch.device("cpu"), dtype=torch.float32)
    return made.replace(causal=True)


def prefix(operator):
    """Return features, and the state after a prefill and a step."""
    u = torch.randn(2, POINTS, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        _, state = operator.prefill(u[:, : SEEN - 1], operator.init_state(2, line_of(operator)))
        _, state = operator.step(u[:, SEEN - 1], state)
    return u, state


@pytest.fixture(params=NAMES)
def operator(request):
    return operator_of(request.param)


@torch.no_grad()
def test_copies_of_a_state_are_independent(operator):
    u, state = prefix(operator)
    forks = [state.copy(), copy.deepcopy(state)]
    expected, _ = operator.step(u[:, SEEN], state)
    for fork in forks:
        operator.step(-u[:, SEEN], fork)
        for memory in fork.keys.values():
            memory.fill_(torch.nan)
    assert torch.equal(operator.step(u[:, SEEN], state)[0], expected)


@torch.no_grad()
def test_a_state_continues_in_another_precision(operator):
    u, state = prefix(operator)
    expected, _ = operator.step(u[:, SEEN], state)
    double = state.to(dtype=torch.float64)
    out, after = operator.double().step(u[:, SEEN].double(), double)
    assert out.dtype == torch.float64
    assert float((out - expected).abs().max()) < 1e-4, "float32 rounds phases"
    assert all(x.dtype in (torch.float64, torch.complex128) for x in after.keys.values())
    meta = state.to("meta")
    assert {x.device.type for x in meta.keys.values()} <= {"meta"}
    assert meta.domain.positions.is_meta
    with pytest.raises(OptionError, match=r"float32 or float64, .*, got torch"):
        state.to(dtype=torch.bfloat16)


RELOAD = """
import sys, torch
from tests.operators.test_states import operator_of
folder = sys.argv[1]
for name in sys.argv[2:]:
    operator = operator_of(name)
    expected = torch.load(f"{folder}/{name}.expected", weights_only=True)
    state = operator.load_state(f"{folder}/{name}.pt")
    with torch.no_grad():
        out, _ = operator.step(expected["u"], state)
    torch.testing.assert_close(out, expected["out"], rtol=1e-5, atol=1e-6)
print("reloaded", len(sys.argv) - 2)
"""


@torch.no_grad()
def test_states_continue_in_another_process(tmp_path):
    for name in NAMES:
        one = operator_of(name)
        u, state = prefix(one)
        path = state.save(tmp_path / f"{name}.pt")
        assert set(torch.load(path, weights_only=True)) == {"format", "state"}
        out, _ = one.step(u[:, SEEN], state)
        torch.save({"u": u[:, SEEN], "out": out}, tmp_path / f"{name}.expected")
        assert torch.equal(one.step(u[:, SEEN], one.load_state(path))[0], out), name
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", RELOAD, str(tmp_path), *NAMES],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert f"reloaded {len(NAMES)}" in done.stdout, done.stderr


@pytest.mark.parametrize("name", ["itnet_nano", "ckcnn_ptb"])
@torch.no_grad()
def test_states_of_models_can_be_copied_and_saved(name, tmp_path):
    torch.manual_seed(0)
    convolution = {"vocabulary": 9, "num_classes": 9, "max_length": 8, "widths": (5, 4)}
    options = TEXT if name == "itnet_nano" else convolution | {"embedding": 4}
    model = create_model(name, **parts(**options)).eval()
    numbers = torch.randint(1, 9, (2, 6))
    _, state = model.prefill(numbers[:, :3], model.init_state(8, batch=2))
    expected, _ = model.step(numbers[:, 3], state)
    fork = state.copy()
    for again in (fork, model.load_state(state.save(tmp_path / "state.pt"))):
        assert again.seen == 3
        assert torch.equal(model.step(numbers[:, 3], again)[0], expected)
    out, _ = model.double().step(numbers[:, 3], state.to(dtype=torch.float64))
    assert float((out - expected).abs().max()) < 1e-4, "float32 rounds phases"


EDGE_INDEX = torch.tensor([[0, 0, 1, 3, 2], [1, 2, 3, 4, 5]])


def graph(weight: torch.Tensor | None = None) -> Domain:
    return Domain.graph(EDGE_INDEX, POINTS, edge_weight=weight, sparse=True, causal=True)


def tensors_of(x) -> list[torch.Tensor]:
    """Return every tensor of a state, at any depth."""
    if isinstance(x, torch.Tensor):
        return [x]
    parts = []
    if isinstance(x, (list, tuple)):
        parts = list(x)
    if isinstance(x, dict):
        parts = list(x.values())
    if isinstance(x, (State, Domain, Quadrature, Edges)):
        parts = [getattr(x, field.name) for field in dataclasses.fields(x)]
    return [tensor for part in parts for tensor in tensors_of(part)]


@pytest.mark.parametrize(
    "domain",
    [
        graph(),
        graph(torch.rand(5)),
        graph().dense(),
        Domain.collate([graph(), graph()]),
        Domain.line(POINTS, causal=True, reach=2),
    ],
    ids=["edges", "weighted edges", "mask", "batch of graphs", "reach"],
)
@torch.no_grad()
def test_states_on_domains_with_pairs_move_and_are_saved(domain, tmp_path):
    torch.manual_seed(0)
    operator = SoftmaxAttention(8, 2).eval()
    u = torch.randn(2, POINTS, 8)
    _, state = operator.prefill(u[:, :SEEN], operator.init_state(2, domain))
    expected, _ = operator.step(u[:, SEEN], state)
    torch.testing.assert_close(expected, operator(u, domain)[:, SEEN])

    again = operator.load_state(state.save(tmp_path / "state.pt"))
    assert torch.equal(operator.step(u[:, SEEN], again)[0], expected)
    assert torch.equal(operator.step(u[:, SEEN], state.copy())[0], expected)
    assert {x.device.type for x in tensors_of(state.to("meta"))} == {"meta"}

    out, _ = operator.double().step(u[:, SEEN].double(), state.to(dtype=torch.float64))
    torch.testing.assert_close(out.float(), expected)


def test_a_state_of_layers_on_edges_has_the_batch_of_its_layers(tmp_path):
    """Edges that all samples share have a batch of one."""

    @dataclasses.dataclass(frozen=True, eq=False)
    class Stacked(State):
        domain: Domain
        layers: tuple

    operator = SoftmaxAttention(8, 2)

    def begin(domain: Domain, batch: int) -> Stacked:
        return Stacked(domain, (operator.init_state(batch, domain),))

    path = begin(graph(), 3).save(tmp_path / "state.pt")
    again = load_state(path, begin, torch.device("cpu"))
    assert again.layers[0].batch == 3
    assert again.domain.pairs.source.equal(graph().pairs.source)


def test_detach_ends_the_graph_of_edge_weights():
    weight = torch.rand(5, requires_grad=True)
    operator = SoftmaxAttention(8, 2)
    state = operator.init_state(1, graph(weight)).detach()
    assert not any(x.requires_grad for x in tensors_of(state))


def test_features_on_another_device_than_the_state_are_refused():
    operator = operator_of("softmax")
    u, state = prefix(operator)
    elsewhere = state.to("meta")
    message = r"state: expected the device of u, cpu, got meta; .* state\.to\('cpu'\)"
    with pytest.raises(ShapeError, match=message):
        operator.step(u[:, SEEN], elsewhere)
    with pytest.raises(ShapeError, match=message):
        operator.prefill(u[:, SEEN:], elsewhere)


def test_files_that_are_not_states_of_this_operator_are_refused(tmp_path):
    luna = operator_of("luna")
    with pytest.raises(CheckpointError, match=r"file of state\.save, got none; write one"):
        luna.load_state(tmp_path / "missing.pt")
    (tmp_path / "text.pt").write_text("no state")
    with pytest.raises(CheckpointError, match=r"expected a file of state\.save"):
        luna.load_state(tmp_path / "text.pt")
    torch.save({"weights": torch.ones(2)}, tmp_path / "weights.pt")
    with pytest.raises(CheckpointError, match=r"expected a file of state\.save"):
        luna.load_state(tmp_path / "weights.pt")
    path = prefix(operator_of("softmax"))[1].save(tmp_path / "softmax.pt")
    with pytest.raises(CheckpointError, match=r"of SoftmaxAttention\(.* operator is Luna"):
        luna.load_state(path)
    path = prefix(luna)[1].save(tmp_path / "luna.pt")
    luna.strategy = Exact()
    with pytest.raises(CheckpointError, match=r"by Running.*, this operator by .* of Exact"):
        luna.load_state(path)


def test_a_state_of_other_sizes_is_refused(tmp_path):
    """Broadcasting would otherwise continue with the numbers of one head for all."""
    small = LunaAttention(4, 1)
    domain = Domain.line(6, causal=True)
    _, state = small.prefill(torch.randn(1, 3, 4), small.init_state(1, domain))
    path = state.save(tmp_path / "state.pt")
    for other in (LunaAttention(8, 2), LunaAttention(4, 2), LunaAttention(4, 1, out_dim=6)):
        with pytest.raises(CheckpointError, match=r"is of LunaAttention\(4, 1, out_dim=4\)"):
            other.load_state(path)
    assert LunaAttention(4, 1).load_state(path).seen == 3


def test_gradients_flow_through_a_copy_and_stop_at_detach():
    operator = operator_of("linear_attention")
    u = torch.randn(1, 2, 8, requires_grad=True)
    _, state = operator.step(u[:, 0], operator.init_state(1, line_of(operator)))
    out, _ = operator.step(u[:, 1].detach(), state.copy())
    assert torch.autograd.grad(out.sum(), u)[0][:, 0].abs().sum() > 0
    out, _ = operator.step(u[:, 1], state.detach())
    assert torch.autograd.grad(out.sum(), u)[0][:, 0].abs().sum() == 0


def test_the_state_of_a_window_stores_only_its_last_points():
    op = create_operator("linear_attention", 8, heads=2, window=3)
    state = op.init_state(1, Domain.line(64, causal=True))
    _, state = op.prefill(torch.randn(1, 64, 8), state)
    for name, x in state.keys.items():
        assert x.untyped_storage().nbytes() == x.numel() * x.element_size(), name
