"""Models of the library in transformers' Auto classes and pipelines."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from fredholm.errors import OptionError, ShapeError
from fredholm.models import create_model

pytest.importorskip("transformers")
pytest.importorskip("PIL")

import transformers
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification
from transformers import AutoModelForSequenceClassification as AutoModelForTexts

from fredholm.hf import (
    FredholmForImageClassification,
    FredholmForSequenceClassification,
    FredholmImageProcessor,
)
from fredholm.lab.data.kinds.images import FolderDataset
from fredholm.lab.data.kinds.picture_files import read_as_trained

TEXT = {"kind": "text", "vocabulary": 9, "max_length": 12}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Write a folder of transformers with the weights for digits."""
    folder = tmp_path_factory.mktemp("digits")
    model = create_model("itnet_nano", pretrained="digits")
    FredholmForImageClassification.from_fredholm(model).save_pretrained(folder)
    FredholmImageProcessor.from_fredholm(model).save_pretrained(folder)
    return folder


def random_head(model):
    for weight in model.head.parameters():
        torch.nn.init.normal_(weight)
    return model.eval()


def test_a_saved_model_gives_the_same_output(digits):
    model = create_model("itnet_nano", pretrained="digits")
    loaded = AutoModelForImageClassification.from_pretrained(digits)
    assert isinstance(loaded, FredholmForImageClassification)
    assert not loaded.training
    assert loaded.config.id2label == {i: str(i) for i in range(10)}
    pictures = torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pictures).logits, model(pictures), rtol=0, atol=0)


@pytest.mark.parametrize(
    "parts",
    [
        {"body": {"operator": "luna"}},
        {"body": {"operator": "infsa"}},
        {"head": {"outputs": 2, "offset": [1.0, -3.0]}},
    ],
)
def test_configuration_and_weights_survive_a_folder(parts, tmp_path):
    model = random_head(create_model("itnet_nano", **parts))
    FredholmForImageClassification.from_fredholm(model).save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    pictures = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pictures).logits, model(pictures), rtol=0, atol=0)


def test_a_pipeline_classifies_a_grey_picture(digits):
    from sklearn.datasets import load_digits

    found = load_digits()
    pipeline = transformers.pipeline("image-classification", model=str(digits))
    for index in range(5):
        pixels = (found.images[index] * 255 / 16).astype(np.uint8)
        (best, *_) = pipeline(Image.fromarray(pixels))
        assert best["label"] == str(found.target[index])
        assert best["score"] > 0.5


def test_a_processor_preprocesses_as_the_run(digits):
    processor = AutoImageProcessor.from_pretrained(digits)
    assert isinstance(processor, FredholmImageProcessor)
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    values = processor(pixels)["pixel_values"]
    assert values.shape == (1, 1, 8, 8)
    expected = (torch.arange(64.0).view(8, 8) / 255 - 0.3048) / 0.3758
    torch.testing.assert_close(values[0, 0], expected)
    # Colours become grey, and another size is stretched.
    assert processor([np.zeros((5, 9, 3), np.uint8)] * 2)["pixel_values"].shape == (2, 1, 8, 8)


def test_another_number_of_labels_initialises_another_head(digits):
    loaded = AutoModelForImageClassification.from_pretrained(
        digits, num_labels=3, ignore_mismatched_sizes=True
    )
    # The new head starts with zeros, as in a new model; all other weights are loaded.
    assert not loaded.model.head.weight.any()
    assert not loaded.model.head.bias.any()
    learned = AutoModelForImageClassification.from_pretrained(digits).model
    for name, parameter in loaded.model.named_parameters():
        if not name.startswith("head."):
            assert parameter.equal(learned.get_parameter(name)), name

    pictures = torch.rand(2, 1, 8, 8)
    labels = torch.tensor([0, 2])
    result = loaded(pictures, labels=labels)
    assert result.logits.shape == (2, 3)
    result.loss.backward()


def test_a_text_pipeline_accepts_tokenizers_with_padding_0(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {"[PAD]": 0, "[UNK]": 1, "good": 2, "bad": 3}
    plain = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain, pad_token="[PAD]", unk_token="[UNK]"
    )
    model = random_head(create_model("itnet_nano", encoder=TEXT, head={"outputs": 2}))
    FredholmForSequenceClassification.from_fredholm(model).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)

    pipeline = transformers.pipeline("text-classification", model=str(tmp_path), top_k=None)
    texts = ["good", "bad bad good"]
    answers = pipeline(texts, batch_size=2)
    for text, answer in zip(texts, answers, strict=True):
        numbers = torch.tensor([tokenizer(text)["input_ids"]])
        with torch.no_grad():
            expected = model(numbers).softmax(-1)[0]
        found = {entry["label"]: entry["score"] for entry in answer}
        assert found["LABEL_1"] == pytest.approx(float(expected[1]), abs=1e-5)


