"""
A field at another resolution
=============================

Fields are expensive on fine grids, so one would like to train on a coarse one and predict on a fine
one. An ordinary convolution cannot: its nine taps mean another distance there. A kernel that is a
function of distance can. Here both learn Darcy's equation, from the permeability of a medium to
the pressure of what seeps through it, on 10 × 10 points, and are tested on up to 30 × 30.
"""

import numpy as np
from matplotlib import pyplot as plt
from scipy.sparse import coo_array
from scipy.sparse.linalg import spsolve

from fredholm.estimators import FredholmRegressor

rng = np.random.default_rng(0)

# %%
# Random smooth media, known at any resolution as sums of cosines:

WAVES = np.array([(i, j) for i in range(4) for j in range(4)])
SIZES = 2.2 / (1 + (WAVES**2).sum(1)) ** 0.75


def medium(amplitudes: np.ndarray, n: int) -> np.ndarray:
    """Return the logarithm of the permeability at the centres of an n × n grid."""
    centres = np.pi * (np.arange(n) + 0.5) / n
    cosines = np.cos(centres * WAVES[:, :1])[:, :, None] * np.cos(centres * WAVES[:, 1:])[:, None]
    return 1.2 * np.tanh((amplitudes[:, None, None] * cosines).sum(0))


def pressure(log_a: np.ndarray) -> np.ndarray:
    """Return u of -div(a grad u) = 10, zero on the border, by finite volumes."""
    a, n = np.exp(log_a), len(log_a)
    index = np.arange(n * n).reshape(n, n)
    diagonal = np.zeros((n, n))
    i, j, values = [index.ravel()], [index.ravel()], [diagonal.ravel()]
    for one, other in [(np.s_[:-1], np.s_[1:]), (np.s_[:, :-1], np.s_[:, 1:])]:
        flow = 2 * a[one] * a[other] / (a[one] + a[other])
        diagonal[one] += flow
        diagonal[other] += flow
        i += [index[one].ravel(), index[other].ravel()]
        j += [index[other].ravel(), index[one].ravel()]
        values += [-flow.ravel(), -flow.ravel()]
    for border in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        diagonal[border] += 2 * a[border]
    parts = [np.concatenate(part) for part in (values, i, j)]
    matrix = coo_array((parts[0], (parts[1], parts[2]))).tocsr()
    return spsolve(matrix, np.full(n * n, 10 / n**2)).reshape(n, n)


def samples(count: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return media and pressures on an n × n grid."""
    media = np.stack([medium(SIZES * rng.normal(size=len(WAVES)), n) for _ in range(count)])
    return media, np.stack([pressure(each) for each in media])


# %%
# Training, on the coarse grid:

X, y = samples(200, 10)
operators = {"convolution": "convolution", "continuous convolution": "ckconv"}
models = {
    name: FredholmRegressor(operator=operator, dim=32, depth=2, epochs=24, lr=0.005, random_state=0)
    for name, operator in operators.items()
}
for model in models.values():
    model.fit(X, y)

# %%
# The relative error on new media, at other resolutions:

sizes = [8, 10, 15, 20, 30]
tests = {n: samples(16, n) for n in sizes}
errors = {}
for name, model in models.items():
    errors[name] = []
    for media, truth in tests.values():
        difference = model.predict(media) - truth
        norms = np.linalg.norm(difference, axis=(1, 2)) / np.linalg.norm(truth, axis=(1, 2))
        errors[name].append(norms.mean())
    print(f"{name:23s}", "  ".join(f"{n}: {e:.3f}" for n, e in zip(sizes, errors[name])))

figure, axis = plt.subplots(figsize=(6, 3.2), layout="constrained")
for name, found in errors.items():
    axis.plot(sizes, found, "o-", label=name)
axis.axvline(10, color="gray", linestyle=":", label="trained on")
axis.set(xlabel="points along a side", ylabel="relative error", ylim=(0, None))
axis.legend()
plt.show()

# %%
# The most uneven of the media at 30 × 30 points, nine times as many as in training:

media, truth = tests[30]
chosen = media.std((1, 2)).argmax()
fields = {"medium": media[chosen], "pressure": truth[chosen]}
fields |= {name: model.predict(media[chosen, None])[0] for name, model in models.items()}
figure, axes = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
for axis, (name, field) in zip(axes, fields.items()):
    limits = {} if name == "medium" else {"vmin": 0, "vmax": truth[chosen].max()}
    axis.imshow(field, cmap="cividis" if name == "medium" else "viridis", **limits)
    axis.set_title(name, fontsize=10)
    axis.set(xticks=[], yticks=[])
plt.show()

# %%
# Attention transfers as well, and so does every other operator whose kernel is a function of
# positions; :doc:`/choosing` compares them on this equation with five seeds.
