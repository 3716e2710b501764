"""What a trained run says of samples without a label: classes, numbers, classes at every point,
fields.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DataError, OptionError
from ...files import replacing, storing
from ...integral import inference
from ...progress import working
from .build import in_float32
from .calibration import temperature_of
from .evaluation import load_run, on_device
from .tasks import create_task

SUFFIXES = (".csv", ".json", ".npz")


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
) -> list[dict[str, Any]]:
    """What a run, or the method that a comparison recommends, says of each sample in files and
    folders, ``-`` being standard input.

    Samples are read as the training files were: of a table the same columns (a label is not
    needed, and not looked at), arrays of the same names, series in any of their formats, pictures,
    clouds; of a text run also text files, one a line. A run on a data set of the catalogue takes
    pictures, lines of text, series, clouds and fields.

    Of a classification each row has ``class``, its ``probability`` and all ``probabilities``, by
    the temperature that was fitted on validation (``calibration.json`` in the run); of a regression
    ``value``, in the units of the training file; with a class at every point ``classes`` and
    ``probabilities``; of fields ``values``. ``file``, and ``row`` or ``id``, say which sample.

    Args:
        run: a run's folder, or one of ``fredholm compare`` that recommends a method beside the
            operators.
        files: what to predict.
        batch_size: samples at a time.
        trust_code: see :func:`load_run`.
        out: a file that they are written to as well, see :func:`write_predictions`.
        strict: refuse a table in which a cell that should hold a number does not; otherwise such
            samples are left out, and listed.
        texts: of a run on texts, samples as they are written, beside those of the files.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        DataError: a file is missing, or holds something else, or an answer is no finite number.
        OptionError: a run whose answers or samples are of another kind, or ``out`` cannot hold
            them, is one of ``files`` or of theirs, or lies in no folder; before any sample is
            read.
        CheckpointError: no run or no model there, or a comparison that recommends an operator.
    """
    from ..data.files.table import in_words
    from ..data.files.unlabelled import read_unlabelled

    if out is not None:
        _check_suffix(Path(out))
        _check_apart(Path(out), files)
        if not Path(out).absolute().parent.is_dir():
            raise OptionError(f"out: received {str(out)!r}; there is no such folder, make it first")
    said = load_predictor(run, trust_code)
    facts = said.facts
    answer = _ANSWERS.get(facts.get("task", "classification"))
    if answer is None:
        task = create_task(facts["task"]).name
        raise OptionError(
            f"predict: the run asks for {task}; it names classes, numbers and fields only (tokens: "
            "`fredholm generate`)"
        )
    if out is not None and answer is _field:
        _refuse_table_of_fields(Path(out))
    samples = read_unlabelled(files, facts, said.encoder, strict, texts)
    rows, count = [], len(samples)
    with torch.inference_mode(), said.ready, working("predict", count, "samples") as show:
        for chosen in alike_batches(samples, range(count), batch_size):
            outputs = said.outputs(samples, chosen)
            for i, output in zip(chosen, outputs, strict=True):
                shape = samples.shape(i) if samples.shape else ()
                try:
                    found = answer(output, facts, said.temperature, shape)
                except _NotFiniteError as error:
                    raise DataError(
                        f"{in_words(samples.places[i])}: the answer is no finite number; needs "
                        "values like those of the training files, and a run that did not diverge"
                    ) from error
                rows.append(samples.places[i] | found)
            show.at(len(rows))
    if out is not None:
        write_predictions(rows, out)
    return rows


@dataclass(frozen=True)
class Predictor:
    """A run, or a method that a comparison recommends.

    Attributes:
        facts: of the data set that it was trained on.
        encoder: what the reading of files asks for.
        temperature: of its classes.
        outputs: for samples of these numbers.
        ready: entered while it answers.
    """

    facts: Mapping[str, Any]
    encoder: Any
    temperature: float
    outputs: Callable[[Any, list[int]], Tensor]
    ready: AbstractContextManager[Any]


def load_predictor(
    folder: str | Path, trust_code: bool, overrides: list[str] | tuple[str, ...] = ()
) -> Predictor:
    """Return what answers for a run's folder, or for that of a comparison.

    Raises:
        TrustError, OptionError, CheckpointError: see :func:`load_run`.
    """
    from ..compare.saved import is_comparison, load_pick

    if is_comparison(folder):
        if overrides:
            raise OptionError(
                f"override: received {' '.join(overrides)}; a method that a comparison recommends "
                "has no options, leave them out"
            )
        pick = load_pick(folder)

        def answered(samples: Any, chosen: list[int]) -> Tensor:
            texts = None if samples.texts is None else [samples.texts[i] for i in chosen]
            return pick(samples.batch(chosen), texts)

        return Predictor(pick.facts, pick.encoder, pick.temperature, answered, nullcontext())
    model, place = load_run(folder, overrides, trust_code=trust_code)
    device = on_device(model)
    return Predictor(
        model.extra,
        model.config.encoder,
        temperature_of(place.calibration),
        lambda samples, chosen: model(samples.batch(chosen).to(device)).float().cpu(),
        inference(model),
    )


def alike_batches(samples: Any, numbers: Sequence[int], size: int) -> Iterator[list[int]]:
    """Yield numbers of samples, at most so many at a time; fields on grids of several sizes, which
    are not padded, apart.
    """

    def grid(number: int) -> tuple[int, ...]:
        shape = samples.shape(number) if samples.shape else ()
        return shape if len(shape) > 1 else ()

    for _, alike in groupby(numbers, grid):
        chosen = list(alike)
        yield from (chosen[start : start + size] for start in range(0, len(chosen), size))


# --- answers --------------------------------------------------------------------------------------


class _NotFiniteError(ArithmeticError):
    """An answer is no number."""


def _finite(values: Tensor) -> Tensor:
    if not values.isfinite().all():
        raise _NotFiniteError
    return values


def _class(
    output: Tensor, facts: Mapping[str, Any], temperature: float, shape: tuple[int, ...]
) -> dict[str, Any]:
    probabilities = _finite((output / temperature).softmax(-1))
    best = int(probabilities.argmax())
    return {
        "class": facts["classes"][best],
        "probability": float(probabilities[best]),
        "probabilities": dict(zip(facts["classes"], probabilities.tolist(), strict=True)),
    }


def _value(
    output: Tensor, facts: Mapping[str, Any], temperature: float, shape: tuple[int, ...]
) -> dict[str, Any]:
    shift, scale = facts.get("units", (0.0, 1.0))
    return {"value": float(_finite(output.double() * scale + shift))}


def _steps(
    output: Tensor, facts: Mapping[str, Any], temperature: float, shape: tuple[int, ...]
) -> dict[str, Any]:
    best = _finite((output[: shape[0]] / temperature).softmax(-1)).max(-1)
    classes = [facts["classes"][i] for i in best.indices.tolist()]
    return {"classes": classes, "probabilities": best.values.tolist()}


def _field(
    output: Tensor, facts: Mapping[str, Any], temperature: float, shape: tuple[int, ...]
) -> dict[str, Any]:
    """(K, h, w) on a grid, (points, K) on points, as the training file has them."""
    values = output * torch.tensor(facts["scale"])
    if len(shape) == 1:
        return {"values": _finite(values[: shape[0]]).tolist()}
    return {"values": _finite(values).mT.reshape(-1, *shape).tolist()}


_ANSWERS: dict[str, Callable[..., dict[str, Any]]] = {
    "classification": _class,
    "regression": _value,
    "steps": _steps,
    "field": _field,
}


# --- files ----------------------------------------------------------------------------------------


def write_predictions(rows: Sequence[Mapping[str, Any]], path: str | Path) -> Path:
    """Write what :func:`predict` gave, as ``.csv``, ``.json`` or ``.npz``.

    A CSV has a row a sample, with a class at every point a row a point; fields are arrays and have
    no CSV.

    Raises:
        OptionError: another suffix, or fields as CSV.
        StorageError: the file cannot be written.
    """
    path = Path(path)
    _check_suffix(path)
    if rows and "values" in rows[0]:
        _refuse_table_of_fields(path)
    with storing(path), replacing(path) as temporary:
        if path.suffix.lower() == ".json":
            temporary.write_text(json.dumps(list(rows), indent=1) + "\n", encoding="utf-8")
        elif path.suffix.lower() == ".csv":
            _write_csv(rows, temporary)
        else:
            with temporary.open("wb") as file:
                arrays: dict[str, Any] = _arrays(rows)
                np.savez(file, **arrays)
    return path


def _check_apart(out: Path, files: Sequence[str | Path]) -> None:
    """Answers are never written over what they answer."""
    for file in map(Path, files):
        if file.is_file() and out.resolve() == file.resolve():
            raise OptionError(
                f"predict: --out {out} is one of the files to predict, which it would replace; "
                "name another file"
            )
        if file.is_dir() and out.is_file() and out.resolve().is_relative_to(file.resolve()):
            raise OptionError(
                f"predict: --out {out} is a file of the folder {file} to predict, which it would "
                "replace; name another file, or delete it first"
            )


def _check_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise OptionError(f"out: received {path.name!r}; needs {', '.join(SUFFIXES)}")


def _refuse_table_of_fields(path: Path) -> None:
    if path.suffix.lower() == ".csv":
        raise OptionError(f"out: received {path.name!r}; fields are arrays: needs .npz or .json")


def _write_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(as_table(rows))


def as_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what :func:`predict` gave as CSV.

    Raises:
        OptionError: fields, which are not a table.
    """
    if rows and "values" in rows[0]:
        _refuse_table_of_fields(Path("-.csv"))
    table = [line for row in rows for line in _flat(row)]
    names = dict.fromkeys(name for line in table for name in line)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(names) or ["file"])
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def _flat(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A sample as lines of plain cells."""
    nested = ("probabilities", "classes")
    plain = {key: value for key, value in row.items() if key not in nested}
    if "classes" in row:
        pairs = zip(row["classes"], row["probabilities"], strict=True)
        return [
            plain | {"point": i, "class": c, "probability": p} for i, (c, p) in enumerate(pairs)
        ]
    shares = row.get("probabilities", {})
    return [plain | {f"p({name})": value for name, value in shares.items()}]


def _arrays(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """An array for each key of any row; samples of different sizes, and those without the key, are
    padded with NaN or "".
    """
    result = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        text = any(isinstance(row.get(key), str) for row in rows)
        values = [row.get(key, "" if text else np.nan) for row in rows]
        if key == "probabilities" and isinstance(values[0], Mapping):
            result["names"] = np.array(list(values[0]))
            values = [list(value.values()) for value in values]
        name = "path" if key == "file" else key  # savez calls its own first argument file
        result[name] = _stacked([np.asarray(value) for value in values])
    return result


def _stacked(arrays: list[np.ndarray]) -> np.ndarray:
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    most = np.max([array.shape for array in arrays], 0)
    text = arrays[0].dtype.kind == "U"
    return np.stack(
        [
            np.pad(
                array,
                [(0, longest - size) for longest, size in zip(most, array.shape)],
                constant_values="" if text else np.nan,
            )
            for array in arrays
        ]
    )
