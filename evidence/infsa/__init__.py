"""InfSA: quality of its attention on canvases with known objects; speed and limits of its forms."""

from __future__ import annotations

from ..kit.page import PAGES
from ..kit.subject import Subject

SUBJECT = Subject(
    __name__,
    times={
        # The linear form runs first: it reports the peak memory of this process.
        "linear": "speed:time_linear",
        "pure": "speed:time_pure",
        "memory": "speed:time_memory",
        "model": "scale:time_model",
        "train": "scale:time_train",
        "table-memory": "scale:table_memory",
        "table-time": "scale:table_time",
    },
    runs={
        "canvas": "evidence:run_canvas",
        "cifar10": "evidence:run_cifar10",
        "canvases": "canvases:run",
        "pretrained": "pretrained:run",
        "equal-time": "contests:run_equal_time",
        "ten-seeds": "contests:run_ten_seeds",
    },
    pages={
        PAGES / "infsa.md": "page:page",
        PAGES / "infsa-contests.md": "contests:page",
    },
    cases="speed:timed",
    ratios="speed:committed",
    claims="claims:CLAIMS",
)
