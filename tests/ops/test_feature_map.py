"""Banks of scalar networks: the piecewise linear form and the chunks are the literal networks,
values and gradients.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fredholm.errors import OptionError, ShapeError
from fredholm.ops.feature_map import (
    Bank,
    few_scalars,
    piecewise,
    scalar_bank,
    scalar_bank_naive,
    segments,
)
from fredholm.ops.feature_map import bank as form

from ..tolerances import assert_close

R, S, T, HIDDEN = 2, 3, 11, 5
SHAPES = {"separate": (4, 1), "shared": (1, 4), "both": (2, 2)}


@pytest.fixture(autouse=True)
def segments_for_few(monkeypatch):
    """Run the piecewise form for any number of scalars."""
    for few in ("FEW", "FEW_RECORDED"):
        monkeypatch.setattr(form, few, 0)


def bank(groups=4, outputs=1, sets=S, hidden=HIDDEN, dtype=torch.float64):
    shapes = (
        (sets, groups, hidden),
        (sets, groups, hidden),
        (sets, groups, outputs, hidden),
        (sets, groups, outputs),
    )
    return Bank(*(torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes))


def scalars(n=T, sets=S, dtype=torch.float64):
    return torch.randn(R, sets, n, dtype=dtype, requires_grad=True)


def assert_same(u, parts, **options):
    found = scalar_bank(u, parts, **options)
    expected = scalar_bank_naive(u, parts, **options)
    assert_close(found, expected)
    direction = torch.randn_like(expected)
    both = [torch.autograd.grad(y, [u, *parts], direction) for y in (found, expected)]
    for name, a, b in zip(("u", *Bank._fields), *both):
        assert_close(a, b, f"gradient of {name}")


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_piecewise_form_equals_the_literal_bank(shape, activation, nonneg, monkeypatch):
    u = scalars()
    parts = bank(*SHAPES[shape])
    assert_same(u, parts, activation=activation, nonneg=nonneg)
    monkeypatch.setattr(piecewise, "CHUNK", 4)  # several pieces per row
    monkeypatch.setattr(form, "ELEMENTS", 4 * parts.weight[0].numel())
    assert_same(u, parts, activation=activation, nonneg=nonneg)
    monkeypatch.setattr(piecewise, "CHUNK", T + 1)  # whole rows, one at a time
    assert_same(u, parts, activation=activation, nonneg=nonneg)


@pytest.mark.parametrize("where", ["spread", "one place", "outside", "one cell"])
def test_the_grid_search_equals_the_binary_search(where):
    u = torch.randn(5000)
    knots = (
        {
            "spread": torch.randn(40),
            "one place": torch.full((40,), 0.25),
            "outside": torch.cat([torch.randn(20), torch.tensor([-1e6, 1e6, torch.inf])]),
            "one cell": 1e-6 * torch.randn(40),
        }[where]
        .sort()
        .values
    )
    u[:100] = knots[torch.randint(0, len(knots), (100,))].clamp(-3, 3)
    search = piecewise.Search(knots, u)
    assert (search.below_cell is None) == (where in ("one place", "one cell"))
    assert torch.equal(search(u), torch.searchsorted(knots, u, out_int32=True))


def test_many_scalars_use_the_grid_search():
    u = scalars(4000, sets=1)
    parts = bank(2, 1, sets=1)
    knots = segments(parts)[0][0]
    assert piecewise.Search(knots, u.detach()[:, 0]).below_cell is not None
    assert_same(u, parts)


def test_units_without_slope_and_equal_knots_equal_the_literal_bank():
    parts = bank()
    with torch.no_grad():
        parts.weight[:, 0, :2] = 0.0
        parts.weight[:, 1, 2] = 1e-300
        parts.bias[:, 2] = 0.0  # all knots of this network at 0
    u = scalars()
    assert_close(scalar_bank(u, parts), scalar_bank_naive(u, parts))
    grads = [torch.autograd.grad(f(u, parts).sum(), u)[0] for f in (scalar_bank, scalar_bank_naive)]
    assert_close(*grads, "gradient of u")


def test_distant_and_non_finite_scalars_spoil_no_other():
    parts = bank(sets=1)
    far = torch.tensor([[[-1e9, 1e9, 0.0]]], dtype=torch.float64)
    assert_close(scalar_bank(far, parts), scalar_bank_naive(far, parts))
    assert scalar_bank(far[..., :0], parts).shape == (1, 1, 4, 0)
    spoiled = torch.randn(1, 1, 6000, dtype=torch.float64)
    spoiled[..., 7] = torch.nan
    out = scalar_bank(spoiled, parts)
    assert out[..., 7].isnan().all(), "a scalar that is not finite spoils itself"
    assert out[..., 8:].isfinite().all(), "and nothing else"


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_gradients_pass_gradcheck(activation):
    u = scalars()
    parts = bank(2, 2)
    call = lambda u, *p: scalar_bank(u, Bank(*p), activation=activation)  # noqa: E731
    assert torch.autograd.gradcheck(call, (u, *parts), fast_mode=True)


def test_float32_and_bfloat16_agree_with_float64():
    u = scalars(3000, dtype=torch.float32)
    parts = bank(8, 1, hidden=64, dtype=torch.float32)
    exact = scalar_bank_naive(u.double(), Bank(*(x.double() for x in parts)))
    assert_close(scalar_bank(u, parts).double(), exact, dtype=torch.float32)
    half = scalar_bank(u.bfloat16(), parts)
    assert half.dtype == torch.bfloat16
    assert_close(
        half.double(), scalar_bank(u.bfloat16().float(), parts).double(), dtype=torch.bfloat16
    )


def test_custom_ops_pass_opcheck():
    u = scalars()
    parts = bank(2, 2)
    for nonneg in (False, True):
        torch.library.opcheck(
            torch.ops.fredholm.piecewise_linear,
            (u, *(x.detach().requires_grad_(i > 0) for i, x in enumerate(segments(parts))), nonneg),
        )
        torch.library.opcheck(torch.ops.fredholm.scalar_bank, (u, *parts, "gelu", nonneg))


@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_no_hidden_unit_is_saved_for_the_backward(activation):
    saved = []
    u = scalars(64)
    parts = bank(2, 2, hidden=50)
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        out = scalar_bank(u, parts, activation=activation)
    assert max(saved) <= max(out.numel(), 2 * S * 4 * 101)
    assert out.numel() < R * S * 64 * 100


def test_flops_do_not_grow_with_the_hidden_width():
    u = scalars()
    counts = {}
    for hidden in (3, 30):
        for activation in ("relu", "gelu"):
            with FlopCounterMode(display=False) as counter:
                torch.ops.aten.alias(
                    scalar_bank(u, bank(hidden=hidden), activation=activation)
                ).sum().backward()
            counts[activation, hidden] = counter.get_flop_counts()["Global"]
    lines = [counts["relu", h][torch.ops.fredholm.piecewise_linear] for h in (3, 30)]
    assert lines == [2 * R * S * T * 4] * 2
    assert counts["gelu", 30][torch.ops.fredholm.scalar_bank] == 2 * R * S * T * (120 + 120)


def test_wrong_input_is_named():
    u = scalars()
    parts = bank()
    with pytest.raises(OptionError, match=r"'rleu'.*did you mean 'relu'"):
        scalar_bank(u, parts, activation="rleu")
    with pytest.raises(ShapeError, match=r"scalars \(R, S, T\), got .*; give all"):
        scalar_bank(u[:, :2], parts)
    with pytest.raises(ShapeError, match="readout"):
        scalar_bank(u, parts._replace(bias=parts.bias[..., :-1]))


def test_few_scalars_need_no_segments(monkeypatch):
    def refuse(*_):
        raise AssertionError("segments of few scalars")

    u = scalars()
    parts = bank()
    expected = scalar_bank(u, parts)
    for few in ("FEW", "FEW_RECORDED"):
        monkeypatch.setattr(form, few, R * T)
    monkeypatch.setattr(form, "segments", refuse)
    assert_close(scalar_bank(u, parts), expected)
    assert_same(u, parts)
    monkeypatch.setattr(form, "FEW_RECORDED", R * T - 1)
    with pytest.raises(AssertionError, match="segments of few"):
        scalar_bank(u, parts)


@pytest.mark.parametrize("nonneg", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_forms_for_few_scalars_equal_the_literal_bank(shape, sets, nonneg, monkeypatch):
    monkeypatch.setattr(form, "FEW", 1024)
    u = scalars(sets=sets).detach()
    parts = Bank(*(x.detach() for x in bank(*SHAPES[shape], sets)))
    expected = scalar_bank_naive(u, parts, nonneg=nonneg)
    assert_close(few_scalars(u, parts, nonneg=nonneg, scale=0.5), 0.5 * expected)
    gelu = scalar_bank_naive(u, parts, activation="gelu", nonneg=nonneg)
    assert_close(few_scalars(u, parts, activation="gelu", nonneg=nonneg), gelu)


def test_forms_for_few_scalars_have_no_gradient():
    u = scalars()
    parts = bank()
    assert few_scalars(u, parts) is None
    with torch.no_grad(), FlopCounterMode(display=False):
        assert few_scalars(u, parts) is None


def test_sums_of_units_use_no_table(monkeypatch):
    parts = bank()
    u = scalars()
    expected = scalar_bank(u, parts)

    def refuse(*_: object) -> None:
        raise AssertionError("expected the networks' units, got their table")

    monkeypatch.setattr(form, "piecewise_linear_op", refuse)
    with pytest.raises(AssertionError, match="got their table"):
        scalar_bank(u, parts)
    with form.sums_of_units():
        actual = scalar_bank(u, parts)
    assert_close(actual, expected)
