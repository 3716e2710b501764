"""Claims of a paper, and the one rule that judges them.

A claim is a number per seed, a difference paired over the seeds that both sides have, and a bound
that the paper says it is beyond. At most five claims of a page are *primary*, named before the run.
Each of them is tested over its seeds and the samples of the test, by a mixed model, where both
sides keep the answer to every sample; else over its seeds alone, by Student's t with n - 1 degrees
of freedom. Tests are two-sided, and their p-values are adjusted by Holm's method. With five seeds
or more, and below 0.05, a claim is *reproduced* or *contradicted*, by the side of its bound on
which the mean lies; else it is *open*, and :func:`openness` says why. All other claims are
exploratory: their numbers are shown and nothing is concluded. What cannot be tried is *not testable
here*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .page import table
from .statistics import Summary, holm, paired, summarise

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
NOT_RUN = "open: not run"
FEW_SEEDS = "open: 1 to 4 seeds"
UNDECIDED = "open: undecided at 5 or more seeds"
EXPLORED = "open: larger than its unadjusted error, but not primary"
NO_TEST = "open: no number per seed"
UNTESTABLE = "not testable here"
COLLAPSE = 0.5  # of what is above chance: who loses more has collapsed
LEVEL, PRIMARY, SEEDS = 0.05, 5, 5
RULE = "[How claims are judged, and what ± means](claims.md)."

Sample = Callable[[Any], list[float]]


@dataclass(frozen=True)
class Claim:
    """What a paper says, and how it is tried here.

    Attributes:
        text, paper: the claim, and the paper's numbers for it.
        sample: results to one number per seed, such as :func:`better`'s differences.
        above: the claim is that the mean lies above this,
        below: or, where it is given, below this.
        primary: judged; else the claim is explored.
        shown: what else the results say of it, or of a claim without a number per seed, all.
        untestable: why it cannot be tried here.
        scale, digits: how a number is printed; by default in points, of shares.
    """

    text: str
    paper: str = ""
    sample: Sample | None = None
    above: float = 0.0
    below: float | None = None
    primary: bool = False
    shown: Callable[[Any], str] | None = None
    untestable: str = ""
    scale: float = 100.0
    digits: int = 2

    def __post_init__(self) -> None:
        if self.primary and self.sample is None:
            raise ValueError(f"{self.text}: a primary claim needs a number per seed (sample)")
        if self.untestable and (self.sample or self.shown):
            raise ValueError(f"{self.text}: either untestable or tried, not both")

    @property
    def bound(self) -> float:
        """What the mean is compared with."""
        return self.above if self.below is None else self.below


class Judged(NamedTuple):
    """A claim, what was found as text, p adjusted among the primary claims, and the verdict;
    exploratory claims have neither. ``found`` are the numbers behind the text.
    """

    claim: Claim
    here: str
    p: float | None
    verdict: str
    found: Summary | None = None


def better(section: str, a: str, b: str, metric: str = "accuracy") -> Sample:
    """Variant ``a`` less ``b`` in a section of trained runs."""
    return lambda found: paired(found.get(section, []), a, b, metric)


def judge(claims: Sequence[Claim], found: Any) -> list[Judged]:
    """Every claim by the rule, in their order.

    Raises:
        ValueError: more than five primary claims.
    """
    primary = [claim for claim in claims if claim.primary]
    if len(primary) > PRIMARY:
        raise ValueError(f"{len(primary)} primary claims; a page has at most {PRIMARY}")
    numbers = {
        id(claim): summarise(claim.sample(found), claim.bound) for claim in claims if claim.sample
    }
    tested = [numbers[id(claim)] for claim in primary]
    adjusted = holm([None if one is None else one.p for one in tested])
    level = dict(zip(map(id, primary), adjusted))
    return [_judged(claim, numbers.get(id(claim)), level.get(id(claim)), found) for claim in claims]


def _judged(claim: Claim, found: Summary | None, p: float | None, results: Any) -> Judged:
    parts = [claim.untestable]
    if claim.sample:
        parts.append("not run" if found is None else _number(claim, found))
    if claim.shown:
        parts.append(claim.shown(results))
    return Judged(claim, "; ".join(filter(None, parts)), p, _verdict(claim, found, p), found)


def openness(found: Summary | None, primary: bool) -> str:
    """Return why nothing is concluded: what was not run, too few seeds, a primary claim or a small
    difference that the seeds do not decide, or a difference beyond its unadjusted error that nobody
    named before the run.

    Example:
        >>> openness(None, True), openness(summarise([0.1]), True)
        ('open: not run', 'open: 1 to 4 seeds')
        >>> openness(summarise([0.10, 0.11, 0.10, 0.11, 0.10]), primary=False)
        'open: larger than its unadjusted error, but not primary'
    """
    if found is None:
        return NOT_RUN
    if found.n < SEEDS:
        return FEW_SEEDS
    beyond = found.p is not None and found.p < LEVEL
    return EXPLORED if beyond and not primary else UNDECIDED


def _number(claim: Claim, found: Summary) -> str:
    """Mean ± sample standard deviation, and how many seeds.

    Example:
        >>> _number(Claim("a beats b"), summarise([0.01, 0.02]))
        '+1.50 ± 0.71 (2 seeds)'
    """
    mean = f"{claim.scale * found.mean:+.{claim.digits}f}"
    if found.sd is None:
        return f"{mean} (1 seed)"
    counted = f"{found.n} seeds"
    if found.samples:
        counted += f", {found.samples:,} samples"
    return f"{mean} ± {claim.scale * found.sd:.{claim.digits}f} ({counted})"


def tested_over(found: Summary | None) -> str:
    """Return what a claim was tested over: seeds and samples, or seeds alone."""
    if found is None or found.p is None:
        return ""
    return "seeds and samples" if found.samples else "seeds alone"


def _verdict(claim: Claim, found: Summary | None, p: float | None) -> str:
    if claim.untestable:
        return UNTESTABLE
    if not claim.primary:
        return ""
    if found is None or found.n < SEEDS or p is None or p >= LEVEL:
        return openness(found, primary=True)
    beyond = found.mean > claim.above if claim.below is None else found.mean < claim.below
    return REPRODUCED if beyond else CONTRADICTED


def named(claims: Sequence[Claim], before: Sequence[str] | None) -> str:
    """Which primary claims were named before the runs: ``before``, as the file of results has kept
    them; None: a file from before the rule.

    Example:
        >>> named([Claim("a", sample=list, primary=True)], ["a"])
        'The primary claims were named before the runs.'
    """
    if not any(claim.primary for claim in claims):
        return "These runs are explored: none of their claims is primary."
    if before is None:
        return "The primary claims were named after the runs shown here, before any later ones."
    late = [claim.text for claim in claims if claim.primary and claim.text not in before]
    if late:
        return f"Named after the runs: {'; '.join(late)}."
    return "The primary claims were named before the runs."


def _chance(p: float | None) -> str:
    """A p-value as pages show it."""
    if p is None:
        return ""
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def claims_section(
    claims: Sequence[Claim], found: Any, file: dict[str, Any] | None = None, note: str = ""
) -> str:
    """A page's section of claims: :func:`claims_tables` below a title."""
    return f"## The paper's claims\n\n{claims_tables(claims, found, file, note)}\n"


def claims_tables(
    claims: Sequence[Claim], found: Any, file: dict[str, Any] | None = None, note: str = ""
) -> str:
    """Primary claims with their verdicts, then all others. ``file``: the file of results, for the
    claims that it was begun with.
    """
    judged = judge(claims, found)
    note = " ".join(filter(None, (note, named(claims, (file or {}).get("primary")))))
    first = [
        (j.claim.text, j.claim.paper, j.here, tested_over(j.found), _chance(j.p), j.verdict)
        for j in judged
        if j.claim.primary
    ]
    rest = [
        (j.claim.text, j.claim.paper, f"{j.here} (*{j.verdict}*)" if j.verdict else j.here)
        for j in judged
        if not j.claim.primary
    ]
    parts = [f"{RULE} {note}"]
    if first:
        heads = "primary claim", "paper", "here", "tested over", "p", "verdict"
        parts.append(table(heads, first))
    if rest:
        parts.append(table(("exploratory", "paper", "here"), rest))
    return "\n\n".join(parts)
