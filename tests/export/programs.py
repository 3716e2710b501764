"""Export models of every operator, as a script.

jaxtyping's import hook breaks tracing, so this runs in a process without the hook. The command
``python -m tests.export.programs FORMAT CASE...`` prints one line per case.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evidence.itnet import two_streams  # noqa: F401  registers the body

from fredholm.errors import ExportError
from fredholm.export import export_decoder, export_onnx, export_package, export_program
from fredholm.export.onnx import INPUT, onnx_answers, runner_of
from fredholm.export.program import TOLERANCE
from fredholm.models import create_model

TEXT: dict[str, Any] = {"kind": "text", "vocabulary": 9, "max_length": 64}
SERIES: dict[str, Any] = {"kind": "sequence", "channels": 2, "length": 32}
EXPORTS = {"onnx": export_onnx, "aoti": export_package, "program": export_program}


def image(operator: str) -> tuple[str, dict[str, Any]]:
    return "itnet_nano", {"body": {"operator": operator}}


def text(operator: str, causal: bool = False) -> tuple[str, dict[str, Any]]:
    return "itnet_nano", {"encoder": TEXT | {"causal": causal}, "body": {"operator": operator}}


def series(operator: str, timed: bool = False) -> tuple[str, dict[str, Any]]:
    return "itnet_nano", {"encoder": SERIES | {"timed": timed}, "body": {"operator": operator}}


def several(encoder: dict[str, Any], **body: Any) -> tuple[str, dict[str, Any]]:
    return "itnet_nano", {"encoder": encoder, "body": body}


PAIR: dict[str, Any] = {"kind": "multimodal", "vocabulary": 9, "max_length": 16}

CASES = {
    "image-softmax": image("softmax"),
    "image-itnet": image("itnet"),
    "image-itnet_low_rank": image("itnet_low_rank"),
    "image-luna": image("luna"),
    "image-ckconv": image("ckconv"),
    "image-infsa": image("infsa"),
    "image-linear_infsa": image("linear_infsa"),
    "text-luna": text("luna"),
    "text-softmax-causal": text("softmax", causal=True),
    "text-itnet_low_rank-causal": text("itnet_low_rank", causal=True),
    "series-luna-timed": series("luna", timed=True),
    "series-softmax": series("softmax"),
    # Domains as inputs: points (above: times), edges, and the tokens of a text beside a picture.
    "points-softmax": several({"kind": "points"}, operator="softmax"),
    "graph-softmax": several({"kind": "graph", "channels": 3}, operator="softmax"),
    "graph-words": several(
        {"kind": "graph", "vocabulary": 9, "off_edges": "none", "measure": "nodes"},
        operator="softmax",
    ),
    "pair-luna": several(PAIR, operator="luna"),
    "streams-luna": several(PAIR, operator="luna", kind="two_streams"),
    # At the preset's frequency of 31, rounding in float32 alone may exceed the tolerance, since
    # sines of large arguments follow the last digit: docs/export.md says so.
    "ckcnn": ("ckcnn_small", {"body": {"operator_options": {"omega": 5.0}}}),
    # One channel comes in, and a grid of two axes is transformed.
    "ckcnn-image": ("ckcnn_image", {"body": {"widths": [4]}}),
}


def random_model(name: str) -> torch.nn.Module:
    """Return a case's model with a head of random weights.

    Heads start at zero, and a model that answers zero would pass any comparison.
    """
    preset, options = CASES[name]
    torch.manual_seed(0)
    model = create_model(preset, **options).eval()
    for weight in model.head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


LOOPS = {"Loop", "Scan", "If"}
"""Operations that runtimes do not optimise across."""


def operations(path: Path) -> set[str]:
    """Return the names of an ONNX program's operations."""
    import onnx

    program = onnx.load(path)
    nodes = [*program.graph.node, *(node for part in program.functions for node in part.node)]
    return {node.op_type for node in nodes}


LONG = 500
"""A length far beyond those that an export compares, and no power of two: runtimes' Fourier
transforms lose digits there."""


