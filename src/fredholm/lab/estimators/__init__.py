"""Models as scikit-learn has them: ``fit``, ``predict``, ``score``.

Samples are in memory, and of any kind that the command line reads from files; model and training
are those of ``fredholm train`` on such files. Needs the extra ``train``.
"""

from ...errors import require

for _package in ("sklearn", "lightning", "pydantic"):  # before anything below imports them
    require(_package, "train", "fredholm.estimators")

from .classifier import FredholmClassifier
from .regressor import FredholmRegressor

__all__ = ["FredholmClassifier", "FredholmRegressor"]
