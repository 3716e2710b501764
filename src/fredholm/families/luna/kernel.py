"""LUNA's kernel: attention by the inner products of a learned feature map, a bank of scalar
networks on learned projections.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import DomainError, OptionError
from ...forms.separable import Chunks, SeparableForm, Sums, expanded
from ...integral import (
    FeatureAttentionKernel,
    FeatureMap,
    Layout,
    Problem,
    Projections,
    answering,
    prepared,
    register_feature_map,
    with_offset,
)
from ...integral.capabilities import Separable, capability
from ...ops.backend import at_least_single, cast, full_precision, wants_triton
from ...ops.feature_map import (
    Bank,
    few_scalars,
    piecewise_linear,
    scalar_bank,
    scalar_bank_naive,
    segments,
)
from ...ops.feature_map import bank as networks
from ...ops.linear_attention import Banks, banked_attention
from .initial import INITS, chosen_options, gaussian, normal_grid, orthonormal

TINY = 1e-6
"""Added to a mean square before its root, whose slope at zero is infinite."""
LEARNED = ("coefficient", "gate", "gate_bias")
"""Parameters that are learned also where the networks stay as drawn."""


class _Start(NamedTuple):
    """What a map draws its first parameters by.

    Attributes:
        init: see :class:`LunaMap`.
        sets: sets of networks, one or H.
        hidden: units of a network.
        shared, bank: see :class:`LunaMap`.
    """

    init: str
    sets: int
    hidden: int
    shared: bool
    bank: bool


@register_feature_map("luna")
class LunaMap(FeatureMap):
    r"""A learned map: :math:`\phi(x) = h(x)\,[\psi_l(w_i\cdot x + b_i)]_{l,i} / \sqrt M`, ψ scalar
    networks 1 → hidden → 1.

    Args:
        width, heads: see :class:`FeatureMap`.
        directions: M, number of projections w; default 8, with ``init="exponential"`` the width e.
        channels: L; r = M·L. Default 8, with ``init="exponential"`` 2.
        hidden: units of a network.
        activation: of the hidden units; a ReLU is evaluated as the piecewise linear function it is.
        nonneg: a ReLU after ψ, so that no denominator is negative.
        per_head: w, b and ψ for every head, as in conversions; otherwise all heads share them.
        preset: ``"default"``; ``"exponential"``, to start near softmax; or one of the paper's
            versions: ``"paper"`` (its listing), ``"paper-figure"``, ``"paper-equation"``,
            ``"paper-gated"``. It sets the defaults of the next three options.
        shared: one network 1 → hidden → L instead of L networks.
        envelope: h: ``"none"`` (1), ``"scalar"`` (a softplus of a linear map) or ``"channels"`` (a
            sigmoid for every channel).
        init: of ψ: ``"knots"`` (knots where projections are, every channel with mean 0 and variance
            1 before the last ReLU) or ``"linear"`` (torch's default, which leaves about a fifth of
            the channels dead), or ``"exponential"``: ψ draws
            :math:`e^{u}, e^{-u}, e^{u/2}, e^{-u/2}, \dots` on [-6, 6], and directions are
            orthonormal, the identity if M = e, so that two channels begin as Hedgehog's features
            do. For conversions: attention starts nearer to softmax, and ends nearer.
        bank: w and ψ keep their random initial values, and one coefficient per channel is learned
            ("bank + coefficients").
        cap: scales down channels whose root mean square, the coefficient of ``bank`` included, is
            above ``target``: ``"running"`` with a running average over what :meth:`observe` is
            shown, which neither couples samples nor sees ahead; operators and converted layers show
            it their real points in training. Or ``"batch"`` with the call's statistic, as the
            paper's listing.

    Raises:
        OptionError: an unknown name, or a size below one.

    Reference: LUNA, Eqs. 9-11, Listing 1, Table 5.

    Example:
        >>> LunaMap(16, directions=4, channels=2)(torch.randn(1, 2, 5, 16)).shape
        torch.Size([1, 2, 5, 8])
    """

    weight: Tensor
    bias: Tensor
    bank_weight: Tensor
    bank_bias: Tensor
    bank_readout: Tensor
    bank_shift: Tensor
    coefficient: Tensor | None
    gate: Tensor | None
    gate_bias: Tensor | None
    mean_square: Tensor

    def __init__(
        self,
        width: int,
        heads: int = 1,
        *,
        directions: int | None = None,
        channels: int | None = None,
        hidden: int = 64,
        activation: str = "relu",
        nonneg: bool = True,
        per_head: bool = False,
        preset: str = "default",
        shared: bool | None = None,
        envelope: str | None = None,
        init: str | None = None,
        bank: bool = False,
        cap: str | None = None,
        target: float = 0.1,
    ):
        chosen = chosen_options(
            preset,
            shared=shared,
            envelope=envelope,
            init=init,
            cap=cap,
        )
        init = str(chosen["init"])
        exponential = init == "exponential"
        if directions is None:
            directions = width if exponential else 8
        if channels is None:
            channels = 2 if exponential else 8
        if min(directions, channels, hidden) < 1:
            raise OptionError(
                f"expected directions, channels and hidden of at least 1, got {directions}, "
                f"{channels} and {hidden}; use larger ones"
            )

        super().__init__(width, heads, features=directions * channels)
        self.directions = directions
        self.channels = channels
        self.activation = activation
        self.nonneg = nonneg
        self.envelope = chosen["envelope"]
        self.cap = cap
        self.target = target
        self.observes = cap == "running"
        self.positive = nonneg

        self._start = _Start(
            init=init,
            sets=heads if per_head else 1,
            hidden=hidden,
            shared=bool(chosen["shared"]),
            bank=bank,
        )
        for name, value in self._first().items():
            drawn = not bank and name != "mean_square"
            self._register(name, value, learned=drawn or name in LEARNED)

    @torch.no_grad()
    def draw(self) -> None:
        """Draw new values for all parameters, as at initialisation."""
        for name, value in self._first().items():
            if value is not None:
                getattr(self, name).copy_(value)

    def _first(self) -> dict[str, Tensor | None]:
        """Return the first parameters and buffers by name, None for those that the options leave
        out.
        """
        init, sets, hidden, shared, bank = self._start
        draw_bank = INITS[init]
        networks = draw_bank(
            sets,
            self.channels,
            hidden,
            shared,
            self.activation,
        )
        draw = gaussian
        if init == "exponential":
            draw = orthonormal
        first: dict[str, Tensor | None] = {
            "weight": draw(sets, self.directions, self.width),
            "bias": torch.zeros(sets, self.directions),
        }
        for name, part in networks._asdict().items():
            first[f"bank_{name}"] = part
        first["coefficient"] = None
        if bank:
            first["coefficient"] = torch.ones(self.channels)

        # The envelope is a linear map of the features.
        first["gate"] = None
        first["gate_bias"] = None
        if self.envelope is not None:
            rows = 1 if self.envelope == "scalar" else self.channels
            std = self.width**-0.5
            first["gate"] = torch.randn(sets, rows, self.width) * std
            first["gate_bias"] = torch.zeros(sets, rows)

        # The running average starts where channels do at projections of variance 1.
        first["mean_square"] = None
        if self.cap == "running":
            scalars = normal_grid().expand(1, sets, -1)
            values = scalar_bank_naive(
                scalars,
                networks,
                activation=self.activation,
                nonneg=self.nonneg,
            )
            squares = values.square()
            first["mean_square"] = squares.mean((0, 1, 3))
        return first

    def _register(
        self,
        name: str,
        value: Tensor | None,
        *,
        learned: bool,
    ) -> None:
        if not learned:
            self.register_buffer(name, value)
        elif value is None:
            self.register_parameter(name, None)
        else:
            self.register_parameter(name, nn.Parameter(value))

    @property
    def bank(self) -> Bank:
        """Parameters of ψ."""
        return Bank(
            self.bank_weight,
            self.bank_bias,
            self.bank_readout,
            self.bank_shift,
        )

    @property
    def plain(self) -> bool:
        """Whether the features are those of :meth:`scaled_bank` alone: no envelope, no cap that
        looks at them.
        """
        return self.gate is None and self.pointwise

    @property
    def per_head(self) -> bool:  # type: ignore[override]
        return self.weight.shape[0] > 1

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        """Whether a point's features depend on it alone: not if a cap uses the call's features."""
        return self.cap is None or (self.cap == "running" and not self.training)

    def scalars(self, x: Tensor) -> Tensor:
        """Return the projections u of x (B, H, N, e), (B, H, M, N), in float32 at least."""
        x = cast(x, at_least_single(x.dtype))
        with full_precision(x):
            weight = cast(self.weight, x.dtype)
            bias = cast(self.bias, x.dtype)
            return weight @ x.mT + bias[..., None]

    def scaled_bank(self, dtype: torch.dtype) -> Bank:
        """Return the networks ψ with all factors of a channel, but for the envelope and the batch's
        cap.
        """
        name = ("bank", dtype)
        return prepared(self, name, lambda: self._scaled_bank(dtype))

    def _scaled_bank(self, dtype: torch.dtype) -> Bank:
        # The scale is not negative, so that it may act before the ReLU.
        scale = self._scale(dtype)
        bank = self._bank_in(dtype)
        by_channel = scale.view(bank.shift.shape[1:])
        readout = bank.readout * by_channel[..., None]
        shift = bank.shift * by_channel
        return bank._replace(readout=readout, shift=shift)

    def _bank_in(self, dtype: torch.dtype) -> Bank:
        parts = [cast(part, dtype) for part in self.bank]
        return Bank(*parts)

    def features_of(self, x: Tensor) -> Tensor:
        few = self._of_few(x)
        if few is not None:
            return few
        y = self._of_scalars(self.scalars(x))
        if self.cap == "batch":
            y = self._capped(y)
        if self.gate is not None:
            envelope = self._envelope(x, self.gate, self.gate_bias)
            y = y * envelope
        return y.flatten(2, 3).mT

    def _of_scalars(self, u: Tensor) -> Tensor:
        """Return ψ at scalars (B, H, M, N) times :meth:`_scale`, (B, H, L, M, N)."""
        b, h, _, n = u.shape
        if self.per_head:
            rows = u.reshape(b, h, self.directions * n)
        else:
            # One set of networks for all heads: they are further rows of it.
            rows = u.reshape(b * h, 1, self.directions * n)
        y = self._curves(rows)
        return y.reshape(b, h, self.channels, self.directions, n)

    def _of_few(self, x: Tensor) -> Tensor | None:
        """Return :meth:`features_of` where nothing but the values at few scalars is wanted, else
        None.
        """
        if torch.compiler.is_compiling() or not self.plain or x.numel() == 0:
            return None
        # The segments of a ReLU network are kept while a model only answers, and cost less.
        if self.activation == "relu" and answering(self):
            return None
        b, h, n, _ = x.shape
        scalars = b * h * n * self.directions
        if scalars > networks.FEW * self.weight.shape[0]:
            return None

        weight = cast(self.weight, x.dtype)
        bias = cast(self.bias, x.dtype)
        if weight.shape[0] == 1:
            u = F.linear(x, weight[0], bias[0])
            u = u.reshape(b * h, 1, -1)
        else:
            u = x @ weight.mT + bias[:, None]
            u = u.view(b, h, -1)
        y = self._few_curves(u)
        if y is None:
            return None
        y = y.reshape(b, h, self.channels, n, self.directions)
        y = y.transpose(2, 3)
        return y.flatten(3)

    def _few_curves(self, u: Tensor) -> Tensor | None:
        """Return ψ at few scalars (R, S, T), (R, S, L, T), or None."""
        if self.coefficient is None and self.cap is None:
            bank = self._bank_in(u.dtype)
            scale = self.directions**-0.5
        else:
            bank = self.scaled_bank(u.dtype)
            scale = 1.0
        return few_scalars(
            u,
            bank,
            activation=self.activation,
            nonneg=self.nonneg,
            scale=scale,
        )

    def _curves(self, u: Tensor) -> Tensor:
        """Return ψ at scalars (R, S, T), (R, S, L, T)."""
        if self.activation == "relu" and answering(self):
            lines = prepared(
                self,
                ("segments", u.dtype),
                lambda: segments(self.scaled_bank(u.dtype)),
            )
            return piecewise_linear(u, *lines, self.nonneg)
        bank = self.scaled_bank(u.dtype)
        return scalar_bank(
            u,
            bank,
            activation=self.activation,
            nonneg=self.nonneg,
        )

    def _scale(self, dtype: torch.dtype) -> Tensor:
        """Return the factor of each channel but for the envelope and the batch's cap, (L,)."""
        per_direction = self.directions**-0.5
        scale = self.weight.new_full((self.channels,), per_direction, dtype=dtype)
        if self.coefficient is not None:
            scale = scale * self.coefficient.to(dtype).abs()
        if self.cap == "running":
            scale = scale * self._running_cap().to(dtype)
        return scale

    def _running_cap(self) -> Tensor:
        """Return the factors that cap channels, coefficients included, by the running average,
        (L,).
        """
        mean_square = self.mean_square
        if self.coefficient is not None:
            # The average is that of ψ, and a channel is its coefficient times ψ.
            mean_square = mean_square * self.coefficient.square()
        return self._cap_at(mean_square)

    def _cap_at(self, mean_square: Tensor) -> Tensor:
        """Return the factors that cap channels of these mean squares, (L,)."""
        size = (mean_square + TINY).sqrt()
        return (self.target / size).clamp(max=1.0)

    def _capped(self, y: Tensor) -> Tensor:
        """Return channels under the batch's cap; the running one is in :meth:`_scale`."""
        mean_square = y.square().mean((0, 1, 3, 4))
        mean_square = mean_square * self.directions
        cap = self._cap_at(mean_square)
        return y * cap[:, None, None]

    @torch.no_grad()
    def observe(self, x: Tensor, real: Tensor | None) -> None:
        """Move the running average a tenth of the way to the mean square of each channel over the
        points that are ``real``; a call without any leaves it.
        """
        # Squares of each channel at each point, (B, L, N): means over heads and directions.
        with full_precision(x):
            y = self._of_scalars(self.scalars(x))
            squares = y.square().mean((1, 3))

        samples, _, points = squares.shape
        mass = squares.new_ones(samples, points)
        if real is not None:
            mass = mass * real
        count = mass.sum()
        has_mass = mass[:, None] > 0
        seen = torch.where(has_mass, squares, 0.0)
        total = seen.sum((0, 2))
        mean = total / count.clamp(min=1)

        # The features carry the scale, which may be small: it is one over the size.
        least = torch.finfo(squares.dtype).tiny
        scale = self._scale(squares.dtype)
        mean_square = mean / scale.square().clamp(min=least)

        dtype = self.mean_square.dtype
        rate = 0.1 * (count > 0).to(dtype)
        self.mean_square.lerp_(mean_square.to(dtype), rate)

    def _envelope(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
    ) -> Tensor:
        """Return h, (B, H, 1 | L, 1, N)."""
        assert bias is not None
        weight = weight.to(x.dtype)
        bias = bias.to(x.dtype)
        gate = weight @ x.mT + bias[..., None]
        if self.envelope == "scalar":
            gate = nn.functional.softplus(gate)
        else:
            gate = gate.sigmoid()
        return gate[:, :, :, None]

    def extra_repr(self) -> str:
        options = f"directions={self.directions}, channels={self.channels}"
        return f"{super().extra_repr()}, {options}, activation={self.activation}"


