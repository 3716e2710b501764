"""Page docs/choosing.md, from the contest, the comparison, times, cost models and probes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from fredholm.domain import Domain
from fredholm.errors import FredholmError
from fredholm.lab.compare import find_task
from fredholm.lab.compare.tables import best_first, score, summary, to_markdown
from fredholm.lab.report.comparison import comparison_page
from fredholm.lab.training.metrics import mean_and_sd
from fredholm.models import list_baselines
from fredholm.models.baselines import make_baseline
from fredholm.models.bodies.backbone import suited
from fredholm.operators import create_operator, list_operators

from ..kit.machine import machine_line
from ..kit.page import load, table
from ..kit.statistics import paired, summarise
from ..kit.subject import Options
from ..performance.costs import COSTS
from .contest import FILE
from .decide import ABOUT, decision_table, element_tables, omegas
from .places import places
from .speed import FILE as SPEED

COMMAND = "fredholm compare --task {tasks} --seeds {seeds} --out runs/compare"
UNMEASURED = "not measured"
"""Cell of an operator that is newer than the results."""
LENGTHS = (256, 1024, 4096, 16384)
DIM, HEADS = 128, 4
OPTIONS: dict[str, dict[str, Any]] = {
    "itnet": {"width": 32},
    "itnet_low_rank": {"width": 32},
    "ckconv": {"width": 32},
}
WHAT = {
    "convolution": "a few neighbours on a grid",
    "gru": "a state passed from point to point, in index order",
    "lstm": "the same, with a memory",
    "ckconv": "a learned function of the displacement: one kernel as long as the signal",
    "infsa": "one hop over a token graph, divided by one norm",
    "itnet": "a matrix for every pair of points, a network of positions and features",
    "itnet_low_rank": "the same, factored: two networks, each evaluated once per point",
    "linear_attention": "a fixed feature map instead of the exponential",
    "linear_infsa": "one centre per head that every point reads",
    "luna": "a learned feature map instead of the exponential",
    "softmax": "attention",
}


def probes() -> dict[str, Callable[[Any, torch.Tensor], object]]:
    """Return calls of an operator by name, each of which it may refuse."""
    n = 6
    mask = torch.ones(n, n, dtype=torch.bool).tril(1)
    times = torch.tensor([0.0, 0.4, 1.0, 2.5, 2.7, 4.0])

    def onto(op: Any, u: torch.Tensor) -> object:
        return op(u, Domain.line(n), query=u[:, :3], query_domain=Domain.line(3))

    return {
        "points without a grid": lambda op, u: op(u, suited(op, Domain.points(torch.rand(n, 1)))),
        "timestamps": lambda op, u: op(u, Domain.timestamps(times, causal=False)),
        "pair masks, graphs": lambda op, u: op(u, suited(op, Domain.line(n)).replace(pairs=mask)),
        "causal order": lambda op, u: op(u, suited(op, Domain.line(n, causal=True))),
        "output at other points": onto,
    }


def make(name: str, *, causal: bool) -> Any:
    """Make an operator or baseline; only baselines depend on the order when they are made."""
    if name in list_baselines():
        return make_baseline(name, 8, 2, position_dim=1, causal=causal)
    return create_operator(name, 8, 2)


@cache
def accepted_probes(name: str) -> dict[str, bool]:
    """Return for each probe whether an operator accepts it."""
    torch.manual_seed(0)
    accepted: dict[str, bool] = {}
    for title, probe in probes().items():
        operator, u = make(name, causal="causal" in title), torch.randn(1, 6, 8)
        try:
            with torch.no_grad():
                probe(operator, u)
            accepted[title] = True
        except FredholmError:
            accepted[title] = False
    return accepted


@cache
def state_growth(name: str) -> str:
    """Describe how the state of a causal step grows, by its size after 4 and after 16 points."""
    torch.manual_seed(0)
    operator = make(name, causal=True)
    sizes: list[int] = []
    try:
        with torch.no_grad():
            for n in (4, 16):
                state = operator.init_state(1, suited(operator, Domain.line(16, causal=True)))
                for _ in range(n):
                    _, state = operator.step(torch.randn(1, 8), state)
                sizes.append(sum(t.numel() for t in state.keys.values()))
    except FredholmError:
        return "no step"
    short, long = sizes
    return "fixed" if short == long else "grows with N"


def domain_table() -> str:
    """Return a table of the domains that each operator accepts, and of its causal state.

    The operators are called while the page is written.
    """
    lines = []
    for name in [*list_operators(), *list_baselines()]:
        cells = ["yes" if yes else "refused" for yes in accepted_probes(name).values()]
        lines.append((name, WHAT.get(name, ""), *cells, state_growth(name)))
    return table(("operator", "what interacts", *probes(), "state of a causal step"), lines)


def accuracy_table(results: dict[str, Any]) -> str:
    """Return a table of all operators on all tasks, with the mean rank of each.

    The best score of a task is bold. Operators without any measurement come last.
    """
    rows = summary(results)
    measured = [row for row in rows if row["mean"] is not None]
    with_scores = {row["task"] for row in measured}
    tasks = [task["name"] for task in results["tasks"] if task["name"] in with_scores]
    names = list(dict.fromkeys(row["operator"] for row in rows))

    ranks: dict[str, list[float]] = {name: [] for name in names}
    best: dict[str, str] = {}
    for task in tasks:
        order = best_first([row for row in measured if row["task"] == task])
        best[task] = order[0]["operator"]
        # Ranks among fewer operators are smaller and must not enter the mean.
        if len(order) == len(names):
            for rank, row in enumerate(order, 1):
                ranks[row["operator"]].append(float(rank))
    mean_ranks = {name: mean_and_sd(ranks[name])[0] for name in names}

    row_of = {(row["task"], row["operator"]): row for row in rows}
    lines = []
    for name in sorted(names, key=lambda name: mean_ranks[name] or 99.0):
        cells = []
        for task in tasks:
            cell = ""
            if (task, name) in row_of:
                cell = score(row_of[task, name])
            if best[task] == name:
                cell = f"**{cell}**"
            cells.append(cell)
        mean = mean_ranks[name]
        rank = "" if mean is None else f"{mean:.1f}"
        lines.append((name, *cells, rank))
    for name in sorted({*list_operators()} - {*names}):
        lines.append((name, *[UNMEASURED] * len(tasks), ""))
    return table(("operator", *tasks, "mean rank"), lines)


def winners(results: dict[str, Any]) -> str:
    """List the best classical layer and the best of ours on each task, and their difference.

    The difference is paired over the seeds that both have. Nothing is concluded from it because
    there are many tasks.
    """
    classical = {"softmax", *list_baselines()}
    rows = [row for row in summary(results) if row["mean"] is not None]
    lines = []
    for task in results["tasks"]:
        order = best_first([row for row in rows if row["task"] == task["name"]])
        theirs = next((r for r in order if r["operator"].split()[0] in classical), None)
        ours = next((r for r in order if r["operator"].split()[0] not in classical), None)
        if theirs is None or ours is None:
            continue
        first, second = sorted((theirs, ours), key=order.index)
        kind = "classical layer" if second is theirs else "other operator"
        lines.append(
            f"- **{task['name']}** ({task['title']}): {first['operator']} {score(first)}, then "
            f"{second['operator']} {score(second)}, the best {kind}; "
            f"{gap(task, first['operator'], second['operator'])}."
        )
    return "\n".join(lines)


def gap(task: dict[str, Any], first: str, second: str) -> str:
    """Describe the difference of two operators on a task, paired by seed."""
    runs = []
    for row in task["rows"]:
        for run in row["runs"]:
            if "error" not in run:
                runs.append({"variant": row["operator"], **run})
    found = summarise(paired(runs, first, second, task["metric"]))
    if found is None:
        return "no seed in common"

    def shown(number: float) -> str:
        if task["metric"] == "accuracy":
            return f"{100 * number:.1f}"
        return f"{number:.2g}"

    if found.sd is None:
        return f"difference {shown(abs(found.mean))}, one seed"
    return f"difference {shown(abs(found.mean))} ± {shown(found.sd)} over {found.n} seeds"


def flops_table() -> str:
    """Return a table of predicted MFLOPs against N, and of the N where they fall below attention."""
    lines = []
    for name in sorted(COSTS):
        # CKConv does not have heads.
        heads = 1 if name == "ckconv" else HEADS

        def cost(n: int, name: str = name, heads: int = heads) -> float:
            return COSTS[name](n, DIM, heads, **OPTIONS.get(name, {})).flops

        when = "itself"
        if name != "softmax":
            when = _first_below(cost)
        lines.append((name, *(f"{cost(n) / 1e6:,.0f}" for n in LENGTHS), when))
    for name in sorted({*list_operators()} - {*COSTS}):
        lines.append((name, *[UNMEASURED] * len(LENGTHS), ""))
    sizes = [f"N = {n:,}" for n in LENGTHS]
    return table(("operator", *sizes, "fewer than softmax from N ="), lines)


def _first_below(cost: Callable[[int], float]) -> str:
    """Return the smallest N from which a cost stays below softmax's.

    N is 2^k or 3·2^(k-1).
    """
    lengths: list[int] = []
    for k in range(3, 18):
        lengths += [2**k, 3 * 2 ** (k - 1)]
    above = [n for n in lengths if cost(n) >= COSTS["softmax"](n, DIM, HEADS).flops]
    if not above:
        return "any"
    later = [n for n in lengths if n > max(above)]
    if not later:
        return "never"
    return f"{later[0]:,}"


def speed_text(speed: dict[str, Any] | None) -> str:
    """Return the tables of measured times, or a command to measure them."""
    if not speed:
        return "Times are not measured yet: `python -m evidence time choosing --runs runs/compare` on a quiet machine.\n"
    lines = []
    for curve in speed["scaling"]:
        pairs = zip(curve["lengths"], curve["milliseconds"])
        times = ", ".join(f"{n:,}: {ms:.2f}" for n, ms in pairs)
        power = "" if curve["exponent"] is None else f"{curve['exponent']:.2f}"
        when = _when(curve, speed["reference"])
        lines.append((curve["operator"], curve["direction"], power, when, times))
    heads = "operator", "direction", "exponent", "faster than softmax from", "milliseconds at N"
    return (
        "Time of a training step in the comparison, and by how many MB it raises the memory of the "
        f"process:\n\n{step_table(speed)}\n\n"
        f"Time of one operator of width {speed['dim']} on one signal, against N. A step is forward and "
        f"backward. The time grows as N to the exponent:\n\n{table(heads, lines)}\n\n"
        f"{machine_line(speed['machine'])} Command: "
        "`python -m evidence time choosing --runs runs/compare`.\n"
    )


def step_table(speed: dict[str, Any]) -> str:
    """Return a table of training steps, with one row per operator and one column per task."""
    tasks = list(dict.fromkeys(row["task"] for row in speed["steps"]))
    operators = list(dict.fromkeys(row["operator"] for row in speed["steps"]))
    found = {(row["operator"], row["task"]): row for row in speed["steps"]}
    lines = []
    for operator in operators:
        cells = []
        for task in tasks:
            row = found.get((operator, task))
            cell = ""
            if row is not None:
                cell = f"{row['milliseconds']:.1f} ms"
            if row is not None and row["megabytes"]:
                cell += f", {row['megabytes']:.1f} MB"
            cells.append(cell)
        lines.append((operator, *cells))
    return table(("operator", *tasks), lines)


def _when(curve: dict[str, Any], reference: str) -> str:
    """Describe the N from which a curve is below the reference."""
    cross = curve["crossover"]
    if curve["operator"] == reference:
        return "itself"
    if cross is None:
        return "not up to the longest N"
    if cross == 0:
        return "the shortest N"
    return f"N ≈ {cross:,.0f}"


def page() -> str:
    """Return the text of docs/choosing.md."""
    results, speed, elements = load("compare.json"), load(SPEED), load(FILE)
    seeds = max((row["n"] for row in summary(results)), default=0)
    tasks = ",".join(task["name"] for task in results["tasks"])
    return f"""# Which operator

