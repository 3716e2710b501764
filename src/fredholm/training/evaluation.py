"""What a trained run does on a split, and on the user's own images or texts."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from ..data import ImageDataset, NodeDataset, TextDataset, Vocabulary, encode_texts
from ..errors import CheckpointError, DataError, OptionError, StorageError, require
from ..files import storing, write_json
from .build import build_dataset
from .folder import RunFolder
from .metrics import pearson, spearman, two_classes
from .recipe_files import apply_overrides, load_recipe
from .tasks import Task, relative_error, task_of

EXAMPLES = 16
COUNTED = {"tokens": "tokens", "steps": "points"}  # by an evaluation, where that is not the samples
SPLITS = ("train", "val", "test")


def load_run(
    run: str | Path,
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
) -> tuple[Any, RunFolder]:
    """The kept model of a run, in evaluation mode, and its folder; ``overrides`` change its
    configuration.

    ``model.steps=12`` replaces a field of the model, ``operator.strategy=exact`` an option of its
    operators: what changes no weight. ``trust_code`` lets the Python files run that the run's
    recipe imports (read them first); where this process has imported the same content already, as
    after training the run, nothing new runs and it is not needed.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: an override of something else, or one that no model has.
        CheckpointError: no run there, it has saved no model yet, or the trained weights do not fit
            the change.
    """
    from .. import models

    place = RunFolder(run)
    place.load_recipe(trust_code)
    if not place.model.is_dir():
        raise CheckpointError(f"{place.root}: no model yet; train it to the end of its first epoch")
    return models.from_pretrained(
        place.model, overrides=_model_overrides(overrides, place)
    ).eval(), place


def _model_overrides(overrides: list[str] | tuple[str, ...], place: RunFolder) -> dict[str, Any]:
    """Changed fields of a saved model's configuration; options of its operators are changes to
    those it was trained with.
    """
    if not overrides:
        return {}
    saved = json.loads((place.model / "config.json").read_text(encoding="utf-8"))["config"]
    options = dict(saved.get("operator_options") or {})
    if isinstance(options.get("strategy"), str) and any(
        o.startswith("operator.strategy.") for o in overrides
    ):
        options["strategy"] = {"name": options["strategy"]}
    changed = apply_overrides({"operator": deepcopy(options)}, list(overrides))
    fields, operator = changed.pop("model", {}), changed.pop("operator")
    if changed or not isinstance(fields, dict) or "name" in operator:
        raise OptionError(
            f"override: received {' '.join(overrides)}; a trained model takes model.KEY=VALUE and "
            "operator.KEY=VALUE only, "
            "and keeps its operator (but see `fredholm compress`)"
        )
    if "operator_options" in fields:
        raise OptionError("override: received model.operator_options; set operator.KEY=VALUE")
    return fields | ({"operator_options": operator} if operator != options else {})


def run_dataset(model: Any, place: RunFolder, split: str, changes: list[str] | None = None) -> Any:
    """The run's data, with some of its options changed, in the numbers that its model knows."""
    words = model.extra.get("vocabulary")
    recipe = place.load_recipe()
    if changes:
        recipe = load_recipe(recipe.to_dict(), changes)
    return build_dataset(recipe, split, Vocabulary.from_dict(words) if words else None)


