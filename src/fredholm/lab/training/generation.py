"""Text from a trained model of the next token, one token at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import OptionError
from ...integral import inference
from ..data import Vocabulary
from ..data.vocabulary import PADDING, UNKNOWN
from .evaluation import load_run
from .tasks import Tokens
from .text_generation import generate_text, model_folder


def generate(
    run: str | Path,
    prompt: str,
    *,
    length: int = 100,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    chat: bool = False,
    trust_code: bool = False,
) -> dict[str, Any]:
    """Continue ``prompt`` by ``length`` tokens, each drawn from the model's distribution after all
    before it.

    The model goes on by :meth:`step` of its causal operators: with a separable kernel a token costs
    the same time and memory wherever it stands, and the result is that of the whole text computed
    at once.

    Args:
        run: a run on a data set of the task ``tokens``, such as itnet-kjv, with a causal model; or
            a folder of a language model of transformers, of a conversion or of a GGUF file.
        prompt: read with the run's vocabulary; at least one token.
        length: tokens to add. Prompt and continuation fit the length the model was trained with;
            a language model of transformers may end its text before.
        temperature: the logits are divided by it; 0 takes the likeliest token.
        top_k: draw among so many of the likeliest tokens.
        seed: of the draws.
        chat: the prompt is a user's turn, put into the template of the language model's tokenizer.
        trust_code: see :func:`fredholm.training.load_run`.

    Returns: ``text`` (the continuation, with the space that parts it from the prompt), ``prompt``,
    ``tokens`` (its numbers) and ``log_probability``, the mean over them in nats.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: a run of another kind, a prompt with tokens that are not in the vocabulary, or
            impossible numbers.
        CheckpointError: no run or no model there.
    """
    check_draws(length, temperature, top_k)
    folder = None if (Path(run) / "recipe.yaml").is_file() else model_folder(run)
    if folder is not None:
        draws = {"length": length, "temperature": temperature, "top_k": top_k, "seed": seed}
        return generate_text(folder, prompt, **draws, chat=chat)
    if chat:
        raise OptionError(f"chat: {run} is a run, whose vocabulary has no template; leave it out")
    model, _ = load_run(run, trust_code=trust_code)
    facts = model.extra
    if facts.get("task") != Tokens.name or not hasattr(model, "init_state"):
        raise OptionError(
            f"generate: {run} is no model of the next token; needs a run such as itnet-kjv"
        )
    model.init_state(1)  # refuses a model that is not causal
    vocabulary = Vocabulary.from_dict(facts["vocabulary"])
    numbers = read_prompt(prompt, vocabulary)
    if len(numbers) + length - 1 > facts["max_length"]:
        raise OptionError(
            f"length: received {length} after a prompt of {len(numbers)} tokens; the model was "
            f"trained on {facts['max_length']}, "
            "its positions end there; ask for at most "
            f"{max(0, facts['max_length'] - len(numbers) + 1)}"
        )
    generator = torch.Generator().manual_seed(seed)
    added, total = continuation(model, numbers, length, temperature, top_k, generator)
    return {
        "prompt": prompt,
        "text": vocabulary.join_after(prompt, added),
        "tokens": added,
        "log_probability": total / length,
    }


def check_draws(length: int, temperature: float, top_k: int | None) -> None:
    """OptionError for numbers by which nothing can be drawn."""
    if length < 1 or not 0 <= temperature < math.inf or (top_k is not None and top_k < 1):
        raise OptionError(
            f"generate: received length={length}, temperature={temperature:g}, top_k={top_k}; "
            "needs a length and top_k of 1 or more and a finite temperature of 0 or more"
        )


def read_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """A prompt's token numbers.

    Raises:
        OptionError: no token, or one that the vocabulary does not have.
    """
    numbers = vocabulary.encode(prompt)
    if not numbers:
        raise OptionError(
            f"prompt: received {prompt!r}; needs at least one of the vocabulary's {vocabulary.kind}"
        )
    if vocabulary.kind != "bytes" and UNKNOWN in numbers:
        place = numbers.index(UNKNOWN)
        raise OptionError(
            f"prompt: token {place + 1} of {prompt!r} is not among the {len(vocabulary.words)} "
            f"{vocabulary.kind}"
        )
    return numbers


@torch.inference_mode()
def continuation(
    model: Any,
    numbers: list[int],
    length: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> tuple[list[int], float]:
    """Numbers that follow ``numbers``, and the sum of their log-probabilities by the model (before
    temperature and top_k).
    """
    state = model.init_state(len(numbers) + length - 1)
    logits = torch.empty(0)
    added: list[int] = []
    total = 0.0
    with inference(model):
        for number in numbers:
            logits, state = model.step(torch.tensor([number]), state)
        for place in range(length):
            chosen = pick(logits[0].double(), temperature, top_k, generator)
            total += float(known(logits[0].double()).log_softmax(-1)[chosen])
            added.append(chosen)
            if place < length - 1:
                logits, state = model.step(torch.tensor([chosen]), state)
    return added, total


def known(logits: Tensor) -> Tensor:
    """Logits without padding and unknown tokens, which no text holds."""
    logits = logits.clone()
    logits[[PADDING, UNKNOWN]] = -torch.inf
    return logits


def pick(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator) -> int:
    """A token number drawn from softmax(logits / temperature) among the ``top_k`` likeliest.

    Example:
        >>> pick(torch.tensor([0.0, 0.0, 1.0, 3.0]), 0.0, None, torch.Generator())
        3
    """
    logits = known(logits)
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = torch.where(logits >= least, logits, -torch.inf)
    return int(torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator))
