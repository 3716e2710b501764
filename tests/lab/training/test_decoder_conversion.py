"""Linearized decoders: the teacher's logits, low-rank updates, the receipt, generation of text."""

from __future__ import annotations

import copy
import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import markupsafe
import pytest
import torch
import torch.nn.functional as F

from fredholm import linearize
from fredholm.convert import ConversionReport, replace_attention
from fredholm.errors import (
    CheckpointError,
    ConversionError,
    DataError,
    DomainError,
    OptionError,
)
from fredholm.lab.distill.data import TokenWindows, two_splits
from fredholm.lab.distill.linearize import TUNE
from fredholm.lab.distill.lora import Lora, LowRankChange
from fredholm.lab.distill.matching import cross_entropies, logit_divergence
from fredholm.lab.distill.page import write_page
from fredholm.lab.distill.receipt import (
    Documents,
    _continued,
    by_position,
    measure_receipt,
    ratio_interval,
    segments,
)
from fredholm.lab.distill.sources import DECODER
from fredholm.lab.distill.stages import Distillation
from fredholm.lab.training.tasks import Tokens
from fredholm.lab.training.text_generation import text_after
from fredholm.training import Interrupted, StageOptions, fine_tune, generate

transformers = pytest.importorskip("transformers")

TEXTS = ("the quick brown fox jumps over the lazy dog. " * 16, "five dozen liquor jugs. " * 24)
OFF = StageOptions(epochs=0)
DISTIL = StageOptions(epochs=1, lr=2e-2, batch_size=4, steps=12)
MATCH = StageOptions(epochs=1, lr=5e-3, batch_size=4)


class Letters:
    """A tokenizer of bytes."""

    chat_template = None

    def __call__(self, texts):
        return {"input_ids": [list(text.encode()) for text in texts]}

    def decode(self, numbers, skip_special_tokens=True):
        return bytes(number % 128 for number in numbers).decode("ascii")


