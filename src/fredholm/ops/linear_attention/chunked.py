"""Linear attention with a cost linear in the number of points: two sums, causal chunks, a stretch
or one step at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...errors import StrategyError
from ...quadrature import Quadrature
from ..backend import at_least_single, cast, checkable, choose_backend, full_precision, product
from .limits import linear_attention_refusal

LINEAR_ATTENTION = "linear attention"


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
    r""":math:`s_i\,\phi_i^T \sum_{j} m_j\,\psi_j v_j^T`, over the same sum with :math:`v = 1`
    unless ``floor`` is None.

    In triangular order the sum ends at i: points go in chunks, pairs inside a chunk and one moment
    for all chunks before. The moments (r × c) accumulate in float32 at least, autocast or not.

    Args:
        query, key: features φ and ψ.
        quadrature: masses, padding and a triangular order; pair masks have no linear form.
        floor: of the denominator, see :func:`guarded`.
        positive: no feature is negative, which saves looking at the denominator's sign.
        chunk: points a chunk; Triton's kernels choose their own.
        backend: see :mod:`fredholm.ops.backend`.

    Cost: O(N·r·c) time; memory O(N·(r + c)), and in triangular order O(N·(r·c / chunk + chunk))
    more.

    Raises:
        BackendError: a requested backend that cannot run.
        StrategyError: pair weights, or an order in which the queries are not the keys.

    Example:
        >>> u = torch.ones(1, 1, 3, 2)
        >>> quadrature = Domain.line(3, causal=True).quadrature()
        >>> linear_attention(u, u, u, quadrature, floor=1e-6)[0, 0, 0].tolist()
        [1.0, 1.0]
    """
    check_order(quadrature)
    dtype = at_least_single(query.dtype)

    def refusal() -> str | None:
        batch, heads = (max(x.shape[i] for x in (query, key, value)) for i in (0, 1))
        return linear_attention_refusal(dtype, query.shape[3], value.shape[3], batch * heads)

    if choose_backend(backend, LINEAR_ATTENTION, value.device, refusal) == "triton":
        from .triton import attend

        return attend(query, key, value, quadrature, floor)
    pairs = wants_pairs(query, key, value, quadrature.triangular, chunk)
    if (pairs or not quadrature.triangular) and _is_plain(query, key, value, quadrature):
        return _plain(query, key, value, quadrature, floor, positive, pairs)
    if pairs:
        return _by_pairs(query, key, value, quadrature, floor)
    if not quadrature.triangular:
        moment = Moment(quadrature, floor)
        moment.add(slice(None), key, value)
        return moment.respond(slice(None), query)
    with full_precision(query):
        query, value = cast(query, dtype), _with_mass(cast(value, dtype), floor)
        key = cast(key, dtype) * cast(quadrature.mass, dtype)[:, None, :, None]
        out, _ = _prefix_sums(query, key, value, chunk)
        scale = None if quadrature.scale is None else cast(quadrature.scale, dtype)[..., None]
        return _divide(out, scale, floor)


def wants_pairs(query: Tensor, key: Tensor, value: Tensor, ordered: bool, chunk: int) -> bool:
    """Whether all pairs cost less than a moment of (r × c) numbers, or are one chunk of an order:
    N·(r + c) products for a query against 2·r·c. Traced lengths stay free.
    """
    if torch.compiler.is_compiling():
        return False
    n, r, c = key.shape[2], key.shape[3], value.shape[3]
    return n <= chunk if ordered else n * (r + c) <= 2 * r * c


def _is_plain(query: Tensor, key: Tensor, value: Tensor, quadrature: Quadrature) -> bool:
    """Whether nothing is shared between heads or samples, all masses are one number, and no dtype
    or trace stands in the way.
    """
    if not (quadrature.equal and quadrature.valid is None) or torch.compiler.is_compiling():
        return False
    dtype, mass, scale = query.dtype, quadrature.mass, quadrature.scale
    if dtype != at_least_single(dtype) or not key.dtype == value.dtype == mass.dtype == dtype:
        return False
    if mass.shape[0] > 1 or (scale is not None and scale.shape[0] * scale.shape[1] > 1):
        return False
    return query.shape[:2] == key.shape[:2] == value.shape[:2]


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    quadrature: Quadrature,
    floor: float | None,
    positive: bool,
    by_pairs: bool,
) -> Tensor:
    """:func:`linear_attention` with samples and heads as one dimension, which on small problems
    takes half the time: a product of four dimensions is expanded and reshaped first.
    """
    shape = (*value.shape[:2], query.shape[2], value.shape[3])
    query, key, value = query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1)
    with full_precision(query):
        if by_pairs:
            pairs = torch.bmm(query, key.mT)
            pairs = pairs.tril() if quadrature.triangular else pairs
            sums, total = torch.bmm(pairs, value), pairs.sum(2, keepdim=True)
        else:
            # the order of the factors decides how the keys' gradient lies in memory: as keys do
            near = key.stride(2) == 1
            moment = torch.bmm(value.mT, key).mT if near else torch.bmm(key.mT, value)
            sums = torch.bmm(query, moment)
            total = sums if floor is None else torch.bmm(query, key.sum(1).unsqueeze(2))
        if floor is None:
            return (sums * _common(quadrature)).view(shape)
        least = _least(quadrature, floor)
        return (sums / (total.maximum(least) if positive else guarded(total, least))).view(shape)


def _common(quadrature: Quadrature) -> Tensor:
    """m s of each query, (1, 1 | Nq, 1), where masses are equal: the factor of all its pairs."""
    mass, scale = quadrature.mass[:, :1, None], quadrature.scale
    return mass if scale is None else mass * scale[0, :, :, None]


def _least(quadrature: Quadrature, floor: float) -> Tensor:
    """floor / m s: what a sum of features over keys is compared with where ``floor`` bounds their
    integral. Kept with the quadrature for as long as nobody writes to its masses.
    """
    mass = quadrature.mass
    if mass.requires_grad or mass.is_inference() or type(mass) is not Tensor:
        return floor / _common(quadrature)
    kept = quadrature.__dict__.get("_least")
    if kept is None or kept[:2] != (mass._version, floor):
        with torch.inference_mode(False):  # what is kept may meet autograd later
            kept = mass._version, floor, floor / _common(quadrature)
        quadrature.__dict__["_least"] = kept
    return kept[2]


def _by_pairs(
    query: Tensor, key: Tensor, value: Tensor, quadrature: Quadrature, floor: float | None
) -> Tensor:
    """:func:`linear_attention` through every pair's inner product."""
    q, dtype = quadrature, at_least_single(query.dtype)
    with full_precision(query):
        query, key, value = (cast(x, dtype) for x in (query, key, value))
        mass = cast(q.mass, dtype)[:, None, :, None]
        factor = None if q.scale is None else cast(q.scale, dtype)[..., None]
        if q.equal and q.valid is None:  # one factor of all pairs
            mass = mass[:, :, :1]
            factor = mass if factor is None else mass * factor
        else:
            key = key * mass
        pairs = query @ key.mT
        pairs = pairs.tril() if q.triangular else pairs
        return _over(pairs @ value, pairs.sum(-1, keepdim=True), factor, floor)


