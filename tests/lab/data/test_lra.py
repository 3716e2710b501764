"""Data of the Long Range Arena: generators against independent implementations, and loaders of
official files.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest
import torch
from evidence.datasets import kjv_web, listops, pathfinder
from evidence.datasets.kjv_web_sword import read_module
from evidence.datasets.listops import END, SYMBOLS, ListOpsOptions, expression, value_of
from evidence.datasets.pathfinder import (
    CLEARANCE,
    GAP,
    SIDE,
    PathfinderOptions,
    distances,
    draw,
    scene,
)
from PIL import Image

from fredholm.data import Rows, create_dataset, image_tokens
from fredholm.errors import DataError, OptionError

SHORT = ListOpsOptions(min_length=4, max_length=80, max_depth=5, max_args=5)


def by_rewriting(text: str) -> int:
    """Return the value by replacing innermost lists with their values, without a stack."""
    rules = {
        "[MIN": min,
        "[MAX": max,
        "[MED": lambda values: int(np.median(values)),
        "[SM": lambda values: sum(values) % 10,
    }
    words = text.split()
    while len(words) > 1:
        end = words.index("]")
        start = max(i for i in range(end) if words[i] in rules)
        value = rules[words[start]]([int(word) for word in words[start + 1 : end]])
        words[start : end + 1] = [str(value)]
    return int(words[0])


def test_listops_values_equal_two_other_evaluators():
    found = [expression(SHORT, "train", i) for i in range(300)]
    for symbols, value in found:
        assert value == value_of(symbols) == by_rewriting(" ".join(SYMBOLS[s] for s in symbols))
        assert 4 < len(symbols) < 80
        assert symbols[-1] == END
    assert {value for _, value in found} == set(range(10))
    assert {s for symbols, _ in found for s in symbols} == set(range(15))


def test_listops_respects_its_limits_and_splits_are_disjoint():
    def depth(symbols):
        open_lists = np.cumsum([(s in listops.OPERATIONS) - (s == END) for s in symbols])
        return int(open_lists.max()) + 1

    found = {
        split: [tuple(expression(SHORT, split, i)[0]) for i in range(200)]
        for split in ("train", "val", "test")
    }
    assert max(depth(symbols) for symbols in found["train"]) == SHORT.max_depth
    for a, b in (("train", "val"), ("train", "test"), ("val", "test")):
        assert not set(found[a]) & set(found[b])
    long = expression(ListOpsOptions(), "train", 0)[0]
    assert 500 < len(long) < 2000


def test_listops_depends_only_on_its_options(tmp_path):
    options = {
        "min_length": 4,
        "max_length": 40,
        "max_depth": 4,
        "max_args": 4,
        "train": 20,
        "val": 5,
        "test": 5,
    }
    first = create_dataset("listops", "train", root=tmp_path / "a", options=options)
    again = create_dataset(
        "listops", "train", root=tmp_path / "a", options=options
    )  # read instead of generated
    other = create_dataset(
        "listops", "train", root=tmp_path / "b", options={**options, "train": 12}
    )
    numbers, labels = first.batch(range(12))
    assert torch.equal(numbers, again.batch(range(12))[0])
    assert torch.equal(numbers, other.batch(range(12))[0])
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) <= 15
    for row, label in zip(numbers, labels):
        assert value_of((row[row > 0] - 1).tolist()) == int(label)
    (kept,) = (tmp_path / "a" / "listops").glob("*.safetensors")
    kept.write_bytes(b"broken")
    with pytest.raises(DataError, match="delete it"):
        create_dataset("listops", "train", root=tmp_path / "a", options=options)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_depth": 3, "max_args": 2, "min_length": 20},
        {"max_args": 1},
        {"min_length": 1999},
        {"train": 0},
    ],
    ids=str,
)
def test_wrong_listops_options_are_refused(wrong):
    with pytest.raises(OptionError):
        create_dataset("listops", "train", options=wrong)


def test_broken_expressions_are_refused():
    for text in ("]", "[MAX ]", "[MAX 1", "1 2", "[MAX 1 ] ]"):
        with pytest.raises(DataError):
            value_of([SYMBOLS.index(word) for word in text.split()])


def test_official_listops_files_are_read_and_checked(tmp_path):
    text = (
        "Source\tTarget\n( ( ( [MAX 2 ) 9 ) ] )\t9\n"
        "( ( ( ( [SM 7 ) 1 ) ( ( ( [MED 3 ) 6 ) ] ) ) ] )\t2\n"
    )
    for name in listops.FILES.values():
        (tmp_path / name).write_text(text)
    data = create_dataset("lra-listops", "val", path=tmp_path)
    numbers, labels = data.batch([0, 1])
    assert labels.tolist() == [9, 2]
    assert data.max_length == 2000
    assert [SYMBOLS[i - 1] for i in numbers[1].tolist()] == [
        "[SM",
        "7",
        "1",
        "[MED",
        "3",
        "6",
        "]",
        "]",
    ]
    (tmp_path / "basic_val.tsv").write_text(text.replace("\t9", "\t8"))
    with pytest.raises(DataError, match=r"line 2: expected the value ., got 8"):
        create_dataset("lra-listops", "val", path=tmp_path)
    (tmp_path / "basic_val.tsv").write_text("[MOD 1 2 ]\t3\n")
    with pytest.raises(DataError, match="line 1"):
        create_dataset("lra-listops", "val", path=tmp_path)
    with pytest.raises(OptionError, match="path=FOLDER"):
        create_dataset("lra-listops", "val")


@pytest.mark.parametrize("contour", [6, 14])
def test_pathfinder_labels_match_the_connected_components(contour):
    """Dilating the ink by half the distance between paths joins the dashes of one path only, so its
    components give the class.
    """
    ndimage = pytest.importorskip("scipy.ndimage")
    options = PathfinderOptions(contour=contour)
    scale = 6
    places = (np.arange(SIDE * scale) + 0.5) / scale
    points = np.stack(np.meshgrid(places, places, indexing="ij"), -1).reshape(-1, 2)
    labels = []
    for index in range(8):
        found = scene(options, "train", index)
        grown = distances(points, found.dashes).min(-1) < (GAP + CLEARANCE) / 4
        components, count = ndimage.label(grown.reshape(SIDE * scale, SIDE * scale))
        first, last = (components[tuple((dot * scale).astype(int))] for dot in found.dots)
        assert first
        assert last
        assert int(first == last) == found.label
        assert count == found.paths.max() + 1  # every path is one piece
        labels.append(found.label)
    assert 0 < sum(labels) < 8


def test_pathfinder_pictures_have_the_official_sizes():
    options = PathfinderOptions()
    assert options.count == 5  # 20 // (14 // 3)
    found = scene(options, "val", 3)
    lengths = np.linalg.norm(found.dashes[:, 1] - found.dashes[:, 0], axis=-1)
    assert np.allclose(lengths, 2.0)
    assert [(found.paths == p).sum() for p in (0, 1)] == [14, 14]
    for path in range(int(found.paths.max()) + 1):
        mine = found.dashes[found.paths == path]
        assert np.allclose(np.linalg.norm(mine[1:, 0] - mine[:-1, 1], axis=-1), 1.0)
    assert found.dashes.min() >= 1
    assert found.dashes.max() <= 31
    picture = draw(found)
    assert picture.shape == (32, 32)
    assert picture.max() == 255
    assert 0.05 < (picture > 0).mean() < 0.5
    for y, x in found.dots.astype(int):
        assert picture[y, x] == 255
    assert np.array_equal(picture, draw(scene(options, "val", 3)))
    assert not np.array_equal(picture, draw(scene(options, "test", 3)))
    with pytest.raises(OptionError, match="3 to 18"):
        PathfinderOptions(contour=40)


def test_pathfinder_pictures_are_tokens(tmp_path):
    options = {"contour": 6, "train": 3, "val": 2, "test": 2}
    data = create_dataset("pathfinder", "train", root=tmp_path, options=options)
    numbers, labels = data.batch([0, 2])
    picture = draw(scene(PathfinderOptions(contour=6), "train", 2))
    assert torch.equal(numbers[1], torch.from_numpy(picture).flatten().long() + 1)
    assert labels[1] == scene(PathfinderOptions(contour=6), "train", 2).label
    assert data.tokens == 257


def official_pathfinder(folder, count=20):
    root = folder / "curv_contour_length_14"
    (root / "imgs" / "1").mkdir(parents=True)
    (root / "metadata").mkdir()
    lines = []
    for i in range(count):
        Image.fromarray(np.full((32, 32), i, dtype=np.uint8)).save(
            root / "imgs" / "1" / f"sample_{i}.png"
        )
        lines.append(f"imgs/1 sample_{i}.png {i} {i % 2} 1.0 14 4 2 0.5 1 1")
    (root / "imgs" / "1" / "empty.png").write_bytes(b"")
    lines.append(f"imgs/1 empty.png {count} 1 1.0 14 4 2 0.5 1 1")
    (root / "metadata" / "1.npy").write_text("\n".join(lines) + "\n")
    return root


def test_official_pathfinder_folders_are_read(tmp_path):
    root = official_pathfinder(tmp_path)
    parts = {
        split: create_dataset("lra-pathfinder", split, path=tmp_path)
        for split in ("train", "val", "test")
    }
    assert [len(parts[split]) for split in parts] == [16, 2, 2]
    seen = [int(row[0]) - 1 for data in parts.values() for row in data.batch(range(len(data)))[0]]
    assert sorted(seen) == list(range(20))
    for data in parts.values():
        numbers, labels = data.batch(range(len(data)))
        assert torch.equal((numbers[:, 0] - 1) % 2, labels)
    (root / "metadata" / "1.npy").write_text("imgs/1 sample_0.png 0 2\n")
    with pytest.raises(DataError, match="0 or 1"):
        create_dataset("lra-pathfinder", "train", path=tmp_path)
    with pytest.raises(DataError, match="metadata"):
        create_dataset("lra-pathfinder", "train", path=tmp_path, options={"contour": 9})
    with pytest.raises(OptionError, match="contour"):
        create_dataset("lra-pathfinder", "train", path=tmp_path, options={"contour": 7})


def test_grey_levels_become_tokens():
    digits = create_dataset("digits", "val")
    numbers, labels = create_dataset("digits", "val", options={"sequence": "tokens"}).batch([3, 5])
    assert torch.equal(numbers, digits.raw([3, 5])[0].flatten(1).long() + 1)
    assert torch.equal(labels, digits.raw([3, 5])[1])
    colours = digits.__class__(
        "c",
        "val",
        torch.tensor([[255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 0]], dtype=torch.uint8)[
            ..., None, None
        ],
        torch.zeros(4, dtype=torch.int64),
        ("a",),
        (0.5,) * 3,
        (0.5,) * 3,
    )
    grey = image_tokens(colours).batch(range(4))[0].flatten() - 1
    assert grey.tolist() == [255, 76, 149, 0]


def official_imdb(folder):
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            (folder / part / label).mkdir(parents=True)
            for i in range(10):
                (folder / part / label / f"{i}_7.txt").write_text(
                    f"{part} {label} film {i}, é", "utf-8"
                )


def test_official_imdb_folders_are_read(tmp_path):
    official_imdb(tmp_path)
    parts = {
        s: create_dataset("imdb", s, path=tmp_path, tokens="bytes", max_length=9)
        for s in ("train", "val", "test")
    }
    assert [len(parts[s]) for s in parts] == [18, 2, 20]
    numbers, labels = parts["test"].batch([0, 19])
    assert bytes((numbers[0] - 1).tolist()) == b"test neg "
    assert labels.tolist() == [0, 1]
    (tmp_path / "test" / "pos" / "3_7.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match="UTF-8"):
        create_dataset("imdb", "test", path=tmp_path, tokens="bytes")
    with pytest.raises(DataError, match="aclImdb"):
        create_dataset("imdb", "train", path=tmp_path / "train", tokens="bytes")


def official_aan(folder):
    for name in ("train", "eval", "test"):
        lines = [
            f"{i % 2}.0\ta{i}\tb{i}\tabstract {i} {name}\tanother{'!' * i}\n" for i in range(6)
        ]
        (folder / f"new_aan_pairs.{name}.tsv").write_text("".join(lines))


def test_official_retrieval_files_are_read(tmp_path):
    official_aan(tmp_path)
    data = create_dataset("aan", "val", path=tmp_path, options={"max_length": 10})
    numbers, labels = data.batch([1, 4])
    assert numbers.shape == (2, 2, 10)
    assert labels.tolist() == [1, 0]
    assert data.pair
    assert bytes((numbers[0, 0] - 1).tolist()) == b"abstract 1"
    assert bytes((numbers[0, 1] - 1)[:8].tolist()) == b"another!"
    assert numbers[0, 1, 8:].tolist() == [0, 0]
    (tmp_path / "new_aan_pairs.eval.tsv").write_text("2\ta\tb\tx\ty\n")
    with pytest.raises(DataError, match="line 1"):
        create_dataset("aan", "val", path=tmp_path)


def write_module(place, chapters):
    """Write a SWORD module: one block per part, an empty slot, a slot per book, and a heading and
    verses per chapter.
    """
    place.mkdir(parents=True)
    for part in ("ot", "nt"):
        whole = b""
        slots = struct.pack("<IIH", 0, 0, 0)
        texts = ['<div osisID="Gen" type="book"/>']
        for name, verses in chapters.items():
            texts += [f'<chapter n="1" osisID="{name}" sID="x"/>', *verses]
        for text in texts if part == "ot" else []:
            slots += struct.pack("<IIH", 0, len(whole), len(text.encode()))
            whole += text.encode()
        data = zlib.compress(whole)
        for kind, content in (
            ("bzs", struct.pack("<III", 0, len(data), len(whole))),
            ("bzv", slots),
            ("bzz", data),
        ):
            (place / f"{part}.{kind}").write_bytes(content)


def test_sword_modules_are_read_by_chapter(tmp_path):
    verse = (
        '<w lemma="x">In</w> <w>the</w> beginning<note>aside</note><w>God</w>, '
        "<q>now</q> &amp; then"
    )
    write_module(tmp_path / "m", {"Gen.1": [verse, "two"], "Exod.3": ["one"]})
    assert read_module(tmp_path / "m") == {
        "Gen.1": ["In the beginning God, now & then", "two"],
        "Exod.3": ["one"],
    }
    (tmp_path / "m" / "ot.bzz").write_bytes(b"broken")
    with pytest.raises(DataError, match="damaged"):
        read_module(tmp_path / "m")
    write_module(tmp_path / "empty", {})
    with pytest.raises(DataError, match="got one without chapters"):
        read_module(tmp_path / "empty")


def verse_pairs(*_):
    """Return pairs of the books 0 to 9 with sixteen verses each, in the format of kjv_web."""
    return [
        (
            (book, 1, verse),
            f"ye saw {book}.{verse} ‖ you saw {book}.{verse + (verse % 2)}",
            verse % 2 == 0,
        )
        for book in range(10)
        for verse in range(16)
    ]


def test_verses_are_the_pairs_of_kjv_web_as_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(kjv_web, "read_pairs", verse_pairs)
    parts = {
        split: create_dataset("verses", split, path=tmp_path) for split in ("train", "val", "test")
    }
    assert sum(map(len, parts.values())) == 160
    assert [len(parts[split]) // 16 for split in ("val", "test")] == [1, 2]
    numbers, labels = parts["train"].batch(range(len(parts["train"])))
    for (old, new), label in zip(numbers, labels):
        first, second = (bytes((row[row > 0] - 1).tolist()).decode().split() for row in (old, new))
        assert (first[0], second[0]) == ("ye", "you")
        assert (first[2] == second[2]) == bool(label)


def test_empty_rows_of_tokens_are_refused():
    with pytest.raises(DataError, match="row 2"):
        Rows.of([torch.tensor([1]), torch.tensor([], dtype=torch.int64)])
    assert pathfinder.FOLDERS[14] == "curv_contour_length_14"
