"""Image encoder: positions of patches, and a class token that patches do not read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fredholm.encoders import ImageEncoder
from fredholm.errors import OptionError, ShapeError
from fredholm.models import read_out
from fredholm.operators import create_operator

from ...tolerances import assert_close


@pytest.mark.parametrize(("patch", "size"), [(2, (6, 4)), ((1, 3), (2, 9)), (4, (4, 4))])
@pytest.mark.parametrize("channels", [1, 3])
def test_positions_of_patches_are_their_centres(patch, size, channels):
    encoder = ImageEncoder(patch=patch, channels=channels, dim=8)
    images = torch.rand(2, channels, *size)
    height, width = encoder.patch
    patches, domain = encoder._patches(images), encoder.domain(images)
    assert domain.shape == (size[0] // height, size[1] // width)
    rebuilt = torch.full_like(images, float("nan"))
    for i, (y, x) in enumerate(domain.positions.tolist()):
        top, left = round(y * size[0] - height / 2), round(x * size[1] - width / 2)
        tile = patches[:, i].reshape(2, channels, height, width)
        rebuilt[:, :, top : top + height, left : left + width] = tile
    assert rebuilt.equal(images)
    assert_close(domain.quadrature().weights().sum(), torch.tensor(1.0))


def test_features_are_embedding_plus_position():
    encoder = ImageEncoder(patch=2, channels=1, dim=8, frequencies=4, sigma=1.0)
    images = torch.rand(3, 1, 4, 6)
    features, domain = encoder(images)
    expected = encoder.embed(encoder._patches(images)) + encoder.position(
        encoder.fourier(domain.positions)
    )
    assert_close(features, expected)
    assert encoder.embed.weight.std().item() == pytest.approx(0.02, rel=0.4)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 1, 7, 8), "multiples of the patch 4x4, got 7x8; resize or pad"),
        (torch.zeros(1, 1, 8, 6), "got 8x6"),
        (torch.zeros(1, 3, 8, 8), r"\(B, 1, H, W\), got \(1, 3, 8, 8\)"),
        (torch.zeros(1, 8, 8), r"\(B, 1, H, W\), got \(1, 8, 8\)"),
    ],
)
def test_wrong_image_sizes_are_refused(images, message):
    with pytest.raises(ShapeError, match=message):
        ImageEncoder(patch=4, channels=1, dim=8).domain(images)


def test_the_class_token_has_measure_zero_at_the_centre():
    encoder = ImageEncoder(patch=2, channels=1, dim=8, class_token=True)
    features, domain = encoder(torch.rand(2, 1, 4, 4))
    assert features.shape == (2, 5, 8)
    assert domain.positions[0].tolist() == [0.5, 0.5]
    assert domain.shape is None
    assert_close(
        domain.quadrature().weights().flatten(), torch.tensor([0.0, 0.25, 0.25, 0.25, 0.25])
    )
    expected = encoder.token + encoder.position(encoder.fourier(domain.positions[:1]))
    assert_close(features[:, :1], expected.expand(2, 1, 8))


@pytest.mark.parametrize("name", ["itnet", "softmax"])
def test_patches_do_not_read_the_class_token(name):
    encoder = ImageEncoder(patch=2, channels=1, dim=8, class_token=True)
    options = {"position_dim": 2, "width": 4} if name == "itnet" else {}
    operator = create_operator(name, 8, 2, **options)
    for parameter in operator.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    features, domain = encoder(torch.rand(2, 1, 4, 4))
    changed = features.clone()
    changed[:, 0] = 100 * torch.randn(2, 8)
    before, after = operator(features, domain), operator(changed, domain)
    assert after[:, 1:].equal(before[:, 1:])
    assert (after[:, 0] - before[:, 0]).abs().max() > 0.1
    changed = features.clone()
    changed[:, 3] += 1.0
    assert (operator(changed, domain)[:, 0] - before[:, 0]).abs().max() > 1e-4, (
        "the token reads the patches"
    )


def test_an_ordinary_class_token_has_the_measure_of_a_patch():
    options: Any = {"patch": 2, "channels": 1, "dim": 8, "class_token": True}
    features, domain = ImageEncoder(**options, token="ordinary")(torch.rand(2, 1, 4, 4))
    assert_close(domain.quadrature().weights().flatten(), torch.full((5,), 0.2))
    operator = create_operator("softmax", 8, 2)
    changed = features.clone()
    changed[:, 0] += 9.0
    apart = operator(changed, domain)[:, 1:] - operator(features, domain)[:, 1:]
    assert apart.abs().amin((1, 2)).min() > 1e-4, "every patch reads the token"
    with pytest.raises(OptionError, match="did you mean 'ordinary'"):
        ImageEncoder(**options, token="ordinal")


def test_pooling_reads_the_class_token_or_the_mean():
    images = torch.rand(2, 1, 4, 4)
    for pool in ("cls", "mean"):
        encoder = ImageEncoder(patch=2, channels=1, dim=8, class_token=pool == "cls")
        tokens, domain = encoder(images)
        expected = tokens[:, 0] if pool == "cls" else tokens.mean(1)
        assert_close(read_out(tokens, domain, pool), expected)


def test_dropout_acts_after_the_embedding():
    encoder = ImageEncoder(patch=2, channels=1, dim=64, dropout=0.5)
    share = (encoder(torch.rand(8, 1, 8, 8))[0] == 0).float().mean().item()
    assert 0.45 < share < 0.55


def test_a_table_of_positions_is_interpolated():
    encoder = ImageEncoder(
        patch=2, channels=1, dim=4, positions="learned", grid=(3, 4), class_token=True
    )
    images = torch.rand(2, 1, 6, 8)
    features, _ = encoder(images)
    patches = encoder.embed(encoder._patches(images)) + encoder.table.flatten(1).mT
    assert_close(features, torch.cat([encoder.token.expand(2, 1, -1), patches], 1))
    with torch.no_grad():
        encoder.table.copy_(torch.linspace(0, 1, 3)[:, None].expand(4, 3, 4))
    finer = encoder._interpolated((6, 8)).mT.unflatten(1, (6, 8))
    assert_close(finer, finer[:, :, :1].expand_as(finer))
    assert (finer[0, :, 0].diff() > 0).all()
    assert_close(finer[0, 2:4, 0].mean(), torch.tensor(0.5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positions": "learnd"}, "did you mean 'learned'"),
        ({"positions": "learned"}, r"grid: expected \(rows, columns\)"),
    ],
)
def test_wrong_position_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        ImageEncoder(patch=4, channels=1, dim=8, **options)
