"""Which operator for this data? A search in minutes: all operators at a small budget, the better
half at a larger one, seeds for the finalists, and a recommendation.

``search`` is the course of it, ``halving`` its rungs, ``finals`` its end, ``clock`` its time;
``trials`` makes the trainings, of which ``trial`` is one, judged on ``splits``. ``plain`` has the
methods beside the operators, among them ``minirocket`` and the pretrained ``starts``, whose
transformers are ``backbones`` and, with linear attention, ``students``; ``fitted`` is what such a
method has learned, with ``terms`` of texts and ``trees``, and ``saved`` keeps the recommended one
on disk. ``stress`` says what lost samples do, ``growth`` what longer samples cost, ``verdict`` what
is recommended and how sure that is, and ``report`` its words; the page is drawn by
:mod:`fredholm.explain.choice`.
"""

from .search import choose

__all__ = ["choose"]
