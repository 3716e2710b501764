"""Answers to the claims of ``claims.yaml``: numbers from the committed results, and verdicts."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from ..ckconv import claims as ckconv
from ..ckconv.irregular import claims as irregular
from ..ckconv.page import results as ckconv_results
from ..continuous import claims as continuous
from ..continuous import contests as evolution
from ..continuous import layers, plateau
from ..continuous import page as continuous_page
from ..fields import claims as fields
from ..infsa import canvases
from ..infsa import claims as infsa
from ..infsa import contests as infsa_contests
from ..itnet import claims as itnet
from ..itnet.page import results as itnet_results
from ..kit.claims import (
    CONTRADICTED,
    NO_TEST,
    NOT_RUN,
    REPRODUCED,
    UNTESTABLE,
    Claim,
    Judged,
    judge,
    openness,
    tested_over,
)
from ..kit.grid import sections
from ..kit.page import load
from ..kit.statistics import summarise
from ..linearize import page as linearize
from ..lra import image as lra_image
from ..lra import rows as lra
from ..luna.encoders import claims as encoders
from ..physics import claims as physics
from ..physics import designs
from ..physics import motion_claims as motion

FILE = Path(__file__).with_name("claims.yaml")
NUMBER = ".3g"
"""Format of a number whose claim does not have ``digits``."""

BEYOND = "beyond the paper"
"""Place of a claim that is ours, not the paper's."""

Entry = dict[str, Any]
"""A claim as ``claims.yaml`` has it."""


@dataclass(frozen=True)
class Row:
    """A claim with its answer.

    Attributes:
        entry: the claim.
        here: our result as text.
        seeds: number of seeds of the result; 0 if nothing was trained.
        verdict: one of the verdicts of :mod:`evidence.kit.claims`.
        samples: number of test samples of its test; 0 for a test over the seeds alone.
        limits: what the verdict does not say; see :attr:`JudgedClaim.limits`.
    """

    entry: Entry
    here: str
    seeds: int
    verdict: str
    samples: int = 0
    limits: str = ""

    @property
    def beyond(self) -> bool:
        """Whether the claim is ours, not the paper's."""
        return self.entry["where"] == BEYOND

    @property
    def computed(self) -> bool:
        """Whether a computation, a measured time or a test decides the claim, not trained runs."""
        if {"test", "refuted"} & set(self.entry):
            return True
        return "result" in self.entry and not self.entry.get("trained", False)


class ClaimSet(NamedTuple):
    """Claims that are judged together, with their results as the page itself reads them.

    Attributes:
        page: name of the page of results, which may have several sets.
        name: of the set, with which entries refer to it.
        claims: of the set.
        results: argument of the claims' functions.
    """

    page: str
    name: str
    claims: list[Claim]
    results: Any


class JudgedClaim(NamedTuple):
    """A claim of a results page after :func:`judge`, and the number of its seeds."""

    result: Judged
    seeds: int

    @property
    def verdict(self) -> str:
        """The verdict, or the reason why an exploratory claim is open."""
        if self.result.verdict:
            return self.result.verdict
        if self.result.claim.sample is None:
            return NO_TEST
        return openness(self.result.found, primary=False)

    @property
    def limits(self) -> str:
        """The limit of a conclusion over seeds alone, which may not hold for other test samples."""
        concluded = self.verdict in (REPRODUCED, CONTRADICTED)
        if concluded and tested_over(self.result.found) == "seeds alone":
            return "over seeds alone"
        return ""


def with_limits(verdict: str, limits: str) -> str:
    """Return a verdict, followed by its limits if it has any.

    Example:
        >>> with_limits("reproduced", "over seeds alone"), with_limits("reproduced", "")
        ('reproduced (over seeds alone)', 'reproduced')
    """
    return f"{verdict} ({limits})" if limits else verdict


def papers() -> list[dict[str, Any]]:
    """Read name, title and rows of each paper."""
    return list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))


@cache
def answers() -> dict[str, Row]:
    """Return the row of every claim of ``claims.yaml`` by its text; of equal texts the first."""
    found: dict[str, Row] = {}
    for paper in papers():
        for entry in paper["rows"]:
            found.setdefault(entry["claim"], answer(entry))
    return found


