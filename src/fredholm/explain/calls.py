"""One call of a layer inside a model, in the terms of an operator: features, domain, output."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..convert import convertible
from ..domain import Domain
from ..errors import ConversionError, OptionError, ShapeError, suggest
from ..integral import IntegralOperator, Kernel
from ..modes import evaluating
from ..registry import qualified_name

CHANNELS_FIRST = (
    "torch.nn.modules.conv.",
    "torch.nn.modules.pooling.",
    "neuralop.layers.spectral_convolution.",
)
# Relative error beyond which the operator is not this layer; a page states the error in any case.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3}

# The same in half precision.
HALF_TOLERANCE = 3e-2

# An additive mask below this hides a pair.
HIDDEN = -1e4


@dataclass(frozen=True, eq=False)
class Call:
    """The inputs and the output of a layer in one call, as features on points.

    Attributes:
        u: its input as points, (B, N, dim).
        output: its output as points, (B, Nq, out_dim).
        grid: extents of the grid the points form where the layer reads channels first, else None.
        valid: points that are not padding, (B, N), or None.
        pairs: which points see which, as in :class:`fredholm.Domain`, or None.
        calls: how often the model called the layer; this is the first time.
        unread: further arguments of the call that are not part of the above.
    """

    u: Tensor
    output: Tensor
    grid: tuple[int, ...] | None = None
    valid: Tensor | None = None
    pairs: Tensor | None = None
    calls: int = 1
    unread: tuple[str, ...] = ()

    def first(self, samples: int) -> Call:
        """Return the same call of the first signals only."""
        valid, pairs = self.valid, self.pairs
        if valid is not None:
            valid = valid[:samples]
        # Pairs of two dimensions are shared by all signals.
        if pairs is not None and pairs.dim() > 2:
            pairs = pairs[:samples]
        return replace(
            self,
            u=self.u[:samples],
            output=self.output[:samples],
            valid=valid,
            pairs=pairs,
        )

    def domain(self, kernel: Kernel) -> Domain:
        """Return the domain of the points, with the call's padding and mask.

        A layer that reads channels first, on two or more axes, has its grid with mass 1 per point:
        a convolution is a plain sum. Any other has the default domain of ``kernel``, which needs
        only the number of points.
        """
        # Positions and masses are in float32 at least, also beside half-precision features.
        dtype = torch.promote_types(self.u.dtype, torch.float32)
        if self.grid is not None and len(self.grid) > 1:
            base = Domain.grid(
                *self.grid,
                measure="counting",
                device=self.u.device,
                dtype=dtype,
            )
        else:
            base = kernel.default_domain(
                self.u.shape[1],
                device=self.u.device,
                dtype=dtype,
            )

        # None would overwrite what the default domain has.
        masks: dict[str, Tensor] = {}
        if self.valid is not None:
            masks["valid"] = self.valid
        if self.pairs is not None:
            masks["pairs"] = self.pairs
        return base.replace(**masks)


def find_layer(model: nn.Module, path: str) -> nn.Module:
    """Return the layer at a dotted path.

    Raises:
        OptionError: no such layer; the error names the closest path and all convertible layers.
    """
    layers = dict(model.named_modules())
    if path in layers:
        return layers[path]

    # Without a close name `suggest` lists every module, which is cut off: the list of convertible
    # layers below is shorter and of more use.
    names = [name for name in layers if name]
    hint, *_ = suggest(path, names).split("; known")
    lines = [f"{name} ({kind})" for name, kind in convertible_layers(model)]
    listed = "\n".join(lines) or "none"
    raise OptionError(
        f"{type(model).__name__} has no layer {path!r}{hint}\nlayers that can be "
        f"converted:\n{listed}"
    )


def convertible_layers(model: nn.Module) -> list[tuple[str, str]]:
    """Return paths and class names of the layers whose class :func:`fredholm.as_operator` knows;
    of a ``Sequential`` its layers are listed.

    Example:
        >>> convertible_layers(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU()))
        [('0', 'Conv1d')]
    """
    known = set(convertible())

    def served(kind: type) -> bool:
        bases = [c for c in kind.__mro__ if qualified_name(c) in known]
        return bool(bases) and kind.forward is bases[0].forward  # type: ignore[attr-defined]

    return [
        (name, type(layer).__name__)
        for name, layer in model.named_modules()
        if served(type(layer)) and not isinstance(layer, nn.Sequential)
    ]


@torch.no_grad()
def capture(
    model: nn.Module,
    path: str,
    inputs: Any,
) -> Call:
    """Run a model once in evaluation mode and record the first call of one of its layers.

    Args:
        model: any module.
        path: the layer's name in ``model.named_modules()``.
        inputs: a tensor, a sequence of arguments, or a dictionary of keyword arguments of the
            model.

    Returns:
        The first call; its ``calls`` counts all calls of the layer in this pass.

    Raises:
        OptionError: no such layer.
        ShapeError: the model does not take these inputs.
        ConversionError: the layer was never called, or its first call cannot be written as one
            operator on one domain (cross attention, for example).
    """
    recorded = noted(model, [path], inputs)
    if not recorded:
        raise ConversionError(
            f"{path} was not called on these inputs, so there is nothing to look at"
        )

    first = recorded[0].read()
    return replace(first, calls=len(recorded))


@dataclass(frozen=True, eq=False)
class Noted:
    """One call of a layer as it was made: arguments by their names, and the output."""

    path: str
    layer: nn.Module
    given: dict[str, Any]
    output: Any

    def read(self) -> Call:
        """Return the call in the terms of an operator.

        Raises:
            ConversionError: a call that no single operator on one domain answers.
        """
        return _read(self.layer, self.given, self.output)


@torch.no_grad()
def noted(
    model: nn.Module,
    paths: Sequence[str],
    inputs: Any,
) -> list[Noted]:
    """Run a model once in evaluation mode and return all calls of some of its layers, in their
    order; see :func:`capture`.
    """
    layers = {path: find_layer(model, path) for path in paths}
    seen: list[Noted] = []

    def noting(path: str):
        def note(
            module: nn.Module,
            args: tuple,
            kwargs: dict[str, Any],
            output: Any,
        ) -> None:
            given = _named(module, args, kwargs)
            seen.append(Noted(path, module, given, output))

        return note

    with evaluating(model), ExitStack() as hooks:
        for path, layer in layers.items():
            hook = layer.register_forward_hook(noting(path), with_kwargs=True)
            hooks.enter_context(hook)
        _run(model, inputs)
    return seen


@torch.no_grad()
def check_output(
    operator: IntegralOperator,
    call: Call,
    domain: Domain,
    path: str,
) -> float:
    """Return the largest difference of operator and layer over the largest output, at points that
    are not padding.

    Raises:
        ConversionError: they are not the same function here.
    """
    answer = operator(call.u, domain)
    if answer.shape != call.output.shape:
        raise ConversionError(
            f"the operator of {path} answers {tuple(answer.shape)} and the layer "
            f"{tuple(call.output.shape)}"
        )
    error = difference(answer, call.output, call.valid)
    limit = TOLERANCE.get(call.output.dtype, HALF_TOLERANCE)
    # An error of NaN is not within the limit either.
    if error <= limit:
        return error
    ignored = ""
    if call.unread:
        ignored = f"; the arguments {', '.join(call.unread)} of its call are not read"
    raise ConversionError(
        f"the operator of {path} differs from the layer by {error:.1e} of the largest output, "
        f"more than {limit:.0e}{ignored}"
    )


def difference(
    answer: Tensor,
    expected: Tensor,
    valid: Tensor | None,
) -> float:
    """Return the largest difference over the largest expected number, at points that are not
    padding.
    """
    # Answers at other points than the keys have no padding.
    if valid is not None and valid.shape[1] == answer.shape[1]:
        real = valid[..., None]
        answer = torch.where(real, answer, 0.0)
        expected = torch.where(real, expected, 0.0)
    largest = expected.abs().max()
    largest = largest.clamp(min=1e-30)
    off = (answer - expected).abs().max()
    return float(off / largest)


# --- parts ----------------------------------------------------------------------------------------


def _run(model: nn.Module, inputs: Any) -> None:
    try:
        if isinstance(inputs, Mapping):
            model(**inputs)
        elif isinstance(inputs, Tensor) or not isinstance(inputs, Sequence):
            model(inputs)
        else:
            model(*inputs)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ShapeError(
            f"{type(model).__name__} does not take {_shapes(inputs)}: {error}"
        ) from error


def _shapes(inputs: Any) -> str:
    if isinstance(inputs, Tensor):
        return f"{str(inputs.dtype).removeprefix('torch.')} {tuple(inputs.shape)}"
    if isinstance(inputs, Mapping):
        return ", ".join(f"{name}: {_shapes(value)}" for name, value in inputs.items())
    if isinstance(inputs, Sequence) and not isinstance(inputs, str):
        return ", ".join(_shapes(value) for value in inputs)
    return type(inputs).__name__


def _named(
    module: nn.Module,
    args: tuple,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Return the arguments of a call by their names in ``module.forward``, without defaults."""
    signature = inspect.signature(module.forward)
    arguments = dict(signature.bind_partial(*args, **kwargs).arguments)

    # Those that ``**kwargs`` took are one dictionary under its name; they join the others.
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            arguments.update(arguments.pop(name, {}))
    return arguments


