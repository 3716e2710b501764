"""The speed of converted layers is timed only where answers agree, whatever the layer's layout."""

from __future__ import annotations

import pytest
import torch
from evidence.kit import clock as runner
from evidence.kit.page import load
from evidence.unification.speed import cases, families, on_points
from torch import nn


def row(reference):
    return (
        "tiny",
        lambda: nn.MultiheadAttention(4, 2, batch_first=True),
        lambda: torch.randn(1, 3, 4),
        reference,
        _call,
    )


def _call(operator, u):
    return operator(u)


def test_forward_and_backward_are_timed_against_the_layer():
    found = [runner.run(case) for case in cases(row(lambda m, u: m(u, u, u)[0]), repeats=2)]
    assert [[r["way"] for r in rows] for rows in found] == [["layer", "operator"]] * 2
    assert [rows[0]["case"] for rows in found] == ["tiny: forward", "tiny: forward+backward"]
    assert all(rows[0]["ratio"] == 1.0 and rows[1]["difference"] < 1e-5 for rows in found)


def test_layers_with_wrong_answers_or_gradients_are_not_timed():
    forward, _ = cases(row(lambda m, u: 1.1 * m(u, u, u)[0]))
    with pytest.raises(runner.WrongAnswer, match="tiny: forward/operator"):
        runner.run(forward)

    def other_gradient(module, u):
        y = module(u, u, u)[0]
        return y.detach() + 0.0 * y

    forward, both = cases(row(other_gradient), repeats=2)
    runner.run(forward)
    with pytest.raises(runner.WrongAnswer, match=r"tiny: forward\+backward/operator"):
        runner.run(both)


def test_images_are_reshaped_to_points():
    images = torch.randn(2, 3, 4, 5)
    points = on_points(images, torch.Size((2, 20, 3)))
    assert points.shape == (2, 20, 3)
    assert torch.equal(points[1, 7], images[1, :, 1, 2])
    assert on_points(points, points.shape) is points


def test_every_family_has_rows_with_unique_labels():
    found = families()
    assert {"attention", "convolution", "recurrence"} <= set(found)
    labels = [row[0] for rows in found.values() for row in rows]
    assert len(labels) == len(set(labels))
    assert all(len(row) == 5 for rows in found.values() for row in rows)


def test_committed_forwards_take_at_most_1_2_times_the_layer():
    found = load("unification-speed.json")
    slowest = max(row["ratio"] for row in found["cases"] if row["case"].endswith(": forward"))
    assert slowest <= 1.2
