"""Texts as token numbers: vocabulary, padding and truncation, and the file and splits of movie
reviews.
"""

from __future__ import annotations

import json
import pickle

import pytest
import torch

from fredholm.data import TextDataset, Vocabulary, encode_texts
from fredholm.errors import DataError, OptionError, ShapeError
from fredholm.lab import data
from fredholm.lab.data.catalogue.movie_reviews import FILE, place_of, read
from fredholm.lab.data.kinds.texts import TextOptions, read_lines
from tests.lab.data.fixtures import review_lines, write_reviews


def reviews(folder, split, **options):
    return data.create_dataset("movie-reviews", split, path=folder, **options)


def test_words_are_numbered_by_frequency_and_decoded():
    vocabulary = Vocabulary.of_words(["b a. A b, a", "a c é"], min_count=1)
    assert vocabulary.words == ("a", "b", ",", ".", "c", "é"), (
        "most frequent first, then the alphabet"
    )
    numbers = vocabulary.encode("É b unheard!")
    assert numbers == [7, 3, 1, 1]
    assert vocabulary.decode([*numbers, 0, 0]) == ["é", "b", "�", "�"]
    assert len(vocabulary) == 8
    assert Vocabulary.of_words(["b a. A b, a"], min_count=3).words == ("a",)


def test_bytes_are_utf8_and_leave_zero_to_padding():
    vocabulary = Vocabulary("bytes")
    numbers = vocabulary.encode("aé\x00")
    assert numbers == [98, 196, 170, 1]
    assert len(vocabulary) == 257
    assert bytes(ord(c) for c in vocabulary.decode(numbers)).decode() == "aé\x00"


@pytest.mark.parametrize(
    "vocabulary", [Vocabulary("bytes"), Vocabulary.of_words(["it's fine , é"], 1)]
)
def test_a_vocabulary_survives_json(vocabulary):
    again = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
    assert again == vocabulary
    assert again.encode("it's é new") == vocabulary.encode("it's é new")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: Vocabulary("chars"),
            OptionError,
            "tokens: .*, got 'chars'; did you mean 'characters'",
        ),
        (lambda: Vocabulary("bytes", ("a",)), OptionError, "expected none for kind"),
        (
            lambda: Vocabulary("words", ("a", "b", "a")),
            OptionError,
            "expected each once, got 1 repeated",
        ),
        (
            lambda: Vocabulary.of_words(["a"], 0),
            OptionError,
            "min_count: .* 1 or more, got 0",
        ),
        (
            lambda: Vocabulary("words", ("a",)).decode([3]),
            DataError,
            "token number: expected 0 to 2, .*, got 3",
        ),
        (lambda: Vocabulary.from_dict(["a"]), DataError, "expected the kind and words"),
        (
            lambda: encode_texts(["a", " \t"], Vocabulary("words"), 4),
            DataError,
            r"text 2: expected at least one word, got ' \\t'",
        ),
        (
            lambda: encode_texts([""], Vocabulary("bytes"), 4),
            DataError,
            "text 1: expected at least one byte, got ''",
        ),
    ],
)
def test_wrong_arguments_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_long_texts_are_truncated_and_counted():
    vocabulary = Vocabulary.of_words(["a b c d e"], 1)
    numbers, truncated = encode_texts(["a b c d e", "a b c", "e"], vocabulary, 3)
    assert numbers.tolist() == [[2, 3, 4], [2, 3, 4], [6, 0, 0]]
    assert truncated == 1
    assert encode_texts([], vocabulary, 3)[0].shape == (0, 1)


