"""Two stages of a conversion: training, bitwise resuming, and refusals."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fredholm import linearize
from fredholm.convert import ConversionReport, load_linearized, replace_attention
from fredholm.encoders import Inputs
from fredholm.errors import ConversionError, DataError, OptionError, RecipeError
from fredholm.lab.distill.compress import Signals
from fredholm.lab.distill.data import Part, TokenTexts, TokenWindows, as_dataset, two_splits
from fredholm.lab.distill.fit import _back_in_place
from fredholm.lab.distill.lora import Lora
from fredholm.lab.distill.page import write_page
from fredholm.lab.distill.progress import Progress
from fredholm.lab.distill.receipt import Documents
from fredholm.lab.distill.scores import _to, divergences, evaluate
from fredholm.lab.distill.speed import token_inputs
from fredholm.lab.training.metrics import spearman
from fredholm.lab.training.tasks import create_task
from fredholm.linearization.positions import positions_of
from fredholm.training import Interrupted, StageOptions, TrainingFailed, fine_tune
from tests.linearize import models

transformers = pytest.importorskip("transformers")


class Counting(Dataset):
    """Padded sequences of 6 to 10 tokens. The label says whether the first token is in the upper
    half of the vocabulary.
    """

    def __init__(self, size: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(1, models.VOCABULARY, (size, models.N), generator=generator)
        lengths = torch.randint(6, models.N + 1, (size, 1), generator=generator)
        self.mask = (torch.arange(models.N) < lengths).long()
        self.labels = (self.ids[:, 0] > models.VOCABULARY // 2).long()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return {
            "input_ids": self.ids[i] * self.mask[i],
            "attention_mask": self.mask[i],
        }, self.labels[i]


DATA = Counting(48, 0), Counting(24, 1)
DISTIL = StageOptions(epochs=3, lr=2e-2)
TUNE = StageOptions(epochs=2, lr=1e-3, patience=2)
FAST = {"data": DATA, "distil": DISTIL, "tune": TUNE}


class Rows(Dataset):
    """The same samples as named rows, in lists, with the `batch` of Hugging Face's data sets."""

    def __init__(self, source, label="labels", **more):
        self.source, self.label, self.more = source, label, more

    def __len__(self):
        return len(self.source)

    def __getitem__(self, i):
        inputs, label = self.source[i]
        rows = {name: value.tolist() for name, value in inputs.items()}
        return rows | self.more | {self.label: int(label)}

    def batch(self, batch_size):
        raise AssertionError("this is another batch")


@pytest.mark.parametrize("label", ["labels", "label"])
def test_rows_by_name_equal_samples(label):
    expected, labels = as_dataset(DATA[0]).batch([3, 5])
    found, same = as_dataset(Rows(DATA[0], label)).batch([3, 5])
    assert same.equal(labels)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(expected[name]) for name in expected)


def test_invalid_samples_are_named():
    with pytest.raises(DataError, match=r"dict with input_ids, attention_mask, target; give the"):
        as_dataset(Rows(DATA[0], "target")).batch([0])
    with pytest.raises(DataError, match="expected numbers as 'text' of a sample, got"):
        as_dataset(Rows(DATA[0], text="good")).batch([0])
    with pytest.raises(DataError, match=r"expected samples \(inputs, label\), .* got a Tensor"):
        as_dataset(torch.ones(4, 3)).batch([0])
    ragged = [({"input_ids": torch.ones(n)}, 0) for n in (3, 4)]
    with pytest.raises(
        DataError, match=r"expected samples of one shape, .* pad them to one length"
    ):
        as_dataset(ragged).batch([0, 1])
    with pytest.raises(OptionError, match=r"expected a pair \(training, validation\)"):
        two_splits(DATA[0])


