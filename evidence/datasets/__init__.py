"""The data sets of the papers' tables, one file each; importing this package registers them all.

They are registered by the public ``register_dataset``, as a user's own are.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
