"""Uploading converted models to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .description import ADAPTER


def push_folder(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    **options: Any,
) -> Any:
    """Upload a converted model's folder, as ``repo_id`` of the Hugging Face hub.

    Args:
        options: of ``huggingface_hub.HfApi.upload_folder``.

    Raises:
        CheckpointError: a folder without a converted model.
    """
    if not (Path(folder) / ADAPTER).is_file():
        raise CheckpointError(f"no converted model in {str(folder)!r}: it lacks {ADAPTER}")
    return upload_folder(folder, repo_id, private=private, **options)


def upload_folder(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    **options: Any,
) -> Any:
    """Upload a folder. The repository and the branch ``revision`` are made where they are missing.

    Args:
        options: ``token``, and those of ``huggingface_hub.HfApi.upload_folder``.
    """
    # Imported here, because huggingface_hub is an extra.
    from huggingface_hub import HfApi

    token = options.pop("token", None)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    revision = options.get("revision")
    if revision is not None and not revision.startswith("refs/pr"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    return api.upload_folder(repo_id=repo_id, folder_path=folder, **options)
