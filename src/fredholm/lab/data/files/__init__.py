"""A user's own files: what lies at a path is recognised, read, checked, divided and described.

``open_files(path)`` gives a :class:`.source.Source`: ``source.dataset("train")``, ``source.kind``,
``source.description``. Nothing here but the data sets (:mod:`.datasets`), pictures and unlabelled
samples imports torch.

A table is read in three steps. Its first rows (:mod:`.head`, from :mod:`.delimited`, :mod:`.jsonl`
or :mod:`.parquet`) are recognised (:mod:`.settling`, by :mod:`.guesses` and :mod:`.channels`): a
role is given to each column (:mod:`.columns`). Then all rows are cast by these roles
(:mod:`.table`, :mod:`.casts`), and become samples (:mod:`.tables`, :mod:`.row_samples`,
:mod:`.time_rows`).

Other files: :mod:`.ts`, :mod:`.arrays` and :mod:`.fields`, :mod:`.clouds`, :mod:`.sounds`,
:mod:`.folders`. All become a :class:`.collection.Collection`, whose labels are checked
(:mod:`.labels`), and which is divided (:mod:`.division`), scaled and described.
"""

from .reading import Reading
from .source import Source, open_files

__all__ = ["Reading", "Source", "open_files"]
