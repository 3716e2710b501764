"""The Long Range Arena's classifiers: one backbone, any operator."""

from .config import LRAConfig
from .model import LRA

__all__ = ["LRA", "LRAConfig"]
