"""A run's folder as a repository of the Hugging Face hub."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, OptionError, require
from ...files import read_state, storing, write_text
from ...linearization.hub import upload_folder
from ...models.pretrained import read_config, read_extra
from ..numbers import readable
from .folder import RunFolder

UPLOADED = (
    "recipe.yaml",
    "code",
    "source.json",
    "vocabulary.json",
    "model",
    "metrics.csv",
    "monitors.csv",
    "result.json",
    "calibration.json",
    "evaluation.json",
)
"""What is uploaded of a run: neither checkpoints nor curves nor exported programs."""


def push_to_hub(
    run: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    **options: Any,
) -> Any:
    """Upload a finished run as ``repo_id`` of the Hugging Face hub, with a model card.

    The downloaded repository is a run's folder again, to evaluate, explain and predict with. The
    recipe and ``source.json`` name the paths of your data; the data themselves stay here.

    Args:
        run: its folder.
        repo_id: ``owner/name``.
        private: whether a new repository is private; None takes the owner's setting.
        options: ``token``, and those of ``huggingface_hub.HfApi.upload_folder``.

    Raises:
        CheckpointError: no finished run.
        MissingExtraError: ``huggingface_hub`` is not installed.
    """
    require("huggingface_hub", "hf", "push_to_hub")

    with tempfile.TemporaryDirectory() as parent:
        folder = hub_folder(run, Path(parent) / "run", repo_id)
        return upload_folder(folder, repo_id, private=private, **options)


def hub_folder(run: str | Path, target: str | Path, repo_id: str = "OWNER/NAME") -> Path:
    """Write the folder that :func:`push_to_hub` uploads, without a network.

    Args:
        run: the run's folder.
        target: the new folder.
        repo_id: the name that the card gives for the download.

    Raises:
        CheckpointError: no finished run.
        OptionError: ``target`` exists.
    """
    folder, target = RunFolder(run), Path(target)
    if not folder.finished or not folder.model.is_dir():
        raise CheckpointError(
            f"{folder.root}: expected a finished run, got none; train it, or resume it with "
            "--resume, first"
        )
    if target.exists():
        raise OptionError(f"{target}: expected a new folder, got one that exists; name another")
    with storing(target):
        target.mkdir(parents=True)
        for name in UPLOADED:
            source = folder.root / name
            if source.is_dir():
                shutil.copytree(source, target / name)
            elif source.is_file():
                shutil.copyfile(source, target / name)
    write_text(target / "README.md", _card(folder, repo_id))
    return target


def _card(folder: RunFolder, repo_id: str) -> str:
    """Return a model card: the head that the hub reads, sizes, scores, and how to load the run."""
    result = folder.read_result()
    config = read_config(folder.model)
    scores = [f"| {name} | {readable(value)} |" for name, value in _scores(folder).items()]
    return f"""---
library_name: fredholm
tags:
- fredholm
---

# {result.name}

A model of the Python library `fredholm` with an encoder of {config.encoder.kind}:
{result.parameters:,} parameters, {result.epochs} epochs. `recipe.yaml` is the whole recipe.

| score | value |
|---|---|
{chr(10).join(scores)}
{_note_on_units(folder)}
```python
from huggingface_hub import snapshot_download
from fredholm.training import load_run

run = snapshot_download("{repo_id}")
model, folder = load_run(run)
```
"""


def _note_on_units(folder: RunFolder) -> str:
    """Return a paragraph on the units of losses where they differ; empty where they do not."""
    facts = read_extra(folder.model)
    if "units" not in facts:
        return ""
    _, scale = facts["units"]
    return f"""
The losses `train_loss` and `val_loss` are of standardised numbers: multiply them by
{readable(scale**2)} to compare them with the loss of an evaluation. All other scores are in the
units of the data.
"""


def _scores(folder: RunFolder) -> dict[str, float]:
    """Return the metrics of training, and the scores of the last evaluation by its split."""
    scores = dict(folder.read_result().metrics)
    if folder.evaluation.is_file():
        measured = read_state(folder.evaluation)
        of_split = {
            "loss": measured.get("loss"),
            "accuracy": measured.get("accuracy"),
            **(measured.get("scores") or {}),
        }
        split = measured.get("split", "test")
        for name, value in of_split.items():
            if value is not None:
                scores[f"{split}_{name}"] = value
    return {name: value for name, value in scores.items() if isinstance(value, int | float)}
