"""Learned positions of a converted model: what lies beyond them is refused by name."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DomainError

# The argument from which the tables of OPT and BART compute positions by themselves.
PAST = "past_key_values_length"


def positions_of(model: Any) -> int | None:
    """Return how many tokens a model has positions for; None where its configuration names none."""
    limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # The positions of RoBERTa and its kin begin behind the place of padding.
            if limit is not None and module.padding_idx is not None:
                limit -= module.padding_idx + 1
            return limit
    return limit


def limit_positions(model: Any) -> None:
    """Let a transformers model's table of positions refuse tokens beyond it. Rotary positions have
    no table, and no limit.
    """
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    try:
        words = model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        words = None
    for module in model.modules():
        if not isinstance(module, nn.Embedding) or module is words:
            continue
        own = PAST in inspect.signature(module.forward).parameters
        if (type(module) is nn.Embedding or own) and _length(module) == length:
            module.register_forward_pre_hook(refuse_beyond, with_kwargs=True)


def refuse_beyond(
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Check that a table has the positions of a call: a hook that runs before its forward.

    Raises:
        DomainError: positions beyond the table.
    """
    # Compiled code has no values, and on a GPU a single token would wait for the answer.
    if torch.compiler.is_compiling():
        return
    last = _positions(module, args, kwargs)
    if isinstance(last, Tensor):
        if last.numel() == 0 or (last.is_cuda and last.shape[-1] == 1):
            return
        last = int(last.max())
    if isinstance(last, int) and last >= _length(module):
        raise DomainError(
            f"{last + 1} tokens, and the model has learned {_length(module)} positions; "
            "shorten the prompt, or generate fewer tokens"
        )


def _length(module: Any) -> int:
    """Return the number of positions in a table, whose first rows may mean something else."""
    return module.num_embeddings - getattr(module, "offset", 0)


def _positions(
    module: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Return the positions that a call looks up in a table, or only the last of them.

    A plain ``nn.Embedding`` receives positions. The tables of OPT and BART receive them as
    ``position_ids``, or else compute them.

    Returns:
        A tensor of positions; the last position, an int, where the table counts from the length of
        the past; None where the arguments do not tell.
    """
    if type(module) is nn.Embedding:
        if not args:
            return None
        return args[0]

    arguments = dict(zip(inspect.signature(module.forward).parameters, args)) | kwargs
    position_ids = arguments.get("position_ids")
    if position_ids is not None:
        return position_ids

    # OPT sums its attention mask to get positions: their last one follows from no shape.
    if "attention_mask" in arguments:
        return None

    # BART counts tokens: its first argument is the tokens (B, N), or their shape.
    tokens = next(iter(arguments.values()), None)
    shape = getattr(tokens, "shape", tokens)
    if shape is None:
        return None
    return arguments.get(PAST, 0) + shape[1] - 1
