"""Text from a language model of transformers in a folder, converted or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointError, OptionError, require
from ...linearization.positions import limit_positions
from ...linearization.transformers_folder import load_gguf, load_local


def model_folder(folder: str | Path) -> Path | None:
    """Where in ``folder`` a model of transformers lies: there, or in ``model/`` of a conversion;
    None where there is none.
    """
    places = (Path(folder), Path(folder) / "model")
    return next((p for p in places if (p / "config.json").is_file() or _quantised(p)), None)


def _quantised(folder: Path) -> bool:
    return any(folder.glob("*.gguf"))


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
    """:func:`fredholm.training.generate` for a folder of transformers, by the library's own
    ``generate``; it ends before ``length`` where the model ends its text. What the folder's
    ``generation_config.json`` says of draws does not count.

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
        raise OptionError(f"prompt: received {prompt!r}; needs at least one token")
    model.generation_config = own_signs(model.generation_config)
    draws: dict[str, Any] = {"do_sample": temperature > 0}
    if temperature > 0:  # the library's own default for top_k is 50
        draws |= {"temperature": temperature, "top_k": top_k or 0, "top_p": 1.0}
    torch.manual_seed(seed)
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=length,
        output_logits=True,
        return_dict_in_generate=True,
        **draws,
    )
    added = out.sequences[0, ids.shape[1] :]
    rows = torch.cat(out.logits).double().log_softmax(-1)
    return {
        "prompt": prompt,
        "text": text_after(tokenizer, ids[0].tolist(), added.tolist()),
        "tokens": added.tolist(),
        "log_probability": float(rows.gather(1, added[:, None]).mean()),
    }


def prompt_ids(tokenizer: Any, prompt: str, *, chat: bool) -> torch.Tensor:
    """A prompt as tokens (1, n); ``chat``: as a user's turn in the tokenizer's template."""
    if not chat:
        return torch.tensor(tokenizer([prompt])["input_ids"], dtype=torch.int64)
    turn = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    # A template writes the signs of the beginning itself.
    numbers = tokenizer([text], add_special_tokens=False)["input_ids"]
    return torch.tensor(numbers, dtype=torch.int64)


def own_signs(given: Any) -> Any:
    """The numbers by which a model begins, ends and pads its texts, without what a folder says of
    draws: penalties, beams, least probabilities. The library fills what a call leaves out from the
    model's own configuration, so that this has to take its place.
    """
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return type(given)(**{name: getattr(given, name, None) for name in names})


def text_after(tokenizer: Any, before: list[int], added: list[int]) -> str:
    """The text of ``added`` as it goes on after ``before``: what the text of both has beyond that
    of the first. Alone its tokens would lose the space in front of them with many tokenizers.
    """
    for options in ({}, {"clean_up_tokenization_spaces": False}):
        start, whole = (
            tokenizer.decode(tokens, skip_special_tokens=True, **options)
            for tokens in (before, before + added)
        )
        if whole.startswith(start):  # unless the tokenizer puts signs closer to what they follow
            return whole.removeprefix(start)
    return tokenizer.decode(added, skip_special_tokens=True)


def _load(folder: Path) -> tuple[Any, Any]:
    """A language model in evaluation mode, and its tokenizer."""
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
