"""Runs on tokens: masked ones, then a task from their weights; the next token, then generation;
other modes of a trained run.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from fredholm.data import Vocabulary
from fredholm.errors import CheckpointError, OptionError, RecipeError
from fredholm.lab.cli.main import main
from fredholm.lab.training.build import build_dataset, build_model
from fredholm.lab.training.generation import continuation
from fredholm.lab.training.module import RecipeLearner
from fredholm.training import (
    compress_run,
    evaluate,
    explain,
    generate,
    load_recipe,
    load_run,
    predict,
    train,
)
from tests.lab.data.test_language import write_glue, write_kjv
from tests.tolerances import assert_close

TINY = [
    "data.batch_size=8",
    "schedule.warmup_epochs=0",
    "optimizer.lr=1e-2",
    "model.body.dropout=0",
]
SMALL = [
    *TINY,
    "model.name=itnet_nano",
    "model.body.depth=1",
    "model.body.dim=8",
    "model.body.heads=2",
    "model.encoder.frequencies=4",
]
LOW = ["operator.rank=2", "operator.width=4", "operator.frequencies=4"]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("language")


@pytest.fixture(scope="module")
def glue(home):
    return write_glue(home / "glue", repeat=20)


@pytest.fixture(scope="module")
def hidden(home, glue):
    """Train a model of masked tokens briefly on MRPC's sentences."""
    given = [
        f"data.path={glue}",
        "data.options.task=mrpc",
        "data.min_count=1",
        "training.epochs=1",
        "training.precision=32",
    ]
    recipe = load_recipe(
        "itnet-glue-mlm", [*SMALL, *given, "operator.width=4", "operator.frequencies=4"]
    )
    return train(recipe, home / "hidden"), home / "hidden"


@pytest.fixture(scope="module")
def characters(home):
    """Train a causal model of the next character."""
    given = [f"data.path={write_kjv(home / 'kjv')}", "data.max_length=24", "training.epochs=2"]
    recipe = load_recipe("itnet-kjv", [*SMALL, *LOW, *given])
    return train(recipe, home / "characters"), home / "characters"


def test_masked_tokens_are_trained_and_evaluated(hidden):
    result, run = hidden
    assert set(result.metrics) >= {"val_loss", "val_accuracy"}
    found = evaluate(run)
    assert found["bits"] == pytest.approx(found["loss"] / torch.tensor(2.0).log().item())
    assert found["n"] >= 2, "a question for each text at least"
    assert load_run(run)[0].extra["classes"] == [], "they are the vocabulary"
    page = explain(run).read_text()
    assert f"on {found['n']} test tokens" in page
    assert f">{found['bits']:.3f}<" in page
    with pytest.raises(OptionError, match=r"predict: expected .*, got tokens; for tokens use"):
        predict(run, ["x.txt"])
    with pytest.raises(OptionError, match="a model of the next token"):
        generate(run, "a")


def test_losses_of_a_phase_are_weighted_by_its_tokens(home, glue, monkeypatch):
    """Labels behind the tokens that a phase reads must not weight the losses of its batches."""
    weighted: list[int] = []
    original = RecipeLearner.weight

    def recording(self, labels):
        weighted.append(labels.shape[1])
        return original(self, labels)

    monkeypatch.setattr(RecipeLearner, "weight", recording)
    given = [
        f"data.path={glue}",
        "data.options.task=mrpc",
        "data.min_count=1",
        "data.max_length=8",
        "training.epochs=null",
        "training.steps=4",
        "training.phases=[{steps: 2, max_length: 4}, {steps: 2}]",
        "training.precision=32",
    ]
    recipe = load_recipe(
        "itnet-glue-mlm", [*SMALL, *given, "operator.width=4", "operator.frequencies=4"]
    )
    train(recipe, home / "phases")
    assert weighted == [4, 4, 8, 8]


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_a_task_starts_from_the_weights_of_a_pretrained_run(hidden, home, glue, pool):
    _, run = hidden
    lines = []
    given = [
        f"init_from={run}",
        f"data.path={glue}",
        "data.options.task=mrpc",
        f"model.head.pool={pool}",
        "training.epochs=1",
    ]
    recipe = load_recipe(
        "itnet-glue",
        [*SMALL, *given, "operator.width=4", "operator.frequencies=4", "optimizer.lr=1e-9"],
    )
    train(recipe, home / f"task-{pool}", report=lines.append)
    before, after = load_run(run)[0], load_run(home / f"task-{pool}")[0]
    copied = [key for key in before.state_dict() if not key.startswith("head")]
    for key in copied:
        assert_close(after.state_dict()[key], before.state_dict()[key], key)
    assert after.extra["vocabulary"] == before.extra["vocabulary"]
    anew = "encoder.token, head.bias, head.weight" if pool == "cls" else "head.bias, head.weight"
    assert lines[0] == f"from {run}: {len(copied)} tensors copied; anew: {anew}"
    assert f"pool ('every' -> '{pool}')" in lines[1]
    found = evaluate(home / f"task-{pool}")
    assert 0 <= found["f1"] <= 1
    assert -1 <= found["matthews"] <= 1
    assert 0 <= found["auc"] <= 1


