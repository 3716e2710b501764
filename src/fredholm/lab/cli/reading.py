"""Flags that say what a user's own files hold, common to the commands that read them."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

TASKS = ("classification", "regression", "steps")  # that files may ask for


def _flag(*names_and_text: str) -> Any:
    *names, text = names_and_text
    return typer.Option(
        *names, help=text, rich_help_panel="What your files hold (found out if left out)"
    )


KindFlag = Annotated[str | None, _flag("--kind", "series, rows, texts, images, clouds or fields.")]
LabelFlag = Annotated[str | None, _flag("--label", "Column or array to be predicted.")]
TimeFlag = Annotated[str | None, _flag("--time", "Column of times.")]
IdFlag = Annotated[str | None, _flag("--id", "Column that tells the series apart.")]
GroupFlag = Annotated[
    str | None, _flag("--group", "Column whose values stay in one split, such as patients.")
]
TextFlag = Annotated[
    str | None, _flag("--text", "Column of texts, or of paths of pictures or sounds.")
]
ChannelsFlag = Annotated[
    str | None, _flag("--channels", "Columns that are read, with commas (default: all numbers).")
]
# Signs that YAML takes escaped only.
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
_ASKED = "What is asked: classification, regression or steps."
PredictFlag = Annotated[str | None, _flag("--predict", "--task", _ASKED)]
# Of ``compare``, whose --task names the tasks of a table.
PredictAloneFlag = Annotated[str | None, _flag("--predict", _ASKED)]
SplitFlag = Annotated[str | None, _flag("--split", "random, group or time.")]


def reading(**given: str | None) -> dict[str, Any]:
    """What was said, channels as a list."""
    said: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if "channels" in said:
        said["channels"] = [name.strip() for name in said["channels"].split(",")]
    return said


def flag_of(key: str) -> str:
    """The flag that says what a key of a recipe's ``data`` says.

    Example:
        >>> flag_of("label"), flag_of("task")
        ('--label', '--predict')
    """
    return "--predict" if key == "task" else f"--{key}"


def as_command(path: Path, said: dict[str, Any], command: str = "train") -> str:
    """The command that trains on a path so read.

    Example:
        >>> as_command(Path("walks.csv"), {"label": "gait", "channels": ["x", "y"]})
        'fredholm train walks.csv --label gait --channels x,y'
    """
    flags = {k: ",".join(v) if isinstance(v, list) else v for k, v in said.items()}
    place = path if path.is_absolute() or not path.is_dir() else f"{path}/"
    words = [str(place), *(word for k, v in flags.items() for word in (flag_of(k), v))]
    return shlex.join(["fredholm", command, *words])


def as_overrides(said: dict[str, Any]) -> list[str]:
    """The same as changes to a recipe.

    Example:
        >>> as_overrides({"label": "no", "channels": ["x", "y"]})
        ['data.label="no"', 'data.channels=["x", "y"]']
    """
    return [as_override(f"data.{key}", value) for key, value in said.items()]


def as_override(key: str, value: Any) -> str:
    """A change to a recipe, quoted so that YAML reads no text as a number or a date.

    Example:
        >>> as_override("name", "2024-05-01")
        'name="2024-05-01"'
    """
    text = json.dumps(value, ensure_ascii=False)  # YAML takes a pair of surrogates for two signs
    return f"{key}={_ODD.sub(_escaped, text)}"


def _escaped(sign: re.Match[str]) -> str:
    return f"\\u{ord(sign[0]):04x}"