def evaluate(
    run: str | Path,
    split: str = "test",
    overrides: list[str] | tuple[str, ...] = (),
    *,
    trust_code: bool = False,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Accuracy, loss, per-class accuracy, confusion matrix and examples of a run on one split, also
    as ``evaluation.json``.

    ``confusion[i][j]`` counts images of class i called j; ``wrong`` and ``right`` list the first
    examples of each with index, label, prediction and probability. Splits other than test are
    written to ``evaluation-SPLIT.json``, and a model changed by ``overrides`` (see
    :func:`load_run`) to a file that names them; ``data.options.KEY=VALUE`` among them changes the
    data set instead, such as the resolution of its fields. ``trust_code``: see :func:`load_run`.
    Where the folder cannot be written the figures are returned all the same, and ``report`` (or a
    warning) says that no file holds them.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: an unknown split, or an override that does not fit.
        CheckpointError: no run or no model there.
    """
    from .. import data

    if split not in SPLITS:
        raise OptionError(f"split: received {split!r}; needs one of {', '.join(SPLITS)}")
    changes = [text for text in overrides if text.startswith("data.options.")]
    chosen = [text for text in overrides if text not in changes]
    model, place = load_run(run, chosen, trust_code=trust_code)
    recipe = place.load_recipe()
    dataset = run_dataset(model, place, split, changes)
    loader = data.make_loader(dataset, recipe.data.eval_batch_size, seed=recipe.seed, shuffle=False)
    task = task_of(dataset)
    if task.name == "tokens":
        numbers = summarise_tokens(task, _outputs(model, loader))
    else:
        pairs = list(_outputs(model, loader))
        logits, labels = (torch.cat(parts) for parts in zip(*pairs))
        numbers = summarise_task(task, logits, labels, dataset.classes)
    result = {
        "run": str(place.root),
        "dataset": dataset.name,
        "split": split,
        **({"overrides": list(overrides)} if overrides else {}),
        **numbers,
        **_judged(dataset, numbers),
    }
    try:
        write_json(_evaluation_file(place, split, overrides), result)
    except StorageError as error:
        line = f"the figures are not written: {error}"
        (report or partial(warnings.warn, stacklevel=2))(line)
    return result


def _judged(dataset: Any, numbers: dict[str, Any]) -> dict[str, Any]:
    """The measures by which the data set itself is judged, and what is to be said of its files."""
    scores = {name: numbers[name] for name in dataset.measures if name in numbers}
    return ({"scores": scores} if scores else {}) | (
        {"notes": list(dataset.notes)} if dataset.notes else {}
    )


def _evaluation_file(place: RunFolder, split: str, overrides: list[str] | tuple[str, ...]) -> Path:
    parts = ([] if split == "test" else [split]) + [
        re.sub(r"[^A-Za-z0-9._=+-]", "_", text) for text in overrides
    ]
    return place.root / f"{'-'.join([place.evaluation.stem, *parts])}.json"


def explain(run: str | Path, images: int = 1000, *, trust_code: bool = False) -> Path:
    """The report of a run, in ``run/report``, on the first ``images`` samples of the test split;
    evaluates the run where needed. ``trust_code``: see :func:`load_run`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        CheckpointError: no run or no model there.
        MissingExtraError: matplotlib is not installed.
        StorageError: the folder cannot be written.
    """
    from ..explain import report_run

    model, place = load_run(run, trust_code=trust_code)
    with storing(place.root):  # before the work: without it there is nowhere to put the result
        (place.root / "report").mkdir(exist_ok=True)
    dataset = run_dataset(model, place, "test")
    if not place.evaluation.is_file():
        evaluate(run, trust_code=trust_code)
    chosen = torch.arange(min(images, len(dataset)))
    stored = isinstance(
        dataset, ImageDataset | TextDataset
    )  # bytes of pictures; the texts' own words
    inputs, labels = dataset.raw(chosen) if stored else dataset.batch(chosen)
    task = task_of(dataset)
    where = {"boxes": dataset.masks(chosen, "box"), "masks": dataset.masks(chosen)}
    texts = dataset.texts if isinstance(dataset, TextDataset) else None
    with storing(place.root):
        return report_run(
            place.root,
            inputs,
            labels if task.name == "classification" else None,
            model=model,
            texts=None if texts is None else texts[: len(inputs)],
            counted="nodes" if isinstance(dataset, NodeDataset) else COUNTED.get(task.name),
            **where,
        )


def _area(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """Area under the curve of two classes, where both are there."""
    from ..explain.targets import roc_auc

    area = float(roc_auc((logits[:, 1] - logits[:, 0])[None].double(), labels[None] == 1))
    return {} if math.isnan(area) else {"auc": area}


def _outputs(model: nn.Module, loader) -> Iterator[tuple[Tensor, Tensor]]:
    """What the model says of each batch, and the labels, on the CPU."""
    device = next(model.parameters()).device
    if device.type == "cpu" and torch.cuda.is_available():
        device = torch.device("cuda")
        model.to(device)
    for inputs, labels in loader:
        with torch.inference_mode():
            outputs = model(inputs.to(device)).float().cpu()
        yield outputs, labels.cpu()


def summarise_tokens(task: Task, batches: Iterable[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    """Numbers of a model of tokens, batch by batch: how many have a label, loss in nats and bits
    a token, perplexity, accuracy.

    Example:
        >>> batch = torch.zeros(1, 3, 4), torch.tensor([[2, 3, -100]])
        >>> found = summarise_tokens(Task("tokens"), [batch])
        >>> found["n"], round(found["bits"], 6)
        (2, 2.0)
    """
    total, right, count = 0.0, 0, 0
    for outputs, labels in batches:
        loss, correct, labelled = task.sums(outputs, labels)
        total, right, count = total + float(loss), right + int(correct), count + labelled
    loss = total / count
    return {
        "n": count,
        "accuracy": right / count,
        "loss": loss,
        "bits": loss / math.log(2),
        "perplexity": math.exp(loss),
    }


def summarise_task(task: Task, outputs: Tensor, labels: Tensor, classes) -> dict[str, Any]:
    """Numbers of a task: those of :func:`summarise`, over all labelled points; of a
    regression its errors.
    """
    outputs, labels = task.pairs(outputs, labels)
    if task.name == "field":
        error = relative_error(outputs.double(), labels.double())
        return {"n": len(labels), "loss": float(error.mean()), "worst": float(error.max())}
    if task.name == "answers":
        loss, score, count = task.sums(outputs, labels)
        return {"n": count, "accuracy": float(score) / count, "loss": float(loss) / count}
    if task.name != "regression":
        return summarise(outputs, labels, classes)
    error = outputs.double() - labels.double()
    spread = float((labels.double() - labels.double().mean()).square().mean())
    return {
        "n": len(labels),
        "loss": float(error.square().mean()),
        "absolute_error": float(error.abs().mean()),
        "variance": spread,
        "pearson": pearson(outputs, labels),
        "spearman": spearman(outputs, labels),
    }


def summarise(logits: Tensor, labels: Tensor, classes) -> dict[str, Any]:
    """Numbers of a classification, from logits (N, C) and labels (N,).

    Example:
        >>> report = summarise(torch.eye(3), torch.tensor([0, 1, 1]), ("a", "b", "c"))
        >>> report["accuracy"], report["per_class"], report["confusion"][1]
        (0.6666666666666666, {'a': 1.0, 'b': 0.5, 'c': None}, [0, 1, 1])
    """
    count, size = len(labels), len(classes)
    probabilities, predicted = logits.softmax(-1).max(-1)
    confusion = torch.zeros(size * size, dtype=torch.long).index_add_(
        0, labels * size + predicted, torch.ones_like(labels)
    )
    confusion = confusion.view(size, size)
    totals = confusion.sum(1)
    hits = predicted == labels

    def examples(which: Tensor) -> list[dict[str, Any]]:
        return [
            {
                "index": i,
                "label": int(labels[i]),
                "prediction": int(predicted[i]),
                "probability": float(probabilities[i]),
            }
            for i in which.nonzero()[:EXAMPLES, 0].tolist()
        ]

    return {
        "n": count,
        **(two_classes(confusion) | _area(logits, labels) if size == 2 else {}),
        "accuracy": int(hits.sum()) / count,
        "loss": float(cross_entropy(logits.double(), labels)),
        "classes": [str(name) for name in classes],
        "per_class": {
            str(name): int(confusion[i, i]) / int(totals[i]) if totals[i] else None
            for i, name in enumerate(classes)
        },
        "confusion": confusion.tolist(),
        "wrong": examples(~hits),
        "right": examples(hits),
    }


def predict(
    run: str | Path, files: list[str | Path], *, trust_code: bool = False
) -> list[dict[str, Any]]:
    """The class of each image file, or of each line of a text file, with its probability and those
    of all classes.

    A picture is converted to the model's channels, resized to its input size and normalised as in
    training. A line of text is read with the vocabulary saved with the model; ``truncated`` says
    whether its end was lost. Empty lines are passed over. ``trust_code``: see :func:`load_run`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        DataError: a file is missing, no image, no UTF-8, or without a line of text.
        CheckpointError: no run or no model there.
    """
    model, _ = load_run(run, trust_code=trust_code)
    facts = model.extra
    found: list[dict[str, Any]] = [{"file": str(file)} for file in files]
    if "vocabulary" in facts and "task" in facts:
        raise OptionError(
            f"predict: the run asks for {facts['task']}; it names classes only (tokens: `fredholm "
            "generate`)"
        )
    if "vocabulary" in facts:
        lines = [line for file in files for line in _read_lines(Path(file))]
        vocabulary = Vocabulary.from_dict(facts["vocabulary"])
        inputs, _ = encode_texts([text for _, text in lines], vocabulary, facts["max_length"])
        lengths = [len(vocabulary.encode(text)) for _, text in lines]
        found = [
            {"file": where, "truncated": n > facts["max_length"]}
            for (where, _), n in zip(lines, lengths)
        ]
    elif "task" in facts:
        raise OptionError(
            f"predict: the run reads sequences of {facts['dataset']}; it takes pictures and lines "
            "of text only"
        )
    else:
        height, width = model.config.image_size
        images = torch.stack(
            [_read_image(Path(file), model.config.channels, (height, width)) for file in files]
        )
        mean, std = (
            torch.tensor(facts[key], dtype=torch.float32).view(1, -1, 1, 1)
            for key in ("mean", "std")
        )
        inputs = (images - mean) / std
    with torch.inference_mode():
        probabilities = model(inputs).float().softmax(-1)
    best, predicted = probabilities.max(-1)
    return [
        {
            **what,
            "class": facts["classes"][int(predicted[i])],
            "probability": float(best[i]),
            "probabilities": dict(zip(facts["classes"], probabilities[i].tolist())),
        }
        for i, what in enumerate(found)
    ]


def _read_lines(path: Path) -> list[tuple[str, str]]:
    """The texts of a file, one a line, each with ``file:line``."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8 text (byte {error.start:,}); needs one text a line"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    texts = [(f"{path}:{number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not texts:
        raise DataError(f"{path}: holds no text; needs one a line")
    return texts


def _read_image(path: Path, channels: int, size: tuple[int, int]) -> Tensor:
    """One file as (channels, height, width) in [0, 1]."""
    import numpy as np

    pillow = require("PIL.Image", "train", "reading an image")
    try:
        with pillow.open(path) as file:
            pixels = np.array(file.convert("L" if channels == 1 else "RGB"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: not a readable image ({error})") from error
    image = torch.from_numpy(pixels).float().div(255)
    image = image.unsqueeze(0) if image.ndim == 2 else image.permute(2, 0, 1)
    if tuple(image.shape[-2:]) == size:
        return image
    return interpolate(image[None], size, mode="bilinear", antialias=True, align_corners=False)[0]
