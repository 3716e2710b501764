"""Measurements of Theorems 4 and 5 of ITNet's paper, the systems of Theorem 3 (a'), and witnesses of
its strict inclusions.
"""

from __future__ import annotations

from ..kit.page import DOCS, IMAGES, load, rounded, save, save_picture, with_block
from ..kit.subject import Options, Subject

SUBJECT = Subject(
    __name__,
    runs={"theorem4": ":run_theorem4", "theorem5": ":run_theorem5"},
    pages={DOCS / "unification.md": ":page"},
    draw=":draw",
)


def run_theorem4(options: Options) -> None:
    """Measure Theorem 4, in about three minutes on one thread."""
    from . import theorem4

    save(rounded(theorem4.measure(tiny=options.small)), "theorem4.json", options.results)


def run_theorem5(options: Options) -> None:
    """Measure Theorem 5, in about three minutes on one thread."""
    from . import theorem5

    save(rounded(theorem5.measure(tiny=options.small)), "theorem5.json", options.results)


def page() -> str:
    """Return the text of docs/unification.md with new tables."""
    from ..kit.page import insert
    from . import theorem4, theorem5

    text = with_block(DOCS / "unification.md", "theorem4", theorem4.table(load("theorem4.json")))
    return insert(text, "theorem5", theorem5.table(load("theorem5.json")))


def draw() -> None:
    """Draw docs/images/theorem4.png and theorem5.png."""
    from . import theorem4, theorem5

    for name, theorem in (("theorem4", theorem4), ("theorem5", theorem5)):
        found = load(f"{name}.json")
        save_picture(lambda theme, t=theorem, f=found: t.draw(theme, f), IMAGES / f"{name}.png")
