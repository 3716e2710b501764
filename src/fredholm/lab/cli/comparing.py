"""Two uses of ``fredholm compare``: recommend an operator for one source, or tabulate tasks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import typer

from ...errors import OptionError
from . import show
from .reading import TASKS, as_command, as_overrides, flag_of

# Imports inside functions load the training room only when a comparison begins: `fredholm --help`
# must answer at once.


def check(
    source: str | None,
    *,
    said: dict[str, Any],
    task: str | None,
    budget: str,
    worker: bool,
) -> None:
    """Refuse flags that belong to the other use of the command.

    Args:
        source: files or a recipe; None: a table of tasks.
        said: the flags that describe the user's files.
        task, budget, worker: the flags of a table.

    Raises:
        OptionError: such a flag.
    """
    if source is None:
        if said:
            key, value = next(iter(said.items()))
            flag = flag_of(key)
            raise OptionError(
                f"{flag}: expected files with it, got {value!r} alone; name them: fredholm "
                f"compare ./mydata {flag} ..."
            )
        if task in TASKS:
            raise OptionError(
                f"--task: expected tasks of a table (see --list), got {task!r}; for your own files "
                f"use fredholm compare ./mydata --predict {task}"
            )
        return

    # Other commands accept --task for --predict; here the name is taken.
    if task in TASKS:
        raise OptionError(
            f"--task: expected no tasks of a table with {source!r}, got {task!r}; use --predict "
            f"{task}"
        )
    flags = {"--task": task is not None, "--budget": budget != "params", "--worker": worker}
    for flag, is_given in flags.items():
        if is_given:
            raise OptionError(
                f"{flag}: expected a table of tasks, got {source!r}; leave one of the two out"
            )


def recommend(
    source: str,
    said: dict[str, Any],
    changes: list[str],
    *,
    operators: str | None,
    minutes: float,
    seeds: int,
    out: Path | None,
    trust_code: bool,
) -> None:
    """Compare operators on one source for some minutes, and print which one to train.

    Args:
        source: files, a recipe or a data set.
        said: the flags that describe the user's files, as :func:`reading.reading` returns them.
        changes: changes to the recipe, ``KEY=VALUE``, beyond those flags.
        operators, out: see :func:`fredholm.lab.compare.choose`.
        minutes: of the whole comparison.
        seeds: of each finalist.
        trust_code: whether code that a recipe imports may be executed.
    """
    from ..compare import choose
    from ..compare.report import to_markdown

    show.trusted_code(source, trust_code, changes)

    # The training command of the recommendation. It repeats the flags of the files as they were
    # typed, not as the changes to a recipe that the search makes of them.
    words = []
    if trust_code:
        words.append("--trust-code")
    words += changes
    command = f"{as_command(Path(source), said)} {shlex.join(words)}".rstrip()

    state = choose(
        source,
        minutes,
        operators=operators,
        out=out,
        changes=[*as_overrides(said), *changes],
        seeds=seeds,
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
    """Train every operator on every task, and print the table.

    The exit code is 1 if every training failed.

    Args:
        tasks: names, separated by commas, or ``all``.
        operators, out, seeds, worker, trust_code: see :func:`fredholm.lab.compare.compare`.
        setting: fields of :class:`fredholm.lab.compare.Setting`.
    """
    from .. import compare as comparison

    chosen = tasks.split(",")
    if tasks == "all":
        chosen = comparison.list_tasks()
    options = comparison.Setting(*setting)
    for each in chosen:
        show.trusted_code(each, trust_code, options.changes)
    results = comparison.compare(
        chosen,
        operators,
        out,
        setting=options,
        seeds=seeds,
        report=typer.echo,
        worker=worker,
        trust_code=trust_code,
    )
    show.comparison(out)
    runs = [run for task in results["tasks"] for row in task["rows"] for run in row["runs"]]
    failed = [run for run in runs if "error" in run]
    if len(failed) == len(runs):
        why = next((run["error"] for run in failed), "no operator serves a task")
        typer.echo(f"{len(failed)} of {len(runs)} trainings failed: {why}", err=True)
        raise typer.Exit(1)
