"""Profiles and maps against known kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.convert import as_operator
from fredholm.errors import DomainError, OptionError, ShapeError
from fredholm.explain import (
    class_attention,
    column_sums,
    image_grid,
    kernel_map,
    kernel_profile,
    token_chain,
    top_keys,
    variance_share,
)
from fredholm.explain.kernels import output_points, pair_weights, take_samples
from fredholm.integral import IntegralOperator, Rotary
from fredholm.kernels import SoftmaxKernel
from fredholm.lab.report.importance import Importance, draw_importance
from fredholm.lab.report.kernels import draw_profiles
from fredholm.lab.report.layers import Layer, View
from fredholm.lab.report.maps import draw
from fredholm.lab.report.maps.explore import explore_section
from fredholm.lab.report.maps.queries import _in_picture, choose_map_queries, map_section
from fredholm.lab.report.results.agreement import draw_confusion
from fredholm.lab.report.style import LIGHT, NARROW, literal

from .known import CONTENT, GRID, POSITION, KnownOperator

STRIDED = {"kernel_size": 3, "padding": 1, "stride": 2}


def test_the_profile_of_a_distance_kernel_equals_the_kernel():
    profile = kernel_profile(POSITION, torch.zeros(3, 25, 1), GRID, bins=200)
    torch.testing.assert_close(
        profile.norm[0], 2 * torch.exp(-3 * profile.distance), atol=1e-6, rtol=1e-6
    )
    torch.testing.assert_close(
        profile.weight[0], torch.exp(-3 * profile.distance) / 25, atol=1e-6, rtol=1e-6
    )
    assert profile.norm_sd.max() < 1e-6
    assert profile.count.sum() == 3 * 25 * 25
    assert profile.distance[0] == 0
    assert profile.count[0, 0] == 3 * 25


def test_pairs_of_one_distance_are_in_one_bin():
    """Distances of seven columns lie halfway between bins, up to rounding."""
    profile = kernel_profile(create_operator("softmax", 4), torch.randn(2, 7, 4), Domain.line(7))
    assert len(profile.distance) == 7
    torch.testing.assert_close(
        profile.count[0], 2.0 * torch.tensor([7, 12, 10, 8, 6, 4, 2]).double()
    )


def test_the_spread_of_a_profile_is_the_standard_deviation():
    u = torch.randn(40, 9, 3)
    profile = kernel_profile(CONTENT, u, Domain.grid(3, 3), bins=2, queries=9)
    dense = 2 * CONTENT.scalar(u, Domain.grid(3, 3), None).abs().double()
    x = Domain.grid(3, 3).positions.double()
    # Pairs halfway between both bins count as near, whatever their last digit.
    far = torch.cdist(x, x) > torch.cdist(x, x).max() / 2 + 1e-4
    torch.testing.assert_close(profile.norm[0, 1], dense[:, 0, far].mean(), atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        profile.norm_sd[0, 1], dense[:, 0, far].std(correction=0), atol=1e-6, rtol=1e-6
    )


@pytest.mark.parametrize("name", ["itnet", "softmax"])
def test_the_profile_does_not_depend_on_the_memory_budget(name):
    op = create_operator(name, 8, heads=2, **({"position_dim": 2} if name == "itnet" else {}))
    u = torch.randn(5, 12, 8)
    whole, pieces = (
        kernel_profile(op, u, Domain.grid(3, 4), queries=7, budget=b) for b in (2**30, 1)
    )
    for field in ("distance", "norm", "norm_sd", "weight", "count"):
        torch.testing.assert_close(
            getattr(whole, field), getattr(pieces, field), atol=1e-5, rtol=1e-5
        )
    matrix = op.kernel_matrix(u, Domain.grid(3, 4))
    every = kernel_profile(op, u, Domain.grid(3, 4), queries=99)
    mean = (every.norm * every.count).sum(1) / every.count.sum(1)
    torch.testing.assert_close(
        mean.float(), torch.linalg.matrix_norm(matrix).mean((0, 2, 3)), atol=1e-5, rtol=1e-5
    )


def test_invisible_pairs_do_not_count():
    u = torch.randn(2, 6, 4)
    causal = kernel_profile(create_operator("softmax", 4), u, Domain.line(6, causal=True))
    assert causal.count.sum() == 2 * 21
    valid = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    positions = torch.rand(2, 6, 2)
    padded = Domain.points(positions, valid=valid)
    u[1, 4:] = torch.nan
    profile = kernel_profile(create_operator("softmax", 4), u, padded)
    assert profile.count.sum() == 36 + 16
    assert profile.norm.isfinite().all()
    other = padded.replace(positions=torch.where(valid[..., None], positions, 1e6))
    torch.testing.assert_close(
        kernel_profile(create_operator("softmax", 4), u, other).distance, profile.distance
    )


def test_the_class_token_is_left_out_of_profile_and_picture():
    centre = Domain.points(torch.full((1, 2), 0.5))
    domain = Domain.join(centre, Domain.grid(3, 3), balance=(0.0, 1.0))
    assert (
        kernel_profile(create_operator("softmax", 4), torch.randn(1, 10, 4), domain).count.sum()
        == 81
    )
    assert image_grid(domain).tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_the_pooled_profile_averages_all_heads():
    op = create_operator("softmax", 8, heads=4)
    profile = kernel_profile(op, torch.randn(6, 9, 8), Domain.grid(3, 3), bins=2)
    mean, sd = profile.pooled("weight")
    torch.testing.assert_close(mean, profile.weight.mean(0))
    spread = (profile.weight_sd**2 + profile.weight**2).mean(0) - mean**2
    torch.testing.assert_close(sd, spread.sqrt())


def test_the_map_of_softmax_is_its_attention_probability():
    op = create_operator("softmax", 8, heads=2)
    u = torch.randn(2, 9, 8)
    maps = kernel_map(op, u, Domain.grid(3, 3), queries=[0, 7])
    assert maps.shape == (2, 2, 2, 9)
    q, k = (f(u).unflatten(-1, (2, 4)).transpose(1, 2) for f in (op.kernel.query, op.kernel.key))
    expected = (q @ k.mT / 2).softmax(-1)[:, :, [0, 7]]
    torch.testing.assert_close(maps.float(), expected)


@pytest.mark.parametrize(
    "operator",
    [
        IntegralOperator(8, 2, kernel=SoftmaxKernel(8, 2, rotary=Rotary(4))),
        IntegralOperator(8, 2, kernel=SoftmaxKernel(8, 2, causal=True)),
        as_operator(torch.nn.Conv1d(8, 8, 3, padding=1)),
        as_operator(torch.nn.LSTM(8, 8, batch_first=True)),
    ],
    ids=["rotary", "causal", "convolution", "lstm"],
)
def test_without_a_domain_points_lie_where_the_operator_puts_them(operator):
    u = torch.randn(4, 6, 8)
    domain = operator.default_domain(u)
    queries = [0, 4]
    weights = pair_weights(operator, u, rows=queries).detach().double()
    torch.testing.assert_close(kernel_map(operator, u, queries=queries), weights)

    def same(function):
        torch.testing.assert_close(
            function(operator, u),
            function(operator, u, domain),
            rtol=0,
            atol=0,
            equal_nan=True,
        )

    same(column_sums)
    same(lambda *given: top_keys(*given, k=2).weights)
    same(class_attention)
    same(lambda *given: kernel_profile(*given).weight)
    same(lambda *given: variance_share(*given).position)
    same(lambda *given: token_chain(*given).incoming)


def test_scattered_points_are_drawn():
    assert image_grid(Domain.points(torch.rand(9, 2))) is None
    assert image_grid(Domain.line(9)) is None
    shuffled = GRID.positions[torch.randperm(25)]
    picture = image_grid(Domain.points(shuffled))
    torch.testing.assert_close(shuffled[picture.flatten()], GRID.positions)


def test_samples_of_a_batched_domain_are_selected():
    domain = Domain.points(torch.rand(4, 5, 2), valid=torch.rand(4, 5) > 0.3)
    part = take_samples(domain, slice(1, 3))
    torch.testing.assert_close(part.positions, domain.positions[1:3])
    assert part.valid.tolist() == domain.valid[1:3].tolist()
    assert part.measure.shape == (5,)


def test_errors_name_the_requirement():
    u = torch.zeros(1, 25, 1)
    with pytest.raises(OptionError, match="points 0 to 24"):
        kernel_map(POSITION, u, GRID, queries=[25])
    with pytest.raises(OptionError, match="at least 2 bins"):
        kernel_profile(POSITION, u, GRID, bins=1)
    with pytest.raises(ShapeError, match="24 points"):
        kernel_profile(POSITION, u[:, :24], GRID)
    with pytest.raises(ShapeError, match="at least one sample"):
        kernel_profile(POSITION, u[:0], GRID)
    with pytest.raises(DomainError, match="mass"):
        kernel_profile(KnownOperator(None), u, GRID.with_masses(torch.zeros(25)))


def test_queries_of_a_padded_sample_are_real_points():
    valid = torch.arange(16) < torch.tensor([[3], [16]])
    domain = Domain.line(16, valid=valid)
    labels = ["the first point", "the middle", "the last point"]
    assert choose_map_queries(domain, None) == [(label, i) for i, label in enumerate(labels)]
    empty = domain.replace(valid=valid & torch.tensor([[False], [True]]))
    assert choose_map_queries(empty, None)[0] == ("the first point", 0)


def test_positions_in_a_picture_match_the_points():
    for low, high in ((0.125, 0.875), (-1.0, 1.0)):
        side = np.linspace(low, high, 4)
        y = np.stack(np.meshgrid(side, side, indexing="ij"), -1).reshape(-1, 2)
        grid = np.arange(16).reshape(4, 4)
        assert _in_picture(y, grid, y[6]) == pytest.approx((1.5 / 4, 2.5 / 4))


def test_maps_and_lines_of_negative_weights_are_drawn():
    theme = replace(LIGHT)
    values = [-np.ones((1, 4, 4)), np.linspace(-1, 1, 16).reshape(1, 4, 4)]
    at = [(0.5, 0.5)] * 2
    draw.draw_maps(theme, np.zeros((4, 4, 1)), ["a", "b"], values, at)
    figure = draw.draw_lines(
        theme, draw.Line(np.arange(4.0), [0.0], "t"), ["a"], [-np.ones((1, 4))]
    )
    assert figure.axes[0].get_ylim()[0] <= -1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_profiles_of_negative_weights_are_drawn(sign):
    """Weights of features such as random Fourier ones may be negative."""

    class Signed(KnownOperator):
        def weights(self, u, domain=None, *, query=None, query_domain=None, rows=None):
            return sign * super().weights(u, domain, rows=rows)

    operator = Signed(POSITION.function)
    profile = kernel_profile(operator, torch.randn(3, 25, 1), GRID)
    figure = draw_profiles(LIGHT, ["layer"], [profile], "weight")
    mean, sd = profile.pooled("weight")
    bottom, top = figure.axes[0].get_ylim()
    if sign > 0:
        assert bottom == 0
        assert top > float((mean + sd).max())
    else:
        assert bottom < float((mean - sd).min())
        assert top >= 0


def test_later_layers_may_have_fewer_output_points():
    """A query of the first layer maps to the nearest output point of a strided one."""
    first = as_operator(torch.nn.Conv2d(2, 2, 3, padding=1))
    second = as_operator(torch.nn.Conv2d(2, 2, **STRIDED))
    domain = Domain.grid(5, 5, measure="counting")
    u = torch.randn(1, 25, 2)
    layers = [Layer("first", first, u, domain), Layer("second", second, u, domain)]
    section, numbers = map_section(View(layers))
    assert len(section.pictures) == len(numbers["first"]["queries"])
    places = [output_points(layer.operator, domain).positions for layer in layers]
    for one, other in zip(numbers["first"]["queries"], numbers["second"]["queries"]):
        off = (places[1] - places[0][one]).norm(dim=-1)
        assert off[other] == off.min()
    assert explore_section(View(layers)).explorer["layers"] == 1, "the first alone can be picked"


def test_queries_are_counted_among_real_points():
    domain = Domain.line(9, valid=torch.arange(9)[None] < 4)
    layer = Layer("layer", create_operator("softmax", 4), torch.randn(1, 9, 4), domain)
    section, _ = map_section(View([layer]))
    assert "of 4, at 0 (dashed line)." in section.pictures[0].caption


def test_dollars_in_names_are_not_rendered_as_formulas():
    assert literal("$5-$10") == r"\$5-\$10"
    figure = draw_confusion(LIGHT, np.eye(2), ["$a_$", "$5-$10"])
    figure.canvas.draw()


@pytest.mark.parametrize("theme", [LIGHT, NARROW[0]], ids=["wide", "narrow"])
def test_long_names_leave_room_for_the_confusion_matrix(theme):
    names = ["0.000000000000000000e+00", "a class of a rather long name"]
    figure = draw_confusion(theme, np.eye(2), names)
    figure.draw_without_rendering()
    (axes,) = figure.axes
    box = axes.get_window_extent()
    width = figure.bbox.width
    assert 0.25 * width < box.width < width
    labels = [*axes.get_yticklabels(), *axes.get_xticklabels()]
    assert all(label.get_window_extent().x0 > -1 for label in labels)


@pytest.mark.parametrize("measure", ["accuracy", "RMSE"])
def test_the_label_of_importances_fits_a_phone(measure):
    found = [Importance("a column", 0.1, 0.01), Importance("another", 0.0, 0.0)]
    figure = draw_importance(NARROW[0], found, measure)
    figure.draw_without_rendering()
    label = figure.axes[0].xaxis.label.get_window_extent()
    assert label.x0 > -1
    assert label.x1 < figure.bbox.width + 1
