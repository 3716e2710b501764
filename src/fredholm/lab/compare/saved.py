"""The recommended method in the folder of a comparison: fitted anew to more samples than any trial
had, saved as data, and read again to predict.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError, OptionError
from ...files import (
    CHECKSUM,
    digest_json,
    digest_tensors,
    read_tensors,
    storing,
    write_json,
    write_tensors,
)
from ...progress import steps
from ..training.checks import import_files
from ..training.own_files import names_files
from .budgets import REFERENCE, make_recipe
from .fitted import Fitted, dismantle, rebuild
from .plain import PLAIN
from .splits import Splits, batches
from .tasks import code_of, find_task

FOLDER, FACTS, ARRAYS = "method", "method.json", "arrays.safetensors"
RESULTS = "choice.json"  # of a comparison
FORMAT = 1
JUDGED = 64  # samples that are judged at a time
AGAIN = "run the same `fredholm compare` again, which writes it anew"


@dataclass(frozen=True)
class Pick:
    """A method that answers about new samples.

    Attributes:
        method: its name in :data:`.plain.PLAIN`.
        fitted: what it has learned.
        facts: of the data set that it was fitted to (:meth:`.LabelledDataset.describe`).
        sizes: of its samples (:meth:`.LabelledDataset.encoder`).
        temperature: by which its outputs for classes are divided.
        samples: which ones it was fitted to, in words.
    """

    method: str
    fitted: Fitted
    facts: dict[str, Any]
    sizes: dict[str, Any]
    temperature: float
    samples: str

    @property
    def encoder(self) -> Any:
        """What the reading of files asks of a model's encoder."""
        sizes = dict(self.sizes)
        if "image_size" in sizes:
            sizes["input_shape"] = (sizes["channels"], *sizes["image_size"])
        return SimpleNamespace(**sizes)

    def __call__(self, batch: Tensor, texts: Sequence[str] | None) -> Tensor:
        """Outputs for samples that were read from files, whose texts a pretrained start reads."""
        start = PLAIN[self.method].start
        worded = start is not None and start.worded
        return self.fitted(list(texts) if worded and texts is not None else batch).float()

    def outputs(self, dataset: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Outputs and labels of a data set in memory, a batch at a time."""
        parts = batches(PLAIN[self.method].view(dataset), JUDGED)
        count, label = math.ceil(len(dataset) / JUDGED), f"evaluate on {dataset.split}"
        for inputs, labels in steps(label, parts, count, "batches"):
            with torch.inference_mode():
                yield self.fitted(inputs).float(), labels


# --- writing --------------------------------------------------------------------------------------


def keep_pick(place: Path, splits: Splits, name: str, rows: Sequence[Mapping[str, Any]]) -> Pick:
    """Fit a method to all samples but the test's, as far as they are read together, and save it.

    Its temperature is the geometric mean of those that the trials found on validation. One that
    an earlier call saved of the same samples is kept.

    Args:
        place: folder of the comparison.
        rows: of the finalists.
    """
    train, samples = splits.whole()
    facts = json.loads(json.dumps(train.describe()))
    if (place / FOLDER / FACTS).is_file():
        try:
            known = load_pick(place)
        except (CheckpointError, OptionError):
            pass  # written anew
        else:
            if (known.method, known.facts, known.samples) == (name, facts, samples):
                return known
    found = [row.get("temperature") for row in rows if row["operator"] == name]
    found = [value for value in found if value is not None]
    temperature = statistics.geometric_mean(found) if found else 1.0
    pick = Pick(name, PLAIN[name].fit(train, 0), facts, train.encoder(), temperature, samples)
    save_pick(place, pick)
    return pick


def save_pick(place: Path, pick: Pick) -> None:
    """Write the arrays, and then the JSON that holds the checksums of both, each in one step.

    Raises:
        StorageError: a full disk, a folder that cannot be written.
    """
    values, tensors = dismantle(pick.fitted)
    plain: dict[str, Any] = {"format": FORMAT, "method": pick.method, "fitted": values}
    plain |= {"facts": pick.facts, "sizes": pick.sizes, "temperature": pick.temperature}
    plain |= {"samples": pick.samples, "arrays": digest_tensors(tensors)}
    plain[CHECKSUM] = digest_json(plain)
    folder = place / FOLDER
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / ARRAYS, tensors)
    write_json(folder / FACTS, plain)


def drop_pick(place: Path) -> None:
    """Remove a method that is no longer recommended."""
    with storing(place):
        if (place / FOLDER).is_dir():
            shutil.rmtree(place / FOLDER)


# --- reading --------------------------------------------------------------------------------------


def is_comparison(folder: str | Path) -> bool:
    """Whether ``fredholm compare`` wrote a folder."""
    return (Path(folder) / RESULTS).is_file()


def load_pick(folder: str | Path) -> Pick:
    """The method that a comparison recommends; no code is executed.

    Raises:
        CheckpointError: a comparison that recommends an operator or is not finished; a missing,
            truncated or damaged file; a method of another version.
        OptionError: a pretrained start whose weights are not here.
    """
    place = Path(folder) / FOLDER
    if not (place / FACTS).is_file():
        raise CheckpointError(f"{folder}: {_without(Path(folder))}")
    saved = _read(place / FACTS)
    tensors = read_tensors(place / ARRAYS, AGAIN)
    if digest_tensors(tensors) != saved["arrays"]:
        raise CheckpointError(f"{place}: {ARRAYS} and {FACTS} do not belong together; {AGAIN}")
    if saved["method"] not in PLAIN:
        raise CheckpointError(f"{place}: holds {saved['method']!r}, which no longer exists")
    start = PLAIN[saved["method"]].start
    missing = start.missing() if start is not None else None
    if missing is not None:
        raise OptionError(f"{folder}: {PLAIN[saved['method']].title}: {missing}")
    keys = ("facts", "sizes", "temperature", "samples")
    given = {key: saved[key] for key in keys}
    return Pick(saved["method"], rebuild(saved["fitted"], tensors), **given)


def splits_of(folder: str | Path, pick: Pick, trust_code: bool = False) -> Splits:
    """The data that a comparison was made on.

    Raises:
        TrustError: its recipe imports a file, and ``trust_code`` is not given.
        RecipeError, DataError: a source that cannot be read.
    """
    setting = _state(Path(folder))["setting"]
    source = setting["source"]
    if names_files(source):  # as it was named, it starts from where the comparison ran
        source = pick.facts["source"]["path"]
    import_files(list(map(str, comparison_code(folder))), Path.cwd(), trust_code)
    task = find_task(source, tuple(setting["changes"]), trust_code=trust_code)
    return Splits(make_recipe(task, REFERENCE))


def comparison_code(folder: str | Path) -> list[Path]:
    """The files that the recipe of a comparison imports; executes none of them.

    Raises:
        RecipeError: the recipe cannot be read.
    """
    return code_of(_state(Path(folder)).get("setting", {}).get("source", ""))


def refuse_comparison(folder: str | Path) -> None:
    """Refuse the folder of a comparison where the model of a run is needed.

    Raises:
        CheckpointError: a comparison, which holds at most a method without operators.
    """
    if not is_comparison(folder):
        return
    verdict = _state(Path(folder)).get("verdict") or {}
    train = verdict.get("train") if verdict.get("pick") not in PLAIN else None
    way = "train a run and name its folder" if train is None else f"{train}; then name its folder"
    raise CheckpointError(
        f"{folder}: a comparison, whose page is {Path(folder) / 'index.html'}; needs a run, whose "
        f"model has operators: {way}"
    )


def _state(place: Path) -> dict[str, Any]:
    try:
        return json.loads((place / RESULTS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(
            f"{place / RESULTS} is corrupt or truncated ({error}); {AGAIN}"
        ) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        expected = saved.pop(CHECKSUM)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path} is corrupt or truncated ({error}); {AGAIN}") from error
    if digest_json(saved) != expected:
        raise CheckpointError(f"{path} is corrupt (it does not match its checksum); {AGAIN}")
    if saved["format"] != FORMAT:
        raise CheckpointError(
            f"{path}: received format {saved['format']!r}; needs {FORMAT}; {AGAIN}"
        )
    return saved


def _without(place: Path) -> str:
    """Why a comparison holds no method, and how to go on."""
    verdict = _state(place).get("verdict")
    if not verdict:
        return "a comparison that is not finished; the same `fredholm compare` goes on"
    if verdict["pick"] in PLAIN:
        return f"recommends {PLAIN[verdict['pick']].title}, which is not saved here; {AGAIN}"
    return (
        f"recommends the operator {verdict['pick']}, which has to be trained in full first: "
        f"{verdict['train']}; then name the run's folder"
    )
