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
        )
        return with_offset(cast(out, p.uy.dtype), kernel, p)


def _numbers_per_pair(kernel: Kernel, problem: Problem, width: int) -> int:
    """Return the numbers in memory per pair of a query and a key, for hidden units of a width."""
    heads, edges = problem.uy.shape[1], problem.quadrature.edges
    if kernel.d_out == 1:
        return 4 * (width + heads * kernel.d_in)
    numbers = 4 * width
    if edges is not None:
        # A query has moments, and these have a gradient.
        pairs = max(1, edges.count // max(1, edges.rows))
        numbers += 2 * heads * kernel.d_in * width // pairs
    return numbers


def _hidden(kernel: HiddenReadout, tile: Neighbours, heads: int) -> Tensor:
    """Return the hidden units of a tile, (R, 1 | H, b, k, w)."""
    x, y = tile.rows["x"], tile.seen_positions()
    ux, uy = tile.heads("ux", heads), tile.heads("uy", heads)
    hidden = kernel.hidden(x[:, None, :, None], y[:, None, None], ux[:, :, :, None], uy[:, :, None])
    return hidden.expand(len(x), -1, x.shape[1], y.shape[1], -1)


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
        mean = weighted_sum(measure.expand(-1, -1, -1, value.shape[2]), value)
    return Pending(READOUT, (_moments(hidden, measure, value), readout, mean, bias))


def _moments(hidden: Tensor, measure: Tensor, value: Tensor) -> Float[Tensor, "r h b iw"]:
    """Return the sums over the keys of values times hidden units.

    One query at a time (b = 1) is a batch of matrix products as it is; a block of queries shares
    its values.
    """
    count = value.shape[1]
    hidden = hidden * measure[..., None]
    if hidden.shape[1] == 1 and count > 1:
        # Hidden units that heads share meet the values of all heads at once.
        every = value.transpose(1, 2).flatten(2).mT
        if hidden.shape[2] == 1:
            moment = torch.bmm(every, hidden[:, 0, 0])[:, None]
        else:
            moment = every[:, None] @ hidden[:, 0]
        moment = moment.unflatten(2, (count, -1)).transpose(1, 2)
    elif hidden.shape[2] == 1:
        moment = (value.mT @ hidden[:, :, 0])[:, :, None]
    else:
        moment = value.mT[:, :, None] @ hidden
    return moment.flatten(3)


class Readout(LastStep):
    """The readout of moments, one matrix product per head.

    Inputs: moments (R, H, b, i · w), readout (H, o, i, w), the mean of the values (R, H, b, i) or
    None, and the readout's bias (H, o, i) or None.
    """

    def respond(
        self, moment: Tensor, readout: Tensor, mean: Tensor | None, bias: Tensor | None
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
        found: list[Tensor | None] = [None] * 4
        above = above.to(moment.dtype)
        rows = _by_head(above)
        if needs[0]:
            weight = readout.to(moment.dtype).flatten(2)
            found[0] = _of_rows(torch.bmm(rows, weight), moment)
        if needs[1]:
            of_weight = torch.bmm(rows.mT, _by_head(moment))
            found[1] = of_weight.view_as(readout).to(readout.dtype)
        if mean is not None and bias is not None:
            if needs[2]:
                found[2] = _of_rows(torch.bmm(rows, bias.to(above.dtype)), moment)
            if needs[3]:
                found[3] = torch.bmm(rows.mT, _by_head(mean)).to(bias.dtype)
        return found


def _by_head(x: Float[Tensor, "r h b n"]) -> Float[Tensor, "h rb n"]:
    """Return the rows of each head as one matrix."""
    return x.transpose(1, 2).flatten(0, 1).transpose(0, 1)


def _of_rows(x: Float[Tensor, "h rb n"], like: Tensor) -> Float[Tensor, "r h b n"]:
    """Return the inverse of :func:`_by_head`, in the rows and blocks of ``like``."""
    shape = like.shape[0], like.shape[2]
    return x.transpose(0, 1).unflatten(0, shape).transpose(1, 2)


class Entries(LastStep):
    """Hidden units that heads of one output share: the kernel's entries are then no more numbers
    than the moments, and one matrix product.

    Inputs: hidden (R, 1, b, k, w), measure (R | 1, 1 | H, b | 1, k | 1), value (R, H, k, i),
    readout (H, 1, i, w), bias (H, 1, i) or None.
    """

    def respond(
        self, hidden: Tensor, measure: Tensor, value: Tensor, readout: Tensor, bias: Tensor | None
    ) -> Tensor:
        heads, _, width, _ = readout.shape
        products = _entries(hidden, readout, bias, value.dtype) * _side_by_side(value)
        if width > 1:
            products = products.unflatten(-1, (heads, width)).sum(-1)
        if measure.shape[3] == 1:
            # One mass for all keys is multiplied with their sum.
            return products.sum(2).mT[..., None] * measure
        if measure.shape[1] == 1:
            # One product of a row of masses and its entries, (R, b, 1, k) times (R, b, k, H).
            return (measure[:, 0, :, None] @ products).movedim(-1, 1)
        return (products * measure.movedim(1, -1)).sum(2).mT[..., None]

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
        heads, _, width, _ = readout.shape
        dtype, values = value.dtype, _side_by_side(value)
        weight = readout.to(dtype).flatten(0, 2)
        above = above[..., 0].mT[:, :, None].to(dtype)  # (R, b, 1, H)

        # Only the gradients of measure and value read the entries.
        found: list[Tensor | None] = [None] * 5
        entries = None
        if needs[1] or needs[2]:
            entries = _entries(hidden, readout, bias, dtype)
        if entries is not None and needs[1]:
            products = (entries * values).unflatten(-1, (heads, width)).sum(-1)
            of_measure = (products * above).movedim(-1, 1)
            found[1] = of_measure.sum_to_size(measure.shape)

        # The gradient of each product of an entry and a value, (R, b, k | 1, H · i).
        of_products = above * measure.movedim(1, -1)
        if width > 1:
            of_products = of_products.repeat_interleave(width, -1)
        if entries is not None and needs[2]:
            # In place: the entries are not read again.
            of_value = entries.mul_(of_products).sum(1)
            found[2] = of_value.unflatten(-1, (heads, width)).transpose(1, 2)

        if needs[0] or needs[3] or needs[4]:
            # A row per pair, (R · b · k, H · i), so that the rest are matrix products.
            of_entries = (values * of_products).flatten(0, 2)
            if needs[0]:
                found[0] = (of_entries @ weight).view_as(hidden)
            if needs[3]:
                of_weight = of_entries.mT @ hidden.flatten(0, 3)
                found[3] = of_weight.view_as(readout).to(readout.dtype)
            if bias is not None and needs[4]:
                found[4] = of_entries.sum(0).view_as(bias).to(bias.dtype)
        return found


def _entries(
    hidden: Tensor, readout: Tensor, bias: Tensor | None, dtype: torch.dtype
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
