"""A Mathematical Explanation of Transformers.

Xue-Cheng Tai, Hao Liu, Lingfeng Li, Raymond H. Chan. 2025. https://arxiv.org/abs/2510.03989

- ``naive.py``: one step of the splitting, Eqs. 16-21, in plain einsums: open it first.
- ``splitting/``: the equation in general. ``term.py`` defines a term; ``terms.py``,
  ``constraints.py`` and ``convolution.py`` are terms; ``schemes.py`` composes them,
  ``controls.py`` interpolates their parameters in time, ``evolution.py`` binds all into a module;
  ``encoder_terms.py`` has the terms of known encoders; ``adjoint.py``, ``orders.py`` and
  ``monitors.py`` solve, measure and watch.
"""

from .naive import lie_step_naive, paper_step_naive

__all__ = [
    "lie_step_naive",
    "paper_step_naive",
]
