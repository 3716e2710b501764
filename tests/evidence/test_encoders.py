"""Encoders of long texts: their data, that they differ in their attention alone, and their page."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from evidence.kit.answers import pack
from evidence.kit.contest import EQUAL_STEPS, EQUAL_TIME, parameters
from evidence.luna.encoders import claims, contest, page, texts
from evidence.luna.encoders.model import ATTENTIONS, Neighbours, TextEncoder

from ..tolerances import assert_close

WORDS = 30


@pytest.fixture
def documents(monkeypatch):
    """Two texts of the longest length, and a training text, of random words."""
    generator = torch.Generator().manual_seed(0)
    size = 2 * texts.LONGEST + 9
    splits = {
        split: torch.randint(1, WORDS, (size,), generator=generator)
        for split in ("train", "val", "test")
    }
    monkeypatch.setattr(texts, "corpus", lambda: texts.Corpus(splits, WORDS))
    monkeypatch.setattr(contest, "corpus", texts.corpus)
    return splits


def test_hidden_words_are_not_frequent_and_replaced():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 4 * texts.FREQUENT, (3, texts.TRAINED), generator=generator)
    places = texts.draw_places(tokens, generator)
    assert all(len(set(row.tolist())) == texts.HIDDEN for row in places)
    hidden = texts.hide(tokens, places)
    assert (hidden.answers > texts.UNKNOWN + texts.FREQUENT).all()
    assert ((hidden.tokens == texts.MASK).sum(1) == texts.HIDDEN).all()
    assert torch.equal(hidden.tokens.scatter(1, places, hidden.answers), tokens)


def test_frequent_words_are_hidden_where_there_are_too_few_others():
    tokens = torch.full((1, texts.TRAINED), texts.UNKNOWN)
    tokens[0, :8] = 2 + texts.FREQUENT
    tokens[0, 8:99] = 2
    hidden = texts.hide(tokens, texts.draw_places(tokens, torch.Generator()))
    rare = hidden.answers == 2 + texts.FREQUENT
    assert rare.sum() == 8
    assert (hidden.answers[~rare] == 2).all()


@pytest.mark.parametrize("length", texts.LENGTHS)
def test_the_same_words_are_hidden_at_every_length(documents, length):
    batches = list(texts.evaluation_batches("test", length))
    tokens = torch.cat([batch.tokens.flatten() for batch in batches])
    answers = torch.cat([batch.answers.flatten() for batch in batches])
    assert all(batch.tokens.shape == (texts.LONGEST // length, length) for batch in batches)

    segments = list(texts.evaluation_batches("test", texts.TRAINED))
    assert torch.equal(tokens, torch.cat([one.tokens.flatten() for one in segments]))
    assert torch.equal(answers, torch.cat([one.answers.flatten() for one in segments]))


def test_training_segments_come_from_the_training_text(documents):
    batch = texts.training_batch(2, torch.Generator().manual_seed(0))
    whole = batch.tokens.scatter(1, batch.places, batch.answers)
    windows = documents["train"].unfold(0, texts.TRAINED, 1)
    assert all((windows == row).all(1).any() for row in whole)


def test_the_convolution_is_torchs():
    ours = Neighbours(6).double()
    theirs = torch.nn.Conv1d(6, 6, 3, padding=1, groups=6, bias=False).double()
    with torch.no_grad():
        theirs.weight.copy_(ours.taps.T[:, None])
    h = torch.randn(2, 9, 6, dtype=torch.float64)
    assert_close(ours(h), theirs(h.mT).mT)


def test_encoders_have_equal_sizes_within_three_percent():
    sizes = [parameters(TextEncoder(name, 1_391)) for name in ATTENTIONS]
    assert max(sizes) < 1.03 * min(sizes)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_an_encoder_reads_neighbours_and_no_positions(name):
    """Moving a text within padding of one word moves its logits, away from the ends."""
    torch.manual_seed(0)
    model = TextEncoder(name, WORDS).double().eval()
    tokens = torch.full((2, 40), 5)
    tokens[0, 10:20] = torch.arange(10, 20)
    tokens[1, 15:25] = torch.arange(10, 20)
    places = torch.tensor([[12, 16], [17, 21]])
    moved = model(tokens, places)
    assert moved.shape == (2, 2, WORDS)
    assert_close(moved[0], moved[1])
    swapped = tokens[:1].clone()
    swapped[0, [11, 13]] = tokens[0, [13, 11]]
    assert not torch.allclose(model(swapped, places[:1]), moved[:1])


def test_scores_are_one_number_per_segment(documents):
    class Knows(torch.nn.Module):
        """Predicts word 3 everywhere."""

        def forward(self, tokens, places):
            return torch.nn.functional.one_hot(torch.full(places.shape, 3), WORDS).double()

    found = contest.scores(Knows(), "test", 2_048)
    expected = []
    for batch in texts.evaluation_batches("test", texts.TRAINED):
        expected += (batch.answers == 3).double().mean(1).tolist()
    assert found.accuracy == pytest.approx(expected)
    assert len(found.loss) == len(expected)
    fewer = contest.scores(Knows(), "test", 2_048, batches=1)
    assert fewer.accuracy == found.accuracy[: len(expected) // 2]


def row(name, seed, accuracy, budget=EQUAL_STEPS):
    """Return a row whose two segments have this mean accuracy at every length."""
    names = [contest.accuracy_at(length) for length in texts.LENGTHS]
    answers = {key: pack([accuracy, accuracy]) for key in names}
    facts = {"steps": 9, "seconds": 2.0, "parameters": 1_234, "rate": 0.01}
    about = {"variant": name, "budget": budget, "seed": seed, "answers": answers}
    return about | facts | dict.fromkeys(names, accuracy)


def test_a_claim_is_positive_where_luna_is_more_accurate():
    accuracies = {"luna": 0.5, "softmax": 0.25}
    rows = [row(name, seed, accuracies[name]) for seed in (0, 1) for name in accuracies]
    found = claims.ahead("softmax", 8_192, EQUAL_STEPS)({EQUAL_STEPS: rows})
    assert found == [0.25, 0.25]
    assert found.samples.shape == (2, 2)


def test_runs_on_different_texts_are_not_compared():
    rows = [row("luna", 0, 0.5) | {"corpus": 3_126}, row("softmax", 0, 0.25) | {"corpus": 3_127}]
    ahead = claims.ahead("softmax", 512, EQUAL_STEPS)
    with pytest.raises(ValueError, match="luna and softmax, seed 0: expected runs on the same"):
        ahead({EQUAL_STEPS: rows})


def test_the_page_names_the_added_runs_only_where_hedgehogs_rate_is_another():
    def tried(name):
        rates = ((0.01, 0.5), (0.03, 0.25))
        return [{"variant": name, "rate": rate, "accuracy": accuracy} for rate, accuracy in rates]

    def runs(name):
        return [{"variant": name, "rate": 0.03}]

    text = page.other_rates(tried("hedgehog"), runs("hedgehog"))
    assert "0.01 for hedgehog: *hedgehog, other rate*" in text
    text = page.other_rates(tried("performer"), runs("performer"))
    assert text == " (by the accuracy there it would be 0.01 for performer)"


def test_the_page_marks_what_no_other_encoder_beats_in_both(monkeypatch):
    accuracies = {"luna": 0.5, "softmax": 0.375, "elu + 1": 0.25}
    times = {"luna": 2.0, "softmax": 3.0, "elu + 1": 1.0}
    rows = [row(name, seed, accuracy) for seed in (0, 1) for name, accuracy in accuracies.items()]
    timed = [
        {"variant": name, "length": length, "ms": ms}
        for name, ms in times.items()
        for length in texts.LENGTHS
    ]
    machine = {"processor": "a CPU", "threads": 1, "torch": "2.13"}
    text = page.front_section(rows, {"machine": machine, "rows": timed})
    assert "| luna | **50.00 in 2.0 ms** |" in text
    assert "| softmax | 37.50 in 3.0 ms |" in text
    assert "| elu + 1 | **25.00 in 1.0 ms** |" in text
    assert "| luna | 50.00 ± 0.00 |" in page.scores_table(rows)
    assert len(page.plot(rows, timed, page_theme()).axes) == len(texts.LENGTHS)


def page_theme():
    from fredholm.lab.report.style import LIGHT

    return LIGHT


def test_the_page_names_the_commands_that_have_not_run():
    assert page.front_section([], None) == f"Open: not run, `{page.RUN}` and `{page.TIME}`."
    assert page.scores_table([]) == f"Open: not run, `{page.RUN}`."


@pytest.mark.slow
def test_the_contest_runs_end_to_end(tmp_path, documents):
    from evidence.kit.page import load
    from evidence.kit.subject import Options

    options = Options(seeds=1, small=True)
    options.runs, options.results = tmp_path / "runs", tmp_path
    contest.run(options)
    contest.time(options)
    found = load(contest.FILE, tmp_path)
    runs = [(one["budget"], one["variant"]) for one in found["runs"]]
    again = product((EQUAL_STEPS,), contest.AGAIN)
    assert runs == [*product((EQUAL_STEPS, EQUAL_TIME), ATTENTIONS), *again]
    assert len(found["tuning"]) == len(ATTENTIONS) * len(contest.RATES)
    assert len(load(contest.SPEED_FILE, tmp_path)["rows"]) == len(ATTENTIONS) * len(texts.LENGTHS)