class BankedInputs(NamedTuple):
    """Scalars of queries and keys, (B, H, M, N), and the networks that make features of them."""

    query: Tensor
    key: Tensor
    banks: Banks


@capability
class Banked(Separable):
    """Features that are a bank of scalar networks at projections. A GPU evaluates them where they
    are used and does not store them.
    """

    @abstractmethod
    def banked(self, problem: Problem) -> BankedInputs | None:
        """Return the arguments of :func:`fredholm.ops.linear_attention.banked_attention`; None
        where more acts on the features.
        """


class BankedForm(SeparableForm):
    """Base of both: Triton's kernels where they are asked for and the features are a bank."""

    def respond(self, kernel: Banked, problem: Problem) -> Tensor:
        options = self.strategy
        inputs = None
        if wants_triton(options.backend):
            inputs = kernel.banked(problem)
        if inputs is None:
            return super().respond(kernel, problem)
        out = banked_attention(
            inputs.query,
            inputs.key,
            kernel.values(problem.y, problem.uy),
            problem.quadrature,
            inputs.banks,
            floor=kernel.floor,
            chunk=options.chunk,
            backend=options.backend,
        )
        return with_offset(expanded(kernel, problem, out), kernel, problem)


class BankedSums(BankedForm, Sums):
    """Two sums over the keys."""


