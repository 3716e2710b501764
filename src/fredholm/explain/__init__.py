"""Kernels to numbers and pictures; the HTML report."""

from .kernels import Profile, image_grid, kernel_map, kernel_profile
from .variance import VarianceShare, variance_share

__all__ = [
    "Profile",
    "VarianceShare",
    "image_grid",
    "kernel_map",
    "kernel_profile",
    "variance_share",
]
