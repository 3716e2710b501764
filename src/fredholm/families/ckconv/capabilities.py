"""The capability of kernels that CKConv's forms need."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from ...integral import HiddenReadout
from ...integral.capabilities import capability


@capability
class LagFeatures(HiddenReadout):
    """Hidden units that depend on the displacement alone: on a regular grid they are convolved."""

    @abstractmethod
    def lag_features(self, displacements: Tensor) -> Tensor:
        """Return h at displacements (L, p), (L, w)."""
