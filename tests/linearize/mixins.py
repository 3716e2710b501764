"""Run transformers' own test mixins on a converted model, in a process of its own.

    python mixins.py CHECKOUT ARCHITECTURE RESULT.json

``CHECKOUT`` is a checkout of transformers at the installed version: its tests are not in the wheel.
The process stands apart because both projects call their tests ``tests``.
"""

from __future__ import annotations

import copy
import faulthandler
import functools
import importlib
import json
import os
import re
import signal
import sys
import traceback
import unittest
from pathlib import Path
from typing import Any

import torch

from fredholm.convert import replace_attention
from fredholm.linearization.auto import linear_model

# The longest time of one test.
SECONDS = 60
TESTS = {
    "llama": "LlamaModelTest",
    "gpt2": "GPT2ModelTest",
    "qwen2": "Qwen2ModelTest",
    "bert": "BertModelTest",
    "vit": "ViTModelTest",
}
PREFIXES = re.compile(r"^(model|transformer|bert|vit)\.")
# A window and a sink shorter than the testers' seven tokens, so that linear attention is computed.
CAUSAL = {"window": 2, "sinks": 1}


def mixin_tests() -> list[str]:
    """Return the names of all tests of transformers' model and generation mixins."""
    common = importlib.import_module("tests.test_modeling_common")
    generation = importlib.import_module("tests.generation.test_utils")
    mixins = (common.ModelTesterMixin, generation.GenerationTesterMixin)
    names = {name for mixin in mixins for name in dir(mixin) if name.startswith("test_")}
    return sorted(name for name in names if any(callable(getattr(m, name, None)) for m in mixins))


def converted_config(config: Any, base: Any) -> Any:
    """Return a configuration that says that its models are converted."""
    causal = config.model_type in ("llama", "gpt2", "qwen2")
    options = CAUSAL if causal else {}
    model = base(config)
    return replace_attention(model, "hedgehog", copied=False, probe=False, **options).model.config


def converted_class(source: Any, base: Any) -> Any:
    """Return the class of a converted model under its source's name, by which the mixins choose
    their inputs and read its source.

    A configuration names the converted layers as the class has them that was converted: one class
    calls its base ``model``, another ``transformer``.
    """
    kind = linear_model(source)
    prefix = "" if source is base else f"{source.base_model_prefix}."

    def renamed(config: Any) -> Any:
        if not hasattr(config, "linear_attention"):
            return config
        config = copy.deepcopy(config)
        for layer in config.linear_attention["layers"]:
            layer["name"] = prefix + PREFIXES.sub("", layer["name"])
        return config

    @functools.wraps(source.__init__)  # whose arguments the mixins ask for
    def start(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        kind.__init__(self, renamed(config), *args, **kwargs)

    def from_config(cls: Any, config: Any, **kwargs: Any) -> Any:
        return super(result, cls)._from_config(renamed(config), **kwargs)

    fields = {"__module__": source.__module__, "__init__": start}
    fields["_from_config"] = classmethod(from_config)
    result: Any = type(source.__name__, (kind,), fields)
    return result


def converted_test(architecture: str) -> Any:
    """Return transformers' test class of an architecture, with converted models in it."""
    module = importlib.import_module(f"tests.models.{architecture}.test_modeling_{architecture}")
    source = getattr(module, TESTS[architecture])

    class Converted(source):
        def setUp(self) -> None:
            super().setUp()
            plain = tuple(self.all_model_classes)
            base = plain[0]
            self.all_model_classes = tuple(converted_class(kind, base) for kind in plain)
            make = self.model_tester.get_config
            self.model_tester.get_config = lambda *args, **kwargs: converted_config(
                make(*args, **kwargs), base
            )

    return Converted


def run_one(kind: Any, name: str) -> tuple[str, str]:
    """Return ``passed``, ``skipped``, ``failed`` or ``too long``, and why."""
    case = kind(name)

    def give_up(*args: Any) -> None:
        raise TimeoutError(f"over {SECONDS} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SECONDS)
    # By this the library's tests that start a process of their own know which they are.
    os.environ["PYTEST_CURRENT_TEST"] = f"tests/mixins.py::{name} (call)"
    try:
        case.setUp()
        torch.manual_seed(0)
        getattr(case, name)()
        return "passed", ""
    except unittest.SkipTest as skip:
        return "skipped", str(skip)
    except TimeoutError as error:
        return "too long", str(error)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:300]
        return (
            "failed",
            f"{type(error).__name__}: {text} ({Path(last.filename).name}:{last.lineno})",
        )
    finally:
        signal.alarm(0)
        try:
            case.tearDown()
        except Exception as error:
            print(f"{name}: tearDown: {error}", file=sys.stderr)


def main(checkout: str, architecture: str, out: str) -> None:
    faulthandler.enable()
    sys.path.insert(0, checkout)
    torch.set_num_threads(1)
    kind = converted_test(architecture)
    results = {}
    # A picture has nothing to generate: its class lacks the tests of the second mixin.
    for name in [name for name in mixin_tests() if hasattr(kind, name)]:
        # pytest's own skips are exceptions of another base, and say so by their name.
        state, why = run_one(kind, name)
        if why.startswith("Skipped:"):
            state = "skipped"
        results[name] = [state, why]
        Path(out).write_text(json.dumps(results, indent=1))
        print(name, state, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
