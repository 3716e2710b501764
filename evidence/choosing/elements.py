"""Tasks that should suit different operators, small enough for minutes on a core.

Six are rows of the decision table. The seventh, with only four operators, is not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fredholm.lab.compare import ComparedTask

from ..datasets.copy_memory import guessing

CLASSICAL = ("convolution", "gru", "lstm", "softmax")
OURS = ("ckconv", "itnet", "itnet_low_rank", "luna", "infsa")
RATES = (1e-3, 3e-3, 1e-2)
"""Candidates for every operator's learning rate, which is chosen on validation."""
SEEDS = 5
DELAY = 30
"""Steps after which the symbols of *copy* are repeated."""


@dataclass(frozen=True)
class Element:
    """A task and the condition under which a trained model is evaluated.

    Attributes:
        task: recipe, overrides, options of operators.
        question: a user's data in a few words; empty for a task that isn't in the decision table.
        shown: name of the score in the page.
        under: overrides of the evaluation on the test split, such as another sampling rate; empty
            for the condition of the training.
        checked: split and overrides that validate under the same condition.
        instead: overrides for operators that refuse the task otherwise, such as gaps on a grid
            instead of timestamps.
        without: operators that are left out because of their cost.
    """

    task: ComparedTask
    question: str
    shown: str
    under: tuple[str, ...] = ()
    checked: tuple[str, tuple[str, ...]] = ("val", ())
    instead: tuple[str, ...] = ()
    without: tuple[str, ...] = field(default=())

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def operators(self) -> list[str]:
        return [name for name in (*CLASSICAL, *OURS) if name not in self.without]


BACKBONE = ("model=backbone_nano", "optimizer.name=adamw", "optimizer.weight_decay=0.01")
VOWELS = (*BACKBONE, "training.epochs=40", "model.body.dropout=0.1", "model.encoder.causal=false")
HALF = ("data.options.every=2", "model.encoder.spacing=2")
FIELD = "train: 300, val: 60, test: 100, training: 8"

ELEMENTS = {
    element.name: element
    for element in (
        Element(
            ComparedTask(
                "lost",
                "Japanese vowels, half of the samples lost, the rest with their times",
                "ckcnn-japanese-vowels",
                (*VOWELS, "data.options={drop: 0.5, timed: true}"),
                {"ckconv": {"omega": 8.0}},
            ),
            "half of the samples of a regular clock are lost",
            "accuracy (%)",
            instead=("data.options={drop: 0.5}",),
        ),
        Element(
            ComparedTask(
                "rate",
                "Japanese vowels, tested at half the rate of the training",
                "ckcnn-japanese-vowels",
                VOWELS,
                {"ckconv": {"omega": 8.0}},
            ),
            "series are tested at half the rate of training",
            "accuracy (%)",
            under=HALF,
            checked=("val", HALF),
        ),
        Element(
            ComparedTask(
                "scattered",
                "digits at 32 scattered places of the plane",
                str(Path(__file__).with_name("scattered.yaml")),
                ("training.epochs=30",),
                {"ckconv": {"omega": 8.0}},
            ),
            "32 points in the plane, without an order",
            "accuracy (%)",
        ),
        Element(
            ComparedTask(
                "field",
                "Darcy flow, trained at 8 x 8, tested at 16 x 16",
                "itnet-darcy",
                (
                    *BACKBONE,
                    "model.encoder.sigma=1.0",
                    "data.name=darcy-generated",
                    f"data.options={{{FIELD}, resolution: 8}}",
                    "training.epochs=30",
                ),
                {"ckconv": {"omega": 8.0}},
            ),
            "a field is tested at twice the resolution of training (8 → 16)",
            "relative error",
            under=("data.options.resolution=16",),
            checked=("test", ("data.options.resolution=16", "data.options.seed=1")),
        ),
        Element(
            ComparedTask(
                "copy",
                f"ten symbols repeated after {DELAY} steps, in causal order",
                "ckcnn-copy-memory",
                (
                    *BACKBONE,
                    "model.head.pool=every",
                    "model.encoder.causal=true",
                    f"data.options={{delay: {DELAY}, train: 2000, val: 200, test: 500}}",
                    "training.epochs=20",
                ),
                {"ckconv": {"omega": 19.2}},
            ),
            f"ten symbols must be repeated {DELAY} steps later ({100 * guessing(DELAY):.1f} is "
            "guessing)",
            "accuracy of all points (%)",
        ),
        Element(
            ComparedTask(
                "long",
                "the sum of two marked numbers among 200",
                "ckcnn-adding",
                (
                    *BACKBONE,
                    "data.options={length: 200, train: 2000, val: 200, test: 500}",
                    "training.epochs=8",
                ),
                {"ckconv": {"omega": 14.55}},
            ),
            "two of 200 numbers must be found and added (1/6 is a constant answer)",
            "squared error",
            without=("itnet",),
        ),
        Element(
            ComparedTask(
                "clothes",
                "20,000 pictures of clothes at 16 x 16, 16 patches",
                "fashion-mnist",
                (
                    *BACKBONE,
                    "model.encoder.patch=4",
                    "data.image_size=16",
                    "data.limit=20000",
                    "training.epochs=8",
                    "training.ema_decay=null",
                ),
            ),
            "",
            "accuracy (%)",
            without=("lstm", "ckconv", "itnet_low_rank", "luna", "infsa"),
        ),
    )
}
ROWS = [element for element in ELEMENTS.values() if element.question]
"""The rows of the decision table."""
