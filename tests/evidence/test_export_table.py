"""The committed table of exported programs has no unexplained refusal and a sample is repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from evidence.export import FILE
from evidence.export.cells import PROGRAMS
from evidence.export.models import MODELS
from evidence.export.page import COLUMNS, Notes, _cell, _row
from evidence.export.speed import _batches, _shapes
from evidence.kit.page import load

from fredholm.errors import OptionError
from fredholm.export import signature_of
from fredholm.export.decoder import _longest
from fredholm.export.program import TOLERANCE
from fredholm.models import Model

ROOT = Path(__file__).parents[2]
FOUND = load(FILE)
SAMPLE = """
import json, sys, tempfile, torch, warnings
from pathlib import Path
from evidence.export.cells import PROGRAMS, cells
warnings.simplefilter("ignore")
torch.set_num_threads(1)
chosen = {name: PROGRAMS[name] for name in ("eager", "export")}
print(json.dumps(cells(sys.argv[1], Path(tempfile.mkdtemp()), chosen)))
"""


def test_every_model_has_a_row():
    assert list(FOUND) == list(MODELS)


@pytest.mark.parametrize("name", FOUND)
def test_a_row_has_no_empty_cell(name):
    assert set(FOUND[name]) == set(COLUMNS)
    assert not [cell for cell in FOUND[name].values() if "failed" in cell]


def refusal(check: Callable[[Model], object], model: Model) -> str | None:
    """Return the text by which a check refuses a model, if it does."""
    try:
        check(model)
    except OptionError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", FOUND)
def test_refusals_before_a_trace_equal_those_of_the_code(name):
    model = MODELS[name]()
    row = FOUND[name]
    # A model whose inputs are known has a program of PyTorch.
    assert row["export"].get("refused") == refusal(signature_of, model)

    # Steps can also be refused later, by the states of the layers.
    steps = refusal(_longest, model)
    if steps is not None:
        assert row["prefill"] == row["step"] == {"refused": steps}


@pytest.mark.parametrize("name", FOUND)
def test_no_cell_is_an_unexplained_refusal(name):
    for column, cell in FOUND[name].items():
        assert "failed" not in cell, (column, cell)
        if "error" in cell:
            assert cell["error"] >= 0, column
            allowed = max(TOLERANCE, FOUND[name]["eager"]["error"])
            assert cell["error"] <= allowed, column
        else:
            # A tracer's own message is not a refusal by name.
            assert "can be traced" not in cell["refused"], (column, cell)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("softmax, causal texts", ["(1, 64)", "(1, 512)", "(1, 2048)"]),
        ("itnet, causal texts", ["(1, 64)", "(1, 512)"]),
        # Its table of positions ends at 1,024 tokens.
        ("lra_official_retrieval", ["(1, 2, 64)", "(1, 2, 512)"]),
        ("softmax, pictures", ["(8, 1, 28, 28)"]),
        ("series with times", ["(1, 32, 3)"]),
        ("graphs", ["(1, 32, 32) (1, 32, 8) (1, 32) (1, 32, 3)"]),
    ],
)
def test_timed_batches_have_the_sizes_of_training_or_of_the_table(name, shapes):
    batches = _batches(name, MODELS[name](), small=False)
    assert [_shapes(inputs) for inputs in batches] == shapes


@pytest.mark.compile
def test_a_sample_is_measured_again():
    command = [sys.executable, "-c", SAMPLE, "softmax, causal texts"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    row = json.loads(done.stdout.splitlines()[-1])
    assert 0 < row["eager"]["error"] < TOLERANCE
    assert 0 < row["export"]["error"] < TOLERANCE


def test_a_cell_is_a_number_a_letter_or_not_measured():
    notes = Notes()
    assert _cell({"error": 4.4e-7}, notes) == "4e-7"
    assert _cell({"error": 0.0}, notes) == "0"
    assert _cell(None, notes) == "not measured yet"
    assert [_cell({"refused": f"export: {text}"}, notes) for text in "xyx"] == ["a", "b", "a"]
    assert notes.text() == "- **a**: x\n- **b**: y"
    assert len(_row({}, notes)) == len(COLUMNS)


def test_columns_of_the_command_equal_those_of_the_page():
    parts = {"prefill", "step", "compile", "AOTI"} | set(PROGRAMS) - {"steps"}
    assert parts == set(COLUMNS)
