"""Exporting a trained run: its model as a program, with the facts that inputs are prepared by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ... import __version__
from ...errors import OptionError, suggest
from ...export import (
    DecoderPaths,
    export_decoder,
    export_onnx,
    export_package,
    export_program,
    signature_of,
)
from ...files import check_target
from .evaluation import load_run
from .folder import RunFolder


class Format(NamedTuple):
    """A format of programs."""

    suffix: str
    export: Any


FORMATS = {
    "onnx": Format(".onnx", export_onnx),
    "aoti": Format(".pt2", export_package),
    "program": Format(".pt2", export_program),
}


def export_run(
    run: str | Path,
    to: str,
    *,
    out: str | Path | None = None,
    fixed: Sequence[str] = (),
    opset: int | None = None,
    trust_code: bool = False,
) -> Path:
    """Write a run's model as a program that needs neither this library nor the run.

    The file carries metadata: ``facts`` about the data (the task, names of classes, mean and
    standard deviation of channels, the vocabulary of texts); ``temperature``, which divides the
    outputs of a classification before the softmax; ``shape`` of the input, with free sizes
    by name, or the shape of each tensor; and ``fredholm``, the version that wrote it.

    Args:
        run: its folder.
        to: ``onnx``, ``aoti`` (native code for this kind of machine) or ``program`` (PyTorch).
        out: the file; by default ``model-`` and the format, in the run's folder.
        fixed: names of input sizes that stay those of training, such as ``height``.
        opset: of ``onnx``, the version of its operators, see :func:`fredholm.export.export_onnx`.
        trust_code: see :func:`load_run`.

    Raises:
        OptionError: an unknown format, or an axis that the inputs do not have.
        ExportError: a model without a program of this format.
        MissingExtraError: a package that the format needs is not installed.
        CheckpointError: no run, or no model in it yet.
        StorageError: a file that cannot be written.
    """
    if to not in FORMATS:
        known = ", ".join(FORMATS)
        raise OptionError(f"to: expected one of {known}, got {to!r}{suggest(to, FORMATS)}")
    chosen = FORMATS[to]
    options: dict[str, Any] = {}
    if opset is not None:
        if to != "onnx":
            raise OptionError(f"opset: expected --to onnx beside it, got {to}; drop one of the two")
        options["opset"] = opset

    model, folder = load_run(run, trust_code=trust_code)
    path = Path(out or folder.root / f"model-{to}{chosen.suffix}")
    check_target(path)
    metadata = _metadata(model, folder, fixed)
    chosen.export(model, path, fixed=fixed, metadata=metadata, **options)
    return path


def export_run_steps(
    run: str | Path,
    *,
    out: str | Path | None = None,
    trust_code: bool = False,
) -> DecoderPaths:
    """Write a causal text run's prefill and step as two ONNX programs, see
    :func:`fredholm.export.export_decoder`; the files carry the facts of :func:`export_run`.

    Args:
        run: its folder.
        out: ``model.onnx`` gives ``model-prefill.onnx`` and ``model-step.onnx``; by default
            ``model-onnx.onnx`` in the run's folder.
        trust_code: see :func:`load_run`.
    """
    model, folder = load_run(run, trust_code=trust_code)
    path = Path(out or folder.root / "model-onnx.onnx")
    return export_decoder(model, path, metadata=_metadata(model, folder, ()))


def _metadata(model: Any, folder: RunFolder, fixed: Sequence[str]) -> dict[str, Any]:
    """Return the facts that a program carries along."""
    return {
        "fredholm": __version__,
        "shape": signature_of(model, fixed).shape,
        "facts": model.extra,
        "temperature": folder.read_temperature(),
    }
