"""A converted MiniLM against its teacher: milliseconds and peak memory of one forward pass of batch
1, against the length.

The maps are as they start: neither time nor memory depends on their values. The position table of
512 is repeated to the length, for both, since only the cost is asked here. Every length runs in a
process of its own, so that peaks do not mix.
"""

from __future__ import annotations

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
    """MiniLM with positions for ``length`` tokens, as it is or converted."""
    import torch
    from transformers import AutoModel

    from fredholm.convert import replace_attention
    from fredholm.lab import data

    from .conversions import METHODS

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


def one(way: str, length: int, threads: int, seconds: float = 1.5) -> dict[str, float | None]:
    """Median milliseconds and the growth of peak resident memory over that of a short call, in this
    process.
    """
    import torch

    torch.set_num_threads(threads)
    model = built(way, length)
    ids = torch.randint(1000, 20000, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        model(input_ids=ids[:, :16])
        peak = peak_megabytes(lambda: model(input_ids=ids))
        times = in_turn({"": lambda: model(input_ids=ids)}, 50, seconds, warm=False)[""]
    return {"ms": 1e3 * median_and_spread(times)[0], "bytes": peak and peak * 2**20}


def time(options: Options) -> None:
    """A row for every length, and on what it was measured."""
    rows = []
    for length in (64, 128) if options.small else LENGTHS:
        given = {"length": length, "threads": options.threads}
        found = {way: alone(f"{__name__}:one", way=way, **given) for way in WAYS}
        rows.append({"length": length, **found})
        print(rows[-1], flush=True)
    whole = load("linearize.json", options.results) or {"runs": []}
    save(
        whole | {"speed": {"machine": describe(), "rows": rows}}, "linearize.json", options.results
    )


def crossover(rows: list[dict[str, Any]], way: str, key: str = "ms") -> int | None:
    """The shortest measured length from which on the converted model needs less than its teacher."""
    mine, teacher = ({row["length"]: row[name][key] for row in rows} for name in (way, "teacher"))
    return stays_below(mine, teacher)
