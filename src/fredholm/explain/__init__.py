"""Kernels to numbers and pictures; the HTML report."""

from .alignment import Alignment, eigenvector_alignment, model_alignment
from .attention import class_attention, image_maps, operator_inputs, rollout
from .centrality import TokenChain, token_chain
from .given import ReportOptions, RunFacts, Samples
from .kernels import Profile, image_grid, kernel_map, kernel_profile
from .module import explain_module, report_module
from .pretrained import explain_pictures
from .quality import Quality, attention_quality
from .removal import Degradation, degradation
from .report import report, report_run
from .targets import localisation, patch_targets
from .variance import VarianceShare, variance_share
from .vision import Traced, traced

__all__ = [
    "Alignment",
    "Degradation",
    "Profile",
    "Quality",
    "ReportOptions",
    "RunFacts",
    "Samples",
    "TokenChain",
    "Traced",
    "VarianceShare",
    "attention_quality",
    "class_attention",
    "degradation",
    "eigenvector_alignment",
    "explain_module",
    "explain_pictures",
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
    "traced",
    "variance_share",
]
