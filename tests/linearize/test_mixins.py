"""transformers' own test mixins, run on converted models.

The mixins are not in transformers' wheel: ``FREDHOLM_TRANSFORMERS`` names a checkout of the
installed version, with the packages that its tests import (``parameterized``, ``httpx``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from .mixin_failures import ARCHITECTURES, expected

CHECKOUT = os.environ.get("FREDHOLM_TRANSFORMERS")
SCRIPT = Path(__file__).parent / "mixins.py"
MINUTES = 30


def test_every_expected_failure_has_one_reason():
    for architecture in ARCHITECTURES:
        found = expected(architecture)
        assert all(reason.strip() for reason in found.values())


@pytest.mark.slow
@pytest.mark.timeout(60 * MINUTES + 60)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_converted_model_passes_the_librarys_own_tests(architecture, tmp_path):
    if CHECKOUT is None:
        pytest.skip("FREDHOLM_TRANSFORMERS: names no checkout of transformers")
    out = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), CHECKOUT, architecture, str(out)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60 * MINUTES
    )
    assert done.returncode == 0, done.stderr[-3000:]

    results = json.loads(out.read_text())
    known = expected(architecture)
    failed = {name: why for name, (state, why) in results.items() if state == "failed"}
    late = [name for name, (state, _) in results.items() if state == "too long"]
    assert sum(state == "passed" for state, _ in results.values()) > 30
    unexpected = {name: why for name, why in failed.items() if name not in known}
    assert not unexpected, json.dumps(unexpected, indent=1)
    # Tests that pass must leave the list.
    mended = [name for name in known if results.get(name, [""])[0] == "passed"]
    assert not mended
    assert not [name for name in late if name not in known]