def llama(**options):
    """Return a small decoder with larger than usual weights, so that its attention matters."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    config = transformers.LlamaConfig(
        vocab_size=128, **sizes, **heads, initializer_range=0.35, **options
    )
    return transformers.LlamaForCausalLM(config).eval()


def windows(split, texts, length=24):
    return TokenWindows("letters", split, texts, Letters(), length)


VAL = windows("val", [text[:100] for text in TEXTS])
FAST = {"to": "hedgehog", "data": (windows("train", TEXTS), VAL), "task": "tokens", "tune": OFF}
FAST |= {"window": 4, "tied": False, "options": {"softmax": True}, "distil": DISTIL}


# --- the stage ------------------------------------------------------------------------------------


def test_the_divergence_of_logits_equals_torchs_in_value_and_gradient():
    torch.manual_seed(0)
    student = (3 * torch.randn(2, 37, 11)).requires_grad_()
    teacher = 3 * torch.randn(2, 37, 11)
    real = torch.rand(2, 37) < 0.6
    for mask in (None, real):
        p, s = teacher.log_softmax(-1), student.log_softmax(-1)
        rows = F.kl_div(s, p, log_target=True, reduction="none").sum(-1)
        expected = rows.mean() if mask is None else rows[mask].mean()
        ours = logit_divergence(student, teacher, mask)
        torch.testing.assert_close(ours, expected)
        gradients = [
            torch.autograd.grad(x, student, retain_graph=True)[0] for x in (ours, expected)
        ]
        torch.testing.assert_close(*gradients)


def test_matching_lowers_the_divergence_of_the_logits():
    lines: list[str] = []
    model = llama()
    ids = VAL.windows.long()
    conversion = linearize(model, **FAST, match=MATCH, say=lines.append)
    fresh, report = linearize(model, **FAST).model, conversion.report
    assert report.metric == "perplexity"
    assert report.recovered is None
    with torch.no_grad():
        away = [
            float(logit_divergence(x(input_ids=ids).logits, model(input_ids=ids).logits))
            for x in (fresh, conversion.model)
        ]
    assert away[1] < 0.7 * away[0]
    assert report.ratio == report.scores["matched"] / report.scores["teacher"]
    assert any("matched: step " in line and "times the teacher's" in line for line in lines)
    assert all(row.after < row.before for row in report.layers)


def test_windows_may_start_at_later_positions():
    """Every second window does; rotary positions give the same outputs."""
    data = TokenWindows("letters", "train", TEXTS, Letters(), 24, reach=300)
    inputs, _ = data.batch([0, 1, 3])
    starts = inputs["position_ids"][:, 0].tolist()
    assert starts[0] == 0
    assert 0 < max(starts) <= 300 - 24
    assert inputs["position_ids"][1].diff().unique().tolist() == [1]
    model = llama()
    with torch.no_grad():
        expected = model(input_ids=inputs["input_ids"]).logits
        torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-3, rtol=1e-3)
    conversion = linearize(model, **FAST | {"data": (data, VAL)}, match=MATCH)
    assert conversion.report.scores["matched"] < conversion.report.scores["before"]
    with pytest.raises(OptionError, match=r"reach: expected 24, the tokens of a window.*, got 20"):
        TokenWindows("letters", "train", TEXTS, Letters(), 24, reach=20)


def test_longer_windows_train_longer_dependencies():
    lines: list[str] = []
    long = windows("train", TEXTS, 120)
    given = {**FAST, "match": MATCH, "say": lines.append}
    short = linearize(llama(), **given)
    lengthen = StageOptions(epochs=4, lr=2e-3, batch_size=2)
    conversion = linearize(llama(), **given, lengthen=lengthen, longer=long)
    scores = conversion.report.scores
    assert scores["matched"] == short.report.scores["matched"]
    assert conversion.report.ratio == scores["lengthened"] / scores["teacher"]
    assert any(line.startswith("lengthened: step ") for line in lines)
    ids = long.windows[:4].long()
    with torch.no_grad():
        far = [
            float(logit_divergence(*(m(input_ids=ids).logits[:, 60:] for m in (model, llama()))))
            for model in (short.model, conversion.model)
        ]
    assert far[1] < 0.8 * far[0]


def test_a_resumed_match_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    from fredholm.lab.distill.matching import Matching

    options = {
        **FAST,
        "distil": OFF,
        "match": StageOptions(epochs=2, lr=5e-3, batch_size=6, lora=2),
    }
    whole = linearize(llama(), **options, folder=tmp_path / "whole")
    left = [0]
    inner = Matching.training_step

    def stopping(self, batch, index):
        left[0] += 1
        if left[0] == 9:
            raise Interrupted("stopped")
        return inner(self, batch, index)

    monkeypatch.setattr(Matching, "training_step", stopping)
    with pytest.raises(Interrupted, match="resume=True"):
        linearize(llama(), **options, folder=tmp_path / "c")
    resumed = linearize(llama(), **options, folder=tmp_path / "c", resume=True)
    assert resumed.report.scores == whole.report.scores
    ours, theirs = (x.model.state_dict() for x in (resumed, whole))
    assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_low_rank_updates_are_merged_only_into_attention():
    model = llama()
    options = {**FAST, "distil": OFF, "match": StageOptions(lr=5e-3, batch_size=8, lora=2)}
    converted = linearize(model, **options).model
    source, state = model.state_dict(), converted.state_dict()
    assert {name for name in state if "linear_heads" not in name} == set(source)
    for name, value in source.items():
        inside = ".self_attn." in name
        assert state[name].equal(value) != inside, name
        change = state[name] - value
        if inside:
            assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 2
    assert all(p.requires_grad for p in converted.parameters())


def test_low_rank_updates_need_a_rank_and_linear_layers():
    with pytest.raises(OptionError, match="rank of 1"):
        StageOptions(lora=0)
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=16)
    gpt2 = replace_attention(transformers.GPT2LMHeadModel(config).eval(), "hedgehog", probe=False)
    with pytest.raises(ConversionError, match=r"expected attention with torch\.nn\.Linear"):
        Lora(gpt2, 2, seed=0)


def test_a_regression_has_no_logits_to_match():
    from tests.linearize import models

    ids = torch.randint(1, models.VOCABULARY, (4, 6))
    data = [({"input_ids": row}, torch.tensor(0.5)) for row in ids]
    model = transformers.BertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=models.VOCABULARY,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
            num_labels=1,
        )
    ).eval()
    with pytest.raises(OptionError, match="match: expected logits of two classes or more"):
        linearize(
            model, "t2r", data=(data, data), task="regression", distil=OFF, match=MATCH, tune=OFF
        )


def test_calibration_gives_the_past_the_weight_of_softmax():
    model = llama()
    ids = torch.tensor([list(TEXTS[0].encode()[:40])])
    replaced = replace_attention(model, "hedgehog", window=4, options={"softmax": True})
    with torch.no_grad():
        before, after = {}, {}
        for mode, seen in (("distil", before), ("calibrate", None), ("distil", after)):
            replaced.switch(mode)
            replaced.model(input_ids=ids)
            if seen is not None:
                seen |= {name: float(x) for name, x in replaced.losses().items()}
        for name, part in replaced.parts.items():
            assert after[name] < before[name], name
            gains = part.gain.clone()
            replaced.switch("calibrate")
            replaced.model(input_ids=ids)
            torch.testing.assert_close(part.gain, gains, atol=1e-4, rtol=0)  # it is there already


def distillation() -> Distillation:
    """Return the first stage of a decoder with a window, with a stand-in for its trainer."""
    replaced = replace_attention(llama(), "hedgehog", window=4)
    stage = Distillation(replaced, lambda rank, world_size: None, DISTIL, 0)
    stage._trainer = SimpleNamespace(global_step=0, current_epoch=0, global_rank=0, world_size=1)
    return stage


def test_a_refused_batch_does_not_calibrate_gains():
    stage = distillation()
    before = [gain.clone() for gain in stage.replaced.gains()]
    ids = torch.tensor([list(TEXTS[0].encode()[:40])] * 2)
    mask = torch.ones_like(ids)
    mask[1] = 0
    with pytest.raises(DataError, match=r"got only padding in samples \[1\]"):
        stage.on_train_batch_start(({"input_ids": ids, "attention_mask": mask}, ids), 0)
    assert len(before) == 2
    for gain, old in zip(stage.replaced.gains(), before):
        assert gain.equal(old)


def test_gains_are_averaged_over_processes():
    """Each process calibrates on its part of the first batch and then has the mean of both."""
    ids = torch.tensor([list(TEXTS[0].encode()[start : start + 40]) for start in (0, 7)])
    parts = []
    for part in ids:
        stage = distillation()
        stage.on_train_batch_start(({"input_ids": part[None]}, part), 0)
        parts.append([gain.detach().clone() for gain in stage.replaced.gains()])

    stage = distillation()
    others = iter(parts[1])

    def reduce(tensor, reduce_op):
        assert reduce_op == "mean"
        return (tensor + next(others)) / 2

    stage._trainer.world_size = 2
    stage._trainer.strategy = SimpleNamespace(reduce=reduce)
    stage.on_train_batch_start(({"input_ids": ids[:1]}, ids[:1]), 0)
    for gain, *both in zip(stage.replaced.gains(), *parts, strict=True):
        assert not both[0].equal(both[1])
        torch.testing.assert_close(gain.detach(), torch.stack(both).mean(0))


# --- data -----------------------------------------------------------------------------------------


def test_windows_lie_inside_documents_and_remainders_are_joined():
    data = TokenWindows("t", "train", ["abcdefgh", "xy", "zw"], Letters(), 3)
    rows = [bytes(row.tolist()).decode() for row in data.windows]
    assert rows == ["abc", "def", "ghx", "yzw"]
    inputs, labels = data.batch([1])
    assert labels.tolist() == [[*inputs["input_ids"][0, 1:].tolist(), -100]]
    with pytest.raises(DataError, match="expected 9 tokens for a window, got 4"):
        TokenWindows("t", "train", ["abcd"], Letters(), 9)


class Tokenised:
    """Rows for a decoder in the format of Hugging Face's data sets: the labels are its tokens."""

    def __init__(self, own: bool = False):
        data = windows("train", TEXTS)
        inputs, following = data.batch(range(len(data)))
        self.ids = inputs["input_ids"]
        self.following = following
        self.own = own

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        if self.own:
            return {"input_ids": self.ids[i]}, self.following[i]
        return {"input_ids": self.ids[i].tolist(), "labels": self.ids[i].tolist()}


