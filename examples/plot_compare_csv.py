"""
Which operator suits a CSV file
===============================

A table is a file name away from a comparison: ``fredholm compare`` tries operators and simple
methods at equal parameters, in the minutes it is given, and recommends one, which may well be a
simple one. Here it gets a quarter of a minute; half an hour is usual.
"""

import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_wine

from fredholm.lab.compare import choose

# %%
# The table: thirteen measurements of 178 wines by three growers.

wine = load_wine()
folder = Path(tempfile.mkdtemp())
columns = [*wine.feature_names, "grower"]
rows = np.column_stack([wine.data, wine.target])
np.savetxt(folder / "wine.csv", rows, delimiter=",", header=",".join(columns), comments="")

# %%
# Two operators and the simple methods, for twelve seconds. The clock here is the processor's, so
# that a busy machine gives the same page; the command takes the one on the wall. ``fredholm compare
# wine.csv --label grower --minutes 30`` tries all operators, with five seeds.

with contextlib.chdir(folder):
    found = choose(
        "wine.csv",
        minutes=0.2,
        operators="softmax,linear_attention",
        changes=["data.label=grower"],
        out="compare",
        timer=time.process_time,
    )
print((folder / "compare" / "choice.md").read_text())

# %%
# The folder also holds a page for a browser, ``index.html``. The numbers as a picture:

table = found["verdict"]["table"]
names = [row["operator"].replace("_", " ") for row in table]

figure, axis = plt.subplots(figsize=(7, 1.2 + 0.5 * len(table)), layout="constrained")
places = np.arange(len(table))
axis.barh(places + 0.2, [row["val"] for row in table], 0.35, label="validation")
axis.barh(places - 0.2, [row["test"] for row in table], 0.35, label="test")
axis.set_yticks(places, names)
axis.set(xlim=(0.5, 1.0), xlabel="accuracy")
axis.invert_yaxis()
axis.legend(loc="center left", bbox_to_anchor=(1, 0.5))
plt.show()

# %%
# Thirty-six test samples cannot tell these methods apart, and the recommendation says so: look for
# *how sure*. Then :doc:`/your-data` goes on to training, predicting and explaining.
