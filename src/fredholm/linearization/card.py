"""What lies beside a converted model's weights for readers: its model card, and a file that loads
it where remote code is trusted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

CODE = "fredholm_linear.py"


def code_file() -> str:
    """The Python file that ``trust_remote_code=True`` runs: it imports fredholm."""
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


def model_card(kind: type, config: Any, facts: dict[str, Any], lines: Sequence[str] = ()) -> str:
    """The ``README.md`` of a converted model: what it is, how it is loaded, what became of it."""
    base = getattr(config, "_name_or_path", "") or ""
    if base.count("/") != 1 or Path(base).exists():  # a folder of this machine, no name on the hub
        base = ""
    head = ["library_name: transformers", "tags:", "- fredholm", "- linear-attention"]
    head += [f"base_model: {base}"] if base else []
    groups = sum(len(groups) for groups in facts.get("keep", {}).values())
    kept = [f"- {groups} groups of heads keep softmax on all tokens"] if groups else []
    kept += [f"- `{name}` keeps its softmax: {why}" for name, why in facts["refused"].items()]
    text = f"""---
{chr(10).join(head)}
---

# {kind.__name__} with {facts["to"]} linear attention

Made by `fredholm linearize` from {f"`{base}`" if base else f"a {kind.__name__}"}: the softmax of
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
    said = [*(f"- {line}" for line in lines), *kept]
    return text + ("\n## The conversion\n\n" + "\n".join(said) + "\n" if said else "")


def _window(facts: dict[str, Any]) -> str:
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
    """The Auto class under whose name a model's class ends."""
    _, result, task = kind.__name__.rpartition("For")
    return f"AutoModelFor{task}" if result else "AutoModel"
