"""Flags that describe a user's own files, shared by the commands that read them; and names of runs
that come with the package.
"""

from __future__ import annotations

import functools
import inspect
import json
import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ...errors import OptionError

# Imports inside functions load the training room only when a command needs it: the shell calls the
# completions of this file at every press of a key.

PRETRAINED = "pretrained:"

# Tasks on a user's files.
TASKS = ("classification", "regression", "steps")

# Columns from which on a list of them is no longer spelled out.
MANY = 40

# Characters that YAML only accepts escaped.
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")


def _flag(*names_and_text: str) -> Any:
    *names, text = names_and_text
    return typer.Option(*names, help=text, rich_help_panel="About your files (guessed if left out)")


_ASKED = "Task: classification, regression or steps (a class per time)."
PredictFlag = Annotated[str | None, _flag("--predict", "--task", _ASKED)]
# Of ``compare``, whose --task names the tasks of a table.
PredictAloneFlag = Annotated[str | None, _flag("--predict", _ASKED)]
# By the keys of a recipe's section ``data``.
FLAGS: dict[str, Any] = {
    "kind": Annotated[
        str | None, _flag("--kind", "series, rows, texts, images, clouds or fields.")
    ],
    "label": Annotated[str | None, _flag("--label", "Column or array to predict.")],
    "time": Annotated[str | None, _flag("--time", "Column of times.")],
    "id": Annotated[str | None, _flag("--id", "Column that identifies the series, or the row.")],
    "group": Annotated[
        str | None,
        _flag("--group", "Column whose values must stay in one split, such as patients."),
    ],
    "text": Annotated[
        str | None, _flag("--text", "Column of texts, or of paths of pictures or sounds.")
    ],
    "channels": Annotated[
        str | None,
        _flag(
            "--channels",
            "Columns to read, comma-separated (default: all numbers, and columns of few words).",
        ),
    ],
    "task": PredictFlag,
    "split": Annotated[str | None, _flag("--split", "How to split: random, group or time.")],
    "read": Annotated[
        list[str] | None,
        _flag(
            "--read",
            "How a table is written, repeatable: separator, header, decimal, thousands, dates, "
            "null or encoding.",
        ),
    ],
    "strict": Annotated[
        bool, _flag("--strict", "Refuse samples without a label, and cells without a number.")
    ],
}


def reads_files(predict: Any = PredictFlag) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the flags of :data:`FLAGS` in the place of its parameter ``said``.

    The command receives what was said as one dictionary, see :func:`reading`.

    Args:
        predict: the flag that says what is asked of the files.
    """
    flags = {**FLAGS, "task": predict}
    # A command may have a parameter ``task`` of its own.
    names = {key: key for key in flags} | {"task": "predict"}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters = []
        for each in inspect.signature(command).parameters.values():
            if each.name != "said":
                parameters.append(each.replace(annotation=hints[each.name]))
                continue
            for key, flag in flags.items():
                default = None
                if key == "strict":
                    default = False
                named = each.replace(name=names[key], annotation=flag, default=default)
                parameters.append(named)

        @functools.wraps(command)
        def with_flags(**given: Any) -> None:
            said = reading(**{key: given.pop(name) for key, name in names.items()})
            command(**given, said=said)

        # typer reads a command's options off these two.
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {each.name: each.annotation for each in parameters}
        return with_flags

    return decorate


def reading(**given: Any) -> dict[str, Any]:
    """Return what was said: channels as a list, ``read`` as a mapping.

    Raises:
        OptionError: a ``--read`` without ``=``.
    """
    said = {key: value for key, value in given.items() if value not in (None, False, [])}
    if "channels" in said:
        said["channels"] = [name.strip() for name in said["channels"].split(",")]
    if "read" in said:
        odd = next((text for text in said["read"] if "=" not in text), None)
        if odd is not None:
            raise OptionError(f"--read: expected KEY=VALUE, got {odd!r}; e.g. --read decimal=,")
        said["read"] = dict(text.split("=", 1) for text in said["read"])
    return said


def recipes_and_files(incomplete: str) -> list[str]:
    """Return what a shell may complete a recipe's name to: those built in, and paths."""
    from .. import training

    names = [name for name in training.list_recipes() if name.startswith(incomplete)]
    return names + _paths(incomplete)


def run_folders(incomplete: str) -> list[str]:
    """Return what a shell may complete a run's folder to: runs below ``runs``, and paths."""
    runs = [str(path) for path in sorted(Path("runs").glob("*")) if path.is_dir()]
    found = [run for run in runs if run.startswith(incomplete)]
    return list(dict.fromkeys(found + _paths(incomplete)))


