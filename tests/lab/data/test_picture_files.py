"""Pictures with 16 bits, transparency or frames, and unreadable files."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.data import create_dataset
from fredholm.errors import DataError, OptionError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.unlabelled import read_unlabelled
from fredholm.lab.data.kinds.kind import Page
from fredholm.training import evaluate, load_recipe, predict, train

SIDE = 8
COURSE = ["training.epochs=2", "model.body.dim=8", "model.body.depth=1", "model.body.heads=2"]


def folder_of(
    root: Path, make: Callable[[int, int], Any], suffix: str = ".png", count: int = 8
) -> Path:
    """Write pictures of two classes, one folder each; ``make(class, number)`` returns Pillow's."""
    for label in range(2):
        for number in range(count):
            place = root / "ab"[label] / f"{number}{suffix}"
            place.parent.mkdir(parents=True, exist_ok=True)
            make(label, number).save(place)
    return root


def depth(label: int, number: int, low: int = 1_000, step: int = 1) -> Any:
    rows = low + 8 * label + step * np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    return Image.fromarray(rows.astype(np.uint16))


def cut_out(label: int, number: int) -> Any:
    """Return pictures of one colour whose classes differ only in opacity."""
    pixels = np.full((SIDE, SIDE, 4), 120, np.uint8)
    pixels[..., 3] = 0
    half = slice(0, SIDE // 2) if label else slice(SIDE // 2, SIDE)
    pixels[half, :, 3] = 255
    return Image.fromarray(pixels, "RGBA")


def grey(label: int, number: int) -> Any:
    return Image.fromarray(np.full((SIDE, SIDE), 40 + 100 * label + number, np.uint8))


def test_pictures_of_16_bits_are_read_exactly(tmp_path):
    """Depth in millimetres: steps of one stay different, although a byte merges 257 of them."""
    source = open_files(folder_of(tmp_path / "set", depth))
    assert source.reading.pixels == "rgb16"
    samples = source.dataset("train")
    raw, _ = samples.raw(range(len(samples)))
    assert raw.dtype == torch.float32
    assert {image.unique().numel() for image in raw[:, 0]} == {SIDE * SIDE}
    images, _ = samples.batch(range(len(samples)))
    assert images.std() == pytest.approx(1, abs=0.2)
    assert images.mean() == pytest.approx(0, abs=0.2)
    levels = (raw * 65_535).round().long().unique()
    assert levels.min() >= 1_000
    assert levels.max() <= 1_000 + 8 + SIDE * SIDE


@pytest.mark.parametrize("make", [depth, grey], ids=["16 bits", "bytes"])
def test_a_report_gets_the_inputs_of_training(make, tmp_path):
    """Shares of white, of 16 bits, must not be taken as normalised already."""
    samples = open_files(folder_of(tmp_path / "set", make)).dataset("test")
    indices = torch.arange(len(samples))
    shown = samples.shown(indices)["inputs"]
    inputs, pictures = samples.kind.prepare(shown, Page(samples.mean, samples.std))
    torch.testing.assert_close(inputs, samples.batch(indices)[0])

    raw, _ = samples.raw(indices)
    if not raw.is_floating_point():
        raw = raw / 255
    expected = raw.permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(np.stack(pictures), expected, atol=1e-6)


def test_values_in_a_narrow_range_stay_different(tmp_path):
    root = folder_of(tmp_path / "set", lambda c, n: depth(c, n, low=200 + n, step=1))
    assert open_files(root).dataset("train").batch([0])[0].unique().numel() > 50


def test_transparency_becomes_a_fourth_channel(tmp_path):
    source = open_files(folder_of(tmp_path / "set", cut_out))
    assert source.reading.pixels == "rgba"
    samples = source.dataset("train")
    assert samples.encoder()["channels"] == 4
    raw, labels = samples.raw(range(len(samples)))
    first, second = (raw[labels == label].float().mean(0) for label in (0, 1))
    assert (first[3] - second[3]).abs().min() == 255
    assert not torch.equal(first, second)


def test_colours_of_transparent_pixels_are_ignored(tmp_path):
    def hidden(label: int, number: int) -> Any:
        pixels = np.full((SIDE, SIDE, 4), 90, np.uint8)
        pixels[:, :4] = (250 * label, 3, 200, 0)  # leftovers of a program
        pixels[:, 4:, 3] = 255
        return Image.fromarray(pixels, "RGBA")

    samples = open_files(folder_of(tmp_path / "set", hidden)).dataset("train")
    for size in (SIDE, 5):
        small = create_dataset("files", "train", path=tmp_path / "set", image_size=size)
        raw, _ = small.raw(range(len(samples)))
        assert torch.equal(raw, raw[:1].expand_as(raw))
        assert (raw[:, :3][raw[:, 3:].expand(-1, 3, -1, -1) == 0] == 0).all()


def test_transparent_colours_of_a_palette_are_read(tmp_path):
    def palette(label: int, number: int) -> Any:
        image = Image.new("P", (SIDE, SIDE), label)
        image.putpalette([10, 10, 10, 200, 200, 200])
        image.info["transparency"] = 0
        return image

    samples = open_files(folder_of(tmp_path / "set", palette)).dataset("train")
    raw, labels = samples.raw(range(len(samples)))
    assert (raw[:, 3].flatten(1).amax(1) > 0).tolist() == (labels == 1).tolist()


def test_ignored_frames_are_reported(tmp_path):
    root = folder_of(tmp_path / "set", grey, ".tif")
    frames = [grey(0, n) for n in range(3)]
    for name in ("a/0.tif", "b/1.tif"):
        frames[0].save(root / name, save_all=True, append_images=frames[1:])
    remarks = "\n".join(open_files(root).collection.remarks)
    assert "2 of 16 pictures have several frames, of which the first is read" in remarks
    assert str(root / "a" / "0.tif") in remarks
    assert str(root / "b" / "1.tif") in remarks


def test_information_lost_by_a_format_is_reported(tmp_path):
    mixed = folder_of(tmp_path / "set", cut_out)
    for number in range(3):
        depth(0, number).save(mixed / "a" / f"deep{number}.png")
    assert open_files(mixed).reading.pixels == "rgba16"
    assert not open_files(mixed).collection.remarks
    plain = open_files(mixed, {"pixels": "rgb"})
    said = "\n".join(plain.collection.remarks)
    assert "3 of 19 pictures have 16 bits per pixel, of which 8 are read" in said
    assert "16 of 19 pictures have transparent pixels, which are read as opaque" in said
    assert "data.options.pixels=rgba keeps" in said
    with pytest.raises(OptionError, match=r"pixels: expected one of .*, got 'cmyk'"):
        open_files(mixed, {"pixels": "cmyk"})


def test_reduced_16_bit_channels_are_reported(tmp_path):
    root = folder_of(tmp_path / "set", grey)
    (root / "a" / "wide.ppm").write_bytes(b"P6 2 2 65535\n" + bytes(range(24)))
    remarks = "\n".join(open_files(root).collection.remarks)
    assert (
        "1 of 17 pictures have 16 bits in each of several channels, of which 8 are read" in remarks
    )


# --- unreadable files -----------------------------------------------------------------------------


def broken(root: Path) -> list[Path]:
    """Write three unreadable files: truncated, damaged, and not a picture."""
    cut, damaged, words = (root / "a" / f"{name}.png" for name in ("cut", "damaged", "words"))
    content = (root / "a" / "0.png").read_bytes()
    cut.write_bytes(content[: len(content) // 2])
    middle = content.index(b"IDAT") + 6
    damaged.write_bytes(content[:middle] + b"\x00\xff" + content[middle + 2 :])
    words.write_text("no picture")
    return [cut, damaged, words]


@pytest.mark.parametrize("tabled", [False, True])
def test_unreadable_pictures_are_dropped_and_listed(tmp_path, tabled):
    root = folder_of(tmp_path / "set", grey)
    odd = broken(root)
    path = root
    if tabled:
        files = sorted(root.rglob("*.png"))
        lines = [f"{file.relative_to(tmp_path)},{file.parent.name}" for file in files]
        path = tmp_path / "table.csv"
        path.write_text("\n".join(["picture,label", *lines]))
    source = open_files(path)
    assert len(source.collection) == 16
    assert not set(odd) & {Path(file) for file in source.collection.samples}
    (said,) = [line for line in source.collection.remarks if "cannot be read" in line]
    assert said.startswith("3 of 19 files cannot be read and are left out (--strict refuses them)")
    assert all(str(file) in said for file in odd)
    for split in ("train", "val", "test"):
        samples: Any = source.dataset(split)
        samples.raw(range(len(samples)))
        for i, label in enumerate(samples.labels.tolist()):
            assert samples.files[i].parent.name == "ab"[label]
    with pytest.raises(DataError, match="not a readable picture"):
        open_files(path, {"strict": True})


def test_a_class_without_a_readable_file_is_refused(tmp_path):
    root = folder_of(tmp_path / "set", grey)
    (root / "c").mkdir()
    (root / "c" / "0.png").write_text("no picture")
    with pytest.raises(DataError, match="no file of the class 'c' can be read"):
        open_files(root)
    for file in (root / "a").iterdir():
        file.write_text("no picture")
    with pytest.raises(DataError, match="9 of 17 files cannot be read"):
        open_files(root)


def test_unreadable_clouds_and_sounds_are_dropped(tmp_path):
    wav = pytest.importorskip("scipy.io.wavfile")
    for label in "ab":
        for number in range(6):
            for kind in ("clouds", "sounds"):
                (tmp_path / kind / label).mkdir(parents=True, exist_ok=True)
            np.save(tmp_path / "clouds" / label / f"{number}.npy", np.random.rand(9, 3))
            wav.write(tmp_path / "sounds" / label / f"{number}.wav", 100, np.ones(50, np.int16))
    for kind, name in (("clouds", "x.npy"), ("sounds", "x.wav")):
        (tmp_path / kind / "a" / name).write_bytes(b"nothing")
        source = open_files(tmp_path / kind)
        assert len(source.collection) == 12
        assert any("1 of 13 files cannot be read" in line for line in source.collection.remarks)
        with pytest.raises(DataError, match=name):
            open_files(tmp_path / kind, {"strict": True})


@pytest.mark.slow
@pytest.mark.parametrize("make", [depth, cut_out])
def test_a_run_reads_pictures_in_its_format(make, tmp_path, capsys):
    root = folder_of(tmp_path / "set", make)
    odd = broken(root)
    train(load_recipe({"data": {"path": str(root)}}, COURSE), tmp_path / "run")
    assert evaluate(tmp_path / "run")["n"] > 0
    rows = predict(tmp_path / "run", [root])
    assert len(rows) == 16
    again = predict(tmp_path / "run", [Path(row["file"]) for row in rows] + odd)
    assert [row["file"] for row in again] == [row["file"] for row in rows]
    for one, other in zip(rows, again):
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)
    with pytest.raises(DataError, match=r"got none that can be read: .*not a readable picture"):
        predict(tmp_path / "run", odd)
    with pytest.raises(DataError, match="not a readable picture"):
        predict(tmp_path / "run", [root], strict=True)


def test_older_runs_still_read_bytes(tmp_path):
    """Runs saved before formats were recorded read three channels of any file."""
    folder_of(tmp_path / "set", cut_out)
    samples = create_dataset(
        "files", "train", path=tmp_path / "set", image_size=SIDE, options={"pixels": "rgb"}
    )
    facts = samples.describe()
    facts["source"]["reading"].pop("pixels")
    encoder = type("Encoder", (), {"input_shape": (3, SIDE, SIDE)})
    found = read_unlabelled([tmp_path / "set" / "a" / "0.png"], facts, encoder)
    assert found.batch([0]).shape == (1, 3, SIDE, SIDE)


def test_a_picture_is_read_from_standard_input(tmp_path, monkeypatch):
    root = folder_of(tmp_path / "set", grey)
    facts = open_files(root).dataset("train", image_size=(SIDE, SIDE)).describe()
    encoder = SimpleNamespace(input_shape=(3, SIDE, SIDE))
    content = (root / "b" / "3.png").read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(content)))
    given = read_unlabelled(["-"], facts, encoder)
    assert given.places == [{"file": "standard input"}]
    expected = read_unlabelled([root / "b" / "3.png"], facts, encoder)
    assert torch.equal(given.batch([0]), expected.batch([0]))
