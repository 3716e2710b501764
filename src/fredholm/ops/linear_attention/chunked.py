"""Linear attention with a cost linear in the number of points: two sums over all keys, or in causal
order chunks with the sums of all chunks before.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...errors import StrategyError
from ...quadrature import Quadrature
from ..backend import at_least_single, cast, checkable, choose_backend, full_precision
from .limits import linear_attention_refusal
from .prefix_sums import prefix_sums

LINEAR_ATTENTION = "linear attention"
"""The op's name in messages."""

SMALLEST_KEY = 1e-17
"""Bound of a divisor in :func:`at_scale`."""


@checkable(LINEAR_ATTENTION)
def linear_attention(
    query: Float[Tensor, "#b #h q r"],
    key: Float[Tensor, "#b #h k r"],
    value: Float[Tensor, "#b #h k c"],
    quadrature: Quadrature,
    *,
    floor: float | None,
    positive: bool = False,
    chunk: int = 64,
    backend: str = "auto",
) -> Float[Tensor, "b h q c"]:
    r"""Return linear attention against a measure, with φ and ψ features of queries and keys:

    .. math:: y_i = \frac{s_i\, \phi_i^T \sum_j m_j\, \psi_j v_j^T}
        {s_i\, \phi_i^T \sum_j m_j\, \psi_j}

    or the numerator alone where ``floor`` is None. In triangular order the sums end at i. Points
    then go in chunks: pairs inside a chunk, and one moment (r × c) for all chunks before. Moments
    accumulate in float32 or better, also under autocast.

    Args:
        query, key: φ and ψ.
        value: v.
        quadrature: masses m, scale s, padding, a triangular order and in it a decay; pair weights
            have no linear form.
        floor: of the denominator, see :func:`guarded`.
        positive: no feature is negative, so that the denominator needs no look at its sign.
        chunk: points in a chunk; Triton's kernels choose their own.
        backend: see :mod:`fredholm.ops.backend`.

    Cost: O(N·r·c) time; memory O(N·(r + c)), and in triangular order O(N·(r·c / chunk + chunk))
    more.

    Raises:
        BackendError: a requested backend that cannot run.
        StrategyError: pair weights, or an order in which the queries are not the keys.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> u = torch.ones(1, 1, 3, 2)
        >>> quadrature = Domain.line(3, causal=True).quadrature()
        >>> linear_attention(u, u, u, quadrature, floor=1e-6)[0, 0, 0].tolist()
        [1.0, 1.0]
    """
    check_order(quadrature)
    if quadrature.decay is not None:
        # Imported here, because it is written with this file's functions.
        from .decayed import decayed_attention

        return decayed_attention(
            query,
            key,
            value,
            quadrature,
            floor=floor,
            chunk=chunk,
            backend=backend,
        )
    dtype = at_least_single(query.dtype)

    def refusal() -> str | None:
        batch = max(query.shape[0], key.shape[0], value.shape[0])
        heads = max(query.shape[1], key.shape[1], value.shape[1])
        return linear_attention_refusal(
            dtype,
            query.shape[3],
            value.shape[3],
            batch * heads,
        )

    if choose_backend(backend, LINEAR_ATTENTION, value.device, refusal) == "triton":
        # Imported here, because Triton may not be installed.
        from .triton import attend

        return attend(query, key, value, quadrature, floor)

    by_pairs = wants_pairs(query, key, value, quadrature.triangular, chunk)
    without_chunks = by_pairs or not quadrature.triangular
    if without_chunks and _fits_one_batch(query, key, value, quadrature):
        return _as_one_batch(
            query,
            key,
            value,
            quadrature,
            floor,
            positive,
            by_pairs,
        )
    if by_pairs:
        return _by_pairs(query, key, value, quadrature, floor)
    if not quadrature.triangular:
        moment = Moment(quadrature, floor)
        moment.add(slice(None), key, value)
        return moment.respond(slice(None), query)

    with full_precision(query):
        query = cast(query, dtype)
        value = with_ones(cast(value, dtype), floor)
        mass = cast(quadrature.mass, dtype)[:, None, :, None]
        weighted_key = cast(key, dtype) * mass
        sums = prefix_sums(query, weighted_key, value, chunk)
        return divided_by_last(sums.out, query_scale(quadrature, dtype), floor)


def query_scale(quadrature: Quadrature, dtype: torch.dtype) -> Tensor | None:
    """Return the scale s of queries as a factor of responses, (1 | B, 1 | H, Nq, 1), or None."""
    if quadrature.scale is None:
        return None
    return cast(quadrature.scale, dtype)[..., None]


