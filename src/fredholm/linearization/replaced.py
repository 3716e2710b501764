"""A model whose attention was replaced: its layers, what each kept and what is new, and the switch
between teacher and student.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor, nn

from ..errors import CheckpointError, ConversionError, OptionError
from ..tensor_files import list_misfits, misfits
from .divergence import ExactDivergence, Noted
from .graph_heads import GRAPHS


class Part(Protocol):
    """What stands in one layer's attention: ``mode`` is ``"linear"``, ``"softmax"``,
    ``"distil"``, which notes the divergences whose mean is ``loss``, or ``"measure"``, which notes
    exact ones.
    """

    mode: str
    noted: Noted

    @property
    def loss(self) -> Tensor | None: ...

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]: ...


@dataclass(frozen=True)
class Layer:
    """One attention layer of a conversion.

    Attributes:
        name: the attention module's, in the source model.
        kind: its class.
        heads, groups, width: query heads, key and value heads, features of a query.
        causal: whether a query sees only what came before.
        dropout: rate on the attention weights, which linear attention does not have: dropped.
        kept, new: names of parameters taken over as they are, in the source, and of those that
            start anew, in the converted model.
        numbers: how many numbers the kept ones hold.
    """

    name: str
    kind: str
    heads: int
    groups: int
    width: int
    causal: bool
    dropout: float = 0.0
    kept: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    numbers: int = 0


@dataclass(eq=False)
class Replaced:
    """A model with linear attention in the places of ``layers``.

    Attributes:
        model: the converted model.
        ecosystem: ``"transformers"``, ``"torch"`` or ``"fredholm"``: whose format it is saved in.
        to, options, tied: the map, its options, and whether keys share it.
        layers: those converted, in the order of the forward pass.
        refused: attention modules that keep their softmax, and why.
        parts: what stands in each layer, by its name.
        extra: what loading needs beside.
        window: the last tokens on which causal layers keep softmax; None where they keep none.
        sinks: the first tokens, on which they keep it too.
        keep: groups of heads that keep softmax on all tokens, by layer.
        store: tokens of each group of heads between both, on which they keep it as well.
        decay: by what all other tokens fade, ``"head"`` or ``"token"``; None where they do not.
        dropped_options: options of a fredholm model's softmax that do not apply to the new
            operator.
    """

    model: Any
    ecosystem: str
    to: str
    options: dict[str, Any]
    tied: bool
    layers: list[Layer]
    refused: dict[str, str]
    parts: dict[str, Any]
    extra: dict[str, Any] = field(default_factory=dict)
    window: int | None = None
    sinks: int = 0
    keep: dict[str, tuple[int, ...]] = field(default_factory=dict)
    store: int = 0
    decay: str | None = None
    dropped_options: dict[str, Any] = field(default_factory=dict)

    def switch(self, mode: str) -> None:
        """Set the mode of every layer."""
        for part in self.parts.values():
            part.mode = mode
            part.noted.clear()

    def gains(self) -> list[nn.Parameter]:
        """Return the gains of layers with a window, which calibration sets."""
        found = []
        for part in self.parts.values():
            for module in part.modules():
                gain = getattr(module, "gain", None)
                if isinstance(gain, nn.Parameter):
                    found.append(gain)
        return found

    @contextmanager
    def mode(self, mode: str) -> Iterator[None]:
        """Switch every layer to a mode inside; they are linear afterwards."""
        self.switch(mode)
        try:
            yield
        finally:
            self.switch("linear")

    @contextmanager
    def narrowed(self, window: int) -> Iterator[None]:
        """Give every layer a window of ``window`` tokens, and no store, inside.

        Raises:
            OptionError: a window wider than that of the conversion, which may have none.
        """
        if self.window is None or not 1 <= window <= self.window:
            raise OptionError(
                f"expected a window of 1 to {self.window} tokens, got {window}; give a narrower one"
            )
        parts = [getattr(part, "linear", part) for part in self.parts.values()]
        before = [(part, part.window, part.store) for part in parts if part.window is not None]
        for part, _, _ in before:
            part.window = window
            part.store = 0
        try:
            yield
        finally:
            for part, length, store in before:
                part.window = length
                part.store = store

    def losses(self) -> dict[str, Tensor]:
        """Return each layer's divergence on the last pass in the mode ``"distil"``.

        Raises:
            ConversionError: a layer was not called.
        """
        return _all_called({name: part.loss for name, part in self.parts.items()})

    def exact_divergences(self) -> dict[str, ExactDivergence]:
        """Return each layer's exact divergence over the passes in the mode ``"measure"``.

        Raises:
            ConversionError: a layer was not called.
        """
        return _all_called({name: part.noted.exact for name, part in self.parts.items()})

    def new_parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are not the source's, by name."""
        wanted = {name for layer in self.layers for name in layer.new}
        return {name: p for name, p in self.model.named_parameters() if name in wanted}

    def new_tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers that are not the source's, by name; random frequencies are
        among them.
        """
        roots = self.extra["roots"]
        inside = tuple(f"{root}." for root in roots)
        return {
            n: value
            for n, value in self.model.state_dict().items()
            if n in roots or n.startswith(inside)
        }

    def repeated(self) -> dict[str, str]:
        """Return further names of tensors in the state dict, each with the tensor's first name.

        Tied weights have several names, and so have those of a module at several places. Files hold
        each tensor once.
        """
        first_names: dict[int, str] = {}
        repeated = {}
        for name, value in self.model.state_dict(keep_vars=True).items():
            first = first_names.setdefault(id(value), name)
            if name != first:
                repeated[name] = first
        return repeated

    def fill(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Load saved tensors into the model. The names must be exactly the expected ones.

        For a transformers model the file holds only the new tensors (the maps); transformers loads
        the rest. For any other model it holds the full state dict, a shared tensor once, under its
        first name.

        Args:
            folder: where the tensors come from, for the error.

        Raises:
            CheckpointError: tensors that are missing, unknown or of other shapes.
        """
        maps_only = self.ecosystem == "transformers"
        if maps_only:
            expected = self.new_tensors()
        else:
            expected = self.model.state_dict()
            tensors = dict(tensors)
            for alias, first in self.repeated().items():
                if first in tensors:
                    tensors[alias] = tensors[first]

        faults = misfits(expected, tensors)
        if faults:
            raise CheckpointError(f"{folder}: the maps do not fit; {list_misfits(faults)}")
        self.model.load_state_dict(tensors, strict=not maps_only)

    @property
    def distils(self) -> bool:
        """Whether there is anything to distil: maps with parameters that change how attention is
        shared out.
        """
        return self.to not in GRAPHS and bool(self.new_parameters())


