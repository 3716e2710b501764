"""Code in a folder is executed only when trusted."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from evidence.choosing import speed

from fredholm.errors import OptionError, TrustError
from fredholm.integral import registry
from fredholm.lab.cli.main import main
from fredholm.lab.compare import Setting, choose, compare
from fredholm.lab.compare.saved import Pick, comparison_code, splits_of
from fredholm.lab.compare.search import open_search
from fredholm.lab.training.grid import recipe_cell, train_cell
from fredholm.training import (
    compress_run,
    evaluate,
    explain,
    export_run,
    generate,
    imported_code,
    linearize_source,
    load_recipe,
    load_run,
    predict,
    sweep,
    train,
)
from tests.lab.training.conftest import SMALL

OPERATOR = """
from pathlib import Path
from fredholm.operators import SoftmaxAttention, register_operator

with Path({marker!r}).open("a") as file:
    file.write("run\\n")


@register_operator("of-the-run")
def of_the_run(dim, heads=1, **options):
    return SoftmaxAttention(dim, heads, **options)
"""


def forget():
    """Forget imported user files, as in a new process."""
    registry._IMPORTED.clear()
    registry.OPERATORS._entries.pop("of-the-run", None)
    for name in [name for name in sys.modules if name.startswith("fredholm_user_")]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Train a recipe that imports a file, which logs its executions."""
    folder = tmp_path_factory.mktemp("trust")
    (folder / "mine.py").write_text(OPERATOR.format(marker=str(folder / "marker")))
    (folder / "own.yaml").write_text("import: mine.py\ndata: {name: digits}\nmodel: itnet_nano\n")
    forget()
    small = [*SMALL, "operator=of-the-run", "training.epochs=1", "schedule.warmup_epochs=0"]
    arguments = [str(folder / "own.yaml"), *small, "--runs", str(folder / "runs")]
    assert main(["train", *arguments]) == 0, "a user's own recipe needs no flag"
    yield folder
    forget()


@pytest.fixture
def sent(home, tmp_path):
    """Return a copy of the run as a recipient has it; executions are logged in ``marker``."""
    shutil.copytree(home / "runs" / "own", tmp_path / "sent")
    code = tmp_path / "sent/code/mine.py"
    code.write_text(OPERATOR.format(marker=str(tmp_path / "marker")))
    forget()
    yield tmp_path / "sent"
    forget()


def executed(sent: Path) -> int:
    marker = sent.parent / "marker"
    return len(marker.read_text().splitlines()) if marker.is_file() else 0


CALLS = {
    "load_run": load_run,
    "evaluate": evaluate,
    "explain": explain,
    "predict": lambda run, **given: predict(run, ["x.png"], **given),
    "generate": lambda run, **given: generate(run, "a", **given),
    "export": lambda run, **given: export_run(run, "program", **given),
    "compress": lambda run, **given: compress_run(run, 2, **given),
    "linearize": lambda run, **given: linearize_source(run, out=run.parent / "out", **given),
    "load_recipe": load_recipe,
    "its recipe.yaml": lambda run, **given: load_recipe(run / "recipe.yaml", **given),
    "choose": lambda run, **given: choose(str(run), out=run.parent / "choice", **given),
    "compare": lambda run, **given: compare([str(run)], "gru", run.parent / "table", **given),
    "sweep": lambda run, **given: sweep(run, [], run.parent / "sweep", **given),
}


@pytest.mark.parametrize("name", CALLS)
def test_untrusted_code_of_a_run_is_not_executed(name, sent):
    with pytest.raises(TrustError) as caught:
        CALLS[name](sent)
    assert executed(sent) == 0
    assert repr(str(sent / "code" / "mine.py")) in str(caught.value)
    assert "--trust-code" in str(caught.value)
    assert "trust_code=True" in str(caught.value)


