"""One backbone, any operator: train them all on the same tasks with the same budget, and say what
each of them costs.

``tasks`` says who and on what, ``known`` has tasks by name, ``budgets`` makes models equal,
``grid`` trains them, ``speed`` measures what they cost on a quiet machine, ``tables`` turns it all
into one table; the page is drawn by :mod:`fredholm.explain.comparison`.
"""

from .grid import Setting, compare
from .known import KNOWN
from .speed import measure
from .tasks import ComparedTask, find_task, list_tasks, register_task

__all__ = [
    "ComparedTask",
    "Setting",
    "compare",
    "find_task",
    "list_tasks",
    "measure",
    "register_task",
]

for _task in KNOWN:
    register_task(_task)
