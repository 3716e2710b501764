"""Linear attention whose features are a bank's: from the bank's scalars, so that a GPU need not
store the features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ...quadrature import Quadrature
from ..backend import checkable, choose_backend
from ..feature_map import Bank, scalar_bank
from ..tuning import power_of_two
from .chunked import check_order, linear_attention
from .limits import linear_attention_refusal

BANKED_ATTENTION = "attention with a bank's features"
"""The op's name in messages."""


class Banks(NamedTuple):
    """The networks that make features of scalars.

    Attributes:
        query, key: ψ of queries and of keys, with one set or H, and as many channels L. The same
            object for both is one bank.
        activation, nonneg: of both, see :func:`scalar_bank`.
    """

    query: Bank
    key: Bank
    activation: str = "relu"
    nonneg: bool = True

    def to(self, dtype: torch.dtype) -> Banks:
        """Return the banks in another precision."""
        query = Bank(*(part.to(dtype) for part in self.query))
        key = Bank(*(part.to(dtype) for part in self.key))
        return self._replace(query=query, key=key)


@checkable(BANKED_ATTENTION)
def banked_attention(
    query: Float[Tensor, "b h m q"],
    key: Float[Tensor, "b h m k"],
    value: Float[Tensor, "b h k c"],
    quadrature: Quadrature,
    banks: Banks,
    *,
    floor: float | None,
    chunk: int = 64,
    backend: str = "auto",
) -> Float[Tensor, "b h q c"]:
    r"""Return :func:`linear_attention` with features :math:`\phi(u)_{l,i} = \psi_l(u_i)`, where ψ
    are the channels of :func:`scalar_bank`.

    Args:
        query, key: scalars u, M per point.
        value, quadrature, floor, chunk: see :func:`linear_attention`.
        banks: ψ of queries and of keys.
        backend: see :mod:`fredholm.ops.backend`. The Triton kernels evaluate the networks in
            registers, once more in the backward, whatever the activation, and choose their own
            chunks.

    Cost: O(N·M·L·(h + c)) time; memory O(N·(M + c)) in Triton's kernels and O(N·(M·L + c)) in
    PyTorch's operations.

    Raises:
        BackendError: a requested backend that cannot run.
        StrategyError: see :func:`linear_attention`.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> one = torch.ones(1, 1, 1)
        >>> bank, u = Bank(one, 0 * one, one[None], 0 * one), torch.ones(1, 1, 1, 3)
        >>> value, quadrature = torch.ones(1, 1, 3, 2), Domain.line(3).quadrature()
        >>> out = banked_attention(u, u, value, quadrature, Banks(bank, bank), floor=1e-6)
        >>> out[0, 0, 0].tolist()
        [1.0, 1.0]
    """
    check_order(quadrature)
    dtype = torch.promote_types(query.dtype, torch.float32)

    def refusal() -> str | None:
        # The kernels pad directions and channels to powers of two.
        features = power_of_two(query.shape[2], 1) * power_of_two(banks.query.channels, 1)
        pairs = value.shape[0] * value.shape[1]
        return linear_attention_refusal(
            dtype,
            features,
            value.shape[3],
            pairs,
        )

    if choose_backend(backend, BANKED_ATTENTION, value.device, refusal) == "triton":
        # Imported here, because Triton may not be installed.
        from .triton import attend

        return attend(
            query.to(dtype),
            key.to(dtype),
            value,
            quadrature,
            floor,
            banks.to(dtype),
        )

    def features(u: Tensor, bank: Bank) -> Tensor:
        """Return φ at scalars (B, H, M, N), (B, H, N, L·M)."""
        b, h, m, n = u.shape
        if bank.weight.shape[0] > 1:
            rows = u.reshape(b, h, m * n)
        else:
            # One set for all heads: they are further rows.
            rows = u.reshape(b * h, 1, m * n)
        y = scalar_bank(
            rows.to(dtype),
            bank,
            activation=banks.activation,
            nonneg=banks.nonneg,
        )
        return y.reshape(b, h, bank.channels * m, n).mT

    return linear_attention(
        features(query, banks.query),
        features(key, banks.key),
        value,
        quadrature,
        floor=floor,
        chunk=chunk,
        backend="torch",
    )
