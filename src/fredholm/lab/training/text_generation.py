"""Text generation by a transformers language model in a folder, converted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointError, OptionError, require
from ...linearization.positions import limit_positions
from ...linearization.transformers_folder import load_gguf, load_local


def model_folder(folder: str | Path) -> Path | None:
    """Find the transformers model in a folder; None if there is none.

    It lies in the folder itself, or in ``model/`` of a conversion.
    """
    for candidate in (Path(folder), Path(folder) / "model"):
        has_config = (candidate / "config.json").is_file()
        if has_config or any(candidate.glob("*.gguf")):
            return candidate
    return None


@torch.inference_mode()
def generate_text(
    folder: Path,
    prompt: str,
    *,
    length: int,
    temperature: float,
    top_k: int | None,
    seed: int,
    chat: bool,
) -> dict[str, Any]:
    """Generate text as :func:`fredholm.training.generate` does, by transformers' own ``generate``.

    The text ends before ``length`` if the model ends it. Sampling options in the folder's
    ``generation_config.json`` are ignored.

    Raises:
        CheckpointError: no language model there, or one without a tokenizer.
        OptionError: a prompt without a token, or ``chat`` of a tokenizer without a template.
        DomainError: more tokens than learned positions.
    """
    model, tokenizer = _load(folder)
    if chat and not getattr(tokenizer, "chat_template", None):
        raise OptionError(f"chat: the tokenizer in {folder} has no template; leave it out")
    ids = prompt_ids(tokenizer, prompt, chat=chat)
    if not ids.numel():
        raise OptionError(f"prompt: expected at least one token, got {prompt!r}")

    # transformers would take only the 50 likeliest tokens by default; 0 takes all.
    model.generation_config = special_tokens_only(model.generation_config)
    sampling: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:
        sampling["temperature"] = temperature
        sampling["top_k"] = top_k or 0
        sampling["top_p"] = 1.0

    torch.manual_seed(seed)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        output_logits=True,
        return_dict_in_generate=True,
        **sampling,
    )
    prompt_length = ids.shape[1]
    added = out.sequences[0, prompt_length:]
    tokens = added.tolist()

    log_probabilities = torch.cat(out.logits).double().log_softmax(-1)
    of_tokens = log_probabilities.gather(1, added[:, None])
    return {
        "prompt": prompt,
        "text": text_after(tokenizer, ids[0].tolist(), tokens),
        "tokens": tokens,
        "log_probability": float(of_tokens.mean()),
    }


def prompt_ids(tokenizer: Any, prompt: str, *, chat: bool) -> torch.Tensor:
    """Encode a prompt as tokens (1, n); with ``chat``, as a user's turn in the template."""
    if not chat:
        numbers = tokenizer([prompt])["input_ids"]
        return torch.tensor(numbers, dtype=torch.int64)

    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)

    # The template itself contains the tokens that begin a text.
    numbers = tokenizer([text], add_special_tokens=False)["input_ids"]
    return torch.tensor(numbers, dtype=torch.int64)


def special_tokens_only(config: Any) -> Any:
    """Return a generation configuration that keeps only the begin, end and padding tokens.

    A folder may also set penalties, beams and probability thresholds. transformers fills whatever a
    call leaves out from the model's configuration, so this one has to replace it.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    tokens = {name: getattr(config, name, None) for name in names}
    return type(config)(**tokens)


def text_after(tokenizer: Any, before: list[int], added: list[int]) -> str:
    """Decode ``added`` as the continuation of ``before``.

    Decoded alone, the tokens would lose the space in front of them with many tokenizers. So both
    are decoded together, and the text of ``before`` is removed.
    """
    for options in ({}, {"clean_up_tokenization_spaces": False}):
        start = tokenizer.decode(before, skip_special_tokens=True, **options)
        text = tokenizer.decode(before + added, skip_special_tokens=True, **options)

        # The clean-up of spaces may move punctuation at the seam, and the start differs then.
        if text.startswith(start):
            return text.removeprefix(start)
    return tokenizer.decode(added, skip_special_tokens=True)


def _load(folder: Path) -> tuple[Any, Any]:
    """Load a language model in evaluation mode, and its tokenizer."""
    library: Any = require("transformers", "hf", "generating with a language model")
    if not (folder / "config.json").is_file():
        model, tokenizer = load_gguf(folder)
    else:
        try:
            model = load_local(library.AutoModelForCausalLM, folder)
            tokenizer = load_local(library.AutoTokenizer, folder)
        except (OSError, ValueError, RuntimeError) as error:
            raise CheckpointError(
                f"{folder}: no language model with its tokenizer ({error})"
            ) from error
    limit_positions(model)
    return model.eval(), tokenizer