def test_labels_of_a_decoder_are_its_tokens():
    """transformers' models shift them to predict the next token."""
    train, _ = two_splits((Tokenised(), Tokenised(own=True)), decoder=True)
    inputs, following = train.batch([0, 1])
    model = llama()
    with torch.no_grad():
        expected = float(model(**inputs, labels=inputs["input_ids"]).loss)
        found = float(Tokens().loss(model(**inputs).logits, following))
    assert math.isclose(found, expected, rel_tol=1e-5)
    reached = [
        fine_tune(
            llama(), data=(rows, rows), task="tokens", options=StageOptions(epochs=1, batch_size=4)
        )
        for rows in (Tokenised(), Tokenised(own=True))
    ]
    assert reached[0] == reached[1]


def test_labels_of_an_encoder_decoder_are_its_decoders_inputs():
    """They are shifted as by the model, which would otherwise read its encoder's tokens."""
    from tests.linearize.library import inputs, library

    ids = torch.randint(3, 40, (4, 7), generator=torch.Generator().manual_seed(3))
    ids[0, 5:] = -100
    for name in ("bart", "whisper"):
        model = library(name)
        given = {"input_features": inputs("whisper")["input_features"]}
        given = {"input_ids": ids.clamp(min=3)} if name == "bart" else given
        count = len(next(iter(given.values())))
        rows = [{"labels": ids[i]} | {key: x[i] for key, x in given.items()} for i in range(count)]
        with torch.no_grad():
            expected = math.exp(float(model(**given, labels=ids[:count]).loss))
        found = linearize(
            model,
            "hedgehog",
            data=(rows, rows),
            task="tokens",
            keep_refused=True,
            distil=OFF,
            tune=OFF,
        )
        assert math.isclose(found.report.scores["teacher"], expected, rel_tol=1e-5)
    model = library("bart")
    rows = [{"input_ids": ids[1], "labels": ids[1]}]
    model.config.decoder_start_token_id = None
    with pytest.raises(DataError, match="set decoder_start_token_id and pad_token_id"):
        fine_tune(model, data=(rows, rows), task="tokens", options=StageOptions(epochs=1))


