"""Any vision transformer as maps and pages read one: each layer's attention as an operator on a
grid of patches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..convert import as_operator
from ..domain import Domain
from ..errors import DomainError, OptionError, ShapeError
from ..integral import IntegralOperator
from ..integral.attention import AttentionKernel
from ..models.bodies.body import Seen
from ..models.modes import evaluating
from .calls import Call, capture_all, check_output, convertible_layers

ELSEWHERE = ("torch.nn.modules.conv", "torch.nn.modules.linear", "torch.nn.modules.pooling")
ELSEWHERE += ("torch.nn.modules.rnn", "torch.nn.modules.container")


class Traced(nn.Module):
    r"""A vision transformer of torch, timm or transformers with what maps and pages ask of a model:
    logits as one tensor, and ``trace(images)``.

    Every layer of attention is converted by :func:`fredholm.as_operator`, which shares its
    weights, and must answer what the layer answered. Where the patches lie is read from the first
    convolution whose stride is its kernel: its output's rows and columns, and the points before
    them (a class token, registers) stand together in the middle, with the mass of a patch each, as
    the model's softmax counts them.

    Args:
        model: images (B, C, H, W) to logits (B, classes), or to an output that has ``logits``.

    Raises:
        OptionError: a model without a layer of attention that can be converted.

    Example:
        >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> class Small(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.patches, self.layer = nn.Conv2d(3, 8, 4, stride=4), layer
        ...     def forward(self, images):
        ...         return self.layer(self.patches(images).flatten(2).mT).mean(1)
        >>> [(operator, u, domain)] = Traced(Small()).trace(torch.rand(2, 3, 8, 12))
        >>> u.shape, domain.shape
        (torch.Size([2, 6, 8]), (2, 3))
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.extra = getattr(model, "extra", None)
        with evaluating(model):
            self.paths = attention_layers(model)
        if not self.paths:
            raise OptionError(
                f"{type(model).__name__} has no layer of attention that as_operator converts, so "
                "there is nothing to draw maps of; needs a vision transformer of torch, timm or "
                "transformers, or a model with trace(images)"
            )

    def forward(self, images: Tensor) -> Tensor:
        logits = self._logits(images)
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ShapeError(
                f"{type(self.model).__name__} answers {got}, not a row of logits an image; what "
                "removed patches change needs a model with a classifier; without one take "
                "image_maps, or attention_quality with steps=0"
            )
        return logits

    def _logits(self, images: Tensor) -> Any:
        answer = self.model(images)
        return getattr(answer, "logits", answer)

    @torch.no_grad()
    def classifies(self, images: Tensor) -> bool:
        """Whether it answers with a row of logits an image, tried on the first."""
        with evaluating(self.model):
            logits = self._logits(images[:1])
        return isinstance(logits, Tensor) and logits.dim() == 2

    @torch.no_grad()
    def trace(self, images: Tensor) -> list[Seen]:
        """What each layer of attention saw: (operator, its input (B, N, D), domain), in the order
        of the calls.

        Raises:
            DomainError: patches that are no grid, such as windows of them.
            ConversionError: a layer that was called otherwise than its operator answers.
        """
        patches = [
            name
            for name, layer in self.model.named_modules()
            if isinstance(layer, nn.Conv2d)
            and layer.stride == layer.kernel_size
            and layer.stride != (1, 1)
        ]
        with evaluating(self.model):
            calls = capture_all(self.model, [*patches[:1], *self.paths], images)
        grid = None
        seen: list[Seen] = []
        for path, call in calls:
            if path in patches:
                rows, columns = call.output_grid or (0, 0)
                grid = Domain.grid(rows, columns, device=call.u.device)
            else:
                with evaluating(self.model):
                    operator = as_operator(self.model.get_submodule(path))
                check_output(operator, call, call.domain(operator.kernel), path)
                seen.append((operator, call.u, self._place(grid, call, path)))
        return seen

    def _place(self, grid: Domain | None, call: Call, path: str) -> Domain:
        """The patches on their grid, and before them what else the layer reads."""
        points = call.u.shape[1]
        if grid is None or points < grid.size:
            there = "no patches" if grid is None else f"{grid.size} patches"
            raise DomainError(
                f"{path} reads {points} points, where the images make {there}: maps need layers "
                "that read all patches at once, and patches from one convolution"
            )
        before = points - grid.size
        if before == 0:
            return grid
        middle = torch.full((before, 2), 0.5, device=call.u.device)
        return Domain.join(Domain.points(middle), grid)


def traced(model: Any) -> Any:
    """The model itself where it has ``trace``, else a :class:`Traced` one.

    Raises:
        OptionError: a model whose attention cannot be read.
    """
    return model if hasattr(model, "trace") else Traced(model)


def attention_layers(model: nn.Module) -> list[str]:
    """Paths of the layers that are softmax attention, none inside another."""
    found: list[str] = []
    for path, _ in convertible_layers(model):
        layer = model.get_submodule(path)
        inside = any(path.startswith(f"{outer}.") for outer in found)
        if inside or type(layer).__module__.startswith(ELSEWHERE):
            continue
        operator = as_operator(layer)
        if isinstance(operator, IntegralOperator) and isinstance(operator.kernel, AttentionKernel):
            found.append(path)
    return found
