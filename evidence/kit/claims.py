"""Claims of a paper, and the one rule that judges them.

A claim compares one number per seed (often a difference of two variants, paired over the seeds that
both have) with a bound from the paper. At most five claims of a page are *primary*, named before
the run. Where both sides have the answer to every test sample, a primary claim is tested over seeds
and samples by a mixed model; otherwise over its seeds alone, by Student's t with n - 1 degrees of
freedom. Tests are two-sided, and Holm's method adjusts their p-values. With five seeds or more and
p below 0.05, a claim is *reproduced* or *contradicted*, depending on the side of its bound on which
the mean lies; otherwise it is *open*, for one of the reasons of :func:`openness`. All other claims
are exploratory: their numbers are shown and nothing is concluded. Claims that cannot be tried are
*not testable here*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, NamedTuple

from .page import table
from .statistics import Rows, Summary, holm, paired, summarise

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"
NOT_RUN = "open: not run"
FEW_SEEDS = "open: 1 to 4 seeds"
UNDECIDED = "open: undecided at 5 or more seeds"
EXPLORED = "open: p < 0.05 before any adjustment, but not primary"
NO_TEST = "open: no number per seed"
UNTESTABLE = "not testable here"
COLLAPSE = 0.5
"""Share of the accuracy above chance. A model that loses more has collapsed."""
LEVEL = 0.05
PRIMARY = 5
"""Largest number of primary claims of a page."""
SEEDS = 5
"""Smallest number of seeds that decides a primary claim."""
RULE = "[How claims are judged, and what ± means](claims.md)."

Sample = Callable[[Any], list[float]]


@dataclass(frozen=True)
class Claim:
    """One statement of a paper and its test on our results.

    Attributes:
        text: the claim.
        paper: the paper's numbers for it.
        sample: maps results to one number per seed, for example :func:`better`.
        above: bound of a claim that the mean is larger.
        below: bound of a claim that the mean is smaller; replaces ``above`` if it is not None.
        primary: whether the claim is judged; otherwise it is exploratory.
        shown: maps results to text that is printed after the numbers, or instead of them if the
            claim does not have a number per seed.
        untestable: reason why the claim cannot be tried here.
        scale, digits: factor and decimals of printed numbers; by default shares in percent.
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
            raise ValueError(
                f"{self.text}: expected a sample of a primary claim, got none; add a function that "
                f"returns a number per seed"
            )
        if self.untestable and (self.sample or self.shown):
            raise ValueError(
                f"{self.text}: expected untestable or numbers, got both; remove one of them"
            )

    @property
    def bound(self) -> float:
        """The number that the mean is compared with."""
        return self.above if self.below is None else self.below


class Judged(NamedTuple):
    """The result of :func:`judge` for one claim.

    Attributes:
        claim: the claim.
        here: our result as text.
        p: p-value, adjusted among the primary claims; None for an exploratory claim.
        verdict: one of the verdicts of this module; empty for an exploratory claim.
        found: the numbers behind the text.
    """

    claim: Claim
    here: str
    p: float | None
    verdict: str
    found: Summary | None = None


def better(section: str, a: str, b: str, metric: str = "accuracy") -> Sample:
    """Return a sample: variant ``a`` minus ``b`` in a section of trained runs, per seed."""
    return lambda found: paired(found.get(section, []), a, b, metric)


def means(runs: str, a: str, b: str, metric: str) -> Callable[[dict[str, Rows]], str]:
    """Return a function that prints the mean errors of two variants, over seeds that both have.

    Beside a difference, they show how large it is: 0.3 points may be a tenth of an error, or nine
    tenths of it.

    Example:
        >>> rows = [{"variant": v, "seed": 0, "error": x} for v, x in (("a", 0.01), ("b", 0.0325))]
        >>> means("tuned", "a", "b", "error")({"tuned": rows})
        'errors 1.00 and 3.25'
    """

    def shown(found: dict[str, Rows]) -> str:
        by_variant: dict[str, dict[int, float]] = {a: {}, b: {}}
        for row in found.get(runs, []):
            if row["variant"] in by_variant:
                by_variant[row["variant"]][row["seed"]] = row[metric]
        seeds = by_variant[a].keys() & by_variant[b].keys()
        if not seeds:
            return ""
        one, other = (100 * fmean(values[seed] for seed in seeds) for values in by_variant.values())
        return f"errors {one:.2f} and {other:.2f}"

    return shown


def judge(claims: Sequence[Claim], found: Any) -> list[Judged]:
    """Judge every claim by the rule of this module, in their order.

    Raises:
        ValueError: more than five primary claims.
    """
    primary = [claim for claim in claims if claim.primary]
    if len(primary) > PRIMARY:
        raise ValueError(
            f"primary claims of a page: expected at most {PRIMARY}, got {len(primary)}; explore "
            f"the others"
        )

    # Claims hold functions that need not be hashable, so they are looked up by their identity.
    numbers: dict[int, Summary | None] = {}
    for claim in claims:
        if claim.sample:
            numbers[id(claim)] = summarise(claim.sample(found), claim.bound)

    p_values: list[float | None] = []
    for claim in primary:
        summary = numbers[id(claim)]
        p_values.append(summary and summary.p)
    adjusted = dict(zip(map(id, primary), holm(p_values)))
    return [
        _judged(claim, numbers.get(id(claim)), adjusted.get(id(claim)), found) for claim in claims
    ]


def _judged(claim: Claim, found: Summary | None, p: float | None, results: Any) -> Judged:
    """Put together the text and the verdict of a claim; ``p`` is the adjusted p-value."""
    parts = [claim.untestable]
    if claim.sample and found is None:
        parts.append("not run")
    elif found is not None:
        parts += [_number(claim, found), _bound(claim)]
    if claim.shown:
        parts.append(claim.shown(results))
    return Judged(claim, "; ".join(filter(None, parts)), p, _verdict(claim, found, p), found)