def test_distillation_lowers_the_divergence_and_reports_scores(tmp_path):
    lines: list[str] = []
    conversion = linearize(models.bert(), "luna", folder=tmp_path / "c", say=lines.append, **FAST)
    report = conversion.report
    assert all(row.after < 0.7 * row.before for row in report.layers)
    assert set(report.scores) == {"teacher", "before", "distilled", "tuned"}
    assert report.metric == "accuracy"
    assert report.recovered == pytest.approx(
        100 * report.scores["tuned"] / report.scores["teacher"]
    )
    assert report.epochs["distilled"] == 3
    assert any("distilled: epoch 3/3" in line for line in lines)

    saved = tmp_path / "c" / "model"
    assert ConversionReport.from_dict(json.loads((saved / "conversion.json").read_text())) == report
    page = (saved / "conversion.html").read_text()
    assert all(row.name in page for row in report.layers)
    assert "bert.encoder.layer.0.attention.self.linear_heads.feature_map.weight" in page
    assert "script" not in page.replace("Content-Security-Policy", "")
    loaded = load_linearized(saved)
    inputs = models.padded()
    with torch.no_grad():
        assert loaded(**inputs).logits.equal(conversion.model(**inputs).logits)


def test_a_resumed_conversion_equals_an_uninterrupted_one(tmp_path, monkeypatch):
    from fredholm.lab.distill import stages

    whole = linearize(models.bert(), "hedgehog", folder=tmp_path / "whole", **FAST)
    left = [0]
    inner = stages.Stage.training_step

    def stopping(self, batch, index):
        left[0] -= 1
        if not left[0]:
            raise Interrupted("stopped")
        return inner(self, batch, index)

    monkeypatch.setattr(stages.Stage, "training_step", stopping)
    for steps, resume in (
        (8, False),
        (20, True),
    ):  # while distilling, whose last checkpoint is 6 of 18 steps; then while tuning
        left[0] = steps
        with pytest.raises(Interrupted, match="resume=True"):
            linearize(models.bert(), "hedgehog", folder=tmp_path / "c", resume=resume, **FAST)
    monkeypatch.setattr(stages.Stage, "training_step", inner)
    resumed = linearize(models.bert(), "hedgehog", folder=tmp_path / "c", resume=True, **FAST)
    assert resumed.report.scores == whole.report.scores
    for (name, ours), (_, theirs) in zip(
        resumed.model.state_dict().items(), whole.model.state_dict().items()
    ):
        assert ours.equal(theirs), name

    with pytest.raises(OptionError, match="got one with a conversion; resume it"):
        linearize(models.bert(), "hedgehog", folder=tmp_path / "c", **FAST)
    with pytest.raises(RecipeError, match="got others for to;"):
        linearize(models.bert(), "luna", folder=tmp_path / "c", resume=True, **FAST)
    with pytest.raises(OptionError, match="expected the one in which the conversion was begun"):
        linearize(models.bert(), "luna", resume=True, **FAST)


def test_a_conversion_is_resumed_only_with_its_model_and_data(tmp_path):
    model = models.bert()
    folder = tmp_path / "c"
    options = {"folder": folder, "distil": StageOptions(epochs=0), "tune": StageOptions(epochs=0)}
    known = linearize(model, "hedgehog", data=DATA, **options).report.scores
    other = models.bert()
    with torch.no_grad():
        other.classifier.bias += 1
    with pytest.raises(RecipeError, match="got others for weights; give the same, or"):
        linearize(other, "hedgehog", data=DATA, resume=True, **options)
    with pytest.raises(RecipeError, match="got others for data;"):
        linearize(model, "hedgehog", data=(Counting(32, 0), DATA[1]), resume=True, **options)

    again = linearize(model, "hedgehog", data=DATA, resume=True, **options)
    assert again.report.scores == known

    path = folder / "progress.json"
    saved = json.loads(path.read_text())
    del saved["settings"]["weights"]
    path.write_text(json.dumps(saved))
    with pytest.raises(RecipeError, match="got others for weights;"):
        linearize(model, "hedgehog", data=DATA, resume=True, **options)


@pytest.mark.parametrize("left_out", ["data", "longer"])
def test_an_option_left_out_does_not_resume_another_conversion(tmp_path, left_out):
    once = StageOptions(epochs=1, lr=1e-4)
    options = {
        "folder": tmp_path / "c",
        "distil": StageOptions(epochs=0),
        "tune": StageOptions(epochs=0),
        "lengthen": once,
        "data": DATA,
        "longer": DATA[0],
    }
    linearize(models.bert(), "hedgehog", **options)
    saved = (tmp_path / "c" / "model" / "conversion.json").read_bytes()
    del options[left_out]

    setting = {"data": "data", "longer": "data, lengthen"}[left_out]
    with pytest.raises(RecipeError, match=f"got others for {setting};"):
        linearize(models.bert(), "hedgehog", resume=True, **options)
    assert (tmp_path / "c" / "model" / "conversion.json").read_bytes() == saved


