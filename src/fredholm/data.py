"""Data sets by their public names: where they come from, how they are split, varied and batched.

``create_dataset(name, split)`` gives a torch data set, ``make_loader`` resumable batches of it,
``fetch(name)`` brings one here.
"""

from .lab.data import *  # noqa: F403
from .lab.data import __all__ as __all__
