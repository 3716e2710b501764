"""Text generation by a trained model of the next token, one token at a time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

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
    """Continue ``prompt`` by ``length`` tokens, each drawn from the model's distribution.

    The model advances by :meth:`step` of its causal operators. With a separable kernel each token
    costs the same time and memory, whatever its position. The result equals that of computing the
    whole text at once.

    Args:
        run: a run with a causal model on a data set of the task ``tokens``, such as itnet-kjv; or a
            folder with a transformers language model, a conversion or a GGUF file.
        prompt: at least one token of the run's vocabulary.
        length: number of tokens to add. Prompt and continuation must fit the length that the model
            was trained with. A transformers language model may end its text earlier.
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: draw among so many of the likeliest tokens.
        seed: seed of the draws.
        chat: put the prompt into the template of the language model's tokenizer, as a user's turn.
        trust_code: see :func:`fredholm.training.load_run`.

    Returns: ``prompt``; ``text``, the continuation with the space that separates it from the
    prompt; ``tokens``, its token numbers; ``log_probability``, their mean in nats.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        OptionError: a run of another kind, a prompt with tokens that are not in the vocabulary, or
            numbers out of range.
        CheckpointError: no run or no model there.
    """
    check_draws(length, temperature, top_k)

    # A folder without a recipe may hold a transformers model, which generates in its own way.
    folder = None
    if not (Path(run) / "recipe.yaml").is_file():
        folder = model_folder(run)
    if folder is not None:
        return generate_text(
            folder,
            prompt,
            length=length,
            temperature=temperature,
            top_k=top_k,
            seed=seed,
            chat=chat,
        )
    if chat:
        raise OptionError(f"chat: {run} is a run, whose vocabulary has no template; leave it out")

    model, _ = load_run(run, trust_code=trust_code)
    facts = model.extra
    if facts.get("task") != Tokens.name or not hasattr(model, "init_state"):
        raise OptionError(
            f"generate: expected a model of the next token such as itnet-kjv, got {run}"
        )

    # A model that is not causal raises an error here.
    model.init_state(1)

    vocabulary = Vocabulary.from_dict(facts["vocabulary"])
    numbers = read_prompt(prompt, vocabulary)
    # The last token is drawn but not read, so that it needs no position of the model.
    longest = max(0, facts["max_length"] - len(numbers) + 1)
    if length > longest:
        raise OptionError(
            f"length: expected at most {longest} after a prompt of {len(numbers)} tokens, got "
            f"{length}; the model was trained on {facts['max_length']} tokens, and its positions "
            "end there"
        )

    generator = torch.Generator().manual_seed(seed)
    tokens, log_probability = continuation(model, numbers, length, temperature, top_k, generator)
    return {
        "prompt": prompt,
        "text": vocabulary.join_after(prompt, tokens),
        "tokens": tokens,
        "log_probability": log_probability / length,
    }


def check_draws(length: int, temperature: float, top_k: int | None) -> None:
    """Check the numbers of a generation.

    Raises:
        OptionError: one is out of range.
    """
    if length < 1:
        raise OptionError(f"length: expected 1 or more, got {length}")
    if not 0 <= temperature < math.inf:
        raise OptionError(
            f"temperature: expected a finite number of 0 or more, got {temperature:g}"
        )
    if top_k is not None and top_k < 1:
        raise OptionError(f"top_k: expected 1 or more, got {top_k}")


def read_prompt(prompt: str, vocabulary: Vocabulary) -> list[int]:
    """Read the token numbers of a prompt.

    Raises:
        OptionError: the prompt has no token, or one that the vocabulary does not have.
    """
    numbers = vocabulary.encode(prompt)
    if not numbers:
        raise OptionError(
            f"prompt: expected at least one of the vocabulary's {vocabulary.kind}, got {prompt!r}"
        )
    if vocabulary.kind != "bytes" and UNKNOWN in numbers:
        position = numbers.index(UNKNOWN) + 1
        raise OptionError(
            f"prompt: token {position} of {prompt!r} is not among the {len(vocabulary.words)} "
            f"{vocabulary.kind}"
        )
    return numbers


class Continuation(NamedTuple):
    """Token numbers that follow a prompt, and the sum of their log-probabilities in nats."""

    tokens: list[int]
    log_probability: float


@torch.inference_mode()
def continuation(
    model: Any,
    numbers: list[int],
    length: int,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> Continuation:
    """Draw the tokens that follow ``numbers``.

    Log-probabilities are the model's own, before temperature and ``top_k``.
    """
    state = model.init_state(len(numbers) + length - 1)
    logits = torch.empty(0)
    tokens: list[int] = []
    log_probability = 0.0
    with inference(model):
        for number in numbers:
            logits, state = model.step(torch.tensor([number]), state)

        for position in range(length):
            last_logits = logits[0].double()
            token = pick(last_logits, temperature, top_k, generator)
            log_probabilities = without_special_tokens(last_logits).log_softmax(-1)
            log_probability += float(log_probabilities[token])
            tokens.append(token)

            # The last token needs no successor.
            if position < length - 1:
                logits, state = model.step(torch.tensor([token]), state)
    return Continuation(tokens, log_probability)


def without_special_tokens(logits: Tensor) -> Tensor:
    """Exclude padding and the unknown token, which never occur in texts, from logits."""
    logits = logits.clone()
    logits[[PADDING, UNKNOWN]] = -torch.inf
    return logits


def pick(
    logits: Tensor,
    temperature: float,
    top_k: int | None,
    generator: torch.Generator,
) -> int:
    """Draw a token number from softmax(logits / temperature), among the ``top_k`` likeliest.

    Example:
        >>> pick(torch.tensor([0.0, 0.0, 1.0, 3.0]), 0.0, None, torch.Generator())
        3
    """
    logits = without_special_tokens(logits)
    if temperature == 0:
        return int(logits.argmax())
    if top_k is not None and top_k < len(logits):
        threshold = logits.topk(top_k).values[-1]
        logits = torch.where(logits >= threshold, logits, -torch.inf)

    probabilities = (logits / temperature).softmax(-1)
    drawn = torch.multinomial(probabilities, 1, generator=generator)
    return int(drawn)