def test_measurements_of_another_model_are_not_reused(tmp_path):
    progress = Progress(tmp_path / "c", {}, False)
    calls = []

    def measured(of):
        return progress.get("receipt", lambda: calls.append(of) or len(calls), of=of)

    assert [measured(of) for of in ([1, 2], (1, 2), [3])] == [1, 1, 2]
    again = Progress(tmp_path / "c", {}, True)
    assert again.get("receipt", lambda: 3, of=[3]) == 2
    first, second = (Documents({"code": texts}, None).facts() for texts in (["a"], ["b"]))
    assert first != second
    assert first == Documents({"code": ["a"]}, object()).facts()


def test_scoring_restores_the_mode_of_each_module():
    model = models.bert().train()
    model.bert.embeddings.eval()
    before = [module.training for module in model.modules()]
    evaluate(model, as_dataset(DATA[1]), create_task())
    assert [module.training for module in model.modules()] == before


def test_windows_of_another_length_or_reach_are_other_data():
    from fredholm.lab.distill.linearize import _facts

    def letters(texts):
        return {"input_ids": [list(text.encode()) for text in texts]}

    made = [
        TokenWindows("tiny", "train", ["abcdefgh"], letters, length, reach=reach)
        for length, reach in ((4, None), (4, 9), (2, None))
    ]
    some = _facts(Part(made[1], torch.arange(1)))
    assert some == {"name": "tiny", "samples": 1, "max_length": 4, "reach": 9}
    facts = [_facts(windows) for windows in made]
    assert all(facts.count(each) == 1 for each in facts)


def test_a_non_finite_distillation_loss_names_step_and_layer():
    broken = models.bert()
    with torch.no_grad():
        broken.bert.encoder.layer[1].attention.self.query.weight.fill_(math.inf)
    with pytest.raises(
        TrainingFailed, match=r"layer bert\.encoder\.layer\.1\.attention\.self: .*got nan at step 0"
    ):
        linearize(broken, "t2r", probe=False, **FAST)
    with pytest.raises(ConversionError, match="not finite on a small random signal"):
        linearize(broken, "t2r", **FAST)


def test_samples_of_padding_alone_are_refused():
    class Empty(Counting):
        def __getitem__(self, i):
            inputs, label = super().__getitem__(i)
            return {**inputs, "attention_mask": torch.zeros_like(inputs["attention_mask"])}, label

    with pytest.raises(DataError, match="got only padding in samples"):
        linearize(models.bert(), data=(Empty(4, 0), Empty(4, 1)), distil=DISTIL, tune=TUNE)


def test_stages_may_be_left_out():
    plain = linearize(models.bert(), "performer")
    assert plain.report.scores == {}
    only = linearize(
        models.bert(), "performer", data=DATA, distil=DISTIL, tune=StageOptions(epochs=0)
    )
    assert set(only.report.scores) == {"teacher", "before"}, "performer has nothing to distil"
    assert "performer" in str(only.report)


def test_mixed_precision_trains():
    options = {"distil": StageOptions(epochs=1, lr=1e-2), "tune": StageOptions(epochs=1, lr=1e-3)}
    report = linearize(
        models.bert(), "luna", data=(Counting(16, 0), Counting(8, 1)), precision="bf16", **options
    ).report
    assert all(math.isfinite(row.after) for row in report.layers)
    with pytest.raises(OptionError, match="precision: expected one of"):
        linearize(models.bert(), precision="fp8")


def test_image_models_of_both_libraries_are_converted():
    from fredholm.data import create_dataset

    data = [Part(create_dataset("digits", split), torch.arange(24)) for split in ("train", "val")]
    options = {"distil": StageOptions(epochs=2, lr=5e-3), "tune": StageOptions(epochs=1, lr=1e-3)}
    report = linearize(models.own(), "luna", data=tuple(data), **options).report
    assert all(row.after < row.before for row in report.layers)


