"""Programs in ONNX, run once by ONNX Runtime before they are written."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..errors import ExportError, OptionError, require
from ..families.ckconv.grid_convolution.fft import direct_convolution
from ..files import check_target, replacing
from ..models.encoders.inputs import Inputs
from ..ops.feature_map.bank import sums_of_units
from .program import Answer, Forms, Program, plain_forms, texts_of, trace
from .signature import tensors_of

INPUT, OUTPUT = "inputs", "outputs"
"""The names of the output, and of the input of a model that reads one tensor."""

OLDEST_OPSET = 18
"""Of ONNX's operators: the version that torch's exporter writes."""

Runner = Callable[[Mapping[str, Any]], list[Any]]
"""Arrays by the names of a program's inputs to its outputs in order."""


def export_onnx(
    model: nn.Module,
    path: str | Path,
    *,
    fixed: Sequence[str] = (),
    opset: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Program:
    """Write a model as an ONNX program with one input, ``inputs``, and one output, ``outputs``.

    The program of a model of several tensors has an input for each, of the names of its
    :class:`fredholm.encoders.Inputs`: a graph's ``edges``, ``positions``, ``valid`` and
    ``features``, or ``image`` and ``tokens``.

    Before the file is written, ONNX Runtime runs the program at three sets of sizes, padding
    included, and its answers are compared with the model's. The file is never left half written.

    Args:
        model, fixed: see :func:`.trace`.
        path: the file.
        opset: the version of ONNX's operators, at least 18; None takes that of torch's exporter.
        metadata: facts that the file carries along, such as the classes' names: texts as they are,
            anything else as JSON.

    Returns:
        The traced program with the largest relative error of that comparison.

    Raises:
        OptionError: an opset below 18.
        ExportError: a model that cannot be traced or has an operation that ONNX lacks, or a program
            whose answers differ from the model's.
        MissingExtraError: ``onnxscript`` or ``onnxruntime`` is not installed.
        StorageError: a file that cannot be written.
    """
    require("onnxscript", "onnx", "a program in ONNX")
    require("onnxruntime", "onnx", "a program in ONNX, which is run before it is written,")
    check_target(path)
    if opset is not None and opset < OLDEST_OPSET:
        raise OptionError(
            f"opset: expected {OLDEST_OPSET} or more, got {opset}; older sets of operators lack "
            "what programs are made of"
        )

    # LUNA's feature maps are small ReLU networks of a scalar. ONNX Runtime takes 4 to 25 times as
    # long to look them up in tables as to sum up their units.
    with sums_of_units():
        program = trace(model, fixed, forms=onnx_forms())

    names = program.signature.names
    content = converted(
        program.exported,
        names,
        [OUTPUT],
        metadata or {},
        opset,
    )
    error = program.check(onnx_answers(content), "ONNX program")
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    return replace(program, error=error)


def onnx_forms() -> Forms:
    """Return :func:`.plain_forms`, with a direct convolution in the place of transforms.

    ONNX Runtime's Fourier transform loses digits at sizes that are no power of two, the more the
    longer the signal; the direct sum does not.
    """
    op: Any = torch.ops.fredholm.grid_convolution
    return plain_forms() | {op.default: direct_convolution}


def onnx_answers(content: bytes, *, threads: int = 0) -> Answer:
    """Return a function that answers by ONNX Runtime on the CPU, see :func:`runner_of`."""
    run = runner_of(content, threads=threads)

    def answer(inputs: Tensor | Inputs) -> Tensor:
        arrays = {}
        for name, tensor in tensors_of(inputs).items():
            arrays[name] = tensor.cpu().numpy()
        (outputs,) = run(arrays)
        return torch.from_numpy(outputs)

    return answer


def runner_of(content: bytes, *, threads: int = 0) -> Runner:
    """Return a function from arrays by the names of a program's inputs to its outputs in order, by
    ONNX Runtime on the CPU, with as many threads, or as many as there are cores where 0.

    The function raises an ExportError where the runtime fails.
    """
    # Imported here, because ONNX Runtime is an extra.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is an error of ours
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(inputs: Mapping[str, Any]) -> list[Any]:
        try:
            return list(session.run(None, dict(inputs)))
        except Exception as error:  # the runtime's errors have no common class
            shapes = ", ".join(f"{name} {array.shape}" for name, array in inputs.items())
            raise ExportError(
                f"export: expected a program that ONNX Runtime runs at {shapes}, got "
                f"{str(error).splitlines()[0]}; nothing was written"
            ) from error

    return run


def converted(
    exported: ExportedProgram,
    inputs: Sequence[str],
    outputs: Sequence[str],
    metadata: Mapping[str, Any],
    opset: int | None = None,
) -> bytes:
    """Convert a traced program to ONNX and return the content of the file.

    Args:
        exported: the program.
        inputs, outputs: the names of its inputs and outputs, in order.
        metadata: see :func:`export_onnx`.
        opset: the version of ONNX's operators; None takes that of torch's exporter.

    Raises:
        ExportError: an operation that ONNX lacks, or a version that torch cannot convert to.
    """
    try:
        with _quiet():
            program = torch.onnx.export(
                exported,
                input_names=list(inputs),
                output_names=list(outputs),
                opset_version=opset,
                dynamo=True,
                optimize=True,
                verbose=False,
                custom_translation_table=_translations(),
            )
    except Exception as error:
        # The operation that ONNX lacks is named by the innermost error.
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ExportError(
            f"export: expected operations that ONNX has, got {str(cause).splitlines()[0]}; export "
            "the model to a package or a program of PyTorch instead (--to aoti, --to program)"
        ) from error
    assert program is not None
    proto: Any = program.model_proto

    # ONNX's own operators are the set with an empty domain. Where torch fails to convert to
    # ``opset``, it keeps the version of its exporter and raises nothing.
    (found,) = (entry.version for entry in proto.opset_import if not entry.domain)
    if opset is not None and found != opset:
        raise ExportError(
            f"export: expected ONNX's operators of version {opset}, got {found}, beyond which "
            "torch cannot convert this program; leave opset out"
        )

    # Shapes of intermediate results are optional. The exporter writes wrong ones for one-sided
    # Fourier transforms, by which ONNX Runtime would allocate its buffers.
    del proto.graph.value_info[:]

    for key, value in texts_of(metadata).items():
        entry = proto.metadata_props.add()
        entry.key = key
        entry.value = value
    return proto.SerializeToString()


def _translations() -> dict[Any, Callable[..., Any]]:
    """Return the translations of operations that torch's exporter has none for."""
    # Imported here, because the file needs onnxscript, an extra.
    from .onnx_translations import cdist, cummax, cummin, searchsorted, stable_sort

    aten = torch.ops.aten
    return {
        aten._cdist_forward.default: cdist,
        aten.searchsorted.Tensor: searchsorted,
        aten.sort.stable: stable_sort,
        aten.cummax.default: cummax,
        aten.cummin.default: cummin,
    }


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's notes on what it does; errors still come through."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
