"""Augmentation: correct, and independent of batches and of earlier random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from fredholm.data import Augment, cutmix, mixup
from fredholm.errors import OptionError, ShapeError
from fredholm.lab.data.pictures import OPERATIONS, erase, jitter_colours, resized_crop


def pictures(n: int = 64, channels: int = 3, height: int = 8, width: int = 10) -> torch.Tensor:
    return torch.randint(1, 256, (n, channels, height, width), dtype=torch.uint8)


@pytest.mark.parametrize("fill", ["zero", "reflect", "edge"])
def test_augmentation_does_not_depend_on_the_batch(fill):
    images = pictures()
    indices = torch.arange(64) + 1000
    augment = Augment(crop=2, shift=1, flip=True, fill=fill)
    together = augment(images, indices, seed=3, epoch=5)
    order = torch.randperm(64)
    assert torch.equal(augment(images[order], indices[order], seed=3, epoch=5), together[order])
    assert torch.equal(augment(images[9:10], indices[9:10], seed=3, epoch=5), together[9:10])
    torch.manual_seed(99)
    assert torch.equal(augment(images, indices, seed=3, epoch=5), together)
    for seed, epoch in ((4, 5), (3, 6)):
        changed = (augment(images, indices, seed=seed, epoch=epoch) != together).flatten(1).any(1)
        assert changed.float().mean() > 0.8
    assert together.shape == images.shape
    assert together.dtype == images.dtype


def windows(image: torch.Tensor, reach: int) -> dict[tuple[int, int], torch.Tensor]:
    """Return every zero-filled translation, by loops."""
    _, height, width = image.shape
    out = {}
    for down in range(-reach, reach + 1):
        for right in range(-reach, reach + 1):
            moved = torch.zeros_like(image)
            for y in range(height):
                for x in range(width):
                    if 0 <= y + down < height and 0 <= x + right < width:
                        moved[:, y, x] = image[:, y + down, x + right]
            out[down, right] = moved
    return out


@pytest.mark.parametrize("options", [{"crop": 2}, {"shift": 2}])
def test_crops_and_shifts_are_uniform_over_translations(options):
    image = pictures(1)[0]
    repeated = image.expand(2500, -1, -1, -1)
    moved = Augment(**options)(repeated, torch.arange(2500), seed=0, epoch=0)
    counts = [
        int((moved == window).flatten(1).all(1).sum()) for window in windows(image, 2).values()
    ]
    assert sum(counts) == 2500
    assert min(counts) > 100 - 4 * 10
    assert max(counts) < 100 + 4 * 10


def test_borders_are_reflected_or_repeated():
    image = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).expand(200, 1, 3, 3)
    reflected = Augment(crop=1, fill="reflect")(image, torch.arange(200), seed=0, epoch=0)
    repeated = Augment(crop=1, fill="edge")(image, torch.arange(200), seed=0, epoch=0)
    assert reflected.min() >= 1
    assert repeated.min() >= 1
    assert (
        torch.tensor([[5, 4, 5], [2, 1, 2], [5, 4, 5]]).byte().tolist() in reflected[:, 0].tolist()
    )
    assert (
        torch.tensor([[1, 1, 2], [1, 1, 2], [4, 4, 5]]).byte().tolist() in repeated[:, 0].tolist()
    )
    with pytest.raises(ShapeError, match=r"expected less than 3 pixels .* 3x3 images, got 3"):
        Augment(crop=3, fill="reflect")(image, torch.arange(200), seed=0, epoch=0)


@pytest.mark.parametrize(("flip", "expected"), [(True, 0.5), (0.1, 0.1), (1.0, 1.0), (0.0, 0.0)])
def test_the_share_of_flipped_images_is_as_requested(flip, expected):
    images = pictures(2000, 1, 2, 3)
    out = Augment(flip=flip)(images, torch.arange(2000), seed=1, epoch=0)
    mirrored = (out == images.flip(-1)).flatten(1).all(1)
    kept = (out == images).flatten(1).all(1)
    assert (mirrored | kept).all()
    assert (
        abs(mirrored.float().mean() - expected)
        < 4 * math.sqrt(max(expected * (1 - expected), 1e-9) / 2000) + 0.005
    )


def test_identity_and_empty_batches_work():
    images = pictures(4)
    assert torch.equal(Augment()(images, torch.arange(4), seed=0, epoch=0), images)
    empty = Augment(crop=1, flip=True)(images[:0], torch.arange(0), seed=0, epoch=0)
    assert empty.shape == (0, 3, 8, 10)


@pytest.mark.parametrize(
    "options",
    [
        {"crop": -1},
        {"shift": -2},
        {"flip": 1.5},
        {"flip": math.nan},
        {"fill": "wrap"},
        {"crop": True},
    ],
)
def test_wrong_options_are_refused(options):
    with pytest.raises(OptionError, match=f"{next(iter(options))}: expected"):
        Augment(**options)


def test_mixup_equals_its_formula():
    images = torch.randn(16, 3, 4, 4)
    labels = torch.arange(16) % 5
    mixed, soft = mixup(images, labels, 5, alpha=0.4, seed=1, epoch=2, step=3)
    found = []
    for row in range(16):
        candidates = [
            (j, s)
            for j in range(16)
            for s in [share_of(images[row], images[j], mixed[row])]
            if s is not None
        ]
        assert candidates
        partner, share = candidates[0]
        expected = torch.zeros(5).index_add(
            0, labels[[row, partner]], torch.tensor([share, 1 - share])
        )
        assert torch.allclose(soft[row], expected, atol=1e-4)
        found += [share] if partner != row else []
    assert max(found) - min(found) < 1e-4


def share_of(a: torch.Tensor, b: torch.Tensor, mixed: torch.Tensor) -> float | None:
    """Return λ with mixed = λ a + (1 − λ) b, or None."""
    if torch.equal(a, b):
        return 1.0 if torch.allclose(a, mixed, atol=1e-5) else None
    share = float(((mixed - b) * (a - b)).sum() / (a - b).square().sum())
    return share if torch.allclose(share * a + (1 - share) * b, mixed, atol=1e-4) else None


def test_mixup_shares_have_the_beta_distribution():
    shares = torch.tensor([mixup_share(0.4, step) for step in range(2000)])
    variance = 1 / (4 * (2 * 0.4 + 1))
    assert abs(shares.mean() - 0.5) < 4 * math.sqrt(variance / 2000)
    assert abs(shares.var() - variance) < 0.02


def mixup_share(alpha: float, step: int) -> float:
    from fredholm.lab.data.augment import _beta, _key

    return _beta(alpha, _key(4, 0, 0, step, None))


def test_cutmix_replaces_one_rectangle_and_weights_by_area():
    sizes = set()
    for step in range(30):
        images = torch.arange(6).float().view(6, 1, 1, 1).expand(6, 2, 9, 7)
        mixed, soft = cutmix(images, torch.arange(6), 6, seed=0, epoch=1, step=step)
        foreign = (mixed != images).any(1)
        for row in range(6):
            area = int(foreign[row].sum())
            if area:
                ys, xs = foreign[row].nonzero(as_tuple=True)
                assert area == (ys.max() - ys.min() + 1) * (xs.max() - xs.min() + 1)
                partner = int(mixed[row, 0][foreign[row]].unique().item())
                assert torch.allclose(
                    soft[row, [row, partner]], torch.tensor([1 - area / 63, area / 63])
                )
                sizes.add(area)
        assert torch.allclose(soft.sum(1), torch.ones(6))
    assert len(sizes) > 8


@pytest.mark.parametrize("blend", [mixup, cutmix])
def test_blends_depend_on_seed_epoch_and_step_or_a_generator(blend):
    images = torch.randn(8, 1, 6, 6)
    labels = torch.arange(8) % 3
    first = blend(images, labels, 3, seed=1, epoch=2, step=3)
    torch.manual_seed(5)
    assert all(
        torch.equal(a, b)
        for a, b in zip(first, blend(images, labels, 3, seed=1, epoch=2, step=3), strict=True)
    )
    keys = {"seed": 1, "epoch": 2, "step": 3}
    others = [blend(images, labels, 3, **(keys | {key: 9}))[0] for key in keys]
    assert not any(torch.equal(first[0], other) for other in others)
    drawn = [
        blend(images, labels, 3, generator=torch.Generator().manual_seed(7))[0] for _ in range(2)
    ]
    assert torch.equal(*drawn)
    soft = blend(images, first[1], 3, seed=4)[1]  # labels that are already blended
    assert torch.allclose(soft.sum(1), torch.ones(8))


@pytest.mark.parametrize("blend", [mixup, cutmix])
def test_blends_refuse_mismatched_arguments(blend):
    images = torch.randn(4, 1, 6, 6)
    labels = torch.arange(4)
    for alpha in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(OptionError, match="alpha: expected"):
            blend(images, labels, 4, alpha=alpha)
    with pytest.raises(ShapeError, match="class numbers from 0 to 2, got"):
        blend(images, labels, 3)
    with pytest.raises(ShapeError, match="labels: expected"):
        blend(images, labels.float(), 4)


VARIED = {
    "area": {"area": [0.2, 0.9]},
    "color": {"color": [0.4, 0.4, 0.4, 0.1]},
    "randaugment": {"randaugment": [2, 9]},
    "erase": {"erase": 0.9},
}


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("channels", [1, 3])
def test_random_changes_depend_on_seed_epoch_and_index_only(name, channels):
    images = pictures(24, channels, 12, 16)
    indices = torch.arange(24) + 100
    augment = Augment(**VARIED[name])
    together = augment(images, indices, seed=3, epoch=5)
    assert together.shape == images.shape
    assert together.dtype == torch.uint8
    assert torch.equal(augment(images[7:9], indices[7:9], seed=3, epoch=5), together[7:9])
    assert (together != images).flatten(1).any(1).float().mean() > 0.7
    again = augment(images, indices, seed=3, epoch=6)
    assert (together != again).flatten(1).any(1).float().mean() > 0.7


def test_a_resized_crop_has_the_requested_area_and_aspect():
    whole = pictures(20, 3, 16, 16)
    assert torch.equal(resized_crop(whole, (1.0, 1.0), 0, 0, torch.arange(20)), whole)
    # The slopes of a ramp shrink by the sides of the crop.
    ramp = torch.linspace(0, 1, 128).expand(1, 128, 128)
    images = torch.cat([ramp, ramp.mT])[None].expand(400, -1, -1, -1)
    cropped = resized_crop(images, (0.25, 0.75), 0, 0, torch.arange(400))
    width, height = (
        (cropped[:, 0, :, 100] - cropped[:, 0, :, 28]).mean(-1) * 127 / 72,
        (cropped[:, 1, 100] - cropped[:, 1, 28]).mean(-1) * 127 / 72,
    )
    share, ratio = width * height, width / height
    assert 0.23 < share.min() < 0.28
    assert 0.71 < share.max() < 0.77
    assert share.mean().item() == pytest.approx(0.5, abs=0.03)
    assert 0.72 < ratio.min() < 0.8
    assert 1.25 < ratio.max() < 1.38


@pytest.mark.parametrize(("place", "name"), list(enumerate(["Brightness", "Contrast", "Color"])))
def test_colour_changes_equal_pillows(place, name):
    images = pictures(2)
    amounts = [0.0] * 4
    amounts[place] = 0.6
    changed = jitter_colours(images, amounts, 0, 0, torch.arange(2))
    enhance = getattr(ImageEnhance, name)
    for image, result in zip(images, changed):
        picture = Image.fromarray(image.permute(1, 2, 0).numpy())
        factors = np.linspace(0.4, 1.6, 301)
        wanted = result.permute(1, 2, 0).numpy().astype(float)
        gaps = [np.abs(np.asarray(enhance(picture).enhance(f)) - wanted).max() for f in factors]
        assert min(gaps) <= 2, "one factor between 0.4 and 1.6 explains the picture"


def test_a_rotated_hue_keeps_brightness_and_greys():
    images = torch.rand(6, 3, 4, 4) * 0.2 + 0.4
    changed = jitter_colours(images, [0, 0, 0, 0.5], 0, 0, torch.arange(6))
    weights = torch.tensor([0.299, 0.587, 0.114]).view(3, 1, 1)
    assert torch.allclose((changed * weights).sum(1), (images * weights).sum(1), atol=1e-6)
    assert (changed - images).abs().amax((1, 2, 3)).min() > 1e-3
    grey = torch.full((1, 3, 2, 2), 0.3)
    assert torch.allclose(jitter_colours(grey, [0, 0, 0, 0.5], 0, 0, torch.arange(1)), grey)


def test_erased_rectangles_have_the_requested_share_and_size():
    images = torch.zeros(400, 1, 20, 30)
    erased = (erase(images, 0.25, 0, 0, torch.arange(400)) != 0).flatten(1)
    assert erased.any(1).float().mean().item() == pytest.approx(0.25, abs=0.06)
    share = erased.float().mean(1)[erased.any(1)]
    assert share.min() < 0.08
    assert 0.25 < share.max() < 0.36


def test_randaugment_has_fourteen_changes_that_scale_with_the_magnitude():
    assert len(OPERATIONS) == 14
    picture = Image.fromarray(pictures(1, 3, 24, 24)[0].permute(1, 2, 0).numpy())
    still = {"identity", "autocontrast", "equalize"}
    for name, change in OPERATIONS.items():
        gaps = [
            np.abs(np.asarray(change(picture, amount, 1), float) - np.asarray(picture)).mean()
            for amount in (0.0, 0.2, 0.8)
        ]
        assert change(picture, 0.5, -1).size == (24, 24)
        if name not in still:
            assert gaps[0] <= 0.5, name
            assert gaps[0] < gaps[1] < gaps[2], name


@pytest.mark.parametrize(
    "options",
    [
        {"area": [0.0, 1.0]},
        {"area": [0.5]},
        {"color": [0.4, 0.4, 0.4, 0.6]},
        {"randaugment": [0, 9]},
        {"randaugment": [2, 31]},
        {"erase": 1.5},
        {"color": [0.4, 0.4]},
    ],
)
def test_wrong_amounts_are_refused(options):
    with pytest.raises(OptionError, match=f"{next(iter(options))}: expected"):
        Augment(**options)