def test_low_rank_updates_reach_operators_on_torchs_layers():
    """Operators read their layers' weights with low-rank updates, in values and gradients."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
    replaced = replace_attention(model.double().eval(), "hedgehog")
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    before = replaced.model(x)
    low = Lora(replaced, 2, seed=0)
    torch.testing.assert_close(replaced.model(x), before)
    with torch.no_grad():
        for change in low.changes:
            change.up.normal_()
    out = replaced.model(x)
    grads = torch.autograd.grad(out.square().sum(), low.parameters())
    assert all(g.abs().max() > 0 for g in grads)
    low.merge()
    torch.testing.assert_close(replaced.model(x), out)


def test_pictures_are_normalised_by_the_folders_processor(tmp_path):
    from fredholm.data import create_dataset
    from fredholm.lab.distill.sources import _splits

    model = SimpleNamespace(main_input_name="pixel_values", config=SimpleNamespace(image_size=8))
    plain = create_dataset("digits", "val", image_size=8)
    pixels = plain[0][0] * torch.tensor(plain.std) + torch.tensor(plain.mean)

    def read(facts):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(facts))
        return _splits(model, tmp_path, "digits", None)[1][0][0]

    torch.testing.assert_close(_splits(model, tmp_path, "digits", None)[1][0][0], plain[0][0])
    scale = {"image_mean": [0.2], "image_std": [0.4]}
    torch.testing.assert_close(read(scale), (pixels - 0.2) / 0.4)
    torch.testing.assert_close(read({"do_normalize": False, **scale}), pixels)
    with pytest.raises(OptionError, match=r"expected pictures with 3 channels, .* digits with 1"):
        read({"image_mean": [0.2] * 3, "image_std": [0.4] * 3})


def test_a_regression_is_scored_by_rank_correlation():
    model = models.bert(num_labels=1)
    names = "input_ids", "attention_mask"
    data = [
        [({name: x[name] for name in names}, y.float()) for x, y in (d[i] for i in range(16))]
        for d in DATA
    ]
    report = linearize(
        model, "hedgehog", data=tuple(data), task="regression", distil=StageOptions(), tune=TUNE
    ).report
    assert report.metric == "spearman"
    assert -1 <= report.scores["tuned"] <= 1


def test_the_training_loop_can_fine_tune_a_teacher():
    model = models.bert()
    before = evaluate(model, as_dataset(DATA[0]), create_task())
    after = fine_tune(
        model, data=(DATA[0], DATA[0]), options=StageOptions(epochs=8, lr=5e-3, patience=8)
    )
    assert after > before


def test_a_fine_tuning_is_resumed_only_with_its_model_and_data(tmp_path):
    once = {"options": StageOptions(), "folder": tmp_path / "t"}
    kept = fine_tune(models.bert(), data=DATA, **once)
    assert fine_tune(models.bert(), data=DATA, resume=True, **once) == kept
    other = models.bert()
    with torch.no_grad():
        other.classifier.bias += 1
    with pytest.raises(RecipeError, match="got others for weights"):
        fine_tune(other, data=DATA, resume=True, **once)
    with pytest.raises(RecipeError, match="got others for data"):
        fine_tune(models.bert(), data=(Counting(32, 0), DATA[1]), resume=True, **once)
    for refused in ({"precision": "fp16"}, {"options": StageOptions(epochs=0)}):
        with pytest.raises(OptionError, match=r"precision: expected|options: expected 1 epoch"):
            fine_tune(models.bert(), data=DATA, folder=tmp_path / "n", **refused)
        assert not (tmp_path / "n").exists()


def test_options_without_effect_are_refused():
    low_rank = StageOptions(lora=2)
    for stage in ("distil", "tune"):
        with pytest.raises(OptionError, match=f"{stage}: expected lora in match or lengthen"):
            linearize(models.bert(), "hedgehog", data=DATA, **{stage: low_rank})
    with pytest.raises(OptionError, match="options: expected lora in match or lengthen"):
        fine_tune(models.bert(), data=DATA, options=low_rank)
    with pytest.raises(OptionError, match="lora: expected a rank of 1 or more, got 0"):
        StageOptions(lora=0)
    with pytest.raises(OptionError, match="lengthen: expected an epoch or more beside longer"):
        linearize(models.bert(), "hedgehog", data=DATA, longer=DATA[0])


def test_a_fit_returns_models_to_their_device(monkeypatch):
    """Lightning moves a trained model to the CPU."""
    model = nn.Linear(2, 2)
    places = []
    monkeypatch.setattr(model, "to", lambda device: places.append(device))
    with _back_in_place([model]):
        assert places == []
    assert places == [torch.device("cpu")]


def test_inputs_of_several_tensors_move_to_the_device():
    inputs = Inputs(tokens=torch.zeros(1, 2))
    assert _to(inputs, torch.device("cpu"))["tokens"].shape == (1, 2)


def test_positions_of_roberta_start_after_padding():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "vocab_size": 16, "max_position_embeddings": 10}
    for kind, count in (("Roberta", 8), ("Bert", 10)):
        config = getattr(transformers, f"{kind}Config")(pad_token_id=1, **sizes)
        model = getattr(transformers, f"{kind}Model")(config).eval()
        assert positions_of(model) == count
        model(token_inputs(model)(count)["input_ids"].clamp(min=2))
        with pytest.raises(OptionError, match=f"expected at most {count} tokens"):
            token_inputs(model)(count + 1)


def test_texts_are_padded_to_the_longest_in_the_batch():
    def tokenizer(first, second=None, **options):
        assert options == {"truncation": True, "max_length": 4}
        rows = [[len(w) for w in a.split()][:4] for a in first]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    texts = TokenTexts(
        "tiny", "train", ["a bb", "ccc", "a b c d e"], torch.tensor([0, 1, 1]), tokenizer, 4
    )
    inputs, labels = texts.batch([0, 1])
    assert inputs["input_ids"].tolist() == [[1, 2], [3, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1], [1, 0]]
    assert labels.tolist() == [0, 1]
    pairs = TokenTexts(
        "tiny", "train", [("a", "b"), ("c", "d")], torch.tensor([0, 1]), tokenizer, 4
    )
    assert len(pairs) == 2
    with pytest.raises(DataError, match="3 texts and 1 labels"):
        TokenTexts("tiny", "train", ["a", "b", "c"], torch.tensor([0]), tokenizer, 4)


def test_a_transform_is_applied_to_any_data_set():
    """A selection also reads only its samples."""

    def letters(texts, **_):
        return {"input_ids": [list(text.encode()) for text in texts]}

    ids = torch.arange(12).view(3, 4)
    texts = ["abcd", "efgh", "ijkl"]
    sets = (
        as_dataset(list(zip(ids, torch.arange(3)))),
        as_dataset([{"input_ids": row, "label": 1} for row in ids]),
        TokenTexts("tiny", "train", texts, torch.arange(3), letters, 4),
        TokenWindows("tiny", "train", texts, letters, 4),
        Signals([(row, None) for row in ids], 3),
    )
    for data in sets:
        given = []
        data.batch([0], lambda inputs, given=given: given.append(inputs) or inputs)
        assert len(given) == 1, type(data).__name__
    for data in sets[2:4]:
        inputs, labels = data.select(torch.tensor([2, 0])).batch([0])
        expected, following = data.batch([2])
        assert inputs["input_ids"].equal(expected["input_ids"])
        assert labels.equal(following)


def test_texts_are_padded_with_the_tokenizers_id():
    """A decoder with a class head finds the last token of a text by the id of padding."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    def tokenizer(texts, **options):
        ids = [[ord(letter) - 96 for letter in text] for text in texts]
        return {"input_ids": ids, "attention_mask": [[1] * len(row) for row in ids]}

    tokenizer.pad_token_id = 49
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=50, num_hidden_layers=1, pad_token_id=49, **sizes)
    model = LlamaForSequenceClassification(config).eval()
    texts = TokenTexts("tiny", "val", ["abc", "abcdefgh"], torch.tensor([0, 1]), tokenizer, 8)
    assert texts.batch([0, 1])[0]["input_ids"][0, 3:].tolist() == [49] * 5
    with torch.no_grad():
        alone, together = (model(**texts.batch(rows)[0]).logits[0] for rows in ([0], [0, 1]))
    torch.testing.assert_close(together, alone)


