"""Reading folders of transformers: nothing is downloaded, and no code in them is executed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import TrustError


def load_local(kind: Any, folder: str | Path, **options: Any) -> Any:
    """``kind.from_pretrained(folder)`` of a class of transformers, from local files alone and
    without code of the folder's own.

    A folder can name Python files in ``auto_map``. Left to itself the library asks on the terminal
    whether to run them, or waits for an answer that nobody gives; here the answer is no.

    Raises:
        TrustError: the folder cannot be read without its own code.
    """
    from .linearize.hub import register_config

    register_config()  # a converted model is loaded as what it is
    try:
        return kind.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False, **options
        )
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise TrustError(
            f"{folder}: needs Python code that lies in it (auto_map in its JSON files), and that "
            "is never executed here; read it, load the model in a file of your own, and give that "
            "as package.module:factory"
        ) from error
