"""Models that compile as one graph still do so after their conversion."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_converted_models_compile():
    command = [sys.executable, "-m", "tests.linearize.compiled", "luna"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.count(": ok") == 3