def check_order(quadrature: Quadrature) -> None:
    """Refuse pair weights and an order across two domains, which leave no linear form.

    Raises:
        StrategyError: for such a quadrature.
    """
    other_order = quadrature.query_time is not None and not quadrature.triangular
    if quadrature.density is not None or other_order:
        raise StrategyError(
            "linear attention has no linear form for pair weights or an order across two domains"
        )


# --- choices by size ----------------------------------------------------------------------------


def wants_pairs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ordered: bool,
    chunk: int,
) -> bool:
    """Return whether all pairs cost less than a moment, or are a single chunk of an order.

    N keys cost N·(r + c) products per query in pairs and 2·r·c in a moment. Under tracing the
    answer is no: it would fix the length of the traced program.
    """
    if torch.compiler.is_compiling():
        return False
    n, features = key.shape[2:]
    if ordered:
        return n <= chunk
    channels = value.shape[3]
    return n * (features + channels) <= 2 * features * channels


def wants_pieces(like: Tensor, longest: int, piece: int) -> bool:
    """Return whether :func:`.attend_in_pieces` is the better form: inference on a processor over
    more than ``piece`` points.

    A backward pass would take every piece apart again, traced code would fix a length, and a GPU is
    fast with many points.

    Args:
        like: a tensor of the call's device.
        longest: the larger number of queries and keys.
        piece: points in a piece.

    Example:
        >>> with torch.no_grad():
        ...     wants_pieces(torch.ones(1), 100, 64), wants_pieces(torch.ones(1), 10, 64)
        (True, False)
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return longest > piece and like.device.type == "cpu"


# --- denominators ---------------------------------------------------------------------------------


def guarded(denominator: Tensor, floor: float | Tensor) -> Tensor:
    """Return the denominator, or ``floor`` where its magnitude is below ``floor``.

    Features that are all zero then give a response of zero, and never NaN.

    Example:
        >>> guarded(torch.tensor([2.0, 0.0, -3.0]), 0.5).tolist()
        [2.0, 0.5, -3.0]
    """
    small = denominator.abs() < floor
    if isinstance(floor, Tensor):
        return torch.where(small, floor, denominator)
    return denominator.masked_fill(small, floor)


def with_ones(value: Tensor, floor: float | None) -> Tensor:
    """Append a channel of ones where there is a denominator, which is its integral."""
    if floor is None:
        return value
    return F.pad(value, (0, 1), value=1.0)


def divided_by_last(
    out: Tensor,
    scale: Tensor | None,
    floor: float | None,
    positive: bool = False,
) -> Tensor:
    """Return integrals times their scale, over the last of them where there is a denominator."""
    if scale is not None:
        out = out * scale
    if floor is None:
        return out

    numerator, denominator = out.split_with_sizes((out.shape[-1] - 1, 1), -1)
    if positive:
        return numerator / denominator.clamp_min(floor)
    return numerator / guarded(denominator, floor)


def _normalised(
    sums: Tensor,
    total: Tensor,
    factor: Tensor | None,
    floor: float | None,
) -> Tensor:
    """Return sums over their total, each times a factor; without a floor the sums times the factor.

    The factor cancels except where the floor replaces the denominator.
    """
    if factor is None:
        if floor is None:
            return sums
        return sums * guarded(total, floor).reciprocal()
    if floor is None:
        return sums * factor
    return sums * (factor / guarded(total * factor, floor))


def at_scale(query: Tensor, largest: Tensor) -> Tensor:
    """Return features of queries over the largest feature of the keys that each one sees.

    All keys were divided by one factor, their largest feature. The response does not depend on it,
    but the denominator's floor would cut off a query whose own keys are small beside a later one.
    The divisor is at least 1e-17: a key's gradient is a product of such a query and of the
    denominator's reciprocal, each of which may be as large as 1e17, and float32 ends at 3e38.

    Args:
        query: (B, H, Nq, r).
        largest: (B, H, Nq).

    Example:
        >>> at_scale(torch.ones(1, 1, 1, 2), torch.full((1, 1, 1), 0.5)).tolist()
        [[[[2.0, 2.0]]]]
    """
    divisor = largest.clamp_min(SMALLEST_KEY).to(query.dtype)
    return query / divisor[..., None]


# --- all pairs ------------------------------------------------------------------------------------


def _by_pairs(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    quadrature: Quadrature,
    floor: float | None,
) -> Tensor:
    """Return :func:`linear_attention` through the inner product of each pair, (B, H, Nq, Nk)."""
    dtype = at_least_single(query.dtype)
    with full_precision(query):
        query = cast(query, dtype)
        key = cast(key, dtype)
        value = cast(value, dtype)
        mass = cast(quadrature.mass, dtype)[:, None, :, None]
        factor = query_scale(quadrature, dtype)
        if not quadrature.equal or quadrature.valid is not None:
            key = key * mass
        elif factor is None:
            # Equal masses are one factor of all pairs.
            factor = mass[:, :, :1]
        else:
            factor = mass[:, :, :1] * factor

        pairs = query @ key.mT
        if quadrature.triangular:
            pairs = pairs.tril()
        return _normalised(
            pairs @ value,
            pairs.sum(-1, keepdim=True),
            factor,
            floor,
        )


# --- small problems -------------------------------------------------------------------------------


def _fits_one_batch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    quadrature: Quadrature,
) -> bool:
    """Return whether samples and heads can be one dimension: nothing is shared between them, all
    masses are one number, and neither dtypes nor a trace stand in the way.
    """
    all_masses_equal = quadrature.equal and quadrature.valid is None
    if not all_masses_equal or torch.compiler.is_compiling():
        return False

    dtype = query.dtype
    mass = quadrature.mass
    if dtype != at_least_single(dtype) or not key.dtype == value.dtype == mass.dtype == dtype:
        return False

    # Samples of different masses or scales, or heads of different scales, need their dimensions.
    if mass.shape[0] > 1:
        return False
    scale = quadrature.scale
    if scale is not None and scale.shape[0] * scale.shape[1] > 1:
        return False
    return query.shape[:2] == key.shape[:2] == value.shape[:2]


def _as_one_batch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    quadrature: Quadrature,
    floor: float | None,
    positive: bool,
    by_pairs: bool,
) -> Tensor:
    """Return :func:`linear_attention` with samples and heads as one dimension.

    On small problems this takes half the time, because a product of four dimensions is expanded and
    reshaped first.
    """
    batch, heads, _, channels = value.shape
    shape = (batch, heads, query.shape[2], channels)
    query = query.flatten(0, 1)
    key = key.flatten(0, 1)
    value = value.flatten(0, 1)

    with full_precision(query):
        total = None
        if by_pairs:
            pairs = torch.bmm(query, key.mT)
            if quadrature.triangular:
                pairs = pairs.tril()
            sums = torch.bmm(pairs, value)
            total = pairs.sum(2, keepdim=True)
        else:
            moment = _keys_times_values(key, value, torch.bmm)
            sums = torch.bmm(query, moment)
            if floor is not None:
                sum_of_keys = key.sum(1).unsqueeze(2)
                total = torch.bmm(query, sum_of_keys)

        if floor is None or total is None:
            out = sums * _common_factor(quadrature)
            return out.view(shape)
        smallest = _smallest_total(quadrature, floor)
        if positive:
            denominator = total.maximum(smallest)
        else:
            denominator = guarded(total, smallest)
        return (sums / denominator).view(shape)


def _keys_times_values(
    key: Tensor,
    value: Tensor,
    multiply: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """Return Σ_j ψ_j v_jᵀ, (…, r, c), by the product ``multiply`` of matrices.

    The order of the factors decides how the gradient of the keys lies in memory. It should lie as
    the keys do, or the backward of the features copies it.
    """
    if key.stride(-1) == 1:
        return multiply(value.mT, key).mT
    return multiply(key.mT, value)


def _common_factor(quadrature: Quadrature) -> Tensor:
    """Return m s of each query, its scale times the one mass of all points, (1, 1 | Nq, 1).

    It is a factor of all the query's pairs. :func:`_fits_one_batch` has made sure that masses are
    equal, and that all samples and heads have the same mass and scale.
    """
    mass = quadrature.mass[:, :1, None]
    if quadrature.scale is None:
        return mass
    return mass * quadrature.scale[0, :, :, None]


def _smallest_total(quadrature: Quadrature, floor: float) -> Tensor:
    """Return floor / (m s): the floor of a sum of features whose integral has the floor ``floor``.

    It is stored with the quadrature for as long as nobody writes to its masses.
    """
    mass = quadrature.mass
    if mass.requires_grad or mass.is_inference() or type(mass) is not Tensor:
        return floor / _common_factor(quadrature)

    version = (mass._version, floor)
    stored_version, smallest = quadrature.__dict__.get("_smallest_total", (None, None))
    if smallest is None or stored_version != version:
        # The result may meet autograd in a later call, where inference tensors are refused.
        with torch.inference_mode(False):
            smallest = floor / _common_factor(quadrature)
        quadrature.__dict__["_smallest_total"] = version, smallest
    return smallest


# --- sums that all queries share ------------------------------------------------------------------


class Moment:
    r"""The sums over keys that all queries share, :math:`\sum_j m_j\psi_j v_j^T` and
    :math:`\sum_j m_j\psi_j`, from one span of keys after another.

    Args:
        quadrature: of all keys and queries, without order and pairs.
        floor: see :func:`linear_attention`.

    Attributes:
        shift: c, (B, H): the sums so far are those of keys' features over :math:`e^c`; None where
            nothing was divided.
        sums: Σ m ψ vᵀ (B, H, r, c), and Σ m ψ (B, H, r, 1) where there is a denominator; without
            equal masses' common m. Empty before the first keys.
        common_mass: m where all keys have the same, (1 | B, 1, 1, 1); else None, also where some
            are padding and have none.

    Example:
        >>> u, moment = torch.ones(1, 1, 3, 2), Moment(Domain.line(3).quadrature(), 1e-6)
        >>> for part in (slice(0, 2), slice(2, 3)):
        ...     moment.add(part, u[:, :, part], u[:, :, part])
        >>> moment.respond(slice(None), u)[0, 0, 0].tolist()
        [1.0, 1.0]
    """

    def __init__(self, quadrature: Quadrature, floor: float | None):
        self.quadrature = quadrature
        self.floor = floor
        self.shift: Tensor | None = None
        self.sums: list[Tensor] = []

        # Equal masses are one factor of both sums, and multiply responses instead of all keys.
        self.common_mass = None
        if quadrature.equal and quadrature.valid is None:
            self.common_mass = quadrature.mass[:, None, :1, None]

    def add(
        self,
        part: slice,
        key: Tensor,
        value: Tensor,
        shift: Tensor | None = None,
    ) -> None:
        """Add keys.

        Args:
            part: their span.
            key: their features over e^shift, (B, H, n, r).
            value: (B, H, n, c).
            shift: (B, H), no smaller than that of the keys before.
        """
        dtype = at_least_single(key.dtype)
        with full_precision(key):
            key = cast(key, dtype)
            value = cast(value, dtype)
            if self.common_mass is None:
                key = key * cast(self.quadrature.mass[:, None, part, None], dtype)

            new = [_keys_times_values(key, value, torch.matmul)]
            if self.floor is not None:
                new.append(key.sum(-2)[..., None])

            # The sums so far change over to the new common factor e^shift.
            if self.sums and shift is not None and self.shift is not None:
                factor = over_new_factor(self.shift, shift).to(dtype)
                self.sums = [x * factor for x in self.sums]
            if self.sums:
                self.sums = [x + y for x, y in zip(self.sums, new)]
            else:
                self.sums = new
        self.shift = shift

    def respond(self, part: slice, query: Tensor) -> Tensor:
        """Return the responses of queries, (B, H, n, c).

        Args:
            part: their span.
            query: their features, which may have any factor where there is a denominator.
        """
        dtype = at_least_single(query.dtype)
        with full_precision(query):
            query = cast(query, dtype)
            of_values, *of_ones = self.sums
            out = query @ of_values
            total = out
            if of_ones:
                total = against_column(query, of_ones[0])
            return _normalised(
                out,
                total,
                self._factor(part, dtype),
                self.floor,
            )

    def _factor(self, part: slice, dtype: torch.dtype) -> Tensor | None:
        """Return common mass times scale of queries, or None where it is one."""
        scale = self.quadrature.scale
        if scale is not None:
            scale = cast(scale[..., part, None], dtype)
        if self.common_mass is None:
            return scale
        mass = cast(self.common_mass, dtype)
        if scale is None:
            return mass
        return mass * scale


def against_column(
    query: Float[Tensor, "b h q r"],
    column: Float[Tensor, "#b #h r 1"],
) -> Float[Tensor, "b h q 1"]:
    """Return ``query @ column``.

    Where features lie feature by feature, as a bank of scalar networks leaves them, by rows of the
    transposes: ten times as fast on a processor.

    Example:
        >>> features, column = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 1)
        >>> against_column(features.mT, column).flatten().tolist()
        [3.0, 3.0]
    """
    if torch.compiler.is_compiling() or query.stride(-1) == 1:
        return query @ column
    return (column.mT @ query.mT).mT


def over_new_factor(
    before: Float[Tensor, "b h"],
    after: Float[Tensor, "b h"],
) -> Float[Tensor, "b h 1 1"]:
    """Return e^before / e^after, by which sums change over from features over e^before to e^after.

    -∞ stands for no keys, whose sums are zero.

    Example:
        >>> over_new_factor(torch.zeros(1, 1), torch.zeros(1, 1)).item()
        1.0
    """
    ratio = torch.where(
        before > -torch.inf,
        (before - after).exp(),
        0.0,
    )
    return ratio[..., None, None]
