"""The backward by Triton: launches of its kernels, and from their partial sums to gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ....ops.tiles import Span, spans
from ..hidden_first.terms import PAIR_TENSORS, Tensors
from . import backward as triton_backward
from .launch import (
    Sizes,
    chunks_of,
    constants_of,
    count,
    cut_entries,
    cut_inputs,
    is_empty,
    make_pairs,
    tiles_of,
)

# Their parameters are Triton's, which Python's types do not describe.
rows_kernel: Any = triton_backward.rows_kernel
keys_kernel: Any = triton_backward.keys_kernel
table_kernel: Any = triton_backward.table_kernel


def backward(
    grad: Tensor,
    x: Tensors,
    activation: str,
    memory: int,
    needs: list[bool],
) -> list[Tensor]:
    """Gradients of the inputs marked in ``needs``, in the order of :class:`Tensors`."""
    wanted = [name for name, needed in zip(PAIR_TENSORS, needs) if needed]
    total = {
        name: x.value.new_zeros(getattr(x, name).shape, dtype=torch.float32) for name in wanted
    }
    if not is_empty(x):
        run = _Backward(x, activation, memory, total)
        for entries in _runs(chunks_of(x, memory)):
            run.entries(grad, *entries)
    return [total[name].to(getattr(x, name).dtype) for name in wanted]


def _runs(chunks: Iterator[tuple[Span, Span]]) -> list[tuple[Span, list[Span]]]:
    """Chunks of the same batch entries together."""
    runs: list[tuple[Span, list[Span]]] = []
    for entries, q in chunks:
        if runs and runs[-1][0] == entries:
            runs[-1][1].append(q)
        else:
            runs.append((entries, [q]))
    return runs


class _Backward:
    """One backward pass: adds every chunk's gradients to ``total``, by the inputs' names."""

    def __init__(self, x: Tensors, activation: str, memory: int, total: dict[str, Tensor]):
        self.x, self.memory, self.total, self.n = x, memory, total, Sizes.of(x)
        h, o = x.readout.shape[:2]
        self.readout = x.readout.transpose(2, 3).reshape(h, o, self.n.W * self.n.D)
        self.constants = {
            name: constants_of(x, self.n, tiles_of(name, x, self.n), activation)
            for name in ("rows", "keys", "table")
        }

    def wants(self, *names: str) -> bool:
        return any(name in self.total for name in names)

    def new(self, wanted: bool, *shape: int) -> Tensor | None:
        return self.x.value.new_empty(shape, dtype=torch.float32) if wanted else None

    def entries(self, grad: Tensor, entries: Span, queries: list[Span]) -> None:
        """Some batch entries, whose queries come in one or several parts."""
        sums: dict[str, Tensor | None] | None = None
        for q in queries:
            part = cut_inputs(self.x, entries, q)
            above = grad[entries, :, q].to(part.value.dtype).transpose(0, 1).flatten(1, 2)
            moments_grad = torch.bmm(above, self.readout)
            if self.wants(
                "query",
                "query_bias",
                "scale",
                "query2",
                "scale2",
                "distance_scale",
                "readout",
            ):
                self.rows(part, above, moments_grad, entries, q)
            if self.wants("key", "value", "key_bias"):
                sums = self.keys(part, moments_grad, sums)
            if self.wants("table"):
                self.table(part, moments_grad)
        if sums is not None:
            for name, gradient in sums.items():
                if gradient is not None:
                    self.add(name, gradient if name == "key_bias" else gradient.sum(0), entries)

    def add(self, name: str, part: Tensor, entries: Span, q: Span | None = None) -> None:
        """Add ``part`` (H, B, N, C) to a gradient, summed over the dimensions that its input
        shares.
        """
        target = cut_entries(self.total[name], entries)
        target = target if q is None else target[:, :, q]
        target += part.transpose(0, 1).sum_to_size(target.shape)

    def rows(
        self,
        part: Tensors,
        above: Tensor,
        moments_grad: Tensor,
        entries: Span,
        q: Span,
    ) -> None:
        """What belongs to queries and to the layer: the sums over keys."""
        n, const = self.n, dict(self.constants["rows"])
        const["GROUP"] = tiles_of("rows", self.x, n)["group"]
        b, h = part.value.shape[:2]
        nq = part.query_bias.shape[2]
        blocks, groups = count(n.W, const["BW"]), count(nq, const["BQ"] * const["GROUP"])
        lead, e = (h, b), n.A + n.F
        moments = torch.empty_like(moments_grad) if self.wants("readout") else None
        bias = self.new(self.wants("query_bias"), *lead, nq, n.W)
        far = self.new(self.wants("distance_scale"), *lead, nq, n.W)
        query = self.new(self.wants("query"), blocks, *lead, nq, e)
        query2 = self.new(self.wants("query2"), blocks, *lead, nq, n.F)
        scale = self.new(self.wants("scale"), groups, *lead, n.W, e)
        scale2 = self.new(self.wants("scale2"), groups, *lead, n.W, n.F)
        rows_kernel[(h * b * blocks * groups,)](
            make_pairs(part, const), moments_grad, moments, bias, far, query, query2, scale, scale2,
            b, h, nq, part.value.shape[2], **const,
        )  # fmt: skip
        if moments is not None:
            readout = torch.bmm(above.mT, moments).view(h, -1, n.W, n.D)
            self.total["readout"] += readout.transpose(2, 3)
        if bias is not None:
            self.add("query_bias", bias, entries, q)
        if far is not None:
            self.total["distance_scale"] += far.sum((1, 2)).sum_to_size(
                self.total["distance_scale"].shape
            )
        for name, sums in (("query", query), ("query2", query2)):
            if sums is not None:
                self.add(name, sums.sum(0), entries, q)
        for name, sums in (("scale", scale), ("scale2", scale2)):
            if sums is not None:
                self.total[name] += sums.sum((0, 2)).sum_to_size(self.total[name].shape)

    def keys(
        self,
        part: Tensors,
        moments_grad: Tensor,
        sums: dict[str, Tensor | None] | None,
    ) -> dict[str, Tensor | None]:
        """What belongs to keys: the sums over rows, added to ``sums`` where these are not the first
        queries.
        """
        n, const = self.n, self.constants["keys"]
        b, h, nk, _ = part.value.shape
        nq = part.query_bias.shape[2]
        blocks, add = count(n.W, const["BW"]), sums is not None
        if sums is None:
            sums = {
                "value": self.new(self.wants("value"), blocks, h, b, nk, n.D),
                "key": self.new(self.wants("key"), blocks, h, b, nk, n.A + n.F),
                "key_bias": self.new(self.wants("key_bias"), h, b, nk, n.W),
            }
        grid = h * b * blocks * count(nk, const["BK"])
        keys_kernel[(grid,)](
            make_pairs(part, const),
            moments_grad,
            *sums.values(),
            b,
            h,
            nq,
            nk,
            ADD=add,
            **const,
        )
        return sums

    def table(self, part: Tensors, moments_grad: Tensor) -> None:
        """The displacement table: dS of some queries summed over what shares it, then over the
        pairs of each displacement.
        """
        n, const, total = self.n, self.constants["table"], self.total["table"]
        b, h, nk, _ = part.value.shape
        nq = part.query_bias.shape[2]
        query_index: Any = part.query_index
        pairs = make_pairs(part, const)
        rows = torch.zeros_like(total.mT, memory_format=torch.contiguous_format)
        for q in spans(0, nq, max(1, self.memory // (4 * len(total) * nk * n.W))):
            queries = q.stop - q.start
            out = self.x.value.new_empty(len(total), queries * nk, n.W, dtype=torch.float32)
            grid = (
                len(total)
                * count(queries, const["BQ"])
                * count(n.W, const["BW"])
                * count(nk, const["BK"])
            )
            shared = len(total) == 1
            table_kernel[(grid,)](
                pairs,
                moments_grad,
                out,
                b,
                h,
                nq,
                nk,
                q.start,
                q.stop,
                SHARED=shared,
                **const,
            )
            places = (query_index[q, None] - part.key_index).flatten()
            rows.index_add_(1, places, out)
        total += rows.mT
