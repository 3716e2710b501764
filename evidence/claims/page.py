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
from .rows import Row, answer, papers, with_limits

OPEN_VERDICTS = (NOT_RUN, FEW_SEEDS, UNDECIDED, EXPLORED, NO_TEST)
VERDICTS = (REPRODUCED, CONTRADICTED, *OPEN_VERDICTS, UNTESTABLE)
PAGES = {
    "itnet": "[ITNet](itnet.md), [forces](physics.md), [all designs searched](physics-designs.md), [bodies](motion.md), [fields](fields.md)",
    "luna": "[LUNA](luna.md), [its kernel](luna-kernel.md), [encoders](luna-encoders.md), [the Arena](lra.md)",
    "ckconv": "[CKConv](ckconv.md), [irregular times](irregular.md)",
    "infsa": "[InfSA](infsa.md), [its contests](infsa-contests.md)",
    "continuous": "[the continuous transformer](continuous-transformer.md), [depth and scheme](evolution.md)",
}
TEXT = """# How claims are judged

<!-- Written by `python -m evidence page claims` from evidence/claims/claims.yaml and the files of evidence/results; edit those, not this page. -->

A page of results has at most {most} **primary** claims, which were named before the runs that judge them.
All others about trained models are exploratory: their numbers are shown, and nothing is concluded from them.

A claim is a number per seed: the difference of two variants over the seeds that both have, or a score. It is tested against its bound
(zero, or what the claim says), two-sided, in one of two ways:

- **Over seeds and samples**, if the answer of both variants to every test sample is stored (as in all runs begun since 28 November 2026). The
  difference d for seed s and sample i follows a mixed model, d = m + a_s + b_i + e, with random effects of seed, sample and residual. p is the largest of three p-values of Student's *t*:
  over the means of the S seeds, over the means of the I samples, and over both. The last has, with the mean squares M_a, M_b and M_e of these effects, the variance
  (M_a + M_b − M_e) / (S I) and Satterthwaite's degrees of freedom. A difference that depends on a few samples of a small test set is then not significant, however
  well the seeds agree: of 370 samples, six are 1.6 points. (Until 30 November 2026 the third p-value counted alone. Its degrees of freedom can be too large with few seeds; one verdict,
  on rollouts under gravity, became open.)
- **Over the seeds alone**, if the runs are older and no answers are stored: Student's *t* with n − 1 degrees of freedom. Such rows list
  the number of seeds but no samples. They predict the result of another seed on the same test set, not on another test set.

The p-values of a page's primary claims are adjusted by Holm's method, in which claims that were not run are counted too. Nothing is adjusted over
the several pages of one paper, so that four pages of true null hypotheses have a false rejection with a probability of up to 20%.

| verdict | when |
|---|---|
| reproduced | the claim is primary, p < {level} after the adjustment, and the mean lies on the paper's side of the bound |
| contradicted | the same, and the mean lies on the other side |
| open: not run | there are no numbers yet |
| open: 1 to 4 seeds | fewer than {seeds} seeds decide nothing |
| open: undecided at 5 or more seeds | p (after the adjustment, if the claim is primary) is {level} or more, or a score has no bound to be compared with |
| open: p < {level} before any adjustment, but not primary | nothing is concluded from a claim that is not primary |
| open: no number per seed | a picture, or numbers that are not one per seed |
| not testable here | it needs data, hardware or weights that are not here |

A model **collapses** if it loses more than {collapse:.0%} of its accuracy above chance; chance is one over the number of classes.

If a claim is tested again, this is done with new seeds, which are named in the code before the first of their runs. The claim is judged on the
new seeds alone or, until all of them have been run, on those of the first test. No seed is added after a look at the result. (Sections named *tuned*, older than this rule, reused
the first seeds of an untuned look among theirs.)

**±** is the sample standard deviation over seeds, unless a page says otherwise; with n seeds, the standard error of a mean is √n times smaller.
Measured times of operators and models are medians, followed in brackets by half the interquartile range; seconds and minutes of trainings have ±, as scores do.

Some pages have two rounds of runs (InfSA, the Arena, the continuous transformer). Their primary claims are those of the second round and were named before it; the first round is exploratory.
Claims that were named after their runs are exploratory. These are every claim on CKConv's page, those about images on ITNet's, and all about conversions but the test of equivalence. (Until 1 December
2026 some of them were primary, with a remark: four were *reproduced*.) All primary claims were named before their first run.

## Every claim of the five papers

Each row is a claim, with the paper's number, ours, and the verdict by the rule above.

- Exploratory claims are open, whatever their number.
- Deterministic numbers, such as an error against a definition or an order of convergence, need no test: the claim is *reproduced* if all its
  numbers satisfy the bound in brackets behind them, and *contradicted* if one does not. A unit test, on examples, reproduces or contradicts a claim. A number that is extrapolated
  decides nothing.
- Where the paper's words have a number (*faster*: 1; *13 times*: 13), the bound is that number. All other bounds are ours: an exponent of at most 1.1 counts as linear, and a measured order of at least
  0.9 as first order. They are one-sided, so smaller exponents and higher orders satisfy them too.
- Times and their ratios are medians on one CPU and vary a little: their verdict says on which side of the bound they lie here, and nothing about a GPU.
- Rows *beyond the paper* are claims of ours: *reproduced* means that they hold here.
- Our data, sizes and machine are those of the linked pages, not the papers', so a verdict is about the setting here. Our times are those of a CPU, the papers'
  those of GPUs.
- *Hours* is a rough estimate of the time on two cores that would decide the row with five seeds, at the size of the command in the same row, if there is one.
- A row that is not run and has no command needs a configuration that is not written. It has no number, and nothing is concluded from it.

{counts}

Almost all conclusions about the papers' own claims come from computations, measured times and unit tests. Those about trained models would need more seeds, larger data or sizes than are here.

{tables}

## Contests that are not run

Each contest would compare models on a task where an operator should win, with learning rates tuned for each model, at least five new seeds, equal parameters and, in a second table,
equal time. Contests that have commands are in the tables above.

- **ITNet**: dense prediction.
- **CKConv**: 30, 50 and 70% lost on raw speech.
- **LUNA**: Retrieval and Pathfinder.
- **InfSA, pure and linear**: *pure above softmax* with ten fresh seeds and the first test's 20 epochs; the [contests](infsa-contests.md) have 8; longer
  training at 4,096 patches.
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

        verdict = with_limits(row.verdict, row.limits)

        cells = (entry["claim"], entry["where"], entry["paper"], row.here, seeds, verdict)
        # A bar would end the cell of a Markdown table.
        escaped = [str(cell).replace("|", "\\|") for cell in cells]
        lines.append([*escaped, command, hours])
    heads = "claim", "where", "paper", "here", "seeds (× samples)", "verdict", "command", "hours"
    return table(heads, lines)


def count_table(answers: dict[str, list[Row]]) -> str:
    """Return a table that counts the verdicts of each paper, of all, and of three kinds of claims."""
    every = [row for rows in answers.values() for row in rows]
    papers_own = [row for row in every if not row.beyond]
    groups = {PAGES[name]: rows for name, rows in answers.items()}
    groups["all"] = every
    groups["of all, the papers' own: computed, timed or unit-tested"] = [
        row for row in papers_own if row.computed
    ]
    groups["of all, the papers' own: trained models"] = [
        row for row in papers_own if not row.computed
    ]
    groups["of all, beyond the papers"] = [row for row in every if row.beyond]

    lines = []
    for name, rows in groups.items():
        verdicts = Counter(row.verdict for row in rows)
        lines.append((name, len(rows), *(verdicts[verdict] for verdict in VERDICTS)))
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
