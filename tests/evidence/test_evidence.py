"""Sections with or without runs: their models are recipes, and their tables and claims follow from
the rows.
"""

from __future__ import annotations

import json

import pytest
import torch
from evidence.__main__ import main
from evidence.ckconv import claims as ckconv
from evidence.ckconv import equal_time
from evidence.ckconv.evidence import SECTIONS as CKCONV
from evidence.continuous import plateau
from evidence.infsa import canvases
from evidence.itnet import spectrum
from evidence.itnet.sections import SECTIONS as ITNET
from evidence.kit.claims import REPRODUCED, judge

from fredholm.lab.training.build import build_dataset, build_model
from fredholm.training import load_recipe

ALL = {**CKCONV, **equal_time.SECTIONS, **ITNET, **canvases.SECTIONS, **plateau.SECTIONS}
TUNED = [name for name, section in ALL.items() if section.choices]


@pytest.mark.parametrize("name", TUNED)
def test_every_choice_of_every_variant_is_a_recipe(name):
    section = ALL[name]
    assert set(section.choices) == set(section.variants)
    assert section.seeds >= 5
    for row in section.tries():
        load_recipe(row["recipe"], row["overrides"])


PIXELS = {"kind": "sequence", "length": 196, "channels": 1, "causal": True}


def test_models_compared_with_the_ckcnn_have_its_size():
    from fredholm.models import create_model

    sizes = {}
    for name, overrides in CKCONV["smnist 14"].variants.items():
        if name != "ckcnn":
            recipe = load_recipe("ckcnn-smnist", list(overrides))
            named: dict = {"operator": recipe.operator.name}
            named["operator_options"] = recipe.operator.options
            body = named | recipe.model.body
            head = {"outputs": 10, "pool": "last"}
            model = create_model("backbone_nano", encoder=PIXELS, body=body, head=head)
            sizes[name] = sum(p.numel() for p in model.parameters())
    assert all(abs(size / 98_286 - 1) < 0.05 for size in sizes.values()), sizes


def test_claims_of_canvases_follow_from_its_rows():
    def row(variant, seed, score):
        part = {"mean": score}
        place = {"attention": {"box": {"roc_auc": part, "pr_auc": part, "mass": part}}}
        return {
            "variant": variant, "seed": seed, "accuracy": score, "localisation": place,
            "degradation": {"attention": {"morf": part, "lerf": part}},
        }  # fmt: skip

    found = {
        canvases.NAME: [
            row(variant, seed, 0.5 + 0.2 * variant.startswith("pure") + 0.001 * seed**2)
            for variant in canvases.VARIANTS
            for seed in range(5)
        ]
    }
    verdicts = {one.claim.text: one.verdict for one in judge(canvases.CLAIMS, found)}
    assert verdicts["All canvases: pure InfSA is more accurate than softmax"] == REPRODUCED
    assert sum(claim.primary for claim in canvases.CLAIMS) == 5


def test_claims_of_the_plateau_follow_from_its_rows():
    rows = [
        {"variant": v, "seed": s, "accuracy": 0.7, "steps": {"2": 0.6, "4": 0.7, "8": 0.7, "16": x}}
        for v in plateau.VARIANTS
        for s, x in enumerate((0.7, 0.699, 0.701, 0.7, 0.702))
    ]
    judged = judge(plateau.CLAIMS, {"reviews": rows, "pictures": rows})
    primary = {one.claim.text: one.verdict for one in judged if one.claim.primary}
    assert len(primary) == 5
    assert [v for text, v in primary.items() if "16 instead" in text] == [REPRODUCED] * 3


def test_tuned_runs_replace_those_at_the_default_setting():
    old = [{"variant": v, "seed": 0, "accuracy": x} for v, x in (("sine", 0.9), ("relu", 0.5))]
    new = [{**row, "accuracy": row["accuracy"] + 0.05} for row in old]
    assert ckconv.rows_of({"activation": old}, "activation") == old
    assert ckconv.rows_of({"activation": old, "activation tuned": new}, "activation") == new


def test_shares_reach_one_at_the_rank_of_the_kernel():
    torch.manual_seed(0)
    left, right = torch.randn(2, 1, 5 * 3, 2), torch.randn(2, 1, 2, 4 * 3)
    kernel = (left @ right).view(2, 1, 5, 3, 4, 3).permute(0, 1, 2, 4, 3, 5)
    found = spectrum.shares(kernel)
    assert found.shape == (2, 1, 12)
    assert found[..., 0].max() < 0.999
    assert found[..., 1:] == pytest.approx(1.0)


def test_the_page_of_singular_values_shows_means_in_percent(monkeypatch):
    layer = {"side": 64, "shares": {str(r): 1 - 0.5 / r for r in spectrum.RANKS}}
    rows = [{"seed": 0, "layers": [layer, layer]}]
    monkeypatch.setattr(spectrum, "found", lambda: rows)
    assert "| 2 | 64 | 50.0 | 75.0 |" in spectrum.section_text()
    assert spectrum.shown({"spectrum": rows}).startswith("of a side of 64: 50.0% at rank 1")
    assert spectrum.shown({}) == "not run"


def test_models_in_equal_time_have_similar_sizes_and_see_the_full_length():
    for name, one in equal_time.SECTIONS.items():
        sizes = {}
        for row in one.plan(1, {v: choices[0] for v, choices in one.choices.items()}):
            recipe = load_recipe(
                row["recipe"], [*row["overrides"], "data.options.train=4", "name=x"]
            )
            assert recipe.training.max_minutes == equal_time.MINUTES
            dataset = build_dataset(recipe, "train")
            model = build_model(recipe, dataset)
            assert dataset[0][0].shape[0] >= equal_time.LENGTH
            sizes[row["variant"]] = sum(p.numel() for p in model.parameters())
        assert max(sizes.values()) < 1.03 * min(sizes.values()), (name, sizes)
    layers = [block.operator.kernel.windows[0] for block in model.body.blocks]
    assert 1 + sum(6 * window.dilation for window in layers) > equal_time.LENGTH


@pytest.mark.slow
def test_pictures_to_the_plateau_run_end_to_end(tmp_path):
    words = ["run", "continuous", "plateau", "--small", "--only", "pictures", "--seeds", "1"]
    assert main([*words, "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]) == 0
    found = json.loads((tmp_path / plateau.FILE).read_text())
    assert len(found["sections"]["pictures"]) == len(plateau.VARIANTS)
    assert found["primary"] == [claim.text for claim in plateau.CLAIMS if claim.primary]
