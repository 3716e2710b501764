"""The claims of ``claims.yaml`` with their numbers, read from committed results, and verdicts."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from ..ckconv import claims as ckconv
from ..ckconv.page import results as ckconv_results
from ..continuous import claims as continuous
from ..continuous import layers, plateau
from ..continuous import page as continuous_page
from ..infsa import canvases
from ..infsa import claims as infsa
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
)
from ..kit.grid import sections
from ..kit.page import load
from ..kit.statistics import summarise
from ..linearize import page as linearize
from ..lra import image as lra_image
from ..lra import rows as lra
from ..physics import claims as physics

FILE = Path(__file__).with_name("claims.yaml")
NUMBER = ".3g"


@dataclass(frozen=True)
class Row:
    """A claim with its answer: what was found as text, over how many seeds (0: no training), the
    verdict, and over how many test samples its test is (0: over the seeds alone).
    """

    given: dict[str, Any]
    here: str
    seeds: int
    verdict: str
    samples: int = 0


def papers() -> list[dict[str, Any]]:
    """Name, title and rows of each paper, as they are written."""
    return list(yaml.safe_load_all(FILE.read_text(encoding="utf-8")))


@cache
def judged() -> dict[str, tuple[Judged, int]]:
    """Every claim of a results page, ``"SET: TEXT"``, judged among its set's, with its seeds.

    Raises:
        ValueError: two sets of a page with primary claims, which would be judged apart.
    """
    found: dict[str, tuple[Judged, int]] = {}
    primary: dict[str, str] = {}
    for page, name, claims, results in _sets():
        if any(claim.primary for claim in claims) and primary.setdefault(page, name) != name:
            raise ValueError(f"{page}.md: primary claims in {primary[page]} and in {name}")
        for one in judge(claims, results):
            seeds = len(one.claim.sample(results)) if one.claim.sample else 0
            found[f"{name}: {one.claim.text}"] = one, seeds
    return found


def _sets() -> Iterator[tuple[str, str, list[Claim], Any]]:
    """Page, name, claims and results of each set of claims, as the page itself has them."""
    yield "itnet", "itnet", itnet.CLAIMS, itnet_results()
    yield "physics", "physics", physics.CLAIMS, physics.results()
    yield "ckconv", "ckconv", ckconv.CLAIMS, ckconv_results()
    runs, speed = load("infsa.json")["runs"], load("infsa-speed.json") or {}
    yield "infsa", "infsa", infsa.CLAIMS, {"runs": runs, "speed": speed}
    yield "infsa", "canvases", canvases.CLAIMS, sections(canvases.FILE)
    found, place = continuous_page.by_variant(load(continuous_page.FILE)), "continuous-transformer"
    yield place, "continuous", continuous.CLAIMS, found
    yield place, "plateau", plateau.CLAIMS, sections(plateau.FILE)
    yield place, "layers", layers.CLAIMS, sections(layers.FILE)
    yield "conversions", "linearize", linearize.CLAIMS, load("linearize.json")["runs"]
    yield "lra", "lra", lra.CLAIMS, load(lra.TABLE.file)["runs"]
    yield "lra", "lra-image", lra_image.CLAIMS, sections(lra_image.FILE)


def numbers(place: dict[str, Any]) -> list[float]:
    """The numbers of a file of results that a path leads to, divided by those of ``over`` or less
    those of ``less``: each by its own, or all by one.

    Raises:
        KeyError: the file has no such numbers.
        ValueError: neither one number beside all nor one beside each.
    """
    results = load(place["file"])
    found = [] if results is None else list(_follow(results, place["path"]))
    if not found:
        raise KeyError(f"{place['file']}: nothing at {place['path']}")
    for key, combine in (("over", operator.truediv), ("less", operator.sub)):
        if key in place:
            others = numbers({"file": place["file"], "path": place[key]})
            others = others * len(found) if len(others) == 1 else others
            found = [combine(one, other) for one, other in zip(found, others, strict=True)]
    return [max(found)] if place.get("take") == "max" else found


def _follow(value: Any, path: list[Any]) -> Iterator[float]:
    """All numbers at a path: a key, a place in a list, ``{key: value}`` or ``{key: [values]}`` for
    the rows that have it, ``"*"`` for everything; a key of a list is that of each of its rows.
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
    """The rows that have these values, or one of several."""
    wanted = {key: value if isinstance(value, list) else [value] for key, value in step.items()}
    return [row for row in rows if all(row.get(key) in some for key, some in wanted.items())]


def answer(given: dict[str, Any]) -> Row:
    """What the committed results say of a claim.

    Raises:
        KeyError: a claim or number that is not there.
    """
    if "untestable" in given:
        return Row(given, given["untestable"], 0, UNTESTABLE)
    here, seeds, verdict, samples = "not run", 0, NOT_RUN, 0
    values, trained = _values(given), given.get("trained", False)
    if values and trained:
        here, seeds = _text(given, values), len(values)
        verdict = _openness(given, values)
    elif values:
        here, verdict = _text(given, values), _by_bound(given, values)
    if "drawn" in given:  # a picture has no verdict
        here, verdict = f"[drawn]({given['drawn']})", NO_TEST
    if "test" in given:
        here, verdict = f"holds: `{given['test'].rpartition('/')[2]}`", REPRODUCED
    if "refuted" in given:
        here, verdict = f"does not: `{given['refuted'].rpartition('/')[2]}`", CONTRADICTED
    if "judged" in given:
        one, seeds = judged()[given["judged"]]
        here, samples = one.here, one.found.samples if one.found else 0
        # What is computed or proved has a verdict of its own; what is explored is open.
        if not {"result", "test"} & set(given):
            verdict = one.verdict or _explored(one)
    return Row(given, here, seeds, verdict, samples)


def _explored(one: Judged) -> str:
    """Return why an exploratory claim is open."""
    if one.claim.sample is None:
        return NO_TEST
    return openness(one.found, primary=False)


def _openness(given: dict[str, Any], values: list[float]) -> str:
    """Return why the numbers of trained runs conclude nothing. A difference is compared with zero;
    a score by itself has no bound to be compared with.
    """
    found = summarise(values)
    if "less" not in given["result"] and found is not None:
        found = found._replace(p=None)
    return openness(found, primary=False)


def _values(given: dict[str, Any]) -> list[float]:
    """The numbers of a row's result; none where it has no result or its training is still to come:
    there is no file, no such section or no such row yet.
    """
    if "result" not in given:
        return []
    try:
        return numbers(given["result"])
    except KeyError:
        if given.get("trained"):
            return []
        raise


def _text(given: dict[str, Any], values: list[float]) -> str:
    scale, style = given.get("scale", 1), f".{given['digits']}f" if "digits" in given else NUMBER
    if not given.get("trained"):
        return format(scale * (min(values) if "least" in given else max(values)), style)
    text = format(scale * statistics.mean(values), style)
    if len(values) == 1:
        return text
    return f"{text} ± {format(scale * statistics.stdev(values), style)}"


def _by_bound(given: dict[str, Any], values: list[float]) -> str:
    """Every computed number must keep the bound: there is no chance in it."""
    if "least" in given:
        return REPRODUCED if min(values) >= given["least"] else CONTRADICTED
    return REPRODUCED if max(values) <= given["most"] else CONTRADICTED
