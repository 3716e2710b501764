"""Trees of gradient boosting as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from .fitted import Part


@dataclass(frozen=True, eq=False)
class Trees(Part):
    r"""Sums of trees: :math:`f_k(x) = b_k + \sum_t v(\mathrm{leaf}_{tk}(x))`, the leaves in the
    order of the rounds t.

    At a node x goes left where :math:`x_j \le s` for its feature j and threshold s; what is missing
    goes where ``missing_left`` says. Both ways of a leaf lead to itself.

    Attributes:
        features, thresholds, missing_left, left, right, values: of each node of all trees.
        roots: (rounds, outputs), the first node of each tree.
        base: (outputs,) b.
        depth: of the deepest tree.
    """

    features: Tensor
    thresholds: Tensor
    missing_left: Tensor
    left: Tensor
    right: Tensor
    values: Tensor
    roots: Tensor
    base: Tensor
    depth: int

    @classmethod
    def of(cls, model: Any) -> Trees:
        """Those of a fitted ``HistGradientBoostingClassifier`` or ``...Regressor`` whose features
        are numbers.
        """
        rounds = [[tree.nodes for tree in each] for each in model._predictors]
        sizes = [len(nodes) for each in rounds for nodes in each]
        starts = np.cumsum([0, *sizes[:-1]])
        nodes = np.concatenate([nodes for each in rounds for nodes in each])
        own, first = np.arange(len(nodes)), np.repeat(starts, sizes)
        leaf = nodes["is_leaf"].astype(bool)
        left, right = (np.where(leaf, own, first + nodes[side]) for side in ("left", "right"))
        return cls(
            torch.from_numpy(np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64)),
            torch.from_numpy(nodes["num_threshold"].astype(np.float64)),
            torch.from_numpy(nodes["missing_go_to_left"].astype(bool)),
            torch.from_numpy(left.astype(np.int64)),
            torch.from_numpy(right.astype(np.int64)),
            torch.from_numpy(nodes["value"].astype(np.float64)),
            torch.from_numpy(starts.reshape(len(rounds), -1).astype(np.int64)),
            torch.from_numpy(np.ravel(model._baseline_prediction).astype(np.float64)),
            int(nodes["depth"].max()),
        )

    def __call__(self, rows: Float[np.ndarray, "b features"]) -> Float[Tensor, "b outputs"]:
        """f (B, outputs)."""
        x = torch.as_tensor(np.asarray(rows, np.float64))
        at = self.roots.flatten().expand(len(x), -1)
        for _ in range(self.depth):
            value = x.gather(1, self.features[at])
            goes = torch.where(value.isnan(), self.missing_left[at], value <= self.thresholds[at])
            at = torch.where(goes, self.left[at], self.right[at])
        result = self.base.expand(len(x), -1).clone()
        for leaves in self.values[at].view(len(x), *self.roots.shape).unbind(1):
            result += leaves  # one round after the other, so that rounding is scikit-learn's
        return result
