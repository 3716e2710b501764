"""The exact forms of ITNet's kernel: hidden units integrated first, tile by tile; nothing wide
exists per pair.

M_k(x) = ∫ h_k(x, y) u(y) dμ(y) and then one contraction with W2 per query; the displacement term of
the first layer comes from a table on a grid, and from appended columns on any points. The forms
call :func:`mlp_kernel`, which reads names, shapes and complete terms of its tensors off
:mod:`.terms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from ....errors import OptionError, ShapeError, suggest
from ....forms.keys import KeyRing
from ....integral import Exact, Facts, Form, Kernel, Memory, Problem, with_offset
from ....ops.backend import (
    at_least_single,
    cast,
    checkable,
    choose_backend,
    full_precision,
    wants_triton,
)
from ....ops.tiles import by_head, find_activation
from ....quadrature import Quadrature
from .columns import fits
from .few_points import few_points
from .limits import refusal
from .one_tile import one_tile
from .registration import mlp_kernel_op
from .terms import BEYOND_SHAPES, PAIR_TENSORS, PairTensor, documented

if TYPE_CHECKING:
    from ..kernel import MLPKernel

MLP_KERNEL = "the integral of an MLP kernel"
DEFAULT_BYTES = 3_200_000
"""A tile of hidden units that a CPU core works through near its cache."""
DEFAULT_CUDA_BYTES = 256_000_000
FEW, FEW_RECORDED = 1 << 18, 1 << 21
"""Numbers of a tile up to which it is taken at once, without and with gradients:
`python -m evidence time small tune`.
"""
FEW_IN_ROW = 1 << 24
"""The same for one query, as in a causal step, where the tiled op has nothing to share."""


class TiledColumns(KeyRing):
    """On any points: the displacement term as columns appended to queries and keys.

    O(N²·w·(d + columns)) time, O(N) memory, forward and backward.
    """

    word = Exact
    strategy: Exact
    name = "tiled hidden units, appended columns"
    reason = "the first layer splits, and the points share no regular grid"
    triton = True

    def keys(
        self,
        kernel: MLPKernel,
        y: Tensor,
        uy: Tensor,
    ) -> Memory:
        memory = kernel.key_terms(y, uy, columns=True)
        return {
            **memory,
            "positions": y,
            "signal": uy,
        }

    def integrate(
        self,
        kernel: MLPKernel,
        problem: Problem,
        keys: Memory,
    ) -> Tensor:
        # The first layer reads neither the positions nor the signal itself.
        terms = {}
        for name, x in keys.items():
            if name not in ("positions", "signal"):
                terms[name] = x

        terms |= kernel.query_terms(problem.x, problem.ux, columns=True)
        return _tiled(kernel, problem, terms, self.strategy)


class TiledTable(Form):
    """On a regular grid: the displacement term from a table of its ∏(2n - 1) displacements, which
    each pair reads by an integer of the query minus one of the key.
    """

    word = Exact
    strategy: Exact
    name = "tiled hidden units, displacement table"
    reason = "the first layer splits, and the displacements of a regular grid fit a table"
    triton = True

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if facts.layout.grid is None:
            return "the points share no regular grid"
        return None

    def respond(self, kernel: MLPKernel, problem: Problem) -> Tensor:
        p = problem
        if _takes_blocks(self.strategy) and fits(kernel, p):
            return with_offset(_integral(kernel, p, few_points), kernel, p)

        terms = kernel.both_terms(p)
        displacements, index = p.displacements()
        table = kernel.table(displacements)
        if table is not None:
            # The middle column of the table is displacement 0.
            middle = displacements.shape[0] // 2
            terms["table"] = table
            terms["query_index"] = index + middle
            terms["key_index"] = index
        out = _tiled(kernel, p, terms, self.strategy)
        return with_offset(out, kernel, p)


def _tiled(
    kernel: MLPKernel,
    problem: Problem,
    terms: dict[str, Any],
    strategy: Exact,
) -> Tensor:
    """Return ∫ K u dμ from the terms of the first layer."""

    def moments_read(
        kernel: MLPKernel,
        problem: Problem,
        value: Tensor,
        readout: Tensor,
    ) -> Tensor:
        """Return the moments of ``value`` (mass times signal, (B, H, Nk, d), in float32 or better)
        contracted with the readout, (B, H, Nq, o); see :func:`_integral`.
        """
        q = problem.quadrature
        if _fits_one_tile(kernel, problem, terms, strategy):
            return one_tile(terms, value, readout, q)

        # The op requires the arguments query and key, also without a product of them.
        arguments = {"query": None, "key": None} | terms
        if q.query_time is not None:
            arguments |= {"query_time": q.query_time, "key_time": q.key_time}
        arguments["density"] = q.density
        arguments["readout"] = readout
        arguments["memory"] = strategy.memory
        arguments["backend"] = strategy.backend
        arguments["dtype"] = value.dtype
        if value.device.type == "cpu":
            return mlp_kernel(value=value, **arguments)

        # Triton's kernels multiply in the dtype of the values, here that of the signal. In a half
        # precision a large mass would overflow, so that the largest one is divided out and
        # multiplied back in the float32 result.
        largest = q.mass.detach().amax()
        top = largest.clamp(min=1.0)
        value = cast(value / top, problem.uy.dtype)
        return mlp_kernel(value=value, **arguments) * top

    return _integral(kernel, problem, moments_read)


def _integral(
    kernel: MLPKernel,
    problem: Problem,
    moments_read: Callable[..., Tensor],
) -> Tensor:
    """Return ∫ K u dμ.

    ``moments_read(kernel, problem, value, readout)`` computes everything except the readout's bias
    and the scale of the queries, in float32 or better: an unscaled sum over many keys can overflow
    float16.
    """
    q = problem.quadrature
    readout, bias = kernel.readout()
    dtype = at_least_single(problem.uy.dtype)
    signal = cast(problem.uy, dtype)
    if signal.shape[1] != kernel.heads:
        signal = signal.expand(-1, kernel.heads, -1, -1)

    # A mask or an order acts on pairs. Padding has mass zero and finite features, so that the
    # masses can be multiplied into the values.
    mass = cast(q.mass, signal.dtype)
    mass = mass.view(-1, 1, signal.shape[2], 1)
    value = mass * signal
    out = moments_read(kernel, problem, value, readout)
    with full_precision(value):
        if bias is not None:
            # The readout's bias is one more kernel, constant over pairs.
            queries = problem.ux.shape[2]
            total = _mean(q, value, queries)
            bias = cast(bias, out.dtype)
            out = out + by_head(total, bias)
        out = q.scaled(out)
    return cast(out, problem.uy.dtype)


def _takes_blocks(strategy: Exact) -> bool:
    """Return whether neither a tile's memory nor a Triton kernel was asked for."""
    return strategy.memory is None and not wants_triton(strategy.backend)


