"""A user's own files: what lies at a path is recognised, read, checked, divided and described.

``open_files(path)`` gives a :class:`.source.Source`: ``source.dataset("train")``, ``source.kind``,
``source.description``. A file each for what lies on the disk (tables, ``.ts``, arrays, clouds,
folders), for what its columns mean, for the splits and for the scaling.
"""

from .reading import Reading
from .source import Source, open_files

__all__ = ["Reading", "Source", "open_files"]
