"""Public names of encoders, which map raw data to (features, Domain)."""

from .models.encoders import *  # noqa: F403
from .models.encoders import __all__ as __all__
