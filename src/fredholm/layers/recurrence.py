"""Recurrence: K(t, s; u) = C_t A_t A_(t-1) ... A_(s+1) B_s, along the trajectory.

The kernel, then the converter of ``torch.nn.RNN``, ``LSTM`` and ``GRU``, then
:func:`memory_profile`, which says how far back an operator looks. The algebra of one direction of
one layer is in ``trajectory/``; this file is long because the kernel has every view of the same
layers: its rows, its response, torch's recurrence, one step, and the domains it can live on.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from ..domain import Domain, default_line
from ..errors import DomainError, OptionError, ShapeError, suggest
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
from .trajectory import CELLS, LINEARIZATIONS, Trajectory, Weights, push
from .trajectory.line import Line, Order, take

InitialState = Tensor | tuple[Tensor, Tensor]


class RecurrentKernel(MatrixKernel, OwnForm, CausalTransition):
    r"""The response of an RNN, LSTM or GRU, exact along its trajectory:
    :math:`K(t, s; u) = C_t A_t A_{t-1} \cdots A_{s+1} B_s`.

    Every nonlinearity is a secant through the origin, :math:`\sigma(z) = S(z)\,z`, whose slope,
    like the gates, is read off the trajectory that u makes; with that the recurrence is affine and
    its output is :math:`\sum_s K(t, s; u)\,u_s` + offset. Nothing is detached, so that gradients
    agree as well. The offset carries the biases and the initial state. Layers compose,
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
            alone, as Eqs. 148 and 150 are printed. These two are other functions than the layer:
            the operator then evaluates its kernel, and :meth:`linearization_error` says how far off
            it is.

    Shape: u (B, N, input_size) on a line with a mass of one per point, causal unless the layer
    is bidirectional, to (B, N, directions · width). Padding may be anywhere: the state passes it
    by.

    Cost: that of the layer; a row of the kernel O(N·d_out·n²) time and O(N·d_out·n) memory; a step
    O(1) memory.

    Raises:
        OptionError: an initial state that does not fit, an unknown linearization.
        DomainError: renormalised or weighted measures, pairs, grids, other query points, an order
            that is not the layer's.
        ConversionError: training mode with dropout between layers.

    Reference: ITNet Theorem 3, Appendix E.4, E.7, E.8, with secants where the paper has tangents.

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
            raise OptionError(
                f"RecurrentKernel takes a torch.nn.RNN, LSTM or GRU, got {type(layer).__name__}"
            )
        if linearization not in LINEARIZATIONS:
            raise OptionError(
                f"unknown linearization {linearization!r}{suggest(linearization, LINEARIZATIONS)}"
            )
        if linearization == "gates" and layer.mode.startswith("RNN"):
            raise OptionError(
                "linearization='gates' keeps retention gates alone, and an RNN has none; use "
                "'tangent'"
            )
        self.directions = 2 if layer.bidirectional else 1
        self.width = layer.proj_size or layer.hidden_size
        super().__init__(1, layer.input_size, self.directions * self.width)
        self.layer, self.linearization = layer, linearization
        self._keep_initial_state(initial_state)

    # --- the definition ---------------------------------------------------------------------------

    def matrix(self, problem: Problem) -> Tensor:
        u = problem.uy[:, 0]
        index = (
            torch.arange(u.shape[1], device=u.device) if problem.index is None else problem.index
        )
        points = nn.functional.one_hot(index, u.shape[1]).to(u.dtype)
        features = torch.eye(self.d_out, dtype=u.dtype, device=u.device)
        rows = (points[:, :, None, None] * features).expand(u.shape[0], -1, -1, -1, -1)
        # From the last layer to the first: its rows are the factors of the layer below.
        for lines in reversed(self._unroll(u, problem.quadrature.valid)):
            parts = rows.split(self.width, -1)
            rows = sum(
                (line.pull(part) for line, part in zip(lines[1:], parts[1:])),
                lines[0].pull(parts[0]),
            )
        return rows[:, None]

    def offset(self, problem: Problem) -> Tensor | None:
        out = self._respond(self._unroll(problem.uy[:, 0], problem.quadrature.valid), None)
        return (
            out[:, None] if problem.index is None else out[:, None].index_select(2, problem.index)
        )

    def _unroll(self, u: Float[Tensor, "b n d"], valid: Tensor | None) -> list[list[Line]]:
        """The trajectory of every layer and direction."""
        n = u.shape[1]
        orders = [
            Order.of(valid, n, reverse=bool(d), device=u.device) for d in range(self.directions)
        ]
        states, layers = self._states(u), []
        for layer in range(self.layer.num_layers):
            lines = []
            for d, order in enumerate(orders):
                start = states[layer * self.directions + d]
                line = self._cell(layer, d, take(u, order.there), start)
                lines.append(Line(line, order, start))
            u = torch.cat([take(part.line.output, part.order.back) for part in lines], -1)
            layers.append(lines)
        return layers

    @staticmethod
    def _respond(layers: list[list[Line]], u: Tensor | None) -> Tensor:
        """The affine response of all layers, with the coefficients of the trajectory; to no signal:
        the offset.
        """
        for lines in layers:
            u = torch.cat([line.push(u) for line in lines], -1)
        assert u is not None
        return u

    def linearization_error(
        self, u: Float[Tensor, "b n d"], valid: Bool[Tensor, "b n"] | None = None
    ) -> Float[Tensor, ""]:
        r"""How far the kernel's response is from the layer:
        :math:`\lVert K u + o - y \rVert / \lVert y \rVert` over all points.

        Rounding for ``"secant"``.

        Example:
            >>> kernel = RecurrentKernel(nn.LSTM(3, 5), linearization="tangent")
            >>> kernel.linearization_error(torch.randn(2, 20, 3)).item() > 0.001
            True
        """
        real = u.new_ones(u.shape[:2]) if valid is None else valid.to(u.dtype)
        u = u if valid is None else torch.where(valid[..., None], u, 0.0)
        exact = self._layer_output(u, valid)
        linear = self._respond(self._unroll(u, valid), u)
        return ((linear - exact) * real[..., None]).norm() / (exact * real[..., None]).norm()

    # --- as torch computes it ---------------------------------------------------------------------

    def evaluates(self, layout: Layout) -> bool:
        return True

    def evaluate(self, problem: Problem) -> Tensor:
        # no slice: the gradient of one is written into zeros
        u, valid = problem.uy.squeeze(1), problem.quadrature.valid
        # torch's layers have no rules for transforms, and read lengths of padded sequences
        if self.linearization == "secant" and not (transforms() or u.is_meta):
            if not self._lacks_bf16(u):
                return self._layer_output(u, valid).unsqueeze(1)
            with torch.autocast("cpu", enabled=False):
                return self._layer_output(u.to(next(self.layer.parameters()).dtype), valid)[:, None]
        return self._respond(self._unroll(u, valid), u)[:, None]

    def _lacks_bf16(self, u: Tensor) -> bool:
        """Whether autocast would ask oneDNN for an LSTM in bfloat16 on a processor where it has
        none and raises.
        """
        in_bf16 = (
            torch.is_autocast_enabled("cpu")
            and self.layer.mode == "LSTM"
            and u.device.type == "cpu"
        )
        return in_bf16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported()

    def _layer_output(
        self, u: Float[Tensor, "b n d"], valid: Tensor | None
    ) -> Float[Tensor, "b n o"]:
        """torch's recurrence. Padding is moved behind the real points, where it reaches no
        output of theirs.
        """
        state = (
            None
            if self.initial is None
            else tuple(self._batched(x, u.shape[0]).contiguous() for x in self.initial)
        )
        state = state[0] if state is not None and len(state) == 1 else state
        if valid is None and self.layer.batch_first:
            return self.layer(u, state)[0]
        order = Order.of(valid, u.shape[1], reverse=False, device=u.device)
        u = take(u, order.there)
        # torch packs no empty batch, which has no padding to be read either.
        if valid is not None and self.directions == 2 and u.shape[0]:
            lengths = valid.expand(u.shape[0], -1).sum(1).clamp(min=1).cpu()
            packed = pack_padded_sequence(u, lengths, batch_first=True, enforce_sorted=False)
            out, _ = pad_packed_sequence(
                self.layer(packed, state)[0], batch_first=True, total_length=u.shape[1]
            )
        elif self.layer.batch_first:
            out = self.layer(u, state)[0]
        else:
            out = self.layer(u.transpose(0, 1), state)[0].transpose(0, 1)
        return take(out, order.back)

    # --- one point at a time ----------------------------------------------------------------------

    def start(self, u: Tensor) -> dict[str, Tensor]:
        """Each layer's state; beside it, for a linearization, the state and output of the affine
        recurrence.
        """
        memory = {}
        for layer, state in enumerate(self._states(u)):
            memory |= {f"{name}{layer}": x for name, x in zip("hc", state)}
            if self.linearization != "secant":
                memory |= {f"s{layer}": state[-1], f"y{layer}": state[0]}
        return memory

    def advance(self, point: Point, memory: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        u = affine = point.u
        after = {}
        for layer in range(self.layer.num_layers):
            state = tuple(memory[f"{name}{layer}"] for name in "hc" if f"{name}{layer}" in memory)
            line = self._cell(layer, 0, u, state)
            u = line.output
            after |= {f"{name}{layer}": x for name, x in zip("hc", line.state)}
            if self.linearization != "secant":
                affine, (s, y) = push(line, affine, (memory[f"s{layer}"], memory[f"y{layer}"]))
                after |= {f"s{layer}": s, f"y{layer}": y}
        return u if self.linearization == "secant" else affine, after

    # --- where the kernel lives -------------------------------------------------------------------

    def check(self, layout: Layout) -> None:
        both = self.directions == 2
        name = ("a bidirectional " if both else "") + type(self.layer).__name__
        build = f"Domain.line(n, {'' if both else 'causal=True, '}measure='counting')"
        if layout.cross:
            raise DomainError(
                f"{name} has its output at the points it reads; leave query and query_domain out"
            )
        # A padded batch of lines of several lengths has no extents any more.
        if layout.keys is None and not layout.padded:
            raise DomainError(f"{name} needs a line, got points without one; build it with {build}")
        if layout.keys is not None and len(layout.keys) != 1:
            raise DomainError(
                f"{name} needs a line, got a grid of {len(layout.keys)} axes; build it with {build}"
            )
        if layout.causal == both:
            got = "is causal" if layout.causal else "has no order"
            raise DomainError(f"{name} cannot live on a domain that {got}; build it with {build}")
        if layout.pairs:
            raise DomainError(
                f"{name} cannot hide or weigh pairs of points; build the domain without pairs: "
                f"{build}"
            )
        if layout.measure != "counting":
            raise DomainError(
                f"{name} has a mass of one a point, got the measure {layout.measure!r}; use {build}"
            )
        check_dropout(self.layer.training, self.layer.dropout if self.layer.num_layers > 1 else 0.0)

    def default_domain(self, n: int, *, device: torch.device, dtype: torch.dtype) -> Domain:
        return default_line(
            n, causal=self.directions == 1, measure="counting", device=device, dtype=dtype
        )

    # --- parts ------------------------------------------------------------------------------------

    def _cell(self, layer: int, direction: int, u: Tensor, state: tuple[Tensor, ...]) -> Trajectory:
        tail = f"_l{layer}" + ("_reverse" if direction else "")
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        weights = Weights(*(getattr(self.layer, name + tail, None) for name in names))  # type: ignore[arg-type]
        return CELLS[self.layer.mode](weights, u, state, self.linearization)

    @property
    def initial(self) -> tuple[Tensor, ...] | None:
        """The initial state as it was given, or None for zeros."""
        given = tuple(x for x in (self.initial_h, self.initial_c) if isinstance(x, Tensor))
        return given or None

    def _keep_initial_state(self, state: InitialState | None) -> None:
        cell = self.layer.mode == "LSTM"
        parts: tuple = (None, None)
        if state is not None:
            parts = state if isinstance(state, tuple | list) else (state,)
            if len(parts) != 1 + cell or not all(isinstance(x, Tensor) for x in parts):
                need = "a pair of tensors (h, c)" if cell else "one tensor h"
                raise OptionError(
                    f"the initial_state of {type(self.layer).__name__} is {need}, got "
                    f"{_describe(state)}"
                )
            parts = (*parts, None)[:2]
        for name, x, width in zip("hc", parts, (self.width, self.layer.hidden_size)):
            rows = self.layer.num_layers * self.directions
            if x is not None and (
                x.dim() not in (2, 3) or (x.shape[0], x.shape[-1]) != (rows, width)
            ):
                need = f"({rows}, {width}) or ({rows}, B, {width})"
                raise OptionError(
                    f"initial_state: {name} must have shape {need}, got {tuple(x.shape)}"
                )
            if x is not None and x.dtype != self.layer.weight_ih_l0.dtype:
                raise OptionError(
                    f"initial_state: {name} is {x.dtype}, the layer {self.layer.weight_ih_l0.dtype}"
                )
            if x is None or isinstance(x, nn.Parameter):
                self.register_parameter(f"initial_{name}", x)
            else:
                self.register_buffer(f"initial_{name}", x)

    @staticmethod
    def _batched(x: Tensor, batch: int) -> Float[Tensor, "r b n"]:
        if x.dim() == 3 and x.shape[1] not in (1, batch):
            raise ShapeError(f"initial_state is for a batch of {x.shape[1]}, u has {batch}")
        return (x if x.dim() == 3 else x[:, None]).expand(-1, batch, -1)

    def _states(self, u: Tensor) -> list[tuple[Tensor, ...]]:
        """The state before the first point, layer by layer and direction by direction, for a batch
        like that of u.
        """
        rows, batch = self.layer.num_layers * self.directions, u.shape[0]
        given = self.initial
        if given is None:
            widths = (
                (self.width, self.layer.hidden_size) if self.layer.mode == "LSTM" else (self.width,)
            )
            given = tuple(u.new_zeros(rows, width) for width in widths)
        return list(zip(*(self._batched(x, batch).unbind(0) for x in given)))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, linearization={self.linearization!r}"


def _describe(state: Tensor | tuple) -> str:
    if isinstance(state, Tensor):
        return f"a tensor {tuple(state.shape)}"
    return f"{type(state).__name__} of {[type(x).__name__ for x in state]}"


def _call(
    layer: Any,
    u: Tensor,
    domain: Domain,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> Tensor | None:
    """The recurrence from its initial state; a linearization is another function."""
    parts = () if initial_state is None else initial_state
    parts = (parts,) if isinstance(parts, Tensor) else parts
    if linearization != "secant" or any(x.dim() == 3 and x.shape[1] != u.shape[0] for x in parts):
        return None  # a state for batches of another size cannot be called here
    state = tuple(
        (x if x.dim() == 3 else x[:, None]).expand(-1, u.shape[0], -1).contiguous() for x in parts
    )
    given = state[0] if len(state) == 1 else state or None
    out = layer(u if layer.batch_first else u.transpose(0, 1), given)[0]
    return out if layer.batch_first else out.transpose(0, 1)


@register_converter(
    *(f"torch.nn.modules.rnn.{name}" for name in ("RNN", "LSTM", "GRU")), call=_call
)
def recurrence(
    module: nn.RNN | nn.LSTM | nn.GRU,
    *,
    initial_state: InitialState | None = None,
    linearization: str = "secant",
) -> IntegralOperator:
    """An RNN (tanh or relu), LSTM or GRU of any depth, one or two directions, with any of torch's
    options but active dropout.

    Its default domain is the causal line with a mass of one per point, for two directions the same
    line without order. ``initial_state`` and ``linearization`` are those of
    :class:`fredholm.layers.recurrence.RecurrentKernel`.
    """
    refuse_dropout(module, module.dropout if module.num_layers > 1 else 0.0)
    kernel = RecurrentKernel(module, initial_state=initial_state, linearization=linearization)
    return IntegralOperator(
        module.input_size, kernel=kernel, out_dim=kernel.d_out, residual=False, projection=False
    )


def memory_profile(
    operator: IntegralOperator,
    u: Float[Tensor, "b n d"],
    domain: Domain | None = None,
    *,
    rows: list[int] | None = None,
) -> Float[Tensor, " lags"]:
    r"""How far back a causal operator looks: the mean of :math:`\lVert K(t, t - \tau; u) \rVert_F`
    against the lag τ = 0, 1, …

    Args:
        operator: on a causal line, such as a converted LSTM.
        u, domain: a signal and its line, without padding; the mean is over the batch.
        rows: the queries t to average over, default the last point; lags reach to the earliest of
            them.

    Cost: that of ``kernel_matrix(rows=...)``; O(N) for a recurrence.

    Raises:
        ShapeError: no rows, or rows that are not points of u.

    Example:
        >>> from fredholm.convert import as_operator
        >>> linear = nn.RNN(1, 1, nonlinearity="relu", bias=False)
        >>> _ = nn.init.ones_(linear.weight_ih_l0), nn.init.constant_(linear.weight_hh_l0, 0.5)
        >>> memory_profile(as_operator(linear), torch.ones(1, 4, 1)).tolist()
        [1.0, 0.5, 0.25, 0.125]
    """
    rows = [u.shape[1] - 1] if rows is None else rows
    if not rows or min(rows) < 0 or max(rows) >= u.shape[1]:
        raise ShapeError(f"rows must name some of the points 0 to {u.shape[1] - 1}, got {rows}")
    sizes = torch.linalg.matrix_norm(operator.kernel_matrix(u, domain, rows=rows)).mean((0, 1))
    lags = min(rows) + 1
    return torch.stack([size[t + 1 - lags : t + 1].flip(0) for size, t in zip(sizes, rows)]).mean(0)
