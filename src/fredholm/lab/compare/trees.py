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
    r"""Sums of trees, :math:`f_k(x) = b_k + \sum_t v(\mathrm{leaf}_{tk}(x))` over the rounds t.

    At a node, x goes left where :math:`x_j \le s` for the node's feature j and threshold s. A
    missing value goes where ``missing_left`` says. Both children of a leaf are the leaf itself.

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
        """Return the trees of a fitted ``HistGradientBoostingClassifier`` or ``...Regressor`` whose
        features are all numeric.
        """
        rounds = model._predictors
        trees = []
        for each in rounds:
            trees += [tree.nodes for tree in each]
        sizes = [len(nodes) for nodes in trees]
        starts = np.cumsum([0, *sizes[:-1]])
        nodes = np.concatenate(trees)
        leaf = nodes["is_leaf"].astype(bool)

        # Children are numbered within their tree.
        itself = np.arange(len(nodes))
        offset = np.repeat(starts, sizes)
        left = np.where(leaf, itself, offset + nodes["left"])
        right = np.where(leaf, itself, offset + nodes["right"])
        features = np.where(leaf, 0, nodes["feature_idx"])
        roots = starts.reshape(len(rounds), -1)
        base = np.ravel(model._baseline_prediction)

        def tensor(values: np.ndarray, dtype: type) -> Tensor:
            return torch.from_numpy(values.astype(dtype))

        return cls(
            features=tensor(features, np.int64),
            thresholds=tensor(nodes["num_threshold"], np.float64),
            missing_left=tensor(nodes["missing_go_to_left"], bool),
            left=tensor(left, np.int64),
            right=tensor(right, np.int64),
            values=tensor(nodes["value"], np.float64),
            roots=tensor(roots, np.int64),
            base=tensor(base, np.float64),
            depth=int(nodes["depth"].max()),
        )

    def __call__(
        self,
        rows: Float[np.ndarray, "b features"],
    ) -> Float[Tensor, "b outputs"]:
        """Return f (B, outputs)."""
        x = torch.as_tensor(np.asarray(rows, np.float64))
        at = self.roots.flatten().expand(len(x), -1)
        for _ in range(self.depth):
            value = x.gather(1, self.features[at])
            below = value <= self.thresholds[at]
            goes_left = torch.where(
                value.isnan(),
                self.missing_left[at],
                below,
            )
            at = torch.where(
                goes_left,
                self.left[at],
                self.right[at],
            )

        # Adding one round after the other rounds exactly as scikit-learn does.
        result = self.base.expand(len(x), -1).clone()
        leaves = self.values[at].view(len(x), *self.roots.shape)
        for added in leaves.unbind(1):
            result += added
        return result
