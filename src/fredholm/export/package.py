"""Packages of native code, compiled ahead of time by AOTInductor."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ExportError
from ..files import check_target, replacing
from .program import Program, first_lines, in_turn, texts_of, trace, without_torchs_warning


def export_package(
    model: nn.Module,
    path: str | Path,
    *,
    fixed: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
) -> Program:
    """Write a model as a package of native code for this machine's kind of processor.

    ``torch._inductor.aoti_load_package(path)`` loads it where neither this library nor a compiler
    is installed. The package is compared with the model at three sets of sizes before the file is
    written, whole or not at all.

    Loading a package runs its code: load none whose source you do not trust.

    Args:
        model, fixed: see :func:`.trace`.
        path: the file, ``.pt2``.
        metadata: facts that the package carries along: texts as they are, anything else as JSON.
            The loaded package's ``get_metadata`` returns them.

    Raises:
        ExportError: a model that cannot be traced or compiled (a C++ compiler is needed here), or a
            package that answers otherwise.
        StorageError: a file that cannot be written.
    """
    inductor: Any = torch._inductor
    check_target(path)
    program = trace(model, fixed)
    with replacing(path) as temporary:
        # AOTInductor requires a name that ends in .pt2, which the temporary file's does not.
        package = temporary.with_name(f"{temporary.name}.pt2")
        try:
            _compile(program, package, texts_of(metadata or {}))
            loaded = inductor.aoti_load_package(str(package))
            error = program.check(in_turn(loaded), "package")
            package.replace(temporary)
        finally:
            # Remove what a failed compilation or check left behind.
            package.unlink(missing_ok=True)
    return replace(program, error=error)


def _compile(
    program: Program,
    package: Path,
    metadata: dict[str, str],
) -> None:
    inductor: Any = torch._inductor
    try:
        with torch.no_grad(), without_torchs_warning():
            inductor.aoti_compile_and_package(
                program.exported,
                package_path=str(package),
                inductor_configs={"aot_inductor.metadata": metadata},
            )
    except Exception as error:
        # Inductor has no code for some graphs. Without a compiler it fails on every one.
        fix = "keep its sizes with fixed= (--fixed), or export it --to onnx or --to program"
        if shutil.which("g++") is None:
            fix = "install a C++ compiler (g++)"
        raise ExportError(
            "export: expected a model that AOTInductor compiles, got "
            f"{first_lines(error, 1)}; {fix}"
        ) from error
