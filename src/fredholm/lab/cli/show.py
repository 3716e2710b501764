"""Results on the terminal: tables and JSON, no computation."""

from __future__ import annotations

import inspect
import json as json_module
import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ...errors import OptionError
from ..numbers import duration, plural, readable

# Imports inside functions load torch and the training room only for the commands that need them.


# Numbers of an evaluation beside its scores.
OTHER_SCORES = {
    "bits": "bits per token",
    "r2": "R²",
    "rmse": "root mean squared error",
    "absolute_error": "mean absolute error",
    "worst": "at worst",
}


def _table(columns: Sequence[str], rows: list[list[Any]]) -> None:
    """Print a table: the first column to the left, the others to the right; None is empty."""
    table = Table()
    first, *others = columns
    table.add_column(first, justify="left", overflow="fold")
    for column in others:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        # Brackets in the names of classes would be read as markup in a string.
        cells = ["" if cell is None else str(cell) for cell in row]
        table.add_row(*map(Text, cells))
    Console().print(table)


def trusted_code(
    source: Any,
    trust_code: bool,
    overrides: Sequence[str] = (),
) -> None:
    """Name on stderr the files that ``--trust-code`` allows to run, before they run: those that the
    source and overrides of its recipe import.

    Nothing is refused here: without the flag, whatever loads the source raises TrustError.
    """
    if not trust_code:
        return
    from .. import training
    from ..compare.saved import comparison_code, is_comparison

    place = Path(source)
    found = []
    if is_comparison(place):
        found = comparison_code(place)
    elif place.is_file() or (place / "recipe.yaml").is_file():
        found = training.imported_code(place, overrides)
    for path in found:
        typer.echo(f"--trust-code: executing {str(path)!r}", err=True)


def run_plan(plan: Any, as_json: bool) -> None:
    """Print the memory and the time that a run will take, and one line per layer's operator.

    Args:
        plan: a :class:`fredholm.lab.training.planning.RunPlan`: memory in MB, ``steps`` per epoch,
            ``batches`` over the whole run.
        as_json: print the plan as one JSON object instead.
    """
    if as_json:
        typer.echo(json_module.dumps(plan.to_dict()))
        return

    stand_in = ""
    if plan.data != "real":
        stand_in = "; the data are not there, random pixels stand in"
    typer.echo(f"{plan.name}: {plan.parameters:,} parameters on {plan.dataset}{stand_in}")

    memory = plan.memory
    parts = f"parameters {memory.parameters:.1f}, gradients {memory.gradients:.1f}, "
    parts += f"optimizer {memory.optimizer:.1f}, kept for the backward {memory.activations:.1f}"
    # Some systems do not report how far a step raised the memory.
    peak = ""
    if memory.peak is not None:
        peak = f"; a step raised it by {memory.peak:.0f} at its peak"
    typer.echo(f"memory: {memory.total:.0f} MB ({parts}){peak}")

    epoch = f"{plan.steps:,} steps of {plan.batch_size} samples"
    cost = f"{1e3 * plan.step_seconds:.0f} ms each, validation {plan.validation_seconds:.1f} s"
    # A limit of steps or minutes may end the run within an epoch.
    total_steps = ""
    if plan.batches != plan.epochs * plan.steps:
        total_steps = f"{plan.batches:,} steps in "
    end = ""
    if plan.limited:
        end = ", ended by training.max_minutes"
    typer.echo(
        f"time: {duration(60 * plan.minutes)} for {total_steps}{plan.epochs} epochs of {epoch}, "
        f"{cost}{end}"
    )

    # Several processes share each batch, or the points of each sample. The measurement holds all
    # of a batch in one process.
    if plan.processes > 1:
        typer.echo(
            f"processes: measured in one, with whole batches of whole samples; of the "
            f"{plan.processes} of the recipe each has its part"
        )
    for number, line in plan.operators.items():
        typer.echo(f"layer {number}: {line}")


def run_result(result: Any) -> None:
    """Print the last line of a training run, and what to do next."""
    score = f"{result.metric.replace('_', ' ')} {readable(result.metrics[result.metric])}"
    typer.echo(
        f"{result.name}: {result.stopped}, {plural(result.epochs, 'epoch')} in "
        f"{duration(60 * result.minutes)}; "
        f"weights of epoch {result.best_epoch}, {score}, {result.parameters:,} parameters"
    )
    folder = shlex.quote(str(result.folder))
    typer.echo(f"next: fredholm evaluate {folder}   |   fredholm explain {folder}")


def note(line: str) -> None:
    """Print a remark on stderr: standard output may be JSON, which it must not disturb."""
    typer.echo(f"note: {line}", err=True)


