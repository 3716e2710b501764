"""Start-up: modules imported by ``import fredholm`` and by a first call, and their cost."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from fredholm.ops.backend import constant_when_traced

FIRST_CALL = """
import sys, time
import torch
before = time.process_time()
import fredholm
with torch.no_grad():
    operator = fredholm.create_operator({name!r}, 16, 2)
    operator(torch.randn(1, 8, 16), fredholm.Domain.line(8))
print(time.process_time() - before)
print(*sorted(sys.modules))
"""
NOT_NEEDED = ("torch._dynamo", "sympy", "torch.distributed.fsdp", "lightning", "pandas")
"""Triton is not among them: torch's flop counter, where our ops leave their formulas, imports it
wherever it is installed."""
CPU_SECONDS = 2.0
"""A bound with room for a busy machine; 0.5 s were measured on a quiet one."""


@pytest.mark.parametrize("name", ["itnet", "softmax", "luna"])
def test_a_first_call_without_gradients_imports_no_compiler(name):
    script = FIRST_CALL.format(name=name)
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    seconds, modules = run.stdout.strip().splitlines()
    imported = set(modules.split())
    assert "fredholm.operators" in imported
    assert [module for module in NOT_NEEDED if module in imported] == []
    assert float(seconds) < CPU_SECONDS


def test_marked_functions_are_constants_in_compiled_code():
    calls = []

    @constant_when_traced
    def number() -> int:
        calls.append(1)
        return 3

    compiled = torch.compile(lambda x: x * number(), backend="eager", fullgraph=True)
    one = torch.ones(2)
    assert compiled(one).tolist() == [3.0, 3.0]
    assert compiled(one).tolist() == [3.0, 3.0]
    assert len(calls) == 1


DESCRIBES = (
    "fredholm.lab.cli.app",
    "fredholm.data",
    "fredholm.files",
    "fredholm.lab.training.own_files",
)


def test_modules_that_describe_files_import_no_torch():
    script = f"""
import sys
for module in {DESCRIBES}:
    __import__(module)
    assert "torch" not in sys.modules, module
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_completing_a_recipe_s_name_imports_no_torch():
    script = """
import sys
from fredholm.lab.cli.reading import recipes_and_files
assert "digits" in recipes_and_files("dig")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def test_describing_a_file_imports_no_torch(tmp_path):
    import pyarrow
    from pyarrow import parquet

    rows = [{"a": i / 7, "b": i % 5, "label": "xy"[i % 2]} for i in range(40)]
    lines = ["a,b,label", *(f"{row['a']},{row['b']},{row['label']}" for row in rows)]
    (tmp_path / "walks.csv").write_text("\n".join(lines))
    (tmp_path / "walks.jsonl").write_text("\n".join(map(json.dumps, rows)))
    values = np.arange(40 * 6).reshape(40, 6) / 7
    np.savez(tmp_path / "walks.npz", X=values, y=[row["label"] for row in rows])
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "walks.parquet")
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    script = f"""
import sys
from fredholm.lab.cli.main import main
for path in {paths}:
    sys.argv = ["fredholm", "data", "describe", path]
    assert main() == 0, path
    assert "torch" not in sys.modules, path
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120
    )
    assert run.stdout.count("classes:      x 20, y 20") == len(paths) == 4


def test_every_public_name_of_the_data_package_resolves():
    from fredholm import data

    assert all(getattr(data, name) is not None for name in data.__all__)
