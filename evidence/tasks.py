"""Tasks of `fredholm compare` on the data sets of the papers' tables, by name."""

from __future__ import annotations

from fredholm.lab.compare.tasks import ComparedTask, register_task


def _backbone(*overrides: str) -> tuple[str, ...]:
    return ("model=backbone_nano", *overrides)


_SHORT = "optimizer={name: adamw, lr: 3e-3, weight_decay: 0.01}"

TASKS = (
    ComparedTask(
        "copy-memory",
        "repeat ten symbols after 20 steps, in causal order",
        "ckcnn-copy-memory",
        _backbone(
            "model.head.pool=every",
            "model.encoder.causal=true",
            "data.options={delay: 20}",
            "data.limit=2000",
            "training.epochs=8",
            _SHORT,
        ),
        {"ckconv": {"omega": 19.2}},
    ),
    ComparedTask(
        "adding",
        "the sum of two marked numbers among 50 (mean squared error)",
        "ckcnn-adding",
        _backbone("data.options={length: 50}", "data.limit=4000", "training.epochs=6", _SHORT),
        {"ckconv": {"omega": 14.55}},
    ),
    ComparedTask(
        "japanese-vowels",
        "nine speakers by two vowels, 12 channels, 7 to 29 samples",
        "ckcnn-japanese-vowels",
        _backbone("training.epochs=40", "model.body.dropout=0.1", _SHORT),
        {"ckconv": {"omega": 8.0}},
    ),
    ComparedTask(
        "plaid",
        "electric current of 11 appliances at an eighth of the rate, up to 168 samples",
        "ckcnn-plaid",
        _backbone("data.options={every: 8}", "training.epochs=20", _SHORT),
        {"ckconv": {"omega": 30.0}},
    ),
    ComparedTask(
        "listops",
        "nested lists of 5 to 40 symbols, 4,000 of them",
        "lra-listops",
        _backbone(
            "data.options={min_length: 5, max_length: 40, max_depth: 3, max_args: 4, train: 4000, "
            "val: 500, test: 2000}",
            "training.epochs=8",
            _SHORT,
        ),
    ),
    ComparedTask(
        "kicad",
        "2,000 clouds of 64 points on electronic parts, 26 kinds",
        "itnet-kicad",
        _backbone(
            "data.options={points: 64}",
            "data.limit=2000",
            "training.epochs=6",
            "training.label_smoothing=0.0",
        ),
    ),
    ComparedTask(
        "darcy",
        "from a medium to the pressure in it on a 16 x 16 grid, 400 samples",
        "itnet-darcy",
        _backbone("model.encoder.sigma=1.0", "data.limit=400", "training.epochs=10"),
    ),
    ComparedTask(
        "debian-graph",
        "the section of 2,000 Debian packages from their and 7 neighbours' words, in ITNet's graph "
        "model",
        "itnet-debian-graph",
        (
            "model.body.depth=1",
            "data.options={size: 8, eigenvectors: 4}",
            "data.limit=2000",
            "training.epochs=3",
        ),
    ),
)

for _task in TASKS:
    register_task(_task)
