"""ITNet's kernel without gradients, in tiles and for all pairs at once, equals the definition."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fredholm.domain import Domain
from fredholm.families.itnet.hidden_first import columns, few_points, tiled
from fredholm.families.itnet.kernel import ablations
from fredholm.operators import ITNetOperator

from ..tolerances import assert_close

DOUBLE = {"dtype": torch.float64}


def operator(heads: int = 2, dim: int = 6, **options) -> ITNetOperator:
    torch.manual_seed(0)
    made = ITNetOperator(dim, heads, width=5, frequencies=3, **options).double()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def assert_definition(op: ITNetOperator, domain: Domain, batch: int, monkeypatch) -> None:
    u = torch.randn(batch, domain.size, op.dim, **DOUBLE)
    tiles = []
    pairs = []
    monkeypatch.setattr(tiled, "FEW", 0)
    monkeypatch.setattr(tiled, "mlp_kernel", counted(tiled.mlp_kernel, tiles))
    monkeypatch.setattr(few_points, "_hidden", counted(few_points._hidden, pairs))
    expected = op.dense(u, domain).detach()
    for largest, taken in ((0, tiles), (1 << 30, pairs)):
        monkeypatch.setattr(columns, "FEW_HIDDEN", largest)
        with torch.no_grad():
            again = op(u, domain), op(u, domain)  # the second reads the domain's cache
        assert len(taken) >= 2
        assert_close(again[0], expected)
        assert torch.equal(*again)


def counted(function, calls):
    def call(*arguments, **named):
        calls.append(1)
        return function(*arguments, **named)

    return call


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [1, 3])
def test_lines_equal_the_definition(batch, causal, monkeypatch):
    assert_definition(operator(), Domain.line(9, causal=causal, **DOUBLE), batch, monkeypatch)


def test_padded_grids_equal_the_definition(monkeypatch):
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[1, 7:] = False
    domain = Domain.grid(3, 4, **DOUBLE).replace(valid=valid)
    assert_definition(operator(position_dim=2), domain, 2, monkeypatch)


@pytest.mark.parametrize("name", list(ablations()))
def test_every_choice_of_groups_equals_the_definition(name, monkeypatch):
    op = operator(groups=ablations()[name])
    assert_definition(op, Domain.line(6, **DOUBLE), 2, monkeypatch)


@pytest.mark.parametrize(
    "options",
    [{"depth": 3}, {"output": "compact"}, {"activation": "tanh"}, {"heads": 1}],
    ids=lambda options: next(iter(options)),
)
def test_every_option_equals_the_definition(options, monkeypatch):
    assert_definition(operator(**options), Domain.line(7, **DOUBLE), 2, monkeypatch)


def test_raw_coordinates_equal_the_definition(monkeypatch):
    torch.manual_seed(0)
    op = ITNetOperator(6, 2, width=5, frequencies=0).double()
    assert_definition(op, Domain.line(7, **DOUBLE), 1, monkeypatch)


@pytest.mark.parametrize("largest", [0, 1 << 30])
def test_half_precision_accumulates_in_float32(largest, monkeypatch):
    monkeypatch.setattr(columns, "FEW_HIDDEN", largest)
    op = operator().float()
    domain = Domain.line(9)
    u = torch.randn(2, 9, 6)
    with torch.no_grad():
        expected = op(u, domain)
        half = op.bfloat16()(u.bfloat16(), domain)
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), expected, dtype=torch.bfloat16)


@pytest.mark.parametrize("largest", [0, 1 << 30])
def test_each_leaf_alone_receives_its_gradient(largest, monkeypatch):
    """Each parameter of the kernel, masses or positions alone: two calls, then their gradient."""
    monkeypatch.setattr(columns, "FEW_HIDDEN", largest)
    options = {"depth": 3, "learned_frequencies": True}
    op = operator(**options).requires_grad_(False)
    u = torch.randn(2, 6, 6, **DOUBLE)
    masses = torch.linspace(0.3, 1.2, 6, **DOUBLE)
    line = Domain.line(6, **DOUBLE).with_masses(masses)
    leaves = dict(op.kernel.named_parameters(), masses=masses, positions=line.positions)
    for name, leaf in leaves.items():
        leaf.requires_grad_()
        domain = line.replace(positions=line.positions, measure=masses)
        both = [call(u, domain) + call(2 * u, domain) for call in (op, op.dense)]
        found = [torch.autograd.grad(out.square().sum(), leaf)[0] for out in both]
        assert_close(both[0], both[1], name)
        assert_close(found[0], found[1], f"gradient of {name}")
        leaf.requires_grad_(False)


def test_the_form_for_few_points_runs_only_without_gradients(monkeypatch):
    op = operator()
    domain = Domain.line(5, **DOUBLE)
    u = torch.randn(1, 5, 6, **DOUBLE)
    monkeypatch.setattr(few_points, "_hidden", None)  # would be called
    assert op(u, domain).requires_grad
    with torch.no_grad(), FlopCounterMode(display=False):
        op(u, domain)
    with torch.no_grad(), pytest.raises(TypeError):
        op(u, domain)
