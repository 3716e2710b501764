"""The data sets, one file each; importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

from ...checkout import import_evidence

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

import_evidence("datasets")
