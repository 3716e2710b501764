"""torch.compile and torch.export of every registered operator, in a process without the
shape-checking hook.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Shards of the cases, so that the workers of a parallel run share the wait.
SHARDS = 3
ROOT = Path(__file__).parents[2]


@pytest.mark.compile
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("backend", ["aot_eager", "export", "inductor"])
def test_compiled_and_exported_operators_agree_with_eager_ones(backend, shard, request):
    if request.config.getoption("operator") and shard:
        pytest.skip("one family is one shard")
    shards = 1 if request.config.getoption("operator") else SHARDS
    command = [
        sys.executable,
        "-m",
        "tests.contracts.compiled",
        backend,
        "--shard",
        f"{shard}/{shards}",
    ]
    for path in request.config.getoption("user_files"):
        command += ["--import", str(Path(path).resolve())]
    for name in request.config.getoption("operator"):
        command += ["--operator", name]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert ": ok" in done.stdout