def test_mismatched_weights_are_refused(hidden, home, glue):
    _, run = hidden
    given = [
        f"init_from={run}",
        f"data.path={glue}",
        "data.options.task=mrpc",
        "model.head.pool=mean",
    ]
    with pytest.raises(
        RecipeError, match=r"data\.masked: .* digits holds images, got 0\.1; remove it"
    ):
        load_recipe("digits", ["data.masked=0.1"])
    recipe = load_recipe(
        "itnet-glue", [*SMALL, *given, "operator.width=5", "operator.frequencies=4"]
    )
    with pytest.raises(RecipeError, match=r"bias1 is \(1, 4\) there and \(1, 5\) here"):
        train(recipe, home / "wrong")
    with pytest.raises(CheckpointError, match="no run here"):
        train(
            load_recipe("itnet-glue", [*SMALL, f"init_from={home / 'none'}", f"data.path={glue}"]),
            home / "none-there",
        )


def test_scores_of_sentence_pairs_are_a_regression(home, glue):
    given = [
        f"data.path={glue}",
        "data.options.task=stsb",
        "init_from=null",
        "model.head.pool=mean",
        "training.epochs=1",
    ]
    recipe = load_recipe(
        "itnet-glue",
        [*SMALL, *given, "data.min_count=1", "operator.width=4", "operator.frequencies=4"],
    )
    train(recipe, home / "stsb")
    found = evaluate(home / "stsb")
    assert found["spearman"] in (pytest.approx(1.0), pytest.approx(-1.0)), "two sentences"


@pytest.mark.parametrize("name", ["itnet-glue-mlm", "itnet-glue"])
def test_the_papers_recipe_builds_at_its_own_size(name, glue):
    recipe = load_recipe(name, [f"data.path={glue}", "data.options.task=mrpc", "init_from=null"])
    dataset = build_dataset(recipe, "train")
    with torch.device("meta"):
        model: Any = build_model(recipe, dataset)
    body = model.config.body
    assert (body.dim, body.depth, body.heads) == (768, 12, 12)
    assert model.config.encoder.max_length == 512
    blocks = sum(p.numel() for p in model.body.blocks.parameters())
    assert 140e6 < blocks < 155e6, "Table 11's rows"


# --- generation -----------------------------------------------------------------------------------


def test_generation_equals_the_forward_on_the_full_text(characters):
    _, run = characters
    model, _ = load_run(run)
    numbers = Vocabulary.from_dict(model.extra["vocabulary"]).encode("And ")
    found = generate(run, "And ", length=12, temperature=0)
    whole = list(numbers)
    for _ in range(12):  # the likeliest token, each time from the text so far
        logits = model(torch.tensor([whole]))[0, -1].clone()
        logits[:2] = -torch.inf
        whole.append(int(logits.argmax()))
    assert found["tokens"] == whole[4:]
    assert found["text"] == Vocabulary.from_dict(model.extra["vocabulary"]).join(whole[4:])
    logits = model(torch.tensor([whole[:-1]]))[0, 3:].double()
    logits[:, :2] = -torch.inf
    expected = logits.log_softmax(-1).gather(1, torch.tensor(whole[4:])[:, None]).mean()
    assert found["log_probability"] == pytest.approx(float(expected.detach()), abs=1e-4)


def test_generated_words_are_separated_by_spaces(home, capsys):
    given = [
        f"data.path={write_kjv(home / 'kjv-words')}",
        "data.max_length=24",
        "training.epochs=1",
    ]
    recipe = load_recipe("itnet-kjv", [*SMALL, *LOW, *given, "data.tokens=words"])
    train(recipe, home / "words")
    found = generate(home / "words", "the text", length=3, temperature=0)
    vocabulary = Vocabulary.from_dict(load_run(home / "words")[0].extra["vocabulary"])
    assert found["text"] == " " + vocabulary.join(found["tokens"])
    arguments = ["--prompt", "the text", "--length", "3", "--temperature", "0"]
    assert main(["generate", str(home / "words"), *arguments]) == 0
    assert capsys.readouterr().out == f"the text{found['text']}\n"


def test_sampling_follows_the_seed_and_the_options(characters):
    _, run = characters
    first = generate(run, "And ", length=15, seed=1)
    assert generate(run, "And ", length=15, seed=1) == first
    assert generate(run, "And ", length=15, seed=2) != first
    assert (
        generate(run, "And ", length=9, top_k=1)["tokens"]
        == generate(run, "And ", length=9, temperature=0)["tokens"]
    )
    model, _ = load_run(run)
    chances = torch.zeros(67)
    for seed in range(400):
        generator = torch.Generator().manual_seed(seed)
        (token,) = continuation(model, [5], 1, 2.0, 3, generator).tokens
        chances[token] += 1 / 400
    logits = model(torch.tensor([[5]]))[0, 0]
    logits[:2] = -torch.inf
    best = logits.topk(3)
    wanted = torch.zeros(67)
    wanted[best.indices] = (best.values / 2).softmax(-1)
    assert (chances - wanted).abs().max() < 4 * 0.5 / 20


