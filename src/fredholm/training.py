"""Training by its public names: read a recipe, train, resume, evaluate, predict, sweep.

Everything here needs the extra ``train``; names are imported when first used, so that ``import
fredholm.training`` is cheap and a missing package is named together with the extra that brings it.
"""

from .lab import training as _training

__all__ = _training.__all__  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str):
    return getattr(_training, name)
