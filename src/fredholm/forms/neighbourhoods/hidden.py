"""Kernels with a linear readout where a query sees few keys: hidden units are integrated first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from ...integral.capabilities import HiddenReadout
from ...integral.contract import Form, Kernel, with_offset
from ...integral.facts import Facts
from ...integral.problem import Problem
from ...integral.strategy import Exact
from ...ops.backend import at_least_single, cast, full_precision, promoted
from .gather import Neighbours, Rows, by_point, edge_rows, measure_rows
from .general import has_no_values, shape_alone
from .join import weighted_sum
from .recompute import LastStep, Pending, Weights, parameters_of, with_parameters
from .sums import sum_over_tiles


class NeighbourMoments(Form):
    """Hidden units of each edge times the signal, summed before the readout: O(E·w·d) time beside
    the hidden units, and O(E) memory, of which the gathered part is one tile.
    """

    word = Exact
    strategy: Exact
    sparse = True
    name = "moments over neighbours"
    reason = "the last layer is linear, so hidden units are integrated first"

    def refuses(self, kernel: Kernel, facts: Facts) -> str | None:
        if isinstance(kernel, HiddenReadout):
            return None
        return "it needs a linear readout of hidden units (HiddenReadout)"

    def respond(self, kernel: HiddenReadout, problem: Problem) -> Tensor:
        if has_no_values(problem):
            return shape_alone(kernel, problem)
        p = problem
        heads = p.uy.shape[1]
        single = at_least_single(p.uy.dtype)

        # What a tile gathers. In a periodic box ``shift`` moves a key to its nearest image.
        rows = Rows.of(
            {
                "x": ("query", p.x),
                "y": ("key", p.y),
                "ux": ("query", by_point(p.ux)),
                "uy": ("key", by_point(p.uy)),
                "shift": ("edge", edge_rows(p, "shift")),
                **measure_rows(p),
            }
        )

        # The readout may be computed from parameters: once, and each tile's gradient adds to it.
        # Its names begin with "term.", to stay apart from those of the kernel's parameters.
        readout, bias = kernel.readout()
        terms = {"term.readout": readout}
        if bias is not None:
            terms["term.bias"] = bias
        parameters = parameters_of(kernel)

        def answer(tile: Neighbours, weights: Weights) -> Pending:
            """Return the readout of one tile's moments as a step that is still to be computed, so
            that the backward can compute its inputs again without its results.
            """
            # Hidden units (R, 1 | H, b, k, w), and the signal u of the keys, (R, H, k, i).
            hidden = _hidden(kernel, tile, heads)
            dtype = promoted(hidden.dtype, single)
            value = cast(tile.heads("uy", heads), dtype)

            # Equal weights of all keys stay one number instead of one per key:
            # (R, 1 | H, b | 1, k | 1).
            measure = cast(tile.weights(spread=False), dtype)
            with full_precision(value):
                return read_moments(
                    cast(hidden, dtype),
                    measure,
                    value,
                    weights["term.readout"],
                    weights.get("term.bias"),
                )

        out = sum_over_tiles(
            p,
            rows,
            answer,
            numbers_per_pair=_numbers_per_pair(kernel, p, readout.shape[-1]),
            dtype=single,
            weights=terms | parameters,
            within=with_parameters(kernel, list(parameters)),
            memory=self.strategy.memory,
        )
        response = cast(out, p.uy.dtype)
        return with_offset(response, kernel, p)


def _numbers_per_pair(kernel: Kernel, problem: Problem, width: int) -> int:
    """Return the numbers in memory per pair of a query and a key, for hidden units of a width."""
    heads = problem.uy.shape[1]
    if kernel.d_out == 1:
        return 4 * (width + heads * kernel.d_in)
    numbers = 4 * width

    # A query has moments, and these have a gradient. Its pairs share both.
    edges = problem.quadrature.edges
    if edges is not None:
        pairs_per_query = max(1, edges.count // max(1, edges.rows))
        moments = heads * kernel.d_in * width
        numbers += 2 * moments // pairs_per_query
    return numbers


def _hidden(kernel: HiddenReadout, tile: Neighbours, heads: int) -> Tensor:
    """Return the hidden units of a tile, (R, 1 | H, b, k, w)."""
    positions = tile.rows["x"]
    problems, queries, _ = positions.shape
    keys = tile.rows["y"].shape[1]

    # All are broadcast to pairs, (R, 1 | H, b, k, ·).
    x = positions[:, None, :, None]
    y = tile.seen_positions()[:, None, None]
    ux = tile.heads("ux", heads)[:, :, :, None]
    uy = tile.heads("uy", heads)[:, :, None]
    hidden = kernel.hidden(x, y, ux, uy)
    return hidden.expand(problems, -1, queries, keys, -1)


def read_moments(
    hidden: Float[Tensor, "#r #h b k w"],
    measure: Float[Tensor, "#r #h #b #k"],
    value: Float[Tensor, "r h k i"],
    readout: Float[Tensor, "h o i w"],
    bias: Float[Tensor, "h o i"] | None,
) -> Pending:
    """Return the readout of the hidden units of a tile, integrated before it."""
    if readout.shape[1] == 1 and hidden.shape[1] == 1:
        return Pending(ENTRIES, (hidden, measure, value, readout, bias))
    mean = None
    if bias is not None:
        measure_of_keys = measure.expand(-1, -1, -1, value.shape[2])
        mean = weighted_sum(measure_of_keys, value)
    moments = _moments(hidden, measure, value)
    return Pending(READOUT, (moments, readout, mean, bias))


def _moments(hidden: Tensor, measure: Tensor, value: Tensor) -> Float[Tensor, "r h b iw"]:
    """Return the sums over the keys of values times hidden units.

    One query at a time (b = 1) is a batch of matrix products as it is; a block of queries shares
    its values.
    """
    heads = value.shape[1]
    hidden = hidden * measure[..., None]
    heads_share = hidden.shape[1] == 1 and heads > 1
    one_query = hidden.shape[2] == 1

    if heads_share:
        # Hidden units that heads share meet the values of all heads at once, (R, H · i, k).
        values = value.transpose(1, 2).flatten(2).mT
        if one_query:
            moment = torch.bmm(values, hidden[:, 0, 0])[:, None]
        else:
            moment = values[:, None] @ hidden[:, 0]
        moment = moment.unflatten(2, (heads, -1)).transpose(1, 2)
    elif one_query:
        moment = value.mT @ hidden[:, :, 0]
        moment = moment[:, :, None]
    else:
        moment = value.mT[:, :, None] @ hidden
    return moment.flatten(3)


class Readout(LastStep):
    """The readout of moments, one matrix product per head.

    Inputs: moments (R, H, b, i · w), readout (H, o, i, w), the mean of the values (R, H, b, i) or
    None, and the readout's bias (H, o, i) or None.
    """

    def respond(
        self,
        moment: Tensor,
        readout: Tensor,
        mean: Tensor | None,
        bias: Tensor | None,
    ) -> Tensor:
        # o_ho = Σ_iw moment_hiw readout_hoiw + Σ_i mean_hi bias_hoi
        weight = readout.to(moment.dtype).flatten(2)
        out = torch.bmm(_by_head(moment), weight.mT)
        if mean is not None and bias is not None:
            out = out + torch.bmm(_by_head(mean), bias.to(moment.dtype).mT)
        return _of_rows(out, moment)

    def gradients(
        self,
        above: Tensor,
        needs: Sequence[bool],
        moment: Tensor,
        readout: Tensor,
        mean: Tensor | None,
        bias: Tensor | None,
    ) -> list[Tensor | None]:
        """Return the gradients of moment, readout, mean and bias, in this order.

        The response of a head is o = M Rᵀ + m bᵀ, with a row per query, and so the gradients are
        those of a linear layer: ō R for M, ōᵀ M for R, ō b for m and ōᵀ m for b.
        """
        moment_needed, readout_needed, mean_needed, bias_needed = needs
        of_moment = of_readout = of_mean = of_bias = None
        above = above.to(moment.dtype)
        rows = _by_head(above)
        if moment_needed:
            weight = readout.to(moment.dtype).flatten(2)
            of_moment = _of_rows(torch.bmm(rows, weight), moment)
        if readout_needed:
            of_weight = torch.bmm(rows.mT, _by_head(moment))
            of_readout = of_weight.view_as(readout).to(readout.dtype)
        if mean is not None and bias is not None:
            if mean_needed:
                of_mean = _of_rows(torch.bmm(rows, bias.to(above.dtype)), moment)
            if bias_needed:
                of_bias = torch.bmm(rows.mT, _by_head(mean)).to(bias.dtype)
        return [
            of_moment,
            of_readout,
            of_mean,
            of_bias,
        ]


def _by_head(x: Float[Tensor, "r h b n"]) -> Float[Tensor, "h rb n"]:
    """Return the rows of each head as one matrix."""
    return x.transpose(1, 2).flatten(0, 1).transpose(0, 1)


def _of_rows(x: Float[Tensor, "h rb n"], like: Tensor) -> Float[Tensor, "r h b n"]:
    """Return the inverse of :func:`_by_head`, in the rows and blocks of ``like``."""
    problems, _, queries, _ = like.shape
    rows = x.transpose(0, 1).unflatten(0, (problems, queries))
    return rows.transpose(1, 2)


class Entries(LastStep):
    """Hidden units that heads of one output share: the kernel's entries are then no more numbers
    than the moments, and one matrix product.

    Inputs: hidden (R, 1, b, k, w), measure (R | 1, 1 | H, b | 1, k | 1), value (R, H, k, i),
    readout (H, 1, i, w), bias (H, 1, i) or None.
    """

    def respond(
        self,
        hidden: Tensor,
        measure: Tensor,
        value: Tensor,
        readout: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        heads, _, width, _ = readout.shape
        products = _entries(hidden, readout, bias, value.dtype) * _side_by_side(value)
        if width > 1:
            products = products.unflatten(-1, (heads, width)).sum(-1)
        if measure.shape[3] == 1:
            # One mass for all keys is multiplied with their sum.
            total = products.sum(2)
            return total.mT[..., None] * measure
        if measure.shape[1] == 1:
            # One product of a row of masses and its entries, (R, b, 1, k) times (R, b, k, H).
            total = measure[:, 0, :, None] @ products
            return total.movedim(-1, 1)
        total = (products * measure.movedim(1, -1)).sum(2)
        return total.mT[..., None]

    def gradients(
        self,
        above: Tensor,
        needs: Sequence[bool],
        hidden: Tensor,
        measure: Tensor,
        value: Tensor,
        readout: Tensor,
        bias: Tensor | None,
    ) -> list[Tensor | None]:
        """Return the gradients of hidden, measure, value, readout and bias, in this order.

        The response is out_h = Σ_k m_hk Σ_i e_khi v_khi with the entries e = R · hidden + bias. So
        the gradient of a product e v is that of out times m; that of e multiplies it by v, and that
        of v by e. ``above`` is the gradient of the response, (R, H, b, 1).
        """
        # The width is i here, the numbers of a value per head. In the products the values of all
        # heads lie side by side, (R, 1, k, H · i), and so do the entries, (R, b, k, H · i).
        hidden_needed, measure_needed, value_needed, readout_needed, bias_needed = needs
        of_hidden = of_measure = of_value = of_readout = of_bias = None
        heads, _, width, _ = readout.shape
        dtype = value.dtype
        values = _side_by_side(value)
        # (R, b, 1, H)
        above = above[..., 0].mT[:, :, None].to(dtype)

        # Only the gradients of measure and value read the entries.
        entries = None
        if measure_needed or value_needed:
            entries = _entries(hidden, readout, bias, dtype)
        if entries is not None and measure_needed:
            products = (entries * values).unflatten(-1, (heads, width)).sum(-1)
            of_pairs = (products * above).movedim(-1, 1)
            of_measure = of_pairs.sum_to_size(measure.shape)

        # The gradient of each product of an entry and a value, (R, b, k | 1, H · i).
        of_products = above * measure.movedim(1, -1)
        if width > 1:
            of_products = of_products.repeat_interleave(width, -1)
        if entries is not None and value_needed:
            # In place: the entries are not read again.
            of_values = entries.mul_(of_products).sum(1)
            of_value = of_values.unflatten(-1, (heads, width)).transpose(1, 2)

        if hidden_needed or readout_needed or bias_needed:
            # A row per pair, (R · b · k, H · i), so that the rest are matrix products.
            of_entries = (values * of_products).flatten(0, 2)
            if hidden_needed:
                weight = readout.to(dtype).flatten(0, 2)
                of_hidden = (of_entries @ weight).view_as(hidden)
            if readout_needed:
                of_weight = of_entries.mT @ hidden.flatten(0, 3)
                of_readout = of_weight.view_as(readout).to(readout.dtype)
            if bias is not None and bias_needed:
                of_bias = of_entries.sum(0).view_as(bias).to(bias.dtype)
        return [
            of_hidden,
            of_measure,
            of_value,
            of_readout,
            of_bias,
        ]


def _entries(
    hidden: Tensor,
    readout: Tensor,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Float[Tensor, "r b k hi"]:
    """Return the kernel's entries at each pair: :class:`Entries` multiplies them with the values.

    All heads share the hidden units (R, 1, b, k, w), and each head has one output. So the readout
    (H, 1, i, w) is one matrix (H · i, w), which gives the entries of all heads side by side.
    """
    matrix = readout.to(dtype).flatten(0, 2)
    shift = None
    if bias is not None:
        shift = bias.to(dtype).flatten()
    return F.linear(hidden[:, 0], matrix, shift)


def _side_by_side(value: Tensor) -> Float[Tensor, "r 1 k hi"]:
    """Return the values of all heads side by side."""
    return value.transpose(1, 2).flatten(2)[:, None]


ENTRIES, READOUT = Entries(), Readout()
