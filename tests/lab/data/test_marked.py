"""Pictures with known objects: stamps on canvases, crowns of trees in photographs."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pytest
import torch
from evidence.datasets import stamps_canvas, tree_crowns
from evidence.datasets.stamps_canvas import (
    CLASSES,
    STORED,
    StampOptions,
    compose,
    cut_out,
)
from PIL import Image

from fredholm.errors import DataError, OptionError
from fredholm.lab import data
from fredholm.lab.data import clients


def stamp(colour: tuple[int, int, int], size=(60, 40), holes: int = 0) -> bytes:
    """Return a rectangle of one colour on transparency; the bits of ``holes`` select which of its
    sixteen parts are missing.
    """
    pixels = np.zeros((size[1] + 8, size[0] + 12, 4), dtype=np.uint8)
    height, width = size[1] // 4, size[0] // 4
    for bit in range(16):
        if not holes >> bit & 1:
            top, left = 4 + height * (bit // 4), 6 + width * (bit % 4)
            pixels[top : top + height, left : left + width] = (*colour, 255)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Write twelve stamps of each of three classes, with individual brightness."""
    for place, name in enumerate(CLASSES[:3]):
        (tmp_path / name / "deep").mkdir(parents=True)
        for i in range(12):
            colour = (100 + 10 * i, 40 * place, 250)
            # Each has its own outline, including its corners.
            content = stamp(colour, holes=(1 + 36 * (12 * place + i)) << 1 & 0x6FF6)
            (tmp_path / name / "deep" / f"{'abcdefghijkl'[i]}.png").write_bytes(content)
    return tmp_path


def canvas(folder, split="train", **given):
    options = {"clutter": 3} | given.pop("options", {})
    return data.create_dataset("stamps-canvas", split, path=folder, options=options, **given)


def test_a_stamp_is_cropped_completely_and_keeps_its_aspect():
    found = cut_out(stamp((200, 100, 50), holes=0b0000_0000_0011_0011), "a")
    assert found is not None
    assert found.shape == (4, STORED, STORED)
    opaque = found[3] > 127
    rows, columns = np.nonzero(opaque.any(1))[0], np.nonzero(opaque.any(0))[0]
    assert (np.ptp(rows) + 1, np.ptp(columns) + 1) == (64, 96), "two to three, the longer side 96"
    assert opaque.sum() == pytest.approx(0.75 * 64 * 96, rel=0.02)
    assert np.median(found[0][found[3] == 255]) == 200
    assert cut_out(stamp((1, 2, 3), size=(20, 20), holes=2), "small") is None
    assert cut_out(stamp((1, 2, 3)), "a rectangle has no outline of its own") is None
    empty = io.BytesIO()
    Image.new("RGBA", (50, 50)).save(empty, "png")
    assert cut_out(empty.getvalue(), "nothing") is None
    with pytest.raises(DataError, match="x: not a readable picture"):
        cut_out(b"no picture", "x")


def test_a_canvas_shows_the_stamp_at_its_mask(folder):
    found = canvas(folder, image_size=64, options={"share": 0.5})
    index = torch.arange(len(found))
    images, labels = found.raw(index)
    masks, boxes = found.masks(index), found.masks(index, "box")
    assert images.shape == (len(found), 3, 64, 64)
    for picture, label, mask, box in zip(images, labels, masks, boxes):
        red, green, blue = (picture[channel][mask].float() for channel in range(3))
        # At its edges a stamp is blended with the background.
        assert green.median() == 40 * label
        assert blue.median() == 250
        assert (red.median() - 100) % 10 == 0
        sides = box.any(1).sum().item(), box.any(0).sum().item()
        assert sides in {(21, 32), (22, 32)}
        assert mask.sum() < box.sum()
    assert len({tuple(mask.nonzero()[0].tolist()) for mask in masks}) > len(found) // 2


def test_a_canvas_depends_only_on_its_index(folder):
    found = canvas(folder, image_size=48)
    whole = found.raw(torch.arange(len(found)))[0]
    assert found.raw([5, -1, 3])[0].equal(whole[[5, len(found) - 1, 3]])
    assert canvas(folder, image_size=48).raw([4])[0].equal(whole[[4]])
    assert not canvas(folder, image_size=48, options={"seed": 1}).raw([4])[0].equal(whole[[4]])
    assert found.masks([2])[0].equal(found.masks(torch.arange(6))[2])
    more = canvas(folder, image_size=48, options={"train": 3 * len(found)})
    again = torch.tensor([1, 1 + len(found)])
    assert more.labels[again].unique().numel() == 1
    assert canvas(folder, options={"train": 8}).labels.unique().numel() > 1, "of all classes"
    assert not more.masks(again)[0].equal(more.masks(again)[1]), "the same stamp elsewhere"
    assert found.raw([])[0].shape == (0, 3, 48, 48)


