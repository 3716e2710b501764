"""The application on top of the library: data, training, comparison, reports, the command line.

It uses the library's public names; nothing of the library imports it, except ``__main__`` and the
public facades ``fredholm.data``, ``fredholm.training``, ``fredholm.estimators`` and the reports in
``fredholm.explain``.
"""
