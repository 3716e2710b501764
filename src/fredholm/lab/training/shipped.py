"""Runs that come with the package; commands take ``pretrained:digits`` for a run's folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from ...errors import OptionError
from ...files import storing
from ...models import pretrained_folder
from ...models.pretrained import WEIGHTS
from ...models.shipped import CARD
from ...tensor_files import read_checksum


def unpack_pretrained(name: str, runs: str | Path = "runs") -> Path:
    """Copy a run that comes with the package into a folder of runs, where it is a run like any
    other: it can be evaluated, explained, exported and asked for predictions. Data are not copied.

    Args:
        name: one of :func:`fredholm.models.list_pretrained`.
        runs: the folder of runs; the copy is ``pretrained-NAME`` in it. One that is there already
            is returned as it is.

    Raises:
        OptionError: no weights of this name, or a folder of this name with other weights.
        StorageError: a folder that cannot be written.

    Example:
        >>> import tempfile
        >>> run = unpack_pretrained("digits", tempfile.mkdtemp())
        >>> run.name, (run / "recipe.yaml").is_file()
        ('pretrained-digits', True)
    """
    source = pretrained_folder(name)
    target = Path(runs) / f"pretrained-{name}"
    if target.exists():
        _check_same(source, target)
        return target
    with storing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        # Under another name first: a folder that is there is complete.
        partial = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial, copy_function=shutil.copyfile)
        (partial / CARD).unlink()
        partial.replace(target)
    return target


def _check_same(source: Path, target: Path) -> None:
    weights = Path("model") / WEIGHTS
    if not (target / weights).is_file() or read_checksum(target / weights) != read_checksum(
        source / weights
    ):
        raise OptionError(
            f"{target}: expected the weights that come with this version of fredholm, got a folder "
            "with others; move it away or give its path"
        )
