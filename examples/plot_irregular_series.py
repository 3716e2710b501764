"""
Series with irregular times, at another rate
============================================

A sensor rarely delivers at the rate a model was trained on: values come at irregular times, some
are lost, a newer device reads twice as often. A model whose kernel is a function of *time* can be
asked at any times. Here one is trained on thirty irregular readings per series and tested on a
third as many and on four times as many.
"""

import numpy as np
from matplotlib import pyplot as plt

from fredholm.estimators import FredholmClassifier

rng = np.random.default_rng(0)

# sphinx_gallery_thumbnail_number = 2

# %%
# Three kinds of gait. A series is a pair (times, values), as the estimators take it.

GAITS = {"slow": 2.0, "brisk": 5.0, "limping": 2.0}


def walk(gait: str, readings: int) -> tuple[np.ndarray, np.ndarray]:
    """Return irregular times in [0, 6) and the readings of one sensor at them."""
    times = np.sort(rng.uniform(0, 6, readings))
    swing = np.sin(GAITS[gait] * times + rng.uniform(0, 6))
    if gait == "limping":
        swing = np.abs(swing)
    return times, (swing + 0.1 * rng.normal(size=readings))[:, None]


def walks(count: int, readings: int) -> tuple[list, np.ndarray]:
    """Return series and their gaits."""
    gaits = np.array(list(GAITS))[np.arange(count) % 3]
    return [walk(gait, readings) for gait in gaits], gaits


figure, axes = plt.subplots(1, 3, figsize=(9, 2.2), sharey=True, layout="constrained")
for axis, gait in zip(axes, GAITS):
    axis.plot(*walk(gait, 30), "o-", markersize=4, linewidth=1)
    axis.set(title=gait, xlabel="seconds")
plt.show()

# %%
# Two models of one size: CKConv, whose kernel is a network of the time between two readings, and a
# GRU, which goes from reading to reading.

X, y = walks(300, 30)
models = {
    name: FredholmClassifier(operator=name, dim=24, depth=1, epochs=20, lr=0.01, random_state=0)
    for name in ("ckconv", "gru")
}
for model in models.values():
    model.fit(X, y)

# %%
# The same models at other rates:

rates = [10, 15, 20, 30, 60, 120]
figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, model in models.items():
    scores = [model.score(*walks(150, readings)) for readings in rates]
    print(f"{name:6s}", "  ".join(f"{n}: {score:.2f}" for n, score in zip(rates, scores)))
    axis.plot(rates, scores, "o-", label=name)
axis.axvline(30, color="gray", linestyle=":", label="trained on")
axis.set(xscale="log", xlabel="readings per series", ylabel="accuracy", ylim=(0.2, 1.03))
axis.set_xticks(rates, rates)
axis.minorticks_off()
axis.legend()
plt.show()

# %%
# At the rate of the training both know the gaits. The GRU counts readings, so that twice as many in
# a second look to it like another gait. CKConv integrates over time: more readings make its sum
# more accurate, and only when too few are left does it miss what happens between them.
