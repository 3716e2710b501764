"""What ``python -m benchmarks.itnet_ablations`` runs: a recipe, what all its runs change, and the variants compared."""

from __future__ import annotations

from dataclasses import dataclass

from fredholm.kernels import ablations


@dataclass(frozen=True)
class Section:
    """A table: ``variants`` name the rows, each with its overrides of ``recipe`` beyond those that are ``common``."""

    title: str
    recipe: str
    common: tuple[str, ...]
    variants: dict[str, tuple[str, ...]]
    seeds: int = 3


def groups(*names: str) -> dict[str, tuple[str, ...]]:
    """Rows of the paper's Table 5, all thirteen or those named: which inputs the kernel reads."""
    known = ablations()
    return {name: (f"operator.groups=[{', '.join(known[name])}]",) for name in names or known}


CLOTHES = (
    "data.image_size=16",
    "model.name=itnet_nano",
    "model.patch=4",
    "training.epochs=2",
    "schedule.warmup_epochs=0.5",
)
REVIEWS = ("data.max_length=32", "training.epochs=4")
DIGITS = ("training.epochs=20",)

SECTIONS: dict[str, Section] = {
    "images": Section("Fashion-MNIST at 16 x 16, 16 patches", "fashion-mnist", CLOTHES, groups()),
    "text": Section(
        "Sentences from movie reviews",
        "reviews",
        REVIEWS,
        groups("full", "no product", "no distance", "no relative", "content only", "position only", "constant"),
    ),
    "digits": Section(
        "Digits: the kernel network, its features, rank and samples",
        "digits",
        DIGITS,
        {
            "reference": (),
            "w = 32": ("operator.width=32",),
            "w = 64": ("operator.width=64",),
            "w = 128": ("operator.width=128",),
            "depth 3": ("operator.depth=3",),
            "m = 4": ("operator.frequencies=4",),
            "m = 64": ("operator.frequencies=64",),
            "sigma = 1": ("operator.sigma=1.0",),
            "sigma = 10": ("operator.sigma=10.0",),
            "learned B": ("operator.learned_frequencies=true",),
            "low rank, r = 2 a head": ("operator=itnet_low_rank", "operator.rank=2", "operator.width=16"),
            "low rank, r = 8 a head": ("operator=itnet_low_rank", "operator.rank=8", "operator.width=16"),
            "low rank, r = 16 a head": ("operator=itnet_low_rank", "operator.rank=16", "operator.width=16"),
        },
        seeds=2,
    ),
}
