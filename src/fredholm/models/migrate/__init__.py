"""Models from before ``Model(encoder, body, head)``: their flat configurations, the names of their
weights, their recipes.

There were six families, each with a class and a configuration of its own; now each is a
:class:`fredholm.models.Model` of three parts. What was saved is read through here (``saved.py``);
what a user writes anew is refused, with the new key (``keys.py``, ``docs/migration.md``).
"""

from .keys import (
    MOVED,
    explain,
    explain_key,
    migrate_override,
    migrate_recipe,
    nearest,
    old_keys,
)
from .saved import migrate_checkpoint, migrate_config, migrate_name

__all__ = [
    "MOVED",
    "explain",
    "explain_key",
    "migrate_checkpoint",
    "migrate_config",
    "migrate_name",
    "migrate_override",
    "migrate_recipe",
    "nearest",
    "old_keys",
]
