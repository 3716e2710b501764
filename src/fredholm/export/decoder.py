"""Prefill and step programs of causal text models, with their states as inputs and outputs.

A state is a list of tensors, those of each layer in order. ``prefill`` reads a text and returns the
logits after each token and the state after the last; ``step`` takes one more token, the number of
tokens seen so far and the state, and returns the logits after the token and the state after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from ..errors import ExportError, OptionError, require
from ..files import check_target, replacing
from ..integral.contract import Form
from ..models.encoders.text import TextEncoder
from ..models.model import Model, TextState
from ..modes import device_of
from ..ops.feature_map.bank import sums_of_units
from .onnx import INPUT, OUTPUT, Runner, converted, onnx_forms, runner_of
from .program import check_error, check_ops, first_lines, largest_answer, without_torchs_warning
from .signature import LARGEST_BATCH, signature_of

TRACED_BATCH = 5
LONGEST_TRACED = 7
"""Tokens of the prompt that programs are traced with, fewer where a model's texts are shorter."""

SHORTEST = 4
"""Tokens of the shortest texts that can be exported. In shorter ones a past has one or two tokens,
which a tracer takes for fixed numbers."""

CHECKED = ((5, 7), (1, 1), (2, 130))
"""Batches and prompts that programs are compared with the model at; the longest prompt has three
blocks of 64 tokens, as causal forms compute in."""

LONGEST_CHECKED = 136
"""Tokens of the texts that are compared."""

FreeAxes = dict[int, str]
"""The dimensions of a tensor that are the batch or the number of tokens seen."""


class DecoderPaths(NamedTuple):
    """The files of a decoder's two programs."""

    prefill: Path
    step: Path


class DecoderErrors(NamedTuple):
    """The largest relative errors of a decoder's two programs."""

    prefill: float
    step: float


@dataclass(frozen=True)
class StateNames:
    """The names of the tensors that each layer keeps, layer by layer."""

    layers: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, state: TextState) -> StateNames:
        for layer in state.layers:
            memory = getattr(layer, "keys", None)
            if not isinstance(memory, dict) or not all(
                isinstance(value, Tensor) for value in memory.values()
            ):
                raise ExportError(
                    "export: expected layers whose states are tensors by name, got "
                    f"{type(layer).__name__}; export the whole-text program instead"
                )
        names = (tuple(layer.keys) for layer in state.layers)
        return cls(tuple(names))

    @property
    def count(self) -> int:
        return sum(len(names) for names in self.layers)

    def tensors(self, state: TextState) -> list[Tensor]:
        """Return the state's tensors in order."""
        return [
            layer.keys[name]
            for layer, names in zip(state.layers, self.layers, strict=True)
            for name in names
        ]

    def filled(
        self,
        state: TextState,
        tensors: list[Tensor],
        seen: int,
        batch: int,
    ) -> TextState:
        """Return the state with these tensors in the places of its own."""
        rest = iter(tensors)
        layers = []
        for layer, names in zip(state.layers, self.layers, strict=True):
            memory = {name: next(rest) for name in names}
            layer = replace(layer, seen=seen, keys=memory, batch=batch)
            layers.append(layer)
        return replace(state, seen=seen, layers=tuple(layers))


class Prefill(nn.Module):
    """A model's :meth:`.Model.prefill` from the start of a text, with the state's tensors."""

    def __init__(self, model: Model, start: TextState, names: StateNames):
        super().__init__()
        self.model = model
        self.start = start
        self.names = names

    def forward(self, numbers: Tensor) -> tuple[Tensor, ...]:
        # The empty states were made for the batch of the trace.
        batch = numbers.shape[0]
        layers = tuple(replace(layer, batch=batch) for layer in self.start.layers)
        start = replace(self.start, layers=layers)
        tokens = _beyond_table_at_padding(self.model, numbers)
        logits, state = self.model.prefill(tokens, start)
        return logits, *self.names.tensors(state)