def evaluation(result: dict[str, Any], as_json: bool) -> None:
    """Print the scores of an evaluation, and the accuracy of each class."""
    if as_json:
        typer.echo(json_module.dumps(result))
        return
    for note in result.get("notes", ()):
        typer.echo(note)
    typer.echo(f"{result['dataset']} {result['split']}: {_numbers(result)}, n {result['n']}")
    constant = _constant_answer(result)
    if constant is not None:
        typer.echo(constant)
    if "resolutions" in result:
        _resolutions(result)
    if "per_class" not in result:
        return

    # A class without samples has no accuracy.
    rows = []
    for name, value in result["per_class"].items():
        accuracy = None
        if value is not None:
            accuracy = f"{value:.4f}"
        rows.append([name, accuracy])
    _table(["class", "accuracy"], rows)


def _constant_answer(result: dict[str, Any]) -> str | None:
    """Return the score of the best constant answer, with which a model's has to be compared; None
    where the line of the model's scores does not have that score.
    """
    from ..training.metrics import named_score

    baseline = result.get("baseline")
    if baseline is None:
        return None
    if "class" in baseline:
        if "accuracy" not in result.get("scores", result):
            return None
        answer = f"{baseline['class']!r}, the most frequent class here"
        return f"always {answer}: {named_score('accuracy', baseline['accuracy'])}"
    error = f"{OTHER_SCORES['rmse']} {readable(baseline['rmse'])}"
    return f"always {readable(baseline['value'])}, the mean here: {error}"


def _resolutions(result: dict[str, Any]) -> None:
    """Print the most telling score at each resolution of new files."""
    key = next(key for key in ("accuracy", "rmse", "loss") if key in result)
    title = key
    if key == "loss":
        title = result["loss_name"]
    found = result["resolutions"].items()
    rows = [[name, f"{numbers['n']:,}", readable(numbers[key])] for name, numbers in found]
    _table(["resolution", "samples", title], rows)


def refuse_split(split: str | None, files: bool) -> None:
    """Refuse ``--split`` where ``fredholm evaluate`` gets new files, which have no splits.

    Args:
        split: the value of ``--split``; None if it is not given.
        files: whether new files are given.

    Raises:
        OptionError: ``--split`` beside new files.
    """
    if files and split is not None:
        raise OptionError(
            f"--split: expected none with new files, which have no splits, got {split!r}; leave "
            "one of the two out"
        )


def _numbers(result: dict[str, Any]) -> str:
    """Return the scores of an evaluation, each with its name."""
    from ..training.metrics import named_score

    # Runs of earlier versions, and tasks of users, may have no table of scores.
    scores = result.get("scores")
    if scores is None:
        scores = {key: result[key] for key in ("accuracy",) if key in result}
    parts = [named_score(name, value) for name, value in scores.items()]
    parts.append(f"{result.get('loss_name', 'loss')} {readable(result['loss'])}")
    for key, name in OTHER_SCORES.items():
        if result.get(key) is not None and key not in scores:
            parts.append(f"{name} {readable(result[key])}")
    return ", ".join(parts)


def predictions(results: list[dict[str, Any]], as_json: bool) -> None:
    """Print one line per sample: where it is, and its prediction."""
    if as_json:
        typer.echo(json_module.dumps(results))
        return
    for result in results:
        keys = [key for key in ("row", "series", "sample", "id") if key in result]
        place = ", ".join([result["file"], *(f"{key} {result[key]}" for key in keys)])
        typer.echo(f"{place}: {_answer(result)}")


def predictions_as_csv(results: list[dict[str, Any]]) -> None:
    """Print a table on standard output, for another command."""
    from ..training.prediction import as_table

    typer.echo(as_table(results), nl=False)


def _answer(result: dict[str, Any]) -> str:
    if "class" in result:
        return f"{result['class']} ({result['probability']:.3f})"
    if "value" in result:
        return readable(result["value"], 6)
    if "classes" in result:
        return " ".join(result["classes"])

    # The values of a field are nested lists, one level per axis.
    sizes = []
    field = result["values"]
    while isinstance(field, list):
        sizes.append(len(field))
        field = field[0]
    return f"a field of {' × '.join(map(str, sizes))} numbers (--out FILE.npz writes it)"


