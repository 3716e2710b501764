"""Needles: hidden at random depths, queried after several distances, counted with intervals."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from scipy.stats import binomtest

from fredholm import linearize
from fredholm.convert import replace_attention
from fredholm.errors import DataError
from fredholm.lab.distill import receipt
from fredholm.lab.distill.linearize import window_alone
from fredholm.lab.distill.needles import (
    Haystack,
    Haystacks,
    answers,
    measure_needles,
    summarise,
)
from fredholm.lab.distill.receipt import CONTROL, _found
from fredholm.lab.training.metrics import wilson
from fredholm.linearization.heads import Seen

from .test_decoder_conversion import DOCUMENTS, OFF, TEXTS, Letters, llama

pytest.importorskip("transformers")

DISTANCES = (8, 32)
FILLER = torch.tensor(list(" ".join(TEXTS).encode()))
HAYSTACKS = Haystacks(FILLER, Letters(), DISTANCES, depth=20)


def text_of(tokens) -> str:
    return bytes(tokens.tolist()).decode()


@pytest.mark.parametrize("kind", ["needle", "list"])
def test_a_number_is_hidden_at_a_random_depth_and_is_the_answer(kind):
    depths = set()
    for index in range(12):
        found, again = (HAYSTACKS.draw(index, kind) for _ in range(2))
        assert found.tokens.equal(again.tokens)
        assert found.question.equal(again.question)
        number, told = text_of(found.question[-found.digits :]), text_of(found.tokens)
        assert number.isdigit()
        assert len(number) == 5
        assert told.count(number) == 1
        assert told.index(number) + 5 <= found.told
        assert len(found.tokens) == found.told + max(DISTANCES)
        said = "The pass key is" if kind == "needle" else "\n\n"
        assert said in text_of(found.question)
        depths.add(told.index("The pass key is" if kind == "needle" else ": "))
    assert len(depths) > 3
    assert not HAYSTACKS.draw(0).tokens.equal(replace(HAYSTACKS, seed=1).draw(0).tokens)


class Pieces:
    """A tokenizer like SentencePiece: a space is one token, and so are up to three digits."""

    def __init__(self):
        self.pieces = ["▁"]

    def __call__(self, texts):
        return {"input_ids": [[self._number(p) for p in self._split(text)] for text in texts]}

    def _split(self, text):
        return re.findall(r"▁|\d{1,3}|[^▁\d]+", text.replace(" ", "▁"))

    def _number(self, piece):
        if piece not in self.pieces:
            self.pieces.append(piece)
        return self.pieces.index(piece)

    def decode(self, numbers, skip_special_tokens=True):
        return "".join(self.pieces[number] for number in numbers).replace("▁", " ").lstrip()


@pytest.mark.parametrize("kind", ["needle", "list"])
def test_a_space_token_is_not_part_of_the_answer(kind):
    pieces = Pieces()
    (filler,) = pieces([" ".join(TEXTS)])["input_ids"]
    found = Haystacks(torch.tensor(filler), pieces, DISTANCES, depth=20).draw(3, kind)
    answer = [pieces.pieces[number] for number in found.question[-found.digits :]]
    assert [len(piece) for piece in answer] == [3, 2]
    assert "".join(answer).isdigit()
    assert pieces.pieces[found.question[-found.digits - 1]] == "▁"


class Framed(Letters):
    """Letters with special tokens before and after each text, as in transformers."""

    all_special_ids = (1, 2)

    def __call__(self, texts, add_special_tokens=True):
        rows = super().__call__(texts)["input_ids"]
        if add_special_tokens:
            rows = [[1, *row, 2] for row in rows]
        return {"input_ids": rows}


@pytest.mark.parametrize("kind", ["needle", "list"])
def test_joined_texts_have_one_beginning_and_no_inner_end(kind):
    framed = Haystacks(FILLER, Framed(), DISTANCES, depth=20)
    for index in range(4):
        plain, found = HAYSTACKS.draw(index, kind), framed.draw(index, kind)
        assert found.tokens.tolist() == [1, *plain.tokens.tolist()]
        assert found.told == plain.told + 1
        assert found.question.equal(plain.question)
        assert found.digits == plain.digits


def test_joined_documents_have_no_inner_beginning(monkeypatch):
    documents = replace(DOCUMENTS, tokenizer=Framed())
    rows = [torch.tensor(row) for row in Framed()(TEXTS)["input_ids"]]
    seen = []

    def spy(model, row, last):
        seen.append(row)
        return 1.0

    def drawn(models, haystacks, *_):
        seen.append(haystacks.filler)
        return []

    monkeypatch.setattr(receipt, "_accuracy", spy)
    monkeypatch.setattr(receipt, "measure_needles", drawn)
    models = {"teacher": llama()}
    draw = torch.Generator().manual_seed(0)
    receipt.copying(models, rows, replace(documents, copies=(256,)), 1024, draw)
    receipt.recall(models, rows, documents, 512)
    assert len(seen) == documents.repeats + 1
    for tokens in seen:
        assert not torch.isin(tokens, torch.tensor(Framed.all_special_ids)).any()
    assert text_of(seen[-1]) == "".join(TEXTS)


@torch.no_grad()
@pytest.mark.parametrize("student", [False, True])
def test_answers_equal_a_forward_without_a_cache(student):
    model = llama()
    if student:
        model = replace_attention(model, "hedgehog", window=4, keep="0.1").model.eval()
    haystack = HAYSTACKS.draw(3)
    found = answers(model, haystack, DISTANCES)
    assert list(found) == list(DISTANCES)
    for distance in DISTANCES:
        tokens = torch.cat([haystack.tokens[: haystack.told + distance], haystack.question])
        said = model(tokens[None], use_cache=False).logits[0].argmax(-1)
        assert found[distance] == (said[-6:-1] == tokens[-5:]).tolist()


@torch.no_grad()
def test_all_digits_are_right_exactly_if_generation_gives_the_number():
    model = llama()
    (distance, *_) = DISTANCES
    drawn = HAYSTACKS.draw(0)
    asked = drawn.question[: -drawn.digits]
    prompt = torch.cat([drawn.tokens[: drawn.told + distance], asked])[None]
    said = model.generate(prompt, max_new_tokens=5, do_sample=False, pad_token_id=0)
    right = said[0, prompt.shape[1] :]
    for place in (None, 0, 4):
        number = right.clone()
        if place is not None:
            number[place] = (number[place] + 1) % 128
        haystack = Haystack(drawn.tokens, drawn.told, torch.cat([asked, number]), 5)
        found = answers(model, haystack, [distance])[distance]
        assert all(found) == (place is None)
        if place is not None:
            assert not found[place]


def test_intervals_equal_wilsons():
    for right, of in ((0, 7), (3, 7), (7, 7), (60, 100)):
        expected = binomtest(right, of).proportion_ci(method="wilson")
        assert wilson(right / of, of) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson(0.0, 7).low == 0.0
    assert wilson(1.0, 7).high == 1.0


def test_recall_is_relative_to_the_teachers():
    """A correct digit that the teacher misses adds nothing."""
    rows = [
        {"teacher": {8: [True, True]}, "student": {8: [True, False]}},
        {"teacher": {8: [False, True]}, "student": {8: [True, True]}},
        {"teacher": {8: [False, False]}, "student": {8: [True, True]}},
    ]
    found = summarise(rows, 8)
    assert (found["needles"], found["distance"]) == (3, 8)
    assert found["teacher"] == pytest.approx(1 / 2)
    assert found["student"] == pytest.approx(5 / 6)
    assert found["teacher_whole"] == pytest.approx(1 / 3)
    assert found["student_whole"] == pytest.approx(2 / 3)
    assert found["student_share"] == pytest.approx(2 / 3)
    assert found["student_share_interval"] == pytest.approx(wilson(2 / 3, 2))
    none = [{name: {8: [False]} for name in ("teacher", "student")}]
    assert summarise(none, 8)["student_share"] is None
    assert "its teacher recalls nothing" in _found(summarise(none, 8))
    assert "has 67% (" in _found(found)
    assert "of a needle 8 tokens back it recalls 50% (teacher 20%)" in _found(
        {"distance": 8, "student": 0.5, "teacher": 0.2}
    )


def test_the_control_reads_only_its_window_and_sinks():
    replaced = replace_attention(llama(), "hedgehog", window=4, sinks=2, keep="0.1")
    full = replace_attention(llama(), "hedgehog", window=4, sinks=2)
    assert window_alone(full) is full.model
    assert window_alone(replace_attention(llama(), "hedgehog", window=0)) is None
    assert replaced.keep
    query, key = torch.randn(2, 1, 4, 20, 8)
    for part in full.parts.values():
        weights = part.student_weights(query, key, Seen(causal=True), 0.3)
        assert weights[..., -1, 2:-4].abs().max() == 0
        assert weights[..., -1, :2].min() > 0


def test_a_conversions_receipt_has_lists_and_the_control(tmp_path):
    lines: list[str] = []
    documents = replace(DOCUMENTS, needles=10, lists=2, list_distances=(8,), depth=20)
    given = {"to": "hedgehog", "window": 4, "keep": "0.1", "tune": OFF, "say": lines.append}
    report = linearize(llama(), **given, documents=documents, folder=tmp_path / "out").report
    receipt = report.receipt
    assert [row["needles"] for row in receipt["recall"]] == [10, 10]
    assert [(row["distance"], row["needles"]) for row in receipt["lists"]] == [(8, 2)]
    for row in receipt["recall"]:
        assert {"teacher", "student_share", f"{CONTROL}_share", f"{CONTROL}_whole"} <= row.keys()
    assert all(f"{CONTROL}_ratio" in row for row in receipt["perplexity"]["seen"])
    assert all(CONTROL in row for row in receipt["copying"])
    assert "receipt: 10 of 10 needles" in lines
    page = (tmp_path / "out" / "model" / "conversion.html").read_text()
    assert "window alone" in page


def test_too_short_filler_is_refused():
    short = replace(HAYSTACKS, filler=FILLER[:30])
    with pytest.raises(DataError, match=r"texts of .* tokens around a needle, got 30"):
        short.draw(0)
    wordless = replace(HAYSTACKS, filler=torch.full((100,), 49))
    with pytest.raises(DataError, match="expected texts with 8 words"):
        wordless.draw(0, "list")
    same = {"teacher": llama(), "student": llama()}
    for row in measure_needles(same, HAYSTACKS, 2):
        assert row["teacher"] == row["student"]