def _fits_one_tile(
    kernel: MLPKernel,
    problem: Problem,
    terms: Mapping[str, Any],
    strategy: Exact,
) -> bool:
    """Return whether all pairs are taken at once: from sizes alone, and never where lengths are
    traced or a tile's memory or a Triton kernel was asked for.
    """
    if not _takes_blocks(strategy) or torch.compiler.is_compiling():
        return False
    batch, _, keys, _ = problem.uy.shape
    queries = problem.ux.shape[2]
    if queries > 1 and problem.uy.device.type != "cpu":
        return False

    limit = FEW
    if queries == 1:
        limit = FEW_IN_ROW
    elif torch.is_grad_enabled():
        limit = FEW_RECORDED
    columns = 0
    if "key" in terms:
        columns = terms["key"].shape[-1]
    read = max(keys, columns)
    numbers = batch * kernel.heads * queries * kernel.width * read
    return numbers <= limit


def _mean(quadrature: Quadrature, value: Tensor, queries: int) -> Tensor:
    """Return ∫ u dμ as each query sees it, before the scale: (B, H, Nq, d), or (B, H, 1, d) where
    all queries see the same.
    """
    density = quadrature.density
    order = quadrature.order()
    if density is None and order is None:
        return value.sum(2, keepdim=True)
    if density is None and quadrature.triangular:
        return value.cumsum(2)

    keys = value.shape[2]
    seen = torch.ones(
        (1, 1, queries, keys),
        dtype=value.dtype,
        device=value.device,
    )
    if order is not None:
        seen = seen * order[:, None]
    if density is not None:
        seen = seen * density.to(value.dtype)
    return seen @ value


# --- the op ---------------------------------------------------------------------------------------


