"""A converted MiniLM against its teacher: milliseconds and peak memory of one forward pass of batch
1, against the length.

The maps are as they start: neither time nor memory depends on their values. The position table of
512 is repeated to the length, for both, since only the cost is asked here. Every length runs in a
process of its own, so that peaks do not mix.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from .memory import peak_kilobytes

LENGTHS = (128, 256, 512, 1024, 2048, 4096)
WAYS = ("teacher", "luna", "hedgehog", "performer")


def built(way: str, length: int) -> Any:
    """MiniLM with positions for ``length`` tokens, as it is or converted."""
    import torch
    from transformers import AutoModel

    from fredholm import data
    from fredholm.convert import replace_attention

    from .linearize import METHODS

    model: Any = AutoModel.from_pretrained(data.fetch("minilm"), trust_remote_code=False).eval()
    table = model.embeddings.position_embeddings
    if length > table.num_embeddings:
        rows = table.weight.repeat(-(-length // table.num_embeddings), 1)[:length]
        model.embeddings.position_embeddings = torch.nn.Embedding.from_pretrained(rows)
        model.embeddings.register_buffer(
            "position_ids", torch.arange(length)[None], persistent=False
        )
        model.embeddings.register_buffer(
            "token_type_ids", torch.zeros(1, length, dtype=torch.long), persistent=False
        )
    if way == "teacher":
        return model
    torch.manual_seed(0)
    return replace_attention(model, **METHODS[way], copied=False).model.eval()


def one(way: str, length: int, seconds: float) -> dict[str, float]:
    """Median milliseconds and the growth of peak resident memory over that of a short call, in this
    process.
    """
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    model = built(way, length)
    ids = torch.randint(1000, 20000, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(input_ids=ids[:, :16])
        before = peak_kilobytes()
        model(input_ids=ids)
        peak = (peak_kilobytes() - before) * 1024
        times, started = [], time.perf_counter()
        while len(times) < 3 or (time.perf_counter() - started < seconds and len(times) < 50):
            begun = time.perf_counter()
            model(input_ids=ids)
            times.append(time.perf_counter() - begun)
    return {"ms": 1e3 * statistics.median(times), "bytes": float(peak)}


def measure(lengths: tuple[int, ...] = LENGTHS, seconds: float = 1.5) -> dict[str, Any]:
    """A row for every length, and on what it was measured."""
    from .machine import describe

    rows = []
    for length in lengths:
        row: dict[str, Any] = {"length": length}
        for way in WAYS:
            command = [
                sys.executable,
                "-m",
                "benchmarks.linearize_speed",
                way,
                str(length),
                str(seconds),
            ]
            found = subprocess.run(command, check=True, capture_output=True, text=True)
            row[way] = json.loads(found.stdout.splitlines()[-1])
        print(
            f"{length:6d} "
            + "  ".join(
                f"{way} {row[way]['ms']:.1f} ms {row[way]['bytes'] / 2**20:.1f} MiB" for way in WAYS
            ),
            flush=True,
        )
        rows.append(row)
    return {"machine": {**describe(), "threads": os.cpu_count()}, "rows": rows}


def crossover(rows: list[dict[str, Any]], way: str, key: str = "ms") -> int | None:
    """The shortest measured length from which on the converted model needs less than its teacher."""
    slower = [row["length"] for row in rows if row[way][key] >= row["teacher"][key]]
    faster = [row["length"] for row in rows if row["length"] > max(slower, default=0)]
    return min(faster) if faster else None


if __name__ == "__main__":
    print(json.dumps(one(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))))
