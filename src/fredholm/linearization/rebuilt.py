"""Models of fredholm with linear attention: built again from their configuration."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from ..errors import ConversionError
from ..families.softmax.kernel import SoftmaxKernel
from ..integral import IntegralOperator, operator_options
from ..integral.projections import Projections
from ..models import Model
from ..models.bodies import InfViTConfig
from .graph_heads import GRAPHS, graph_options
from .heads import CONVERSION_OPTIONS

# What a converted kernel has beside its projections.
NEW = ("feature_map", "key_map", "decay_logit")


class SourceOptions(NamedTuple):
    """Options of the operator that is converted.

    Attributes:
        kept: those that the new operator has as well.
        dropped: the others, and the strategy, which belongs to the formula of softmax.
    """

    kept: dict[str, Any]
    dropped: dict[str, Any]


def source_options(body: Any, to: str) -> SourceOptions:
    """Return the options of a body's operator, by whether the converted operator has them."""
    known = set(operator_options(operator_name(to))) - {"strategy"}
    kept = {}
    dropped = {}
    for name, value in body.operator_options.items():
        if name in known:
            kept[name] = value
        else:
            dropped[name] = value
    return SourceOptions(kept, dropped)


def operator_name(to: str) -> str:
    """Return the registered name of the operator with this map."""
    if to in GRAPHS or to == "luna":
        return to
    return "linear_attention"


def operator_fields(
    body: Any,
    to: str,
    options: dict[str, Any],
    tied: bool,
) -> dict[str, Any]:
    """Return the fields of a body's configuration that name the converted operator.

    Raises:
        ConversionError: a body that sets γ in a way that the conversion cannot.
    """
    kept = source_options(body, to).kept
    if to in GRAPHS:
        given = {"bias": True, **kept, **graph_options(options)}
        fields: dict[str, Any] = {"operator": to, "operator_options": given}
        if isinstance(body, InfViTConfig):
            if body.depth_rule == "accumulated":
                raise ConversionError(
                    f"InfViT with depth_rule='accumulated' has one γ for all layers, and {to} "
                    "would have one of its own in each; convert to a feature map such as luna"
                )
            # This body sets γ itself. A converted layer has one γ, and no power of it.
            for name in ("decay", "learned_decay"):
                fields[name] = given.pop(name)
            fields["depth_rule"] = "constant"
        return fields
    chosen = {**CONVERSION_OPTIONS.get(to, {}), **options}
    if to == "luna":
        return {"operator": "luna", "operator_options": {**kept, **chosen, "tied": tied}}
    of_map = {"feature_map": to, "feature_options": chosen, "tied": tied}
    return {"operator": "linear_attention", "operator_options": {**kept, **of_map}}


def rebuilt(
    model: Any,
    to: str,
    options: dict[str, Any],
    tied: bool,
) -> Any:
    """Build a model again with the converted operator, which keeps the options of the source that
    both have. Every other weight is copied, and so is what was saved beside them (class names, the
    mean of pictures, words).

    Raises:
        ConversionError: no operator in the configuration, or weights without a place.
    """
    if not hasattr(model.config.body, "operator_options"):
        raise ConversionError(
            f"{type(model.body).__name__} has no operator in its configuration to be exchanged"
        )
    fields = operator_fields(model.config.body, to, options, tied)
    rebuilt: Any = Model(model.config.replace(body=fields))
    parameter = next(model.parameters())
    rebuilt.to(parameter.device, parameter.dtype)
    missing, unknown = rebuilt.load_state_dict(model.state_dict(), strict=False)
    stray = [name for name in missing if not any(f".kernel.{key}" in name for key in NEW)]
    if stray or unknown:
        raise ConversionError(
            f"{type(model).__name__}: weights without a place: {stray + list(unknown)}"
        )
    if hasattr(model, "extra"):
        rebuilt.extra = copy.deepcopy(model.extra)
        # The probabilities of an estimator are calibrated for the source.
        rebuilt.extra.pop("estimator", None)
    return rebuilt


def projections_of(kernel: Any) -> Projections:
    """Return the layers of an attention kernel: one for queries, keys and values, or three."""
    if kernel.packed is not None:
        return kernel.packed
    return kernel.query, kernel.key, kernel.value


def shared_teacher(built: Any, teacher: IntegralOperator) -> IntegralOperator:
    """Return a softmax operator on the projections of a rebuilt model's operator."""
    kernel = built.kernel
    own: Any = teacher.kernel
    softmax = SoftmaxKernel(
        kernel.d_in,
        kernel.heads,
        projections=projections_of(kernel),
        scale=own.scale,
        causal=own.causal,
    )
    projection = built.projection
    if projection is None:
        projection = False
    return IntegralOperator(
        kernel.d_in,
        kernel.heads,
        kernel=softmax,
        out_dim=built.out_dim,
        residual=False,
        projection=projection,
    )
