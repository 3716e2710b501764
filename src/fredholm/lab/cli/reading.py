"""Flags that say what a user's own files hold, common to the commands that read them; and runs that
come with the package.
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

PRETRAINED = "pretrained:"

TASKS = ("classification", "regression", "steps")  # that files may ask for


def _flag(*names_and_text: str) -> Any:
    *names, text = names_and_text
    return typer.Option(*names, help=text, rich_help_panel="About your files (guessed if left out)")


MANY = 40  # columns that are no longer spelled out
# Signs that YAML takes escaped only.
_ODD = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
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
    "id": Annotated[str | None, _flag("--id", "Column that identifies the series.")],
    "group": Annotated[
        str | None,
        _flag("--group", "Column whose values must stay in one split, such as patients."),
    ],
    "text": Annotated[
        str | None, _flag("--text", "Column of texts, or of paths of pictures or sounds.")
    ],
    "channels": Annotated[
        str | None,
        _flag("--channels", "Columns to read, comma-separated (default: all numbers)."),
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
    names = {key: "predict" if key == "task" else key for key in flags}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters = []
        for each in inspect.signature(command).parameters.values():
            if each.name != "said":
                parameters.append(each.replace(annotation=hints[each.name]))
                continue
            for key, flag in flags.items():
                default = False if key == "strict" else None
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
    folder, _, begun = incomplete.rpartition("/")
    root = Path(folder or ("/" if incomplete.startswith("/") else "."))
    if not root.is_dir():
        return []
    shown = f"{folder}/" if "/" in incomplete else ""
    names = sorted(path for path in root.iterdir() if path.name.startswith(begun))
    hidden = begun.startswith(".")
    kept = [path for path in names if hidden or not path.name.startswith(".")]
    return [f"{shown}{path.name}{'/' if path.is_dir() else ''}" for path in kept]


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the files among some arguments, and the changes to a recipe.

    Example:
        >>> parted(["new.csv", "model.body.steps=12", "./a=b.csv"])
        (['new.csv', './a=b.csv'], ['model.body.steps=12'])
    """
    changes = [word for word in words if re.match(r"[\w.]+=", word) and not Path(word).exists()]
    return [word for word in words if word not in changes], changes


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
    words = []
    for key, value in said.items():
        if value is True:
            words.append(flag_of(key))
        elif isinstance(value, dict):
            words += [word for k, v in value.items() for word in (flag_of(key), f"{k}={v}")]
        else:
            words += [flag_of(key), ",".join(value) if isinstance(value, list) else value]
    return shlex.join(["fredholm", command, _place(path), *words])


def as_read(path: Path, schema: list[dict[str, str]], strict: bool) -> str:
    """Return the command that describes a path by the whole of its schema, without a list of very
    many columns: they are all that can be read.
    """
    shown = [entry for entry in schema if entry["value"].count(",") < MANY]
    words = [word for entry in shown for word in (entry["flag"], entry["value"])]
    more = ["--strict"] if strict else []
    return shlex.join(["fredholm", "data", "describe", _place(path), *words, *more])


def _place(path: Path) -> str:
    """A folder ends in a separator, so that no name of a recipe is meant."""
    return str(path) if path.is_absolute() or not path.is_dir() else f"{path}/"


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


def unpacked(source: Any) -> Any:
    """Return the folder that ``pretrained:NAME`` is copied to, and anything else as it is."""
    if not str(source).startswith(PRETRAINED):
        return source
    from ..training.shipped import unpack_pretrained

    folder = unpack_pretrained(str(source).removeprefix(PRETRAINED))
    return type(source)(folder)