def test_unsupported_generation_is_refused(characters):
    _, run = characters
    for options, message in (
        ({"length": 22}, "length: expected at most 21 .*, got 22"),
        ({"length": 0}, "length: expected 1 or more, got 0"),
        ({"temperature": -1.0}, "temperature: expected .*, got -1"),
        ({"top_k": 0}, "top_k: expected 1 or more, got 0"),
    ):
        with pytest.raises(OptionError, match=message):
            generate(run, "And ", **{"length": 5, **options})
    with pytest.raises(OptionError, match="token 2 of 'A@' is not among"):
        generate(run, "A@")
    with pytest.raises(OptionError, match=r"prompt: expected at least one .*, got ''"):
        generate(run, "")


def test_the_command_generates_text(characters, capsys):
    _, run = characters
    draws = ["--length", "6", "--temperature", "0.5", "--top-k", "5", "--seed", "3"]
    assert main(["generate", str(run), "--prompt", "And ", *draws]) == 0
    expected = generate(run, "And ", length=6, temperature=0.5, top_k=5, seed=3)
    assert capsys.readouterr().out == f"And {expected['text']}\n"
    assert main(["evaluate", str(run)]) == 0
    assert "bits per token" in capsys.readouterr().out


# --- other modes of a trained run -----------------------------------------------------------------


@pytest.fixture(scope="module")
def sampled(home):
    """Train on digits with sampled keys and a learned proposal, from the recipe."""
    small = [
        "data.batch_size=400",
        "model.encoder.patch=2",
        "model.body.depth=1",
        "model.body.dim=8",
        "model.body.heads=2",
        "operator.width=4",
    ]
    given = [
        "operator.frequencies=4",
        "operator.strategy.samples=6",
        "training.epochs=2",
        "schedule.warmup_epochs=0",
    ]
    return train(
        load_recipe("itnet-monte-carlo", [*small, *given]), home / "sampled"
    ), home / "sampled"


def test_a_recipe_trains_with_sampled_keys_and_a_proposal(sampled):
    _, run = sampled
    model, place = load_run(run)
    assert place.load_recipe().operator.options["strategy"]["samples"] == 6
    assert model.body.blocks[0].operator.strategy.samples == 6
    assert "kernel.proposal.weight1" in model.body.blocks[0].operator.state_dict()


def test_a_run_is_evaluated_in_another_mode(sampled):
    _, run = sampled
    own = evaluate(run)
    exact = evaluate(run, overrides=["operator.strategy=exact"])
    everything = evaluate(
        run, overrides=["operator.strategy.samples=16", "operator.strategy.anchors=true"]
    )
    assert exact["overrides"] == ["operator.strategy=exact"]
    assert everything["loss"] == pytest.approx(exact["loss"], rel=1e-5), (
        "all points as anchors are the integral"
    )
    assert own["loss"] != exact["loss"]
    assert (
        json.loads((run / "evaluation-operator.strategy=exact.json").read_text())["loss"]
        == exact["loss"]
    )
    assert json.loads((run / "evaluation.json").read_text())["loss"] == own["loss"], (
        "the run's own stays"
    )
    with pytest.raises(OptionError, match="keeps its operator"):
        evaluate(run, overrides=["operator=softmax"])
    with pytest.raises(OptionError, match=r"expected model\.PART\.KEY=VALUE or operator"):
        evaluate(run, overrides=["optimizer.lr=1"])
    with pytest.raises(CheckpointError, match="of another shape"):
        evaluate(run, overrides=["operator.width=5"])


def test_a_run_can_be_compressed(sampled, home, capsys):
    _, run = sampled
    assert main(["compress", str(run), "--rank", "3", "--steps", "4", "--samples", "8"]) == 0
    text = capsys.readouterr().out
    assert "layer 1: rank 2 after 4 steps" in text
    low = home / "sampled-rank3"
    report = json.loads((low / "compression.json").read_text())
    assert report["rank_per_head"] == 2
    assert report["layers"][0]["optimum"] <= report["layers"][0]["matrix_error"]
    assert report["layers"][0]["optimum"] <= report["layers"][0]["bound"]
    assert evaluate(low)["loss"] == report["after"]["loss"]
    model, _ = load_run(low)
    assert model.config.body.operator == "itnet_low_rank"
    before = load_run(run)[0].state_dict()
    for key, value in model.state_dict().items():
        if ".operator." not in key or "residual" in key or "projection" in key:
            assert torch.equal(value, before[key]), key
    with pytest.raises(OptionError, match="got one that exists; remove it"):
        compress_run(run, 3)
    asked = {"out": low, "samples": 8, "resume": True}
    assert compress_run(run, 3, steps=4, **asked) == report
    for rank, steps, other in ((2, 4, "rank"), (3, 5, "steps")):
        with pytest.raises(RecipeError, match=f"got others for {other};"):
            compress_run(run, rank, steps=steps, **asked)
    with pytest.raises(OptionError, match="rank: expected 1 or more, got 0"):
        compress_run(run, 0, out=home / "other")
