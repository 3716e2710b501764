"""Numerical explanations of kernels and models, pictures of them, and the HTML report.

The numbers are computed here. Reports belong to :mod:`fredholm.lab.report`, which is imported when
one of its names is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .alignment import Alignment, eigenvector_alignment, model_alignment
from .attention import class_attention, image_maps, operator_inputs, rollout
from .centrality import TokenChain, token_chain
from .columns import TopKeys, column_sums, top_keys
from .kernels import Profile, image_grid, kernel_map, kernel_profile
from .quality import Quality, attention_quality
from .removal import Degradation, degradation
from .targets import localisation, patch_targets
from .variance import VarianceShare, variance_share
from .vision import Traced, traced

if TYPE_CHECKING:
    from ..lab.report.given import ReportOptions as ReportOptions
    from ..lab.report.given import RunFacts as RunFacts
    from ..lab.report.given import Samples as Samples
    from ..lab.report.maps.explore import Explorer as Explorer
    from ..lab.report.maps.explore import explore as explore
    from ..lab.report.module import explain_module as explain_module
    from ..lab.report.module import report_module as report_module
    from ..lab.report.pretrained import explain_pictures as explain_pictures
    from ..lab.report.report import report as report
    from ..lab.report.report import report_run as report_run

_REPORTS = {
    "Explorer": "maps.explore",
    "ReportOptions": "given",
    "RunFacts": "given",
    "Samples": "given",
    "explain_module": "module",
    "explore": "maps.explore",
    "explain_pictures": "pretrained",
    "report": "report",
    "report_module": "module",
    "report_run": "report",
}

__all__ = [
    "Alignment",
    "Degradation",
    "Explorer",
    "Profile",
    "Quality",
    "ReportOptions",
    "RunFacts",
    "Samples",
    "TokenChain",
    "TopKeys",
    "Traced",
    "VarianceShare",
    "attention_quality",
    "class_attention",
    "column_sums",
    "degradation",
    "eigenvector_alignment",
    "explain_module",
    "explain_pictures",
    "explore",
    "image_grid",
    "image_maps",
    "kernel_map",
    "kernel_profile",
    "localisation",
    "model_alignment",
    "operator_inputs",
    "patch_targets",
    "report",
    "report_module",
    "report_run",
    "rollout",
    "token_chain",
    "top_keys",
    "traced",
    "variance_share",
]


def __getattr__(name: str) -> Any:
    if name not in _REPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fredholm.lab.report.{_REPORTS[name]}"), name)
