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
from ..numbers import readable


def _table(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    console = Console()
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        # As text: brackets in names of classes are no markup.
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    console.print(table)


def trusted_code(source: Any, trust_code: bool) -> None:
    """On stderr, the files that ``--trust-code`` allows to run, before they do."""
    if not trust_code:
        return
    from .. import training
    from ..compare.saved import comparison_code, is_comparison

    place, found = Path(source), []
    if is_comparison(place):
        found = comparison_code(place)
    elif place.is_file() or (place / "recipe.yaml").is_file():
        found = training.imported_code(place)
    for path in found:
        typer.echo(f"--trust-code: executing {str(path)!r}", err=True)


def run_plan(plan: Any, as_json: bool) -> None:
    """What a run will cost."""
    if as_json:
        typer.echo(json_module.dumps(plan.to_dict()))
        return
    data = "" if plan.data == "real" else "; the data are not there, random pixels stand in"
    typer.echo(f"{plan.name}: {plan.parameters:,} parameters on {plan.dataset}{data}")
    memory = plan.memory
    parts = f"parameters {memory.parameters:.1f}, gradients {memory.gradients:.1f}, "
    parts += f"optimizer {memory.optimizer:.1f}, kept for the backward {memory.activations:.1f}"
    peak = "" if memory.peak is None else f"; a step raised it by {memory.peak:.0f} at its peak"
    typer.echo(f"memory: {memory.total:.0f} MB ({parts}){peak}")
    epoch = f"{plan.steps:,} steps of {plan.batch_size} samples"
    cost = f"{1e3 * plan.step_seconds:.0f} ms each, validation {plan.validation_seconds:.1f} s"
    whole = plan.batches == plan.epochs * plan.steps
    part = "" if whole else f"{plan.batches:,} steps in "
    end = ", ended by training.max_minutes" if plan.limited else ""
    typer.echo(
        f"time: {plan.minutes:.1f} min for {part}{plan.epochs} epochs of {epoch}, {cost}{end}"
    )
    if plan.processes > 1:
        typer.echo(
            f"processes: measured in one, with whole batches of whole samples; of the "
            f"{plan.processes} of the recipe each has its part"
        )
    for number, line in plan.operators.items():
        typer.echo(f"layer {number}: {line}")


def run_result(result: Any) -> None:
    """The last line of a training run, and what to do next."""
    score = f"{result.metric.replace('_', ' ')} {readable(result.metrics[result.metric])}"
    typer.echo(
        f"{result.name}: {result.stopped}, {result.epochs} epochs in {result.minutes:.2f} min; "
        f"best epoch {result.best_epoch}, {score}, {result.parameters:,} parameters"
    )
    folder = shlex.quote(str(result.folder))
    typer.echo(f"next: fredholm evaluate {folder}   |   fredholm explain {folder}")


def note(line: str) -> None:
    """A remark beside the results, which it must not disturb: JSON goes to standard output."""
    typer.echo(f"note: {line}", err=True)


def evaluation(result: dict[str, Any], as_json: bool) -> None:
    """The scores of an evaluation, and the accuracy of each class."""
    if as_json:
        typer.echo(json_module.dumps(result))
        return
    for note in result.get("notes", ()):
        typer.echo(note)
    typer.echo(f"{result['dataset']} {result['split']}: {_numbers(result)}, n {result['n']}")
    if "resolutions" in result:
        _resolutions(result)
    if "per_class" not in result:
        return
    rows = [
        [name, None if value is None else f"{value:.4f}"]
        for name, value in result["per_class"].items()
    ]
    _table("", ["class", "accuracy"], rows)


def _resolutions(result: dict[str, Any]) -> None:
    """The scores at each resolution of new files."""
    chief = next(key for key in ("accuracy", "rmse", "loss") if key in result)
    found = result["resolutions"].items()
    rows = [[name, f"{numbers['n']:,}", readable(numbers[chief])] for name, numbers in found]
    title = result["loss_name"] if chief == "loss" else chief
    _table("", ["resolution", "samples", title], rows)


def refuse_split(split: str | None, files: bool, every: bool) -> None:
    """Refuse a split or all runs of a folder beside new files."""
    if files and (split is not None or every):
        named = "--all" if every else f"--split {split}"
        raise OptionError(
            f"{named}: expected to be left out beside new files, which are judged whole; drop one "
            "of the two"
        )


def _numbers(result: dict[str, Any]) -> str:
    """The scores of an evaluation, each by its name."""
    plain = {"accuracy": result["accuracy"]} if "accuracy" in result else {}
    parts = [_named(*pair) for pair in result.get("scores", plain).items()]
    parts.append(f"{result.get('loss_name', 'loss')} {readable(result['loss'])}")
    named = {"bits": "bits a token", "r2": "R²", "rmse": "root mean squared error"}
    named |= {"absolute_error": "mean absolute error", "worst": "at worst"}
    told = result.get("scores", ())
    parts += [
        f"{name} {readable(result[key])}"
        for key, name in named.items()
        if result.get(key) is not None and key not in told
    ]
    return ", ".join(parts)


def _named(name: str, value: float | None) -> str:
    from ..training.metrics import title_of

    return f"{title_of(name)} {'undefined' if value is None else f'{value:.4f}'}"


def glue_scores(summary: dict[str, Any], as_json: bool) -> None:
    """One line per task of GLUE, and the mean with what it is the mean of."""
    if as_json:
        typer.echo(json_module.dumps(summary))
        return
    for task, row in summary["tasks"].items():
        scores = ", ".join(_named(*pair) for pair in row["scores"].items())
        runs = f" (mean of {len(row['runs'])} runs)" if len(row["runs"]) > 1 else ""
        typer.echo(f"{task:<5} {scores}, n {row['n']}{runs}")
        for note in row["notes"]:
            typer.echo(f"      {note}")
    missing = f"; no run of {', '.join(summary['missing'])}" if summary["missing"] else ""
    count = len(summary["tasks"])
    typer.echo(f"{_named(f'mean of {count} task' + 's' * (count > 1), summary['mean'])}{missing}")


def predictions(results: list[dict[str, Any]], as_json: bool) -> None:
    """One line a sample: where it is, and what it is."""
    if as_json:
        typer.echo(json_module.dumps(results))
        return
    for result in results:
        place = result["file"] + "".join(
            f", {key} {result[key]}" for key in ("row", "series", "sample", "id") if key in result
        )
        typer.echo(f"{place}: {_answer(result)}")


def predictions_as_csv(results: list[dict[str, Any]]) -> None:
    """A table on standard output, for another command."""
    from ..training.prediction import as_table

    typer.echo(as_table(results), nl=False)


def _answer(result: dict[str, Any]) -> str:
    if "class" in result:
        return f"{result['class']} ({result['probability']:.3f})"
    if "value" in result:
        return f"{result['value']:.6g}"
    if "classes" in result:
        return " ".join(result["classes"])
    sizes, field = [], result["values"]
    while isinstance(field, list):
        sizes.append(len(field))
        field = field[0]
    return f"a field of {' × '.join(map(str, sizes))} numbers (--out FILE.npz writes it)"


def description(facts: dict[str, Any], command: str, as_json: bool) -> None:
    """What a user's files hold, and the command that trains on them."""
    if as_json:
        typer.echo(json_module.dumps(facts))
        return
    named = {"steps": "a class at every time", "field": "inputs to outputs"}
    task = named.get(facts["task"], facts["task"])
    guesses = _guesses(facts["schema"])
    typer.echo(f"{facts['name']}: {facts['samples']:,} samples, kind {facts['kind']}, {task}")
    for key, value in (("kind", facts["kind"]), ("predict", task)):
        mark = guesses["task" if key == "predict" else key]
        if mark:
            typer.echo(f"  {key + ':':<14}{value}{mark}")
    for what, found in facts["taken"].items():
        typer.echo(f"  {what + ':':<14}{found}{guesses[_role(what)]}")
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


def _role(what: str) -> str:
    """Return the key of a schema that a line of a description is about."""
    return {"paths": "text", "columns": "channels", "times": "channels"}.get(what, what)


def _guesses(schema: list[dict[str, str]]) -> dict[str, str]:
    """Return the mark of each guess, and of what was declared none."""
    marks: dict[str, str] = defaultdict(str)
    for entry in schema:
        if entry["origin"] == "guessed":
            marks[entry["key"]] = f"  (guessed: {entry['flag']})"
    return marks


def _numbers_of(facts: dict[str, Any]) -> list[str]:
    """Balance, sizes, gaps and rates, as far as there are any."""
    lines = []
    if "classes" in facts:
        shown = list(facts["classes"].items())
        text = ", ".join(f"{name} {count:,}" for name, count in shown[:12])
        more = f", … ({len(shown)} classes)" if len(shown) > 12 else ""
        lines.append(f"{'classes:':<14}{text}{more}")
    for key, unit in (("points", "points"), ("words", "words")):
        if key in facts:
            r = facts[key]
            size = f"{r['least']:,} to {r['most']:,} {unit}, half at most {r['median']:,}"
            lines.append(f"{'length:':<14}{size}")
    if "image_size" in facts:
        height, width = facts["image_size"]
        lines.append(f"{'size:':<14}read as {height} × {width} pixels")
    if "target" in facts:
        target = facts["target"]
        least, mean, most = (readable(target[key]) for key in ("least", "mean", "most"))
        lines.append(f"{'target:':<14}{least} to {most}, mean {mean}")
    if "rate" in facts:
        gap = f", longest gap {facts['longest_gap']:g}" if "longest_gap" in facts else ""
        lines.append(f"{'rate:':<14}{facts['rate']}{gap}")
    if facts.get("missing"):
        lines.append(f"{'missing:':<14}{facts['missing']:.1%} of the cells")
    return lines


def conversion(report: Any, folder: Path) -> None:
    """The layers of a conversion; what became of the score was said on the way."""
    _table("", *report.table())
    typer.echo(f"model: {folder / 'model'}   |   report: {folder / 'model' / 'conversion.html'}")


def generated(result: dict[str, Any], as_json: bool, answered: bool = False) -> None:
    """The prompt and what follows it: of a chat an answer, on lines of its own."""
    parted = "\n\n" if answered else ""
    text = result["prompt"] + parted + result["text"]
    typer.echo(json_module.dumps(result) if as_json else text)


def compression(result: dict[str, Any], as_json: bool) -> None:
    """Test results before and after; a layer's errors were shown when it was done."""
    if as_json:
        typer.echo(json_module.dumps(result))
        return
    for name in ("before", "after"):
        evaluation(result[name] | {"dataset": f"{name}: {result[name]['dataset']}"}, False)
    typer.echo(f"report: {Path(result['after']['run']) / 'compression.json'}")


def sweep_table(rows: list[dict[str, Any]], folder: Path) -> None:
    """The table of a sweep."""
    from ..training.sweeps import to_markdown

    typer.echo(to_markdown(rows))
    typer.echo(f"tables: {folder / 'table.md'}, table.csv, table.json, cells.json")


def fail_if_any(cells: list[dict[str, Any]]) -> None:
    """Exit code 1 where a cell failed."""
    failed = [cell for cell in cells if "error" in cell]
    if failed:
        typer.echo(f"{len(failed)} of {len(cells)} cells failed: {failed[0]['error']}", err=True)
        raise typer.Exit(1)


def compared_tasks() -> None:
    """Tasks of ``fredholm compare``."""
    from .. import compare as comparison

    for name in comparison.list_tasks():
        typer.echo(f"{name:<18}{comparison.find_task(name).title}")


def comparison(folder: Path) -> None:
    """The tables of a comparison, and where they lie."""
    typer.echo((folder / "compare.md").read_text(encoding="utf-8"))
    typer.echo(
        f"tables: {folder / 'compare.csv'}, compare.json, compare.md; page: {folder / 'index.html'}"
    )


def models_table(pattern: str) -> None:
    """Models with true counts, each at its own input size; a line as soon as its
    model is counted.
    """
    import torch

    from ... import models

    typer.echo(f"{'model':<20}{'parameters':>14}{'GFLOPs':>12}   input")
    for name in models.list_models(pattern):
        with torch.device("meta"):
            model = models.create_model(name)
        shape = (1, *model.config.input_shape)
        parameters, flops = models.count(model, shape)
        typer.echo(
            f"{name:<20}{parameters:>14,}{flops / 1e9:>12.3f}   {'x'.join(map(str, shape[1:]))}"
        )


def operators_table(files: Sequence[Path]) -> None:
    """Registered operators by name, those of the user's ``files`` too, and what each of them is."""
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
    """The first paragraph of a docstring up to its formula.

    Example:
        >>> first_words("Attention, :math:`W_O V`, of\\n    ``heads`` heads.")
        'Attention'
    """
    words = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
    return words.partition(":math:")[0].rstrip(" ,:;").replace("`", "")


def data_table() -> None:
    """Data sets with source, licences and whether they are here: a paragraph each, since sources
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
                f"--{name}: expected to be left out beside --steps, which writes ONNX programs "
                "with every size free; drop one of the two"
            )
