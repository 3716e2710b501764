"""Predictions of a trained run for samples without labels, and the files they are written to."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, OptionError
from ...files import replacing, storing
from ...integral import inference
from ...progress import working
from ..compare.saved import is_comparison, load_pick
from ..data.files.table import in_words
from ..data.files.unlabelled import read_unlabelled
from .build import in_float32
from .evaluation import load_run, on_device, refuse_overrides
from .tasks import create_task

SUFFIXES = (".csv", ".json", ".npz")

# The prediction for one sample, by the name of each part.
Row = dict[str, Any]

# The size of a sample's grid, or its number of points; () if all have the same.
Shape = tuple[int, ...]


@in_float32()
def predict(
    run: str | Path,
    files: Sequence[str | Path],
    *,
    batch_size: int = 64,
    trust_code: bool = False,
    out: str | Path | None = None,
    strict: bool = False,
    texts: Sequence[str] = (),
    read: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    """Predict each sample in files and folders, by a run or by the method a comparison recommends.

    Samples are read as the training files were: tables with the same columns (a label is neither
    needed nor looked at), arrays of the same names, series in any of their formats, images, clouds.
    A text run also reads text files with one text per line. A run on a named data set reads images,
    lines of text, series, clouds and fields. The file ``-`` is standard input.

    Each sample gives one row. ``file``, with ``row`` or ``id``, identifies the sample. The other
    keys depend on the task:

    - classification: ``class``, its ``probability``, and all ``probabilities``, calibrated by the
      temperature that was fitted on validation (``calibration.json`` in the run);
    - regression: ``value``, in the units of the training file;
    - a class at every point: ``classes`` and ``probabilities``;
    - fields: ``values``.

    Args:
        run: the folder of a run, or of a comparison that recommends a method.
        files: files and folders of samples.
        batch_size: samples per batch.
        trust_code: see :func:`load_run`.
        out: a file to which predictions are written as well, see :func:`write_predictions`.
        strict: refuse a table with a cell that should hold a number and does not; otherwise such
            samples are left out and listed.
        texts: further samples of a text run, as they are written.
        read: how new tables are written, where they differ from the training tables: ``{"decimal":
            ","}``; see :class:`fredholm.lab.data.files.writing.Writing`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        DataError: a file is missing or holds something else, or a prediction is not finite.
        OptionError: the run has a task without such predictions, or samples of another kind; or
            ``out`` cannot hold the predictions, is one of ``files``, lies inside one of them, or
            lies in no folder. All of this is checked before any sample is read.
        CheckpointError: there is no run or model, or a comparison that recommends an operator.
    """
    if out is not None:
        _check_out(Path(out), files)
    predictor = load_predictor(run, trust_code)
    to_row = _rows_of_task(predictor.facts.get("task", "classification"))
    if out is not None and to_row is _field_row:
        _refuse_table_of_fields(Path(out))

    samples = read_unlabelled(files, predictor.facts, predictor.encoder, strict, texts, read)
    count = len(samples)
    rows: list[Row] = []
    with (
        torch.inference_mode(),
        predictor.context,
        working("predict", count, "samples") as progress,
    ):
        for indices in alike_batches(samples, range(count), batch_size):
            outputs = predictor.predict(samples, indices)
            for index, output in zip(indices, outputs, strict=True):
                place = samples.places[index]
                shape = _shape(samples, index)
                answer = _row(to_row, output, predictor, shape, place)
                rows.append(place | answer)
            progress.at(len(rows))

    if out is not None:
        write_predictions(rows, out)
    return rows


def _check_out(out: Path, files: Sequence[str | Path]) -> None:
    _check_suffix(out)
    _refuse_overwriting_inputs(out, files)
    if not out.absolute().parent.is_dir():
        raise OptionError(
            f"out: expected a file in an existing folder, got {str(out)!r}; make the folder first"
        )


class Predictor(NamedTuple):
    """A run, or the method that a comparison recommends.

    Attributes:
        facts: facts about the data set that it was trained on.
        encoder: the configuration of its encoder, which decides how files are read.
        temperature: divides the logits of its classes.
        metric: the metric that the run's recipe chose; None if it chose none, and for a method.
        predict: returns the outputs for the samples of these indices.
        context: entered while it predicts.
    """

    facts: Mapping[str, Any]
    encoder: Any
    temperature: float
    metric: str | None
    predict: Callable[[Any, list[int]], Tensor]
    context: AbstractContextManager[Any]


def load_predictor(
    folder: str | Path,
    trust_code: bool,
    overrides: Sequence[str] = (),
) -> Predictor:
    """Load the model of a run, or the method that a comparison recommends.

    Raises:
        TrustError, OptionError, CheckpointError: see :func:`load_run`.
    """
    if is_comparison(folder):
        refuse_overrides(overrides)
        pick = load_pick(folder)

        def predict_by_pick(samples: Any, indices: list[int]) -> Tensor:
            texts = None
            if samples.texts is not None:
                texts = [samples.texts[i] for i in indices]
            return pick(samples.batch(indices), texts)

        return Predictor(
            facts=pick.facts,
            encoder=pick.encoder,
            temperature=pick.temperature,
            metric=None,
            predict=predict_by_pick,
            context=nullcontext(),
        )

    model, run_folder = load_run(folder, overrides, trust_code=trust_code)
    device = on_device(model)

    def predict_by_run(samples: Any, indices: list[int]) -> Tensor:
        inputs = samples.batch(indices).to(device)
        return model(inputs).float().cpu()

    return Predictor(
        facts=model.extra,
        encoder=model.config.encoder,
        temperature=run_folder.read_temperature(),
        metric=run_folder.load_recipe().training.metric,
        predict=predict_by_run,
        context=inference(model),
    )


def _shape(samples: Any, index: int) -> Shape:
    if not samples.shape:
        return ()
    return samples.shape(index)


def alike_batches(samples: Any, indices: Sequence[int], size: int) -> Iterator[list[int]]:
    """Divide the indices of samples into batches of at most ``size``.

    Fields on grids cannot be padded, so those on grids of different sizes are kept apart.
    """

    def grid_of(index: int) -> Shape:
        shape = _shape(samples, index)
        if len(shape) > 1:
            return shape
        return ()

    for _, same_grid in groupby(indices, grid_of):
        alike = list(same_grid)
        for start in range(0, len(alike), size):
            yield alike[start : start + size]


# --- rows of predictions --------------------------------------------------------------------------


class _NotFiniteError(ArithmeticError):
    """A prediction is NaN or infinite."""


def _finite(values: Tensor) -> Tensor:
    if not values.isfinite().all():
        raise _NotFiniteError
    return values


# Make a row from the output for one sample, the predictor, and the sample's shape.
_ToRow = Callable[[Tensor, Predictor, Shape], Row]


def _row(
    to_row: _ToRow,
    output: Tensor,
    predictor: Predictor,
    shape: Shape,
    place: Mapping[str, Any],
) -> Row:
    """Make the row of one sample; ``place`` is where it was read, for errors."""
    try:
        return _shortest(to_row(output, predictor, shape))
    except _NotFiniteError as error:
        raise DataError(
            f"{in_words(place)}: expected a finite prediction, got NaN or infinity; give values "
            "like those of the training files, and a run that did not diverge"
        ) from error


def _shortest(value: Any) -> Any:
    """Return a row with its numbers of float32 in as few digits as tell them from their neighbours.

    Example:
        >>> _shortest({"class": "a", "probability": float(np.float32(0.1))})
        {'class': 'a', 'probability': 0.1}
    """
    if isinstance(value, Mapping):
        return {key: _shortest(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_shortest(part) for part in value]
    if not isinstance(value, float):
        return value

    single = np.float32(value)
    if float(single) != value:
        return value
    return float(str(single))


def _class_row(output: Tensor, predictor: Predictor, shape: Shape) -> Row:
    classes = predictor.facts["classes"]
    logits = output / predictor.temperature
    probabilities = _finite(logits.softmax(-1))
    best = int(probabilities.argmax())
    by_class = zip(classes, probabilities.tolist(), strict=True)
    return {
        "class": classes[best],
        "probability": float(probabilities[best]),
        "probabilities": dict(by_class),
    }


def _value_row(output: Tensor, predictor: Predictor, shape: Shape) -> Row:
    units = predictor.facts.get("units")
    if units is None:
        return {"value": float(_finite(output))}

    shift, scale = units
    value = float(_finite(output.double() * scale + shift))

    # The model predicts standardised numbers in float32: what is below a millionth of the
    # deviation is rounding.
    digits = 6 - math.floor(math.log10(scale))
    return {"value": round(value, digits)}


def _steps_row(output: Tensor, predictor: Predictor, shape: Shape) -> Row:
    # Outputs (points, C) beyond the sample's own points belong to padding.
    logits = output[: shape[0]] / predictor.temperature
    probabilities = _finite(logits.softmax(-1))
    best = probabilities.max(-1)
    names = predictor.facts["classes"]
    return {
        "classes": [names[i] for i in best.indices.tolist()],
        "probabilities": best.values.tolist(),
    }


def _field_row(output: Tensor, predictor: Predictor, shape: Shape) -> Row:
    """Return values (K, h, w) on a grid and (points, K) at points, as the training file has them.

    Outputs are (points, K); those beyond the sample's own points belong to padding.
    """
    values = output * torch.tensor(predictor.facts["scale"])
    if len(shape) == 1:
        at_points = _finite(values[: shape[0]])
        return {"values": at_points.tolist()}

    on_grid = _finite(values).mT.reshape(-1, *shape)
    return {"values": on_grid.tolist()}


_TO_ROW: dict[str, _ToRow] = {
    "classification": _class_row,
    "regression": _value_row,
    "steps": _steps_row,
    "field": _field_row,
}


def _rows_of_task(task: str) -> _ToRow:
    if task not in _TO_ROW:
        name = create_task(task).name
        raise OptionError(
            f"predict: expected a run that predicts classes, numbers or fields, got {name}; for "
            "tokens use `fredholm generate`"
        )
    return _TO_ROW[task]


# --- files ----------------------------------------------------------------------------------------


def write_predictions(rows: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Write the rows of :func:`predict` as ``.csv``, ``.json`` or ``.npz``.

    A CSV has one row per sample, or one per point for a class at every point. Fields are arrays and
    cannot be written as CSV.

    Raises:
        OptionError: another suffix, or fields as CSV.
        StorageError: the file cannot be written.
    """
    path = Path(path)
    _check_suffix(path)

    if _are_fields(rows):
        _refuse_table_of_fields(path)

    suffix = path.suffix.lower()
    with storing(path), replacing(path) as temporary:
        if suffix == ".json":
            text = json.dumps(list(rows), indent=1)
            temporary.write_text(f"{text}\n", encoding="utf-8")
        elif suffix == ".csv":
            with temporary.open("w", encoding="utf-8", newline="") as file:
                file.write(as_table(rows))
        else:
            # Through an open file, since numpy.savez would add .npz to a temporary name.
            with temporary.open("wb") as file:
                arrays: dict[str, Any] = _arrays(rows)
                np.savez(file, **arrays)
    return path


