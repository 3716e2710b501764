"""Capabilities of kernels that CKConv's forms ask for."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from ...integral import HiddenReadout
from ...integral.capabilities import capability


@capability
class LagFeatures(HiddenReadout):
    """The hidden units depend on the displacement alone, so that on a regular grid they are
    convolved by FFT.
    """

    @abstractmethod
    def lag_features(self, displacements: Tensor) -> Tensor:
        """h at displacements (L, p), (L, w)."""
