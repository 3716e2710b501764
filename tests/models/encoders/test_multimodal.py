"""A picture and a text in one domain, several scales of a picture, and fields at several
resolutions.
"""

from __future__ import annotations

import pytest
import torch

from fredholm.encoders import FieldEncoder, Inputs, MultimodalEncoder, MultiScaleImageEncoder
from fredholm.errors import OptionError, ShapeError
from fredholm.models import Model, create_model, read_out
from tests.parts import parts

from ...tolerances import assert_close

TOKENS = torch.tensor([[3, 4, 0], [5, 6, 7]])
SMALL = {"operator_options": {"width": 4, "frequencies": 4, "sigma": 1.0}, "num_classes": 5}


def pair(**changes) -> Inputs:
    image = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return Inputs(**({"image": image, "tokens": TOKENS} | changes))


def make(**options) -> MultimodalEncoder:
    return MultimodalEncoder(patch=4, channels=1, vocabulary=9, max_length=4, dim=8, **options)


@pytest.mark.parametrize(("measure", "share"), [("balanced", 0.5), (0.75, 0.75), ("uniform", None)])
@pytest.mark.parametrize("token", [True, False])
def test_modalities_have_their_shares_of_the_measure(measure, share, token):
    features, domain = make(measure=measure, class_token=token)(pair())
    first = int(token)
    weights = domain.quadrature().weights()[:, 0, 0, first:]
    assert features.shape == (2, 7 + first, 8)
    for row, words in ((0, 2), (1, 3)):
        part = share if share is not None else 4 / (4 + words)
        assert weights[row, :4].sum().item() == pytest.approx(part, abs=1e-6)
        assert weights[row, 4:].sum().item() == pytest.approx(1 - part, abs=1e-6)
    assert weights[0, 6] == 0, "padding has no mass"


def test_modalities_have_separate_positions_and_embeddings():
    encoder = make(class_token=True)
    features, domain = encoder(pair())
    image, text = domain.positions[..., 1:5, :], domain.positions[..., 5:, :]
    assert image.max() <= 1 < text[..., 0].min()
    assert text.reshape(-1, 3, 2)[0].tolist() == [[1.5, 0.0], [1.5, 0.25], [1.5, 0.5]]
    with torch.no_grad():
        encoder.modality[1] += 1.0
    moved, _ = encoder(pair())
    assert_close(moved[:, :5], features[:, :5], dtype=torch.float32)
    assert_close(moved[:, 5:], features[:, 5:] + 1.0, dtype=torch.float32)


def test_two_views_are_read_by_one_encoder():
    options = {
        "encoder": "multimodal",
        "image_size": 8,
        "patch": 4,
        "vocabulary": 9,
        "pool": "cls",
        "views": 2,
    }
    model = create_model("itnet_nano", **parts(**options, **SMALL)).eval()
    torch.nn.init.normal_(model.head.weight)
    images = torch.rand(2, 2, 1, 8, 8)
    logits = model(pair(image=images))
    one = Model(model.config.replace(encoder={"views": 1})).eval()
    rest = {k: v for k, v in model.state_dict().items() if not k.startswith("head")}
    one.load_state_dict(rest, strict=False)
    read = [read_out(*one.features(pair(image=images[:, i])), "cls") for i in range(2)]
    assert_close(logits, model.head(torch.stack(read, 1)), dtype=torch.float32)
    with pytest.raises(ShapeError, match=r"\(B, 2, C, H, W\), got \(2, 1, 8, 8\)"):
        model(pair())


def test_wrong_options_and_inputs_are_refused():
    for measure in ("both", 1.5, True):
        with pytest.raises(OptionError, match=rf"share in \(0, 1\), got '?{measure}"):
            make(measure=measure)
    with pytest.raises(ShapeError, match="tokens: expected integers"):
        make()(pair(tokens=TOKENS.float()))
    with pytest.raises(ShapeError, match="inputs: expected image, got tokens"):
        make()(Inputs(tokens=TOKENS))
    with pytest.raises(OptionError, match="'image' has no option 'views'"):
        create_model("itnet_nano", **parts(views=2))
    with pytest.raises(OptionError, match="did you mean 'graph'"):
        create_model("itnet_nano", **parts(encoder="grap"))


@pytest.mark.parametrize(("measure", "small"), [("uniform", 0.8), ("balanced", 0.5)])
def test_scales_share_one_domain(measure, small):
    encoder = MultiScaleImageEncoder(scales=(2, 4), channels=1, dim=8, measure=measure)
    features, domain = encoder(torch.rand(3, 1, 8, 12))
    assert features.shape == (3, 24 + 6, 8)
    weights = domain.quadrature().weights()[0, 0, 0]
    assert weights[:24].sum().item() == pytest.approx(small, abs=1e-6)
    assert_close(weights.sum(), torch.tensor(1.0))
    assert domain.positions[24].tolist() == pytest.approx([0.25, 1 / 6])
    model = create_model(
        "itnet_nano",
        **parts(image_size=8, encoder="scales", scales=(2, 4), measure=measure, **SMALL),
    )
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 5)
    with pytest.raises(
        OptionError, match="expected a patch that divides the image of 8x8, got 3x3"
    ):
        create_model("itnet_nano", **parts(image_size=8, encoder="scales", scales=(2, 3)))


def test_rectangular_patches_work():
    model = create_model("itnet_nano", **parts(image_size=(8, 12), patch=(4, 2), **SMALL))
    assert model.features(torch.rand(1, 1, 8, 12))[0].shape[1] == 12
    with pytest.raises(
        OptionError, match="expected a patch that divides the image of 8x12, got 4x5"
    ):
        create_model("itnet_nano", **parts(image_size=(8, 12), patch=(4, 5)))


def test_outputs_converge_with_the_resolution_of_the_field():
    """Samples of a smooth field on finer grids give outputs that converge at equal positions."""
    options = {"encoder": "field", "frequencies": 4, "sigma": 0.5, "dim": 16, "heads": 2}
    model = create_model("itnet_nano", **parts(**options, **SMALL | {"num_classes": 1})).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)

    def answers(n: int) -> torch.Tensor:
        x = (torch.arange(n) + 0.5) / n
        field = torch.sin(3 * x)[:, None] * torch.cos(2 * x)
        return model(field[None, None]).view(n, n)

    def coarse(field: torch.Tensor) -> torch.Tensor:
        n = len(field) // 4
        return field.reshape(4, n, 4, n).mean((1, 3))

    with torch.no_grad():
        exact = coarse(answers(32))
        errors = [
            (coarse(answers(n)) - exact).norm() / (exact - exact.mean()).norm() for n in (4, 8, 16)
        ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 0.02


def test_field_shapes_are_checked():
    with pytest.raises(ShapeError, match=r"\(B, 2, n1, n2\), got \(1, 1, 4, 4\)"):
        FieldEncoder(channels=2, dim=4)(torch.zeros(1, 1, 4, 4))
