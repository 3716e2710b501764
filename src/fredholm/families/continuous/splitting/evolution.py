"""The evolution: terms, controls, a scheme and a horizon bound into one module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ....domain import Domain, default_line
from ....errors import OptionError, ShapeError
from ....integral import Part
from ....integral.checks import check_domains, check_features, check_fit
from ....integral.contract import call_with
from ....integral.features import clean
from ....ops.backend import at_least_single
from .controls import Controls, resolve_controls
from .schemes import Flow, Scheme, resolve_scheme
from .term import EXPLICIT, SubstepError, Term


@dataclass(frozen=True, eq=False)
class Substep:
    """The record that an observer receives after every substep.

    Attributes:
        step: number of the step, from 0.
        time, length: the interval [time, time + length] that the term acted over.
        index: number of the term, from 0.
        name: the term's class, or the name of a state inside the substep (``layer 1``,
            ``relaxation``).
        term: the term, with the parameters of its nearest knot.
        before, after: u before and after it, (B, N, D). States inside a substep are those of
            ``term`` without dropout; the last one is what the evolution computed.
    """

    step: int
    time: float
    length: float
    index: int
    name: str
    term: Term
    before: Tensor
    after: Tensor


Observer = Callable[[Substep], None]

STAGE_TIMES = {
    "euler": (0.0,),
    "midpoint": (0.0, 0.5),
    "heun": (0.0, 1.0),
    "rk4": (0.0, 0.5, 0.5, 1.0),
}
"""Times at which a Runge-Kutta method reads the rate, as parts of a step."""


class Evolution(nn.Module):
    r"""The solution map :math:`u(0) \mapsto u(T)` of :math:`u_t = \sum_k A_k(u; \theta_k(t))` by
    operator splitting.

    Depth is a numerical choice: the controls θ live at K knots, and ``forward(u, domain,
    steps=...)`` takes any number of steps
    :math:`\Delta t = T / N_t`. With N_t = T = K and the Lie scheme the steps are the layers of an
    ordinary encoder.

    Args:
        knots: one sequence of terms per knot, the same kinds and shapes in each; a single sequence
            of terms is one shared knot.
        scheme: a :class:`Scheme` or a name. It has no parameters and may be replaced:
            ``evolution.scheme = Strang()``.
        controls: ``"constant"`` or ``"linear"`` in time, or :class:`Controls`.
        horizon: T, by default the number of knots.
        steps: N_t when ``forward`` is not told, by default T rounded, at least 1.
        norm: a map of the features after the last step (the final norm of a pre-norm encoder), or
            None.

    Shape: u (B, N, D) on ``domain`` (N points, default a line) to (B, N, D). Padded points may hold
    anything; outputs there are zero.

    Cost: steps × substeps of the scheme × cost of a term.

    Raises:
        OptionError: T ≤ 0, fewer than one step, knots that differ, terms of different width, a
            scheme that does not fit.
        SubstepError: a term without the substep that the scheme takes.
        ShapeError: u and the domain do not fit.

    Reference: continuous transformer, Eq. 10, 16-21, 73-75.

    Example:
        >>> from fredholm.families.continuous.splitting import FeedForwardTerm, OperatorTerm
        >>> def knot():
        ...     return [OperatorTerm.of("softmax", 8, heads=2), FeedForwardTerm(8, 16)]
        >>> evolution = Evolution([knot() for _ in range(3)], scheme="lie")
        >>> evolution(torch.randn(2, 5, 8)).shape, evolution(torch.randn(2, 5, 8), steps=12).shape
        (torch.Size([2, 5, 8]), torch.Size([2, 5, 8]))
    """

    knots = Part()
    norm = Part()

    def __init__(
        self,
        knots: Sequence[Any] | nn.ModuleList,
        *,
        scheme: Scheme | str = "lie",
        controls: Controls | str = "constant",
        horizon: float | None = None,
        steps: int | None = None,
        norm: nn.Module | None = None,
    ):
        super().__init__()
        groups: Any = list(knots)
        if groups and isinstance(groups[0], Term):
            # One sequence of terms is a single knot.
            groups = [knots]
        self.dim = _check_knots(groups)
        knots = [nn.ModuleList(group) for group in groups]
        self.knots: Any = nn.ModuleList(knots)
        self.controls: Controls = resolve_controls(controls)
        self.scheme: Scheme | str = resolve_scheme(scheme)
        if horizon is None:
            horizon = len(groups)
        self.horizon = float(horizon)
        if not self.horizon > 0:
            raise OptionError(f"expected a positive horizon T, got {self.horizon:g}")
        if steps is None:
            steps = max(1, round(self.horizon))
        self.steps = steps
        self.norm = norm
        _positive_steps(self.steps)
        dt = self.horizon / self.steps
        self._check(self.scheme, dt)

    # --- evaluation -------------------------------------------------------------------------------

    def forward(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain | None = None,
        *,
        steps: int | None = None,
        scheme: Scheme | str | None = None,
        observer: Observer | None = None,
    ) -> Float[Tensor, "b n d"]:
        if steps is None:
            steps = self.steps
        if scheme is None:
            scheme = self.scheme
        scheme = resolve_scheme(scheme)
        _positive_steps(steps)
        dt = self.horizon / steps
        self._check(scheme, dt)
        u, domain = self.enter(u, domain)
        for n in range(steps):
            t = n * dt
            flows = self.flows(domain, scheme, n, observer)
            u = scheme.step(flows, u, t, dt)
        return self.leave(u, domain)

    def step(
        self,
        u: Tensor,
        domain: Domain | None,
        t: float,
        dt: float,
        *,
        observer: Observer | None = None,
    ) -> Tensor:
        """Return u after one step from time t to t + dt, without the final norm.

        ``observer`` receives every substep, with step number 0.

        Raises:
            OptionError: dt ≤ 0, an interval that leaves [0, T], or a scheme that does not fit the
                terms.
            SubstepError: a term without the scheme's substep.
        """
        if not dt > 0:
            raise OptionError(f"expected a step of dt > 0, got {dt}")
        # Sums of steps may exceed T by rounding.
        if t < 0 or t + dt > self.horizon * (1 + 1e-9):
            raise OptionError(
                f"expected a step within [0, {self.horizon:g}], got [{t:g}, {t + dt:g}]"
            )
        scheme = resolve_scheme(self.scheme)
        self._check(scheme, dt)
        u, domain = self.enter(u, domain)
        flows = self.flows(domain, scheme, step=0, observer=observer)
        return scheme.step(flows, u, t, dt)

    def rate(
        self,
        u: Tensor,
        domain: Domain,
        t: float,
        *,
        before: bool = False,
    ) -> Tensor:
        r"""Return the complete right-hand side :math:`\sum_k A_k(u; \theta_k(t))`; a hard
        constraint has none and raises SubstepError.

        Where the controls jump at t, they are read after the jump, or ``before`` it.
        """
        rates = []
        for k in range(len(self._terms(0))):
            rate = self._act(
                k,
                t,
                u,
                domain,
                0.0,
                "rate",
                before,
            )
            rates.append(rate)
        return torch.stack(rates).sum(0)

    def integrate(
        self,
        u: Tensor,
        domain: Domain | None = None,
        *,
        steps: int,
        method: str = "rk4",
    ) -> Float[Tensor, "b n d"]:
        """Solve the same equation unsplit, to compare with: by an explicit Runge-Kutta method on
        the complete right-hand side.
        """
        if method not in EXPLICIT:
            raise SubstepError(f"expected a method of {', '.join(EXPLICIT)}, got {method!r}")
        _positive_steps(steps)
        u, domain = self.enter(u, domain)
        dt = self.horizon / steps
        for n in range(steps):
            t = n * dt
            u = _unsplit(
                self,
                u,
                domain,
                t,
                dt,
                method,
            )
        return self.leave(u, domain)

    # --- parts ------------------------------------------------------------------------------------

    @property
    def terms(self) -> list[Term]:
        """The terms of the first knot."""
        return self._terms(0)

    def _terms(self, knot: int) -> list[Any]:
        """Return the terms of a knot."""
        # Not self.knots[knot], which takes ten times as long. Not by name either: under
        # torch.compile a number of steps may be symbolic, and has no text.
        knots = list(self.knots._modules.values())
        group: Any = knots[knot]
        return list(group._modules.values())

    def flows(
        self,
        domain: Domain,
        scheme: Scheme,
        step: int = 0,
        observer: Observer | None = None,
    ) -> list[Flow]:
        """Return one flow per term for a scheme to compose: ``flow(u, t, dt, speed=1.0)``."""

        def flow(
            k: int,
            substep: str,
            u: Tensor,
            t: float,
            dt: float,
            speed: float = 1.0,
        ) -> Tensor:
            """Return u after term k has acted from t to t + dt."""
            # A control read at the midpoint keeps a second-order scheme at order 2.
            middle = t + dt / 2
            after = self._act(
                k,
                middle,
                u,
                domain,
                speed * dt,
                substep,
            )
            if observer is not None:
                term = self._nearest_term(k, middle)
                stages = term.stages(u, domain, substep)
                name = type(term).__name__
                record = Substep(
                    step,
                    t,
                    dt,
                    k,
                    name,
                    term,
                    u,
                    after,
                )
                _report(record, stages, observer)
            return after

        flows = []
        for k, term in enumerate(self._terms(0)):
            substep = scheme.resolve(term)
            flows.append(partial(flow, k, substep))
        return flows

    def _nearest_term(self, k: int, t: float) -> Term:
        """Return term k of the knot that is nearest to time t."""
        i, j, w = self.controls.locate(
            t,
            self.horizon,
            len(self.knots),
        )
        nearest = i
        if w > 0.5:
            nearest = j
        return self._terms(nearest)[k]

    def _act(
        self,
        k: int,
        t: float,
        u: Tensor,
        domain: Domain,
        h: float,
        substep: str,
        before: bool = False,
    ) -> Tensor:
        """Return u after term k has acted for a time h, with the controls of time t; for the
        substep ``rate``, its rate A_k(u).

        Where the controls jump at t, they are read after the jump, or ``before`` it.
        """
        i, j, w = self.controls.locate(
            t,
            self.horizon,
            len(self.knots),
            before=before,
        )
        term = self._terms(i)[k]
        if i == j:
            return term(u, domain, h, substep)

        # Between two knots the term runs with interpolated parameters.
        next_term = self._terms(j)[k]
        next_parameters = dict(next_term.named_parameters())
        between = {}
        for name, parameter in term.named_parameters():
            between[name] = torch.lerp(parameter, next_parameters[name], w)
        return call_with(term, between, (u, domain, h, substep))

    def _check(self, scheme: Scheme, dt: float) -> None:
        """Error where the scheme may not compose these terms, in steps of ``dt``."""
        terms = self._terms(0)
        scheme.check(len(terms))
        scheme.check_step(dt)
        for term in terms:
            term.check(scheme.resolve(term))

    def enter(self, u: Tensor, domain: Domain | None) -> tuple[Tensor, Domain]:
        """Return checked u, zero at padding, and its domain."""
        check_features(u=u)
        if u.dim() != 3 or (self.dim is not None and u.shape[-1] != self.dim):
            raise ShapeError(f"expected u (B, N, {self.dim or 'D'}), got {tuple(u.shape)}")
        if domain is None:
            n = u.shape[1]
            dtype = at_least_single(u.dtype)
            domain = default_line(n, device=u.device, dtype=dtype)
        check_domains(domain=domain)
        check_fit(u, domain, "u", "domain")
        return clean(u, domain.valid), domain

    def leave(self, u: Tensor, domain: Domain) -> Tensor:
        """Return u after the final norm, zero at padding."""
        if self.norm is not None:
            u = self.norm(u)
        return clean(u, domain.valid)

    def extra_repr(self) -> str:
        time = f"horizon={self.horizon:g}, steps={self.steps}"
        return f"scheme={self.scheme}, controls={self.controls}, {time}"


def _report(
    record: Substep,
    stages: list[tuple[str, Tensor]],
    observer: Observer,
) -> None:
    """Call an observer with each state inside a substep, or with the substep where it has none."""
    if not stages:
        observer(record)
        return
    before = record.before
    last_name, _ = stages[-1]
    for name, state in stages[:-1]:
        stage = replace(
            record,
            name=name,
            before=before,
            after=state,
        )
        observer(stage)
        before = state
    observer(replace(record, name=last_name, before=before))


def _unsplit(
    evolution: Evolution,
    u: Tensor,
    domain: Domain,
    t: float,
    dt: float,
    method: str,
) -> Tensor:
    """Return u after one Runge-Kutta step of the unsplit equation; controls are read at the time of
    each stage, inside the step.
    """
    stages = iter(STAGE_TIMES[method])

    def rate(v: Tensor) -> Tensor:
        c = next(stages)
        at_the_end = c == 1.0
        return evolution.rate(
            v,
            domain,
            t + c * dt,
            before=at_the_end,
        )

    step = EXPLICIT[method]
    return step(rate, u, dt)


def _positive_steps(steps: int) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise OptionError(f"expected a whole number of steps, 1 or more, got {steps!r}")


def _check_knots(groups: list[Any]) -> int | None:
    """Return the common width; OptionError unless all knots hold the same kinds of terms of one
    width.
    """
    if not groups or not groups[0]:
        raise OptionError("expected at least one knot with at least one term, got none")
    for group in groups:
        for term in group:
            if not isinstance(term, Term):
                raise OptionError(
                    f"expected terms in a knot, got {type(term).__name__}; wrap an operator in "
                    "OperatorTerm"
                )
    kinds = [[_kind(term) for term in group] for group in groups]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise OptionError(
                "expected the same terms of the same shapes in all knots, got knot "
                f"{number} that differs from knot 0"
            )
    wide = [term for term in groups[0] if term.dim is not None]
    widths = {term.dim for term in wide}
    if len(widths) > 1:
        listed = ", ".join(f"{type(term).__name__} {term.dim}" for term in wide)
        raise OptionError(f"expected terms of one width, got {listed}")
    return next(iter(widths), None)


def _kind(term: Term) -> tuple:
    """Return the facts of a term that all knots must share."""
    shapes = []
    for name, parameter in term.named_parameters():
        shapes.append((name, tuple(parameter.shape)))
    return type(term), term.substep, shapes