def _read(
    layer: nn.Module,
    given: dict[str, Any],
    output: Any,
) -> Call:
    """Return the call of a layer, whose class determines how its arguments are laid out."""
    # Attention and recurrences answer with weights or a state beside the output.
    if isinstance(output, tuple | list):
        output = output[0]
    first = next(iter(given.values()), None)
    # Tokens and other whole numbers are not features.
    whole = isinstance(first, Tensor) and not first.is_floating_point()
    if not isinstance(first, Tensor) or not isinstance(output, Tensor) or whole:
        got = f"{type(first).__name__} and answered {type(output).__name__}"
        raise ConversionError(
            f"{type(layer).__name__} was given {got}; explain reads layers of plain float tensors"
        )
    home = {f"{c.__module__}." for c in type(layer).__mro__}
    if home & set(CHANNELS_FIRST):
        return _channels_first(layer, first, output, given)

    if "torch.nn.modules.linear." in home:
        # All axes between batch and features are points; two axes are points and features.
        batch = 1
        if first.dim() > 2:
            batch = len(first)
        u = first.reshape(batch, -1, first.shape[-1])
        y = output.reshape(batch, -1, output.shape[-1])
        return Call(u, y)

    if first.dim() == 2 and output.dim() == 2:
        # A sequence without a batch.
        first = first[None]
        output = output[None]
    elif getattr(layer, "batch_first", True) is False:
        first = first.transpose(0, 1)
        output = output.transpose(0, 1)
    if first.dim() != 3 or output.dim() != 3:
        got = f"{tuple(first.shape)} to {tuple(output.shape)}"
        raise ConversionError(
            f"{type(layer).__name__} maps {got}; explain reads (batch, points, features)"
        )
    return _sequence(layer, first, output, given)


