"""Learned positions of a converted model: what lies beyond them is refused by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ...errors import DomainError


def limit_positions(model: Any) -> None:
    """Let a transformers model's table of positions say which tokens lie beyond it; rotary
    positions have no table, and go on.
    """
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    try:
        words = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        words = None
    for module in model.modules():
        table = type(module) is nn.Embedding and module is not words
        if table and module.num_embeddings == length:
            module.register_forward_pre_hook(refuse_beyond)


def refuse_beyond(module: Any, args: tuple[Any, ...]) -> None:
    """DomainError for positions that a table does not have.

    Not in compiled code, and on a GPU only of a stretch: a step would wait for the answer.
    """
    positions = args[0] if args else None
    if not isinstance(positions, Tensor) or torch.compiler.is_compiling():
        return
    if positions.numel() == 0 or (positions.is_cuda and positions.shape[-1] == 1):
        return
    last = int(positions.max())
    if last >= module.num_embeddings:
        raise DomainError(
            f"{last + 1} tokens, and the model has learned {module.num_embeddings} positions; "
            "shorten the prompt, or generate fewer tokens"
        )
