"""Every classical layer as an integral operator: the configurations that are compared, and the
comparison.

A file ``<family>.py`` here has a list ``CONFIGURATIONS``; the tests hold each to its tolerance, and
``python -m benchmarks.unification`` writes the measured errors down for the documentation.
"""

from .measure import FLOAT32, FLOAT64, Configuration, Errors, configurations, measure

__all__ = ["FLOAT32", "FLOAT64", "Configuration", "Errors", "configurations", "measure"]
