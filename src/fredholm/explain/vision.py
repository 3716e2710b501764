"""Any vision transformer as maps and pages read one: each layer's attention as an operator on a
grid of patches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..convert import as_operator
from ..domain import Domain
from ..errors import ConversionError, DomainError, OptionError, ShapeError
from ..integral import IntegralOperator
from ..integral.attention import AttentionKernel
from ..models.bodies.body import Seen
from ..modes import evaluating
from .calls import Call, Noted, check_output, convertible_layers, noted

ELSEWHERE = (
    "torch.nn.modules.conv",
    "torch.nn.modules.linear",
    "torch.nn.modules.pooling",
    "torch.nn.modules.rnn",
    "torch.nn.modules.container",
)


class Traced(nn.Module):
    r"""Wrapper of a vision transformer of torch, timm or transformers that adds what maps and pages
    need: logits as one tensor, and ``trace(images)``.

    Every layer of attention is converted by :func:`fredholm.as_operator`, which shares its
    weights, and must give the same output. To find the patches, the outputs of a convolution whose
    stride equals its kernel are changed at some positions; the rows that change with them are the
    patches. Points before them (a class token, registers) are placed in the middle, each with the
    mass of a patch, as in the model's softmax.

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

    Cost: of a trace two more forward passes of one image.
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
                "there is nothing to draw maps of; needs one that it converts, such as ViT, DeiT, "
                "DINOv2, CLIP's vision tower, timm's or one of torch's layers, or a model with "
                "trace(images)"
            )

    def forward(self, images: Tensor) -> Tensor:
        logits = self._logits(images)
        if not isinstance(logits, Tensor) or logits.dim() != 2:
            got: Any = type(logits).__name__
            if isinstance(logits, Tensor):
                got = tuple(logits.shape)
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
        """Return whether the model returns one row of logits per image: (1, classes) for the first
        image, which is tested in evaluation mode.

        Where this is False (a backbone without a classifier), :meth:`forward` raises ShapeError.
        """
        with evaluating(self.model):
            logits = self._logits(images[:1])
        return isinstance(logits, Tensor) and logits.dim() == 2

    @torch.no_grad()
    def trace(self, images: Tensor) -> list[Seen]:
        """Return each layer of attention with its input: (operator, u (B, N, D), domain), in the
        order of the calls.

        Raises:
            DomainError: patches that are not a complete grid, points after them, or a mask.
            ConversionError: a layer whose output differs from that of its operator.
        """
        with evaluating(self.model):
            calls = noted(self.model, self.paths, images)
            if not calls:
                raise DomainError(
                    f"none of {', '.join(self.paths)} was called on these images; needs a model "
                    "that reads them with its attention"
                )
            grid, before = self._patches(images[:1])
            seen: list[Seen] = []
            for one in calls:
                operator = as_operator(one.layer)
                call = self._read(one)
                check_output(
                    operator,
                    call,
                    call.domain(operator.kernel),
                    one.path,
                )
                if call.u.shape[1] != before + grid.size:
                    raise DomainError(
                        f"{one.path} reads {call.u.shape[1]} points, where the images make "
                        f"{grid.size} patches and {before} points before them: maps need layers "
                        "that read all patches at once, and no points behind them"
                    )
                points = _place(grid, before)
                seen.append((operator, call.u, points))
        return seen

    def _read(self, one: Noted) -> Call:
        """Return a call in the terms of an operator; errors name the layer's path."""
        try:
            call = one.read()
        except ConversionError as error:
            raise ConversionError(f"{one.path}: {error}") from error
        if call.valid is not None or call.pairs is not None:
            raise DomainError(
                f"{one.path} was called with a mask; maps are of layers that read all points"
            )
        return call

    def _patches(self, image: Tensor) -> tuple[Domain, int]:
        """Return the grid of patches, and how many points stand before them: those rows of what the
        first layer of attention reads that change where some patches do.
        """
        tried = []
        first_path = self.paths[:1]
        first_call = noted(self.model, first_path, image)[0]
        plain = self._read(first_call).u
        for name, layer in self.model.named_modules():
            if not isinstance(layer, nn.Conv2d) or layer.stride != layer.kernel_size:
                continue
            size: list[tuple[int, int]] = []  # (rows, columns), once per call of the layer
            chosen: list[int] = []  # the patches that are changed, numbered row by row

            def change(
                _layer: nn.Module,
                _inputs: Any,
                output: Tensor,
            ) -> Tensor:
                """Return the convolution's output (1, C, rows, columns), changed at the patches
                ``chosen``; a forward hook.
                """
                rows, columns = output.shape[-2:]
                size.append((rows, columns))  # noqa: B023

                # The first and the last patch mark the ends of the grid. The second one tells
                # numbering by rows from numbering by columns. A small grid has fewer patches.
                last = rows * columns - 1
                second = min(1, last)
                chosen[:] = sorted({0, second, last})  # noqa: B023

                # Each channel changes by another amount, since a norm after the convolution would
                # remove a constant. The 1 changes an output of zeros as well.
                slope = torch.linspace(-1, 1, output.shape[1])
                slope = slope.to(output)[:, None]
                changed = output.clone().flatten(-2)
                size_of_change = 1 + changed.abs().mean()
                changed[..., chosen] += slope * size_of_change  # noqa: B023
                return changed.view_as(output)

            with layer.register_forward_hook(change):
                other = noted(self.model, first_path, image)[0]
            if len(size) != 1:
                continue
            changed_input = self._read(other).u
            differs = (plain != changed_input).any(-1)[0]
            moved = differs.nonzero()[:, 0].tolist()
            if moved and [moved[0] + place for place in chosen] == moved:
                grid = Domain.grid(*size[0], device=image.device)
                return grid, moved[0]
            tried.append(name)
        candidates = ""
        if tried:
            candidates = f" (tried: {', '.join(tried)})"
        raise DomainError(
            f"{type(self.model).__name__}: found no convolution whose outputs, its patches, are "
            f"points of {self.paths[0]} one by one and row by row{candidates}"
        )


def _place(grid: Domain, before: int) -> Domain:
    """Return the domain of a layer's points: ``before`` tokens without a place in the image (a
    class token, registers), then the patches row by row; ``before`` + rows · columns points.

    Every token and every patch has the same mass, as in the model's softmax: both domains have the
    uniform measure, and joining them keeps it.
    """
    if before == 0:
        return grid

    # The grid fills the unit square; tokens without a place lie in its middle.
    middle = torch.full((before, 2), 0.5, device=grid.positions.device)
    return Domain.join(Domain.points(middle), grid)


def traced(model: nn.Module) -> Any:
    """Return the model itself if it has ``trace``, else its :class:`Traced` wrapper.

    Raises:
        OptionError: a model whose attention cannot be read.
    """
    if hasattr(model, "trace"):
        return model
    return Traced(model)


def attention_layers(model: nn.Module) -> list[str]:
    """Return the paths of the layers that are softmax attention, none inside another."""
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
