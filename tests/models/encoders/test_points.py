"""Point clouds: raw coordinates as positions, neighbourhoods, a read-out against the measure."""

from __future__ import annotations

import pytest
import torch

from fredholm.encoders import PointEncoder
from fredholm.errors import OptionError, ShapeError
from fredholm.models import create_model, read_out
from fredholm.models.encoders.points import nearest
from tests.parts import parts

from ...tolerances import assert_close


def test_positions_are_the_raw_coordinates():
    clouds = torch.randn(2, 5, 3)
    features, domain = PointEncoder(channels=3, dim=4)(clouds)
    assert torch.equal(domain.positions, clouds)
    assert features.shape == (2, 5, 4)


def test_the_read_out_is_the_mean_over_real_points():
    encoder = PointEncoder(channels=3, dim=4)
    clouds = torch.randn(2, 5, 3)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    clouds = torch.where(valid[..., None], clouds, float("nan"))
    features, domain = encoder(clouds, valid)
    pooled = read_out(features, domain, "mean")
    assert_close(pooled[0], features[0].mean(0), dtype=torch.float32)
    assert_close(pooled[1], features[1, :3].mean(0), dtype=torch.float32)


def test_wrong_coordinates_are_named():
    with pytest.raises(ShapeError, match=r"\(B, N, 3\), got \(2, 5, 2\)"):
        PointEncoder(channels=3, dim=4)(torch.zeros(2, 5, 2))
    with pytest.raises(OptionError, match="did you mean 'fourier'"):
        PointEncoder(channels=3, dim=4, features="fourrier")
    with pytest.raises(OptionError, match="position_dim=4, channels=3"):
        PointEncoder(channels=3, dim=4, position_dim=4)


def test_neighbourhoods_equal_the_definition():
    encoder = PointEncoder(channels=3, dim=4, neighbours=3)
    cloud = torch.rand(1, 7, 3)
    features, _ = encoder(cloud)
    x = cloud[0]
    for i in range(7):
        near = (x - x[i]).norm(dim=1).argsort()[:3]
        pairs = torch.cat([x[i].expand(3, 3), x[near] - x[i]], 1)
        assert_close(
            features[0, i], encoder.embed(x[i]) + encoder.local(pairs).amax(0), dtype=torch.float32
        )


@pytest.mark.parametrize("features", ["raw", "fourier"])
def test_padding_duplicates_and_empty_clouds_are_handled(features):
    encoder = PointEncoder(channels=3, dim=4, neighbours=16, features=features)
    cloud = torch.rand(1, 5, 3)
    alone, _ = encoder(cloud)
    padded = torch.cat([cloud, torch.full((1, 4, 3), torch.nan)], 1)
    found, domain = encoder(padded)
    assert_close(found[:, :5], alone, dtype=torch.float32)
    assert domain.valid.tolist() == [[True] * 5 + [False] * 4]
    same, _ = encoder(cloud[:, :1].expand(1, 20, 3))
    lone, _ = encoder(cloud[:, :1])
    assert_close(same, lone.expand(1, 20, 4), dtype=torch.float32)
    empty, domain = encoder(torch.full((1, 3, 3), torch.nan))
    assert torch.isfinite(empty).all()
    assert read_out(empty, domain, "mean").abs().max() == 0


def test_a_point_with_duplicates_is_its_own_nearest_neighbour():
    cloud = torch.tensor([[[0.0], [0.0], [0.0], [2.0]]])
    index = nearest(cloud, torch.ones(1, 4, dtype=torch.bool), 1)
    assert index.flatten().tolist() == [0, 1, 2, 3]


def test_ties_of_distance_are_broken_by_order():
    axis = torch.arange(6, dtype=torch.float64)
    cloud = torch.cartesian_prod(axis, axis)[torch.randperm(36)][None]
    padded = torch.cat([cloud, torch.full((1, 28, 2), torch.nan, dtype=torch.float64)], 1)
    encoder = PointEncoder(channels=2, dim=8, neighbours=7).double().eval()
    assert_close(encoder(padded)[0][:, :36], encoder(cloud)[0])
    distance = torch.cdist(cloud, cloud, compute_mode="donot_use_mm_for_euclid_dist")
    distance.diagonal(dim1=1, dim2=2).fill_(-1.0)
    expected = distance.sort(dim=-1, stable=True).indices[..., :7]
    assert torch.equal(nearest(cloud, torch.ones(1, 36, dtype=torch.bool), 7), expected)


def test_further_channels_are_features_only():
    cloud = torch.rand(2, 6, 5)
    encoder = PointEncoder(channels=5, dim=4, position_dim=3, neighbours=2)
    features, domain = encoder(cloud)
    assert domain.dim == encoder.position_dim == 3
    changed, _ = encoder(torch.cat([cloud[..., :3], cloud[..., 3:] + 1], -1))
    assert (changed - features).abs().max() > 0.01


@pytest.mark.parametrize("neighbours", [0, 4])
def test_a_model_ignores_the_order_of_points(neighbours):
    options = {"width": 8, "frequencies": 4}
    small = {"dim": 16, "heads": 2, "depth": 2, "num_classes": 3, "operator_options": options}
    model = create_model("itnet_pc", **parts(neighbours=neighbours, **small)).eval()
    torch.nn.init.normal_(model.head.weight)
    clouds = torch.rand(2, 12, 3)
    order = torch.randperm(12)
    assert_close(model(clouds[:, order]), model(clouds), dtype=torch.float32)
    assert model(torch.rand(2, 7, 3)).shape == (2, 3)


def test_neighbours_of_clouds_in_bfloat16_are_found_in_float32():
    clouds = torch.randn(2, 12, 3).bfloat16()
    valid = torch.ones(2, 12, dtype=torch.bool)
    assert torch.equal(nearest(clouds, valid, 4), nearest(clouds.float(), valid, 4))
    encoder = PointEncoder(channels=3, dim=8, neighbours=4)
    exact, _ = encoder(clouds.float(), valid)
    rounded, domain = encoder.bfloat16()(clouds, valid)
    assert (rounded.dtype, domain.positions.dtype) == (torch.bfloat16, torch.float32)
    assert_close(rounded, exact.bfloat16(), dtype=torch.bfloat16)


def test_float32_positions_stay_exact_beside_bfloat16_weights():
    clouds = 1 + 1e-4 * torch.rand(1, 12, 3)
    encoder = PointEncoder(channels=3, dim=8, neighbours=4).bfloat16()
    features, domain = encoder(clouds)
    assert features.dtype == torch.bfloat16
    assert domain.positions.equal(clouds)
    assert len(domain.positions.bfloat16().unique(dim=1)[0]) == 1, "rounded, all are one point"