def _channels_first(
    layer: nn.Module,
    first: Tensor,
    output: Tensor,
    given: dict[str, Any],
) -> Call:
    digits = [c for c in type(layer).__name__ if c.isdigit()]
    if digits and first.dim() == int(digits[0]) + 1:
        # An image without a batch: a Conv2d reads (B, C, H, W) or (C, H, W).
        first = first[None]
        output = output[None]
    return Call(
        first.flatten(2).mT.contiguous(),
        output.flatten(2).mT,
        grid=tuple(first.shape[2:]),
        unread=_unread(given, 1),
    )


def _sequence(
    layer: nn.Module,
    u: Tensor,
    output: Tensor,
    given: dict[str, Any],
) -> Call:
    """Return the call of attention, a recurrence or a scan: (B, N, D), with its masks."""
    first, own = next(iter(given.items()))
    known = {first}
    valid = None
    pairs = None
    for name in ("key", "value", "encoder_hidden_states"):
        other = given.get(name)
        if other is None:
            continue
        known.add(name)
        # Self-attention passes one tensor three times, or equal copies of it.
        if other is not own and not _equal(other, own):
            raise ConversionError(
                f"{type(layer).__name__} was called with another {name}: explain reads "
                "self-attention; for cross attention use as_operator and pass query="
            )

    state = given.get("hx")
    if state is not None:
        known.add("hx")
        # An LSTM has two states. States of zeros are the default.
        states = state
        if isinstance(state, Tensor):
            states = (state,)
        if any(bool(part.any()) for part in states):
            raise ConversionError(
                f"{type(layer).__name__} was called with an initial state hx; use "
                "as_operator(layer, initial_state=...)"
            )

    padding = given.get("key_padding_mask")
    if padding is not None:
        known.add("key_padding_mask")
        # A boolean mask is True at padding, an additive one very negative.
        valid = padding > HIDDEN
        if padding.dtype == torch.bool:
            valid = ~padding
    for name in ("attn_mask", "attention_mask"):
        mask = given.get(name)
        if mask is not None:
            known.add(name)
            hides = name == "attn_mask" and isinstance(layer, nn.MultiheadAttention)
            by_sample = name == "attention_mask"
            pairs = _pairs(mask, u, hides=hides, by_sample=by_sample)
    unread = [name for name in _unread(given, 1) if name not in known]
    return Call(
        u,
        output,
        valid=valid,
        pairs=pairs,
        unread=tuple(unread),
    )


