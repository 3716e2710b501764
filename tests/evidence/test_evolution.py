"""Depth and scheme: what is evaluated of each model, and the page of the results."""

from __future__ import annotations

import pytest
import torch
from evidence.continuous import contests, depths, equal_attention
from evidence.continuous.evidence import Batch
from evidence.kit.answers import pack
from evidence.kit.claims import NOT_RUN, judge

from fredholm.models import create_model
from fredholm.training import load_recipe
from tests.parts import parts as named

NUMBERS = torch.randint(2, 20, (6, 9), generator=torch.Generator().manual_seed(0))
SECTIONS = {**depths.SECTIONS, **equal_attention.SECTIONS}


def made(**body):
    torch.manual_seed(0)
    return create_model(
        "continuous_text_micro",
        **named(vocabulary=20, max_length=9, dim=8, heads=2, frequencies=4, **body),
    ).eval()


@pytest.fixture
def measured(monkeypatch):
    """Measure a model instead of a trained one on six sentences, the labels being its answers."""

    def measure(module, function, model):
        with torch.no_grad():
            labels = model(NUMBERS).argmax(-1)
        found = model, [Batch(torch.arange(6), NUMBERS, labels)]
        monkeypatch.setattr(module, "trained_model", lambda cell: found)
        return function(None)

    return measure


@pytest.mark.parametrize("name", SECTIONS)
def test_every_choice_of_every_variant_is_a_recipe(name):
    section = SECTIONS[name]
    assert set(section.choices) == set(section.variants)
    assert (section.seeds, section.first) == (5, 200)
    for row in section.tries():
        load_recipe(row["recipe"], row["overrides"])


def test_an_encoder_is_measured_at_its_own_depth(measured):
    found = measured(depths, depths.at_steps, made(depth=4))
    assert found["at"] == {"4 steps": 1.0}
    assert found["answers"]["4 steps"]["n"] == 6


def test_the_one_set_of_weights_is_measured_at_every_number_of_steps(measured):
    model = made(depth=4, train_steps=(2, 16), control="linear")
    found = measured(depths, depths.at_steps, model)
    assert list(found["at"]) == ["2 steps", "4 steps", "8 steps", "16 steps"]
    assert found["at"]["4 steps"] == 1.0


def test_the_deepest_encoder_has_early_exits(measured):
    found = measured(depths, depths.at_steps, made(depth=16))
    assert list(found["at"]) == ["16 steps", "exit after 2", "exit after 4", "exit after 8"]


@pytest.mark.parametrize("evaluations", [8, 16])
def test_both_schemes_of_a_pair_evaluate_attention_equally_often(measured, evaluations):
    calls = []
    for scheme, per_step in equal_attention.PER_STEP.items():
        steps = evaluations // per_step
        model = made(depth=4, control="linear", scheme=scheme, steps=steps)
        calls.append(measured(equal_attention, equal_attention.solved, model)["calls"])
    assert calls == [evaluations] * 2


def test_errors_shrink_with_evaluations_and_compare_both_schemes(measured):
    model = made(depth=4, control="linear")
    errors = measured(equal_attention, equal_attention.solved, model)["errors"]
    assert set(errors) == {"lie", "strang"}
    for found in errors.values():
        assert list(found) == [str(count) for count in equal_attention.SOLVED]
        assert found["8"] > found["64"] > 0


def test_models_of_both_schemes_have_equal_parameters():
    section = equal_attention.SECTIONS["sentences"]
    body = {}
    for variant in section.variants:
        row = section.row(variant)
        body[variant] = load_recipe(row["recipe"], row["overrides"]).model.body
    strang, lie = body.values()
    assert {key for key in strang if strang[key] != lie[key]} == {"scheme", "steps"}


def row(variant, seed, **at):
    found = {"variant": variant, "seed": seed, "at": {}, "answers": {}}
    for way, values in at.items():
        found["at"][way] = sum(values) / len(values)
        found["answers"][way] = pack(values)
    return found


def test_a_claim_compares_an_encoder_with_the_one_set_of_weights():
    rows = []
    for seed in (0, 1):
        rows.append(row("2 layers", seed, **{"2 steps": [1.0, 1.0, 0.0, 1.0]}))
        rows.append(row(depths.DRAWN, seed, **{"2 steps": [1.0, 0.0, 0.0, 1.0]}))
    found = depths.CLAIMS[0].sample({depths.NAME: rows})
    assert found == [0.25, 0.25]
    assert found.samples.shape == (2, 4)


def test_claims_without_runs_are_open():
    judged = [one for one in judge(contests.CLAIMS, {}) if one.claim.primary]
    assert [one.verdict for one in judged] == [NOT_RUN] * 5


def test_tables_show_what_was_run(monkeypatch):
    rate = depths.RATES[0]
    one = depths.SECTIONS[depths.NAME].row("16 layers", rate)
    ways = {"16 steps": [1.0, 0.0], "exit after 2": [0.0, 0.0], "exit after 4": [1.0, 1.0]}
    one |= row("16 layers", 200, **ways, **{"exit after 8": [1.0, 0.0]}) | {"parameters": 1_234}
    monkeypatch.setattr(depths, "sections", lambda file: {depths.NAME: [one]})
    text = depths.section()
    assert f"| 16 layers |  |  |  | 50.0 | 1,234 | 1 | `{rate}` |" in text
    assert "| early exit of 16 layers | 0.0 | 100.0 | 50.0 |" in text

    two = equal_attention.SECTIONS["pictures"].row("Strang, 2 steps", rate)
    errors = {scheme: dict.fromkeys(("8", "16", "32", "64"), 0.5) for scheme in ("lie", "strang")}
    two |= {"seed": 200, "accuracy": 0.5, "minutes": 2.0, "calls": 8, "errors": errors}
    two["parameters"] = 1_234
    monkeypatch.setattr(equal_attention, "sections", lambda file: {"pictures": [two]})
    text = equal_attention.section()
    assert f"| Strang, 2 steps | 8 | 50.0 | 1 | 1,234 | 2.0 | `{rate}` |" in text
    assert "| Strang, 2 steps | Lie | 50.0 | 50.0 | 50.0 | 50.0 |" in text
    assert "**Sentences from movie reviews**: not run." in text