@cache
def judged() -> dict[str, JudgedClaim]:
    """Judge every claim of the results pages; return them by ``"SET: TEXT"``.

    Raises:
        ValueError: two sets of one page have primary claims. Their p-values would not be adjusted
            for all of the page's claims.
    """
    found: dict[str, JudgedClaim] = {}
    primary: dict[str, str] = {}
    for known in _sets():
        page, name = known.page, known.name
        if any(claim.primary for claim in known.claims) and primary.setdefault(page, name) != name:
            raise ValueError(
                f"{page}.md: expected primary claims in one set, got them in {primary[page]} and "
                f"in {name}; explore the claims of one"
            )
        for one in judge(known.claims, known.results):
            seeds = 0
            if one.claim.sample:
                seeds = len(one.claim.sample(known.results))
            found[f"{name}: {one.claim.text}"] = JudgedClaim(one, seeds)
    return found


def _sets() -> Iterator[ClaimSet]:
    """Yield the sets of claims of all results pages."""
    yield ClaimSet("itnet", "itnet", itnet.CLAIMS, itnet_results())
    yield ClaimSet("physics", "physics", physics.CLAIMS, physics.results())
    yield ClaimSet("physics-designs", "designs", designs.CLAIMS, designs.results())
    yield ClaimSet("motion", "motion", motion.CLAIMS, motion.results())
    yield ClaimSet("fields", "fields", fields.CLAIMS, fields.results())
    yield ClaimSet("ckconv", "ckconv", ckconv.CLAIMS, ckconv_results())
    yield ClaimSet("irregular", "irregular", irregular.CLAIMS, irregular.results())

    found = {"runs": load("infsa.json")["runs"], "speed": load("infsa-speed.json") or {}}
    yield ClaimSet("infsa", "infsa", infsa.CLAIMS, found)
    yield ClaimSet("infsa", "canvases", canvases.CLAIMS, sections(canvases.FILE))
    contests = infsa_contests.results()
    yield ClaimSet("infsa-contests", "infsa-contests", infsa_contests.CLAIMS, contests)

    page = "continuous-transformer"
    by_variant = continuous_page.by_variant(load(continuous_page.FILE))
    yield ClaimSet(page, "continuous", continuous.CLAIMS, by_variant)
    yield ClaimSet(page, "plateau", plateau.CLAIMS, sections(plateau.FILE))
    yield ClaimSet(page, "layers", layers.CLAIMS, sections(layers.FILE))
    yield ClaimSet("evolution", "evolution", evolution.CLAIMS, sections(evolution.FILE))

    yield ClaimSet("conversions", "linearize", linearize.CLAIMS, linearize.results())
    yield ClaimSet("luna-encoders", "luna-encoders", encoders.CLAIMS, encoders.results())
    yield ClaimSet("lra", "lra", lra.CLAIMS, load(lra.TABLE.file)["runs"])
    yield ClaimSet("lra", "lra-image", lra_image.CLAIMS, sections(lra_image.FILE))


def numbers(result: dict[str, Any]) -> list[float]:
    """Read the numbers that an entry's ``result`` refers to.

    Args:
        result: a ``file`` of results and a ``path`` in it. ``over`` and ``less`` are paths to
            divisors and subtrahends, either one for all numbers or one for each. With
            ``take: max`` only the largest number is returned.

    Raises:
        KeyError: the file does not have such numbers.
        ValueError: the divisors or subtrahends are neither one nor as many as the numbers.
    """
    results = load(result["file"])
    found: list[float] = []
    if results is not None:
        found = list(_follow(results, result["path"]))
    if not found:
        raise KeyError(f"{result['file']}: expected numbers at {result['path']}, got none")

    for key, combine in (("over", operator.truediv), ("less", operator.sub)):
        if key in result:
            others = numbers({"file": result["file"], "path": result[key]})
            if len(others) == 1:
                others = others * len(found)
            found = [combine(one, other) for one, other in zip(found, others, strict=True)]

    if result.get("take") == "max":
        return [max(found)]
    return found


def _follow(value: Any, path: list[Any]) -> Iterator[float]:
    """Yield all numbers at a path.

    A step of the path is a key, an index of a list, ``{key: value}`` or ``{key: [values]}`` for the
    rows that have such a value, or ``"*"`` for everything. A key applied to a list selects that
    field of each row.
    """
    if not path:
        yield float(value)
        return
    step, rest = path[0], path[1:]
    if isinstance(step, dict):
        parts = _with(value, step)
    elif step == "*":
        parts = list(value.values() if isinstance(value, dict) else value)
    elif isinstance(value, list) and isinstance(step, str):
        parts = [row[step] for row in value]
    else:
        parts = [value[step]]
    for part in parts:
        yield from _follow(part, rest)


