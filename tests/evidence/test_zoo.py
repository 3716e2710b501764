"""A sample of the zoo of conversions equals its committed page."""

from __future__ import annotations

import pytest
from evidence.__main__ import main
from evidence.kit.page import load
from evidence.zoo import FILE, OUTCOMES, examine
from evidence.zoo_modules import modules

COMMITTED = load(FILE)
ROWS = {(row["library"], row["module"], row["by"]): row for row in COMMITTED["modules"]}
ALL = modules()
CHANGED = [s for s in ALL if s.library == "changed layers"]
# Without compiled layers: torch.compile is slow.
SAMPLE = [s for s in CHANGED if "compiled" not in s.name] + [
    s for s in ALL if s.library in ("torch", "torch_geometric", "mambapy")
][::6]


def test_every_module_was_examined_and_has_an_outcome():
    missing = {
        (s.library, s.name, "from_encoder" if s.encoder else "as_operator") for s in ALL
    } - ROWS.keys()
    assert not missing, "run python -m evidence run zoo"
    assert len(ROWS) >= 200
    for row in ROWS.values():
        assert row["outcome"] in OUTCOMES or row["outcome"].startswith("needs "), row
        if row["outcome"] == "refused":
            assert len(row["says"]) > 20, row
        elif row["outcome"] in OUTCOMES:
            assert row["error"] < 1e-6, row


@pytest.mark.parametrize("specimen", SAMPLE, ids=lambda s: f"{s.library}: {s.name}")
def test_a_sample_equals_its_committed_outcome(specimen):
    row = examine(specimen)
    if row["outcome"].startswith("needs "):
        pytest.skip(row["outcome"])
    known = ROWS[row["library"], row["module"], row["by"]]
    assert row["outcome"] == known["outcome"], (row, known)
    assert row["says"] == known["says"]


def test_one_module_is_examined_from_the_command_line(capsys):
    assert main(["run", "zoo", "--only", "RMSNorm(4)"]) == 0
    assert "refused" in capsys.readouterr().out
