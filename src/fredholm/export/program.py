"""Tracing a model into a program, and comparing the program with the model."""

from __future__ import annotations

import copy
import io
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..errors import ExportError
from ..files import check_target, replacing
from ..models.encoders.inputs import Inputs
from ..modes import device_of
from ..ops.custom_op import PLAIN
from .signature import Signature, Sizes, signature_of, tensors_of

Forms = dict[Any, Callable[..., Any]]
"""Functions of torch's operations that stand for ops in a program."""

Answer = Callable[[Tensor | Inputs], Tensor]
"""From what a model reads to its answer."""

TOLERANCE = 1e-5
"""Of a program's answers: the largest error over the largest answer. In float32 the same sums in
another order differ by a few 1e-7."""

LARGEST_ROUNDING = 1e-3
"""The largest rounding of a model, as :func:`rounding_error` measures it, that its programs may
differ by. Beyond it answers have so few digits that a comparison would find no fault."""


@dataclass(frozen=True)
class Program:
    """A traced model.

    Attributes:
        model: the model itself, in evaluation mode.
        signature: its inputs.
        exported: the traced program, in torch's own operations.
        error: the largest relative error that was measured before the program was written, or None
            of one that was only traced.
    """

    model: nn.Module
    signature: Signature
    exported: ExportedProgram
    error: float | None = None

    def check(self, answer: Answer, what: str) -> float:
        """Return :func:`largest_error`.

        Raises:
            ExportError: a larger error than :func:`check_error` allows, or an answer that is not
                finite or has another shape.
        """
        error = largest_error(self.model, self.signature, answer)
        check_error(error, self.model, self.signature, f"the {what} to answer")
        return error


class SeveralTensors(nn.Module):
    """A model of several tensors whose forward takes them one by one, as programs do."""

    def __init__(self, model: nn.Module, names: Sequence[str]):
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *tensors: Tensor) -> Tensor:
        named = dict(zip(self.names, tensors, strict=True))
        return self.model(Inputs(**named))


def in_turn(program: Callable[..., Tensor]) -> Answer:
    """Return a function from what a model reads to the answer of a program, which takes tensors."""
    return lambda inputs: program(*tensors_of(inputs).values())


def largest_error(model: nn.Module, signature: Signature, answer: Answer) -> float:
    """Return the largest relative error of a program against its model, over three batches of
    random inputs (at :meth:`.Signature.checked_sizes`).

    The error of a batch is the largest difference over the largest absolute value of the model's
    answer.

    Args:
        model: in evaluation mode; the inputs are on its device.
        signature: the model's inputs.
        answer: runs the program on what the model reads.

    Raises:
        ExportError: an answer that is not finite or has another shape.
    """
    errors = []
    for sizes in signature.checked_sizes():
        inputs = signature.example(sizes).to(device_of(model))
        with torch.no_grad():
            expected = model(inputs)
        errors.append(_relative_error(answer(inputs), expected, sizes))
    return max(errors)


def rounding_error(model: nn.Module, signature: Signature) -> float:
    """Return :func:`largest_error` of the model in float32 beside itself in float64: the rounding
    of the model's own sums and functions.

    Args:
        model, signature: see :func:`largest_error`.
    """
    return largest_error(model, signature, in_float64(model))


def in_float64(model: nn.Module) -> Answer:
    """Return a function from what a model reads to the answer of a copy of it in float64."""
    precise = copy.deepcopy(model).double()

    @torch.no_grad()
    def answer(inputs: Tensor | Inputs) -> Tensor:
        # Token numbers and masks stay as they are.
        if isinstance(inputs, Inputs) or inputs.is_floating_point():
            inputs = inputs.to(torch.float64)
        return precise(inputs)

    return answer


def check_error(
    error: float,
    model: nn.Module,
    signature: Signature,
    what: str,
) -> None:
    """Refuse a program whose answers are further from the model's than rounding explains.

    The bound is :data:`TOLERANCE`. A model whose own float32 answers are further than that from
    exact ones cannot meet it, since a program adds up in another order: the bound is then the
    model's :func:`rounding_error`, :data:`LARGEST_ROUNDING` at most.

    Args:
        error: the relative error of the program.
        model, signature: see :func:`largest_error`.
        what: the program and what it does, for the message.

    Raises:
        ExportError: a larger error.
    """
    if error <= TOLERANCE:
        return

    allowed = TOLERANCE
    cause = None
    try:
        rounding = rounding_error(model, signature)
        allowed = max(TOLERANCE, min(rounding, LARGEST_ROUNDING))
    except Exception as failure:
        # A model that does not run in float64 cannot tell its rounding, and is refused.
        cause = failure
    if error > allowed:
        raise ExportError(
            f"export: expected {what} as the model does, got a relative error of {error:.1e} "
            f"where {allowed:.0e} is allowed; nothing was written"
        ) from cause


@contextmanager
def without_torchs_warning() -> Iterator[None]:
    """Hide a warning that torch 2.13 gives about its own code, whose tree specifications it copies
    by a class that it deprecates. Users can do nothing about it.
    """
    with warnings.catch_warnings():
        message = r"`isinstance\(treespec, LeafSpec\)` is deprecated"
        warnings.filterwarnings("ignore", message, FutureWarning)
        yield


