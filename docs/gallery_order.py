"""The order of the gallery, and what is reset before each of its pages."""

from __future__ import annotations

from pathlib import Path

import torch

ORDER = (
    "plot_one_equation",
    "plot_recurrent_memory",
    "plot_your_kernel",
    "plot_grid_and_points",
    "plot_irregular_series",
    "plot_charges",
    "plot_resolution",
    "plot_compare_csv",
    "plot_vision_centrality",
    "plot_linear_decoder",
    "plot_splitting_orders",
    "plot_sharded",
    "plot_export",
)


def place(path: str) -> tuple[int, str]:
    """Return the sort key of a file: its place in ORDER; others come last, by name."""
    name = Path(path).stem
    found = ORDER.index(name) if name in ORDER else len(ORDER)
    return found, name


class ExampleOrder:
    """Sort key of the gallery, which sphinx-gallery makes for each folder."""

    def __init__(self, folder: str):
        self.folder = folder

    def __call__(self, file_name: str) -> tuple[int, str]:
        return place(file_name)


def reset(gallery_conf: dict, file_name: str) -> None:
    """Give every example the same random numbers and the number of threads of the build."""
    torch.manual_seed(0)
