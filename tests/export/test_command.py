"""A run, exported by the command line, classifies pictures in a process without this library."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fredholm.lab.data import Vocabulary
from tests.lab.training.conftest import SMALL

PAGE = Path(__file__).parents[2] / "docs" / "export.md"


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command], cwd=cwd, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def scripts_of_the_page() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def script_of_the_page(word: str) -> str:
    """Return the script of the page that runs a program and contains the word."""
    scripts = [text for text in scripts_of_the_page() if "InferenceSession" in text]
    (script,) = [text for text in scripts if word in text]
    assert "fredholm" not in script
    return script


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Create a folder with one small run."""
    folder = tmp_path_factory.mktemp("export")
    run("-m", "fredholm", "train", "digits", *SMALL, "--name", "first", cwd=folder)
    return folder


@pytest.mark.slow
@pytest.mark.compile
def test_the_documented_script_classifies_as_the_run(workshop):
    pytest.importorskip("onnxruntime")
    from PIL import Image

    draw = np.random.default_rng(0)
    for name in ("one.png", "two.png"):
        Image.fromarray(draw.integers(0, 255, (8, 8), dtype=np.uint8)).save(workshop / name)
    done = run("-m", "fredholm", "export", "runs/first", "--to", "onnx", cwd=workshop)
    assert "program: runs/first/model-onnx.onnx" in done.stdout

    script = script_of_the_page("PIL")
    said = json.loads(
        run(
            "-m", "fredholm", "predict", "runs/first", "one.png", "two.png", "--json", cwd=workshop
        ).stdout
    )
    for answer, name in zip(said, ("one.png", "two.png"), strict=True):
        done = run("-c", script, "runs/first/model-onnx.onnx", name, cwd=workshop)
        assert done.stdout.strip() == answer["class"]


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("label", ["price", "sold"])
def test_the_documented_script_for_tables_predicts_as_the_run(label, workshop):
    pytest.importorskip("onnxruntime")
    write_flats(workshop / "flats.csv", rows=60)
    short = ["training.epochs=2", "schedule.warmup_epochs=1"]
    small = ["model.body.depth=1", "model.body.dim=16", "model.body.heads=2"]
    command = ["-m", "fredholm", "train", "flats.csv", "--label", label, "--name", label]
    run(*command, *short, *small, cwd=workshop)
    run("-m", "fredholm", "export", f"runs/{label}", "--to", "onnx", cwd=workshop)

    write_flats(workshop / "new.csv", rows=9)
    said = run("-m", "fredholm", "predict", f"runs/{label}", "new.csv", "--json", cwd=workshop)
    script = script_of_the_page("DictReader")
    done = run("-c", script, f"runs/{label}/model-onnx.onnx", "new.csv", cwd=workshop)
    for answer, line in zip(json.loads(said.stdout), done.stdout.split(), strict=True):
        if label == "sold":
            assert line == answer["class"]
        else:
            assert float(line) == pytest.approx(answer["value"], rel=1e-4)


def test_the_documented_tokenizer_equals_every_vocabulary():
    pytest.importorskip("tokenizers")
    texts = ["The king said, walk.", "He walked and she WALKS in Émile's walk way"] * 3
    vocabularies = [
        Vocabulary("bytes"),
        Vocabulary.of_characters(texts[:1]),
        Vocabulary.of_words(texts),
        Vocabulary.of_pieces(texts, 40),
    ]
    (script,) = [text for text in scripts_of_the_page() if "def encode" in text]
    names: dict[str, Any] = {}
    exec(script, names)
    # Known, unknown and foreign words, and one that is too long to be cut.
    for text in (*texts, "the walker talks: «ж» 🙂", "walk" * 25, "walk" * 26, ""):
        for vocabulary in vocabularies:
            # As stored in a program.
            facts = json.loads(json.dumps(vocabulary.to_dict()))
            assert names["encode"](text, **facts) == vocabulary.encode(text), (text, facts)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.timeout(600)
def test_the_documented_script_for_texts_generates_as_the_run(tmp_path):
    pytest.importorskip("onnxruntime")
    run("-m", "fredholm", "export", "pretrained:kjv-characters", "--steps", cwd=tmp_path)
    folder, prompt = "runs/pretrained-kjv-characters", "And God said"
    greedy = ["--prompt", prompt, "--length", "40", "--temperature", "0", "--json"]
    said = json.loads(run("-m", "fredholm", "generate", folder, *greedy, cwd=tmp_path).stdout)

    programs = [f"{folder}/model-onnx-{part}.onnx" for part in ("prefill", "step")]
    done = run("-c", script_of_the_page("prefill"), *programs, prompt, cwd=tmp_path)
    assert done.stdout == f"{prompt}{said['text']}\n"


def write_flats(path: Path, rows: int) -> None:
    """Write a table with numbers, words, missing cells of both, and two columns to predict."""
    draw = np.random.default_rng(rows)
    lines = ["city,area,price,sold"]
    for row in range(rows):
        city = draw.choice(["Oslo", "Porto"])
        area = f"{draw.normal(60, 20):.1f}"
        if row % 5 == 0:
            area = ""
        if row % 5 == 1:
            city = ""
        lines.append(f"{city},{area},{draw.normal(300, 50):.1f},{draw.choice(['yes', 'no'])}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_an_unknown_format_is_refused_in_one_line(workshop):
    command = [sys.executable, "-m", "fredholm", "export", "runs/first", "--to", "onxx"]
    done = subprocess.run(command, cwd=workshop, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "expected one of onnx, aoti, program, got 'onxx'" in done.stderr
    assert not list((workshop / "runs" / "first").glob("*onxx*"))
