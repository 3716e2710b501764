"""Kernels to numbers and pictures; the HTML report."""

from .centrality import Alignment, TokenChain, eigenvector_alignment, token_chain
from .kernels import Profile, image_grid, kernel_map, kernel_profile
from .module import explain_module, report_module
from .report import report, report_run
from .variance import VarianceShare, variance_share

__all__ = [
    "Alignment",
    "Profile",
    "TokenChain",
    "VarianceShare",
    "eigenvector_alignment",
    "explain_module",
    "image_grid",
    "kernel_map",
    "kernel_profile",
    "report",
    "report_module",
    "report_run",
    "token_chain",
    "variance_share",
]
