"""Data sets from official layouts, from the embedded digits and from folders of pictures."""

from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.errors import DataError, OptionError, ShapeError
from fredholm.integral.registry import import_file
from fredholm.lab import data
from fredholm.lab.data import registry
from fredholm.lab.data.files import open_files
from fredholm.lab.data.kinds.picture_files import read_picture, read_plain
from tests.lab.data.fixtures import (
    cifar_arrays,
    idx_arrays,
    idx_bytes,
    write_cifar_binary,
    write_cifar_png,
    write_idx,
    write_image_folder,
)

SPLITS = ("train", "val", "test")


def test_digits_splits_are_disjoint_complete_and_stratified():
    parts = {split: data.create_dataset("digits", split) for split in SPLITS}
    assert [len(part) for part in parts.values()] == [1259, 179, 359]
    rows = {
        split: {tuple(image.flatten().tolist()) for image in part.images}
        for split, part in parts.items()
    }
    assert not rows["train"] & rows["test"]
    assert not rows["train"] & rows["val"]
    assert not rows["val"] & rows["test"]
    for part in parts.values():
        shares = torch.bincount(part.labels, minlength=10) / len(part)
        assert (shares - 0.1).abs().max() < 0.01
    assert torch.equal(parts["val"].images, data.create_dataset("digits", "val").images)


def test_pixels_and_constants_of_digits_are_correct():
    train = data.create_dataset("digits", "train")
    assert train.images.dtype == torch.uint8
    assert train.images.shape == (1259, 1, 8, 8)
    levels = train.images.unique()
    assert torch.equal(levels, (torch.arange(17) * 255 / 16).round().byte())
    pixels = train.images.double() / 255
    assert (round(float(pixels.mean()), 4), round(float(pixels.std()), 4)) == (
        train.mean[0],
        train.std[0],
    )
    batch, _ = train.batch(torch.arange(len(train)))
    assert abs(float(batch.mean())) < 1e-3
    assert abs(float(batch.std()) - 1) < 1e-3


def test_items_and_batches_agree():
    train = data.create_dataset("digits", "train")
    images, labels = train.batch([5, -1, 5])
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    for row, index in enumerate((5, -1, 5)):
        image, label = train[index]
        assert torch.equal(image, images[row])
        assert label == labels[row]
    expected = (train.images[5].double() / 255 - train.mean[0]) / train.std[0]
    assert torch.allclose(images[0].double(), expected, atol=1e-6)
    with pytest.raises(IndexError, match="less than the 1259 samples"):
        train[1259]
    assert len(list(train)) == len(train)


def test_torchs_dataloader_accepts_a_data_set():
    images, labels = next(
        iter(torch.utils.data.DataLoader(data.create_dataset("digits", "test"), batch_size=4))
    )
    assert images.shape == (4, 1, 8, 8)
    assert labels.shape == (4,)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("zipped", [False, True])
def test_a_users_idx_folder_is_read(tmp_path, name, zipped):
    folder = write_idx(tmp_path / "mine" / "raw", zipped=zipped).parent
    test = data.create_dataset(name, "test", path=folder)
    images, labels = idx_arrays(20, 1)
    assert np.array_equal(test.images[:, 0].numpy(), images)
    assert np.array_equal(test.labels.numpy(), labels)
    train, val = (
        data.create_dataset(name, split, path=folder, val_fraction=0.25)
        for split in ("train", "val")
    )
    assert (len(train), len(val)) == (30, 10)
    assert torch.bincount(val.labels).tolist() == [1] * 10
    every = {tuple(x.flatten().tolist()) for x in torch.cat([train.images, val.images])}
    assert every == {tuple(x.flatten().tolist()) for x in idx_arrays(40, 0)[0]}
    assert len(data.create_dataset(name, "train", path=folder, val_fraction=0)) == 40