def trace(
    model: nn.Module,
    fixed: Sequence[str] = (),
    *,
    forms: Forms | None = None,
) -> Program:
    """Trace a model into a program of torch's own operations.

    The program is for the device that the model is on. Ops of this library are replaced by their
    plain form, the same function in torch's operations, so that the program runs where this library
    is not installed.

    Args:
        model: a :class:`fredholm.models.Model`; it is set to evaluation mode.
        fixed: names of axes that keep the size of training, see :func:`.signature_of`.
        forms: the functions that stand for ops, :func:`plain_forms` by default.

    Raises:
        ExportError: a model whose code decides by a size that is free.
        OptionError: a model or an axis without a program, see :func:`.signature_of`.
    """
    model = model.eval()
    signature = signature_of(model, fixed)
    sizes = signature.traced_sizes()
    example = signature.example(sizes).to(device_of(model))
    inputs = tuple(tensors_of(example).values())

    traced: nn.Module = model
    shapes: tuple[Any, ...] = signature.dynamic_shapes
    if not signature.encoder.one_tensor:
        traced = SeveralTensors(model, signature.names)
        # To torch, ``*tensors`` is one argument, whose shapes come together.
        shapes = (shapes,)

    try:
        # Gradients are off while tracing: operators take their path for values alone.
        with torch.no_grad(), without_torchs_warning():
            exported = torch.export.export(
                traced,
                inputs,
                dynamic_shapes=shapes,
                strict=False,
            )
            exported = exported.run_decompositions(forms or plain_forms())
    except Exception as error:
        # Dynamo, the tracer and the decompositions raise errors without a common class.
        raise ExportError(
            f"export: expected a model that can be traced at sizes {signature.shape}, got "
            f"{first_lines(error)}; keep an axis at its size of training with fixed="
        ) from error
    check_ops(exported)
    return Program(model, signature, exported)


def check_ops(exported: ExportedProgram) -> None:
    """Refuse a program with ops of this library, which no other place knows.

    Raises:
        ExportError: an op without a plain form.
    """
    # Ops have a method ``name``; targets of inputs and outputs are plain texts.
    names = set()
    for node in exported.graph.nodes:
        name_of_target = getattr(node.target, "name", str)
        names.add(str(name_of_target()))
    foreign = sorted(name for name in names if name.startswith("fredholm::"))
    if foreign:
        raise ExportError(
            f"export: expected ops with a plain form, got {', '.join(foreign)}; give "
            "differentiable_op the same function in torch's operations as plain="
        )


def export_program(
    model: nn.Module,
    path: str | Path,
    *,
    fixed: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Program:
    """Write a model as a program of PyTorch (``.pt2``), which :func:`torch.export.load` reads where
    this library is not installed.

    The program is compared with the model at three sets of sizes before the file is written, whole
    or not at all.

    Args:
        model, fixed: see :func:`trace`.
        path: the file.
        metadata: facts that the file carries along as the extra file ``metadata.json``.

    Raises:
        ExportError: a model that cannot be traced, or a program that answers otherwise.
        StorageError: a file that cannot be written.
    """
    check_target(path)
    program = trace(model, fixed)
    answer = in_turn(program.exported.module())
    error = program.check(answer, "program")

    # torch's own writer would leave half a file where the disk is full.
    content = io.BytesIO()
    facts = json.dumps(metadata or {})
    torch.export.save(
        program.exported,
        content,
        extra_files={"metadata.json": facts},
    )
    with replacing(path) as temporary:
        temporary.write_bytes(content.getvalue())
    return replace(program, error=error)


def texts_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return metadata as texts: those as they are, anything else as JSON."""
    texts = {}
    for key, value in metadata.items():
        if not isinstance(value, str):
            value = json.dumps(value)
        texts[key] = value
    return texts


def plain_forms() -> Forms:
    """Return torch's usual decompositions, and the plain form of each op of ours."""
    table: Forms = dict(torch.export.default_decompositions())
    for name, plain in PLAIN.items():
        table[getattr(torch.ops.fredholm, name).default] = plain
    return table


def _relative_error(actual: Tensor, expected: Tensor, sizes: Sizes) -> float:
    # Other runtimes answer on the CPU, wherever the model is.
    actual = actual.detach().to(expected.device)
    expected = expected.detach()
    if actual.shape != expected.shape:
        raise ExportError(
            f"export: expected answers of shape {tuple(expected.shape)} at sizes {tuple(sizes)}, "
            f"got {tuple(actual.shape)}; nothing was written"
        )
    finite = actual.isfinite()
    unusable = int((~finite).sum())
    if unusable:
        raise ExportError(
            f"export: expected finite answers at sizes {tuple(sizes)}, got {unusable} of "
            f"{actual.numel()} that are not; nothing was written"
        )

    difference = (actual - expected).abs().amax()
    return float(difference) / largest_answer(expected)


def largest_answer(expected: Tensor) -> float:
    """Return the largest absolute value of a model's answers, by which errors are divided.

    Where the model answers zero everywhere, as with a new head, it is the smallest normal float32.
    A program must then answer zero exactly: any difference over this number exceeds every
    tolerance.
    """
    tiny = torch.finfo(torch.float32).tiny
    return max(float(expected.abs().amax()), tiny)


def first_lines(error: Exception, count: int = 2) -> str:
    """Return the beginning of a tracer's message, which goes on for pages."""
    stripped = [line.strip() for line in str(error).splitlines()]
    lines = [line for line in stripped if line]
    return f"{type(error).__name__}: {' '.join(lines[:count])}"