def _refuse_overwriting_inputs(out: Path, files: Sequence[str | Path]) -> None:
    """Refuse to write predictions over the samples that they belong to.

    A new file in a folder of samples is allowed, since it replaces nothing.

    Raises:
        OptionError: ``out`` is one of the files, or exists already inside one of the folders.
    """
    target = out.resolve()
    for file in map(Path, files):
        if file.is_file() and target == file.resolve():
            raise OptionError(
                f"predict: --out {out} is one of the files to predict, which it would replace; "
                "name another file"
            )
        if file.is_dir() and out.is_file() and target.is_relative_to(file.resolve()):
            raise OptionError(
                f"predict: --out {out} is a file of the folder {file} to predict, which it would "
                "replace; name another file, or delete it first"
            )


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"out: expected a file {', '.join(SUFFIXES)}, got {path.name!r}")


def _are_fields(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether rows are those of fields, which alone have the key "values"."""
    return any("values" in row for row in rows)


def _refuse_table_of_fields(path: Path) -> None:
    if path.suffix.lower() == ".csv":
        raise OptionError(
            f"out: expected .npz or .json for fields, which are arrays, got {path.name!r}"
        )


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the rows of :func:`predict` as CSV.

    Raises:
        OptionError: they are fields, which are arrays and not a table.
    """
    if _are_fields(rows):
        _refuse_table_of_fields(Path("-.csv"))

    table: list[dict[str, Any]] = []
    for row in rows:
        table += _flatten(row)

    # Rows may differ in their keys. Without any row there is a header nevertheless.
    names = dict.fromkeys(name for line in table for name in line)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names) or ["file"])
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _flatten(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Turn the row of a sample into lines of plain cells."""
    nested = ("probabilities", "classes")
    plain = {key: value for key, value in row.items() if key not in nested}

    if "classes" in row:
        lines = []
        answers = zip(row["classes"], row["probabilities"], strict=True)
        for point, (name, probability) in enumerate(answers):
            cells = {"point": point, "class": name, "probability": probability}
            lines.append(plain | cells)
        return lines

    probabilities = row.get("probabilities", {})
    columns = {f"p({name})": value for name, value in probabilities.items()}
    return [plain | columns]


def _arrays(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Stack the values of each key of any row into one array.

    Missing values, and the ends of smaller samples, are NaN, or "" in an array of text.
    """
    result = {}
    keys = dict.fromkeys(key for row in rows for key in row)
    for key in keys:
        missing: Any = np.nan
        if any(isinstance(row.get(key), str) for row in rows):
            missing = ""
        values = [row.get(key, missing) for row in rows]

        # The names of classes are the same in all rows, and stored once.
        if key == "probabilities" and isinstance(values[0], Mapping):
            result["names"] = np.array(list(values[0]))
            values = [list(value.values()) for value in values]

        # numpy.savez names its own first argument "file".
        name = key
        if key == "file":
            name = "path"
        arrays = [np.asarray(value) for value in values]
        result[name] = _stack_padded(arrays)
    return result


def _stack_padded(arrays: list[np.ndarray]) -> np.ndarray:
    """Stack arrays, padded to the size of the largest one."""
    shapes = [array.shape for array in arrays]
    if len(set(shapes)) == 1:
        return np.stack(arrays)

    largest = np.max(shapes, 0)
    padding: Any = np.nan
    if arrays[0].dtype.kind == "U":
        padding = ""

    def pad(array: np.ndarray) -> np.ndarray:
        widths = [(0, full - size) for full, size in zip(largest, array.shape)]
        return np.pad(array, widths, constant_values=padding)

    return np.stack([pad(array) for array in arrays])