@pytest.mark.parametrize(
    ("victim", "content", "message"),
    [
        ("t10k-labels-idx1-ubyte", None, "got no t10k-labels-idx1-ubyte"),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.zeros(19)), "got 20 images and 19 labels"),
        (
            "t10k-labels-idx1-ubyte",
            idx_bytes(np.full(20, 10)),
            "expected labels from 0 to 9, got 10",
        ),
        ("t10k-labels-idx1-ubyte", idx_bytes(np.zeros((20, 2))), "of 1 dimensions, got 2"),
        ("t10k-images-idx3-ubyte", idx_bytes(np.zeros((20, 6, 6)))[:-7], "truncated"),
    ],
)
def test_damaged_idx_folders_are_refused(tmp_path, victim, content, message):
    folder = write_idx(tmp_path / "mine")
    if content is None:
        (folder / victim).unlink()
    else:
        (folder / victim).write_bytes(content)
    with pytest.raises(DataError, match=message):
        data.create_dataset("mnist", "test", path=folder)


def test_an_empty_set_is_refused(tmp_path):
    with pytest.raises(DataError, match="expected at least one image"):
        data.create_dataset("mnist", "test", path=write_idx(tmp_path / "mine", test=0))


@pytest.mark.parametrize("write", [write_cifar_binary, write_cifar_png])
def test_a_users_cifar_folder_is_read(tmp_path, write):
    folder = write(tmp_path / "cifar-10-batches-bin")
    path = tmp_path if write is write_cifar_binary else folder
    train, test = (
        data.create_dataset("cifar10", split, path=path, val_fraction=0)
        for split in ("train", "test")
    )
    assert len(train) == 100
    assert np.array_equal(test.images.numpy(), cifar_arrays("test_batch")[0])
    assert np.array_equal(train.images[:20].numpy(), cifar_arrays("data_batch_1")[0])
    assert np.array_equal(train.labels[20:40].numpy(), cifar_arrays("data_batch_2")[1])


def test_cifar_without_a_batch_is_refused(tmp_path):
    for write, suffix, message in (
        (write_cifar_binary, "bin", "cannot be read"),
        (write_cifar_png, "png", "no such file"),
    ):
        folder = write(tmp_path / suffix)
        (folder / f"data_batch_3.{suffix}").unlink()
        with pytest.raises(DataError, match=rf"data_batch_3\.{suffix}: {message}"):
            data.create_dataset("cifar10", "train", path=folder)