def _over(sums: Tensor, total: Tensor, factor: Tensor | None, floor: float | None) -> Tensor:
    """Sums over their total, both times a factor that only the floor sees; without a floor the sums
    times the factor.
    """
    if factor is None:
        return sums if floor is None else sums * guarded(total, floor).reciprocal()
    if floor is None:
        return sums * factor
    return sums * (factor / guarded(total * factor, floor))


class Moment:
    r"""The sums over keys that all queries share, :math:`\sum_j m_j\psi_j v_j^T` and
    :math:`\sum_j m_j\psi_j`, piece by piece.

    Args:
        quadrature: of all keys and queries, without order and pairs.
        floor: see :func:`linear_attention`.

    Attributes:
        shift: c, (B, H): the sums so far are those of keys' features over :math:`e^c`; None where
            nothing was divided.

    Example:
        >>> u, moment = torch.ones(1, 1, 3, 2), Moment(Domain.line(3).quadrature(), 1e-6)
        >>> for part in (slice(0, 2), slice(2, 3)):
        ...     moment.add(part, u[:, :, part], u[:, :, part])
        >>> moment.respond(slice(None), u)[0, 0, 0].tolist()
        [1.0, 1.0]
    """

    def __init__(self, quadrature: Quadrature, floor: float | None):
        self.quadrature, self.floor = quadrature, floor
        # equal masses are one factor of both sums
        self.mass = (
            quadrature.mass[:, None, :1, None]
            if quadrature.equal and quadrature.valid is None
            else None
        )
        self.shift: Tensor | None = None
        self.sums: list[Tensor] = []

    def add(self, part: slice, key: Tensor, value: Tensor, shift: Tensor | None = None) -> None:
        """Keys ``part``: their features over e^shift (B, H, n, r) and values (B, H, n, c)."""
        dtype = at_least_single(key.dtype)
        with full_precision(key):
            key, value = cast(key, dtype), cast(value, dtype)
            if self.mass is None:
                key = key * cast(self.quadrature.mass[:, None, part, None], dtype)
            # the order of the factors decides how the keys' gradient lies in memory: as the keys do
            new = [(value.mT @ key).mT if key.stride(-1) == 1 else key.mT @ value]
            if self.floor is not None:
                new.append(key.sum(-2)[..., None])
            if self.sums and shift is not None and self.shift is not None:
                factor = over_new_factor(self.shift, shift).to(dtype)
                self.sums = [x * factor for x in self.sums]
            self.sums = [x + y for x, y in zip(self.sums, new)] if self.sums else new
        self.shift = shift

    def respond(self, part: slice, query: Tensor) -> Tensor:
        """What queries ``part`` receive, (B, H, n, c); their features may have any factor where
        there is a denominator.
        """
        dtype = at_least_single(query.dtype)
        with full_precision(query):
            query, factor = cast(query, dtype), self._factor(part, dtype)
            out = query @ self.sums[0]
            total = out if self.floor is None else against_column(query, self.sums[1])
            return _over(out, total, factor, self.floor)

    def _factor(self, part: slice, dtype: torch.dtype) -> Tensor | None:
        mass, scale = self.mass, self.quadrature.scale
        scale = None if scale is None else cast(scale[..., part, None], dtype)
        if mass is None:
            return scale
        mass = cast(mass, dtype)
        return mass if scale is None else mass * scale


