"""The GPU benchmark runs from end to end at tiny sizes, with nothing but the packages a bare GPU
machine has.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from evidence.gpu.page import render

ROOT = Path(__file__).parents[2]
ABSENT = (
    "pydantic",
    "lightning",
    "yaml",
    "typer",
    "rich",
    "matplotlib",
    "sklearn",
    "transformers",
    "PIL",
    "torchmetrics",
)
BARE = f"""
import sys
for name in {ABSENT!r}:
    # An import of this module fails.
    sys.modules[name] = None
from evidence.__main__ import main
words = ["--small", "--results", sys.argv[1]]
sys.exit(main(["time", "gpu", *words]) or main(["run", "gpu", "tune", *words]))
"""


@pytest.mark.slow
def test_the_smoke_run_needs_no_gpu(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BARE, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    result = json.loads((tmp_path / "gpu.json").read_text())
    tuned = json.loads((tmp_path / "gpu-tuned.json").read_text())
    assert result["smoke"]
    assert result["peak_flops"] > 0
    kernels = {row["kernel"] for row in result["kernels"]}
    assert {"itnet_plain", "itnet_table", "itnet_columns", "itnet_causal"} <= kernels
    for row in result["kernels"] + result["models"]:
        assert "failed" not in row, row
    for row in result["kernels"]:
        assert row["largest_error"] <= 1e-4
        assert row["triton"]["seconds"] > 0
        assert row["flop"] > 0
    modes = [row["mode"] for row in result["models"]]
    assert modes == ["exact", "exact grid", "LR-64", "MC-128", "ViT", "linear"]
    assert all(row["images_per_second"] > 0 for row in result["models"])
    assert all(trial["tiles"] for trial in tuned["tuned"].values())


def test_the_full_run_is_refused_without_a_gpu(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = subprocess.run(
        [sys.executable, "-m", "evidence", "time", "gpu", "--results", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
    assert not (tmp_path / "gpu.json").exists()


def test_the_page_shows_targets_failures_and_times(tmp_path):
    """Met and missed targets, failures with their reasons, no time for a failed kernel."""
    machine = {
        "device": "a GPU",
        "torch": "2",
        "triton": "3",
        "commit": "c" * 40,
        "clocks": "1",
        "clocks_after": "2",
    }
    timed = {"seconds": 0.002, "spread": 0.0001}
    plain = {
        "kernel": "itnet_plain",
        "op": "exact ITNet",
        "case": "N 1024",
        "triton": timed,
        "torch": timed,
        "tflops": 500.0,
    }
    kernels = [
        plain | {"direction": "forward", "fraction_of_peak": 0.62, "times_faster_than_torch": 9.0},
        plain
        | {
            "direction": "forward + backward",
            "fraction_of_peak": 0.3,
            "times_faster_than_torch": 0.5,
        },
        {"kernel": "other", "op": "other op", "failed": "AssertionError: wrong"},
    ]
    trained = {"model": "ITNet-S", "N": 196, "direction": "training", "images_per_second": 10.0}
    models = [
        trained | {"mode": "exact", "peak_bytes": 15 << 30},
        trained | {"mode": "ViT", "peak_bytes": 10 << 30},
    ]
    text = render({"machine": machine, "peak_flops": 8e14, "kernels": kernels, "models": models})
    for expected in (
        "measured bfloat16 peak 800 TFLOP/s",
        "| 62% (met) |",
        "| 30% (missed) |",
        "| 1.50 times (missed) |",
        "| 1 of 2 are |",
        "| other op | all |  | failed: AssertionError: wrong |",
        "| 2.000 (0.100) | 500 | 62% | 9.0 |",
        "| ITNet-S | exact | 196 | training | 10.0 | 15.00 |",
    ):
        assert expected in text, text
