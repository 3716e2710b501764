"""The command line: output of each command, and exit code and single line of each failure."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys

import pytest
import torch
import yaml

from fredholm.errors import OptionError
from fredholm.lab.cli import show
from fredholm.lab.cli.main import main
from fredholm.lab.cli.reading import as_override, recipes_and_files
from fredholm.lab.data.files.reading import Reading
from fredholm.lab.training.folder import RunResult
from fredholm.lab.training.metrics import baseline_of
from fredholm.lab.training.tasks import create_task
from tests.lab.training.conftest import SMALL


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Train one run by the command line."""
    folder = tmp_path_factory.mktemp("runs")
    assert main(["train", "digits", *SMALL, "--runs", str(folder), "--name", "first"]) == 0
    return folder


def test_train_evaluate_and_predict_print_their_results(runs, capsys, tmp_path):
    from PIL import Image

    assert main(["evaluate", str(runs / "first")]) == 0
    shown, constant, *_ = capsys.readouterr().out.splitlines()
    assert shown.startswith("digits test: accuracy 0.")
    assert constant.startswith("always '")
    assert float(constant.rpartition(" ")[2]) < 0.2
    assert main(["evaluate", str(runs / "first"), "--json", "--split", "val"]) == 0
    assert json.loads(capsys.readouterr().out)["split"] == "val"
    Image.new("L", (8, 8), 128).save(tmp_path / "grey.png")
    assert main(["predict", str(runs / "first"), str(tmp_path / "grey.png")]) == 0
    assert "grey.png: " in capsys.readouterr().out
    assert main(["explain", str(runs / "first")]) == 0
    assert "report: " in capsys.readouterr().out
    assert "<img" in (runs / "first" / "report" / "index.html").read_text()


FAILURES = [
    (["train", "digit"], 2, "did you mean 'digits'"),
    (
        ["train", "digits", "training.epoch=3"],
        2,
        "training.epoch: unknown key (got 3); did you mean 'epochs'?",
    ),
    (
        ["train", "digits", *SMALL, "--name", "first"],
        2,
        "holds a finished run; add --resume, --overwrite or another --name",
    ),
    (["train", "digits", *SMALL, "--name", "none", "--resume"], 2, "no run to resume"),
    (
        ["train", "digits", *SMALL, "seed=9", "--name", "first", "--resume"],
        2,
        "differs in seed (0 -> 9)",
    ),
    (["evaluate", "nowhere"], 2, "no run here"),
    (["evaluate", "nowhere", "--read", "decimal=,"], 2, "--read: expected new files with it"),
    (["evaluate", "nowhere", "--strict"], 2, "--strict: expected new files with it"),
    (["data", "path", "mnits"], 2, "did you mean 'mnist'?"),
]


@pytest.mark.parametrize(
    ("arguments", "code", "message"), FAILURES, ids=[message[:25] for _, _, message in FAILURES]
)
def test_failures_give_one_line_on_stderr(runs, capsys, arguments, code, message):
    options = ["--runs", str(runs)] if arguments[0] == "train" else []
    assert main([*arguments, *options]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.strip().splitlines()) == 1
    assert message in err
    assert err.startswith("error:")


