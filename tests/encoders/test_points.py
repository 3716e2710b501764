"""Point clouds: raw coordinates as positions, a read-out against the measure."""

from __future__ import annotations

import pytest
import torch

from fredholm.encoders import PointEncoder
from fredholm.errors import ShapeError
from fredholm.models import create_model

from ..tolerances import assert_close


def test_positions_are_the_raw_coordinates():
    clouds = torch.randn(2, 5, 3)
    features, domain = PointEncoder(channels=3, dim=4)(clouds)
    assert torch.equal(domain.positions, clouds)
    assert features.shape == (2, 5, 4)


def test_read_out_is_the_mean_over_real_points():
    encoder, clouds = PointEncoder(channels=3, dim=4), torch.randn(2, 5, 3)
    valid = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    clouds = torch.where(valid[..., None], clouds, float("nan"))
    features, domain = encoder(clouds, valid)
    pooled = encoder.read_out(features, domain)
    assert_close(pooled[0], features[0].mean(0), dtype=torch.float32)
    assert_close(pooled[1], features[1, :3].mean(0), dtype=torch.float32)


def test_wrong_coordinates_are_named():
    with pytest.raises(ShapeError, match=r"\(B, N, 3\), got \(2, 5, 2\)"):
        PointEncoder(channels=3, dim=4)(torch.zeros(2, 5, 2))


def test_model_on_clouds_ignores_the_order_of_points():
    options = {"width": 8, "frequencies": 4}
    model = create_model("itnet_pc", dim=16, heads=2, depth=2, num_classes=3, operator_options=options).eval()
    torch.nn.init.normal_(model.head.weight)
    clouds, order = torch.rand(2, 12, 3), torch.randperm(12)
    assert_close(model(clouds[:, order]), model(clouds), dtype=torch.float32)
    assert model(torch.rand(2, 7, 3)).shape == (2, 3)