def test_fragments_lie_below_the_stamp_and_come_from_others():
    stamps = torch.zeros(2, 4, 8, 8, dtype=torch.uint8)
    stamps[:, 3], stamps[0, 0], stamps[1, 1] = 255, 255, 255
    index = torch.arange(20)
    options = StampOptions(clutter=8, share=0.5)
    images, masks = compose(stamps, index % 2, index, (30, 40), options, 3, 0)
    for i in range(20):
        assert (images[i, i % 2][masks[i]] == 255).all()
        assert (images[i, 1 - i % 2][masks[i]] == 0).all()
    pure = (images[:, 0] == 255) & (images[:, 1] == 0) & (images[:, 2] == 0)
    assert (pure & ~masks).any()


def outline(*corners: tuple[int, int]) -> np.ndarray:
    """Return a stamp that is opaque in some squares of 24 pixels."""
    found = np.zeros((4, STORED, STORED), dtype=np.uint8)
    for row, column in corners:
        found[3, 24 * row : 24 * row + 24, 24 * column : 24 * column + 24] = 255
    return found


def test_similar_stamps_stay_in_one_split(folder):
    noise = np.random.default_rng(1)
    letters = "abcdefghijklmnopqrst"
    names = [f"town/{a}{b}.png" for a in letters for b in letters]
    stamps = [outline(*zip(*np.nonzero(noise.random((4, 4)) < 0.5))) for _ in names]
    one, mirrored = outline((0, 0), (1, 1), (1, 2)), outline((0, 3), (1, 2), (1, 1))
    other = outline((3, 3), (3, 2), (2, 2), (0, 1))
    names += ["animals/x1.png", "animals/x2.png", "food/y.png", "food/y_mirror.png"]
    stamps += [outline((0, 0)), outline((0, 1), (2, 2)), one, other]
    names += ["plants/q.png", "plants/z.png"]
    stamps += [one, mirrored]
    found = stamps_canvas.parts_of(names, np.stack(stamps))
    parts = dict(zip(names, found))
    assert parts["animals/x1.png"] == parts["animals/x2.png"], "numbers"
    alike = {parts[f"{name}.png"] for name in ("food/y", "food/y_mirror", "plants/q", "plants/z")}
    assert len(alike) == 1, "by name, by outline, and by what is alike to either"
    assert 0.12 < found.count(2) / len(names) < 0.28
    assert 0.05 < found.count(1) / len(names) < 0.16
    order = np.random.default_rng(0).permutation(len(names))
    shuffled = [names[i] for i in order]
    again = stamps_canvas.parts_of(shuffled, np.stack(stamps)[order])
    assert dict(zip(shuffled, again)) == parts
    sizes = [len(canvas(folder, split, image_size=32)) for split in ("train", "val", "test")]
    assert sum(sizes) == 36


def test_the_package_is_read_once_and_equals_its_folder(folder, tmp_path_factory, monkeypatch):
    archive = tmp_path_factory.mktemp("a") / "stamps.tar"
    with tarfile.open(archive, "w") as tar:
        for path in sorted(folder.rglob("*.png")):
            tar.add(path, f"./usr/share/tuxpaint/stamps/{path.relative_to(folder)}")
        for name in ("./usr/share/tuxpaint/stamps/animals/a.txt", "./usr/share/doc/logo.png"):
            member = tarfile.TarInfo(name)
            tar.addfile(member, io.BytesIO())
    monkeypatch.setattr(stamps_canvas, "tar_stream", lambda path, client: tarfile.open(path))  # noqa: SIM115
    made = tmp_path_factory.mktemp("made")
    counted = []
    stamps_canvas.derive(archive, made, counted.append)
    assert sum(counted) == 36 * 4 * STORED**2
    index = torch.arange(5)
    one, other = (canvas(place, image_size=40).raw(index)[0] for place in (made, folder))
    assert one.equal(other)
    (made / "names.txt").write_text("one\n")
    with pytest.raises(DataError, match="fetch stamps-canvas again"):
        canvas(made)
    (made / "names.txt").write_text("nowhere/a.png\n" * 36)
    with pytest.raises(DataError, match="fetch stamps-canvas again"):
        canvas(made)
    (made / "stamps.npy").write_bytes(b"cut off")
    with pytest.raises(DataError, match="expected stored stamps, got none"):
        canvas(made)
    with tarfile.open(archive, "w"):
        pass
    with pytest.raises(DataError, match="it is another package"):
        stamps_canvas.derive(archive, made, counted.append)
    assert clients.APT.name == "apt"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clutter": -1}, "clutter: expected an integer of 0 or more, got -1"),
        ({"share": 0.0}, r"share: expected a number in \[0.05, 1\], got 0\.0"),
        ({"test": True}, "test: expected an integer of 0 or more, got True"),
        ({"share": True}, "share: expected a number in .*, got True"),
        ({"seed": -1}, "seed: expected an integer of 0 or more, got -1"),
        ({"shar": 0.5}, "did you mean 'share'"),
    ],
)
def test_wrong_options_of_canvases_are_refused(options, message, folder):
    with pytest.raises(OptionError, match=message):
        canvas(folder, options=options)


