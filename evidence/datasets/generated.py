"""Generated samples, made once and then kept under the data root."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from fredholm.errors import DataError
from fredholm.files import digest_json


def generated(
    folder: Path, options: Any, make: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """Return ``make()``, or its result from an earlier call, which is stored in ``folder`` under a
    name that follows from ``options``.

    Raises:
        DataError: a stored file that cannot be read, or a folder that cannot be written.
    """
    path = folder / f"{digest_json(options)[:16]}.safetensors"
    if path.is_file():
        try:
            return load_file(path)
        except Exception as error:
            raise DataError(
                f"{path}: expected a .safetensors file, got another ({error}); delete it, and it "
                "is made again"
            ) from error
    result = make()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # An interrupted call must not leave a part of the file under its name.
        with tempfile.TemporaryDirectory(dir=folder) as work:
            save_file(result, Path(work) / path.name)
            os.replace(Path(work) / path.name, path)
    except OSError as error:
        raise DataError(
            f"{folder}: expected a folder that can be written, got {error}; choose another by "
            "FREDHOLM_DATA"
        ) from error
    return result