# --- the receipt ----------------------------------------------------------------------------------


DOCUMENTS = Documents(
    {"seen": TEXTS, "other": TEXTS[::-1]},
    Letters(),
    positions=(32, 128, 4096),
    distances=(8, 32),
    needles=2,
    depth=8,
    lists=1,
    list_distances=(8,),
    copies=(8,),
    lengths=(16, 64),
    repeats=2,
    prompts=("hello",),
    new_tokens=3,
)


def test_a_receipt_of_the_teacher_shows_no_loss_and_exact_bytes(tmp_path):
    model = llama()
    replaced = replace_attention(model, "hedgehog", window=4, options={"softmax": True})
    with replaced.mode("softmax"):
        same = measure_receipt(model, replaced.model, DOCUMENTS)
    for rows in same["perplexity"].values():
        assert [row["to"] for row in rows] == [32, 128], "no document has 4,096 tokens"
        assert all(row["ratio"] == pytest.approx(1.0, abs=1e-4) for row in rows)
    for row in (*same["recall"], *same["lists"], *same["copying"]):
        assert row["teacher"] == row["student"]
    (texts,) = same["continuations"]
    assert texts["teacher"] == texts["student"]
    model.generation_config.repetition_penalty = 50.0  # of a folder; the likeliest has none
    penalised = _continued({"teacher": model}, DOCUMENTS, "hello", 64)
    assert penalised["teacher"] == texts["teacher"]
    assert model.generation_config.repetition_penalty == 50.0
    model.generation_config.repetition_penalty = 1.0

    receipt = measure_receipt(model, replaced.model, DOCUMENTS)
    sizes = [row["student_bytes"] for row in receipt["decoding"]]
    assert sizes[0] == sizes[1] < receipt["decoding"][1]["teacher_bytes"]
    token = receipt["decoding"][0]["teacher_bytes"] / 16
    assert token == 2 * 2 * 2 * 8 * 4  # layers, keys and values, heads of keys, width, bytes
    assert receipt["smaller_from"] == int(sizes[0] // token) + 1
    assert f"from {receipt['smaller_from']:,} tokens on" in receipt["sentence"]

    report = ConversionReport.of(replaced, "Llama")
    report.receipt = json.loads(json.dumps(receipt))
    page = write_page(report, tmp_path / "page.html").read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings[:4] == [
        "What was replaced",
        "What it lost",
        "What it remembers",
        "What it saves",
    ]
    assert "The same prompts side by side" in headings
    row = receipt["perplexity"]["seen"][0]
    low, high = row["ratio_interval"]
    assert low <= row["ratio"] <= high
    assert f"{row['ratio']:.3f} ({low:.3f} to {high:.3f})" in page
    assert f"<dd>{row_text(receipt)}</dd>" in page, "an example of text, as it was generated"
    assert ConversionReport.from_dict(report.to_dict()) == report


def test_a_continuation_starts_with_its_space():
    class Stripped(Letters):
        """Decode as SentencePiece does, without a space at the beginning of a text."""

        def decode(self, numbers, skip_special_tokens=True):
            return super().decode(numbers).lstrip()

    model = llama()
    model.lm_head.register_forward_hook(
        lambda _, __, logits: logits.index_fill(-1, torch.tensor(32), 1e9)
    )
    documents = replace(DOCUMENTS, tokenizer=Stripped())
    assert _continued({"teacher": model}, documents, "hello", 64)["teacher"] == 3 * " "


def row_text(receipt):
    """Return the converted model's first continuation on the page."""
    return str(markupsafe.escape(receipt["continuations"][0]["student"]))


def test_the_page_of_an_older_receipt_has_no_empty_section(tmp_path):
    """It lacks intervals, lists, copies, positions of decoding and continuations."""
    replaced = replace_attention(llama(), "hedgehog")
    report = ConversionReport.of(replaced, "Llama")
    stretch = {"from": 0, "to": 32, "segments": 1, "teacher": 2.0, "student": 3.0, "ratio": 1.5}
    empty = {key: [] for key in ("recall", "copying", "decoding", "continuations")}
    report.receipt = {"perplexity": {"seen": [stretch]}, **empty}
    report.receipt |= {"smaller_from": None, "faster_from": None}
    page = write_page(report, tmp_path / "page.html").read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == ["What was replaced", "What it lost", "Layer by layer"]
    assert "no intervals" in page


def test_a_ratio_of_perplexities_has_an_interval_over_segments():
    """Four times the segments halve its width; one segment has none."""
    lost = torch.tensor([[0.1], [0.3]]).expand(2, 50)
    low, high = ratio_interval(lost)
    assert low < math.exp(0.2) < high
    narrow = ratio_interval(lost.repeat(4, 1))
    assert math.log(narrow[1] / narrow[0]) < 0.5 * math.log(high / low)
    assert ratio_interval(lost[:1]) is None


def test_perplexity_by_position_equals_the_models_loss():
    model = llama()
    tokens = [torch.tensor(list(text.encode())) for text in TEXTS]
    first, second = by_position({"teacher": model, "student": model}, tokens, DOCUMENTS, 512)
    rows = segments(tokens, 128, 2)
    with torch.no_grad():
        losses = torch.stack([cross_entropies(model(x[None]).logits[0, :-1], x[1:]) for x in rows])
    assert first["teacher"] == pytest.approx(float(losses[:, :31].mean().exp()), rel=1e-5)
    assert second["student"] == pytest.approx(float(losses[:, 32:127].mean().exp()), rel=0.05)


def test_a_receipt_needs_long_enough_documents():
    with pytest.raises(DataError, match="got 5 at most; give longer texts"):
        measure_receipt(llama(), llama(), Documents({"seen": ["abcde"]}, Letters()))


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "decoding"), [(20, []), (39, [15]), (100, [16, 64])])
def test_a_receipt_respects_learned_positions(limit, decoding, tmp_path):
    """Learned positions limit prompts; they have 5 and 64 letters."""
    config = transformers.GPT2Config(
        vocab_size=128, n_positions=limit, n_embd=16, n_layer=1, n_head=2
    )
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config).eval()
    documents = replace(
        DOCUMENTS, positions=(256, 1024), prompts=("hello", "x" * 64), new_tokens=48
    )
    replaced = replace_attention(model, "hedgehog", window=4)
    report = ConversionReport.of(replaced, "GPT2")
    report.receipt = receipt = measure_receipt(model, replaced.model, documents)
    for rows in receipt["perplexity"].values():
        assert [(row["from"], row["to"]) for row in rows] == [(0, limit)]
    assert [row["length"] for row in receipt["decoding"]] == decoding
    assert (receipt["smaller_from"] is None) == (not decoding)
    assert [x["prompt"][0] for x in receipt["continuations"]] == ["h", "x"][: 1 + (limit > 64)]
    assert "What it lost" in write_page(report, tmp_path / "page.html").read_text()