@pytest.mark.parametrize("command", ["evaluate", "predict", "explain", "plan", "sweep"])
@pytest.mark.parametrize("rank", [0, 1])
def test_single_process_commands_are_refused_in_several(monkeypatch, capsys, command, rank):
    facts = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "GROUP_RANK": "0"}
    facts |= {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "2"}
    for name, value in facts.items():
        monkeypatch.setenv(name, value)
    assert main([command, "runs/first", "x"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == (rank == 0)  # printed by one process
    assert all(f"error: {command}: expected one process, got 2" in line for line in said)


def test_one_process_of_torchrun_works(monkeypatch, capsys):
    facts = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GROUP_RANK": "0"}
    for name, value in {**facts, "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    assert main(["operators"]) == 0


def test_debug_shows_the_traceback():
    from fredholm.errors import RecipeError

    with pytest.raises(RecipeError):
        main(["train", "digit", "--debug"])


@pytest.mark.parametrize("no", ["", "1"])
def test_errors_are_coloured_on_a_terminal_unless_disabled(monkeypatch, capsys, no):
    monkeypatch.setenv("NO_COLOR", no)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["data", "path", "mnits"]) == 2
    assert ("\033[31m" in capsys.readouterr().err) == (not no)


def test_the_suggested_command_is_quoted_for_the_shell(capsys):
    facts = {"name": "a", "stopped": "finished", "epochs": 1, "steps": 2, "minutes": 0.1}
    more = {"parameters": 3, "best_epoch": 1, "metrics": {"val_loss": 0.5}, "metric": "val_loss"}
    show.run_result(RunResult(**facts, **more, folder="my runs/a"))
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == "next: fredholm evaluate 'my runs/a'   |   fredholm explain 'my runs/a'"


def test_usage_errors_exit_2(capsys):
    assert main(["train"]) == 2
    assert "recipe" in capsys.readouterr().err.lower()
    assert main(["trian"]) == 2


@pytest.mark.parametrize("name", ["2024", "2024-05-01", "1e3", "on"])
def test_names_may_look_like_numbers(tmp_path, name):
    common = ["train", "digits", *SMALL, "training.epochs=1", "--runs", str(tmp_path)]
    assert main([*common, "--name", name]) == 0
    assert main([*common, "--name", name, "--resume"]) == 0
    assert main(["evaluate", str(tmp_path / name)]) == 0


def test_a_sweep_prints_its_table_and_fails_with_a_failed_cell(tmp_path, capsys):
    grid = [*SMALL, "training.epochs=2", "model.body.heads=2,3"]
    assert main(["sweep", "digits", *grid, "--runs", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert "| model.body.heads=2 |" in out
    assert "1 of 2 cells failed" in err
    assert (tmp_path / "sweep-digits" / "table.md").is_file()


def test_lists_are_printed(capsys):
    assert main(["models", "itnet_n*"]) == 0
    assert "itnet_nano" in capsys.readouterr().out
    assert main(["operators"]) == 0
    assert {"itnet", "softmax"} <= set(capsys.readouterr().out.split())
    assert main(["data", "list"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fredholm 0.")


OWN = '''
from fredholm.operators import IntegralOperator, register_operator


@register_operator("listed-by-the-command")
class Mine(IntegralOperator):
    """Something of my own that takes so many words to be said that they go on below each other,
    :math:`K`, and this is left out.
    """
'''


def test_operators_of_a_file_are_listed_with_descriptions(tmp_path):
    """In a separate process, since other tests register operators that would be listed too."""

    def listed(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "fredholm", "operators", "--import", name]
        narrow = {**os.environ, "COLUMNS": "60"}
        return subprocess.run(
            command, cwd=tmp_path, env=narrow, capture_output=True, text=True, timeout=120
        )

    (tmp_path / "mine.py").write_text(OWN)
    run = listed("mine.py")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert max(map(len, lines)) <= 60
    first = next(n for n, line in enumerate(lines) if line.startswith("listed-by-the-command"))
    column = lines[first].index("Something of my own")
    unaligned = [line for line in lines if line[column] == " " or line[column - 1] != " "]
    assert unaligned == []
    assert lines[first + 1].startswith(" " * column)
    assert "left out" not in " ".join(lines)
    assert any(line.split()[:3] == ["softmax", "Multi-head", "softmax"] for line in lines)

    (tmp_path / "broken.py").write_text("1 / 0\n")
    run = listed("broken.py")
    assert run.returncode == 2
    assert "broken.py failed: ZeroDivisionError" in run.stderr


@pytest.mark.parametrize("flag", ["--predict", "--task"])
def test_each_question_about_files_is_one_flag(tmp_path, capsys, flag):
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(["a,b,y", *(f"{n * n % 7},{n % 5},{n % 3}" for n in range(40))]))
    assert main(["data", "describe", str(path), flag, "regression"]) == 0
    out = capsys.readouterr().out
    assert "kind rows, regression" in out
    assert f"next: fredholm train {path} --predict regression" in out


def test_a_missing_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "typer", None)
    assert main(["models"]) == 2
    assert "pip install 'fredholm[train]'" in capsys.readouterr().err


def test_help_has_examples_and_loads_no_heavy_package():
    code = (
        "import sys; from fredholm.lab.cli.main import main; main(['train', '--help']);"
        "heavy = {'lightning', 'matplotlib', 'tensorboard'} & set(sys.modules); "
        "sys.exit(f'{heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "fredholm train digits operator=softmax" in done.stdout


def test_the_answer_of_a_chat_is_printed_alone(capsys):
    from fredholm.lab.cli import show

    result = {"prompt": "And God", "text": " said"}
    show.generated(result, False)
    show.generated({"prompt": "Who?", "text": "I."}, False, answered=True)
    assert capsys.readouterr().out == "And God said\nWho?\n\nI.\n"


@pytest.mark.parametrize("name", ["a", "größe", "\U0001f600", "\x85", "\u2028", "a'b\"c", "2024"])
def test_names_of_columns_survive_a_recipe(name):
    key, _, text = as_override("data.label", name).partition("=")
    assert (key, yaml.safe_load(text)) == ("data.label", name)


def test_names_of_classes_are_printed_without_markup(capsys):
    show._table(["class", "accuracy"], [["[neg]", 1], ["[/INST]", 2]])
    out = capsys.readouterr().out
    assert "[neg]" in out
    assert "[/INST]" in out


def test_a_score_is_shown_beside_the_best_constant_prediction(capsys):
    result = {"dataset": "houses", "split": "test", "n": 3, "loss_name": "mean squared error"}
    labels = torch.tensor([100_000.0, 2_200_000.0, 700_000.0])
    summary = create_task("regression").summary_of_pairs(labels + 1e5, labels, ())
    baseline = baseline_of(summary)
    show.evaluation(result | summary | {"baseline": baseline}, as_json=False)
    scores, constant = capsys.readouterr().out.splitlines()
    assert "root mean squared error 100,000" in scores
    assert constant == "always 1,000,000, the mean here: root mean squared error 883,176"

    found = {"dataset": "cola", "split": "test", "n": 4, "loss_name": "cross-entropy", "loss": 0.5}
    found |= {"baseline": {"class": "yes", "accuracy": 0.75}}
    for name, lines in (("matthews", 1), ("accuracy", 2)):
        show.evaluation(found | {"scores": {name: 0.25}}, as_json=False)
        assert len(capsys.readouterr().out.splitlines()) == lines


def test_options_of_layer_reports_are_refused_for_runs(tmp_path, capsys):
    for flags in (["--samples", "3"], ["--seed", "7"]):
        assert main(["explain", str(tmp_path), *flags]) == 2
        assert f"{flags[0]}: expected one layer" in capsys.readouterr().err


def test_samples_read_as_a_recipe_are_refused_with_advice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mydata").mkdir()
    assert main(["train", "mydata"]) != 0
    assert (
        "to train on the samples in it, end its name with a separator: mydata/"
        in capsys.readouterr().err
    )
    (tmp_path / "a.json").write_text("[1, 2]")
    assert main(["train", "./a.json"]) != 0
    error = capsys.readouterr().err
    assert "expected sections such as data: and model:, got list; " in error
    assert "to train on samples, name files of: .bmp, .csv" in error


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("test", "abc", "test: expected a share between 0 and 1, got 'abc'"),
        ("points", "many", "points: expected a whole number of 1 or more, got 'many'"),
    ],
)
def test_options_of_data_of_a_wrong_type_are_named(key, value, message):
    wrong = object.__new__(Reading)  # bypasses the tests' check of types
    vars(wrong).update(vars(Reading()) | {key: value})
    with pytest.raises(OptionError, match=f"^{message}"):
        inspect.unwrap(Reading.__post_init__)(wrong)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("fredholm tr", "train"),
        ("fredholm train dig", "digits"),
        ("fredholm evaluate ru", "runs/one"),
    ],
)
def test_a_shell_completes_commands_recipes_and_runs(
    words, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "one").mkdir(parents=True)
    monkeypatch.setenv("_FREDHOLM_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit):
        main([])
    assert expected in capsys.readouterr().out.split()


def test_paths_are_completed_as_by_the_shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").touch()
    (tmp_path / "data" / ".hidden").touch()
    assert recipes_and_files("dat") == ["data/"]
    assert recipes_and_files("data/") == ["data/a.csv"]
    assert recipes_and_files(f"{tmp_path}/data/a") == [f"{tmp_path}/data/a.csv"]
    assert recipes_and_files("nowhere/x") == []
