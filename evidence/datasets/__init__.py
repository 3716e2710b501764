"""The data sets of the papers' tables, one file each. Importing this package registers all of them.

They use the public ``register_dataset``, like a user's data sets.
"""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
