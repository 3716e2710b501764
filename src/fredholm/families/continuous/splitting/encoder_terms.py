"""The terms of one layer of the usual encoders, post-norm and pre-norm."""

from __future__ import annotations

from torch import nn

from ....errors import OptionError
from ....integral import operator_options
from .constraints import MomentConstraint
from .term import Term
from .terms import FeedForwardTerm, OperatorTerm


def encoder_terms(
    dim: int,
    heads: int,
    hidden: int,
    *,
    norm: str = "post",
    operator: str = "softmax",
    activation: str | nn.Module = "relu",
    bias: bool = True,
    eps: float = 1e-5,
    dropout: float = 0.0,
    drop_path: float = 0.0,
    **options,
) -> list[Term]:
    r"""Return the terms of one encoder layer, one knot of an :class:`Evolution`.

    ``norm="post"``: operator, projection on S1, network, projection on S1; at Δt = 1 the layer of
    Vaswani et al. ``norm="pre"``: :math:`T(\mathrm{LN}\,u)` and :math:`N(\mathrm{LN}\,u)`; at Δt =
    1 the layer of a vision transformer. ``norm="none"``: operator and network alone, a smooth
    equation where the activation is smooth.

    Args:
        dim, heads, hidden: widths of u and of the network, heads of the operator.
        operator: a registered name; ``options`` go to it.
        bias: of the operator where it has the option, its projection, the network and the norms.
        activation, eps, dropout, drop_path: of network, norms and branches.

    Example:
        >>> [type(term).__name__ for term in encoder_terms(8, 2, 16)]
        ['OperatorTerm', 'MomentConstraint', 'FeedForwardTerm', 'MomentConstraint']
    """
    if norm not in ("post", "pre", "none"):
        raise OptionError(f"expected norm='post', 'pre' or 'none', got {norm!r}")

    def before() -> nn.Module | None:
        """Make the norm in front of a branch, where there is one."""
        if norm != "pre":
            return None
        return nn.LayerNorm(dim, eps, bias=bias)

    # Without a bias, of the operator where it has the option, and of its output projection.
    if not bias and "bias" in operator_options(operator):
        options["bias"] = False
    attention = OperatorTerm.of(
        operator,
        dim,
        heads,
        norm=before(),
        dropout=dropout,
        drop_path=drop_path,
        **options,
    )
    projection = getattr(attention.operator, "projection", None)
    if not bias and isinstance(projection, nn.Linear):
        projection.register_parameter("bias", None)
    network = FeedForwardTerm(
        dim,
        hidden,
        activation=activation,
        bias=bias,
        norm=before(),
        dropout=dropout,
        drop_path=drop_path,
    )
    if norm != "post":
        return [attention, network]
    first = MomentConstraint(dim, bias=bias, eps=eps)
    second = MomentConstraint(dim, bias=bias, eps=eps)
    return [attention, first, network, second]
