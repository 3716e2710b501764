"""README.md is short, and each of its blocks runs alone with the printed output."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from matplotlib import image

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
BLOCKS = [(found[1], found[2], found[3]) for found in BLOCK.finditer(TEXT) if found[1] != "text"]
PYTHON = [block for block in BLOCKS if block[0] == "python"]
INSTALL, TRAIN = [block for block in BLOCKS if block[0] == "sh"]
WORDS, LINES = 700, 10


def words(text: str) -> list[str]:
    """Return the words of a page, code and tables included, without the targets of its links."""
    text = re.sub(r"\]\([^)]*\)|<!--.*?-->", "] ", text, flags=re.DOTALL)
    return re.findall(r"\S*\w\S*", text)


def test_the_readme_is_short():
    assert len(words(TEXT)) <= WORDS
    assert all(len(code.splitlines()) <= LINES for _, code, _ in BLOCKS)


def test_the_readme_has_three_examples_with_output():
    doors = [*PYTHON, TRAIN]
    assert len(doors) == 3
    assert all(output for _, _, output in doors)


@pytest.mark.parametrize("block", PYTHON, ids=["see", "linearise"])
def test_every_python_block_runs_alone(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    _, code, expected = block
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert shown.getvalue() == expected
    if "memory.png" in code:
        # One pixel per pair of 48 points would be too small.
        assert min(image.imread(tmp_path / "memory.png").shape[:2]) > 300


@pytest.mark.slow
def test_the_commands_train_a_model_of_a_table(tmp_path):
    _, commands, expected = TRAIN
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    shown = [without_figures(line) for line in done.stdout.splitlines()]
    assert {without_figures(line) for line in expected.splitlines()} <= set(shown)
    (accuracy,) = re.findall(r"wine test: accuracy ([\d.]+)", done.stdout)
    assert float(accuracy) > 0.9
    assert (tmp_path / "runs/wine/report/index.html").is_file()


def without_figures(line: str) -> str:
    """Return a line with numbers replaced, because those of a training differ by machine."""
    return re.sub(r"\d[\d.]*", "#", line.strip())
