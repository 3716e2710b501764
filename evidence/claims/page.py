"""Page docs/results/claims.md: the rule that judges claims, and a table of all claims."""

from __future__ import annotations

from collections import Counter

from ..kit.claims import (
    COLLAPSE,
    CONTRADICTED,
    EXPLORED,
    FEW_SEEDS,
    LEVEL,
    NO_TEST,
    NOT_RUN,
    PRIMARY,
    REPRODUCED,
    SEEDS,
    UNDECIDED,
    UNTESTABLE,
)
from ..kit.page import table
from .rows import Row, answer, papers

OPEN_VERDICTS = (NOT_RUN, FEW_SEEDS, UNDECIDED, EXPLORED, NO_TEST)
VERDICTS = (REPRODUCED, CONTRADICTED, *OPEN_VERDICTS, UNTESTABLE)
PAGES = {
    "itnet": "[ITNet](itnet.md), [forces](physics.md)",
    "luna": "[LUNA](luna.md), [its kernel](luna-kernel.md), [the Arena](lra.md)",
    "ckconv": "[CKConv](ckconv.md)",
    "infsa": "[InfSA](infsa.md)",
    "continuous": "[the continuous transformer](continuous-transformer.md)",
}
TEXT = """# How claims are judged

<!-- Written by `python -m evidence page claims` from evidence/claims/claims.yaml and the files of evidence/results; edit those, not this page. -->

A page of results has at most {most} **primary** claims of its paper, named before the runs that judge them. All others are exploratory:
their numbers are shown, and nothing is concluded from them.

A claim is a number per seed: the difference of two variants over the seeds that both have, or a score. It is tested against its bound
(zero, or what the claim says), two-sided, in one of two ways:

- **Over seeds and samples**, where both variants keep the answer to every test sample (all runs begun since 28 November 2026 do). The
  numbers d of seed s and sample i follow a mixed model, d = m + a_s + b_i + e, with random seeds, samples and remainder. The variance
  of the mean m is (M_a + M_b − M_e) / (S I) of their mean squares, never less than what the seeds alone or the samples alone show, with
  Satterthwaite's degrees of freedom. A difference that rests on a few samples of a small test set is then not significant, however
  well the seeds agree: on 370 samples, six are 1.6 points.
- **Over the seeds alone**, where the runs are older and keep no answers: Student's *t* with n − 1 degrees of freedom. Such rows name
  their seeds and no samples. They say what another seed would give on the same test set, not what another test set would.

The p-values of a page's primary claims are adjusted by Holm's method; a claim that was not run counts among them.

| verdict | when |
|---|---|
| reproduced | p < {level}, and the mean lies on the paper's side of the bound |
| contradicted | p < {level}, and it lies on the other side |
| open: not run | there are no numbers yet |
| open: 1 to 4 seeds | fewer than {seeds} seeds decide nothing |
| open: undecided at 5 or more seeds | p is {level} or more, or a score has no bound to be compared with |
| open: larger than its unadjusted error, but not primary | p < {level} before any adjustment, of a claim that nobody named before the run |
| open: no number per seed | a picture, or numbers that are not one per seed |
| not testable here | it needs data, hardware or weights that are not here |

A model **collapses** where it loses more than {collapse:.0%} of what it has above chance; chance is one over the number of classes.

Seeds of a claim that is run again are fresh ones, named in the code before the first of their runs, and it is judged on all of
them or, until they are there, on those of the first look: no seed is added behind a look.

**±** is the sample standard deviation over seeds, on every page: with n seeds, the standard error of a mean is √n times smaller.
Times have no ±: in brackets behind a median stands half the distance between the quartiles.

Where a page has two rounds of runs, as those of InfSA, the Arena and the
continuous transformer, its primary claims are those of the second, named before it; the first round is explored. Those about forces
between particles were named before their first run. On the other pages they were named after the runs that are committed today, by
what the papers say first.

## Every claim of the five papers

One row per claim: the paper's number, ours, and the verdict of the rule above. What is explored is open, whatever its number. What is
computed and not trained, an error against a definition or an order of convergence, has no chance in it: it is *reproduced* where all its
numbers keep the bound that the claim states, and *contradicted* where one does not; what a test of the suite proves is reproduced. Our data,
sizes and machine are those of the linked pages, not the papers': a verdict is about what was tried here. Times are of a CPU, the papers'
of GPUs. *Hours* are a rough estimate, on two cores, of what would decide the row with five seeds, at the size of the command where one
stands beside them.

{counts}

{tables}

## Contests that are not run

Each asks where an operator should win, with rates tuned for each model, at least five fresh seeds, equal parameters and, in a second table,
equal time. Of these only forces between charges [were run](physics.md).

- **ITNet**: springs and gravity with unknown masses, and rollouts of 50 steps; Darcy's flow at 16 and 32, after a search over bandwidth,
  frequencies, normalisation and depth, beside the FNO and GNO of `neuraloperator`; dense prediction.
- **CKConv**: memory of lags and gaps that cannot be resampled, beside GRU-D, NCDE and MiniROCKET on filled series; 30, 50 and 70% lost on
  raw speech.
- **LUNA**: quality per millisecond of long encoders beside Hedgehog and softmax, up to 8,192 tokens; an equivalence test of conversions at
  99.5% of the teacher, with 10 seeds and 2,000 samples; Retrieval and Pathfinder.
- **InfSA, pure and linear**: accuracy at equal time on canvases of 1,024 to 4,096 small patches; *pure above softmax* with ten fresh seeds.
- **Evolution**: Strang against Lie at equal evaluations of attention; one set of weights beside encoders trained for each depth has a
  command in the table above.
"""


def paper_table(rows: list[Row]) -> str:
    """Return the table of one paper's claims."""
    lines = []
    for row in rows:
        entry = row.entry
        command, hours = "", ""
        if "command" in entry:
            command = f"`{entry['command']}`"
        if "hours" in entry:
            hours = f"{entry['hours']:,g}"
        seeds = str(row.seeds or "")
        if row.samples:
            seeds += f" × {row.samples:,}"

        cells = (entry["claim"], entry["where"], entry["paper"], row.here, seeds, row.verdict)
        # A bar would end the cell of a Markdown table.
        escaped = [str(cell).replace("|", "\\|") for cell in cells]
        lines.append([*escaped, command, hours])
    heads = "claim", "where", "paper", "here", "seeds (× samples)", "verdict", "command", "hours"
    return table(heads, lines)


def count_table(answers: dict[str, list[Row]]) -> str:
    """Return a table that counts the verdicts of each paper and of all."""
    lines = []
    total: Counter[str] = Counter()
    for name, rows in answers.items():
        verdicts = Counter(row.verdict for row in rows)
        lines.append((PAGES[name], len(rows), *(verdicts[verdict] for verdict in VERDICTS)))
        total += verdicts
    claims = sum(len(rows) for rows in answers.values())
    lines.append(("all", claims, *(total[verdict] for verdict in VERDICTS)))
    return table(("pages", "claims", *VERDICTS), lines)


def page() -> str:
    """Return the text of the page."""
    answers: dict[str, list[Row]] = {}
    parts = []
    for paper in papers():
        rows = [answer(entry) for entry in paper["rows"]]
        answers[paper["name"]] = rows
        parts.append(f"### {paper['title']}\n\n{paper_table(rows)}")

    return TEXT.format(
        most={5: "five"}.get(PRIMARY, PRIMARY),
        level=LEVEL,
        collapse=COLLAPSE,
        seeds={5: "five"}.get(SEEDS, SEEDS),
        counts=count_table(answers),
        tables="\n\n".join(parts),
    )