def against_column(
    query: Float[Tensor, "b h q r"], column: Float[Tensor, "#b #h r 1"]
) -> Float[Tensor, "b h q 1"]:
    """``query @ column``. Where features lie feature by feature, as a bank of scalar networks
    leaves them, by rows of the transposes: ten times as fast on a processor.

    Example:
        >>> features, column = torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 1)
        >>> against_column(features.mT, column).flatten().tolist()
        [3.0, 3.0]
    """
    if torch.compiler.is_compiling() or query.stride(-1) == 1:
        return query @ column
    return (column.mT @ query.mT).mT


def over_new_factor(
    before: Float[Tensor, "b h"], after: Float[Tensor, "b h"]
) -> Float[Tensor, "b h 1 1"]:
    """What sums of features over e^before are times as sums over e^after; -∞ stands for no keys,
    whose sums are zero.
    """
    ratio = torch.where(before > -torch.inf, (before - after).exp(), 0.0)
    return ratio[..., None, None]


def wants_pieces(like: Tensor, longest: int, piece: int) -> bool:
    """Whether :func:`attend_in_pieces` is the better form: inference on a processor over more than
    ``piece`` points.

    A backward pass would take every piece apart again, traced lengths stay free, and a GPU is fast
    with many points.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return longest > piece and like.device.type == "cpu"


def attend_in_pieces(
    keys: Callable[[slice, Tensor | None], tuple[Tensor, Tensor, Tensor | None]],
    queries: Callable[[slice], Tensor],
    sizes: tuple[int, int],
    quadrature: Quadrature,
    *,
    floor: float | None,
    piece: int,
) -> Tensor:
    """:func:`linear_attention` without an order, features made a piece of points at a time, so that
    inference never holds all.

    Args:
        keys: of a piece and the factor's exponent so far (:attr:`Moment.shift`): features, values,
            and the exponent.
        queries: features of a piece.
        sizes: numbers of queries and keys.
        quadrature, floor: see :func:`linear_attention`.
        piece: points a piece.
    """
    check_order(quadrature)
    moment = Moment(quadrature, floor)
    for start in range(0, sizes[1], piece):
        part = slice(start, min(start + piece, sizes[1]))
        moment.add(part, *keys(part, moment.shift))
    parts = (slice(start, min(start + piece, sizes[0])) for start in range(0, sizes[0], piece))
    return torch.cat([moment.respond(part, queries(part)) for part in parts], 2)


def linear_attention_step(
    query: Float[Tensor, "#b #h r"],
    key: Float[Tensor, "#b #h r"],
    value: Float[Tensor, "#b #h c"],
    mass: Float[Tensor, "#b"],
    scale: Float[Tensor, "#b #h"] | None,
    moment: Float[Tensor, "#b #h r _"] | None,
    *,
    floor: float | None,
) -> tuple[Float[Tensor, "b h c"], Float[Tensor, "#b #h r _"]]:
    """One point in causal order: its response and the moment after it (None before the first
    point). O(r·c) time and memory.
    """
    scale = None if scale is None else scale[..., None]
    point = query[..., None, :], key[..., None, :], value[..., None, :]
    out, moment = linear_attention_point(*point, mass[:, None], scale, moment, floor=floor)
    return out.squeeze(-2), moment


def linear_attention_point(
    query: Float[Tensor, "#b #h 1 r"],
    key: Float[Tensor, "#b #h 1 r"],
    value: Float[Tensor, "#b #h 1 c"],
    mass: Float[Tensor, "#b 1"],
    scale: Float[Tensor, "#b #h 1"] | None,
    moment: Float[Tensor, "#b #h r _"] | None,
    *,
    floor: float | None,
    positive: bool = False,
) -> tuple[Float[Tensor, "b h 1 c"], Float[Tensor, "#b #h r _"]]:
    """:func:`linear_attention_step` with the point as a stretch of one: no view is made twice."""
    dtype = at_least_single(query.dtype)
    with full_precision(query):
        query, key, value = cast(query, dtype), cast(key, dtype), cast(value, dtype)
        weighted = (key * cast(mass.view(-1, 1, 1, 1), dtype)).mT
        value = _with_mass(value, floor)
        if moment is None:
            moment = weighted * value
        else:
            moment = torch.addcmul(moment, weighted, value)
        scale = None if scale is None else cast(scale.unsqueeze(-1), dtype)
        alike = query.shape[:2] == moment.shape[:2]
        out = product(query, moment) if alike else query @ moment
        return _divide(out, scale, floor, positive), moment


def linear_attention_stretch(
    query: Float[Tensor, "#b #h n r"],
    key: Float[Tensor, "#b #h n r"],
    value: Float[Tensor, "#b #h n c"],
    mass: Float[Tensor, "#b n"],
    scale: Float[Tensor, "#b #h n"] | None,
    moment: Float[Tensor, "#b #h r _"] | None,
    *,
    floor: float | None,
    chunk: int = 64,
) -> tuple[Float[Tensor, "b h n c"], Float[Tensor, "#b #h r _"]]:
    """n points in causal order at once: their responses and the moment after the last; ``moment``
    is that of the points before, None where there are none.

    Cost: O(n·r·c) time; memory O(n·(r + c)) and O(n·(r·c / chunk + chunk)) more.

    Example:
        >>> u, mass = torch.ones(1, 1, 3, 2), torch.ones(1, 3)
        >>> head, rest = (u[:, :, :1], mass[:, :1]), (u[:, :, 1:], mass[:, 1:])
        >>> _, moment = linear_attention_stretch(*3 * head[:1], head[1], None, None, floor=1e-6)
        >>> out, _ = linear_attention_stretch(*3 * rest[:1], rest[1], None, moment, floor=1e-6)
        >>> out[0, 0].tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    dtype = at_least_single(query.dtype)
    with full_precision(query):
        value = _with_mass(cast(value, dtype), floor) * cast(mass, dtype)[:, None, :, None]
        query, key = cast(query, dtype), cast(key, dtype)
        out, moment = _prefix_sums(query, key, value, chunk, moment)
        scale = None if scale is None else cast(scale, dtype)[..., None]
        return _divide(out, scale, floor), moment


