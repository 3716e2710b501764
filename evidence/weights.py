"""Training, evaluation and packing of the small weights in the package, with their cards.

``python -m evidence run weights`` makes the missing ones; ``--only digits`` packs one again.
"""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fredholm.data import describe
from fredholm.files import write_text
from fredholm.lab.checkout import RECIPES
from fredholm.models.shipped import CARD, SHIPPED, list_pretrained, pretrained_card
from fredholm.training import evaluate, load_recipe, train

from .kit.page import DOCS, table, with_block
from .kit.subject import Options, Subject

PAGE = DOCS / "pretrained.md"
SUBJECT = Subject(__name__, runs={"train": ":train_all"}, pages={PAGE: ":page"})

LARGEST, LARGEST_TOGETHER = 1_000_000, 4_000_000
"""Largest number of bytes of the weights of one run, and of all runs."""
PACKED = ("recipe.yaml", "metrics.csv", "result.json", "calibration.json", "evaluation.json")
"""Files of a run beside its model."""


@dataclass(frozen=True)
class Weights:
    """The training of weights.

    Attributes:
        recipe: a built-in recipe's name.
        preset: the model's name.
        changes: overrides of the recipe.
    """

    recipe: str
    preset: str
    changes: tuple[str, ...] = ()

    @property
    def overrides(self) -> list[str]:
        return [f"model.name={self.preset}", *self.changes]


WEIGHTS = {
    "digits": Weights("digits", "itnet_nano"),
    "japanese-vowels": Weights("ckcnn-japanese-vowels", "ckcnn_small"),
    "fashion-mnist": Weights("fashion-mnist", "itnet_nano", ("training.epochs=8",)),
    "kjv-characters": Weights("itnet-kjv", "itnet_micro", ("training.epochs=1",)),
    # The low rank costs O(N) on the 256 cells, on which the exact form takes hours.
    "darcy": Weights(
        "itnet-darcy",
        "itnet_nano",
        (
            "data.name=darcy-generated",
            "operator={name: itnet_low_rank, rank: 8, width: 32, sigma: 1.0}",
        ),
    ),
}


def train_all(options: Options) -> None:
    """Train, measure and pack the weights of ``--only``, or those that are missing."""
    place = SHIPPED
    if options.small:
        place = options.results / "weights"
    for name in options.chosen(WEIGHTS):
        if (place / name / CARD).is_file() and not options.only:
            continue
        chosen = WEIGHTS[name]
        run = options.runs / name
        recipe = load_recipe(chosen.recipe, [*chosen.overrides, f"name={name}", *options.trial])
        # An interrupted run continues, and a finished one is packed again.
        train(recipe, run, resume=run.is_dir(), report=print)
        measured = evaluate(run)
        pack(name, run, place / name, measured)
    check_sizes(place)


def pack(name: str, run: Path, target: Path, measured: dict[str, Any]) -> None:
    """Copy a run without its checkpoints, and write its card."""
    # No files of an earlier pack may remain.
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    shutil.copytree(run / "model", target / "model", copy_function=shutil.copyfile)
    for file in PACKED:
        if (run / file).is_file():
            shutil.copyfile(run / file, target / file)
    # The folder of the training means nothing to users of the package.
    for file in ("result.json", "evaluation.json"):
        path = target / file
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts |= {key: f"runs/pretrained-{name}" for key in ("folder", "run") if key in facts}
        write_text(path, json.dumps(facts, indent=2) + "\n")

    facts = card(name, run, measured)
    write_text(target / CARD, json.dumps(facts, indent=2) + "\n")
    write_text(target / "README.md", card_text(name, facts))
    print(f"packed: {target}", flush=True)


def card(name: str, run: Path, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a model card."""
    chosen = WEIGHTS[name]
    data = describe(measured["dataset"])
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    score, value = score_of(measured)
    return {
        "preset": chosen.preset,
        "data": measured["dataset"],
        "title": data["title"],
        "source": data["source"],
        "licence": data["licence_data"],
        "metric": score,
        "score": round(value, 4),
        "samples": measured["n"],
        "parameters": result["parameters"],
        "epochs": result["epochs"],
        "command": shlex.join(["fredholm", "train", chosen.recipe, *chosen.overrides]),
    }


def score_of(measured: dict[str, Any]) -> tuple[str, float]:
    """Return the name and the value of an evaluation's first score, or of its loss for fields."""
    if measured.get("scores"):
        return next(iter(measured["scores"].items()))
    if "accuracy" in measured:
        return "accuracy", measured["accuracy"]
    return measured["loss_name"], measured["loss"]


def card_text(name: str, facts: dict[str, Any]) -> str:
    """Return a model card in Markdown."""
    return f"""# {name}

Weights of `{facts["preset"]}` ({facts["parameters"]:,} parameters), trained on {facts["data"]}.

- **Data**: {facts["title"]}. Source: {facts["source"]}. Licence of the data: {facts["licence"]}.
- **Score**: {facts["metric"]} {facts["score"]} on the {facts["samples"]:,} samples of the test split.
- **Training**: `{facts["command"]}`, {_epochs(facts["epochs"])}, one run, seed 0.{_place(name)}
- **Licence of the weights**: that of the package, Apache-2.0. The data are not included.
- **Meant for** examples, tests and teaching. One small run is no measure of the method, and the model
  has been tried on no other data.

Written by `python -m evidence run weights`; edit the code, not this card.
"""


def _place(name: str) -> str:
    """Return where the recipe lies, unless it is one of the package's own."""
    recipe = WEIGHTS[name].recipe
    if recipe not in RECIPES:
        return ""
    path = f"evidence/recipes/{recipe}.yaml"
    return f" Run it in a checkout: the recipe, `{path}`, is not in the package."


def _epochs(number: int) -> str:
    if number == 1:
        return "1 epoch"
    return f"{number} epochs"


def check_sizes(place: Path) -> None:
    """Refuse weights that are too large for the package."""
    # The limits keep the wheel small; cards and recipes are a few kilobytes.
    sizes = {path: path.stat().st_size for path in place.glob("*/model/*.safetensors")}
    large = []
    for path, size in sizes.items():
        if size > LARGEST:
            large.append(f"{path.parents[1].name}: {size:,} bytes")
    total = sum(sizes.values())
    if large or total > LARGEST_TOGETHER:
        found = ", ".join(large) or f"{total:,} together"
        raise SystemExit(
            f"expected at most {LARGEST:,} bytes each and {LARGEST_TOGETHER:,} together, got "
            f"{found}; take smaller models"
        )


def page() -> str:
    """Return the text of ``docs/pretrained.md`` with a new table of the cards."""
    rows = []
    for name in list_pretrained():
        facts = pretrained_card(name)
        size = (SHIPPED / name / "model" / "model.safetensors").stat().st_size
        score = f"{facts['metric'].replace('_', ' ')} {facts['score']}"
        rows.append(
            (
                f"`{name}`",
                f"`{facts['preset']}`",
                f"{facts['parameters']:,}",
                f"{size / 1000:.0f} kB",
                score,
                facts["licence"],
            )
        )
    heads = ("weights", "model", "parameters", "size", "test split", "licence of the data")
    return with_block(PAGE, "weights", table(heads, rows))
