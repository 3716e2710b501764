"""The commands of docs/start.md, run unchanged; numbers may differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_your_data import walk_through

TEXT = (Path(__file__).parents[1] / "docs" / "start.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_commands_of_the_first_page_run(tmp_path, monkeypatch, capsys):
    ran = walk_through(TEXT, tmp_path, monkeypatch, capsys)
    assert ran == ["data", "train", "evaluate", "predict", "explain"]
    assert (tmp_path / "growers.csv").is_file()
    assert (tmp_path / "runs/wine/report/index.html").is_file()
