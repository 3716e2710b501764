"""Base of configurations of continuous bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...configuration import check_counts, check_known, check_positive, check_rates
from ...errors import OptionError
from .body import BodyConfig

NORMS = ("post", "pre", "soft", "none")
CONTROLS = ("constant", "linear", "shared")
PENALTY = 1.0


@dataclass(frozen=True)
class EvolutionConfig(BodyConfig):
    r"""A body whose depth is time: :math:`u_t = \sum_k A_k(u; \theta_k(t))` on [0, T].

    Attributes:
        horizon: T; None for K, the number of knots, at each of which the control θ(t) has its
            parameters.
        steps: N_t, the time steps of a forward pass; None for K. It changes no weight: a trained
            model runs with any number.
        train_steps: in training, every forward pass takes a random number of steps between these
            two; None: ``steps``. Evaluation always takes ``steps``.
        scheme: ``lie``, ``strang``, ``parallel``, ``relaxed`` (the paper's 4 + J substeps, for Δt =
            1), or the groups of a hybrid scheme such as ``((0, 1), (2,))``.
        control: ``constant``: piecewise constant between knots; ``linear``: interpolated;
            ``shared``: one set of parameters for all times, whatever the depth.
        norm: ``post``: hard projections on S1 after both terms, with ``lie`` and Δt = 1 the encoder
            of Vaswani et al.; ``pre``: layer norms inside the terms, with ``lie`` and Δt = 1 that
            of a vision transformer; ``soft``: penalties instead of projections; ``none``.
        penalty: μ of ``soft``, the time in which a distance to S1 falls by e; None for 1.
        operator, operator_options: the attention term: a registered operator's name, and its
            further options.
        activation: of the feed-forward term; ``mlp_ratio`` its expansion.
        dropout: of terms and embedding; ``drop_path``: stochastic depth of the last knot, growing
            linearly from 0.
    """

    horizon: float | None = None
    steps: int | None = None
    train_steps: tuple[int, int] | None = None
    scheme: Any = "lie"
    control: str = "constant"
    norm: str = "pre"
    penalty: float | None = None
    operator: str = "softmax"
    operator_options: dict[str, Any] = field(default_factory=dict)
    activation: str = "gelu"
    mlp_ratio: float = 2.0
    dropout: float = 0.1
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.scheme, str):
            object.__setattr__(
                self,
                "scheme",
                tuple(tuple(group) for group in self.scheme),
            )
        check_known(self, norm=NORMS, control=CONTROLS)
        _check_range(self)
        super().__post_init__()
        check_counts(self, "steps")
        check_positive(self, "mlp_ratio", "penalty", "horizon")
        check_rates(self, "dropout", "drop_path")

    @classmethod
    def idle(cls, given: Mapping[str, Any]) -> dict[str, str]:
        norm = given.get("norm", "pre")
        if norm == "soft":
            return {}
        return {"penalty": f"norm={norm!r}"}


def _check_range(c: EvolutionConfig) -> None:
    """Refuse a range of steps that is not two ascending whole numbers; make it a tuple."""
    given: Any = c.train_steps
    if given is None:
        return
    whole = isinstance(given, (list, tuple)) and all(type(n) is int for n in given)
    if not whole or len(given) != 2 or not 1 <= given[0] <= given[1]:
        raise OptionError(
            "train_steps: expected the least and the largest number of steps, got "
            f"{given!r}; give two numbers such as [2, 8]"
        )
    object.__setattr__(c, "train_steps", tuple(given))
