"""Benchmarks, and evidence on the papers' claims.

``python -m evidence time|run|page|check NAME`` is the one entry; ``python -m evidence --help``
lists the names. A name is a file or folder here that has a ``SUBJECT``. ``kit`` has the code that
subjects share and ``results`` all committed numbers; the pages written from them are in the
documentation.
"""
