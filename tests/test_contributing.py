"""The worked example of CONTRIBUTING.md, run as it is written there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(name: str) -> str:
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", TEXT, re.DOTALL)
    assert found, f"CONTRIBUTING.md has no block {name!r}"
    return found.group(1)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("workshop")
    for name in ("my_kernel.py", "my_recipe.yaml"):
        (folder / name).write_text(block(f"file: {name}"), encoding="utf-8")
    return folder


def run(command: str, workshop: Path) -> str:
    words = shlex.split(command)
    if words[0] == "fredholm":
        words = ["-m", "fredholm.cli.main", *words[1:]]
        folder = workshop
    else:  # what lives in the checkout is run from there
        words = [str(workshop / word) if word == "my_kernel.py" else word for word in words[1:]]
        folder = ROOT
    if "pytest" in words:
        words += ["-p", "no:cacheprovider"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_kernel_fits_into_sixty_lines():
    assert len(block("file: my_kernel.py").splitlines()) <= 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_contract_training_report_and_benchmark_without_touching_another_file(workshop):
    outputs = {command: run(command, workshop) for command in block("commands").splitlines()}
    contract = next(text for command, text in outputs.items() if "pytest" in command)
    assert int(re.search(r"(\d+) passed", contract).group(1)) > 40
    assert (workshop / "runs/bilateral-digits/model/model.safetensors").is_file()
    assert (workshop / "runs/bilateral-digits/report/index.html").is_file()
    timed = next(text for command, text in outputs.items() if "benchmarks" in command)
    assert "bilateral forward+backward" in timed
