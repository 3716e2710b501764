"""The layers that map u to queries, keys and values: three, or one for all."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from ..errors import OptionError
from .features import head_width

Projections = nn.Linear | tuple[nn.Linear, nn.Linear, nn.Linear]


class TransposedLinear(nn.Linear):
    """A linear layer whose parameter is stored as (in, out), as GPT-2 stores it; ``weight`` is its
    transpose, a view.

    Args:
        stored: the parameter (in, out).
        bias: (out,), or None.

    Example:
        >>> layer = TransposedLinear(nn.Parameter(torch.randn(4, 6)))
        >>> layer.weight.shape, layer(torch.zeros(1, 4)).shape
        (torch.Size([6, 4]), torch.Size([1, 6]))
    """

    def __init__(self, stored: nn.Parameter, bias: nn.Parameter | None = None):
        nn.Module.__init__(self)
        self.in_features, self.out_features = stored.shape
        self.stored = stored
        self.register_parameter("bias", bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        return self.stored.mT


class ProjectedWidths(NamedTuple):
    """Widths of the layers' outputs.

    Attributes:
        query: features of a query or a key.
        groups: heads of keys and values.
        value: features of a value.
    """

    query: int
    groups: int
    value: int


def projected_widths(dim: int, heads: int, projections: Projections) -> ProjectedWidths:
    """Return the widths of queries and values and the number of heads of keys and values.

    Raises:
        OptionError: layers that do not fit u, the heads or one another.
    """
    if isinstance(projections, nn.Linear):
        layers = [projections]
    else:
        layers = list(projections)
    if any(layer.in_features != dim for layer in layers):
        got = [layer.in_features for layer in layers]
        raise OptionError(
            f"projections: expected layers that read the width of u, {dim}, got {got}; pass layers "
            "of this width"
        )

    if len(layers) == 1:
        features = layers[0].out_features
        width = features // (3 * heads)
        if width * 3 * heads != features:
            raise OptionError(
                f"projections: expected a multiple of 3 · {heads} features, for queries, keys and "
                f"values of {heads} heads, got {features}; pass another layer, or three"
            )
        return ProjectedWidths(width, heads, width)

    query, key, value = (layer.out_features for layer in layers)
    width = head_width(query, heads)
    groups = key // width
    if groups < 1 or groups * width != key or heads % groups or value % groups:
        raise OptionError(
            f"projections: expected keys and values whose number of heads divides the queries' "
            f"{heads} heads of width {width}, got keys of {key} features and values of {value}; "
            "pass layers of other widths"
        )
    return ProjectedWidths(width, groups, value // groups)
