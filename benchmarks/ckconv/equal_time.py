"""Copy memory and the adding problem at T = 3,000: a continuous kernel beside a GRU and a
convolution, the same parameters and the same minutes of training each.
"""

from __future__ import annotations

from fredholm.training.comparison import ComparedTask, Setting, compare, find_task, list_tasks
from fredholm.training.comparison import register_task as register
from fredholm.training.comparison.tables import to_markdown

from ..kit.grid import say
from ..kit.page import load, save
from ..kit.subject import Options

FILE, LENGTH, MINUTES = "ckconv-equal-time.json", 3000, 60.0
OMEGAS = {"copy-memory": 43.65, "adding": 2.23}
"""The paper's, at this length."""
OPERATORS = "ckconv,gru,convolution"


def tasks() -> list[str]:
    """The two tasks of the comparison at the length, by name; made known where they are not."""
    names = []
    for name, key in (("copy-memory", "delay"), ("adding", "length")):
        short, long = find_task(name), f"{name}-{LENGTH}"
        if long not in list_tasks():
            others = [text for text in short.overrides if "data.options" not in text]
            register(
                ComparedTask(
                    long,
                    f"{short.title.partition(' after ')[0].partition(' among ')[0]}, T = {LENGTH:,}",
                    short.recipe,
                    (*others, f"data.options={{{key}: {LENGTH}}}"),
                    {"ckconv": {"omega": OMEGAS[name]}},
                )
            )
        names.append(long)
    return names


def run(options: Options) -> None:
    """Train all of them; a training that is there is read."""
    minutes = 0.02 if options.small else MINUTES
    setting = Setting("time", minutes, tuple(c for c in options.trial if "epochs" not in c))
    place = options.runs / "equal-time"
    found = compare(
        tasks(), OPERATORS, place, setting=setting, seeds=options.seeds or 1, report=say
    )
    save(found, FILE, options.results)


def section() -> str:
    """The part of docs/results/ckconv.md."""
    found, command = load(FILE), "`python -m benchmarks run ckconv equal-time`"
    if found is None:
        return f"Not measured yet: {command}.\n"
    return f"{MINUTES:.0f} minutes of training each, {command}\n\n{to_markdown(found)}\n"