class Step(nn.Module):
    """A model's :meth:`.Model.step`, with the state's tensors as inputs and results."""

    def __init__(
        self,
        model: Model,
        state: TextState,
        names: StateNames,
        axes: list[FreeAxes],
    ):
        super().__init__()
        self.model = model
        self.state = state
        self.names = names
        self.axes = axes

    def forward(
        self,
        numbers: Tensor,
        seen: Tensor,
        past: list[Tensor],
    ) -> tuple[Tensor, ...]:
        count: Any = seen.item()
        # What holds for every call: a tracer cannot read the number.
        torch._check(count >= 1)
        torch._check(count < self.state.domain.size)
        for tensor, axes in zip(past, self.axes, strict=True):
            for axis, name in axes.items():
                if name == "seen":
                    torch._check(tensor.shape[axis] == count)

        state = self.names.filled(self.state, past, count, numbers.shape[0])
        tokens = _beyond_table_at_padding(self.model, numbers)
        logits, after = self.model.step(tokens, state)
        return logits, *self.names.tensors(after)


def _beyond_table_at_padding(model: Model, numbers: Tensor) -> Tensor:
    """Return token numbers whose padding is a number beyond the table of embeddings.

    A state would take padding for a token. The model refuses it, but a program has no errors of its
    own: a look-up out of bounds is one of its runtime's.
    """
    encoder = model.encoder
    # Other encoders have no padding, and token 0 is a token.
    if not isinstance(encoder, TextEncoder):
        return numbers
    return numbers.masked_fill(numbers == 0, encoder.embed.num_embeddings)


def export_decoder(
    model: Model,
    path: str | Path,
    *,
    metadata: Mapping[str, Any] | None = None,
) -> DecoderPaths:
    """Write a causal text model's prefill and step as two ONNX programs.

    ``prefill`` maps ``inputs`` (batch, length) to ``outputs`` (batch, length, vocabulary) and
    ``state_0``, ``state_1``, …; ``step`` maps ``inputs`` (batch,), ``seen`` (the number of tokens
    before, at least 1) and ``past_0``, … to ``outputs`` (batch, vocabulary) and ``state_0``, ….
    Texts end at the model's ``max_length``. Operators that read a prompt point by point (``infsa``,
    ``linear_infsa``) have a prefill of one token, and ``step`` reads the others. Both are run
    together and compared with the model before either is written.

    Prompts of a batch need one length: padding, token 0, is looked up beyond the table of tokens,
    where ONNX Runtime raises an error.

    Args:
        model: a model with an encoder of causal texts and ``head.pool`` ``every``.
        path: ``model.onnx`` gives ``model-prefill.onnx`` and ``model-step.onnx``.
        metadata: see :func:`.export_onnx`.

    Raises:
        OptionError: a model that does not go token by token, or texts of fewer than 4 tokens.
        ExportError: a model that cannot be traced, or programs that answer otherwise.
        MissingExtraError: ``onnxscript`` or ``onnxruntime`` is not installed.
        StorageError: a file that cannot be written.
    """
    require("onnxscript", "onnx", "a program in ONNX")
    require("onnxruntime", "onnx", "a program in ONNX, which is run before it is written,")
    check_target(path)
    model = model.eval()
    # As in export_onnx, learned feature maps are sums of ReLU units, not look-ups in tables.
    with torch.no_grad(), sums_of_units():
        prefill, step, names = _traced(model)

    # Both programs name the state that they return alike, so that it is the step's past as it is.
    states = [f"state_{i}" for i in range(names.count)]
    pasts = [f"past_{i}" for i in range(names.count)]
    facts = dict(metadata or {})
    prefill_content = converted(
        prefill,
        [INPUT],
        [OUTPUT, *states],
        facts,
    )
    step_content = converted(
        step,
        [INPUT, "seen", *pasts],
        [OUTPUT, *states],
        facts,
    )
    error = max(decoder_errors(model, prefill_content, step_content))
    check_error(error, model, signature_of(model), "steps that answer")

    path = Path(path)
    paths = DecoderPaths(
        prefill=path.with_stem(f"{path.stem}-prefill"),
        step=path.with_stem(f"{path.stem}-step"),
    )
    # Neither file takes its place before both are written.
    with replacing(paths.prefill) as first, replacing(paths.step) as second:
        first.write_bytes(prefill_content)
        second.write_bytes(step_content)
    return paths


