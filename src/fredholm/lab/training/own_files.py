"""Recipes of the user's own files: a path is enough, the rest follows from what lies there."""

from __future__ import annotations

import math
import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from .recipe import READING, Recipe

POINTS = 64  # of a regular series; the samples of a longer one are put together in patches
UNEVEN = 1.0  # of the logarithms of series' deviations, their own deviation
PATCHES = 25  # of a picture, where they have no more than 16 x 16 pixels
EXACT_POINTS = 256  # up to which the exact kernel of all pairs is the usual operator
STEPS = 1500  # of a training that nobody has measured
FEWEST_PATCHES = 4  # of a picture of a size that was asked for
FEW = 200  # validation samples that are too few to choose an epoch by
ANNOTATIONS = "boxes"  # the option of a data set that is a folder
MODEL = "backbone_nano"  # of every kind
ITNET = {"name": "itnet", "width": 16, "frequencies": 16}


def names_files(source: Any) -> bool:
    """Whether a command's argument is a path of samples rather than a recipe: it holds a separator
    or ends as files of samples do, and is neither YAML nor a run.

    Example:
        >>> names_files("digits"), names_files("./my.yaml"), names_files("series.csv")
        (False, False, True)
    """
    from ..data.files.collect import family_of

    text, path = str(source), Path(source)
    if path.suffix.lower() in (".yaml", ".yml") or (path / "recipe.yaml").is_file():
        return False
    if family_of(path) is not None:
        return True
    separated = "/" in text or os.sep in text
    return path.is_dir() and (separated or (isinstance(source, Path) and path.is_absolute()))


def named(raw: dict[str, Any]) -> dict[str, Any]:
    """A recipe with whole paths; one of the user's files under a name as well."""
    from ..data.files.suffixes import stem_of

    data = raw.get("data")
    if not isinstance(data, dict) or data.get("name", "files") != "files" or not data.get("path"):
        return with_whole_paths(raw)
    raw = with_whole_paths({**raw, "data": {**data, "path": str(data["path"])}})
    stem = stem_of(Path(raw["data"]["path"]))
    name = re.sub(r"[^A-Za-z0-9._,=+-]", "-", stem).lstrip("._,=+-") or "run"
    return {"name": name, **raw}


def with_whole_paths(raw: dict[str, Any]) -> dict[str, Any]:
    """A recipe that names the same data and the same ``init_from`` from any working folder."""
    data, start = raw.get("data"), raw.get("init_from")
    if isinstance(data, dict):
        options = data.get("options")
        whole = {"path": _whole(data["path"])} if data.get("path") else {}
        if isinstance(options, dict) and options.get(ANNOTATIONS):
            whole["options"] = {**options, ANNOTATIONS: _whole(options[ANNOTATIONS])}
        raw = {**raw, "data": {**data, **whole}}
    if start:
        runs = [_whole(run) for run in start] if isinstance(start, list) else _whole(start)
        raw = {**raw, "init_from": runs}
    return raw


def _whole(path: Any) -> Any:
    """What is no path stays, for the recipe's own check."""
    return str(Path(path).expanduser().absolute()) if isinstance(path, str | Path) else path


def modelless(raw: dict[str, Any]) -> bool:
    """Whether a recipe of the user's files leaves the model to what lies there."""
    data, model = raw.get("data"), raw.get("model", {})
    files = isinstance(data, dict) and data.get("name", "files") == "files" and data.get("path")
    return bool(files) and isinstance(model, dict) and "name" not in model


def data_mark(recipe: Recipe) -> str | None:
    """What tells whether the files of a recipe have changed; None of a data set of the
    catalogue.
    """
    if recipe.data.name != "files" or recipe.data.path is None:
        return None
    from ..data.files import Reading
    from ..data.files.collect import mark_of

    reading = Reading(**(recipe.data.options | recipe.data.reading))
    return mark_of(Path(recipe.data.path).expanduser().absolute(), reading)