def test_batches_are_as_wide_as_their_longest_text():
    vocabulary = Vocabulary.of_words(["a b c d"], 1)
    texts = ["a", "a b c d", "b c"]
    dataset = TextDataset("t", "train", texts, torch.tensor([0, 1, 0]), ("x", "y"), vocabulary, 8)
    numbers, labels = dataset.batch([0, 2])
    assert numbers.tolist() == [[2, 0], [3, 4]]
    assert labels.tolist() == [0, 0]
    assert dataset.batch(torch.tensor([1]))[0].shape == (1, 4)
    assert dataset[0][0].tolist() == [2]
    assert dataset.batch([0], lambda n: n + 1)[0].tolist() == [[3]]
    with pytest.raises(IndexError, match="less than the 3 samples of t train, got 3"):
        dataset[3]
    with pytest.raises(ShapeError, match=r"shape \(3,\), one per text, got \(2,\)"):
        TextDataset("t", "train", texts, torch.tensor([0, 1]), ("x", "y"), vocabulary, 8)
    with pytest.raises(ShapeError, match=r"got \(3,\), \(2,\)"):
        TextDataset(
            "t", "train", texts, torch.tensor([0, 1, 0]), ("x", "y"), vocabulary, 8, torch.zeros(2)
        )
    with pytest.raises(DataError, match=r"labels: expected .* from 0 to 1, got 2"):
        TextDataset("t", "train", texts, torch.tensor([0, 1, 2]), ("x", "y"), vocabulary, 8)
    loader = data.make_loader(dataset, 2, seed=3, shuffle=True)
    assert sorted(label for _, part in loader for label in part.tolist()) == [0, 0, 1]


def test_reviews_are_split_by_their_words(tmp_path):
    folder = write_reviews(tmp_path / "reviews")
    parts = {split: reviews(folder, split) for split in ("train", "val", "test")}
    lines = [line.split("\t") for line in review_lines()]
    kept = [(float(rating), text) for _, rating, text in lines if abs(float(rating)) >= 0.5]
    assert sum(len(part) for part in parts.values()) == len(kept) == 40
    for split, part in parts.items():
        assert part.targets is not None
        bounds = {"test": (0.0, 0.2), "val": (0.2, 0.3), "train": (0.3, 1.0)}[split]
        expected = [
            (rating, text) for rating, text in kept if bounds[0] <= place_of(text) < bounds[1]
        ]
        assert list(zip(part.targets.tolist(), part.texts)) == expected
        assert part.labels.tolist() == [int(rating > 0) for rating, _ in expected]
    none = reviews(folder, "train", val_fraction=0)
    assert len(none) == len(parts["train"]) + len(parts["val"])
    assert place_of("A fine, FINE film!") == place_of("a fine fine film")


def test_the_vocabulary_comes_from_the_training_split(tmp_path):
    folder = write_reviews(tmp_path / "reviews")
    train, test = reviews(folder, "train", min_count=1), reviews(folder, "test", min_count=1)
    assert train.vocabulary == test.vocabulary
    known = {word for text in train.texts for word in text.lower().split()}
    assert set(train.vocabulary.words) == known
    only_test = {word for text in test.texts for word in text.lower().split()} - known
    assert only_test, "each sentence has a word of its own"
    assert all(test.vocabulary.encode(word) == [1] for word in only_test)
    other = Vocabulary("words", ("film",))
    assert reviews(folder, "test", vocabulary=other).vocabulary is other
    as_bytes = reviews(folder, "test", tokens="bytes", max_length=5)
    assert as_bytes.numbers.shape[1] == 5
    assert as_bytes.truncated == len(as_bytes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"image_size": 8}, "option of text, which movie-reviews holds"),
        ({"tokens": "word"}, "did you mean 'words'"),
        ({"max_length": 0}, "max_length: expected an integer of 1 or more, got 0"),
        ({"min_count": 0}, "min_count: .* 1 or more, got 0"),
        (
            {"tokens": "bytes", "min_count": 3},
            "got 'bytes', all of which have",
        ),
        (
            {"tokens": "bytes", "vocabulary": Vocabulary()},
            "tokens: expected words, .*, got 'bytes'",
        ),
    ],
)
def test_wrong_options_are_refused(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        reviews(write_reviews(tmp_path / "reviews"), "train", **options)
    with pytest.raises(OptionError, match=r"max_length: .*, which digits holds, got 4"):
        data.create_dataset("digits", "train", max_length=4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id\tsentiment\ttext\r\n1\t2.5\tfine \xff film", "expected UTF-8, got other bytes at 30"),
        (b"id,sentiment,text\n1,2.5,fine", "expected the header id, .*, got 'id,sentiment,text'"),
        (b"", "expected the header .*, got ''"),
        (b"id\tsentiment\ttext\r\n", "expected at least one review"),
        (b"id\tsentiment\ttext\n1\tgood\tfine", "line 2: .*, got '1.tgood.tfine'"),
        (b"id\tsentiment\ttext\n1\t1.0\tfine\n2\t9\tfine", "line 3: expected an id"),
        (b"id\tsentiment\ttext\n1\tnan\tfine", "line 2: expected an id"),
        (b"id\tsentiment\ttext\n1\t1.0\t  ", "line 2: expected an id"),
        (b"id\tsentiment\ttext\n1\t1.0\tfine\tmore", "line 2: expected an id"),
        (b"id\tsentiment\ttext\n1\t1.0", "line 2: expected an id"),
    ],
)
def test_another_format_is_refused(tmp_path, content, message):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read(tmp_path / FILE)