def _with(rows: list[dict[str, Any]], step: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows whose fields have the values of ``step``, or one of a list of values."""
    wanted: dict[str, list[Any]] = {}
    for key, value in step.items():
        wanted[key] = value if isinstance(value, list) else [value]

    found = []
    for row in rows:
        if all(row.get(key) in values for key, values in wanted.items()):
            found.append(row)
    return found


def answer(entry: Entry) -> Row:
    """Answer a claim from the committed results.

    An entry may have several kinds of answers; a later one below replaces an earlier one.

    Raises:
        KeyError: the results do not have the claim or number that the entry refers to.
    """
    if "untestable" in entry:
        return Row(entry, entry["untestable"], 0, UNTESTABLE)

    row = Row(entry, "not run", 0, NOT_RUN)
    values = _values(entry)
    if values and entry.get("trained", False):
        row = Row(entry, _text(entry, values), len(values), _openness(entry, values))
    elif values:
        here = f"{_text(entry, values)}{_bound(entry)}"
        row = Row(entry, here, 0, _by_bound(entry, values))

    if "drawn" in entry:
        row = replace(row, here=f"[drawn]({entry['drawn']})", verdict=NO_TEST)
    if "test" in entry:
        test = entry["test"].rpartition("/")[2]
        row = replace(row, here=f"holds: `{test}`", verdict=REPRODUCED)
    if "refuted" in entry:
        test = entry["refuted"].rpartition("/")[2]
        row = replace(row, here=f"does not: `{test}`", verdict=CONTRADICTED)

    if "judged" in entry:
        known = judged()[entry["judged"]]
        one = known.result
        samples = one.found.samples if one.found else 0
        row = replace(row, here=one.here, seeds=known.seeds, samples=samples)
        # The verdict of a computation or a proof stands. Exploratory claims are open.
        if "result" not in entry and "test" not in entry:
            row = replace(row, verdict=known.verdict, limits=known.limits)
    return row


def _openness(entry: Entry, values: list[float]) -> str:
    """Return the reason why nothing is concluded from the numbers of trained runs.

    A difference is compared with zero; a score does not have a bound to compare it with.
    """
    found = summarise(values)
    if "less" not in entry["result"] and found is not None:
        found = found._replace(p=None)
    return openness(found, primary=False)


def _values(entry: Entry) -> list[float]:
    """Return the numbers of an entry's result.

    There are none if it does not have a result, if its file does not exist yet, or if the file does
    not have the section or row of its training yet.
    """
    if "result" not in entry or load(entry["result"]["file"]) is None:
        return []
    try:
        return numbers(entry["result"])
    except KeyError:
        if entry.get("trained"):
            return []
        raise


def _text(entry: Entry, values: list[float]) -> str:
    """Format the mean ± standard deviation of trained runs, or the worst of computed numbers."""
    scale = entry.get("scale", 1)
    style = NUMBER
    if "digits" in entry:
        style = f",.{entry['digits']}f"

    if not entry.get("trained"):
        worst = min(values) if "least" in entry else max(values)
        return format(scale * worst, style)
    text = format(scale * statistics.mean(values), style)
    if len(values) == 1:
        return text
    return f"{text} ± {format(scale * statistics.stdev(values), style)}"


def _bound(entry: Entry) -> str:
    """Return the bound of computed numbers in brackets.

    Example:
        >>> _bound({"most": 1.1}), _bound({"least": 40960, "scale": 1 / 1024}), _bound({})
        (' (at most 1.1)', ' (at least 40)', '')
    """
    scale = entry.get("scale", 1)
    if "least" in entry:
        return f" (at least {scale * entry['least']:,g})"
    if "most" in entry:
        return f" (at most {scale * entry['most']:,g})"
    return ""


def _by_bound(entry: Entry, values: list[float]) -> str:
    """Return the verdict of computed numbers: not random, so all of them must keep the bound.

    An extrapolated number does not have a bound, since it decides nothing.
    """
    if "least" in entry:
        holds = min(values) >= entry["least"]
    elif entry.get("extrapolated"):
        return NO_TEST
    else:
        holds = max(values) <= entry["most"]
    return REPRODUCED if holds else CONTRADICTED
