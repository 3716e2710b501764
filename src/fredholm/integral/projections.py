"""The layers that map u to queries, keys and values: three, or one for all."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import OptionError
from .heads import head_width

Projections = nn.Linear | tuple[nn.Linear, nn.Linear, nn.Linear]


class TransposedLinear(nn.Linear):
    """A linear layer whose parameter is stored as (in, out), as GPT-2 stores it; ``weight`` is its
    transpose, a view.

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


def projected_widths(dim: int, heads: int, projections: Projections) -> tuple[int, int, int]:
    """Width of a query, heads of keys and values, width of a value; OptionError where the layers do
    not fit.
    """
    layers = [projections] if isinstance(projections, nn.Linear) else list(projections)
    if any(layer.in_features != dim for layer in layers):
        got = [layer.in_features for layer in layers]
        raise OptionError(f"projections must read the width of u, {dim}; they read {got}")
    if len(layers) == 1:
        width = layers[0].out_features // (3 * heads)
        if width * 3 * heads != layers[0].out_features:
            got = layers[0].out_features
            raise OptionError(
                f"one projection must give queries, keys and values of {heads} heads; {got} "
                "features do not split"
            )
        return width, heads, width
    query, key, value = (layer.out_features for layer in layers)
    width = head_width(query, heads)
    groups = key // width
    if groups < 1 or groups * width != key or heads % groups or value % groups:
        raise OptionError(
            f"keys of {key} and values of {value} features do not fit {heads} heads of queries of "
            f"width {width}: "
            "their number of heads must divide the queries'"
        )
    return width, groups, value // groups
