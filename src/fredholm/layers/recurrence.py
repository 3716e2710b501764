"""Recurrence: K(t, s; u) = C_t A_t A_(t-1) ... A_(s+1) B_s, along the trajectory.

The kernel, then the converter of ``torch.nn.RNN``, ``LSTM`` and ``GRU``. The algebra of one
direction of one layer is in ``trajectory/``; this file is long because the kernel has every view of
the same layers: its rows, its response, torch's recurrence, one step, and the domains it can live
on.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..domain import Domain, default_line
from ..errors import DomainError, OptionError, suggest
from ..integral import (
    CausalTransition,
    IntegralOperator,
    Layout,
    MatrixKernel,
    OwnForm,
    Part,
    Point,
    Problem,
    check_dropout,
)
from ..integral.bases import OWN_FIRST
from ..integral.conversion import refuse_dropout, register_converter
from ..ops.backend import transforms
from .parts import at_queries, bind
from .trajectory import CELLS, LINEARIZATIONS, Trajectory, Weights, push
from .trajectory.initial_state import (
    InitialState,
    as_torch_takes_it,
    check_state,
    fits_batch,
    for_batch,
    tensors_of,
)
from .trajectory.line import Line, Order, take


class RecurrentKernel(MatrixKernel, OwnForm, CausalTransition):
    r"""The response of an RNN, LSTM or GRU, exact along its trajectory:
    :math:`K(t, s; u) = C_t A_t A_{t-1} \cdots A_{s+1} B_s`.

    Every nonlinearity is a secant through the origin, :math:`\sigma(z) = S(z)\,z`, whose slope,
    like the gates, follows from the trajectory of u. The recurrence is then affine, and
    its output is :math:`\sum_s K(t, s; u)\,u_s` + offset. Nothing is detached, so that gradients
    agree as well. The offset contains the biases and the initial state. Layers compose,
    :math:`K = \sum_r K_2(t, r)\,K_1(r, s)`; a second direction runs over the points from the last
    to the first.

    Args:
        layer: a ``torch.nn.RNN`` (tanh or relu), ``LSTM`` or ``GRU`` of any depth; its parameters
            are the kernel's.
        initial_state: h, and for an LSTM (h, c), each (layers · directions, width) or (layers ·
            directions, B, width); zeros without. A ``Parameter`` is trained, another tensor kept as
            a buffer.
        linearization: ``"secant"``, exact. ``"tangent"``: slopes σ' in its place, the paper's form
            for an RNN; ``"gates"``, for LSTM and GRU: tangents, and products of the retention gates
            alone, as Eqs. 148 and 150 are printed. These two differ from the layer:
            the operator then evaluates its kernel, and :meth:`linearization_error` returns the
            error.

    Shape: u (B, N, input_size) on a line with a mass of one per point, causal unless the layer
    is bidirectional, to (B, N, directions · width). Padding may be anywhere: it does not change the
    state.

    Cost: that of the layer; a row of the kernel O(N·d_out·n²) time and O(N·d_out·n) memory; a step
    O(1) memory.

    Raises:
        OptionError: an initial state that does not fit, an unknown linearization.
        DomainError: renormalised or weighted measures, pairs, grids, other query points, an order
            that is not the layer's.
        ConversionError: training mode with dropout between layers.

    Reference: ITNet Theorem 3, Appendix E.4, E.7, E.8, with secants instead of the paper's
    tangents.

    Example:
        >>> from fredholm.operators import IntegralOperator
        >>> lstm = nn.LSTM(3, 5, batch_first=True)
        >>> kernel, u = RecurrentKernel(lstm), torch.randn(2, 7, 3)
        >>> op = IntegralOperator(3, kernel=kernel, out_dim=5, residual=False, projection=False)
        >>> torch.allclose(op.dense(u), lstm(u)[0], atol=1e-6)
        True
    """

    reads_query = False
    forms = OWN_FIRST
    layer = Part()

    def __init__(
        self,
        layer: nn.Module,
        *,
        initial_state: InitialState | None = None,
        linearization: str = "secant",
    ):
        if not isinstance(layer, nn.RNNBase) or layer.mode not in CELLS:
            raise OptionError(f"expected a torch.nn.RNN, LSTM or GRU, got {type(layer).__name__}")
        if linearization not in LINEARIZATIONS:
            raise OptionError(
                f"linearization: expected {', '.join(LINEARIZATIONS)}, got {linearization!r}"
                f"{suggest(linearization, LINEARIZATIONS)}"
            )
        if linearization == "gates" and layer.mode.startswith("RNN"):
            raise OptionError(
                "linearization: expected 'secant' or 'tangent' for an RNN, got 'gates', which "
                "keeps retention gates alone: an RNN has none"
            )
        self.directions = 1
        if layer.bidirectional:
            self.directions = 2
        self.width = layer.proj_size or layer.hidden_size
        super().__init__(1, layer.input_size, self.directions * self.width)
        self.layer = layer
        self.linearization = linearization

        # A Parameter is trained; another tensor is constant and moves with the kernel.
        state = check_state(layer, initial_state, self.width)
        for name, x in state._asdict().items():
            if x is None or isinstance(x, nn.Parameter):
                self.register_parameter(f"initial_{name}", x)
            else:
                self.register_buffer(f"initial_{name}", x)

    # --- the definition ---------------------------------------------------------------------------

    def matrix(self, problem: Problem) -> Tensor:
        u = problem.uy[:, 0]
        n = u.shape[1]
        index = problem.index
        if index is None:
            index = torch.arange(n, device=u.device)

        # The rows of the identity at the queries, (B, Nq, N, d_out, d_out).
        points = nn.functional.one_hot(index, n)
        points = points.to(u.dtype)
        features = torch.eye(self.d_out, dtype=u.dtype, device=u.device)
        rows = points[:, :, None, None] * features
        rows = rows.expand(u.shape[0], -1, -1, -1, -1)

        # From the last layer to the first: its rows are the factors of the layer below.
        layers = self._unroll(u, problem.quadrature.valid)
        for lines in reversed(layers):
            parts = rows.split(self.width, -1)
            pulled = [line.pull(part) for line, part in zip(lines, parts)]
            rows = reduce(torch.add, pulled)
        return rows[:, None]

    def offset(self, problem: Problem) -> Tensor | None:
        u = problem.uy[:, 0]
        layers = self._unroll(u, problem.quadrature.valid)
        response = self._respond(layers, None)
        return at_queries(response[:, None], problem)

    def _unroll(
        self,
        u: Float[Tensor, "b n d"],
        valid: Tensor | None,
    ) -> list[list[Line]]:
        """Return the trajectory of every layer and direction."""
        n = u.shape[1]
        forwards = Order.of(valid, n, reverse=False, device=u.device)
        orders = [forwards]
        if self.directions == 2:
            backwards = Order.of(valid, n, reverse=True, device=u.device)
            orders.append(backwards)

        states = iter(self._states(u))
        layers = []
        for layer in range(self.layer.num_layers):
            lines = []
            outputs = []
            for direction, order in enumerate(orders):
                start = next(states)
                ordered = take(u, order.there)
                line = self._cell(layer, direction, ordered, start)
                lines.append(Line(line, order, start))
                outputs.append(take(line.output, order.back))
            u = torch.cat(outputs, -1)
            layers.append(lines)
        return layers

    @staticmethod
    def _respond(layers: list[list[Line]], u: Tensor | None) -> Tensor:
        """Return the affine response of all layers to u, with the coefficients of the trajectory.
        The response to no signal is the offset.
        """
        for lines in layers:
            outputs = [line.push(u) for line in lines]
            u = torch.cat(outputs, -1)
        assert u is not None
        return u

    def linearization_error(
        self,
        u: Float[Tensor, "b n d"],
        valid: Bool[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, ""]:
        r"""Return the relative distance of the kernel's response from the layer's output,
        :math:`\lVert K u + o - y \rVert / \lVert y \rVert` over all points.

        Rounding for ``"secant"``.

        Example:
            >>> kernel = RecurrentKernel(nn.LSTM(3, 5), linearization="tangent")
            >>> kernel.linearization_error(torch.randn(2, 20, 3)).item() > 0.001
            True
        """
        real = u.new_ones(u.shape[:2])
        if valid is not None:
            real = valid.to(u.dtype)
            u = torch.where(valid[..., None], u, 0.0)
        exact = self._layer_output(u, valid)
        layers = self._unroll(u, valid)
        linear = self._respond(layers, u)
        difference = (linear - exact) * real[..., None]
        exact = exact * real[..., None]
        return difference.norm() / exact.norm()

    # --- as torch computes it ---------------------------------------------------------------------

    def evaluates(self, layout: Layout) -> bool:
        return True

    def evaluate(self, problem: Problem) -> Tensor:
        # Squeezed, not sliced: the gradient of a slice is written into zeros.
        u = problem.uy.squeeze(1)
        valid = problem.quadrature.valid
        # torch's layers have no rules for transforms, and read lengths of padded sequences.
        if self.linearization != "secant" or transforms() or u.is_meta:
            layers = self._unroll(u, valid)
            return self._respond(layers, u).unsqueeze(1)
        if self._lacks_bf16(u):
            with torch.autocast("cpu", enabled=False):
                dtype = next(self.layer.parameters()).dtype
                out = self._layer_output(u.to(dtype), valid)
                return out.unsqueeze(1)
        out = self._layer_output(u, valid)
        return out.unsqueeze(1)

    def _lacks_bf16(self, u: Tensor) -> bool:
        """Return whether autocast would ask oneDNN for an LSTM in bfloat16 on a processor where it
        has none and raises.
        """
        if u.device.type != "cpu" or self.layer.mode != "LSTM":
            return False
        in_bf16 = torch.is_autocast_enabled("cpu")
        return in_bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported()

    def _layer_output(
        self,
        u: Float[Tensor, "b n d"],
        valid: Tensor | None,
    ) -> Float[Tensor, "b n o"]:
        """Run torch's recurrence. Padding is moved behind the real points, where it reaches no
        output of theirs.
        """
        batch, n, _ = u.shape
        parts = contiguous_for(self.initial, batch)
        order = Order.of(valid, n, reverse=False, device=u.device)
        u = take(u, order.there)

        # A second direction begins at the last real point, so that it needs the lengths. torch
        # packs no empty batch, which has no padding to be read either.
        if valid is not None and self.directions == 2 and batch:
            lengths = valid.expand(batch, -1).sum(1)
            lengths = lengths.clamp(min=1).cpu()
            packed = pack_padded_sequence(
                u,
                lengths,
                batch_first=True,
                enforce_sorted=False,
            )
            start = as_torch_takes_it(parts)
            answer, _ = self.layer(packed, start)
            out, _ = pad_packed_sequence(answer, batch_first=True, total_length=n)
        else:
            out = run_layer(self.layer, u, parts)
        return take(out, order.back)

    # --- one point at a time ----------------------------------------------------------------------

    def start(self, u: Tensor) -> dict[str, Tensor]:
        """Return the state before the first point, by name and layer: h and, of an LSTM, c. For a
        linearization other than secants also s and y, the state and output of the affine
        recurrence.
        """
        memory = {}
        for layer, state in enumerate(self._states(u)):
            for name, x in zip("hc", state):
                memory[f"{name}{layer}"] = x
            if self.linearization != "secant":
                memory[f"s{layer}"] = state[-1]
                memory[f"y{layer}"] = state[0]
        return memory

    def advance(
        self,
        point: Point,
        memory: dict[str, Tensor],
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the output at one point, (B, 1, d_out), and the memory after it; see
        :meth:`start`.

        The nonlinear recurrence u always advances. Secants reproduce its output. Under another
        linearization it only supplies the slopes, and the output is that of the affine recurrence
        beside it.
        """
        # The only head is the axis of length one that a cell takes for time.
        u = affine = point.u
        after = {}
        for layer in range(self.layer.num_layers):
            # h, and of an LSTM also c.
            names = [f"{name}{layer}" for name in "hc" if f"{name}{layer}" in memory]
            state = tuple(memory[name] for name in names)
            line = self._cell(layer, 0, u, state)
            u = line.output
            after |= dict(zip(names, line.state))
            if self.linearization != "secant":
                before = (memory[f"s{layer}"], memory[f"y{layer}"])
                affine, (s, y) = push(line, affine, before)
                after[f"s{layer}"] = s
                after[f"y{layer}"] = y

        if self.linearization == "secant":
            return u, after
        return affine, after

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        bidirectional = self.directions == 2
        name = type(self.layer).__name__
        build = "build it with Domain.line(n, causal=True, measure='counting')"
        if bidirectional:
            name = f"a bidirectional {name}"
            build = "build it with Domain.line(n, measure='counting')"

        if layout.cross:
            raise DomainError(
                f"{name} has its output at the points it reads; leave query and query_domain out"
            )
        # A padded batch of lines of several lengths has no extents any more.
        if layout.keys is None and not layout.padded:
            raise DomainError(f"{name}: expected a line, got points without one; {build}")
        if layout.keys is not None and len(layout.keys) != 1:
            raise DomainError(
                f"{name}: expected a line, got a grid of {len(layout.keys)} axes; {build}"
            )
        if layout.causal == bidirectional:
            got = "is causal" if layout.causal else "has no order"
            raise DomainError(f"{name} cannot live on a domain that {got}; {build}")
        if layout.pairs:
            raise DomainError(
                f"{name} cannot hide or weigh pairs of points; {build}, without pairs"
            )
        if layout.measure != "counting":
            raise DomainError(
                f"{name}: expected a mass of one per point, got the measure {layout.measure!r}; "
                f"{build}"
            )
        check_dropout(self.layer.training, dropout_of(self.layer))

    def default_domain(
        self,
        n: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> Domain:
        return default_line(
            n,
            causal=self.directions == 1,
            measure="counting",
            device=device,
            dtype=dtype,
        )

    # --- parts ------------------------------------------------------------------------------------

    def _cell(
        self,
        layer: int,
        direction: int,
        u: Tensor,
        state: tuple[Tensor, ...],
    ) -> Trajectory:
        """Return one layer and direction along its trajectory."""
        tail = f"_l{layer}"
        if direction:
            tail += "_reverse"
        names = (
            "weight_ih",
            "weight_hh",
            "bias_ih",
            "bias_hh",
            "weight_hr",
        )
        tensors = [getattr(self.layer, name + tail, None) for name in names]
        weights = Weights(*tensors)  # type: ignore[arg-type]
        cell = CELLS[self.layer.mode]
        return cell(weights, u, state, self.linearization)

    @property
    def initial(self) -> tuple[Tensor, ...]:
        """The initial state as it was passed, empty for zeros."""
        parts = (self.initial_h, self.initial_c)
        return tuple(x for x in parts if isinstance(x, Tensor))

    def _states(self, u: Tensor) -> list[tuple[Tensor, ...]]:
        """Return the state before the first point, layer by layer and direction by direction, for a
        batch like that of u.
        """
        parts = self.initial
        if not parts:
            rows = self.layer.num_layers * self.directions
            widths = [self.width]
            if self.layer.mode == "LSTM":
                widths.append(self.layer.hidden_size)
            parts = tuple(u.new_zeros(rows, width) for width in widths)
        batch = u.shape[0]
        of_layers = []
        for x in parts:
            of_batch = for_batch(x, batch)
            of_layers.append(of_batch.unbind(0))
        return list(zip(*of_layers))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, linearization={self.linearization!r}"


def run_layer(
    layer: nn.RNNBase,
    u: Float[Tensor, "b n d"],
    state: tuple[Tensor, ...],
) -> Float[Tensor, "b n o"]:
    """Call torch's layer on (B, N, d), whatever its ``batch_first``."""
    first = as_torch_takes_it(state)
    if layer.batch_first:
        out, _ = layer(u, first)
        return out
    out, _ = layer(u.transpose(0, 1), first)
    return out.transpose(0, 1)


def contiguous_for(parts: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """Return the parts of an initial state for a batch, as torch's layers read them."""
    return tuple(for_batch(x, batch).contiguous() for x in parts)


def dropout_of(layer: nn.RNNBase) -> float:
    """Return the rate of dropout between layers. A single layer has none, whatever it was given."""
    if layer.num_layers > 1:
        return layer.dropout
    return 0.0


def _call(
    layer: Any,
    u: Tensor,
    domain: Domain,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> Tensor | None:
    """Run the recurrence from its initial state, or return None for another function: a
    linearization, or a state for batches of another size.
    """
    parts = tensors_of(initial_state)
    batch = u.shape[0]
    if linearization != "secant" or not fits_batch(parts, batch):
        return None
    return run_layer(layer, u, contiguous_for(parts, batch))


@register_converter(
    *(f"torch.nn.modules.rnn.{name}" for name in ("RNN", "LSTM", "GRU")),
    call=_call,
)
def recurrence(
    module: nn.RNN | nn.LSTM | nn.GRU,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> IntegralOperator:
    """Convert an RNN (tanh or relu), LSTM or GRU of any depth, one or two directions, with any of
    torch's options but active dropout.

    Its default domain is the causal line with a mass of one per point, for two directions the same
    line without order. ``initial_state`` and ``linearization`` are those of
    :class:`fredholm.layers.recurrence.RecurrentKernel`.
    """
    refuse_dropout(module, dropout_of(module))
    kernel = RecurrentKernel(module, initial_state=initial_state, linearization=linearization)
    return bind(kernel)