def test_spearmans_correlation_averages_ties():
    assert spearman(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])) == pytest.approx(
        0.8660254
    )
    assert spearman(
        torch.tensor([3.0, 2.0, 1.0]), torch.tensor([10.0, 20.0, 30.0])
    ) == pytest.approx(-1.0)


def test_the_page_shows_speed_and_refused_layers(tmp_path):
    report = linearize(models.bert(), "elu").report
    report.refused = {"decoder.cross": "cross attention"}
    row = {"teacher_ms": 4.0, "student_ms": 2.0, "teacher_bytes": 2e6, "student_bytes": 1e6}
    report.speed = [
        {"length": 64, **row, "student_ms": 5.0},
        {"length": 128, **row},
        {"length": 256, **row},
    ]
    page = write_page(report, tmp_path / "page.html").read_text()
    assert report.crossover == 128
    assert "decoder.cross" in page
    assert "128 tokens" in page
    report.speed[-1]["student_ms"] = 9.0
    assert report.crossover is None, "slower again at the end"


def test_speed_and_memory_are_measured_beside_the_teacher():
    report = linearize(models.bert(), "elu", lengths=(8, 32)).report
    assert [row["length"] for row in report.speed] == [8, 32]
    assert all(value > 0 for row in report.speed for value in row.values())
    assert report.speed[1]["teacher_bytes"] > 2 * report.speed[0]["teacher_bytes"]
    with pytest.raises(OptionError, match="expected at most 32 tokens"):
        linearize(models.bert(), "elu", lengths=(64,))
    with pytest.raises(OptionError, match="lengths: expected a model that reads tokens"):
        linearize(models.torch_encoder(), "elu", lengths=(8,))
    body = models.bert().base_model  # without a head, whose logits nothing here reads
    assert len(linearize(body, "elu", lengths=(8,)).report.speed) == 1
    inputs = {n: torch.randn(1, n, 16) for n in (16, 4)}
    assert len(linearize(models.torch_encoder(), "elu", lengths=inputs).report.speed) == 2


