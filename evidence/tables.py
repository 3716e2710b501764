"""Processor time and memory of tables: ``python -m evidence.tables [FOLDER]``.

It writes 10⁶ rows of 20 columns and 1,000 rows of 8,000 columns as CSV. Each file is read,
described (like ``fredholm data describe``) and turned into a training set, in fresh processes with
one thread. The goals are 8 s and 500 MB for the rows and 5 s for the columns, without importing
torch except for the training set.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SIZES = {"rows": (10**6, 20), "columns": (1000, 8000)}
WAYS = {
    "read": """
from fredholm.lab.data.files.collect import collect
from fredholm.lab.data.files.reading import Reading
work = lambda path: collect(path, Reading())
""",
    "described": """
from fredholm.lab.training.own_files import describe
work = lambda path: describe(path, {})
""",
    "training set": """
from fredholm.lab.data.files import open_files
work = lambda path: open_files(path).dataset("train")
""",
}
MEASURE = """
import sys, time
from pathlib import Path

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

before, start = peak(), time.process_time()
work(Path(sys.argv[1]))
seconds = time.process_time() - start
torch = "with" if "torch" in sys.modules else "without"
print(f"{seconds:.1f} s of processor time, {peak():.0f} MB at most ({before:.0f} before), {torch} torch")
"""


def write(path: Path, rows: int, columns: int) -> None:
    """Write normal numbers of four digits, and a label of two words."""
    import pyarrow
    from pyarrow import csv

    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=rows).round(4) for i in range(columns - 1)}
    label = np.where(rng.normal(size=rows) > 0, "yes", "no")
    csv.write_csv(pyarrow.table({**table, "label": label}), path)


def main(folder: Path) -> None:
    """Measure both tables."""
    for name, size in SIZES.items():
        path = folder / f"{name}.csv"
        if not path.exists():
            write(path, *size)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        for way, script in WAYS.items():
            print(f"{name} {size}, {way}: ", end="", flush=True)
            command = [sys.executable, "-c", script + MEASURE, str(path)]
            subprocess.run(command, check=True, env=environment)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