def moment_of(
    key: Float[Tensor, "#b #h n r"],
    value: Float[Tensor, "#b #h n c"],
    mass: Float[Tensor, "#b n"],
    floor: float | None,
) -> Float[Tensor, "#b #h r _"]:
    """The moment of n points, as :func:`linear_attention_stretch` has it after them."""
    dtype = torch.promote_types(key.dtype, torch.float32)
    with full_precision(key):
        weighted = key.to(dtype) * mass[:, None, :, None].to(dtype)
        return weighted.mT @ _with_mass(value.to(dtype), floor)


def check_order(quadrature: Quadrature) -> None:
    """StrategyError where pairs, or an order across two domains, leave no linear form."""
    if quadrature.density is not None or (
        quadrature.query_time is not None and not quadrature.triangular
    ):
        raise StrategyError(
            "linear attention has no linear form for pair weights or an order across two domains"
        )


def _with_mass(value: Tensor, floor: float | None) -> Tensor:
    """Values with a constant channel where there is a denominator: its integral."""
    return value if floor is None else F.pad(value, (0, 1), value=1.0)


def at_scale(query: Tensor, largest: Tensor) -> Tensor:
    """Features of queries (B, H, Nq, r) over the largest feature of the keys that each one sees (B,
    H, Nq).

    Keys share one factor, by the largest feature of all. The result does not depend on it, but the
    denominator's floor would cut off a query whose own keys are small beside a later one. Up to a
    factor of 1e17: the gradient of a key is a product of such a query and of the denominator's
    reciprocal, each of which may be as large.
    """
    return query / largest.clamp_min(1e-17).to(query.dtype)[..., None]


