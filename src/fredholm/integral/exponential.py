"""Feature maps whose features are exponentials, and the directions that random ones draw."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..ops.backend import at_least_single, full_precision
from .feature_map import FeatureMap


class ExponentialMap(FeatureMap):
    r"""Base of maps whose features are exponentials, :math:`\phi = e^{\epsilon(x)}`; a subclass
    defines ``exponents(x)``.

    Where attention is normalised, features of a query may have any factor of their own, and those
    of all keys any common one:

    .. math:: \frac{\phi(q)\cdot\sum_j \phi(k_j) v_j}{\phi(q)\cdot\sum_j \phi(k_j)} =
        \frac{e^{\epsilon(q) - a}\cdot\sum_j e^{\epsilon(k_j) - c}\, v_j}{e^{\epsilon(q) -
        a}\cdot\sum_j e^{\epsilon(k_j) - c}}

    With a and c the largest exponents no exponential overflows, and not all of them vanish. The
    result is the same as long as the sum below, which has been divided by :math:`e^{a + c}`, is
    above a floor of 1e-17 (:func:`.floor_of`): the largest exponents of a query and of its keys may
    lie in different features by up to 39. Beyond, answers tend to zero.
    """

    divides = True

    def exponents(self, x: Tensor) -> Tensor:
        """Return ε of x, (B, H, N, r)."""
        raise NotImplementedError(f"{type(self).__name__} must define exponents(x)")

    def features_of(self, x: Tensor) -> Tensor:
        return self.exponents(x).exp()

    def _exponents(self, x: Tensor) -> Tensor:
        """Return ε of x in float32 or better, outside autocast."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        with full_precision(x):
            return self.exponents(x.to(dtype))

    def of_queries(self, x: Float[Tensor, "b h n e"]) -> Float[Tensor, "b h n r"]:
        """Return features of queries, each query's divided by its own largest one."""
        features, _ = self.parts_of_queries(x)
        return features

    def parts_of_queries(
        self,
        x: Float[Tensor, "b h n e"],
    ) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "b h n"]]:
        """Return features of queries, each query's divided by its own largest one, :math:`e^a`, and
        a.
        """
        exponents = self._exponents(x)
        # a cancels in the quotient, so that no gradient goes through it.
        largest = exponents.detach().amax(-1, keepdim=True)
        features = (exponents - largest).exp()
        return features, largest[..., 0]

    def of_keys(
        self,
        x: Float[Tensor, "b h n e"],
        valid: Bool[Tensor, "#b n"] | None = None,
        least: Tensor | None = None,
    ) -> tuple[Float[Tensor, "b h n r"], Float[Tensor, "b h"]]:
        """Return features of keys divided by :math:`e^c`, and c of each sample and head: the
        largest exponent of a key that is not padding.

        In causal order all keys of a call share c too, which changes nothing up to e^39 (e^78 where
        query and keys are largest in the same feature): queries before a key further above all that
        they see answer zero, unless it comes in a later call, of ``step`` or ``prefill``. Before
        the first key that is not padding c is -∞, and features are zero.

        Args:
            x: projected keys.
            valid: keys that are not padding, or None where all are real.
            least: c of the keys before, where keys come in parts; c is then no smaller.
        """
        exponents = self._exponents(x)

        # c is a factor of both sums, so that no gradient goes through it.
        real = exponents.detach()
        if valid is not None:
            real = real.masked_fill(~valid[:, None, :, None], -torch.inf)
        shift = real.amax((-2, -1))
        if least is not None:
            shift = torch.maximum(shift, least)

        # Where there is no real key yet, -∞ - (-∞) would be NaN.
        subtracted = torch.where(shift > -torch.inf, shift, 0.0)
        exponents = exponents - subtracted[..., None, None]
        if valid is not None:
            # Padding may lie above c, where its exponential overflows.
            exponents = torch.where(valid[:, None, :, None], exponents, -torch.inf)
        return exponents.exp(), shift


def orthogonal_draws(rows: int, width: int) -> Tensor:
    """Draw Gaussian vectors (rows, width) that are orthogonal within blocks of ``width``, with the
    norms of independent ones.

    O(rows·width²): one QR decomposition per block.

    Reference: Choromanski et al. 2021.

    Example:
        >>> w = orthogonal_draws(4, 4)
        >>> bool((w @ w.T).fill_diagonal_(0).abs().max() < 1e-5)
        True
    """
    dtype = torch.get_default_dtype()
    blocks = []
    for _ in range(math.ceil(rows / width)):
        # Half precisions have no QR decomposition.
        draws = torch.randn(width, width, dtype=at_least_single(dtype))
        q, r = torch.linalg.qr(draws)
        # The signs of R's diagonal depend on the algorithm. With positive ones Q is uniform.
        uniform = q * r.diagonal().sign()
        blocks.append(uniform.T)
    directions = torch.cat(blocks)[:rows].to(dtype)
    norms = torch.randn(rows, width).norm(dim=1, keepdim=True)
    return directions * norms
