"""What ``fredholm compare`` does: recommend an operator for one source, or tabulate tasks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from ...errors import OptionError
from . import show
from .reading import TASKS, as_command, as_overrides, flag_of


def check(
    source: str | None,
    *,
    said: dict[str, Any],
    task: str | None,
    budget: str,
    worker: bool,
) -> None:
    """Refuse what belongs to the other use of the command.

    Raises:
        OptionError: naming it.
    """
    if source is None:
        if said:
            key = next(iter(said))
            raise OptionError(
                f"{flag_of(key)}: received {said[key]!r} without files; name them: fredholm "
                f"compare ./mydata {flag_of(key)} ..."
            )
        if task in TASKS:
            raise OptionError(
                f"--task: received {task!r} without files; it names the tasks of a table "
                f"(--list), of files of yours say fredholm compare ./mydata --predict {task}"
            )
        return
    if task in TASKS:
        raise OptionError(
            f"--task: received {task!r} with {source!r}; here it names the tasks of a table, what "
            f"is asked of files is --predict {task}"
        )
    for flag, given in (
        ("--task", task is not None),
        ("--budget", budget != "params"),
        ("--worker", worker),
    ):
        if given:
            raise OptionError(
                f"{flag}: received with {source!r}; it belongs to the table of tasks, leave one "
                "of them out"
            )


def recommend(
    source: str,
    said: dict[str, Any],
    changes: list[str],
    *,
    operators: str | None,
    minutes: float | None,
    seeds: int | None,
    out: Path | None,
    trust_code: bool,
) -> None:
    """Compare operators on one source for some minutes, and print which one to train.

    Args:
        source: files, a recipe or a data set.
        said: the flags that describe the user's files, as :func:`reading.reading` returns them.
        changes: changes to the recipe, ``KEY=VALUE``, beyond those flags.
        operators, out: see :func:`fredholm.lab.compare.choose`.
        minutes, seeds: None stands for 30 minutes and 5 seeds.
        trust_code: whether code that a recipe imports may be executed.
    """
    from ..compare import choose
    from ..compare.report import to_markdown

    show.trusted_code(source, trust_code)

    # The training command of the recommendation. It repeats the flags of the files as they were
    # typed, not as the changes to a recipe that the search makes of them.
    words = []
    if trust_code:
        words.append("--trust-code")
    words += changes
    command = f"{as_command(Path(source), said)} {shlex.join(words)}".rstrip()

    state = choose(
        source,
        30.0 if minutes is None else minutes,
        operators=operators,
        out=out,
        changes=[*as_overrides(said), *changes],
        seeds=5 if seeds is None else seeds,
        command=command,
        report=typer.echo,
        trust_code=trust_code,
    )
    folder = out or Path("runs") / f"compare-{state['name']}"
    typer.echo(to_markdown(state))
    typer.echo(f"results: {folder / 'choice.json'}, choice.md; page: {folder / 'index.html'}")


def tabulate(
    tasks: str,
    operators: str | None,
    out: Path,
    *,
    setting: tuple[str, float | None, tuple[str, ...]],
    seeds: int,
    worker: bool,
    trust_code: bool,
) -> None:
    """Train a table of tasks, and print it; exit code 1 where every training failed."""
    from .. import compare as comparison

    chosen = comparison.list_tasks() if tasks == "all" else tasks.split(",")
    for each in chosen:
        show.trusted_code(each, trust_code)
    results = comparison.compare(
        chosen,
        operators,
        out,
        setting=comparison.Setting(*setting),
        seeds=seeds,
        report=typer.echo,
        worker=worker,
        trust_code=trust_code,
    )
    show.comparison(out)
    runs = [run for task in results["tasks"] for row in task["rows"] for run in row["runs"]]
    failed = [run for run in runs if "error" in run]
    if len(failed) == len(runs):
        why = failed[0]["error"] if failed else "no operator serves a task"
        typer.echo(f"{len(failed)} of {len(runs)} trainings failed: {why}", err=True)
        raise typer.Exit(1)