def _traced(model: Model) -> tuple[ExportedProgram, ExportedProgram, StateNames]:
    """Trace the prefill and the step into two programs of torch's own operations.

    Both are traced on made-up texts: a batch of TRACED_BATCH prompts of LONGEST_TRACED tokens or as
    many as fit, and the state after them for the step. The batch is free in both, the length of the
    prompt in the prefill, and the number of tokens seen in the step.

    Returns:
        The prefill, the step, and the names of the state's tensors, whose order is that of the
        programs' outputs and of the step's inputs.

    Raises:
        OptionError: a model that does not go token by token.
        ExportError: a model that torch.export cannot trace, or a state that is not made of tensors.
    """
    length = _longest(model)
    traced_prompt = _traced_prompt(length)
    numbers = _texts(model, TRACED_BATCH, traced_prompt)
    start = model.init_state(length, batch=TRACED_BATCH)
    _, state = model.prefill(numbers, start)
    names = StateNames.of(state)
    # Clones: torch.export would write the sizes of a view's base into the program.
    past = [tensor.clone() for tensor in names.tensors(state)]

    # A prompt or a past has at most ``length - 1`` tokens, so that the step has room for one more.
    batch = Dim("batch", min=1, max=LARGEST_BATCH)
    prompt = Dim("length", min=1, max=length - 1)
    prompt_shape = {0: batch, 1: prompt}
    # A form that loops over the prompt's points would be unrolled to the traced length. It is
    # traced with a prompt of one token, and the step reads the others.
    if _reads_one_by_one(start):
        prompt_shape = {0: batch}
        numbers = numbers[:, :1].contiguous()
    seen = Dim("seen", min=1, max=length - 1)

    # The free dimensions of each tensor of the state, by their number.
    free = {"batch": batch, "seen": seen}
    axes = _free_axes(model, names)
    past_shapes = []
    for named in axes:
        past_shapes.append({i: free[name] for i, name in named.items()})
    next_texts = _texts(model, TRACED_BATCH, 1)
    next_tokens = next_texts[:, 0].contiguous()
    try:
        with without_torchs_warning():
            prefill = torch.export.export(
                Prefill(model, start, names),
                (numbers,),
                dynamic_shapes=(prompt_shape,),
                strict=False,
            )
            step = torch.export.export(
                Step(model, state, names, axes),
                # The number of tokens seen is a tensor without dimensions, which has no free size.
                (next_tokens, torch.tensor(traced_prompt), past),
                dynamic_shapes=({0: batch}, None, past_shapes),
                strict=False,
            )
            forms = onnx_forms()
            prefill = prefill.run_decompositions(forms)
            step = step.run_decompositions(forms)
    except Exception as error:
        # Dynamo, the tracer and the decompositions raise errors without a common class.
        raise ExportError(
            f"export: expected a model that can be traced token by token, got "
            f"{first_lines(error)}; export the whole-text program instead"
        ) from error
    check_ops(prefill)
    check_ops(step)
    return prefill, step, names


def _reads_one_by_one(state: TextState) -> bool:
    """Whether a layer reads a prompt by a loop over its points, of which a program would hold as
    many rounds as there were when it was traced.
    """
    forms = [getattr(layer, "form", None) for layer in state.layers]
    known = [form for form in forms if form is not None]
    return any(type(form).prefill is Form.prefill for form in known)


def _free_axes(model: Model, names: StateNames) -> list[FreeAxes]:
    """Return, for each tensor of the state, its dimensions that are the batch or the number of
    tokens seen: those that change when these do.
    """

    def shapes(batch: int, prompt: int) -> list[torch.Size]:
        start = model.init_state(_longest(model), batch=batch)
        texts = _texts(model, batch, prompt)
        _, state = model.prefill(texts, start)
        return [tensor.shape for tensor in names.tensors(state)]

    # One of the two numbers changes at a time, and with it the dimensions that follow it.
    prompt = _traced_prompt(_longest(model))
    traced = shapes(TRACED_BATCH, prompt)
    other_batch = shapes(TRACED_BATCH + 1, prompt)
    other_prompt = shapes(TRACED_BATCH, prompt + 1)
    axes = []
    for shape, by_batch, by_prompt in zip(traced, other_batch, other_prompt, strict=True):
        named = {}
        for i, size in enumerate(shape):
            if by_batch[i] != size:
                named[i] = "batch"
            if by_prompt[i] != size:
                named[i] = "seen"
        axes.append(named)
    return axes