def long_series_error() -> float:
    """Return the relative error of a CKCNN's ONNX program on a long series."""
    model = random_model("ckcnn")
    series = torch.randn(2, LONG, 1, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(series)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        export_onnx(model, path)
        actual = onnx_answers(path.read_bytes())(series)
    return float((actual - expected).abs().max() / expected.abs().max())


DECODERS = ["itnet_low_rank", "softmax", "luna", "linear_attention", "luna-head", "luna-token"]


def decoder(operator: str, max_length: int = 64) -> Any:
    """Return a causal text model with a head of random weights, which answers at every token.

    With "-head" or "-token" behind its name the operator has such a decay.
    """
    operator, _, decay = operator.partition("-")
    options: dict[str, Any] = {}
    if decay:
        options = {"decay": decay, "half_life": 3.0}
    encoder = TEXT | {"causal": True, "max_length": max_length}
    head = {"pool": "every", "outputs": 9}
    torch.manual_seed(0)
    body = {"operator": operator, "operator_options": options}
    model = create_model("itnet_nano", encoder=encoder, body=body, head=head).eval()
    for weight in model.head.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    return model


def export_decoders(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            paths = export_decoder(decoder(name), Path(folder) / f"{name}.onnx")
            assert all(path.stat().st_size > 1000 for path in paths)
            assert not any(operations(path) & LOOPS for path in paths)
            print(f"{name}: ok", flush=True)


def check_padding(operator: str) -> None:
    """Run both programs of a decoder on a batch with a padded text, which neither may answer: a
    state would take padding for a token.
    """
    with tempfile.TemporaryDirectory() as folder:
        paths = export_decoder(decoder(operator), Path(folder) / "model.onnx")
        first, then = (runner_of(path.read_bytes(), threads=1) for path in paths)
    texts = np.array([[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 0, 0]])
    _, *state = first({INPUT: texts[:, :5]})
    past = {f"past_{i}": tensor for i, tensor in enumerate(state)}
    steps = {INPUT: texts[:, 5], "seen": np.array(5), **past}
    for program, inputs in ((first, {INPUT: texts}), (then, steps)):
        with pytest.raises(ExportError, match="indices element out of data bounds"):
            program(inputs)
    print(f"{operator}: padding refused: ok")


PROMPT, NEW = 5, 200
"""Tokens that are read, and tokens that are generated after them."""


def drawn(logits: Any, number: int) -> int:
    """Draw a token by its logits (1, vocabulary); 0 is padding and no token of a text.

    The draw depends on ``number`` alone, so that the model and its programs have the same luck.
    """
    likely = torch.as_tensor(logits)[0, 1:].softmax(-1)
    draw = torch.Generator().manual_seed(number)
    return int(torch.multinomial(likely, 1, generator=draw)) + 1


@torch.no_grad()
def generated_by_model(model: Any, prompt: torch.Tensor) -> tuple[list[int], list[torch.Tensor]]:
    """Return tokens drawn one after the other, and the logits that each was drawn by."""
    logits, state = model.prefill(prompt, model.init_state(PROMPT + NEW))
    last = logits[:, -1]
    tokens = []
    answers = []
    for _ in range(NEW):
        tokens.append(drawn(last, len(tokens)))
        answers.append(last)
        last, state = model.step(torch.tensor(tokens[-1:]), state)
    return tokens, answers


def generated_by_programs(
    first: Any, then: Any, prompt: torch.Tensor
) -> tuple[list[int], list[torch.Tensor]]:
    """Return the same of the two ONNX programs, whose states go from call to call."""
    logits, *state = first({INPUT: prompt.numpy()})
    last = logits[:, -1]
    tokens = []
    answers = []
    for seen in range(PROMPT, PROMPT + NEW):
        tokens.append(drawn(last, len(tokens)))
        answers.append(torch.from_numpy(last))
        past = {f"past_{i}": tensor for i, tensor in enumerate(state)}
        token = np.array(tokens[-1:])
        last, *state = then({INPUT: token, "seen": np.array(seen)} | past)
    return tokens, answers


def compare_generation(operator: str) -> None:
    """Generate a text by the model and by its programs."""
    # One more than is generated: the programs leave the last place of a text free.
    model = decoder(operator, PROMPT + NEW + 1)
    prompt = torch.randint(1, 9, (1, PROMPT), generator=torch.Generator().manual_seed(0))
    with tempfile.TemporaryDirectory() as folder:
        paths = export_decoder(model, Path(folder) / "model.onnx")
        first, then = (runner_of(path.read_bytes(), threads=1) for path in paths)
    expected, logits = generated_by_model(model, prompt)
    actual, others = generated_by_programs(first, then, prompt)
    assert len(set(expected)) > 3, "a text of few tokens compares little"
    assert actual == expected
    error = (torch.cat(others) - torch.cat(logits)).abs().max() / torch.cat(logits).abs().max()
    assert error < TOLERANCE, error
    print(f"{operator}: {NEW} tokens: ok")


def main() -> None:
    if sys.argv[1] == "generate":
        for operator in sys.argv[2:]:
            compare_generation(operator)
        return
    if sys.argv[1] == "padding":
        for operator in sys.argv[2:]:
            check_padding(operator)
        return
    if sys.argv[1] == "long":
        error = long_series_error()
        assert error < TOLERANCE, error
        print("long: ok")
        return
    if sys.argv[1] == "steps":
        export_decoders(sys.argv[2:])
        return
    export, names = EXPORTS[sys.argv[1]], sys.argv[2:]
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            path = Path(folder) / f"{name}.program"
            # Every export compares its program with the model and fails where they differ.
            program = export(random_model(name), path, metadata={"case": name})
            assert path.stat().st_size > 1000
            if sys.argv[1] == "onnx":
                assert not operations(path) & LOOPS
            left = [path.name for path in Path(folder).iterdir()]
            assert left == [path.name], left
            path.unlink()
            print(f"{name} ({program.signature.shape}): ok", flush=True)


if __name__ == "__main__":
    main()
