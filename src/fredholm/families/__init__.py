"""The papers, one a folder, and the layers everybody knows: importing this registers them all.

In every folder ``naive.py`` is the page to open first (the definition in plain einsums). Then come
``kernel.py`` (the formula), ``operator.py`` (its constructor), fast forms by algorithm, and
``triton/``; in ``continuous``, which evolves the operators of others, ``splitting/``. Presets are
in ``fredholm.models.presets``. Families do not import one another, and nothing lists them: a folder
is one.
"""

from importlib import import_module
from pkgutil import iter_modules

for _family in sorted(module.name for module in iter_modules(__path__)):
    import_module(f"{__name__}.{_family}")
