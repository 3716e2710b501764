"""InfSA's page follows from the result files, verdicts from numbers, fitted sizes from memory."""

from __future__ import annotations

import json

import pytest
import torch
from evidence.datasets.composed import ComposedDataset
from evidence.infsa import evidence as infsa_evidence
from evidence.infsa.evidence import judge, plan
from evidence.infsa.scale import check_model, largest, mechanism

from fredholm.models import create_model
from tests.parts import parts


def test_every_variant_has_a_name_and_a_recipe():
    names = list(plan("canvas"))
    assert len(set(names)) == len(names) == 8
    assert list(plan("cifar10")) == ["linear", "pure", "softmax"]


def test_a_model_is_judged_on_known_objects(monkeypatch):
    monkeypatch.setattr(infsa_evidence, "STEPS", 2)
    mask = torch.zeros(1, 28, 28, dtype=torch.bool)
    mask[:, 7:14, 7:14] = True
    shown = mask[:, None].byte() * 255

    def compose(indices):
        return shown.expand(len(indices), -1, -1, -1), mask.expand(len(indices), -1, -1)

    data = ComposedDataset(
        "one", "test", torch.zeros(4).long(), ("a", "b"), (0.5,), (0.5,), (1, 28, 28), compose
    )
    model = create_model(
        "infvit_linear_pico", **parts(image_size=28, dim=16, heads=4, depth=2, num_classes=2)
    ).eval()
    found = judge(model, data)
    assert found["localisation"]["attention"]["mask"]["chance"] == {
        "mean": 1 / 16,
        "error": 0.0,
        "n": 4,
    }
    assert [layer["samples"] for layer in found["alignment"]] == [16, 16]
    assert json.loads(json.dumps(found)) == found


def test_the_largest_length_is_extrapolated_from_memory():
    linear = [{"n": n, "megabytes": 500 + n / 100} for n in (1000, 2000, 4000)]
    found, power = largest(linear)
    assert power == pytest.approx(1.0)
    assert found == pytest.approx(100 * (16 * 1024 - 500), rel=1e-3)
    flat = [{"n": n, "megabytes": 500.0} for n in (1000, 2000, 4000)]
    assert largest(flat)[0] == 0


def test_mechanisms_are_checked_before_they_are_measured():
    assert check_model() < 1e-4
    found = mechanism("pure InfSA, N × N", 16, 1, True)
    assert found["seconds"] > 0
    assert found["megabytes"] > 0
