"""LUNA's and the Arena's pages follow from the committed results, and each measurement is of the
model that its row names.
"""

from __future__ import annotations

import json
import math

import pytest
import torch
from evidence.lra import image
from evidence.lra import page as lra_page
from evidence.lra import rows as lra
from evidence.luna import page as luna_page
from evidence.luna import speed as luna_speed
from evidence.luna import theory as luna_theory

from fredholm.models import create_model
from fredholm.training import load_recipe


def test_rows_of_the_arena_differ_in_their_attention_alone():
    for task in lra.TASKS.values():
        found = [
            load_recipe(task.recipe, [f"operator={o}", *task.overrides]).model_dump()
            for o in lra.ATTENTIONS.values()
        ]
        operators = [json.dumps(row.pop("operator"), sort_keys=True) for row in found]
        assert len(set(operators)) == len(lra.ATTENTIONS)
        assert all(row == found[0] for row in found)


def test_the_arenas_differences_are_paired():
    def run(attention, seed, accuracy):
        sizes = {"loss": 1.0, "parameters": 1000, "epochs": 1, "minutes": 1.0}
        return {
            "task": "listops",
            "attention": attention,
            "seed": seed,
            "accuracy": accuracy,
            **sizes,
        }

    one = [run("softmax", 0, 0.5), run("luna", 0, 0.4), run("hedgehog", 0, 0.45)]
    assert lra.ahead("listops", "softmax")(one) == pytest.approx([-0.1])
    two = [*one, run("softmax", 1, 0.3), run("luna", 1, 0.42), run("hedgehog", 1, 0.45)]
    assert lra.ahead("listops", "hedgehog")(two) == pytest.approx([-0.05, -0.03])
    assert lra.ahead("text", "hedgehog")(two) == []
    assert "| softmax | 40.0 ± 14.1 | 1.000 | 2 | 1,000 |" in lra_page.task_table(two, "listops")


@pytest.mark.parametrize("name", image.SECTIONS)
def test_rows_of_the_image_task_differ_in_their_operator_alone(name):
    section = image.SECTIONS[name]
    found = [load_recipe(row["recipe"], row["overrides"]) for row in section.plan(1)]
    for recipe in found:
        body = {"operator": recipe.operator.name, "operator_options": recipe.operator.options}
        create_model(recipe.model.name, encoder={"max_length": 256}, body=body)
    rows = [recipe.model_dump() for recipe in found]
    assert len({json.dumps(row.pop("operator"), sort_keys=True) for row in rows}) == len(found)
    assert all(row == rows[0] for row in rows)


def test_the_image_tasks_page_shows_what_was_run_and_judges_it(monkeypatch):
    section = image.SECTIONS["attentions again"]
    rows = [
        row | {"seed": seed, "accuracy": accuracy + seed / 1000, "parameters": 1000}
        for seed in range(5)
        for accuracy, row in (
            (0.4, section.row("softmax", image.LARGER[0])),
            (0.5 + seed / 500, section.row("luna", image.LARGER[1])),
        )
    ]
    monkeypatch.setattr(image, "sections", lambda file: {"attentions again": rows})
    text = image.section()
    assert "| luna | 50.6 ± 0.5 | 5 of 12 | 1,000 | `optimizer.lr=0.01` |" in text
    claim = "Image: twelve fresh seeds: LUNA above softmax"
    assert f"| {claim} | 64.32 over 39.14 | +10.4 ± 0.3 (5 seeds)" in text
    assert text.count("reproduced") == 1
    assert "kernels" not in text.split("primary claim")[0]


def test_gram_matrices_of_all_maps_have_no_negative_eigenvalue():
    assert all(value > -1e-12 for value in luna_theory.gram_matrices(40, 8).values())


def test_the_kernels_error_falls_with_the_directions(monkeypatch):
    monkeypatch.setattr(luna_theory, "DIRECTIONS", (8, 64))
    monkeypatch.setattr(luna_theory, "PAIRS", 20)
    monkeypatch.setattr(luna_theory, "REFERENCE", 20_000)
    rows = luna_theory.sampling_error(8)
    for few, many in (rows[:2], rows[2:]):
        assert few["rms"] / many["rms"] == pytest.approx(math.sqrt(8), rel=0.35)
        assert few["rms"] == pytest.approx(few["theory"], rel=0.35)


def test_saved_storages_count_once():
    x = torch.randn(100, requires_grad=True)
    # The exponential saves its output alone.
    assert luna_speed.saved_bytes(lambda: (x.exp() * 2.0).sum(), set()) == 400
    assert luna_speed.saved_bytes(lambda: (x * x).sum(), {x.untyped_storage().data_ptr()}) == 0


def test_an_exponent_is_that_of_a_power():
    rows = [{"layer": "a", "backward": False, "n": n, "ms": 3.0 * n**1.2} for n in (10, 100, 1000)]
    assert luna_speed.exponent(rows, "a", backward=False) == pytest.approx(1.2)
    sampled = [{"psi": "a", "m": n, "rms": 3.0 * n**-0.5} for n in (4, 16, 64)]
    assert luna_page.sampling_slope(sampled, "a") == pytest.approx(-0.5)


@pytest.mark.slow
def test_what_a_training_step_keeps_grows_linearly():
    per_token = {}
    for points in (256, 1024, 4096):
        rows = luna_speed.memory(points)
        per_token[points] = next(row["bytes"] for row in rows if row["what"] == "luna")
    # What does not depend on the number of points is shared by more of them.
    assert per_token[4096] <= per_token[1024] <= per_token[256]
    assert per_token[4096] > 0.8 * per_token[256]