@pytest.mark.slow
def test_a_model_is_saved_before_its_receipt_is_measured(tmp_path, monkeypatch):
    from fredholm.convert import load_linearized
    from fredholm.lab.distill import linearize as module

    def fails(*given):
        raise DataError("no receipt")

    monkeypatch.setattr(module, "measure_receipt", fails)
    given = {**FAST, "distil": OFF, "documents": DOCUMENTS, "folder": tmp_path / "c"}
    with pytest.raises(DataError, match="no receipt"):
        linearize(llama(), **given)
    ids = torch.tensor([[5, 6, 7]])
    saved = load_linearized(tmp_path / "c" / "model")
    whole = linearize(llama(), **given | {"documents": None, "folder": None}).model
    assert saved(input_ids=ids).logits.equal(whole(input_ids=ids).logits)

    monkeypatch.undo()
    report = linearize(llama(), **given | {"folder": tmp_path / "d"}).report
    card = (tmp_path / "d" / "model" / "README.md").read_text()
    assert report.receipt["sentence"] in card, "which is measured after the weights are written"
    assert load_linearized(tmp_path / "d" / "model")(input_ids=ids).logits.isfinite().all()


# --- generation from a folder ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Save a small decoder with its tokenizer in transformers' format."""
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(("<end>", "the", "fox", "dog", "jumps", "."))}
    model = tokenizers.models.WordLevel(words, unk_token="<end>")
    own = tokenizers.Tokenizer(model)
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    place = tmp_path_factory.mktemp("decoder")
    transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>").save_pretrained(
        place
    )
    config = transformers.GPT2Config(
        n_embd=8, n_layer=1, n_head=2, vocab_size=6, n_positions=16, eos_token_id=0, bos_token_id=0
    )
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(config).save_pretrained(place)
    return place


