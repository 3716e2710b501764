"""The continuous kernel convolutional network: residual blocks of two continuous kernel
convolutions.
"""

from .config import PRESETS, CKCNNConfig
from .model import CKCNN, CKBlock

__all__ = ["CKCNN", "PRESETS", "CKBlock", "CKCNNConfig"]
