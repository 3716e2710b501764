"""An evolution whose knots are layers of known encoders, with a configuration: it can be saved."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from ...configuration import Configuration
from ...errors import OptionError
from ...families.continuous.splitting.encoder_terms import encoder_terms
from ...families.continuous.splitting.evolution import Evolution
from ...families.continuous.splitting.schemes import SCHEMES, resolve_scheme
from ...families.continuous.splitting.term import Term
from ...models.pretrained import PretrainedMixin, register_saved


@dataclass(frozen=True)
class EncoderEvolutionConfig(Configuration):
    """Configuration of an evolution made of an encoder: everything except its weights.

    Attributes:
        dim: width of the features.
        knots: for each knot its ``heads``, ``hidden`` width, ``norm`` (``post`` or ``pre``),
            ``activation`` (a name, or None for a module), the ``eps`` of its two normalisations by
            their names within the knot, and ``missing``, the parameters that the layer does not
            have.
        depth: T, the number of layers.
        final: options of the final LayerNorm, or None.
        scheme, controls, steps: as in :class:`fredholm.families.continuous.splitting.Evolution`.
    """

    kind = "encoder_evolution"

    dim: int
    knots: tuple[dict[str, Any], ...]
    depth: int
    final: dict[str, Any] | None = None
    scheme: str = "lie"
    controls: str = "constant"
    steps: int | None = None


@register_saved(EncoderEvolutionConfig)
class EncoderEvolution(PretrainedMixin, Evolution):
    """An :class:`Evolution` of encoder layers that saves itself and comes back.

    Args:
        config: its configuration.
        activations: a module per knot whose activation has no name; such an evolution cannot be
            saved.

    Shape: u (B, N, dim) to (B, N, dim).

    Raises:
        OptionError: an activation without a name where there is no module.

    Example:
        >>> import torch
        >>> from fredholm.convert import from_encoder
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
        >>> evolution = from_encoder(layer)
        >>> evolution.config.knots[0]["activation"]
        'relu'
    """

    def __init__(
        self,
        config: EncoderEvolutionConfig,
        activations: Sequence[nn.Module | None] = (),
    ):
        modules = list(activations) or [None] * len(config.knots)
        knots = []
        for knot, module in zip(config.knots, modules):
            terms = _knot(config.dim, knot, module)
            knots.append(terms)
        final = None
        if config.final is not None:
            final = nn.LayerNorm(config.dim, **config.final)
        super().__init__(
            knots,
            scheme=config.scheme,
            controls=config.controls,
            horizon=config.depth,
            steps=config.steps,
            norm=final,
        )
        self._config = config

    @property
    def config(self) -> EncoderEvolutionConfig:
        """The configuration with the current scheme and steps.

        Raises:
            OptionError: a scheme or an activation without a name.
        """
        unnamed = [n for n, knot in enumerate(self._config.knots) if knot["activation"] is None]
        if unnamed:
            raise OptionError(
                f"the activation of knot {unnamed[0]} is a module without a name, which a "
                "configuration cannot hold; save the state_dict and convert the encoder again"
            )
        scheme = resolve_scheme(self.scheme)
        for name, kind in SCHEMES.items():
            if scheme == kind():
                return dataclasses.replace(
                    self._config,
                    scheme=name,
                    steps=self.steps,
                )
        raise OptionError(
            f"the scheme {scheme} has no name, which a configuration needs; choose one of "
            f"{', '.join(SCHEMES)} to save it"
        )


def _knot(dim: int, knot: dict[str, Any], activation: nn.Module | None) -> list[Term]:
    """Return the terms of one layer, without the parameters that it does not have."""
    named: str | nn.Module | None = knot["activation"] or activation
    if named is None:
        raise OptionError("a knot whose activation has no name needs a module: activations=[...]")
    terms = encoder_terms(
        dim,
        knot["heads"],
        knot["hidden"],
        norm=knot["norm"],
        activation=named,
    )
    # In a list, terms have the names that the configuration uses: "0.operator.kernel.query".
    parts = nn.ModuleList(terms)
    for name in knot["missing"]:
        path, _, kind = name.rpartition(".")
        parts.get_submodule(path).register_parameter(kind, None)
    for name, eps in knot["eps"].items():
        norm: Any = parts.get_submodule(name)
        norm.eps = eps
    return terms
