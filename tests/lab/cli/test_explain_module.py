"""``fredholm explain --module``: the page, and one line per failure."""

from __future__ import annotations

import pytest

from fredholm.lab.cli.main import main

RESNET = "tests.explain.layers:resnet"


def test_a_layer_of_a_users_model_is_explained(tmp_path, capsys):
    arguments = [
        "--module",
        "layer1.0.conv1",
        "--shape",
        "3,3,8,8",
        "--samples",
        "3",
        "--out",
        str(tmp_path),
    ]
    assert main(["explain", RESNET, *arguments]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'index.html'}\n"
    text = (tmp_path / "index.html").read_text()
    assert (
        "Conv2d of ResNet from tests.explain.layers:resnet; random normal numbers (3, 3, 8, 8), "
        "seed 0" in text
    )


FAILURES = [
    ([RESNET, "--module", "layer1.0.bn1", "--shape", "3,3,8,8"], "BatchNorm2d is not understood"),
    ([RESNET, "--module", "conv1"], "give inputs (--inputs FILE), data (--data NAME) or shape"),
    ([RESNET, "--module", "conv1", "--shape", "3,x"], "--shape: expected positive whole numbers"),
    ([RESNET, "--module", "conv1", "--shape", "3,3,8"], "does not take float32 (3, 3, 8)"),
    ([RESNET, "--module", "conv1", "--data", "digit"], "did you mean 'digits'?"),
    (["nowhere", "--module", "conv1"], "no model 'nowhere'"),
    (["nowhere", "--shape", "3,3,8,8"], "--shape: expected one layer"),
    (["nowhere"], "no run here"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), FAILURES, ids=[message[:25] for _, message in FAILURES]
)
def test_failures_give_one_line_on_stderr(arguments, message, capsys, tmp_path):
    out = ["--out", str(tmp_path)] if "--module" in arguments else []
    assert main(["explain", *arguments, *out]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


def test_an_unknown_layer_is_refused_with_the_known_ones(capsys, tmp_path):
    assert (
        main(
            [
                "explain",
                RESNET,
                "--module",
                "layer1.0.conv3",
                "--shape",
                "3,3,8,8",
                "--out",
                str(tmp_path),
            ]
        )
        == 2
    )
    lines = capsys.readouterr().err.splitlines()
    assert "did you mean 'layer1.0.conv2'?" in lines[0]
    assert "error: fc (Linear)" in lines
