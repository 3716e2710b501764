"""Safetensors files, written in one step, with a checksum of their tensors in their metadata."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from .errors import CheckpointError, FredholmError
from .files import CHECKSUM, replacing, storage_error


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a safetensors file whose metadata hold the checksum of its tensors.

    The checksum lies in the file itself, not beside it: two files cannot be replaced in one step.

    Raises:
        StorageError: it cannot be written; what was there before still is.
        FredholmError: tensors that share memory.
    """
    plain = {}
    for name, tensor in tensors.items():
        plain[name] = tensor.detach().cpu().contiguous()
    with replacing(path) as temporary:
        # A new file has the user's usual permissions; safetensors would set 0600.
        temporary.touch()
        ordinary = temporary.stat().st_mode
        metadata = {"format": "pt", CHECKSUM: digest_tensors(plain)}
        try:
            save_file(plain, temporary, metadata=metadata)
        except SafetensorError as error:
            raise _system_error(error, path) from error
        except RuntimeError as error:
            # Tensors that share memory.
            message = " ".join(str(error).split())
            raise FredholmError(f"{path.name}: {message}") from error
        _sort_metadata(temporary)
        temporary.chmod(ordinary)


def _system_error(error: Exception, path: Path) -> OSError:
    """Return the operating system's error, which safetensors mentions in the text of its error."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    if match is None:
        return OSError(f"{path}: {error}")
    number = int(match[1])
    return OSError(number, os.strerror(number), str(path))


def _sort_metadata(path: Path) -> None:
    """Sort the metadata, which safetensors writes in a random order: equal weights then give equal
    files.
    """
    # A safetensors file begins with the size of its header, which is JSON padded with spaces.
    with path.open("rb+") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        metadata = header["__metadata__"]
        header["__metadata__"] = dict(sorted(metadata.items()))
        text = json.dumps(
            header,
            separators=(",", ":"),
            ensure_ascii=False,
        )
        file.seek(8)
        file.write(text.encode().ljust(size))


def read_tensors(path: Path, fix: str) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, compared with its checksum. Files of earlier
    versions, which have none, are read as they are.

    Raises:
        CheckpointError: a file that is missing, truncated or damaged; ``fix`` ends the message.
    """
    if not path.is_file():
        raise CheckpointError(f"no {path.name} in {str(path.parent)!r}; {fix}")
    try:
        with safe_open(path, framework="pt") as file:
            expected = (file.metadata() or {}).get(CHECKSUM)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except PermissionError as error:
        raise storage_error(error, path) from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path} is corrupt or truncated ({error}); {fix}") from error
    if expected is not None and digest_tensors(tensors) != expected:
        raise CheckpointError(
            f"{path} is corrupt (its tensors do not match their SHA-256 checksum); {fix}"
        )
    return tensors


def misfits(
    own: Mapping[str, Tensor],
    tensors: Mapping[str, Tensor],
) -> dict[str, list[str]]:
    """Return which tensors do not fit those of a model, by kind of fault; none where all fit.

    Example:
        >>> misfits({"a": torch.zeros(1), "b": torch.zeros(2)}, {"b": torch.zeros(3)})
        {'missing': ['a'], 'of another shape': ['b (3,) for (2,)']}
    """
    reshaped = []
    for name in sorted(own.keys() & tensors.keys()):
        got = tensors[name].shape
        expected = own[name].shape
        if got != expected:
            reshaped.append(f"{name} {tuple(got)} for {tuple(expected)}")
    faults = {
        "missing": sorted(own.keys() - tensors.keys()),
        "unknown": sorted(tensors.keys() - own.keys()),
        "of another shape": reshaped,
    }
    return {fault: names for fault, names in faults.items() if names}


def list_misfits(faults: Mapping[str, list[str]]) -> str:
    """Return the faults of :func:`misfits` in words.

    Example:
        >>> list_misfits({"missing": ["a", "b"], "of another shape": ["c (3,) for (2,)"]})
        'missing: a, b; of another shape: c (3,) for (2,)'
    """
    return "; ".join(f"{fault}: {', '.join(names)}" for fault, names in faults.items())


def read_checksum(path: Path) -> str | None:
    """Return the checksum in a safetensors file's metadata, or None where the file has none or is
    missing. Tensors are not read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            return (file.metadata() or {}).get(CHECKSUM)
    except (SafetensorError, OSError):
        return None


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 of the names, dtypes, shapes and bytes of tensors, whatever their order.

    Example:
        >>> a, b = torch.zeros(2), torch.ones(3)
        >>> digest_tensors({"a": a, "b": b}) == digest_tensors({"b": b, "a": a})
        True
        >>> digest_tensors({"a": a}) == digest_tensors({"a": a.view(1, 2)})
        False
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        header = f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0"
        digest.update(header.encode())
        raw = tensor.reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()
