"""A Mathematical Explanation of Transformers.

Xue-Cheng Tai, Hao Liu, Lingfeng Li, Raymond H. Chan. 2025. https://arxiv.org/abs/2510.03989

- ``naive.py``: one step of the splitting, Eqs. 16-21, in plain einsums: open it first.
- ``splitting/``: the equation in general. ``term.py`` says what a term is; ``terms.py``,
  ``constraints.py``, ``convolution.py`` and ``pixels.py`` are terms; ``schemes.py`` composes them,
  ``controls.py`` interpolates their parameters in time, ``evolution.py`` binds all into a module;
  ``encoder_terms.py`` has the terms of known encoders; ``adjoint.py``, ``orders.py`` and
  ``monitors.py`` solve, measure and watch.
- ``encoder_evolution.py``: an evolution of known encoder layers that can be saved.
- ``config.py``, ``model.py``, ``build.py``, ``presets.py``: the model, its parts, its named sizes.
- ``monitors.py``: what every step of a trained model does.
"""

from .config import ContinuousConfig
from .encoder_evolution import EncoderEvolution, EncoderEvolutionConfig
from .model import ContinuousTransformer
from .monitors import trajectory
from .naive import lie_step_naive, paper_step_naive
from .presets import PRESETS

__all__ = [
    "PRESETS",
    "ContinuousConfig",
    "ContinuousTransformer",
    "EncoderEvolution",
    "EncoderEvolutionConfig",
    "lie_step_naive",
    "paper_step_naive",
    "trajectory",
]
