"""Section 6 as it is printed: a token's features are an image, and all maps of the features are
convolutions.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from ....domain import Domain
from ....errors import OptionError
from ....ops.attention import attention
from .term import Term


class PixelAttention(nn.Module):
    r"""Attention between tokens whose features are images, with convolutions for queries, keys and
    values:

    .. math::
        Q_h = W^Q_h * u(x, \cdot),\quad
        \gamma_h = \mathrm{softmax}\big(\langle Q_h, K_h\rangle / \sqrt{|\Omega_y|}\big),\quad
        A(u) = \sum_h \int \gamma_h(x, x')\,(W^V_h * u)(x', \cdot)\,d\mu(x')

    The tokens are an image's channels, so this mixes channels; the vision transformer with
    convolutions, whose tokens are positions, is :class:`ConvolutionalAttention`. An operator for
    :class:`OperatorTerm`.

    Args:
        image: (height, width) of a token's features; dim = height · width.
        heads: H, one triple of filters each.
        kernel_size: odd taps per axis.

    Reference: continuous transformer, Eq. 50, 55, 56.

    Example:
        >>> PixelAttention((4, 4), 2)(torch.zeros(1, 3, 16), Domain.line(3)).shape
        torch.Size([1, 3, 16])
    """

    def __init__(self, image: tuple[int, int], heads: int = 1, *, kernel_size: int = 3):
        super().__init__()
        self.image = image
        self.heads = heads
        self.dim = _pixels(image, kernel_size)

        def filters() -> nn.Conv2d:
            padding = kernel_size // 2
            return nn.Conv2d(1, heads, kernel_size, padding=padding, bias=False)

        self.query = filters()
        self.key = filters()
        self.value = filters()

    def forward(
        self,
        u: Float[Tensor, "b n d"],
        domain: Domain,
    ) -> Float[Tensor, "b n d"]:
        batch, n, _ = u.shape
        images = u.reshape(-1, 1, *self.image)

        def by_head(maps: Tensor) -> Tensor:
            """Return (B, H, N, dim) from maps (B·N, H, height, width)."""
            by_token = maps.unflatten(0, (batch, n))
            by_head = by_token.flatten(3)
            return by_head.transpose(1, 2)

        query = by_head(self.query(images))
        key = by_head(self.key(images))
        value = by_head(self.value(images))
        scale = self.dim**-0.5
        quadrature = domain.quadrature().to(u.dtype)
        out = attention(query * scale, key, value, quadrature)
        return out.sum(1)


class PixelConvolutionTerm(Term):
    r"""Term IV as printed: :math:`A(u)(x, \cdot) = W^C * u(x, \cdot) + b^C`, a convolution of every
    token's image.

    Reference: continuous transformer, Eq. 57, 58.

    Example:
        >>> PixelConvolutionTerm((4, 4))(torch.zeros(1, 3, 16), Domain.line(3), 1.0).shape
        torch.Size([1, 3, 16])
    """

    def __init__(
        self,
        image: tuple[int, int],
        kernel_size: int = 3,
        *,
        bias: bool = True,
        substep: str = "auto",
    ):
        super().__init__(_pixels(image, kernel_size), substep)
        self.image = image
        padding = kernel_size // 2
        self.convolution = nn.Conv2d(1, 1, kernel_size, padding=padding, bias=bias)

    def rate(self, u: Tensor, domain: Domain) -> Tensor:
        images = u.reshape(-1, 1, *self.image)
        rates = self.convolution(images)
        return rates.reshape(u.shape)


def _pixels(image: tuple[int, int], kernel_size: int) -> int:
    """Return the number of pixels of an image."""
    if min(image) < 1 or kernel_size < 1 or kernel_size % 2 == 0:
        raise OptionError(
            "expected an image of positive sides and filters of odd taps, got "
            f"{image} and {kernel_size}"
        )
    height, width = image
    return height * width