def test_a_folder_without_stamps_is_refused(tmp_path):
    (tmp_path / "animals").mkdir()
    with pytest.raises(DataError, match="expected the folders animals, food"):
        canvas(tmp_path)


def test_the_real_data_match_their_description():
    for name, sizes in (
        ("stamps-canvas", {"train": 497, "val": 60, "test": 117}),
        ("tree-crowns", {"test": 123}),
    ):
        if data.describe(name)["state"] != "fetched":
            pytest.skip(f"{name} is not here: fredholm data fetch {name}")
        found = {split: data.create_dataset(name, split) for split in sizes}
        assert {split: len(one) for split, one in found.items()} == sizes
        first = next(iter(found.values()))
        pixels = first.raw(torch.arange(len(first)))[0].double() / 255
        entry = data.get_entry(name)
        assert pixels.mean((0, 2, 3)).tolist() == pytest.approx(entry.mean, abs=1e-4)
        assert pixels.std((0, 2, 3)).tolist() == pytest.approx(entry.std, abs=1e-4)


# --- trees ----------------------------------------------------------------------------------------


def annotation(size: tuple[int, int], boxes) -> str:
    objects = "".join(
        "<object><name>Tree</name><bndbox>"
        + "".join(f"<{k}>{v}</{k}>" for k, v in zip(("xmin", "ymin", "xmax", "ymax"), box))
        + "</bndbox></object>"
        for box in boxes
    )
    width, height = size
    sides = f"<size><width>{width}</width><height>{height}</height></size>"
    return f"<annotation>{sides}{objects}</annotation>"


@pytest.fixture
def photographs(tmp_path):
    for place, name in enumerate(tree_crowns.PHOTOGRAPHS):
        picture = np.full((50, 70, 3), 60 * place, dtype=np.uint8)
        picture[10:20, 30:50] = 255
        Image.fromarray(picture).save(tmp_path / f"{name}.png")
        (tmp_path / f"{name}.xml").write_text(annotation((70, 50), [(30, 10, 50, 20)]))
    return tmp_path


def test_tiles_contain_their_boxes(photographs):
    found = data.create_dataset("tree-crowns", "test", path=photographs, image_size=(25, 35))
    assert len(found) == 8, "two of four tiles a photograph have a crown"
    index = torch.arange(8)
    images = found.raw(index)[0]
    boxes = found.masks(index, "box")
    assert found.masks(index) is None, "no pixel of a tree is known"
    assert (images.permute(0, 2, 3, 1)[boxes] == 255).all()
    assert boxes.sum((1, 2)).tolist() == [50, 150] * 4
    assert found.shown(index)["boxes"].equal(boxes)
    chosen = found.select(torch.tensor([3, 1]))
    assert chosen.masks([0], "box")[0].equal(boxes[3])


def test_pictures_of_trees_are_not_for_training(photographs):
    with pytest.raises(OptionError, match=r"split: expected test, .*got 'train'"):
        data.create_dataset("tree-crowns", "train", path=photographs)
    with pytest.raises(DataError, match="expected a side with a tile in the photographs"):
        data.create_dataset("tree-crowns", "test", path=photographs, image_size=100)
    next(photographs.glob("*.png")).write_bytes(b"")
    with pytest.raises(DataError, match="not a readable picture"):
        data.create_dataset("tree-crowns", "test", path=photographs, image_size=20)