def test_an_attention_mask_hides_padding():
    model = random_head(create_model("itnet_nano", encoder=TEXT, head={"outputs": 2}))
    wrapped = FredholmForSequenceClassification.from_fredholm(model)
    numbers = torch.tensor([[3, 4, 5, 6]])
    mask = torch.tensor([[1, 1, 0, 0]])
    with torch.no_grad():
        hidden = wrapped(numbers, attention_mask=mask).logits
        torch.testing.assert_close(hidden, model(torch.tensor([[3, 4]])))
    with pytest.raises(ShapeError, match="expected 0 at padding only"):
        wrapped(torch.tensor([[0, 4]]), attention_mask=torch.tensor([[1, 1]]))


def test_models_of_other_data_are_refused():
    with pytest.raises(OptionError, match="expected an encoder of text and one answer per sample"):
        FredholmForSequenceClassification.from_fredholm(create_model("itnet_nano"))
    with pytest.raises(OptionError, match="expected a model of pictures"):
        FredholmImageProcessor.from_fredholm(create_model("itnet_nano", encoder=TEXT))


def test_the_loss_follows_the_kind_of_problem():
    model = create_model("itnet_nano", head={"outputs": 1})
    wrapped = AutoModelForTexts  # the other class is registered as well
    assert FredholmForSequenceClassification in wrapped._model_mapping.values()
    regression = FredholmForImageClassification.from_fredholm(model)
    loss = regression(torch.rand(4, 1, 28, 28), labels=torch.ones(4)).loss
    assert loss.item() == pytest.approx(1.0)  # a head starts at zero


def test_a_regression_has_outputs_without_names(tmp_path):
    model: Any = random_head(create_model("itnet_nano", head={"outputs": 1}))
    model.extra = {"task": "regression", "classes": []}
    FredholmForImageClassification.from_fredholm(model).save_pretrained(tmp_path)
    loaded = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert loaded.config.num_labels == 1
    pictures = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(loaded(pictures).logits, model(pictures), rtol=0, atol=0)


def test_arrays_of_one_channel_are_grey_and_floats_are_refused(digits):
    processor = AutoImageProcessor.from_pretrained(digits)
    grey = np.random.default_rng(0).integers(0, 256, (8, 8, 1), dtype=np.uint8)
    with_channel = processor(grey)["pixel_values"]
    torch.testing.assert_close(with_channel, processor(grey[..., 0])["pixel_values"])
    with pytest.raises(OptionError, match="expected bytes"):
        processor(grey[..., 0] / 255)


# --- pictures as in training ----------------------------------------------------------------------


def shades(rows: int, columns: int, white: int) -> np.ndarray:
    """Return a ramp over the whole range, with some noise."""
    ramp = np.linspace(0, white, rows * columns).reshape(rows, columns)
    noise = np.random.default_rng(0).uniform(-white / 8, white / 8, ramp.shape)
    return (ramp + noise).clip(0, white)


def pictures() -> dict[str, Image.Image]:
    """Return pictures of every mode that files have, higher than wide."""
    grey = shades(13, 7, 255).astype(np.uint8)
    colours = np.stack([grey, grey[::-1], grey[:, ::-1]], -1)
    opacity = np.where(grey > 100, grey, 0).astype(np.uint8)
    deep = shades(13, 7, 65_535)
    return {
        "L": Image.fromarray(grey),
        "RGB": Image.fromarray(colours),
        "RGBA": Image.fromarray(np.dstack([colours, opacity])),
        "P": Image.fromarray(colours).convert("P", palette=Image.Palette.ADAPTIVE),
        "I;16": Image.fromarray(deep.astype(np.uint16)),
        "I": Image.fromarray(deep.astype(np.int32)),
    }


def picture_model(channels: int, facts: dict[str, Any]) -> Any:
    encoder = {"channels": channels, "image_size": (8, 12), "patch": 4}
    model: Any = create_model("itnet_nano", encoder=encoder)
    model.extra = facts
    return model


def folder_facts(form: str) -> dict[str, Any]:
    """Return the facts that a run on a folder of pictures saves."""
    mean = [0.25] * (3 + form.count("a"))
    labels = torch.zeros(0)
    dataset = FolderDataset("own", "train", [], labels, ["a"], mean, mean, (8, 12), form=form)
    return dataset.describe()