def decoder_errors(model: Model, prefill: bytes, step: bytes) -> DecoderErrors:
    """Compare both programs, run by ONNX Runtime, with the model's logits of whole texts.

    Each made-up text is read as a prompt by the prefill and token by token after it by the step. An
    error is relative to the largest logit of its batch.

    Args:
        model: as in :func:`export_decoder`.
        prefill, step: the contents of the two files.

    Returns:
        The largest error of each program over the batches and prompts in :data:`CHECKED`.

    Raises:
        ExportError: a failure of the runtime, or an answer that is not finite.
    """
    length = min(_longest(model), LONGEST_CHECKED)
    run_prefill = runner_of(prefill)
    run_step = runner_of(step)

    # A prefill that loops over its points was traced with one token and accepts no other prompt.
    longest_prompt = length - 1
    if _reads_one_by_one(model.init_state(length)):
        longest_prompt = 1

    prefill_error = step_error = 0.0
    for batch, wanted_prompt in CHECKED:
        texts = _texts(model, batch, length)
        with torch.no_grad():
            expected = model(texts).cpu()

        prompt = min(wanted_prompt, longest_prompt)
        tokens = texts.cpu().numpy()
        answers = _answers(run_prefill, run_step, tokens, prompt)
        difference = np.abs(answers - expected.numpy())
        if not np.isfinite(difference).all():
            raise ExportError(
                f"export: expected finite answers of both programs, got others at a prompt of "
                f"{prompt} tokens; nothing was written"
            )
        largest = largest_answer(expected)
        of_prompt = float(difference[:, :prompt].max()) / largest
        of_steps = float(difference[:, prompt:].max()) / largest
        prefill_error = max(prefill_error, of_prompt)
        step_error = max(step_error, of_steps)
    return DecoderErrors(prefill_error, step_error)


def _answers(
    run_prefill: Runner,
    run_step: Runner,
    tokens: Any,
    prompt: int,
) -> Any:
    """Return the logits (B, N, vocabulary) of texts, the prompt's by the prefill, others by steps.

    Args:
        tokens: token numbers, (B, N).
        prompt: how many of them the prefill reads.
    """
    prompt_tokens = tokens[:, :prompt]
    prompt_logits, *state = run_prefill({INPUT: prompt_tokens})
    logits = [prompt_logits]

    for seen in range(prompt, tokens.shape[1]):
        inputs = {INPUT: tokens[:, seen], "seen": np.array(seen)}
        for i, tensor in enumerate(state):
            inputs[f"past_{i}"] = tensor
        token_logits, *state = run_step(inputs)

        # A step returns (B, vocabulary).
        logits.append(token_logits[:, None])
    return np.concatenate(logits, 1)


def _longest(model: Model) -> int:
    """Return the number of tokens of the longest text.

    Raises:
        OptionError: a model that does not go token by token, or texts too short for it.
    """
    encoder: Any = model.config.encoder
    if not encoder.causal or model.pool != "every":
        raise OptionError(
            "export: expected an encoder of causal texts and head.pool='every' for steps, got "
            f"{encoder.kind} with pool={model.pool!r}"
        )
    if encoder.points < SHORTEST:
        raise OptionError(
            f"export: expected texts of {SHORTEST} tokens or more for steps, got a model of "
            f"{encoder.points}; give encoder.max_length, or export the whole-text program instead"
        )
    return encoder.points


def _traced_prompt(length: int) -> int:
    """Return the tokens of the traced prompt, where the longest text has ``length``: the step must
    have room for one more.
    """
    return min(LONGEST_TRACED, length - 1)


def _texts(model: Model, batch: int, length: int) -> Tensor:
    """Return made-up texts without padding, on the model's device."""
    encoder: Any = model.config.encoder
    generator = torch.Generator().manual_seed(length)
    shape = (batch, length)
    texts = torch.randint(1, encoder.vocabulary, shape, generator=generator)
    return texts.to(device_of(model))
