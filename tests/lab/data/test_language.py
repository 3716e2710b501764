"""Texts for token prediction: windows, masked tokens, and their files."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from evidence.datasets.glue import TASKS
from evidence.datasets.kjv_web import coin, nearest_others, read_pairs, split_of

from fredholm.errors import DataError, OptionError
from fredholm.lab import data
from fredholm.lab.data.catalogue.kjv_lzw import expand_lzw, read_kjv

VERSES = [
    f"{'Ge' if i < 30 else 'Exo'}1:{i % 30 + 1} And verse {i * i} of the text says word{i} and no "
    "more."
    for i in range(60)
]


def squeeze(text: bytes) -> bytes:
    """Return the output of the Unix program compress without its header: the encoder of
    :func:`expand_lzw`.
    """
    table = {bytes([i]): i for i in range(256)}
    codes = []
    word = b""
    for i in range(len(text)):
        letter = text[i : i + 1]
        if word + letter in table:
            word += letter
            continue
        codes.append(table[word])
        table[word + letter] = len(table) + 1
        word = letter
    codes.append(table[word])
    out, bits, width, entries, group = 0, 0, 9, 257, 0
    for number, code in enumerate(codes):
        out |= code << bits
        bits, group = bits + width, group + 1
        entries += number > 0
        if entries >= 1 << width:
            bits += -group % 8 * width
            width = width + 1
            group = 0
    return out.to_bytes(-(-bits // 8), "little")


def write_kjv(folder):
    text = "\n".join(["A title", *VERSES, ""]).encode()
    packed = squeeze(text)
    head = b"EC02Compressed Data File".ljust(0x54, b"\0") + struct.pack(">III", 1 << 16, 1, 0x60)
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "bible.data").write_bytes(head + packed)
    return folder


def test_the_bible_is_read_from_its_lzw_file(tmp_path):
    text = " ".join(VERSES).encode() * 3
    assert expand_lzw(squeeze(text)) == text, "codes of 9, 10 and more bits"
    verses = read_kjv(write_kjv(tmp_path) / "bible.data")
    assert len(verses) == 60
    assert verses[1, 1, 3] == VERSES[32].partition(" ")[2]
    path = tmp_path / "broken"
    path.write_bytes(b"EC02" + bytes(400))
    with pytest.raises(DataError, match="expected the text of bible-kjv-text"):
        read_kjv(path)


def test_windows_have_the_next_character_as_label(tmp_path):
    folder = write_kjv(tmp_path)
    parts: Any = [
        data.create_dataset("kjv-characters", s, path=folder, max_length=8)
        for s in ("train", "val", "test")
    ]
    train = parts[0]
    assert train.task == "tokens"
    assert len(train.classes) == len(train.vocabulary)
    inputs, labels = train.batch([0, 1])
    assert inputs.shape == labels.shape == (2, 8)
    assert torch.equal(labels.flatten()[:-1], inputs.flatten()[1:])
    text = "\n".join(verse.partition(" ")[2] for verse in VERSES)
    assert train.vocabulary.join(inputs[0].tolist()) == text[:8]
    assert sum(len(p.numbers) for p in parts) == len(text)
    assert [len(p.numbers) for p in parts[1:]] == [round(0.05 * len(text))] * 2
    with pytest.raises(DataError, match="expected a text of 100001 tokens or more"):
        data.create_dataset("kjv-characters", "test", path=folder, max_length=100000)


def test_ptb_is_read_from_the_users_files(tmp_path):
    for name, text in (
        ("train", " no it was n't <unk>\n but a N one\n"),
        ("valid", "no one was\n"),
        ("test", "a one\nzz\n"),
    ):
        (tmp_path / f"ptb.{name}.txt").write_text(text)
    test: Any = data.create_dataset("ptb", "test", path=tmp_path, max_length=4)
    assert test.vocabulary.join(test.batch([0])[0][0].tolist()) == "a on"
    assert 1 in test.numbers, "a character that the training text has not"
    words: Any = data.create_dataset(
        "ptb", "val", path=tmp_path, max_length=2, tokens="words", min_count=1
    )
    assert words.vocabulary.join(words.batch([0])[1][0].tolist()) == "one was"
    with pytest.raises(OptionError, match=r"expected path, the folder of ptb\.train\.txt"):
        data.create_dataset("ptb", "train")
    (tmp_path / "ptb.test.txt").write_text(" \n")
    with pytest.raises(DataError, match="expected text, got none"):
        data.create_dataset("ptb", "test", path=tmp_path)


def hidden(share: float = 0.15, kind: str = "words"):
    texts = [" ".join(f"word{(i * j) % 50}" for j in range(1, 41)) for i in range(1, 100)] + [
        "short"
    ]
    vocabulary = data.Vocabulary.of_words(texts, 1) if kind == "words" else data.Vocabulary(kind)
    return data.HiddenTokens(
        data.TextDataset("t", "train", texts, torch.zeros(100).long(), ("x",), vocabulary, 40),
        share,
    )


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_masked_tokens_have_berts_shares(kind):
    found = hidden(kind=kind)
    numbers, _ = found.raw(range(100))
    inputs, asked = found.hide(numbers, torch.arange(100), seed=1, epoch=2)
    where = asked >= 0
    assert asked[where].equal(numbers[where])
    assert inputs[~where].equal(numbers[~where])
    assert not where[numbers == 0].any()
    count, real = int(where.sum()), int((numbers != 0).sum())
    assert abs(count / real - 0.15) < 4 * (0.15 * 0.85 / real) ** 0.5
    for share, mine in ((0.8, inputs[where] == 1), (0.1, inputs[where] == numbers[where])):
        assert (
            abs(float(mine.double().mean()) - share)
            < 4 * (share * (1 - share) / count) ** 0.5 + 0.02
        )
    assert where.any(1).all(), "every text is asked something"


def test_masked_tokens_change_with_the_epoch_and_not_with_the_batch():
    found = hidden()
    numbers, _ = found.raw([3, 4])
    first = found.hide(numbers, torch.tensor([3, 4]), seed=0, epoch=0)
    assert not torch.equal(first[0], found.hide(numbers, torch.tensor([3, 4]), seed=0, epoch=1)[0])
    assert torch.equal(first[0][1:], found.hide(numbers[1:], torch.tensor([4]), seed=0, epoch=0)[0])
    assert torch.equal(found.batch([3, 4])[0], found.batch([3, 4])[0]), (
        "validation asks the same each time"
    )
    for share in (0.0, 1.0):
        with pytest.raises(OptionError, match="masked: expected a share"):
            hidden(share)
    vocabulary = data.Vocabulary.of_characters(["ab"])
    following: Any = data.NextTokens("next", "train", torch.tensor([2, 3, 2]), vocabulary, 2)
    with pytest.raises(OptionError, match=r"masked: .*, got next, which holds texts for .* tokens"):
        data.HiddenTokens(following, 0.1)


def test_any_texts_can_be_masked():
    chosen: Any = {"options": {"sequence": "rows"}}
    with pytest.raises(OptionError, match=r"masked: .*, which digits holds, got 0\.2"):
        data.create_dataset("digits", "val", masked=0.2, **chosen)


def test_characters_have_their_vocabulary():
    vocabulary = data.Vocabulary.of_characters(["b a", "c"])
    assert vocabulary.encode("ab d") == [3, 4, 2, 1]
    assert data.Vocabulary.from_dict(vocabulary.to_dict()) == vocabulary
    assert vocabulary.join([3, 2, 4]) == "a b"
    assert data.Vocabulary("bytes").join([196, 170]) == "é"
    assert data.Vocabulary("words", ("x", "y")).join([2, 3]) == "x y"


# --- GLUE -----------------------------------------------------------------------------------------

GLUE = {
    "cola": "gj04\t1\t\tThe dog sleeps.\ngj04\t0\t*\tDog the sleep.\n",
    "sst2": "sentence\tlabel\na fine film \t1\ndull \t0\n",
    "mrpc": '\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tHe "said" so.\tSo he '
    "said.\r\n0\t7\t9\tHe left.\tIt rained.\r\n",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\t"
    "sentence1\tsentence2\tscore\n"
    "0\tg\tf\t2\t0\ta\tb\tA cat.\tOne cat.\t4.75\n1\tg\tf\t2\t1\ta\tb\tA cat.\tNo dog.\t0.5\n",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n0\t1\t2\tWhy?\tHow "
    "so?\t1\n1\t3\t4\tWho?\tWhen?\t0\n",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label\n"
    "0\t1\t1\tx\tHe ran.\tHe moved.\ta\tentailment\n1\t1\t2\tx\tHe ran.\tHe "
    "sat.\ta\tcontradiction\n",
    "qnli": "index\tquestion\tsentence\tlabel\n0\tWho ran?\tHe ran.\tentailment\n1\tWho sat?\tHe "
    "ran.\tnot_entailment\n",
    "rte": "index\tsentence1\tsentence2\tlabel\n0\tHe ran.\tHe moved.\tentailment\n1\tHe ran.\tHe "
    "sat.\tnot_entailment\n",
}


def write_glue(folder, repeat: int = 5):
    for name, text in GLUE.items():
        place = folder / TASKS[name].folder
        place.mkdir(parents=True)
        header = "" if name == "cola" else text.split("\n")[0] + "\n"
        rows = text[len(header) :]
        (place / "train.tsv").write_bytes((header + rows * repeat).encode())
        (place / TASKS[name].dev).write_bytes((header + rows).encode())
    return folder


@pytest.mark.parametrize("task", GLUE)
def test_glue_is_read_in_its_official_layout(task, tmp_path):
    folder = write_glue(tmp_path / "glue")
    options = {"path": folder, "options": {"task": task}, "min_count": 1, "val_fraction": 0.2}
    splits = "train", "val", "test"
    parts = {s: data.create_dataset("glue", s, **options) for s in splits}
    assert {name: len(part) for name, part in parts.items()} == {"train": 8, "val": 2, "test": 2}
    test: Any = parts["test"]
    if task == "stsb":
        assert test.task == "regression"
        assert test.batch([0, 1])[1].tolist() == [4.75, 0.5]
    else:
        wanted = {
            "cola": [1, 0],
            "sst2": [1, 0],
            "mrpc": [1, 0],
            "qqp": [1, 0],
            "mnli": [0, 2],
            "qnli": [0, 1],
            "rte": [0, 1],
        }
        assert test.batch([0, 1])[1].tolist() == wanted[task]
    assert ("‖" in test.texts[0]) == (task not in ("cola", "sst2"))
    if task == "mrpc":
        assert test.texts[0] == 'He "said" so. ‖ So he said.'


def test_damaged_glue_files_are_named(tmp_path):
    folder = write_glue(tmp_path / "glue")
    with pytest.raises(OptionError, match="did you mean 'sst2'"):
        data.create_dataset("glue", "train", path=folder, options={"task": "sst"})
    with pytest.raises(OptionError, match="glue: expected path"):
        data.create_dataset("glue", "train")
    for text, message in (
        ("sentence\tscore\na\t1\n", "expected the columns sentence, label"),
        ("sentence\tlabel\na\t2\n", "line 2: expected the label 0, 1, got '2'"),
        ("sentence\tlabel\na\n", "expected 2 cells per line, got 1 in line 2"),
        ("sentence\tlabel\n", "expected at least one sentence"),
    ):
        (folder / "SST-2" / "train.tsv").write_text(text)
        with pytest.raises(DataError, match=message):
            data.create_dataset("glue", "train", path=folder)


def test_short_rows_of_qqp_are_skipped_and_counted(tmp_path):
    folder = write_glue(tmp_path / "glue", repeat=150)
    file = folder / "QQP" / "train.tsv"
    whole = file.read_text().splitlines()
    file.write_text("\n".join([*whole[:7], "9\t3\t4\tHow", *whole[7:], "9\t3\t4\tWho?\tWh"]))
    given: dict[str, Any] = {"path": folder, "options": {"task": "qqp"}, "val_fraction": 0.5}
    train, val = (data.create_dataset("glue", split, **given) for split in ("train", "val"))
    assert len(train) + len(val) == 300
    said = f"{file}: 2 of 302 rows break off and are skipped, first line 8"
    assert train.notes == val.notes == (said,)
    assert data.limit_samples(train, 5).notes == (said,)
    assert data.HiddenTokens(train, 0.2).notes == (said,)
    assert data.create_dataset("glue", "test", **given).notes == ()
    file.write_text("\n".join([*whole, *["9\t3\t4\tHow"] * 4]))
    with pytest.raises(DataError, match="got 4 in line 305, as in 3 before it"):
        data.create_dataset("glue", "train", **given)


# --- KJV / WEB ------------------------------------------------------------------------------------


def test_pairs_of_translations_are_balanced(tmp_path, monkeypatch):
    folder = write_kjv(tmp_path)
    web = {
        place: text.replace("says", "tells").replace("more", "less")
        for place, text in read_kjv(folder / "bible.data").items()
    }
    monkeypatch.setattr("evidence.datasets.kjv_web.read_web", lambda path: web)
    read_pairs.cache_clear()
    pairs = read_pairs(folder)
    read_pairs.cache_clear()
    assert len(pairs) == 60
    for place, text, same in pairs:
        old, new = text.split(" ‖ ")
        assert same == coin(place)
        assert (new == web[place]) == same
        assert place[0] == next(p for p, t in web.items() if t == new)[0], (
            "a negative is of the same book"
        )
        assert old.startswith("And verse")


def test_hard_negatives_are_similar_and_not_translations():
    old = ["the cat sat down", "the cat sat down", "a dog ran off", "birds sing"]
    new = ["one cat sat down", "a cat sat", "one dog ran away", "birds sing aloud"]
    assert nearest_others(old, new)[0] not in (0, 1), (
        "the same old verse twice: both are its translations"
    )
    assert {split_of(book) for book in range(66)} == {"train", "val", "test"}
    assert split_of(4) == "test"
    assert split_of(2) == "val"


def test_documents_of_pythons_documentation_stay_in_one_split(tmp_path):
    import json

    from fredholm.lab.data.catalogue.python_docs import split_of

    texts = {f"library/{i}": f"document {i}: " + "abc " * 8 for i in range(80)}
    (tmp_path / "documents.json").write_text(json.dumps(texts))
    parts = {
        split: data.create_dataset("python-docs", split, path=tmp_path, max_length=8).documents
        for split in ("train", "val", "test")
    }
    assert sorted(x for part in parts.values() for x in part) == sorted(texts.values())
    assert parts["test"] == tuple(t for name, t in texts.items() if split_of(name, 0.1) == "test")
    (tmp_path / "documents.json").write_text("[1]")
    with pytest.raises(DataError, match="object of texts"):
        data.create_dataset("python-docs", "train", path=tmp_path)


def test_smollm2_has_weights_and_licence():
    entry = data.describe("smollm2")
    assert entry["kind"] == "weights"
    assert entry["licence_data"] == "Apache-2.0 (the weights)"
    with pytest.raises(OptionError, match="weights, not a data set"):
        data.create_dataset("smollm2", "train")