@documented
@checkable(MLP_KERNEL)
def mlp_kernel(
    query: Float[Tensor, "#b #h q e"] | None,
    key: Float[Tensor, "#b #h k e"] | None,
    value: Float[Tensor, "b h k d"],
    readout: Float[Tensor, "h o d v"],
    *,
    query_bias: Float[Tensor, "#b #h q w"],
    mid: Sequence[tuple[Tensor, Tensor]] = (),
    activation: str = "gelu",
    memory: int | None = None,
    backend: str = "auto",
    dtype: torch.dtype | None = None,
    **terms: Tensor | None,
) -> Float[Tensor, "b h q o"]:
    r"""Return the integral of an MLP kernel with a linear last layer, exactly, without ever forming
    the kernel.

    For every batch entry, head, query i and hidden unit k,

    .. math::
        s_k(i,j) &= q^b_{ik} + k^b_{jk} + \textstyle\sum_c \alpha_{kc}\, q_{ic}\, k_{jc}
                    + \sum_c \alpha'_{kc}\, q'_{ic}\, k_{j,e-f+c} + r_{k,\,I_i - J_j}
                    + \delta_k |x_i - y_j| \\
        h(i,j)   &= \sigma(s(i,j)), \text{ then } h \leftarrow \sigma(W h + b)
                    \text{ for each layer of mid} \\
        out_o(i) &= \textstyle\sum_{kc} R_{ock} \sum_j \rho_{ij}\, [t_j \le t_i]\, h_k(i,j)\, v_{jc}

    The last layer is linear and commutes with the sum over keys, so the sum is taken over hidden
    units; the quadrature masses of the keys belong in ``value``, the output layer's bias is the
    caller's. Terms whose tensors are None are left out. Dimensions of size 1 are shared.

    Args:
        {tensors}
        mid: further hidden layers, pairs of W (width, width before) and b (width,).
        activation: σ, a name in ``ACTIVATIONS``.
        memory: bytes of one tile of hidden units; by default what fits a CPU's cache, or 256 MB on
            an accelerator. The Triton kernels hold the hidden units in registers, and this many
            bytes of their moments, by default 1 GB.
        backend: see :mod:`fredholm.ops.backend`. The
            Triton kernels take float32, bfloat16 and float16, every term but ``mid``, and every
            gradient but those of density and positions.
        dtype: of the result, by default ``value``'s.

    Returns:
        (B, H, Nq, o) in ``dtype``. PyTorch's operations compute half precisions and
        autocast in float32; the Triton kernels multiply in the half precision and add in float32.

    Cost:
        Time O(B·H·Nq·Nk·w·(e + d)), memory O(N) (B·H·N·(e + d + w) and a few tiles), forward and
        backward, which computes the tiles again. Gradients reach every float tensor except the
        times; the distance has gradient 0 at 0. Other derivatives than the first hold the
        hidden units of every pair, O(B·H·Nq·Nk·w) memory. A ``value`` of zero hides a key only
        while the key's other numbers are finite.

    Raises:
        ShapeError: where shapes do not fit or one tensor of a term is missing.
        OptionError: for an unknown activation or backend, or a memory below one byte.
        BackendError: where ``backend="triton"`` cannot run.

    Reference: ITNet, Algorithms 1 and 2, in the order of summation that needs 2·w·d multiply-adds a
    pair.

    Example:
        >>> q, k, v = torch.ones(1, 1, 2, 3), torch.ones(1, 1, 4, 3), torch.ones(1, 1, 4, 1)
        >>> bias, ones = torch.zeros(1, 1, 2, 5), torch.ones(1, 5, 3)
        >>> readout = torch.ones(1, 1, 1, 5)
        >>> mlp_kernel(q, k, v, readout, query_bias=bias, scale=ones, activation="relu").tolist()
        [[[[60.0], [60.0]]]]
    """
    find_activation(activation)
    if memory is not None and memory < 1:
        raise OptionError(f"memory: expected at least 1 byte for a tile, got {memory}")
    core = {
        "query": query,
        "key": key,
        "value": value,
        "readout": readout,
    }
    tensors = complete(core | {"query_bias": query_bias} | terms)
    check(tensors, mid)
    device = value.device
    if dtype is None:
        dtype = value.dtype

    def reason() -> str | None:
        return refusal(tensors, mid)

    if choose_backend(backend, MLP_KERNEL, device, reason) == "triton":
        # Imported here, because Triton may not be installed.
        from ..triton.op import mlp_kernel_triton

        return mlp_kernel_triton(tensors, activation, memory).to(dtype)

    if memory is None:
        memory = DEFAULT_CUDA_BYTES
        if device.type == "cpu":
            memory = DEFAULT_BYTES
    layers = [t for layer in mid for t in layer]
    single = _compute_dtype([*tensors.values(), *layers])
    converted = [_cast(name, x, single) for name, x in tensors.items()]
    layers = [t.to(single) for t in layers]
    out = mlp_kernel_op(*converted, layers, activation, memory)
    return out.to(dtype)


def _compute_dtype(tensors: Sequence[Tensor | None]) -> torch.dtype:
    """Return float64 where any tensor is, else float32."""
    if any(t is not None and t.dtype == torch.float64 for t in tensors):
        return torch.float64
    return torch.float32