def openness(found: Summary | None, primary: bool) -> str:
    """Return the reason why nothing is concluded from a claim's numbers.

    There are four: it was not run; it has too few seeds; its seeds do not decide it; or it is
    exploratory, with p below 0.05 before any adjustment.

    Example:
        >>> openness(None, True), openness(summarise([0.1]), True)
        ('open: not run', 'open: 1 to 4 seeds')
        >>> openness(summarise([0.10, 0.11, 0.10, 0.11, 0.10]), primary=False)
        'open: p < 0.05 before any adjustment, but not primary'
    """
    if found is None:
        return NOT_RUN
    if found.n < SEEDS:
        return FEW_SEEDS
    if not primary and found.p is not None and found.p < LEVEL:
        return EXPLORED
    return UNDECIDED


def _number(claim: Claim, found: Summary) -> str:
    """Format mean ± sample standard deviation and the number of seeds.

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


def _bound(claim: Claim) -> str:
    """Say what a claim says about its number, unless it is that it is positive.

    Example:
        >>> _bound(Claim("costs little", below=0.01)), _bound(Claim("a beats b"))
        ('claimed: below +1.00', '')
    """
    bound = f"{claim.scale * claim.bound:+.{claim.digits}f}"
    if claim.below is not None:
        return f"claimed: below {bound}"
    return f"claimed: above {bound}" if claim.above else ""


def tested_over(found: Summary | None) -> str:
    """Return the units of a claim's test, "seeds and samples" or "seeds alone", if it has one."""
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
    if claim.below is None:
        agrees = found.mean > claim.above
    else:
        agrees = found.mean < claim.below
    return REPRODUCED if agrees else CONTRADICTED


def primary_texts(claims: Iterable[Claim]) -> tuple[str, ...]:
    """Return the texts of the primary claims, which a new file of results names before its runs.

    Example:
        >>> primary_texts([Claim("a", sample=list, primary=True), Claim("b", sample=list)])
        ('a',)
    """
    return tuple(claim.text for claim in claims if claim.primary)


def named(claims: Sequence[Claim], before: Sequence[str]) -> str:
    """Say whether a page has primary claims, which are those named before their runs.

    Args:
        claims: of the page.
        before: texts of the claims that were named before their runs.

    Raises:
        ValueError: a primary claim was named after the runs.

    Example:
        >>> named([Claim("a", sample=list, primary=True)], ["a"])
        'The primary claims were named before the runs.'
    """
    if not any(claim.primary for claim in claims):
        return "These runs are exploratory: none of their claims is primary."
    late = [text for text in primary_texts(claims) if text not in before]
    if late:
        raise ValueError(
            f"primary claims: expected those named before the runs, got {'; '.join(late)}, named "
            "after them; explore these"
        )
    return "The primary claims were named before the runs."


def answered(judged: Sequence[Judged]) -> str:
    """Return the primary claims that are reproduced, and those that are contradicted, in a sentence.

    Example:
        >>> rows = [0.1, 0.11, 0.12, 0.1, 0.11]
        >>> claims = [Claim(text, sample=list, primary=True, above=at) for text, at in (("a", 0), ("b", 1))]
        >>> answered(judge(claims, rows))
        'Reproduced: *a*. Contradicted: *b*. Open: 0 of 2.'
    """
    primary = [one for one in judged if one.claim.primary]
    sentences = []
    concluded = 0
    for word in (REPRODUCED, CONTRADICTED):
        texts = [f"*{one.claim.text}*" for one in primary if one.verdict == word]
        concluded += len(texts)
        sentences.append(f"{word.capitalize()}: {'; '.join(texts) or 'none'}.")
    return f"{' '.join(sentences)} Open: {len(primary) - concluded} of {len(primary)}."


def _p_value(p: float | None) -> str:
    """Format a p-value for a page."""
    if p is None:
        return ""
    return "< 0.001" if p < 0.0005 else f"{p:.3f}"


def claims_section(
    claims: Sequence[Claim], found: Any, file: dict[str, Any] | None = None, note: str = ""
) -> str:
    """Return a page's section of claims: :func:`claims_tables` below a title."""
    return f"## The paper's claims\n\n{claims_tables(claims, found, file, note)}\n"


def claims_tables(
    claims: Sequence[Claim], found: Any, file: dict[str, Any] | None = None, note: str = ""
) -> str:
    """Return a table of the primary claims with their verdicts, then one of all others.

    Args:
        claims: of the page.
        found: results, the argument of each claim's functions.
        file: the file of results, which has the primary claims named before its first run.
        note: a sentence after the link to the rule.
    """
    judged = judge(claims, found)

    # A claim that was not run yet cannot have been named after its runs.
    before = [one.claim.text for one in judged if one.found is None]
    before += (file or {}).get("primary", [])
    sentences = [RULE, note, named(claims, before)]

    primary, exploratory = [], []
    for one in judged:
        claim = one.claim
        if claim.primary:
            p = _p_value(one.p)
            row = claim.text, claim.paper, one.here, tested_over(one.found), p, one.verdict
            primary.append(row)
            continue
        here = one.here
        if one.verdict:
            here += f" (*{one.verdict}*)"
        exploratory.append((claim.text, claim.paper, here))

    parts = [" ".join(filter(None, sentences))]
    if primary:
        heads = "primary claim", "paper", "here", "tested over", "p", "verdict"
        parts.append(table(heads, primary))
    if exploratory:
        parts.append(table(("exploratory", "paper", "here"), exploratory))
    return "\n\n".join(parts)