def test_text_from_a_converted_folder_equals_that_of_its_model(folder, tmp_path):
    from fredholm.training import linearize_source

    given = {"say": lambda line: None, "window": 4, "out": tmp_path / "out"}
    model = linearize_source(folder, "hedgehog", **given).model
    draws = {"length": 4, "temperature": 0.0}
    result = generate(tmp_path / "out", "the fox", **draws)
    ids = torch.tensor([[1, 2]])
    expected = model.generate(ids, max_new_tokens=4, do_sample=False)[0, 2:]
    assert result["tokens"] == expected.tolist()
    assert result["log_probability"] < 0
    words = transformers.AutoTokenizer.from_pretrained(folder)
    assert "the fox" + result["text"] == words.decode([1, 2, *expected], skip_special_tokens=True)
    again = [generate(tmp_path / "out", "the fox", length=4, seed=3)["tokens"] for _ in range(2)]
    assert again[0] == again[1]


def test_the_space_before_a_continuation_is_printed():
    tokenizers = pytest.importorskip("tokenizers")
    words = {"<unk>": 0, "▁the": 1, "▁king": 2, "▁said": 3, "s": 4, "▁,": 5}
    own = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    own.decoder = tokenizers.decoders.Metaspace()
    options = {"clean_up_tokenization_spaces": True, "unk_token": "<unk>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, **options)
    assert text_after(tokenizer, [1, 2], [3, 2]) == " said king"
    assert text_after(tokenizer, [1, 2], [4, 3]) == "s said"
    assert text_after(tokenizer, [1, 2, 0], [3]) == " said"

    class Closer:
        """A tokenizer that joins an apostrophe to the previous word, even of the prompt."""

        def decode(self, tokens, skip_special_tokens, clean_up_tokenization_spaces=True):
            text = " ".join(("do", "n", "'t", "go")[token] for token in tokens)
            return text.replace("do n 't", "don't") if clean_up_tokenization_spaces else text

    assert text_after(Closer(), [0, 1], [2, 3]) == " 't go"


def test_only_the_end_of_text_is_read_from_the_generation_configuration(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    given = {"num_beams": 3, "repetition_penalty": 9.0, "no_repeat_ngram_size": 1, "min_p": 0.9}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    whole = [1, 2]
    for _ in range(6):
        whole.append(int(model(torch.tensor([whole])).logits[0, -1].argmax()))
    assert generate(tmp_path, "the fox", length=6, temperature=0.0)["tokens"] == whole[2:]
    firsts = [generate(tmp_path, "the fox", length=1, seed=seed)["tokens"][0] for seed in range(60)]
    assert len(set(firsts)) > 3, "a near uniform distribution, of which min_p leaves little"
    (tmp_path / "generation_config.json").write_text(json.dumps(given | {"eos_token_id": whole[2]}))
    assert generate(tmp_path, "the fox", length=6, temperature=0.0)["tokens"] == [whole[2]]


def test_unusable_prompts_are_refused(folder, tmp_path):
    with pytest.raises(DomainError, match="16 positions"):
        generate(folder, "the fox jumps . " * 5, length=2)
    with pytest.raises(OptionError, match="at least one token"):
        generate(folder, "", length=2)
    with pytest.raises(OptionError, match="no template"):
        generate(folder, "the fox", length=2, chat=True)
    with pytest.raises(CheckpointError):
        generate(tmp_path, "the fox", length=2)


def test_two_gguf_files_or_a_damaged_one_are_refused(tmp_path):
    pytest.importorskip("gguf")
    from fredholm.linearization.transformers_folder import load_gguf

    (tmp_path / "a.gguf").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="cannot read it"):
        load_gguf(tmp_path)
    (tmp_path / "b.gguf").write_bytes(b"no model")
    with pytest.raises(CheckpointError, match="holds 2 GGUF files"):
        load_gguf(tmp_path)


def test_weights_by_name_are_fetched_with_their_default_texts(tmp_path, monkeypatch):
    from fredholm.lab.distill import sources

    asked = []
    monkeypatch.setattr(sources, "dataset_path", lambda name: tmp_path / name)
    monkeypatch.setattr(sources, "fetch", asked.append)
    monkeypatch.setattr(sources, "load_gguf", lambda folder: None)
    with pytest.raises(CheckpointError, match=r"expected a folder with config\.json"):
        sources.linearize_source("smollm2", out=tmp_path / "out")
    assert asked == ["smollm2"]
    with pytest.raises(CheckpointError, match=r"expected a folder with config\.json"):
        sources.linearize_source(tmp_path, out=tmp_path / "out")
    assert asked == ["smollm2"], "a folder is not fetched"


# --- precision and inputs -------------------------------------------------------------------------


def test_a_bfloat16_decoder_is_converted_and_trained():
    steps = {"batch_size": 4, "steps": 2}
    stages = {"distil": StageOptions(lr=1e-2, **steps), "match": StageOptions(lr=1e-3, **steps)}
    model = linearize(llama().to(torch.bfloat16), **{**FAST, **stages}).model
    assert model.lm_head.weight.dtype == torch.bfloat16
    assert torch.isfinite(model(torch.tensor([[5, 6, 7]])).logits).all()
    out = model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
    assert out.shape == (1, 7)


def learned(model, monkeypatch, **stage):
    """Return a conversion by one stage, the number of trained numbers that its steps changed, and
    the losses of these steps.
    """
    from fredholm.lab.distill.stages import Stage

    first = []
    last = []
    losses = []
    inner = Stage.training_step

    def watched(self, batch, index):
        last[:] = [p.detach().clone() for p in self.trained()]
        assert all(p.dtype == torch.float32 for p in last)
        first[:] = first or last
        loss = inner(self, batch, index)
        losses.append(float(loss.detach()))
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Stage, "training_step", watched)
        stages = {"distil": OFF, "match": OFF, "tune": OFF} | stage
        conversion = linearize(model, **FAST | stages)
    moved = sum(int((x != y).sum()) for x, y in zip(first, last))
    return conversion.model, moved, torch.tensor(losses)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage",
    [
        {"tune": replace(TUNE, epochs=1, batch_size=4)},
        {"match": replace(DECODER["match"], batch_size=4)},
        {"match": replace(DECODER["match"], batch_size=4, lora=2)},
    ],
    ids=["tune", "match", "low-rank match"],
)
def test_a_half_precision_source_trains_as_in_float32(stage, monkeypatch):
    source = llama().to(torch.bfloat16)
    half, moved, losses = learned(source, monkeypatch, **stage)
    single, expected, curve = learned(copy.deepcopy(source).float(), monkeypatch, **stage)
    assert moved > 0.95 * expected
    torch.testing.assert_close(losses, curve, rtol=0.05, atol=0.01)
    theirs, before = single.state_dict(), source.state_dict()
    for name, weight in half.state_dict().items():
        assert weight.dtype == before.get(name, theirs[name]).dtype, name
        torch.testing.assert_close(weight.float(), theirs[name], rtol=0.01, atol=0.01)
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in half.parameters())