Value = TypeVar("Value")


def _all_called(found: dict[str, Value | None]) -> dict[str, Value]:
    silent = [name for name, value in found.items() if value is None]
    if silent:
        raise ConversionError(
            f"the forward pass did not come through {', '.join(silent)}; nothing to distil there"
        )
    return {name: value for name, value in found.items() if value is not None}


def check_found(
    model: nn.Module,
    found: list[str],
    refused: dict[str, str],
    keep_refused: bool,
) -> None:
    """Check that there is attention to convert, and none that cannot be.

    Args:
        found: names of the attention to convert.
        refused: names of attention that cannot be converted, with the reason.
        keep_refused: whether such attention may stay as it is.

    Raises:
        ConversionError: nothing to convert, or something that must be converted and cannot.
    """
    kind = type(model).__name__
    reasons = "; ".join(f"{name}: {why}" for name, why in refused.items())
    if not found:
        what = "it has no attention that is understood"
        if refused:
            what = f"none of its attention can be converted ({reasons})"
        raise ConversionError(
            f"{kind}: nothing to convert, {what}. Understood: transformers' attention interface, "
            "torch.nn.MultiheadAttention, "
            f"timm's Attention, and softmax operators of fredholm{_advice(model, refused)}"
        )
    if refused and not keep_refused:
        raise ConversionError(
            f"{kind}: some attention cannot be converted ({reasons}); keep_refused=True leaves "
            "these layers as they are"
        )


def _advice(model: Any, refused: dict[str, str]) -> str:
    """Return how a model whose layers all have a sliding window can be converted, else ""."""
    windowed = all("sliding window" in why for why in refused.values())
    if not refused or not windowed or getattr(model, "config", None) is None:
        return ""
    return (
        ". Loaded with sliding_window=None its queries see the whole past, and it can be converted"
    )