def test_divergences_are_means_over_samples():
    from fredholm.convert import replace_attention

    replaced = replace_attention(models.bert(), "luna")
    found = divergences(replaced, as_dataset(DATA[1]), batch_size=24)
    again = divergences(replaced, as_dataset(DATA[1]), batch_size=24)
    assert found == again
    assert all(value.mean > 0 for value in found.values())
    parts = divergences(replaced, as_dataset(DATA[1]), batch_size=5)
    for name, value in found.items():
        assert parts[name].rows == value.rows
        assert parts[name].mean == pytest.approx(value.mean, rel=1e-5)


def test_a_conversion_resumed_with_low_rank_updates_equals_an_uninterrupted_one(
    tmp_path, monkeypatch
):
    """After the last checkpoint, with no step left, and before the first, for any state of the
    random generators.
    """
    match = StageOptions(epochs=1, lr=1e-2, lora=2)
    one = StageOptions(epochs=1, lr=1e-3)
    few = {"data": (Counting(16, 0), Counting(8, 1)), "distil": one, "tune": one, "match": match}
    whole = linearize(models.bert(), "luna", folder=tmp_path / "whole", **few).model.state_dict()
    keep = Progress.keep
    for stage in ("distilled", "matched"):
        cut = []

        def once(self, key, model, stage=stage, cut=cut):
            if key == stage and not cut:
                cut.append(key)
                raise OSError(28, "No space left on device")
            return keep(self, key, model)

        monkeypatch.setattr(Progress, "keep", once)
        with pytest.raises(OSError, match="No space"):
            linearize(models.bert(), "luna", folder=tmp_path / stage, **few)
        found = linearize(models.bert(), "luna", folder=tmp_path / stage, resume=True, **few)
        state = found.model.state_dict()
        assert state.keys() == whole.keys()
        assert all(torch.equal(state[name], whole[name]) for name in whole)
