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
    """Copy a run that comes with the package into a folder of runs.

    The copy is a normal run folder, to evaluate, explain, export and predict with. Data are not
    copied.

    Args:
        name: one of :func:`fredholm.models.list_pretrained`.
        runs: the folder of runs. The copy in it is named ``pretrained-NAME``; an existing copy is
            returned unchanged.

    Raises:
        OptionError: there are no weights of this name, or the folder exists with other weights.
        StorageError: the folder cannot be written.

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

        # The copy is made under another name and then renamed, so that a folder with the final name
        # is always complete.
        partial = target.with_name(f".{target.name}.tmp")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.copytree(source, partial, copy_function=shutil.copyfile)
        (partial / CARD).unlink()
        partial.replace(target)
    return target


def _check_same(source: Path, target: Path) -> None:
    """Refuse a folder whose weights are not those of the package.

    Raises:
        OptionError: they differ, or there are none.
    """
    there = target / "model" / WEIGHTS
    shipped = source / "model" / WEIGHTS
    if not there.is_file() or read_checksum(there) != read_checksum(shipped):
        raise OptionError(
            f"{target}: expected the weights that come with this version of fredholm, got a folder "
            "with others; move it away or give its path"
        )
