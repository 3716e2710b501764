"""Files for readers beside a converted model's weights: its model card, and a file that loads it
where remote code is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CODE = "fredholm_linear.py"


def code_file() -> str:
    """Return the Python file that ``trust_remote_code=True`` runs: it imports fredholm."""
    return '''"""Loads the model of this folder, whose softmax was replaced by linear attention.

Needs fredholm with its extra `hf`: `pip install '.[hf]'` in a checkout of it. With
`import fredholm.hf` in your own code this file is not used, and `trust_remote_code` is not needed:

    import fredholm.hf
    from transformers import AutoModel

    model = AutoModel.from_pretrained("this folder")

Importing the configuration makes `model_type: fredholm_linear` known to transformers' Auto classes;
they then find the model's class by it.
"""

from fredholm.hf import FredholmLinearConfig

__all__ = ["FredholmLinearConfig"]
'''


def model_card(
    kind: type,
    config: Any,
    facts: dict[str, Any],
    lines: Sequence[str] = (),
) -> str:
    """Return the ``README.md`` of a converted model: what it is, how to load it, and what the
    conversion kept.

    Args:
        kind: the source's class.
        config, facts: the source's configuration, and the facts of the conversion in it.
        lines: further sentences about the conversion.
    """
    head = ["library_name: transformers", "tags:", "- fredholm", "- linear-attention"]
    origin = f"a {kind.__name__}"
    # A name on the hub, owner/model, which is not a folder of this machine.
    base = getattr(config, "_name_or_path", "") or ""
    if base.count("/") == 1 and not Path(base).exists():
        head.append(f"base_model: {base}")
        origin = f"`{base}`"

    sentences = [f"- {line}" for line in lines]
    groups = sum(len(groups) for groups in facts.get("keep", {}).values())
    if groups:
        sentences.append(f"- {groups} groups of heads keep softmax on all tokens")
    sentences += [f"- `{name}` keeps its softmax: {why}" for name, why in facts["refused"].items()]

    text = f"""---
{chr(10).join(head)}
---

# {kind.__name__} with {facts["to"]} linear attention

Made by `fredholm linearize` from {origin}: the softmax of
{len(facts["layers"])} attention layers was replaced by linear attention with the feature map
`{facts["to"]}`{_window(facts)}, every other weight is the source's or was fine-tuned from it.

transformers alone cannot load this model. Install fredholm with its extra `hf`
(`pip install '.[hf]'` in a checkout of it) and import it first:

```python
import fredholm.hf
from transformers import {_auto_class(kind)}

model = {_auto_class(kind)}.from_pretrained("this folder")
```

Where you cannot add an import (`transformers serve`), `trust_remote_code=True` runs `{CODE}`,
which does it.
"""
    if sentences:
        text += "\n## The conversion\n\n" + "\n".join(sentences) + "\n"
    return text


def _window(facts: dict[str, Any]) -> str:
    """Return what a sentence about a conversion adds for a window and a decay, or ""."""
    window, fades = facts.get("window"), ""
    if facts.get("decay"):
        fades = ", whose state fades"
    if window is None:
        return fades
    tokens = softmax_tokens(window, facts.get("sinks", 0), facts.get("store", 0))
    return f"{fades} and softmax on {tokens}"


def softmax_tokens(window: int, sinks: int, store: int) -> str:
    """Name the tokens on which causal layers keep softmax.

    Example:
        >>> softmax_tokens(64, 4, 128)
        'the last 64 tokens and the first 4 and a store of 128 per group of heads'
    """
    text = f"the last {window} tokens"
    if sinks:
        text += f" and the first {sinks}"
    if store:
        text += f" and a store of {store} per group of heads"
    return text


def _auto_class(kind: type) -> str:
    """Return the Auto class for the task in the name of a model's class."""
    _, has_task, task = kind.__name__.rpartition("For")
    if has_task:
        return f"AutoModelFor{task}"
    return "AutoModel"