def test_trusted_code_is_executed(sent):
    assert load_run(sent, trust_code=True)[1].root == sent
    assert executed(sent) == 1
    assert evaluate(sent)["n"] > 100, "its content is known to this process by now"
    assert executed(sent) == 1, "and it is not run again"
    (sent / "code" / "mine.py").write_text("raise SystemExit('changed since')\n")
    with pytest.raises(TrustError):
        evaluate(sent)


COMMANDS = [
    ["evaluate"],
    ["explain"],
    ["predict", "x.png"],
    ["generate", "--prompt", "a"],
    ["compress", "--rank", "2"],
    ["export", "--to", "program", "--fixed", "none of its sizes"],
    ["linearize", "--out", "out", "--epochs", "0", "--distil-epochs", "0"],
    ["explain", "--module", "body.blocks.0", "--out", "out"],
    ["train", "--resume", "--runs", "."],
    ["sweep", "--runs", "."],
    ["plan", "--steps", "1"],
    ["compare", "--minutes", "0.001", "--operators", "gru"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(c) for c in COMMANDS])
def test_commands_accept_the_flag_and_print_the_path(command, sent, capsys, monkeypatch):
    monkeypatch.chdir(sent.parent)
    first, *rest = command
    path = repr(str(sent / "code" / "mine.py"))
    assert main([first, "sent", *rest]) == 2
    error = capsys.readouterr().err
    assert executed(sent) == 0
    assert path in error
    assert "--trust-code" in error
    # Not every command supports this run.
    main([first, "sent", *rest, "--trust-code"])
    captured = capsys.readouterr()
    assert executed(sent) == 1
    assert f"--trust-code: executing {path}" in captured.err
    assert "--trust-code" not in captured.out, "the output is for programs"