def description(facts: dict[str, Any], command: str, as_json: bool) -> None:
    """Print what a user's files hold, and the command that trains on them."""
    if as_json:
        typer.echo(json_module.dumps(facts))
        return
    named = {"steps": "a class at every time", "field": "inputs to outputs"}
    task = named.get(facts["task"], facts["task"])
    guesses = _guesses(facts["schema"])
    typer.echo(f"{facts['name']}: {facts['samples']:,} samples, kind {facts['kind']}, {task}")

    # The line above names kind and task; only guesses are repeated, with the flag to correct them.
    if guesses["kind"]:
        typer.echo(f"  {'kind:':<14}{facts['kind']}{guesses['kind']}")
    if guesses["task"]:
        typer.echo(f"  {'predict:':<14}{task}{guesses['task']}")

    # Columns go by the keys of a recipe, except for these words of the description.
    keys: dict[str, str] = {"paths": "text", "columns": "channels", "times": "channels"}
    for what, found in facts["taken"].items():
        typer.echo(f"  {what + ':':<14}{found}{guesses[str(keys.get(what, what))]}")
    written = [entry for entry in facts["schema"] if entry["key"] == "read"]
    if written:
        values = " ".join(entry["value"] for entry in written)
        typer.echo(f"  {'read:':<14}{values}{guesses['read']}")
    for line in _numbers_of(facts):
        typer.echo(f"  {line}")

    split = facts["split"]
    counts = ", ".join(f"{split[part]:,} {part}" for part in ("train", "val", "test"))
    typer.echo(f"  {'split:':<14}{counts} ({split['rule']}){guesses['split']}")
    typer.echo(f"  {'model:':<14}{facts['model']}, {facts['epochs']} epochs")
    for sample in facts["first"]:
        where = sample["where"].removeprefix(facts["path"]).lstrip("/, ")
        typer.echo(f"  {where}  [{sample['label']}]  {sample['beginning']}".rstrip())
    for remark in facts["remarks"]:
        typer.echo(f"  note: {remark}")
    typer.echo(f"as read: {facts['as_read']}")
    typer.echo(f"next: {command}")


def _guesses(schema: list[dict[str, str]]) -> dict[str, str]:
    """Return a mark for each key of the schema that was guessed, empty for the other keys."""
    marks: dict[str, str] = defaultdict(str)
    for entry in schema:
        if entry["origin"] == "guessed":
            marks[entry["key"]] = f"  (guessed: {entry['flag']})"
    return marks


def _numbers_of(facts: dict[str, Any]) -> list[str]:
    """Return the lines about the numbers of a data set, as far as its kind has them.

    They are the labels per class, the points or words per sample, the size of images, the range
    of the target, the step between two times with the longest gap (in the files' unit of time), and
    the share of missing cells. Each begins with a label of 14 columns, as the other lines of a
    description do.
    """
    lines = []
    if "classes" in facts:
        classes = list(facts["classes"].items())
        # The first twelve classes fill a line or two of a terminal.
        text = ", ".join(f"{name} {count:,}" for name, count in classes[:12])
        more = ""
        if len(classes) > 12:
            more = f", … ({len(classes)} classes)"
        lines.append(f"{'classes:':<14}{text}{more}")
    # Series and clouds have points, texts have words.
    for unit in ("points", "words"):
        if unit in facts:
            lengths = facts[unit]
            size = f"{lengths['least']:,} to {lengths['most']:,} {unit}"
            lines.append(f"{'length:':<14}{size}, half at most {lengths['median']:,}")
    if "image_size" in facts:
        height, width = facts["image_size"]
        lines.append(f"{'size:':<14}read as {height} × {width} pixels")
    if "target" in facts:
        target = facts["target"]
        least, mean, most = (readable(target[key]) for key in ("least", "mean", "most"))
        lines.append(f"{'target:':<14}{least} to {most}, mean {mean}")
    if "rate" in facts:
        gap = ""
        if "longest_gap" in facts:
            gap = f", longest gap {readable(facts['longest_gap'], 6)}"
        lines.append(f"{'rate:':<14}{facts['rate']}{gap}")
    if facts.get("missing"):
        lines.append(f"{'missing:':<14}{facts['missing']:.1%} of the cells")
    return lines


def conversion(report: Any, folder: Path) -> None:
    """Print the layers of a conversion; its scores were printed on the way."""
    _table(*report.table())
    if report.data is None:
        typer.echo("note: nothing was trained; pass --data NAME (see: fredholm data list)")
    typer.echo(f"model: {folder / 'model'}   |   report: {folder / 'model' / 'conversion.html'}")


def generated(result: dict[str, Any], as_json: bool, answered: bool = False) -> None:
    """Print the prompt and its continuation; an answer in a chat begins a paragraph of its own."""
    if as_json:
        typer.echo(json_module.dumps(result))
        return
    text = result["prompt"]
    if answered:
        text += "\n\n"
    typer.echo(text + result["text"])


