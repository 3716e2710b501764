"""docs/results/claims.md: the rule, and every claim."""

from __future__ import annotations

from collections import Counter

from ..kit.claims import CONTRADICTED, LEVEL, OPEN, PRIMARY, REPRODUCED, SEEDS, UNTESTABLE
from ..kit.page import table
from .rows import Row, answer, papers

VERDICTS = (REPRODUCED, CONTRADICTED, OPEN, UNTESTABLE)
PAGES = {
    "itnet": "[ITNet](itnet.md)",
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
(zero, or what the claim says) by Student's *t* with n − 1 degrees of freedom, two-sided. The p-values of a page's primary claims
are adjusted by Holm's method; a claim that was not run counts among them.

| verdict | when |
|---|---|
| reproduced | p < {level}, and the mean lies on the paper's side of the bound |
| contradicted | p < {level}, and it lies on the other side |
| open | anything else; fewer than {seeds} seeds decide nothing |
| not testable here | it needs data, hardware or weights that are not here |

**±** is the sample standard deviation over seeds, on every page: with n seeds, the standard error of a mean is √n times smaller.
Times have no ±: in brackets behind a median stands half the distance between the quartiles.

Where a page has two rounds of runs, as those of InfSA, the Arena and the
continuous transformer, its primary claims are those of the second, named before it; the first round is explored. On the other pages
they were named after the runs that are committed today, by what the papers say first.

## Every claim of the five papers

A row a claim: the paper's number, ours, and the verdict of the rule above. What is explored is open, whatever its number. What is
computed and not trained, an error against a definition or an order of convergence, has no chance in it: it is *reproduced* where all its
numbers keep the bound that the claim states, and *contradicted* where one does not; what a test of the suite proves is reproduced. Our data,
sizes and machine are those of the linked pages, not the papers': a verdict is about what was tried here. Times are of a CPU, the papers'
of GPUs. *Hours* are a rough estimate, on two cores, of what would decide the row with five seeds, at the size of the command where one
stands beside them.

{counts}

{tables}
"""


def paper_table(rows: list[Row]) -> str:
    """The claims of a paper."""
    lines = []
    for row in rows:
        given = row.given
        command = f"`{given['command']}`" if "command" in given else ""
        hours = f"{given['hours']:,g}" if "hours" in given else ""
        seeds = row.seeds or ""
        cells = (given["claim"], given["where"], given["paper"], row.here, seeds, row.verdict)
        lines.append([*(str(cell).replace("|", "\\|") for cell in cells), command, hours])
    heads = "claim", "where", "paper", "here", "seeds", "verdict", "command", "hours"
    return table(heads, lines)


def page() -> str:
    """The whole page."""
    found = {paper["name"]: [answer(given) for given in paper["rows"]] for paper in papers()}
    titles = {paper["name"]: paper["title"] for paper in papers()}
    counts = []
    for name, rows in found.items():
        of = Counter(row.verdict for row in rows)
        counts.append((PAGES[name], len(rows), *(of[verdict] for verdict in VERDICTS)))
    counts.append(("all", *(sum(line[i] for line in counts) for i in range(1, 6))))
    parts = [f"### {titles[name]}\n\n{paper_table(rows)}" for name, rows in found.items()]
    return TEXT.format(
        most={5: "five"}.get(PRIMARY, PRIMARY),
        level=LEVEL,
        seeds={5: "five"}.get(SEEDS, SEEDS),
        counts=table(("pages", "claims", *VERDICTS), counts),
        tables="\n\n".join(parts),
    )
