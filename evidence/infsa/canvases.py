"""InfSA on all canvases, with equal conditions for all models.

All models have biases and heads of width 12, and their learning rate is chosen on validation. InfSA
has both depth rules. The claims were named before the first run.
"""

from __future__ import annotations

from dataclasses import replace

from fredholm.lab.training.build import build_dataset
from fredholm.lab.training.evaluation import load_run
from fredholm.lab.training.grid import Cell

from ..kit.claims import Claim, Sample, claims_tables, primary_texts
from ..kit.grid import Row, Section, run_sections, sections
from ..kit.page import load, spread, table
from ..kit.statistics import Rows, paired
from ..kit.subject import Options
from .evidence import judge

FILE, NAME = "infsa-canvas.json", "canvases"
CONSTANT = ("model.body.depth_rule=constant", "model.body.decay=0.95")
LINEAR = ("model.name=infvit_linear_pico", "model.body.heads=4")
PURE = ("model.name=infvit_pure_pico",)
VARIANTS = {
    "softmax": (),
    "pure, constant": (*PURE, *CONSTANT),
    "pure, power": PURE,
    "linear, constant": (*LINEAR, *CONSTANT),
    "linear, power": LINEAR,
}
RATES = tuple(f"optimizer.lr={rate}" for rate in (1e-3, 3e-3))
SECTIONS = {
    NAME: Section(
        "All canvases: biases, heads of width 12, two depth rules, the rate by validation",
        "infvit-softmax-canvas",
        (
            "data.val_fraction=0.02",
            "data.options={train: 58800, val: 1200, test: 2000, clutter: 6}",
            "data.image_size=42",
            "model.body.dim=48",
            "model.body.mlp_ratio=2.0",
            "training.epochs=20",
            "training.keep=last",
        ),
        VARIANTS,
        seeds=5,
        choices=dict.fromkeys(VARIANTS, RATES),
        brief=("training.epochs=5",),
    )
}


def quality(cell: Cell) -> Row:
    """Measure faithfulness and localisation of a trained model's attention."""
    model, _ = load_run(cell.place)
    return judge(model, build_dataset(cell.given, "test"))


def run(options: Options) -> None:
    """Train the missing models of all sections."""
    first = primary_texts(CLAIMS)
    run_sections(SECTIONS, FILE, replace(options, primary=first), also=quality)


def better(a: str, b: str, *path: str) -> Sample:
    """Return a sample: model ``a`` minus ``b``, per seed, in the number at a path of their rows."""

    def sample(found: dict[str, Rows]) -> list[float]:
        rows = []
        for row in found.get(NAME, []):
            # Only accuracies have numbers per test sample.
            answers = {}
            if path == ("accuracy",) and row.get("answers"):
                answers = {"x": row["answers"]["accuracy"]}
            rows.append({**row, "x": _at(row, path), "answers": answers})
        return paired(rows, a, b, "x")

    return sample


def _at(row: Row, path: tuple[str, ...]) -> float:
    """Return the number at a path of keys."""
    value = row
    for key in path:
        value = value[key]
    return float(value)  # type: ignore[arg-type]


ROC, PR, MASS = (
    ("localisation", "attention", "box", key, "mean") for key in ("roc_auc", "pr_auc", "mass")
)
MORF, LERF = (("degradation", "attention", key, "mean") for key in ("morf", "lerf"))
ACCURACY = ("accuracy",)
CLAIMS = [
    Claim(f"All canvases: {text}", paper, better(*args), primary=primary, digits=1)
    for text, paper, args, primary in (
        (
            "pure InfSA is more accurate than softmax",
            "85.1 over 81.5",
            ("pure, constant", "softmax", *ACCURACY),
            True,
        ),
        (
            "linear InfSA is more accurate than softmax",
            "84.7 over 81.5",
            ("linear, constant", "softmax", *ACCURACY),
            True,
        ),
        (
            "MoRF: pure above softmax",
            "71.7 over 42.6",
            ("pure, constant", "softmax", *MORF),
            True,
        ),
        (
            "ROC-AUC: pure above softmax",
            "77.3 over 53.8",
            ("pure, constant", "softmax", *ROC),
            True,
        ),
        (
            "LeRF: pure above softmax",
            "65.3 over 60.1",
            ("pure, constant", "softmax", *LERF),
            True,
        ),
        (
            "PR-AUC: pure above softmax",
            "75.5 over 56.2",
            ("pure, constant", "softmax", *PR),
            False,
        ),
        (
            "MoRF: linear above softmax",
            "76.0 over 42.6",
            ("linear, constant", "softmax", *MORF),
            False,
        ),
        (
            "ROC-AUC: linear above softmax",
            "76.6 over 53.8",
            ("linear, constant", "softmax", *ROC),
            False,
        ),
        (
            "LeRF: linear above softmax",
            "64.0 over 60.1",
            ("linear, constant", "softmax", *LERF),
            False,
        ),
        (
            "PR-AUC: linear above softmax",
            "76.1 over 56.2",
            ("linear, constant", "softmax", *PR),
            False,
        ),
        (
            "mass of the map inside the box: pure above softmax",
            "4.6, pictures",
            ("pure, constant", "softmax", *MASS),
            False,
        ),
        (
            "the power of the depth, pure, against the released rule",
            "γ^l, released γ",
            ("pure, power", "pure, constant", *ACCURACY),
            False,
        ),
    )
]


def section() -> str:
    """Return the part of docs/results/infsa.md."""
    found, file = sections(FILE), load(FILE)
    command = "`python -m evidence run infsa canvases`"
    if not found.get(NAME):
        return f"Not measured yet: {command}."
    lines = []
    for variant, rows in SECTIONS[NAME].by_variant(found[NAME]).items():
        cells = [spread(_at(row, path) for row in rows) for path in (ACCURACY, MORF, LERF)]
        seeds = ", ".join(f"{100 * _at(row, ROC):.0f}" for row in rows)
        # The choice is the last override.
        lines.append((variant, *cells, seeds, f"`{rows[0]['overrides'][-1]}`"))
    heads = "model", "accuracy (%)", "MoRF", "LeRF", "ROC-AUC, seed by seed", "chosen"
    ends = SECTIONS[NAME].at_an_end(found[NAME])
    parts = command, table(heads, lines), ends, claims_tables(CLAIMS, found, file)
    return "\n\n".join(filter(None, parts))