def _pairs(
    mask: Tensor,
    u: Tensor,
    *,
    hides: bool,
    by_sample: bool,
) -> Tensor:
    """Return an attention mask in the form of :attr:`fredholm.Domain.pairs`.

    That is boolean, True where a query sees a key, or an additive bias with -inf for hidden pairs.

    Args:
        mask: (N, N), (B, N) over keys, (B, N, N), (B·H, N, N) or (B, H, N, N); boolean, integers
            (0 hides), or an additive bias.
        u: the layer's input, (B, N, D).
        hides: whether True in a boolean mask hides a pair, as in ``nn.MultiheadAttention``.
        by_sample: whether a mask of two dimensions that may be (N, N) or (B, N), because B = N, is
            (B, N), as the ``attention_mask`` of transformers.
    """
    batch, n = u.shape[:2]

    # torch folds heads into the batch: (B·H, N, N) becomes (B, H, N, N).
    if mask.dim() == 3 and len(mask) != batch:
        mask = mask.unflatten(0, (batch, -1))

    # (B, N) tells which keys every query sees: (B, 1, N, N).
    for_pairs = mask.shape == (n, n) and not (by_sample and batch == n)
    if mask.dim() == 2 and not for_pairs:
        mask = mask[:, None, None, :]
        mask = mask.expand(-1, 1, n, -1)

    if mask.dtype == torch.bool and hides:
        return ~mask
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        return mask != 0

    # A bias that only hides becomes a boolean mask.
    hidden = mask < HIDDEN
    only_hides = (mask == 0) | hidden
    if bool(only_hides.all()):
        return mask >= HIDDEN
    return mask.masked_fill(hidden, -torch.inf)


def _unread(given: dict[str, Any], start: int) -> tuple[str, ...]:
    """Return the names of further arguments that hold tensors."""

    def holds(value: Any) -> bool:
        if isinstance(value, tuple | list):
            return any(map(holds, value))
        return isinstance(value, Tensor)

    further = list(given.items())[start:]
    return tuple(name for name, value in further if holds(value))


def _equal(a: Any, b: Any) -> bool:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return False
    return a.shape == b.shape and torch.equal(a, b)