def test_low_rank_updates_of_half_precision_layers_are_float32():
    layer = torch.nn.Linear(6, 4).to(torch.bfloat16)
    before = layer.weight.clone()
    change = LowRankChange(layer, 2)
    assert change.down.dtype == change.up.dtype == torch.float32
    torch.nn.init.normal_(change.up)
    x = torch.randn(5, 6, dtype=torch.bfloat16)
    out = change(x)
    assert out.dtype == torch.bfloat16
    expected = before.float() + change.up.detach() @ change.down.detach()
    assert change.merged().weight.equal(expected.to(torch.bfloat16))
    torch.testing.assert_close(out, layer(x), rtol=0.05, atol=0.05)


def test_too_long_texts_and_data_without_texts_are_refused(folder, tmp_path):
    from fredholm.training import linearize_source

    with pytest.raises(OptionError, match="--max-length: expected at most 16"):
        linearize_source(folder, data="python-docs", max_length=17, out=tmp_path / "a")
    with pytest.raises(OptionError, match=r"--data: expected a data set of texts, got .* images"):
        linearize_source(folder, data="digits", max_length=8, out=tmp_path / "b")
    with pytest.raises(OptionError, match="--lengthen: expected a language model"):
        linearize_source(folder, longer=8, out=tmp_path / "c")
    with pytest.raises(OptionError, match="--lengthen-steps: expected --lengthen beside it"):
        linearize_source(folder, lengthen={"steps": 2}, out=tmp_path / "c")
    with pytest.raises(OptionError, match="--unseen: expected a language model"):
        linearize_source(folder, unseen="python-docs", out=tmp_path / "c")
    with pytest.raises(OptionError, match="--task: expected tokens, which a language model"):
        linearize_source(folder, data="python-docs", task="regression", out=tmp_path / "c")
    with pytest.raises(OptionError, match="--distil: expected data to train on"):
        linearize_source(folder, distil=StageOptions(), out=tmp_path / "c")


