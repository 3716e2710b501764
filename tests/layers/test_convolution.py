"""Converted convolutions: refusals, and parameters shared with the layer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, OptionError, ShapeError
from fredholm.integral.conversion import _instead

from ..tolerances import assert_close

COUNTING = {"measure": "counting"}


def test_the_operator_shares_the_parameters_of_the_layer():
    conv = nn.Conv1d(2, 3, 3, padding=1)
    op = as_operator(conv)
    u = torch.randn(1, 4, 2)
    assert [p is q for p, q in zip(op.parameters(), conv.parameters())] == [True, True]
    op(u).sum().backward()
    assert conv.weight.grad is not None
    with torch.no_grad():
        conv.weight.mul_(2)
    assert_close(op(u), conv(u.mT).mT)


def test_copied_parameters_are_independent():
    conv = nn.Conv1d(2, 3, 3, padding=1)
    op = as_operator(conv, parameters="copied")
    u = torch.randn(1, 4, 2)
    before = op(u)
    with torch.no_grad():
        conv.weight.mul_(2)
    assert_close(op(u), before)


def test_frozen_parameters_and_the_mode_are_kept():
    conv = nn.Conv1d(2, 3, 3).requires_grad_(False).eval()
    op = as_operator(conv)
    assert not op.training
    assert not any(p.requires_grad for p in op.parameters())


def test_heads_are_groups():
    op = as_operator(nn.Conv2d(8, 4, 3, groups=4))
    assert (op.heads, op.kernel.d_in, op.kernel.d_out, op.dim, op.out_dim) == (4, 2, 1, 8, 4)


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.Conv1d(2, 2, 3, dtype=torch.complex64), "dtype=torch.complex64"),
        (nn.ConvTranspose2d(2, 2, 3, dtype=torch.complex64), "dtype=torch.complex64"),
        (nn.utils.parametrizations.weight_norm(nn.Conv1d(2, 2, 3)), "parametrised"),
        (nn.Unfold(3), "Unfold is not understood"),
    ],
)
def test_unsupported_layers_are_named(layer, named):
    with pytest.raises(ConversionError, match=named):
        as_operator(layer)


def test_suggested_parts_are_convertible():
    """A class of another library with the same short name is not suggested."""
    other = type("Linear", (nn.Linear,), {"__module__": "elsewhere", "forward": lambda self, u: u})
    holder = nn.ModuleDict({"theirs": other(2, 2), "ours": nn.Conv1d(2, 2, 3)})
    holder.__class__ = type("Holder", (nn.ModuleDict,), {})
    assert _instead(holder).endswith("one by one: ours (Conv1d)")
    assert "did you mean 'torch.nn.modules.linear.Linear'?" in _instead(other(2, 2))


def test_options_of_other_families_are_refused():
    with pytest.raises(OptionError, match="initial_state"):
        as_operator(nn.Conv1d(2, 2, 3), initial_state="zeros")


@pytest.mark.parametrize(
    ("layer", "domain", "named"),
    [
        (nn.Conv1d(2, 2, 3), Domain.points(torch.rand(6, 1)), r"regular grid.*Domain\.line"),
        (nn.Conv1d(2, 2, 3), Domain.timestamps(torch.arange(6.0)), "regular grid"),
        (nn.Conv1d(2, 2, 3), Domain.graph(torch.tensor([[0], [1]]), 6), "regular grid"),
        (nn.Conv2d(2, 2, 3), Domain.points(torch.rand(6, 2)), r"Domain\.grid\(h, w\)"),
        (nn.Conv2d(2, 2, 3), Domain.line(6), "grid of 1 axes"),
        (nn.Conv1d(2, 2, 3), Domain.grid(2, 3), "grid of 2 axes"),
        (nn.Conv1d(2, 2, 8), Domain.line(6), "8 points has no output"),
        (nn.Conv1d(2, 2, 3, stride=2), Domain.line(2), "no output"),
        (nn.ConvTranspose1d(2, 2, 2, padding=4), Domain.line(6), "no output"),
        (
            nn.Conv1d(2, 2, 3, padding=6, padding_mode="reflect"),
            Domain.line(6),
            "reflect padding by 6",
        ),
        (
            nn.Conv1d(2, 2, 3, padding=7, padding_mode="circular"),
            Domain.line(6),
            "circular padding by 7",
        ),
        (
            nn.Conv1d(2, 2, 3, padding=1, padding_mode="circular"),
            Domain.line(6, valid=torch.ones(1, 6, dtype=torch.bool)),
            "padding is circular",
        ),
        (
            nn.Conv2d(2, 2, 3, stride=2, padding=1),
            Domain.grid(2, 3, valid=torch.ones(1, 6, dtype=torch.bool)),
            "on a line only",
        ),
    ],
)
def test_unsupported_domains_are_refused(layer, domain, named):
    op = as_operator(layer)
    with pytest.raises(DomainError, match=named):
        op(torch.zeros(1, domain.size, 2), domain)
    with pytest.raises(DomainError, match=named):
        op.plan(domain)


def test_an_image_without_its_extents_is_refused():
    with pytest.raises(DomainError, match="16 points do not tell"):
        as_operator(nn.Conv2d(2, 2, 3))(torch.zeros(1, 16, 2))


def test_queries_on_another_domain_are_refused():
    op = as_operator(nn.Conv1d(2, 2, 3, stride=2))
    u = torch.zeros(1, 6, 2)
    target = op.kernel.output_domain(Domain.line(6))
    assert target is not None
    for call in (
        {"query_domain": target},
        {"query": u},
        {"query_domain": Domain.line(2), "query": u[:, :2]},
    ):
        with pytest.raises(DomainError, match="its own output grid"):
            op(u, Domain.line(6), **call)


def test_wrong_widths_are_named():
    with pytest.raises(ShapeError, match=r"\(B, N, 3\)"):
        as_operator(nn.Conv1d(3, 2, 3))(torch.zeros(1, 6, 2))


def test_images_padded_at_their_ends_keep_their_outputs():
    conv = nn.Conv2d(2, 3, 3, padding=1).double()
    images = torch.randn(2, 2, 4, 5).double()
    valid = torch.ones(2, 4, 5, dtype=torch.bool)
    valid[1, :, 3:] = False
    domain = Domain.grid(4, 5, dtype=torch.float64, valid=valid.flatten(1), **COUNTING)
    out = as_operator(conv)(images.flatten(2).mT, domain).mT.unflatten(-1, (4, 5))
    assert_close(out[1, :, :, :3], conv(images[1:, :, :, :3])[0])
    assert_close(out[0], conv(images[:1])[0])


def test_two_layers_compose_on_their_grids():
    first, second = nn.Conv2d(2, 4, 3, stride=2, padding=1).double(), nn.Conv2d(4, 3, 2).double()
    a, b = as_operator(first), as_operator(second)
    images = torch.randn(2, 2, 6, 7).double()
    domain = Domain.grid(6, 7, dtype=torch.float64, **COUNTING)
    middle = a.kernel.output_domain(domain)
    out = b(a(images.flatten(2).mT, domain), middle)
    assert_close(out, second(first(images)).flatten(2).mT)


def test_errors_name_convertible_layers_and_parts():
    with pytest.raises(ConversionError, match=r"Upsample is .*; fredholm.convert.convertible\(\)"):
        as_operator(nn.Upsample(2))
    block = nn.TransformerEncoderLayer(4, 2)
    with pytest.raises(ConversionError, match=r"one by one: self_attn \(MultiheadAttention\)"):
        as_operator(block)


def test_left_padding_is_refused_with_a_stride():
    operator = as_operator(nn.Conv1d(2, 3, 3, stride=2))
    u = torch.randn(1, 7, 2)
    valid = torch.tensor([[0, 0, 1, 1, 1, 1, 1]]).bool()
    with pytest.raises(DomainError, match="pad on the right"):
        operator(u, Domain.line(7, measure="counting", valid=valid))
    right = operator.kernel.output_domain(Domain.line(7, measure="counting", valid=valid.flip(1)))
    assert right.valid.tolist() == [[True, True, False]]
