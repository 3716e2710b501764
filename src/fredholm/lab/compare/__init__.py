"""Comparisons: every operator in one backbone on known tasks, and a search on a user's own data.

The comparison of operators (:func:`compare`): ``tasks`` declares what is trained on which data,
``known`` has tasks by name, ``budgets`` makes models equal, ``grid`` trains them, and ``tables``
collects the results into one table. The page is drawn by :mod:`fredholm.lab.report.comparison`.

The search for an operator for given data (:func:`choose`) trains all operators at a small budget,
the better half at a larger one, and several seeds of the finalists. ``search`` is its course,
``halving`` its rungs, ``finals`` its end and ``clock`` its time; ``trials`` makes the trainings, of
which ``trial`` is one, judged on ``splits``. ``plain`` has the baselines, among them ``minirocket``
and the pretrained ``starts``, whose transformers are ``backbones``. ``fitted`` is a fitted
baseline, with ``terms`` of texts and ``trees``, and ``saved`` keeps the recommended one on disk.
``stress`` measures the effect of lost samples, ``growth`` the cost of longer ones, ``verdict``
decides what is recommended and how certain that is, and ``report`` words it; the page is drawn by
:mod:`fredholm.lab.report.comparison`.
"""

from .grid import Setting, compare
from .search import choose
from .tasks import ComparedTask, find_task, list_tasks, register_task

__all__ = [
    "ComparedTask",
    "Setting",
    "choose",
    "compare",
    "find_task",
    "list_tasks",
    "register_task",
]