def test_a_run_is_converted_with_the_task_of_its_data(tmp_path):
    from fredholm.training import linearize_source, load_recipe, train

    changes = ["model={name: backbone_nano, body: {depth: 1, dim: 16}}", "operator=softmax"]
    changes += ["data.options={length: 8, train: 16, val: 8, test: 8}", "training.epochs=1"]
    train(load_recipe("ckcnn-adding", [*changes, "data.batch_size=8"]), tmp_path / "run")
    once = {"distil": {"epochs": 1}, "tune": {"epochs": 1}, "say": lambda line: None}
    report = linearize_source(tmp_path / "run", "hedgehog", out=tmp_path / "out", **once).report
    assert report.metric == "spearman"
    assert set(report.scores) == {"teacher", "before", "distilled", "tuned"}


def test_windows_of_rotary_models_are_spread_over_positions():
    from transformers import GPT2Config, GPT2LMHeadModel

    from fredholm.lab.distill import sources

    model = llama()
    limit = model.config.max_position_embeddings
    assert sources._reach(model, None, 24, limit) == min(limit, sources.REACH)
    assert sources._reach(model, None, limit, limit) is None  # a window takes all there are
    assert sources._reach(model, 0, 24, limit) is None
    assert sources._reach(model, 30, 24, limit) == 30
    other = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=1, n_embd=4, vocab_size=8))
    assert sources._reach(other, None, 24, 1024) is None
    with pytest.raises(OptionError, match="--reach: expected a model with rotary positions"):
        sources._reach(other, 30, 24, 1024)
