"""Converted models where transformers looks for models: its Auto classes, and the hub.

This file imports transformers, and is imported when a folder of the library is read.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from ..errors import CheckpointError
from .auto import MODEL_TYPE, FredholmLinearConfig, linear_config, linear_model
from .description import ADAPTER


def register_config() -> None:
    """Let ``AutoConfig``, and so every Auto class, know ``model_type: fredholm_linear``."""
    kind: Any = FredholmLinearConfig
    AutoConfig.register(MODEL_TYPE, kind, exist_ok=True)


@cache
def register_models(source: type) -> None:
    """Let the Auto classes that know a source's configuration know its conversion."""
    converted = linear_config(source)
    for auto in vars(modeling_auto).values():
        mapping = getattr(auto, "_model_mapping", None) if isinstance(auto, type) else None
        if mapping is None or source not in mapping:
            continue
        result = mapping[source]
        for kind in result if isinstance(result, tuple | list) else (result,):
            model = isinstance(kind, type) and issubclass(kind, PreTrainedModel)
            if model and kind.config_class is source:  # a few name another model's
                auto.register(converted, linear_model(kind), exist_ok=True)
                break
    tokenizers = transformers.TOKENIZER_MAPPING
    tokenizer = tokenizers.get(source, None)
    if tokenizer is not None:  # for folders whose tokenizer does not name its class
        transformers.AutoTokenizer.register(converted, tokenizer, exist_ok=True)


def push_folder(
    folder: str | Path, repo_id: str, *, private: bool | None = None, **options: Any
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
    folder: str | Path, repo_id: str, *, private: bool | None = None, **options: Any
) -> Any:
    """Upload a folder, making the repository and the branch ``revision`` where they are missing.

    Args:
        options: ``token``, and those of ``huggingface_hub.HfApi.upload_folder``.
    """
    from huggingface_hub import HfApi

    token = options.pop("token", None)
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    revision = options.get("revision")
    if revision is not None and not revision.startswith("refs/pr"):
        api.create_branch(repo_id, branch=revision, exist_ok=True)
    return api.upload_folder(repo_id=repo_id, folder_path=folder, **options)