def guarded(denominator: Tensor, floor: float | Tensor) -> Tensor:
    """The denominator, or ``floor`` where its magnitude is below: features that are all zero give
    zero and never NaN.

    Example:
        >>> guarded(torch.tensor([2.0, 0.0, -3.0]), 0.5).tolist()
        [2.0, 0.5, -3.0]
    """
    small = denominator.abs() < floor
    if isinstance(floor, Tensor):
        return torch.where(small, floor, denominator)
    return denominator.masked_fill(small, floor)


def _divide(
    out: Tensor, scale: Tensor | None, floor: float | None, positive: bool = False
) -> Tensor:
    out = out if scale is None else out * scale
    if floor is None:
        return out
    numerator, denominator = out.split_with_sizes((out.shape[-1] - 1, 1), -1)
    return numerator / (denominator.clamp_min(floor) if positive else guarded(denominator, floor))


def _prefix_sums(
    query: Tensor, key: Tensor, value: Tensor, chunk: int, moment: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r""":math:`\phi_i^T \big(M + \sum_{j \le i} \psi_j v_j^T\big)` for all i, and the sum in
    brackets after the last; M is the ``moment`` of points before.
    """
    n = query.shape[2]
    count = (n + chunk - 1) // chunk
    if torch.compiler.is_compiling():
        # an extra empty chunk: a traced dimension of size 1 would be taken for a constant
        count += 1
    else:
        chunk = min(chunk, n)
    if torch.compiler.is_compiling():
        return _traced_sums(query, key, value, chunk, count, moment)
    if count * chunk != n:
        query, key, value = (F.pad(x, (0, 0, 0, count * chunk - n)) for x in (query, key, value))
    query, key, value = (x.unflatten(2, (count, chunk)) for x in (query, key, value))
    out = (query @ key.mT).tril() @ value
    # chunk by chunk, and not by cumsum, which strides over all of them for each number
    before, last = [], moment
    for sums in (key.mT @ value).unbind(2):
        if last is not None:
            before.append(last)
        last = sums if last is None else last + sums
    if before:
        first = count - len(before)  # chunks that follow nothing
        out[:, :, first:].add_(query[:, :, first:] @ torch.stack(before, 2))
    assert last is not None
    return out.flatten(2, 3)[:, :, :n], last


def _traced_sums(
    query: Tensor, key: Tensor, value: Tensor, chunk: int, count: int, moment: Tensor | None
) -> tuple[Tensor, Tensor]:
    """:func:`_prefix_sums` in traced code, to which unflatten and a slice would be claims of
    lengths.
    """
    n = query.shape[2]
    query, key, value = (F.pad(x, (0, 0, 0, count * chunk - n)) for x in (query, key, value))
    query, key, value = (x.unfold(2, chunk, chunk).mT for x in (query, key, value))
    sums = F.pad((key.mT @ value).cumsum(2), (0, 0, 0, 0, 1, 0))  # row c: what chunk c follows
    sums = sums if moment is None else sums + moment[:, :, None]
    out = (query @ key.mT).tril() @ value + query @ sums[:, :, :-1]
    return F.pad(out.flatten(2, 3), (0, 0, 0, n - count * chunk)), sums[:, :, -1]