def complete(raw: dict[str, Any]) -> dict[str, Any]:
    """A recipe without a model, with the usual one of its files' kind, and batches and epochs that
    suit their number; the files are read.
    """
    data, place = raw["data"], Path(raw["data"]["path"])
    from ..data.files import open_files

    said = {key: data[key] for key in READING if data.get(key) is not None}
    share = {"val": data["val_fraction"]} if data.get("val_fraction") else {}
    source = open_files(place, {**said, **data.get("options", {})}, **share)
    usual = usual_recipe(source, _size(data.get("image_size")))
    usual |= _usual_course(usual, raw.get("training"), raw.get("schedule"))
    chosen = usual.pop("data")
    options = {**chosen.get("options", {}), **data.get("options", {})}
    raw = {**raw, "data": chosen | data | ({"options": options} if options else {})}
    for section, value in usual.items():
        raw[section] = _laid_over(value, raw.get(section, {}))
    return raw


def _usual_course(usual: dict[str, Any], training: Any, schedule: Any) -> dict[str, Any]:
    """The usual sections ``training`` and ``schedule`` without what a given one takes the place of:
    a length in steps that of the usual epochs, with a tenth of them as the warm-up, and any given
    warm-up the usual one.
    """
    length, course = usual["training"], usual["schedule"]
    steps = _given(training, "steps")
    if steps is not None and _given(training, "epochs") is None:
        length = {key: value for key, value in length.items() if key != "epochs"}
        warm = isinstance(steps, int) and steps >= 10
        course = {"warmup_steps": steps // 10} if warm else {}
    if any(_given(schedule, key) is not None for key in ("warmup_epochs", "warmup_steps")):
        course = {}
    return {"training": length, "schedule": course}


def _size(given: Any) -> tuple[int, int] | None:
    """Height and width as a recipe says them; None of what its check will refuse, or of nothing."""
    pair = [given, given] if isinstance(given, int) else given
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    height, width = pair
    whole = isinstance(height, int) and isinstance(width, int) and min(height, width) > 0
    return (height, width) if whole else None


def _given(section: Any, key: str) -> Any:
    return section.get(key) if isinstance(section, dict) else None


def _laid_over(usual: dict[str, Any], given: Any) -> Any:
    """What is given, and what is usual where nothing is; of another operator, nothing."""
    if not isinstance(given, dict) or given.get("name", usual.get("name")) != usual.get("name"):
        return given
    both = {key: usual[key] | given[key] for key in given if isinstance(usual.get(key), dict)}
    return {**usual, **given, **both}


def describe(path: str | Path, reading: dict[str, Any]) -> dict[str, Any]:
    """What lies at a path (:attr:`.data.files.Source.description`), and the usual model of its
    kind.
    """
    from ..data.files import open_files

    source = open_files(path, reading)
    usual = usual_recipe(source)
    patch = _encoder(usual).get("patch", 1)
    cells = _CELLS.get(source.collection.kind, "{0} samples").format(patch)
    patches = f"patches of {cells}, " if patch > 1 else ""
    patches += "each series on its own scale, " if "standard" in _encoder(usual) else ""
    model = f"{usual['model']['name']}, {patches}operator {usual['operator']['name']}"
    return source.description | {"model": model, "epochs": usual["training"]["epochs"]}


def _encoder(usual: dict[str, Any]) -> dict[str, Any]:
    return usual["model"].get("encoder", {})


def usual_recipe(source: Any, image_size: tuple[int, int] | None = None) -> dict[str, Any]:
    """The sections of a recipe for what was read: data, model, operator, optimizer, schedule and
    training; ``image_size``: of pictures, where one was asked for.
    """
    count = len(source.training)
    batch = max(1, min(32, count // 4))
    epochs = max(5, min(100, round(STEPS * batch / count)))
    few = int((source.parts == 1).sum()) < FEW
    kind = source.collection.kind
    if image_size is not None and kind in _OF_SIZE:
        model, operator, data = _OF_SIZE[kind](source, image_size)
    else:
        model, operator, data = _USUAL[kind](source)
    form = source.collection.reading.pixels or "rgb"
    if form != "rgb":  # recipes without it mean bytes of three colours
        data = {**data, "options": {"pixels": form}}
    return {
        "data": {"batch_size": batch} | data,
        "model": model,
        "operator": operator,
        "optimizer": {"lr": 2e-3, "weight_decay": 0.05},
        "schedule": {"warmup_epochs": round(epochs / 10, 2)},
        "training": {"epochs": epochs} | ({"keep": "last"} if few else {}),
    }


def usual_operator(points: int, sigma: float) -> dict[str, Any]:
    """ITNet's exact kernel over few points, a linear one over many."""
    return ITNET | {"sigma": sigma} if points <= EXACT_POINTS else {"name": "luna"}


def _backbone(source: Any, **encoder: Any) -> dict[str, Any]:
    size = {"dim": 32, "depth": 2} if len(source.training) < 500 else {"dim": 64, "depth": 3}
    body = {**size, "heads": 4, "dropout": 0.1}
    return {"name": MODEL, "body": body, **({"encoder": encoder} if encoder else {})}


def _series(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    points = max(len(sample) for sample in source.collection.samples)
    encoder: dict[str, Any] = {"standard": True} if _uneven(source) else {}
    if source.collection.steps is not None or source.scaling["timed"]:  # each sample by itself
        return _backbone(source, **encoder), usual_operator(points, 3.0), {}
    patch = math.ceil(points / POINTS)
    encoder |= {"patch": patch} if patch > 1 else {}
    return _backbone(source, **encoder), usual_operator(math.ceil(points / patch), 3.0), {}


def _uneven(source: Any) -> bool:
    """Whether the training series have deviations of very different size in some channel."""
    if source.collection.reading.scale == "sample":
        return False
    parts = [source.collection.samples[i] for i in source.training]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a channel without any value
        deviations = np.log(np.stack([np.nanstd(part, 0) for part in parts]) + 1e-12)
        spread = np.nanstd(np.where(deviations > np.log(1e-9), deviations, np.nan), 0)
    return bool((spread > UNEVEN).any())


def _rows(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return _backbone(source), {"name": "softmax"}, {}


def _texts(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    return _backbone(source), usual_operator(64, 3.0), {}


def _images(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    height, width = source.image_size
    least = _least_patch(height, width)
    # A little more where the sides are multiples of it.
    larger = range(least, min(16, least + least // 4) + 1)
    patch = next((p for p in larger if height % p == width % p == 0), least)
    size = [max(4, round(side / patch)) * patch for side in (height, width)]
    return _in_patches(source, patch, size)


def _images_of(
    source: Any, size: tuple[int, int]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Of a size that was asked for, which the patch has to divide: the nearest that does and leaves
    some points. There may be none, which the model then says.
    """
    least = _least_patch(*size)
    some = range(2, min(16, math.isqrt(size[0] * size[1] // FEWEST_PATCHES)) + 1)
    fitting = [patch for patch in some if size[0] % patch == size[1] % patch == 0]
    patch = min(fitting, key=lambda patch: abs(math.log(patch / least)), default=least)
    return _in_patches(source, patch, list(size))


def _least_patch(height: int, width: int) -> int:
    """The side of at most :data:`PATCHES` patches, and no more than 16 pixels."""
    return min(16, max(2, math.ceil(math.sqrt(height * width / PATCHES))))


def _in_patches(
    source: Any, patch: int, size: list[int]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    points = size[0] * size[1] // patch**2
    return _backbone(source, patch=patch), usual_operator(points, 3.0), {"image_size": size}


def _clouds(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    model = _backbone(source, features="fourier", neighbours=8, sigma=1.0)
    return model, usual_operator(source.scaling["points"], 1.0), {}


def _fields(source: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    if source.collection.coordinates is not None:
        points = max(len(places) for places in source.collection.coordinates)
        return _backbone(source, features="fourier", sigma=1.0), usual_operator(points, 1.0), {}
    points = source.collection.samples.shape[2] * source.collection.samples.shape[3]
    return _backbone(source, sigma=1.0), usual_operator(points, 1.0), {}


_CELLS = {"images": "{0} x {0} pixels"}  # what a patch holds
_OF_SIZE = {"images": _images_of}  # of samples that are brought to a size, where one is given
_USUAL = {
    "series": _series,
    "rows": _rows,
    "texts": _texts,
    "images": _images,
    "clouds": _clouds,
    "fields": _fields,
}