def test_pickled_cifar_is_refused_without_unpickling(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "exploded"), "w"))

    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    for name in ("data_batch_1", "test_batch"):
        (folder / name).write_bytes(pickle.dumps(Bomb()))
    for split in ("train", "test"):
        with pytest.raises(DataError, match=r"binary version.*pickles can run code"):
            data.create_dataset("cifar10", split, path=tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_images_are_resized(tmp_path):
    folder = write_idx(tmp_path / "mine")
    for size, shape in ((9, (9, 9)), ((4, 12), (4, 12)), (6, (6, 6))):
        resized = data.create_dataset("mnist", "test", path=folder, image_size=size)
        assert resized.images.shape == (20, 1, *shape)
        assert resized.images.dtype == torch.uint8
    assert torch.equal(resized.images, data.create_dataset("mnist", "test", path=folder).images)


@pytest.mark.parametrize("size", [0, -3, (4, 0)])
def test_wrong_image_sizes_are_refused(size):
    with pytest.raises(OptionError, match="image_size: expected a positive integer"):
        data.create_dataset("digits", "train", image_size=size)


def test_unknown_names_and_options_are_refused(tmp_path):
    with pytest.raises(OptionError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        data.create_dataset("cifar", "train")
    with pytest.raises(OptionError, match=r"split: expected .*, got 'valid'"):
        data.create_dataset("digits", "valid")
    with pytest.raises(OptionError, match=r"val_fraction: expected .*, got nan"):
        data.create_dataset("digits", "train", val_fraction=float("nan"))
    with pytest.raises(OptionError, match="in split 'val', got none with val_fraction=0"):
        data.create_dataset("digits", "val", val_fraction=0)
    with pytest.raises(OptionError, match="path: expected none for digits"):
        data.create_dataset("digits", "train", path=tmp_path)
    with pytest.raises(DataError, match="which is not a folder"):
        data.create_dataset("mnist", "train", path=tmp_path / "none")
    with pytest.raises(
        DataError,
        match="fix: `fredholm data fetch mnist`, or put the original files there: the four idx",
    ):
        data.create_dataset("mnist", "train", root=tmp_path)


def test_mismatched_arrays_are_refused():
    images, labels = torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.long)

    def make(x=images, y=labels, **constants):
        return data.ArrayDataset(
            "x", "train", x, y, ("a",), **({"mean": (0.5,), "std": (0.5,)} | constants)
        )

    assert len(make()) == 3
    for wrong in (images.float(), images[0], images[:, 0]):
        with pytest.raises(ShapeError, match="images: expected"):
            make(wrong)
    for wrong in (labels[:2], labels.float()):
        with pytest.raises(ShapeError, match="labels: expected"):
            make(y=wrong)
    with pytest.raises(DataError, match="labels: expected class"):
        make(y=labels + 1)
    for bad in ((0.0,), (float("nan"),)):
        with pytest.raises(DataError, match="std above 0"):
            make(std=bad)
    with pytest.raises(ShapeError, match="one value for each of 1 channels"):
        make(mean=(0.1, 0.2))


def test_a_folder_without_test_uses_validation_as_test(tmp_path):
    folder = write_image_folder(tmp_path / "pictures")
    sets = {
        s: data.create_dataset("image-folder", s, path=folder, image_size=(8, 10), val_fraction=0.2)
        for s in SPLITS
    }
    assert {s: len(d) for s, d in sets.items()} == {"train": 16, "val": 4, "test": 20}
    assert not set(sets["train"].files) & set(sets["val"].files)
    assert {file.parent.parent.name for file in sets["test"].files} == {"val"}
    assert torch.bincount(sets["val"].labels).tolist() == [2, 2]
    assert sets["train"].classes == ("cat", "dog")
    images, labels = sets["train"].raw([0, 15])
    assert images.shape == (2, 3, 8, 10)
    assert labels.tolist() == [0, 1]
    assert images[0, 0].unique().item() == 0
    assert images[1, 0].unique().item() == 100
    batch, _ = sets["train"].batch([0, 15])
    assert torch.allclose(batch[1, 0], torch.tensor((100 / 255 - 0.485) / 0.229))
    assert torch.equal(pickle.loads(pickle.dumps(sets["train"])).raw([0, 15])[0], images)


def test_a_folder_with_three_splits_is_read(tmp_path):
    folder = write_image_folder(tmp_path / "pictures", parts=SPLITS)
    for split in SPLITS:
        part = data.create_dataset("image-folder", split, path=folder, image_size=8)
        assert len(part) == 20
        assert {file.parent.parent.name for file in part.files} == {split}
    with pytest.raises(OptionError, match="val_fraction: expected none"):
        data.create_dataset("image-folder", "val", path=folder, image_size=8, val_fraction=0.1)


def test_pictures_are_resized_and_cropped_at_the_centre(tmp_path):
    pixels = np.zeros((40, 120, 3), np.uint8)
    pixels[:, 40:80] = 255  # the middle square
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    assert read_picture(tmp_path / "wide.png", (20, 20))[:, :, 2:-2].unique().item() == 255
    assert read_picture(tmp_path / "wide.png", (10, 30)).float().mean() < 100
    Image.fromarray(pixels[..., 0]).convert("L").save(tmp_path / "grey.png")
    assert read_picture(tmp_path / "grey.png", (20, 20)).shape == (3, 20, 20)


def test_wrong_image_folders_are_refused(tmp_path):
    def create(folder, split="train", **options):
        return data.create_dataset(
            "image-folder", split, path=folder, **({"image_size": 8} | options)
        )

    folder = write_image_folder(tmp_path / "pictures")
    with pytest.raises(OptionError, match="expected path"):
        data.create_dataset("image-folder", "train", image_size=8)
    with pytest.raises(OptionError, match="expected image_size"):
        create(folder, image_size=None)
    with pytest.raises(DataError, match=r"train: expected train/<class>/\*\.png"):
        create(tmp_path)
    with pytest.raises(DataError, match="got no val/"):
        create(write_image_folder(tmp_path / "only", parts=("train",)))
    with pytest.raises(DataError, match=r"expected two classes .*, got 1"):
        create(write_image_folder(tmp_path / "one", classes=("cat",)))
    (folder / "val" / "horse").mkdir()
    with pytest.raises(DataError, match="classes of train/, got 'horse' as well"):
        create(folder, "test")
    (folder / "val" / "horse").rmdir()
    for part in ("train", "val"):
        (folder / part / "empty").mkdir()
    with pytest.raises(DataError, match="empty: expected pictures"):
        create(folder)


def flat(root: Path) -> None:
    """Flatten ``val/`` as in ImageNet's archive: every picture in one folder."""
    for path in sorted((root / "val").rglob("*.png")):
        path.rename(root / "val" / f"{path.parent.name}_{path.name}")
    for name in ("cat", "dog"):
        (root / "val" / name).rmdir()


def no_train(root: Path) -> None:
    """Replace train/ and val/ by class folders."""
    shutil.rmtree(root / "val")
    for name in ("cat", "dog"):
        (root / "train" / name).rename(root / name)
    (root / "train").rmdir()


FAULTS = {
    "no train": (
        no_train,
        r"pictures/train: expected train/.*got folders of pictures such as cat/",
    ),
    "flat val": (flat, r"pictures/val: .*/cat_0\.png, got 20 pictures beside 0 class"),
    "beside": (
        lambda root: shutil.copy(root / "val/cat/0.png", root / "train/a.png"),
        r"train: .*/a\.png, got 1 pictures beside 2 class folders",
    ),
    "class not in val": (
        lambda root: shutil.rmtree(root / "val/dog"),
        r"pictures/val: expected the classes of train/, got no 'dog'; put pictures",
    ),
    "class without test pictures": (
        lambda root: [path.unlink() for path in (root / "val/dog").iterdir()],
        r"val/dog: expected pictures",
    ),
    "one pixel": (
        lambda root: Image.new("RGB", (1, 1)).save(root / "train/dog/3.png"),
        r"train/dog/3\.png: expected a picture of 2 pixels or more",
    ),
    "one pixel in the test set": (
        lambda root: Image.new("RGB", (1, 1)).save(root / "val/dog/0.png"),
        r"val/dog/0\.png: expected a picture of 2 pixels or more",
    ),
    "nothing to validate with": (
        lambda root: [p.unlink() for p in (root / "train").rglob("*.png") if p.stem > "2"],
        r"train: .* at val_fraction=0\.1, got 6 of 2 classes",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_damaged_image_folders_are_refused_before_training(name, tmp_path):
    """Creating the training split, which comes first, already detects damage elsewhere."""
    change, message = FAULTS[name]
    folder = write_image_folder(tmp_path / "pictures")
    change(folder)
    with pytest.raises(DataError, match=message):
        data.create_dataset("image-folder", "train", path=folder, image_size=8)


def test_a_picture_of_one_pixel_is_refused_on_reading(tmp_path):
    Image.new("RGB", (1, 1)).save(tmp_path / "dot.png")
    with pytest.raises(DataError, match=r"dot\.png: expected a picture of 2 pixels or more"):
        read_picture(tmp_path / "dot.png", (8, 8))


def test_a_damaged_picture_is_named(tmp_path):
    folder = write_image_folder(tmp_path / "pictures")
    victim = folder / "train" / "dog" / "7.png"
    dataset = data.create_dataset(
        "image-folder", "train", path=folder, image_size=8, val_fraction=0
    )
    for content in (victim.read_bytes()[:60], b"no picture", b""):
        victim.write_bytes(content)
        with pytest.raises(DataError, match=r"dog/7\.png: not a readable picture"):
            dataset.batch(range(20))


def test_every_entry_has_a_description(tmp_path):
    names = {"digits", "mnist", "image-folder", "movie-reviews", "copy-memory", "plaid"}
    assert names < set(data.list_datasets())
    assert data.list_datasets() == sorted(data.list_datasets())
    for name in data.list_datasets():
        row = data.describe(name, tmp_path)
        assert row["source"]
        assert row["licence_package"]
        assert row["licence_data"]
        if "yours" in row["size"]:
            assert row["state"] == "your folder"
        entry = data.get_entry(name)
        if entry.package is not None:
            assert row["state"] == "not fetched"
            assert row["fetched"] is False
            assert all(version in row["source"] for version in row["version"].split())
            assert row["path"] == str(tmp_path / name)
            assert all(len(file.sha256) == 64 and file.bytes > 0 for file in entry.package.files)
    with pytest.raises(OptionError, match="is taken"):
        data.register_dataset(replace(data.get_entry("mnist"), title="another"))


def test_a_file_that_registers_a_data_set_can_run_twice(tmp_path, monkeypatch):
    """Its functions are new objects with the same definition."""
    others = {name: entry for name, entry in registry.DATASETS.items() if name != "ragged"}
    monkeypatch.setattr(registry.DATASETS, "_entries", others)
    source = Path(__file__).parents[1] / "training" / "ragged.py"
    file = tmp_path / "ragged_again.py"
    file.write_text(source.read_text())
    import_file(file)
    first = data.get_entry("ragged")
    file.write_text(source.read_text() + "# a remark\n")
    import_file(file)
    assert data.get_entry("ragged") is not first
    file.write_text(source.read_text().replace("Signs of some points", "Another title"))
    with pytest.raises(OptionError, match="is taken"):
        import_file(file)


def test_the_data_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("FREDHOLM_DATA", str(tmp_path))
    assert data.dataset_path("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("FREDHOLM_DATA")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert (
        data.dataset_path("mnist") == tmp_path / "home" / ".cache" / "fredholm" / "data" / "mnist"
    )


@pytest.mark.parametrize("mode", ["I;16", "I"])
def test_pictures_of_16_bits_keep_their_precision(tmp_path, mode):
    ramp = np.linspace(0, 65_535, 16).round().astype(np.uint16).repeat(16).reshape(16, 16)
    pixels = ramp if mode == "I;16" else ramp.astype(np.int32)
    file = tmp_path / ("ramp.png" if mode == "I;16" else "ramp.tif")
    Image.fromarray(pixels).save(file)
    with Image.open(file) as opened:
        assert opened.mode == mode
    wanted = torch.arange(0, 256, 17)
    assert torch.equal(read_picture(file, (16, 16))[0, :, 0].long(), wanted)
    for channels in (1, 3):
        plain = read_plain(file, channels, (16, 16))
        assert plain.shape[0] == channels
        assert torch.equal((plain[0, :, 0] * 255).round().long(), wanted)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_rotated_by_their_exif_orientation(tmp_path, orientation):
    upright = np.zeros((12, 16), np.uint8)
    upright[:4, :6], upright[8:, :6] = 255, 120  # no symmetry: light above, grey below, at the left
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1],
        5: upright.T, 6: upright.T[::-1], 7: upright.T[::-1, ::-1], 8: upright.T[:, ::-1],
    }[orientation]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / "photo.png"
    Image.fromarray(np.ascontiguousarray(stored)).save(file, exif=exif)
    assert torch.equal(read_picture(file, (12, 16))[0], torch.from_numpy(upright))
    plain = (read_plain(file, 1, (12, 16))[0] * 255).round().byte()
    assert torch.equal(plain, torch.from_numpy(upright))
    for label in "ab":
        for number in range(6):
            place = tmp_path / "set" / label / f"{number}.png"
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    assert open_files(tmp_path / "set").image_size == (12, 16)


@pytest.mark.parametrize(
    "pixels", [np.full((4, 4), 0.5, np.float32), np.full((4, 4), 1 << 20, np.int32)]
)
def test_pictures_of_unknown_range_are_refused(tmp_path, pixels):
    file = tmp_path / "odd.tif"
    Image.fromarray(pixels).save(file)
    for read in (lambda: read_picture(file, (4, 4)), lambda: read_plain(file, 1, (4, 4))):
        with pytest.raises(DataError, match="8 or 16 bits"):
            read()
