"""MiniROCKET on arrays of series, run by a separate interpreter with aeon.

``python minirocket.py IN.npz OUT.npz SEEDS [FIRST]`` reads the arrays ``train`` (N, points,
channels), ``labels`` (N,) and any others named ``test...``, with NaN for lost and padded samples.
It writes the predictions (seeds, N) for each of those, with seeds from FIRST (0) on. Gaps are
interpolated linearly, and every series is resampled to the length of the longest training series,
since the method needs equal lengths.
"""

from __future__ import annotations

import sys

import numpy as np

SHORTEST = 9
"""Smallest length of a series, which the method's kernels need."""


def filled(series, length: int):
    """Fill and resample series (N, points, C) to (N, C, length)."""
    result = np.zeros((len(series), series.shape[2], length))
    for number, one in enumerate(series):
        observed = np.flatnonzero(~np.isnan(one).all(1))
        last = observed[-1] + 1 if len(observed) else 1
        positions = np.linspace(0, last - 1, length)
        for channel in range(one.shape[1]):
            known = np.flatnonzero(~np.isnan(one[:last, channel]))
            if len(known):
                result[number, channel] = np.interp(positions, known, one[known, channel])
    return result


def main(source: str, target: str, seeds: int, first: int = 0) -> None:
    from aeon.classification.convolution_based import MiniRocketClassifier

    arrays = np.load(source)
    length = max(SHORTEST, int((~np.isnan(arrays["train"]).all(2)).sum(1).max()))
    train = filled(arrays["train"], length)
    found: dict[str, list[np.ndarray]] = {}
    for seed in range(first, first + seeds):
        model = MiniRocketClassifier(random_state=seed, n_jobs=1).fit(train, arrays["labels"])
        for name in arrays.files:
            if name.startswith("test"):
                found.setdefault(name, []).append(model.predict(filled(arrays[name], length)))
    np.savez(target, **{name: np.stack(values) for name, values in found.items()})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
