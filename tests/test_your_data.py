"""The walk-through of docs/your-data.md, run unchanged; numbers may differ."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest

from fredholm.lab.cli.main import main

TEXT = (Path(__file__).parents[1] / "docs" / "your-data.md").read_text(encoding="utf-8")
FENCED = re.compile(r"<!-- (run(?: if \S+)?|file(?:: \S+)?) -->\n```\w+\n(.*?)```", re.DOTALL)


RECOMMENDED = ("recommended", "runner-up", "how sure", "ten times the length")
TRAIN = ("train in full", "train best operator")
OPTIONAL = ("predict",)  # of a method beside the operators, where that is recommended
UNWRITTEN = ("tie",)  # lines of a recommendation that the page need not have


def alike(line: str) -> str:
    """Return a line without its numbers and without parts that depend on the machine, whose speed
    affects the recommendation.
    """
    name = line.partition(":")[0]
    if name in TRAIN:
        return TRAIN[0]
    if name in (*RECOMMENDED, "lost samples", *OPTIONAL):
        return name
    line = re.sub(r"\S*/(?=[\w.-]+)", "", line)
    line = re.sub(r"\d (s|min|h)( left$|; weights of epoch)", r"0 min\2", line)
    return re.sub(r"\s+", " ", re.sub(r"[\d.,e+-]*\d[\d.,]*", "#", line)).strip()


def check(expected: list[str], shown: list[str], command: str) -> None:
    """Check that the expected lines occur in order; ``…`` stands for any lines."""
    told = [line for line in shown if line.strip() and line.partition(":")[0] not in UNWRITTEN]
    lines = [alike(line) for line in told]
    place = 0
    free = False
    for line in (line for line in expected if line.strip()):
        if line.strip() == "…":
            free = True
            continue
        wanted = alike(line)
        if wanted in OPTIONAL and wanted not in lines:
            continue
        found = lines.index(wanted, place) if wanted in lines[place:] else None
        assert found is not None, f"{command}: no line {line!r} in\n" + "\n".join(shown[place:])
        assert free or found == place, f"{command}: {lines[place]!r} comes before {line!r}"
        place = found + 1
        free = False


def walk_through(text: str, folder: Path, monkeypatch, capsys) -> list[str]:
    """Run the blocks of a page in a folder and compare what they show; return the commands."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    ran = []
    for what, block in FENCED.findall(text):
        needed = what.partition(" if ")[2]  # what an earlier command may have written
        if needed and not Path(needed).exists():
            continue
        if what == "file":
            exec(block, {})
        elif what.startswith("file: "):
            Path(what.removeprefix("file: ")).write_text(block)
        else:
            for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
                command, *expected = part.splitlines()
                words = shlex.split(command)
                if words[0] == "head":
                    shown = Path(words[2]).read_text().splitlines()[: -int(words[1])]
                else:
                    assert main(words[1:]) == 0, command
                    shown = capsys.readouterr().out.splitlines()
                check(expected, shown, command)
                ran.append(words[1] if words[0] == "fredholm" else words[0])
    return ran


@pytest.mark.slow
def test_the_commands_of_the_page_run(tmp_path, monkeypatch, capsys):
    ran = walk_through(TEXT, tmp_path, monkeypatch, capsys)
    if Path("compare/method").exists():
        assert [ran.pop(2), ran.pop(2)] == ["evaluate", "predict"]
    assert ran == ["data", "compare", "train", "evaluate", "predict", "head", "explain"]
    assert (tmp_path / "runs/walks/report/index.html").is_file()
    assert os.listdir(tmp_path / "compare")
