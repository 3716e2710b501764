"""Exported programs equal their models, also at sizes that they were not traced at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .programs import CASES, DECODERS

ROOT = Path(__file__).parents[2]
QUICK = ["image-softmax", "text-softmax-causal"]
THOROUGH = [name for name in CASES if name not in QUICK]


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "tests.export.programs", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


@pytest.mark.compile
@pytest.mark.parametrize("name", QUICK)
def test_an_onnx_program_equals_its_model(name):
    pytest.importorskip("onnxruntime")
    assert f"{name} (" in run("onnx", name)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.timeout(900)
@pytest.mark.parametrize("half", [0, 1])
def test_onnx_programs_of_all_operators_equal_their_models(half):
    pytest.importorskip("onnxruntime")
    names = THOROUGH[half::2]
    assert run("onnx", *names).count(": ok") == len(names)


@pytest.mark.compile
@pytest.mark.parametrize("name", ["image-softmax", "graph-softmax"])
def test_a_program_of_pytorch_equals_its_model(name):
    assert f"{name} (" in run("program", name)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name", ["image-softmax", "graph-softmax", "ckcnn-image", "text-itnet_low_rank-causal"]
)
def test_a_package_of_native_code_equals_its_model(name):
    assert f"{name} (" in run("aoti", name)


@pytest.mark.compile
@pytest.mark.slow
def test_programs_of_a_decoder_refuse_padding():
    pytest.importorskip("onnxruntime")
    assert "padding refused: ok" in run("padding", "softmax")


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.timeout(900)
def test_exported_prefill_and_steps_equal_the_forward():
    pytest.importorskip("onnxruntime")
    assert run("steps", *DECODERS).count(": ok") == len(DECODERS)


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.timeout(900)
def test_exported_steps_generate_the_text_of_the_model():
    pytest.importorskip("onnxruntime")
    assert run("generate", "luna", "softmax").count("200 tokens: ok") == 2


@pytest.mark.slow
@pytest.mark.compile
def test_an_onnx_program_stays_exact_on_long_series():
    pytest.importorskip("onnxruntime")
    assert "long: ok" in run("long")