def _cast(
    name: str,
    x: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return ``x`` in ``dtype`` where it is a number to compute with. Times keep the dtype that
    orders them.
    """
    if x is None or not x.is_floating_point() or PAIR_TENSORS[name].kind == "time":
        return x
    return x.to(dtype)


# --- the arguments of a call ----------------------------------------------------------------------


def complete(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return all tensors by name, in order, None where there is none; positions and times with a
    batch.

    Raises:
        OptionError: a name that no tensor has.
    """
    for name in arguments:
        if name not in PAIR_TENSORS:
            raise OptionError(
                f"mlp_kernel: expected one of its tensors, got {name!r}"
                f"{suggest(name, PAIR_TENSORS)}"
            )
    tensors = dict.fromkeys(PAIR_TENSORS) | dict(arguments)
    for name, x, fact in _present(tensors):
        if fact.kind == "time":
            x = x.detach()
        lacks_one = x.dim() == len(fact.sizes) - 1
        lacks_batch = fact.sizes[0] == "b" and lacks_one
        if lacks_batch and "h" not in fact.sizes:
            x = x[None]
        tensors[name] = x
    return tensors


def _present(tensors: Mapping[str, Any]) -> list[tuple[str, Tensor, PairTensor]]:
    """Return name, tensor and description of the tensors that a call has."""
    present = []
    for name, fact in PAIR_TENSORS.items():
        x = tensors[name]
        if x is not None:
            present.append((name, x, fact))
    return present


def check(
    tensors: Mapping[str, Any],
    mid: Sequence[tuple[Tensor, Tensor]],
) -> None:
    """Raise ShapeError unless every term is complete and its shapes fit."""
    terms = _complete_terms(tensors)
    sizes = _sizes(tensors, mid)
    for name, x, fact in _present(tensors):
        if not _fits(fact, x, sizes):
            raise ShapeError(
                f"mlp_kernel's {name}: expected shape ({_wanted(fact, sizes)}), got "
                f"{tuple(x.shape)}; value decides batch, heads, keys and d, query_bias queries and "
                "hidden width, key e, mid or else query_bias the last hidden width"
            )
    for term in terms & BEYOND_SHAPES.keys():
        BEYOND_SHAPES[term](tensors, sizes)

    before = sizes["w"]
    for weight, shift in mid:
        if weight.dim() != 2 or weight.shape[1] != before or shift.shape != weight.shape[:1]:
            raise ShapeError(
                f"mlp_kernel's mid: expected a weight (n, {before}) and a bias (n,), got "
                f"{tuple(weight.shape)} and {tuple(shift.shape)}; each layer reads the units of "
                "the one before"
            )
        before = weight.shape[0]


def _complete_terms(tensors: Mapping[str, Any]) -> set[str]:
    """Return the terms of a call.

    Raises:
        ShapeError: some of a term's tensors are missing.
    """
    terms: dict[str, list[str]] = {}
    for name, fact in PAIR_TENSORS.items():
        if fact.term:
            terms.setdefault(fact.term, []).append(name)

    present = set()
    for term, names in terms.items():
        missing = [name for name in names if tensors[name] is None]
        if len(missing) == len(names):
            continue
        if missing:
            raise ShapeError(
                f"mlp_kernel: expected all of {', '.join(names)} or none, got some without "
                f"{', '.join(missing)}"
            )
        present.add(term)
    return present


def _sizes(
    tensors: Mapping[str, Any],
    mid: Sequence[tuple[Tensor, Tensor]],
) -> dict[str, int]:
    """Return the size of every dimension that one tensor decides for the others."""
    sizes: dict[str, int] = {}
    for _, x, fact in _present(tensors):
        if x.dim() == len(fact.sizes):
            for size in fact.decides.split():
                place = fact.sizes.index(size)
                sizes[size] = x.shape[place]
    if mid:
        last_weight, _ = mid[-1]
        sizes["v"] = last_weight.shape[0]
    elif "w" in sizes:
        sizes["v"] = sizes["w"]
    return sizes


def _fits(
    fact: PairTensor,
    x: Tensor,
    sizes: Mapping[str, int],
) -> bool:
    """Return whether a tensor has its shape, where dimensions may be shared or undecided."""
    if x.dim() != len(fact.sizes):
        return False
    for actual, size, shared in zip(x.shape, fact.sizes, fact.shared):
        expected = sizes.get(size, actual)
        if actual != expected and not (shared and actual == 1):
            return False
    return True


def _wanted(fact: PairTensor, sizes: Mapping[str, int]) -> str:
    """Return the expected shape in words."""
    words = []
    for size, shared in zip(fact.sizes, fact.shared):
        word = str(sizes.get(size, "any"))
        if shared and size in sizes:
            word += " or 1"
        words.append(word)
    return ", ".join(words)