def test_missing_reviews_are_named_with_a_fix(tmp_path):
    with pytest.raises(DataError, match="fredholm data fetch movie-reviews"):
        data.create_dataset("movie-reviews", "train", root=tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        reviews(tmp_path, "train")


SENTENCES = ["walking walked walks", "talking talked talks", "the walker was unwalkable"] * 5


def test_subwords_are_longest_matches_and_vocabularies_reproducible():
    pieces = Vocabulary.of_pieces(SENTENCES, 40)
    assert pieces == Vocabulary.of_pieces(SENTENCES, 40)
    assert 20 < len(pieces) <= 40
    assert Vocabulary.from_dict(json.loads(json.dumps(pieces.to_dict()))) == pieces

    def longest(word: str) -> list[int]:
        found = []
        start = 0
        known = {w: 2 + i for i, w in enumerate(pieces.words)}
        while start < len(word):
            mark = "##" if start else ""
            ends = [e for e in range(len(word), start, -1) if mark + word[start:e] in known]
            if not ends:
                return [1]
            found.append(known[mark + word[start : ends[0]]])
            start = ends[0]
        return found

    for text in [*SENTENCES, "Talkable zebras walk"]:
        assert pieces.encode(text) == [n for word in text.lower().split() for n in longest(word)]
    assert pieces.encode("zebra") == [1]
    assert pieces.encode("") == []
    assert pieces.join(pieces.encode("Unwalkable talks")) == "unwalkable talks"
    after = pieces.encode("walkable talks")
    assert pieces.join_after("the zebra", after) == " walkable talks"
    assert pieces.join_after("the zebra ", after) == "walkable talks"
    assert pieces.join_after("the w", after[1:]) == pieces.join(after[1:]), "inside a word"
    twin = pickle.loads(pickle.dumps(pieces))
    assert twin.encode("walks") == pieces.encode("walks")
    with pytest.raises(OptionError, match="pieces: expected an integer of 3 or more, got 2"):
        Vocabulary.of_pieces(SENTENCES, 2)
    with pytest.raises(OptionError, match="expected tokens='wordpieces'"):
        TextOptions(tokens="bytes", pieces=9)


def test_only_line_ends_separate_texts(tmp_path):
    file = tmp_path / "texts.txt"
    file.write_bytes("one\u2028still one\r\ntwo\x0cstill two\n\nfour\n".encode())
    found = read_lines(file)
    assert [text for _, text in found] == ["one\u2028still one", "two\x0cstill two", "four"]
    assert [place.rpartition(":")[2] for place, _ in found] == ["1", "2", "4"]
