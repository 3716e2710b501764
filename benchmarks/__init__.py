"""Benchmarks, and evidence on the papers' claims.

``python -m benchmarks time|run|page|check NAME`` is the one entry; ``python -m benchmarks --help``
lists the names. A name is a file or folder here that has a ``SUBJECT``; ``kit`` holds what they
share, ``results`` all committed numbers, and the pages written from them are in the documentation.
"""