def compression(result: dict[str, Any], as_json: bool) -> None:
    """Print the test results of a run before and after its compression.

    ``result`` is what :func:`fredholm.lab.distill.compress.compress_run` returns. The errors of the
    layers are not repeated: each was printed when its layer was fitted.
    """
    if as_json:
        typer.echo(json_module.dumps(result))
        return
    for name in ("before", "after"):
        # The line of an evaluation begins with its data set, so that the label goes there.
        labelled = result[name] | {"dataset": f"{name}: {result[name]['dataset']}"}
        evaluation(labelled, as_json=False)
    typer.echo(f"report: {Path(result['after']['run']) / 'compression.json'}")


def sweep_table(rows: list[dict[str, Any]], folder: Path) -> None:
    """Print the table of a sweep, in Markdown, and where its files are.

    Args:
        rows: one per combination of overrides, with the mean over its seeds: the ``table`` that
            :func:`fredholm.training.sweep` returns.
        folder: of the sweep, in which the files were written.
    """
    from ..training.sweeps import to_markdown

    typer.echo(to_markdown(rows))
    typer.echo(f"tables: {folder / 'table.md'}, table.csv, table.json, cells.json")


def fail_if_any(cells: list[dict[str, Any]]) -> None:
    """Exit with code 1 if a cell failed."""
    failed = [cell for cell in cells if "error" in cell]
    if failed:
        typer.echo(f"{len(failed)} of {len(cells)} cells failed: {failed[0]['error']}", err=True)
        raise typer.Exit(1)


def compared_tasks() -> None:
    """Print the tasks of ``fredholm compare``."""
    from .. import compare as comparison

    for name in comparison.list_tasks():
        typer.echo(f"{name:<18}{comparison.find_task(name).title}")


def comparison(folder: Path) -> None:
    """Print the tables of a comparison, and where their files are."""
    typer.echo((folder / "compare.md").read_text(encoding="utf-8"))
    typer.echo(
        f"tables: {folder / 'compare.csv'}, compare.json, compare.md; page: {folder / 'index.html'}"
    )


def models_table(pattern: str) -> None:
    """Print models with their parameters and FLOPs, each at its own input size.

    Counting a model takes seconds; each line appears as soon as it is known.
    """
    import torch

    from ... import models

    typer.echo(f"{'model':<20}{'parameters':>14}{'GFLOPs':>12}   input")
    for name in models.list_models(pattern):
        # Counts need no memory for weights.
        with torch.device("meta"):
            model = models.create_model(name)
        shape = (1, *model.config.input_shape)
        parameters, flops = models.count(model, shape)
        sizes = "x".join(map(str, shape[1:]))
        typer.echo(f"{name:<20}{parameters:>14,}{flops / 1e9:>12.3f}   {sizes}")


def operators_table(files: Sequence[Path]) -> None:
    """Print a table of the registered operators: name, and the first words of the docstring.

    Importing the user's ``files``, given relative to the working directory, registers the operators
    that they define.

    Raises:
        RecipeError: a file is missing, is not a ``.py`` file, or fails to import.
    """
    from ... import operators

    if files:
        from ..training.checks import import_files

        import_files(list(map(str, files)), Path.cwd())
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name in operators.list_operators():
        table.add_row(Text(name), Text(first_words(operators.operator_factory(name).__doc__)))
    Console().print(table)


def first_words(doc: str | None) -> str:
    """Return the first paragraph of a docstring as one line, for a table on the terminal.

    It ends before the first formula (``:math:``), which a terminal cannot show, without the
    punctuation that led to it. Backticks are dropped. Without a docstring the result is empty.

    Example:
        >>> first_words("Attention, :math:`W_O V`, of\\n    ``heads`` heads.")
        'Attention'
    """
    paragraph, _, _ = inspect.cleandoc(doc or "").partition("\n\n")
    words, _, _ = " ".join(paragraph.split()).partition(":math:")
    return words.rstrip(" ,:;").replace("`", "")


def data_table() -> None:
    """Print data sets with source, licences and whether they are here, a paragraph each: sources
    and licences are long.
    """
    from .. import data

    for name in data.list_datasets():
        facts = data.describe(name)
        typer.echo(f"{name}  [{facts['state']}]  {facts['title']}")
        typer.echo(f"    {facts['kind']}; samples {facts['size']}; source: {facts['source']}")
        typer.echo(
            f"    licence of the data: {facts['licence_data']}; of the package: "
            f"{facts['licence_package'] or 'none'}"
        )
        if facts["notes"]:
            typer.echo(f"    {facts['notes']}")


def refuse_with_steps(**given: bool) -> None:
    """Refuse options of ``fredholm export`` that ``--steps`` does not read."""
    for name, is_given in given.items():
        if is_given:
            raise OptionError(
                f"--{name}: expected none with --steps, which writes ONNX programs with every size "
                "free, got both; leave one of the two out"
            )
