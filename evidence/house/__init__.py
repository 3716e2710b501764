"""Measures of how easy the library is to read: ``python -m evidence.house``.

:mod:`.sources` counts tokens, comments and expressions of the files, :mod:`.imports` finds circular
imports, and :mod:`.walk` lists the files that one forward enters. The numbers show where to improve
the code; no test fails because of a size.
"""
