"""
Which operator suits a CSV file
===============================

A table is a file name away from a comparison: ``fredholm compare`` tries operators and simple
methods at equal parameters, in the minutes it is given, and recommends one, which may well be a
simple one. Here it gets a quarter of a minute; half an hour is usual.
"""

import contextlib
import json
import tempfile
from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_wine

from fredholm.__main__ import main

# %%
# The table: thirteen measurements of 178 wines by three growers.

wine = load_wine()
folder = Path(tempfile.mkdtemp())
columns = [*wine.feature_names, "grower"]
rows = np.column_stack([wine.data, wine.target])
np.savetxt(folder / "wine.csv", rows, delimiter=",", header=",".join(columns), comments="")

# %%
# The command, called from Python:

command = "compare wine.csv --label grower --minutes 0.25 --operators softmax,linear_attention"
with contextlib.chdir(folder):
    main([*command.split(), "--out", "compare"])

# %%
# The folder holds a page to read, ``index.html``, and the numbers:

choice = json.loads((folder / "compare" / "choice.json").read_text())
table = choice["verdict"]["table"]
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