def test_evaluate_prints_its_figures_for_trusted_code(sent, capsys):
    assert main(["evaluate", str(sent), "--trust-code", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dataset"] == "digits"


def test_resuming_compares_the_code_of_a_run_without_executing_it(home, sent, capsys):
    (sent / "code" / "mine.py").write_text((home / "mine.py").read_text())
    before = (home / "marker").read_text()
    name = ["--runs", str(sent.parent), "--name", "sent", "--resume"]
    small = [*SMALL, "operator=of-the-run", "training.epochs=1", "schedule.warmup_epochs=0"]
    assert main(["train", str(home / "own.yaml"), *small, *name]) == 0
    assert (home / "marker").read_text() == before + "run\n", "the user's own file alone"
    other = OPERATOR.format(marker=str(sent.parent / "marker"))
    (sent / "code" / "mine.py").write_text(other)
    capsys.readouterr()
    assert main(["train", str(home / "own.yaml"), *small, *name]) == 2
    assert "mine.py has other content" in capsys.readouterr().err
    assert executed(sent) == 0


def test_weights_of_a_run_with_untrusted_code_are_refused(sent):
    chosen = [*SMALL, "training.epochs=1", "schedule.warmup_epochs=0", f"init_from={sent}"]
    with pytest.raises(TrustError):
        train(load_recipe("digits", chosen), sent.parent / "next")
    assert executed(sent) == 0
    assert not (sent.parent / "next").exists()
    train(load_recipe("digits", chosen), sent.parent / "next", trust_code=True)
    assert executed(sent) == 1


def test_code_that_an_override_names_beside_a_run_folder_needs_trust(sent, monkeypatch):
    monkeypatch.chdir(sent.parent)
    changes = ["import=sent/code/mine.py"]
    out = sent.parent / "out"
    given = {"changes": changes, "operators": "gru", "out": out}
    calls = (
        lambda **trust: load_recipe(sent, changes, **trust),
        lambda **trust: compare(
            [str(sent)], "gru", out, setting=Setting(changes=(*changes,)), **trust
        ),
        lambda **trust: choose(str(sent), **given, **trust),
    )
    for call in calls:
        with pytest.raises(TrustError):
            call()
    assert main(["train", "sent", *changes]) == 2
    assert executed(sent) == 0
    assert load_recipe("digits", changes).imports == [str(sent / "code" / "mine.py")]
    assert executed(sent) == 1, "beside a recipe of one's own, naming a file is enough"


def test_code_that_the_changes_of_a_comparison_name_needs_trust(sent, monkeypatch):
    monkeypatch.chdir(sent.parent)
    setting = {"source": "digits", "changes": ["import=sent/code/mine.py"]}
    (sent / "choice.json").write_text(json.dumps({"setting": setting}))
    assert comparison_code(sent) == [sent / "code" / "mine.py"]
    pick = Mock(spec=Pick)
    with pytest.raises(TrustError):
        splits_of(sent, pick)
    assert executed(sent) == 0
    splits_of(sent, pick, trust_code=True)
    assert executed(sent) == 1


def test_changes_that_name_imports_replace_those_of_a_recipe(sent, monkeypatch, capsys):
    monkeypatch.chdir(sent.parent)
    mine = sent.parent / "other.py"
    mine.write_text("")
    changes = ["import=other.py"]
    assert imported_code(sent, changes) == [mine]
    setting = {"source": "sent", "changes": changes}
    (sent / "choice.json").write_text(json.dumps({"setting": setting}))
    assert comparison_code(sent) == [mine]
    (sent / "choice.json").unlink()

    main(["plan", "sent", *changes, "operator=softmax", "--steps", "1", "--trust-code"])
    assert capsys.readouterr().err == f"--trust-code: executing {str(mine)!r}\n"
    assert executed(sent) == 0


def test_a_comparison_finds_its_code_from_any_folder(home, tmp_path, monkeypatch):
    monkeypatch.chdir(home)
    small = ["training.epochs=1", "schedule.warmup_epochs=0", "data.limit=128"]
    changes = ["import=mine.py", *small, "model.body.depth=1", "model.body.dim=8"]
    for source in ("digits", "own.yaml"):
        out = tmp_path / source
        opened = open_search(source, 0.1, operators="gru", changes=changes, out=out)
        assert opened.state["setting"]["changes"][1:] == changes[1:]
        out.mkdir()
        # One that an earlier version began has them as they were typed, and is continued.
        typed = opened.state | {
            "setting": opened.state["setting"] | {"source": source, "changes": changes}
        }
        (out / "choice.json").write_text(json.dumps(typed))
        again = open_search(source, 0.1, operators="gru", changes=changes, out=out)
        assert again.state["setting"] == opened.state["setting"]
        (out / "choice.json").write_text(json.dumps(opened.state))

    monkeypatch.chdir(tmp_path)
    for source in ("digits", "own.yaml"):
        assert comparison_code(tmp_path / source) == [home / "mine.py"]
        splits_of(tmp_path / source, Mock(spec=Pick), trust_code=True)


def test_a_task_is_not_the_run_folder_of_its_name(sent, monkeypatch):
    folder = sent.parent / "runs" / "digits"
    shutil.copytree(sent, folder)
    monkeypatch.chdir(folder.parent)
    changes = ["import=../other.py", "training.epochs=1", "schedule.warmup_epochs=0"]
    (sent.parent / "other.py").write_text("")
    opened = open_search("digits", 0.1, operators="gru", changes=changes, out=sent.parent / "out")
    assert opened.trials.splits.recipe.name == "digits"
    with pytest.raises(OptionError, match="expected operators or baselines, got 'nothing'"):
        compare(["digits"], "nothing", sent.parent / "table", setting=Setting(changes=(*changes,)))
    assert executed(sent) == 0
    # Other commands read the folder.
    with pytest.raises(TrustError):
        load_recipe("digits")


def test_timing_a_table_executes_code_only_with_trust(sent, monkeypatch):
    monkeypatch.setattr(speed, "_child", lambda what, given: [])
    setting = {"budget": "params", "minutes": None, "changes": []}
    entry = {"name": "sent", "title": "sent", "recipe": str(sent / "recipe.yaml"), "rows": []}
    entry |= {
        "overrides": [],
        "metric": "accuracy",
        "measure": "accuracy",
        "points": 16,
        "samples": 9,
    }
    table = sent.parent / "table"
    table.mkdir()
    (table / "compare.json").write_text(json.dumps({"setting": setting, "tasks": [entry]}))
    with pytest.raises(TrustError):
        speed.measure(table)
    assert executed(sent) == 0
    speed.measure(table, trust_code=True)
    assert executed(sent) == 1


def test_a_cell_imports_the_files_of_its_recipe_in_another_process(home, tmp_path):
    forget()
    small = [*SMALL, "operator=of-the-run", "training.epochs=1", "schedule.warmup_epochs=0"]
    cell = recipe_cell(load_recipe(home / "own.yaml", small), tmp_path / "cell")
    forget()  # as where the cell is sent to
    assert "accuracy" in train_cell(cell, lambda line: None)


def test_imports_are_listed_without_executing_them(sent):
    assert imported_code(sent) == [sent / "code" / "mine.py"]
    assert executed(sent) == 0
    assert imported_code("digits") == []


def test_byte_code_beside_a_file_is_not_executed(sent):
    """Python executes an unchecked ``.pyc`` regardless of its source."""
    code = sent / "code" / "mine.py"
    hidden = f"open({str(sent.parent / 'hidden')!r}, 'w').close()\n" + code.read_text()
    place = Path(importlib.util.cache_from_source(str(code)))
    place.parent.mkdir()
    place.write_bytes(unchecked_byte_code(hidden, code))
    load_run(sent, trust_code=True)
    assert not (sent.parent / "hidden").exists()
    assert executed(sent) == 1


def unchecked_byte_code(source: str, path: Path) -> bytes:
    import marshal

    header = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    return header + marshal.dumps(compile(source, str(path), "exec"))


# --- folders of transformers ----------------------------------------------------------------------


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """Write a folder of transformers whose ``auto_map`` names a file in it, and confirm prompts."""
    pytest.importorskip("transformers")
    folder = tmp_path / "remote"
    folder.mkdir()
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    maps = {
        "AutoConfig": "evil.Config",
        "AutoModel": "evil.Model",
    }
    described = {"model_type": "of-nobody", "architectures": ["Model"], "auto_map": maps}
    (folder / "config.json").write_text(json.dumps(described))
    asked = []
    monkeypatch.setattr("builtins.input", lambda question="": asked.append(question) or "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    yield folder
    assert asked == [], "nobody is asked"
    assert not (tmp_path / "ran").exists()


def test_explain_executes_no_remote_code(remote, tmp_path, capsys):
    assert main(["explain", str(remote), "--module", "x", "--out", str(tmp_path / "o")]) == 2
    assert "needs Python code that lies in it (auto_map" in capsys.readouterr().err


def test_linearize_executes_no_remote_code(remote, tmp_path, capsys):
    assert main(["linearize", str(remote), "--out", str(tmp_path / "o")]) == 2
    assert "needs Python code that lies in it (auto_map" in capsys.readouterr().err


def test_a_known_model_loads_with_the_librarys_class(remote, tmp_path):
    from fredholm.lab.report.sources import load_model
    from tests.linearize import models

    models.bert().save_pretrained(remote)
    described = json.loads((remote / "config.json").read_text())
    described["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
    (remote / "config.json").write_text(json.dumps(described))
    model = load_model(str(remote))
    assert type(model).__module__ == "transformers.models.bert.modeling_bert"


def test_a_class_that_is_not_a_model_is_not_called(remote, tmp_path, capsys):
    from tests.linearize import models

    models.bert().save_pretrained(remote)
    described = json.loads((remote / "config.json").read_text()) | {"architectures": ["AutoModel"]}
    (remote / "config.json").write_text(json.dumps(described))
    assert main(["linearize", str(remote), "--out", str(tmp_path / "o")]) == 2
    assert "expected the class of a model in config.json" in capsys.readouterr().err