<!-- Written by `python -m evidence page choosing`; edit the code, not this page. -->

Find your kind of data in this table to see which operators to try first. Then compare them on your own data: `fredholm compare mydata/`
([how it works](training.md#which-operator)), or on your own recipe:
`fredholm compare --task my-recipe.yaml --operators softmax,luna,convolution --seeds 3`.

{decision_table(elements)}

{ABOUT}
All results on this page come from small models, with tens of thousands of parameters (a quarter of a million on movie-reviews) and minutes of
training. They show what an operator does with little data and compute, but not at scale.

## Strengths and weaknesses

For each operator: where it is ahead, where it is behind, its price, and the claims that show both. Numbers are from the pages of
[results](results/index.md), in points of accuracy or of the area under a curve (ROC-AUC, LeRF, MoRF). ITNet's are in percent, of the relative error on Darcy's flow and of the relative squared
error on charges and bodies; both errors follow, ITNet's first. Times are ratios. A positive number speaks for the claim, except where a bound follows (*claimed: below +1.00*): there the number is a loss, and smaller is better.
Each claim has a verdict by [the rule for claims](results/claims.md): only *reproduced* and *contradicted* are conclusions. Sentences behind *Open*
describe the runs and are not conclusions: *ahead* means p < 0.05 before any adjustment, a *better mean* not even that.

*Designs searched* is [a contest on charges](results/physics-designs.md) in which ITNet, as on bodies, reads displacements; in the claim without these words it reads absolute positions. Of the models of lost and resampled series, *gaps* (CKCNN) has grid points without a value where samples are lost, *no gaps* (GRU, TCN) reads zero as the time since the last sample, *resampled* is interpolated
to the rate of training, and *filled* is interpolated over what was lost. *Pictures* in evolution's claims are clothes, but handwritten digits where models are *trained with 2 to 8 steps*.

{places(speed)}

## The tasks of the first table

{element_tables(elements)}

## By data

Test scores in percent, mean ± standard deviation over at most {seeds} seeds. All operators have the same backbone, data, optimizer, schedule and number
of parameters (which determines their widths). Only the sizes and frequencies of `small`, as above, differ between operators, and CKConv's ω0
where the task sets it ({omegas(map(find_task, tasks.split(",")))}); elsewhere ω0 is the default.

{accuracy_table(results)}

{winners(results)}

The next two tables show what the operators of this library add: domains that a convolution cannot use, masks that a recurrence cannot use, and
costs that grow more slowly with N than that of softmax attention.

## By domain

{domain_table()}

## By length

Predicted MFLOPs of the forward pass of one operator of width {DIM} with {HEADS} heads (itnet and itnet_low_rank with 32 hidden units). For times on
a CPU, see below and [performance](results/performance.md).

{flops_table()}

{speed_text(speed)}
## By hardware

The tables in [performance](results/performance.md) show where other libraries are faster than this one on a CPU, and how far every operator is
from the limit of the machine.

## The comparison in full

{to_markdown(results)}
Command: `{COMMAND.format(tasks=tasks, seeds=seeds)}`, then `python -m evidence time choosing --runs runs/compare` on a quiet machine, and
`python -m evidence run choosing take --runs runs/compare`. The page that the command writes shows learning curves and scatter plots;
`python -m evidence run choosing html` writes it from the committed results.
"""


def take(options: Options) -> None:
    """Copy the files of ``fredholm compare --out FOLDER`` from ``--runs FOLDER`` to the results."""
    for name in ("compare.json", "compare.csv"):
        if (options.runs / name).is_file():
            shutil.copyfile(options.runs / name, options.results / name)


def write_html(options: Options) -> None:
    """Write the comparison's HTML page, ``compare.html`` in ``--runs``, from committed results."""
    results = load("compare.json")
    options.runs.mkdir(parents=True, exist_ok=True)
    text = comparison_page(results, summary(results))
    (options.runs / "compare.html").write_text(text, encoding="utf-8")
