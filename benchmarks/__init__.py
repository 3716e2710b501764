"""Benchmarks: a registry of cases, and a runner that times nothing whose answer it has not just
checked.

``python -m benchmarks`` runs them; ``python -m benchmarks --help`` lists the choices.
"""
