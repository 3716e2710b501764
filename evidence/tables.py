"""Processor time and memory of reading tables: ``python -m evidence.tables [FOLDER]``.

Writes 10⁶ rows of 20 columns and 1,000 rows of 8,000 columns as CSV, and reads each in a process
of its own with one thread. Goals: 8 s and 500 MB, and 5 s.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SIZES = {"rows": (10**6, 20), "columns": (1000, 8000)}
READ = """
import resource, sys, time
from pathlib import Path
from fredholm.lab.data.files.collect import collect
from fredholm.lab.data.files.reading import Reading

peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
start, before = time.process_time(), peak()
samples = collect(Path(sys.argv[1]), Reading()).samples
seconds = time.process_time() - start
print(f"{samples.shape}: {seconds:.1f} s of processor time; {peak():.0f} MB at most, "
      f"{before:.0f} MB of them before reading")
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
        subprocess.run([sys.executable, "-c", READ, str(path)], check=True, env=environment)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
