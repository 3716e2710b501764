"""Time and peak memory of a converted MiniLM's forward pass against the length, beside its teacher.

The maps are untrained: neither time nor memory depends on their values. The table of 512 positions
is repeated to the length for all models, since only the cost is measured. Every length runs in a
fresh process, so that one peak of memory does not hide another.
"""

from __future__ import annotations

import math
from typing import Any

from ..kit.clock import in_turn, median_and_spread
from ..kit.machine import describe
from ..kit.memory import alone, peak_megabytes
from ..kit.page import load, save
from ..kit.statistics import stays_below
from ..kit.subject import Options

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
WAYS = ("teacher", "luna", "hedgehog", "performer")


def built(way: str, length: int) -> Any:
    """Return MiniLM with positions for ``length`` tokens, unchanged or converted."""
    import torch
    from transformers import AutoModel

    from fredholm.convert import replace_attention
    from fredholm.lab import data

    from .conversions import METHODS

    model: Any = AutoModel.from_pretrained(data.fetch("minilm"), trust_remote_code=False).eval()
    table = model.embeddings.position_embeddings
    if length > table.num_embeddings:
        copies = math.ceil(length / table.num_embeddings)
        rows = table.weight.repeat(copies, 1)[:length]
        embeddings = model.embeddings
        embeddings.position_embeddings = torch.nn.Embedding.from_pretrained(rows)
        positions, types = torch.arange(length)[None], torch.zeros(1, length, dtype=torch.long)
        embeddings.register_buffer("position_ids", positions, persistent=False)
        embeddings.register_buffer("token_type_ids", types, persistent=False)
    if way == "teacher":
        return model
    torch.manual_seed(0)
    return replace_attention(model, **METHODS[way], copied=False).model.eval()


def one(way: str, length: int, threads: int, seconds: float = 1.5) -> dict[str, float | None]:
    """Measure the median milliseconds and the peak memory above a short call's, in this process."""
    import torch

    torch.set_num_threads(threads)
    model = built(way, length)
    ids = torch.randint(1000, 20000, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(input_ids=ids[:, :16])
        peak = peak_megabytes(lambda: model(input_ids=ids))
        times = in_turn({"": lambda: model(input_ids=ids)}, 50, seconds, warm=False)[""]
    median, _ = median_and_spread(times)
    return {"ms": 1e3 * median, "bytes": peak and peak * 2**20}


def time(options: Options) -> None:
    """Measure a row for every length."""
    rows = []
    for length in (64, 128) if options.small else LENGTHS:
        row: dict[str, Any] = {"length": length}
        for way in WAYS:
            row[way] = alone(f"{__name__}:one", way=way, length=length, threads=options.threads)
        rows.append(row)
        print(row, flush=True)
    results = load("linearize.json", options.results) or {"runs": []}
    speed = {"machine": describe(), "rows": rows}
    save(results | {"speed": speed}, "linearize.json", options.results)


def crossover(rows: list[dict[str, Any]], way: str, key: str = "ms") -> int | None:
    """Return the measured length from which a converted model needs less than its teacher."""
    converted = {row["length"]: row[way][key] for row in rows}
    teacher = {row["length"]: row["teacher"][key] for row in rows}
    return stays_below(converted, teacher)
