"""Models with scikit-learn's interface, ``fit``, ``predict``, ``score``: the extra ``train``."""

from .lab.estimators import FredholmClassifier, FredholmRegressor

__all__ = ["FredholmClassifier", "FredholmRegressor"]