def _paths(incomplete: str) -> list[str]:
    """Return the paths that begin so; a folder ends in a separator."""
    folder, slash, begun = incomplete.rpartition("/")
    root = Path(folder + slash or ".")
    if not root.is_dir():
        return []

    found = []
    for path in sorted(root.iterdir()):
        # Hidden files are completed only if a dot has been typed.
        hidden = path.name.startswith(".") and not begun.startswith(".")
        if path.name.startswith(begun) and not hidden:
            end = "/" if path.is_dir() else ""
            found.append(f"{folder}{slash}{path.name}{end}")
    return found


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files among some arguments, and the changes to a recipe.

    Example:
        >>> parted(["new.csv", "model.body.steps=12", "./a=b.csv"])
        (['new.csv', './a=b.csv'], ['model.body.steps=12'])
    """
    changes = [word for word in words if re.match(r"[\w.]+=", word) and not Path(word).exists()]
    return [word for word in words if word not in changes], changes


def flag_of(key: str) -> str:
    """Return the flag for a key of a recipe's section ``data``.

    Example:
        >>> flag_of("label"), flag_of("task")
        ('--label', '--predict')
    """
    if key == "task":
        return "--predict"
    return f"--{key}"


def as_command(path: Path, said: dict[str, Any], command: str = "train") -> str:
    """Return the command that trains on a path, read as the flags in ``said`` describe.

    The words are quoted for a shell.

    Args:
        path: the user's file or folder.
        said: as :func:`reading` returns it: text for most keys; True for a flag without a value, a
            list for names joined by commas, a mapping for a flag repeated per ``KEY=VALUE``.
        command: the subcommand of ``fredholm``.

    Example:
        >>> as_command(Path("walks.csv"), {"label": "gait", "channels": ["x", "y"]})
        'fredholm train walks.csv --label gait --channels x,y'
    """
    words = []
    for key, value in said.items():
        if value is True:
            words.append(flag_of(key))
        elif isinstance(value, dict):
            for name, choice in value.items():
                words += [flag_of(key), f"{name}={choice}"]
        elif isinstance(value, list):
            words += [flag_of(key), ",".join(value)]
        else:
            words += [flag_of(key), value]
    return shlex.join(["fredholm", command, _place(path), *words])


def as_read(path: Path, schema: list[dict[str, str]], strict: bool) -> str:
    """Return the command that describes a path with every flag of its schema."""
    words = ["fredholm", "data", "describe", _place(path)]
    for entry in schema:
        # Very many columns are left out: they are all that can be read.
        if entry["value"].count(",") < MANY:
            words += [entry["flag"], entry["value"]]
    if strict:
        words.append("--strict")
    return shlex.join(words)


def _place(path: Path) -> str:
    """Return a path as an argument. A folder ends in a separator: without one it would be taken for
    the name of a recipe.
    """
    if path.is_dir() and not path.is_absolute():
        return f"{path}/"
    return str(path)


def as_overrides(said: dict[str, Any]) -> list[str]:
    """Return the flags in ``said`` as changes to a recipe.

    Example:
        >>> as_overrides({"label": "no", "channels": ["x", "y"]})
        ['data.label="no"', 'data.channels=["x", "y"]']
    """
    return [as_override(f"data.{key}", value) for key, value in said.items()]


def as_override(key: str, value: Any) -> str:
    """Return a change to a recipe, quoted so that YAML never reads a text as a number or a date.

    Example:
        >>> as_override("name", "2024-05-01")
        'name="2024-05-01"'
    """
    # Escaped beyond the basic plane, a character is a pair of surrogates, which YAML reads as two.
    text = json.dumps(value, ensure_ascii=False)
    return f"{key}={_ODD.sub(_escaped, text)}"


def _escaped(sign: re.Match[str]) -> str:
    return f"\\u{ord(sign[0]):04x}"


def unpacked(source: Any) -> Any:
    """Copy the run that ``pretrained:NAME`` names to ``runs/pretrained-NAME``; return that folder.

    This is the callback of typer for arguments that name a run, and is called while the command
    line is parsed. Any other source is returned unchanged, and so is None.

    Args:
        source: text or a path; the folder is returned as the same type.

    Raises:
        OptionError: no weights of this name, or a folder with other weights.
        StorageError: the copy cannot be written.
    """
    if not str(source).startswith(PRETRAINED):
        return source
    from ..training.shipped import unpack_pretrained

    folder = unpack_pretrained(str(source).removeprefix(PRETRAINED))
    return type(source)(folder)
