"""Tests of transformers' mixins that a converted model does not pass, and why."""

from __future__ import annotations

ARCHITECTURES = ("llama", "gpt2", "qwen2", "bert", "vit")
DECODERS = ("llama", "gpt2", "qwen2")
ENCODERS = ("bert", "vit")

STATE = "a layer keeps a state of fixed size, not keys and values: "
STATIC = STATE + "a StaticCache cannot hold it, and is refused by name"
PAST = STATE + "no keys can be asked of it, and the refusal says so"
WEIGHTS = STATE + "attention weights of tokens before the call are gone, and the refusal says so"
CROPPED = STATE + "no token can be taken out of it again, so assisted decoding is refused by name"
PAIRS = "linear attention has no pairs to mask: masks of pairs and packed sequences are refused"
CHOSEN = "the conversion decides which function attends: another implementation is refused by name"
FOLDER = (
    "weights lie in fredholm_linear.safetensors, so that transformers alone cannot read softmax"
)
WHOLE = (
    "a folder is read whole, with every weight in its place: other shapes and missing are refused"
)
DYNAMIC = "the test reads the source file of a class that is made when a model is converted"
DEFINITION = "attention weights are answered from the definition, beside the path of the gradient"

REASONS: dict[str, dict[str, tuple[str, ...]]] = {}


def expected(architecture: str) -> dict[str, str]:
    """Return the tests that fail for an architecture, each with its reason."""
    result: dict[str, str] = {}
    for reason, tests in REASONS.items():
        for name, architectures in tests.items():
            if architecture in architectures:
                assert name not in result, name
                result[name] = reason
    return result
