"""MiniROCKET on arrays of series: run by an interpreter that has aeon, apart from this project's.

``python minirocket.py IN.npz OUT.npz SEEDS [FIRST]``: of IN the arrays ``train`` (N, points,
channels), ``labels`` (N,) and any others named ``test...``, NaN where nothing is; into OUT the
predictions (seeds, N) of each of them, with seeds from FIRST (0) on. Gaps are filled by straight
lines, and every series is brought to the length of the longest training series, which the method
needs.
"""

from __future__ import annotations

import sys

import numpy as np

SHORTEST = 9  # samples that the method's kernels need


def filled(series, length: int):
    """Series (N, points, C) as (N, C, length)."""
    result = np.zeros((len(series), series.shape[2], length))
    for number, one in enumerate(series):
        there = np.flatnonzero(~np.isnan(one).all(1))
        last = there[-1] + 1 if len(there) else 1
        places = np.linspace(0, last - 1, length)
        for channel in range(one.shape[1]):
            known = np.flatnonzero(~np.isnan(one[:last, channel]))
            if len(known):
                result[number, channel] = np.interp(places, known, one[known, channel])
    return result


def main(given: str, out: str, seeds: int, first: int = 0) -> None:
    from aeon.classification.convolution_based import MiniRocketClassifier

    arrays = np.load(given)
    length = max(SHORTEST, int((~np.isnan(arrays["train"]).all(2)).sum(1).max()))
    train, found = filled(arrays["train"], length), {}
    for seed in range(first, first + seeds):
        model = MiniRocketClassifier(random_state=seed, n_jobs=1).fit(train, arrays["labels"])
        for name in arrays.files:
            if name.startswith("test"):
                found.setdefault(name, []).append(model.predict(filled(arrays[name], length)))
    np.savez(out, **{name: np.stack(values) for name, values in found.items()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