class BankedChunks(BankedForm, Chunks):
    """Causal chunks."""


class LunaKernel(FeatureAttentionKernel, Banked):
    r"""Attention with LUNA's kernel,
    :math:`K_h(x, y; u) = \phi(Q_h u(x))\cdot\phi(K_h u(y))\,V_h / Z_h(x)`.

    Args:
        dim, heads, bias, projections: see :class:`fredholm.integral.AttentionKernel`.
        floor: of the denominator, see :func:`fredholm.ops.linear_attention.guarded`.
        tied: one φ for queries and keys.
        window, sinks, decay, half_life: see :class:`fredholm.integral.FeatureAttentionKernel`.
        map_options: options of :class:`LunaMap`.

    Raises:
        DomainError: ``cap="batch"`` with an order, padding, pairs or single steps, where the
            batch's statistic would see the future, count padding or depend on how points come.

    Reference: LUNA, Eqs. 9-11.

    Example:
        >>> LunaKernel(16, 4, channels=4).feature_map.features
        32
    """

    feature_map: LunaMap

    options_class = LunaMap
    forms = (BankedSums, BankedChunks, *FeatureAttentionKernel.forms[2:])

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        bias: bool = True,
        projections: Projections | None = None,
        floor: float = 1e-6,
        tied: bool = True,
        window: int | None = None,
        sinks: int = 0,
        decay: str | None = None,
        half_life: float | None = None,
        **map_options,
    ):
        super().__init__(
            dim,
            heads,
            feature_map="luna",
            feature_options=map_options,
            tied=tied,
            floor=floor,
            window=window,
            sinks=sinks,
            decay=decay,
            half_life=half_life,
            bias=bias,
            projections=projections,
        )

    def banked(self, problem: Problem) -> BankedInputs | None:
        if self.decay is not None:
            # The kernels have no decay; linear attention refuses them by name.
            return None
        query_map = key_map = self.feature_map
        if self.key_map is not None:
            key_map = self.key_map
        if not (query_map.plain and key_map.plain):
            return None
        query_features = self._heads(problem.ux, 0)
        query = query_map.scalars(query_features)
        key_features = self._heads(problem.uy, 1)
        key = key_map.scalars(key_features)
        banks = Banks(
            query_map.scaled_bank(query.dtype),
            key_map.scaled_bank(query.dtype),
            query_map.activation,
            query_map.nonneg,
        )
        return BankedInputs(query, key, banks)

    def check(self, layout: Layout) -> None:
        super().check(layout)
        if self.feature_map.cap != "batch":
            return
        facts = {
            "causal": "an order",
            "padded": "padding",
            "pairs": "pairs",
            "stepping": "single steps",
        }
        for fact, what in facts.items():
            if getattr(layout, fact):
                raise DomainError(
                    'cap="batch" is a statistic of all tokens of a call and means nothing with '
                    f'{what}; use cap="running"'
                )

    def weights(self, problem: Problem) -> Tensor:
        if self.feature_map.cap != "batch" or problem.parent is None:
            return super().weights(problem)
        # The statistic is that of all queries.
        of_all = super().weights(problem.parent)
        return of_all[:, :, problem.index]
