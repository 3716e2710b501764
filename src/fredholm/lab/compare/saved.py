"""Recommended method in the folder of a comparison: fitted again to more samples than any trial,
saved as data, and loaded to predict.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...errors import CheckpointError, OptionError
from ...files import digest_json, storing, write_json
from ...progress import steps
from ...tensor_files import CHECKSUM, digest_tensors, read_tensors, write_tensors
from ..training.checks import import_files
from ..training.own_files import names_files
from .budgets import REFERENCE, make_recipe
from .fitted import AGAIN, Fitted, dismantle, rebuild
from .plain import PLAIN
from .splits import Splits, batches
from .tasks import code_of, find_task

FOLDER = "method"
FACTS = "method.json"
ARRAYS = "arrays.safetensors"

# The file that every comparison writes.
RESULTS = "choice.json"

# Version of the files of a method.
FORMAT = 1

# Methods of earlier versions: pretrained starts in which linear attention replaced softmax.
REMOVED = ("minilm-linear", "vit-s-linear")

# Samples per batch of an evaluation.
EVAL_BATCH = 64


@dataclass(frozen=True)
class Pick:
    """A fitted method that predicts new samples.

    Attributes:
        method: its name in :data:`.plain.PLAIN`.
        fitted: its arrays and plain values.
        facts: of the data set that it was fitted to (:meth:`.LabelledDataset.describe`).
        sizes: of its samples (:meth:`.LabelledDataset.encoder`).
        temperature: divisor of its outputs for classes.
        samples: which samples it was fitted to, in words.
    """

    method: str
    fitted: Fitted
    facts: dict[str, Any]
    sizes: dict[str, Any]
    temperature: float
    samples: str

    @property
    def encoder(self) -> Any:
        """The attributes of a model's encoder that the reading of files needs."""
        sizes = dict(self.sizes)
        if "image_size" in sizes:
            sizes["input_shape"] = (sizes["channels"], *sizes["image_size"])
        return SimpleNamespace(**sizes)

    def __call__(
        self,
        batch: Tensor,
        texts: Sequence[str] | None,
    ) -> Tensor:
        """Return the outputs for samples that were read from files, in float32: (B, classes),
        logarithms of probabilities up to a constant, or (B, 1), numbers.

        The caller divides those of classes by ``temperature``.

        Args:
            batch: the samples as the data set encodes them, texts as token numbers.
            texts: the same samples as they were written, one string each; None if they are not
                texts. Only a pretrained start for texts reads them, since it has its own
                vocabulary; every other method reads ``batch``.
        """
        start = PLAIN[self.method].start
        if texts is not None and start is not None and start.worded:
            return self.fitted(list(texts)).float()
        return self.fitted(batch).float()

    def outputs(self, dataset: Any) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the outputs and labels of a data set in memory, a batch at a time."""
        parts = batches(PLAIN[self.method].view(dataset), EVAL_BATCH)
        count = math.ceil(len(dataset) / EVAL_BATCH)
        for inputs, labels in steps(f"evaluate on {dataset.split}", parts, count, "batches"):
            with torch.inference_mode():
                yield self.fitted(inputs).float(), labels


# --- writing --------------------------------------------------------------------------------------


def keep_pick(
    place: Path,
    splits: Splits,
    name: str,
    rows: Sequence[Mapping[str, Any]],
) -> Pick:
    """Fit a method to all samples except those of the test split, and save it.

    Its temperature is the geometric mean of those that the trials found on validation. One that an
    earlier call fitted to the same samples and saved is kept.

    Args:
        place: folder of the comparison.
        splits: its data.
        name: of the method.
        rows: of the finalists.
    """
    train, samples = splits.samples_to_fit()
    # As they come back from a file, for the comparison with a saved one.
    facts = json.loads(json.dumps(train.describe()))
    if (place / FOLDER / FACTS).is_file():
        try:
            saved = load_pick(place)
            if (saved.method, saved.facts, saved.samples) == (name, facts, samples):
                return saved
        except (CheckpointError, OptionError):
            # What cannot be read is written again below.
            pass

    own = [row for row in rows if row["operator"] == name]
    found = [row["temperature"] for row in own if row.get("temperature") is not None]
    temperature = 1.0
    if found:
        temperature = statistics.geometric_mean(found)
    pick = Pick(
        name,
        PLAIN[name].fit(train, 0),
        facts,
        train.encoder(),
        temperature,
        samples,
    )
    save_pick(place, pick)
    return pick


def save_pick(place: Path, pick: Pick) -> None:
    """Write the arrays, then the JSON with the checksums of both files, each in one step.

    Raises:
        StorageError: a full disk, a folder that cannot be written.
    """
    values, tensors = dismantle(pick.fitted)
    content: dict[str, Any] = {
        "format": FORMAT,
        "method": pick.method,
        "fitted": values,
        "facts": pick.facts,
        "sizes": pick.sizes,
        "temperature": pick.temperature,
        "samples": pick.samples,
        "arrays": digest_tensors(tensors),
    }
    content[CHECKSUM] = digest_json(content)
    folder = place / FOLDER
    with storing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / ARRAYS, tensors)
    write_json(folder / FACTS, content)


def drop_pick(place: Path) -> None:
    """Remove a method that is no longer recommended."""
    with storing(place):
        if (place / FOLDER).is_dir():
            shutil.rmtree(place / FOLDER)


# --- reading --------------------------------------------------------------------------------------


def is_comparison(folder: str | Path) -> bool:
    """Return whether ``fredholm compare`` wrote a folder."""
    return (Path(folder) / RESULTS).is_file()


def load_pick(folder: str | Path) -> Pick:
    """Load the method that a comparison recommends. Executes no code from the files.

    Raises:
        CheckpointError: a comparison that recommends an operator or is not finished; a missing,
            truncated or damaged file; a method of another version.
        OptionError: a pretrained start whose weights are not here.
    """
    place = Path(folder) / FOLDER
    if not (place / FACTS).is_file():
        got, fix = _without(Path(folder))
        raise CheckpointError(f"{folder}: expected a comparison with a method, got {got}; {fix}")
    saved = _read_facts(place / FACTS)
    tensors = read_tensors(place / ARRAYS, AGAIN)
    if digest_tensors(tensors) != saved["arrays"]:
        raise CheckpointError(
            f"{place}: expected {ARRAYS} and {FACTS} of one method, got files that do not belong "
            f"together; {AGAIN}"
        )

    name = saved["method"]
    refuse_removed(place, [name])
    if name not in PLAIN:
        known = ", ".join(PLAIN)
        raise CheckpointError(f"{place}: expected one of {known}, got {name!r}; {AGAIN}")
    start = PLAIN[name].start
    if start is not None:
        missing = start.missing()
        if missing is not None:
            raise OptionError(f"{folder}: {start.title}: {missing}")
    return Pick(
        name,
        rebuild(saved["fitted"], tensors),
        facts=saved["facts"],
        sizes=saved["sizes"],
        temperature=saved["temperature"],
        samples=saved["samples"],
    )


def splits_of(
    folder: str | Path,
    pick: Pick,
    trust_code: bool = False,
) -> Splits:
    """Return the data that a comparison was made on.

    Raises:
        TrustError: its recipe imports a file, and ``trust_code`` is not given.
        RecipeError, DataError: a source that cannot be read.
    """
    setting = _read_results(Path(folder))["setting"]
    source = setting["source"]
    if names_files(source):
        # The source is relative to where the comparison ran; the method knows the absolute path.
        source = pick.facts["source"]["path"]
    import_files([str(path) for path in comparison_code(folder)], Path.cwd(), trust_code)
    task = find_task(source, tuple(setting["changes"]), trust_code=trust_code)
    return Splits(make_recipe(task, REFERENCE))


def comparison_code(folder: str | Path) -> list[Path]:
    """Return the files that the recipe of a comparison and its changes import, without executing
    them.

    Raises:
        RecipeError: the recipe cannot be read.
    """
    setting = _read_results(Path(folder)).get("setting", {})
    return code_of(setting.get("source", ""), setting.get("changes", ()))


def refuse_comparison(folder: str | Path) -> None:
    """Refuse the folder of a comparison where the model of a run is needed.

    Raises:
        CheckpointError: a comparison, which holds at most a method without operators.
    """
    place = Path(folder)
    if not is_comparison(place):
        return
    verdict = _read_results(place).get("verdict") or {}
    fix = "train a run and name its folder"
    if verdict.get("pick") not in PLAIN and verdict.get("train"):
        fix = f"{verdict['train']}; then name its folder"
    raise CheckpointError(
        f"{folder}: expected a run, whose model has operators, got a comparison (its page is "
        f"{place / 'index.html'}); {fix}"
    )


def refuse_removed(place: Path, names: Iterable[str]) -> None:
    """Refuse the methods of earlier versions that :data:`REMOVED` lists.

    Raises:
        CheckpointError: one of ``names`` is such a method.
    """
    for name in names:
        if name in REMOVED:
            raise CheckpointError(
                f"{place}: expected methods of this version, got {name!r}, a pretrained start with "
                "linear attention; run `fredholm compare` with another --out, and `fredholm "
                "linearize` on a fine-tuned model for its linear attention"
            )


def _read_results(place: Path) -> dict[str, Any]:
    path = place / RESULTS
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error


def _read_facts(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        expected = saved.pop(CHECKSUM)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _damaged(path, error) from error
    if digest_json(saved) != expected:
        raise _damaged(path, "it does not match its checksum")
    if saved["format"] != FORMAT:
        raise CheckpointError(f"{path}: expected format {FORMAT}, got {saved['format']!r}; {AGAIN}")
    return saved


def _damaged(path: Path, why: object) -> CheckpointError:
    """Return the error for a file that cannot be read, in the words of :mod:`.tensor_files`."""
    return CheckpointError(f"{path} is corrupt or truncated ({why}); {AGAIN}")


def _without(place: Path) -> tuple[str, str]:
    """Return what a comparison without a method is, and how to go on."""
    verdict = _read_results(place).get("verdict")
    if not verdict:
        return "one that is not finished", "the same `fredholm compare` continues it"
    refuse_removed(place, [verdict["pick"]])
    if verdict["pick"] in PLAIN:
        return f"one whose method ({PLAIN[verdict['pick']].title}) is missing", AGAIN
    operator = f"one that recommends the operator {verdict['pick']}"
    return operator, f"train it in full first: {verdict['train']}; then name the run's folder"
