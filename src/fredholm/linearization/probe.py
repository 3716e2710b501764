"""One small call of a transformers model, which finds its attention; and a comparison of the
converted model, switched to its softmax, with the model before.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConversionError
from ..integral.code_path import LIBRARIES, check_path
from ..integral.probe import probe as compare
from ..modes import evaluating
from .interface import (
    MIXED,
    SLOT,
    Call,
    Implementations,
    implementation,
    implementations,
    keep_softmax,
    recorded,
    register,
    uses_interface,
)

# Tokens of the small call, the last of them padding, and frames of a sound after its convolutions.
TOKENS = 6
FRAMES = 8
UNREACHED = (
    "was not reached by the small call that finds attention; give inputs={...} of a call that "
    "comes through it"
)


@dataclass(frozen=True, eq=False)
class Probe:
    """One small call of a model, and what its attention modules asked of the interface.

    Attributes:
        calls: one of every module that was called, in order.
        unreached: modules that were not called, though their code has the interface in it, and
            why they are not converted.
        inputs: the arguments of the call.
        before: the attention implementations that the model had.
        shape: of the signal that the model is compared on: its input where that is real, else what
            it embeds tokens to; None where there is neither.
    """

    calls: list[Call]
    unreached: dict[str, str]
    inputs: dict[str, Any]
    before: Implementations
    shape: tuple[int, ...] | None


@torch.no_grad()
def probe(
    model: Any,
    inputs: dict[str, Any] | None = None,
    *,
    keep_refused: bool = False,
) -> Probe:
    """Find the attention modules that call transformers' attention interface, their heads, and
    why some cannot be converted, by one forward pass in evaluation mode.

    Args:
        model: of transformers. Its attention implementation, and the training mode of each of its
            modules, are restored. Each attention module stores the softmax function that it calls,
            see :func:`.interface.keep_softmax`.
        inputs: arguments of one call; by default a few tokens, an image or a short sound, whose
            sizes follow from the configuration.
        keep_refused: whether the cross attention of an encoder-decoder may keep its softmax; such a
            model is refused otherwise.

    Raises:
        ConversionError: a model that does not go through the interface, or needs other inputs, by
            name.
    """
    register()
    _check_interface(model, keep_refused)
    keep_softmax(model)
    given = inputs is not None
    if inputs is None:
        inputs = small_call(model)
    names = {id(module): name for name, module in model.named_modules()}
    before = implementations(model)
    shapes: list[tuple[int, ...]] = []
    with (
        evaluating(model),
        implementation(model, MIXED),
        recorded() as calls,
        _embedded(model, None, shapes),
    ):
        _call(model, inputs, given)

    # One call per module, under the module's name, in the order of the first calls.
    result: dict[str, Call] = {}
    for module, call in calls:
        # A patched forward may call a module of another model, which has no name in this one. The
        # module that it replaced then counts as unreached.
        name = names.get(id(module))
        if name is None:
            continue
        # If a module is called several times, its first problem is the one that is reported.
        problem = call.problem or path_problem(model, module)
        if name in result:
            problem = result[name].problem or problem
        result[name] = replace(call, name=name, problem=problem)

    unreached = {
        name: path_problem(model, module) or UNREACHED
        for name, module in model.named_modules()
        if uses_interface(module) and name not in result
    }

    # The signal that the converted model is compared on, see verify: a real-valued input, or else
    # what the first tokens are embedded to.
    main = _real_input(model, inputs)
    shape = None
    if main is not None:
        shape = tuple(main.shape)
    elif shapes:
        shape = shapes[0]
    return Probe(list(result.values()), unreached, inputs, before, shape)


def _check_interface(model: Any, keep_refused: bool) -> None:
    """Refuse models that were converted already, or do not use the interface.

    Raises:
        ConversionError: by name and reason.
    """
    kind = type(model).__name__
    if any(hasattr(module, SLOT) for module in model.modules()):
        raise ConversionError(
            f"{kind} was converted already; convert its source, with all layers at once"
        )
    if _has_decoder(model) and not keep_refused:
        raise ConversionError(
            f"{kind} is an encoder-decoder, whose cross attention is not converted; "
            "keep_refused=True leaves that as it is and converts the rest, and with "
            "layers=['*encoder.*'] beside it its encoder alone"
        )
    if not model._can_set_attn_implementation():
        raise ConversionError(
            f"{kind} does not compute its attention through transformers' attention interface (a "
            "relative bias inside, as T5 and DeBERTa have, or an older implementation), so that "
            "nothing can take its place"
        )


def _has_decoder(model: Any) -> bool:
    """Whether a model is an encoder-decoder."""
    return "decoder_input_ids" in inspect.signature(model.forward).parameters


def path_problem(model: nn.Module, module: nn.Module) -> str:
    """Return what in an attention module is not its class's code, and would be lost where the
    converted model is loaded; or "".
    """
    try:
        check_path(module)
    except ConversionError as error:
        return str(error)
    # The owner's code loads a model of a class of their own, parts and all.
    if not type(model).__module__.startswith(LIBRARIES):
        return ""
    for path, part in module.named_modules():
        if not type(part).__module__.startswith(LIBRARIES):
            where = ""
            if path:
                where = f" at {path!r}"
            return (
                f"{type(part).__module__}.{type(part).__name__}{where} is not a layer of torch or "
                f"transformers (an adapter?), and loading {type(model).__name__} would not bring "
                "it back; merge it into the weights first"
            )
    return ""


# --- a small call ---------------------------------------------------------------------------------


def small_call(model: Any) -> dict[str, Any]:
    """Return arguments of a small call: tokens, an image of the configured size, a short sound.

    Raises:
        ConversionError: a model that reads something else.
    """
    names = inspect.signature(model.forward).parameters
    device, dtype = model.device, model.dtype
    config, main = model.config, model.main_input_name
    result: dict[str, Any] = {}
    if main == "input_ids":
        ids = torch.arange(2, 2 + TOKENS, device=device)
        result[main] = ids[None] % _vocabulary(model)
        if "attention_mask" in names:
            result["attention_mask"] = torch.ones(1, TOKENS, dtype=torch.long, device=device)
            result["attention_mask"][:, -1] = 0

    # A model of texts and images, such as CLIP, needs both.
    is_pair = hasattr(config, "text_config") and hasattr(config, "projection_dim")
    sizes: tuple[int, ...] | None = None
    if main == "pixel_values" or (main == "input_ids" and is_pair):
        sizes = _image(getattr(config, "vision_config", config))
        main = "pixel_values"
    elif main == "input_values" and hasattr(config, "conv_stride"):
        sizes = (1, _samples(config))
    elif main == "input_features" and hasattr(config, "max_source_positions"):
        sizes = (1, config.num_mel_bins, 2 * config.max_source_positions)
    if sizes is not None:
        values = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
        result[main] = values.to(device, dtype)
    # A decoder's tokens are of another number, by which cross attention is recognised.
    if _has_decoder(model):
        ids = torch.arange(2, TOKENS, device=device)
        result["decoder_input_ids"] = ids[None] % _vocabulary(model)
    if not result:
        raise ConversionError(
            f"{type(model).__name__} reads {main}, of which no small example is known; give one, "
            f"inputs={{{main!r}: ...}}, the arguments of one call"
        )
    return result


def _vocabulary(model: Any) -> int:
    size = getattr(model.config.get_text_config(), "vocab_size", None)
    return int(size or 2 + TOKENS)


def _image(config: Any) -> tuple[int, ...] | None:
    """Return the shape of one image, (1, C, height, width); None where no size is configured, or
    for videos.
    """
    size = getattr(config, "image_size", None)
    if size is None or hasattr(config, "num_frames"):
        return None
    if isinstance(size, int):
        size = (size, size)
    height, width = size
    return (1, config.num_channels, height, width)


def _samples(config: Any) -> int:
    """Return the number of samples of which the configured convolutions make FRAMES frames."""
    length = FRAMES
    for kernel, stride in zip(reversed(config.conv_kernel), reversed(config.conv_stride)):
        length = (length - 1) * stride + kernel
    return length


def _call(
    model: Any,
    inputs: dict[str, Any],
    given: bool,
) -> Any:
    """Call the model; ``given`` says whether the user chose the inputs.

    Raises:
        ConversionError: the model cannot be called on them.
    """
    try:
        return model(**inputs)
    except ConversionError:
        raise
    except Exception as error:
        which = "the small example that was tried"
        if given:
            which = "the inputs given"
        raise ConversionError(
            f"{type(model).__name__} cannot be called on {which}, {', '.join(inputs)} "
            f"({type(error).__name__}: {error}); give arguments of one call that it takes, "
            "inputs={...}"
        ) from error


def _real_input(model: Any, inputs: dict[str, Any]) -> Tensor | None:
    """Return the main input where it is real-valued: an image, a sound."""
    main = inputs.get(model.main_input_name)
    if isinstance(main, Tensor) and main.is_floating_point():
        return main
    return None


# --- the same as before ---------------------------------------------------------------------------


def verify(model: Any, probed: Probe) -> None:
    """Compare output and input gradient of a converted model, its layers switched to the softmax
    inside them, with those of the model before.

    Raises:
        ConversionError: they differ.
    """
    real = _real_input(model, probed.inputs) is not None

    def run(u: Tensor) -> Tensor:
        """Return the outputs for u: the main input, or what tokens are embedded to."""
        inputs = dict(probed.inputs)
        embedded = None
        if real:
            inputs[model.main_input_name] = u
        elif probed.shape is not None:
            embedded = u
        with _embedded(model, embedded, []):
            return _numbers(model(**inputs))

    def original(u: Tensor) -> Tensor:
        with implementation(model, probed.before):
            return run(u)

    advice = (
        "a model that does something else with its attention cannot be converted; give other "
        "inputs={...}, or probe=False"
    )
    with evaluating(model):
        compare(model, original, run, probed.shape or (1,), advice=advice)


@contextmanager
def _embedded(
    model: Any,
    u: Tensor | None,
    shapes: list[tuple[int, ...]],
) -> Iterator[None]:
    """Replace the output of a model's token embedding by u in this context; or, where u is None,
    only record its shape.

    Tokens are integers, in which nothing can be differentiated. So :func:`verify` compares two
    models as functions of the embedded tokens u, whose shape :func:`probe` recorded before.

    Args:
        model: of transformers. A model without an embedding module runs unchanged.
        u: (B, N, D), or None.
        shapes: a list to which the shape of each output is appended where u is None.
    """

    def replaced(module: nn.Module, args: Any, output: Any) -> Any:
        if u is not None:
            # In an encoder-decoder the same module also embeds the decoder's tokens. They differ in
            # number from the encoder's, see small_call, and stay as they are.
            if u.shape != output.shape:
                return output
            return u
        if isinstance(output, Tensor):
            shapes.append(tuple(output.shape))
        return output

    try:
        embedding = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        embedding = None
    if not isinstance(embedding, nn.Module):
        yield
        return
    with embedding.register_forward_hook(replaced):
        yield


def _numbers(output: Any) -> Tensor:
    """Return all real-valued tensors of a model's output as one vector, without caches."""
    result: list[Tensor] = []

    def collect(value: Any) -> None:
        if isinstance(value, Tensor):
            if value.is_floating_point():
                result.append(value.flatten())
        elif isinstance(value, Mapping):
            for one in value.values():
                collect(one)
        elif isinstance(value, tuple | list):
            for one in value:
                collect(one)

    collect(output)
    if not result:
        return torch.zeros(0)
    return torch.cat(result)
