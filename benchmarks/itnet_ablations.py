"""Evidence on ITNet: ``python -m benchmarks.itnet_ablations SECTION ... [--runs runs/itnet]
[--seeds N]``.

Trains a recipe with each variant's overrides and each seed, evaluates it on the test split and adds
a row to docs/results/itnet.json after every run; rows that are there are not run again, and an
unfinished run is resumed. Sections are listed in ``benchmarks/itnet_sections.py``; ``python -m
benchmarks.itnet_report`` writes the page from the file.
"""

from __future__ import annotations

from pathlib import Path

from .itnet_sections import SECTIONS
from .sections import main

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "itnet.json"

if __name__ == "__main__":
    main(SECTIONS, RESULTS, "itnet_ablations", __doc__)