@pytest.mark.parametrize(("mode", "turned"), list(product(pictures(), [False, True])))
def test_pictures_are_read_as_in_training(mode, turned, tmp_path):
    exif = Image.Exif()
    if turned:
        exif[0x0112] = 6
    file = tmp_path / "picture.tif"
    pictures()[mode].save(file, exif=exif)

    # Runs on folders, one of an earlier version, and a run on a data set of the catalogue.
    catalogue = {"mean": [0.5], "std": [0.25]}
    earlier = {"mean": [0.5] * 3, "std": [0.25] * 3, "source": {"path": "pictures"}}
    cases = [(1, catalogue), (3, earlier)]
    for form in ("rgb", "rgba", "rgb16", "rgba16"):
        cases.append((3 + form.count("a"), folder_facts(form)))

    for channels, facts in cases:
        processor = FredholmImageProcessor.from_fredholm(picture_model(channels, facts))
        processor.save_pretrained(tmp_path)
        processor = FredholmImageProcessor.from_pretrained(tmp_path)
        mean, std = (torch.tensor(facts[name]).view(-1, 1, 1) for name in ("mean", "std"))
        expected = (read_as_trained(file, facts, channels, (8, 12)) - mean) / std
        with Image.open(file) as picture:
            assert picture.mode == mode
            found = processor(picture)["pixel_values"][0]
        assert torch.equal(found, expected), facts


def test_arrays_of_an_estimator_are_stretched(tmp_path):
    """Its training stretched them, though its facts have a source, as those of files."""
    facts = {"mean": [0.5], "std": [0.25], "source": {"path": "X", "pixels": "bytes"}}
    processor = FredholmImageProcessor.from_fredholm(picture_model(1, facts))
    assert processor.fit == "stretch"
    assert processor(np.zeros((9, 5), np.uint8))["pixel_values"].shape == (1, 1, 8, 12)

    # A command that reads a picture file for this model stretches it too.
    file = tmp_path / "a.png"
    Image.fromarray(np.arange(45, dtype=np.uint8).reshape(9, 5)).save(file)
    read = (read_as_trained(file, facts, 1, (8, 12)) - 0.5) / 0.25
    assert torch.equal(processor(Image.open(file))["pixel_values"][0], read)


def test_a_processor_of_an_earlier_version_loads(tmp_path):
    """It stretches, as it did."""
    saved = FredholmImageProcessor(size={"height": 4, "width": 6}, channels=3)
    saved.save_pretrained(tmp_path)
    file = tmp_path / "preprocessor_config.json"
    plain = json.loads(file.read_text())
    del plain["fit"], plain["form"]
    file.write_text(json.dumps(plain))
    loaded = FredholmImageProcessor.from_pretrained(tmp_path)
    picture = pictures()["RGB"]
    expected = saved(picture)["pixel_values"]
    assert torch.equal(loaded(picture)["pixel_values"], expected)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"fit": "crop"}, "fit: expected one of cover, stretch, got 'crop'"),
        ({"form": "grey"}, "form: expected one of rgb, rgba, rgb16, rgba16, got 'grey'"),
        ({"fit": "cover"}, "channels: expected 3 beside fit='cover' and form='rgb', got 1"),
        ({"form": "rgba"}, "form: expected 'rgb' beside fit='stretch', got 'rgba'"),
        ({"channels": 4}, r"channels: expected 1 \(grey\) or 3 \(RGB\) beside .*, got 4"),
    ],
)
def test_impossible_processors_are_refused(options, match):
    with pytest.raises(OptionError, match=match):
        FredholmImageProcessor(**options)


def test_pictures_of_unknown_range_are_refused():
    covering: dict[str, Any] = {"channels": 3, "fit": "cover"}
    pixels = Image.fromarray(np.full((4, 4), 0.5, np.float32))
    wide = Image.fromarray(np.full((4, 4), 1 << 20, np.int32))
    readings: list[dict[str, Any]] = [{}, covering, covering | {"form": "rgb16"}]
    for options, picture in product(readings, (pixels, wide)):
        with pytest.raises(OptionError, match="images: expected 8 or 16 bits per channel"):
            FredholmImageProcessor(**options)(picture)
    with pytest.raises(OptionError, match="images: expected pictures of 2 pixels or more"):
        FredholmImageProcessor(**covering)(Image.new("RGB", (1, 1)))
