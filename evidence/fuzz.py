"""Random operators on random domains, until the minutes are over: ``python -m evidence fuzz
[--minutes 10] [--seed 0] [--operator NAME] [--case N] [--out FILE]``.

A case is a registered operator with options, a domain and features, all drawn from its number. Each
case passes through four checks, in float64 except for the second:

- ``forward`` equals the definition, ``dense``, in values and in all gradients; edges and reaches
  are written out for it as masks, pair by pair;
- ``gradient``: values and gradients in float32 equal those of the definition in float64;
- ``jvp``: forward-mode derivatives are the transpose of the backward's;
- ``step``: in causal order, any split into stretches and steps equals ``forward``.

The library's own errors count as refusals; any other error is a failure. Where only one of forward
and definition refuses, this is a failure too, unless the options name a strategy. With a failure
the command that repeats it is printed.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.errors import FredholmError, StrategyError
from fredholm.operators import list_operators

from .fuzz_cases import Case, Draw, make_case
from .fuzz_definitions import dense
from .kit.machine import describe
from .kit.page import PAGES, RESULTS, head, load, table
from .kit.subject import Subject

OUT = RESULTS / "fuzz.json"
SUBJECT = Subject(__name__, pages={PAGES / "fuzz.md": ":page"})
CHECKS = ("forward", "gradient", "jvp", "step")
OUTCOMES = ("passed", "refused", "missing", "failed")
TEXT = """Each case is an operator with options, a domain and features, all drawn at random from the number of the case. Options include windows with sinks, and
decays. Domains include padding, masks, biases, edges with densities, neighbours (within a radius, the nearest, or in a periodic box) and reaches, each with
or without an order, and queries on a second domain, which see all points, their neighbours or the points of a mask. Four checks are run:

| check | what is compared |
|---|---|
| forward | the fast form and the definition, in which edges and reaches are written out pair by pair, in values and in all gradients, in float64 |
| gradient | the same in float32, with the definition in float64 as reference; where float32 cannot be more exact, up to ten times the definition's error in float32 is allowed |
| jvp | forward-mode derivatives and the transpose of the backward pass |
| step | a causal signal in one call, and any split of it into prefills and steps |

*Refused*: both forward and definition (or a strategy selected by the case, or steps) raised a named error. *Missing*: there is no causal order, so no steps. *Worst*: the largest
difference among the cases that passed, relative to the largest magnitude.
"""
# Allowed distances, as shares of the largest magnitude: in float64, and of float32 from float64.
EXACT, SINGLE = 1e-8, 2e-3


# --- checks ---------------------------------------------------------------------------------------


class Wrong(Exception):
    """Two answers that should be equal are not."""


def distance(actual: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """Return the largest difference over the largest magnitude; infinite where a value is NaN."""
    if actual.shape != expected.shape:
        raise Wrong(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    size = scale or max(float(expected.abs().max()), 1e-3)
    difference = float((actual.double() - expected.double()).abs().max())
    return float("inf") if math.isnan(difference) else difference / size


def close(pairs: list[tuple[str, Tensor, Tensor]], allowed: float) -> float:
    """Return the largest distance of triples of a name, an answer and the expected one.

    All of them are measured by the largest magnitude among the expected ones.

    Raises:
        Wrong: a distance is above ``allowed``.
    """
    magnitudes = [float(expected.abs().max()) for _, _, expected in pairs if expected.numel()]
    scale = max([*magnitudes, 1e-3])
    worst = 0.0
    for name, actual, expected in pairs:
        found = distance(actual, expected, scale)
        # NaN must fail too.
        if not found <= allowed:
            raise Wrong(f"{name} differs by {found:.1e}, allowed {allowed:.0e}")
        worst = max(worst, found)
    return worst


class Answer(NamedTuple):
    """An output, and the gradients of a functional of it by name."""

    output: Tensor
    gradients: dict[str, Tensor]


def leaves(case: Case) -> dict[str, Tensor]:
    """Return the tensors with a gradient: features, queries where there are some, parameters."""
    inputs = {"u": case.u}
    if case.query is not None:
        inputs["query"] = case.query
    copies = {name: x.detach().clone().requires_grad_() for name, x in inputs.items()}
    return copies | dict(case.operator.named_parameters())


def queries_of(case: Case) -> dict[str, Any]:
    """Return the argument for the queries' own domain, where there is one."""
    return {} if case.query_domain is None else {"query_domain": case.query_domain}


def evaluate(case: Case, function: Callable[..., Tensor]) -> Answer:
    """Return the output, and the gradients of a functional that depends on the case alone."""
    inputs = leaves(case)
    out = function(inputs["u"], case.domain, query=inputs.get("query"), **queries_of(case))
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(case.number)).to(out)
    gradients = torch.autograd.grad(out, list(inputs.values()), weight, allow_unused=True)
    found = {}
    for (name, x), gradient in zip(inputs.items(), gradients):
        found[name] = torch.zeros_like(x) if gradient is None else gradient
    return Answer(out.detach(), found)


def compare(actual: Answer, expected: Answer, allowed: float) -> float:
    """Return the largest distance of two answers, in output and gradients."""
    output = close([("output", actual.output, expected.output)], allowed)
    gradients = [
        (f"gradient of {name}", gradient, expected.gradients[name])
        for name, gradient in actual.gradients.items()
    ]
    return max(output, close(gradients, allowed))


def define(case: Case) -> Answer:
    """Return the answer of the definition, for which sparse pairs are written out."""
    return evaluate(case, partial(dense, case.operator))


def check_forward(case: Case) -> float:
    """Compare the operator with its definition in float64."""
    return compare(evaluate(case, case.operator), define(case), EXACT)


def check_gradient(case: Case) -> float:
    """Compare the operator in float32 with its definition in float64.

    Some cases are ill-conditioned in float32. There the definition in float32 is far off as well,
    and ten times its distance is allowed.
    """
    exact = define(case)
    single = replace(case, u=case.u.float(), domain=case.domain.to(torch.float32))
    if case.query is not None:
        single.query = case.query.float()
    if case.query_domain is not None:
        single.query_domain = case.query_domain.to(torch.float32)
    try:
        found = evaluate(single, case.operator.float())
        try:
            return compare(found, exact, SINGLE)
        except Wrong:
            least = compare(define(single), exact, float("inf"))
            return compare(found, exact, 10 * least)
    finally:
        case.operator.double()


def check_jvp(case: Case) -> float | None:
    """Compare forward mode with reverse mode; None where an operation lacks the forward rule."""
    u = case.u.nan_to_num()
    query = None if case.query is None else case.query.nan_to_num()
    tangent = torch.randn(u.shape, generator=torch.Generator().manual_seed(1)).to(u)

    def function(x: Tensor) -> Tensor:
        return case.operator(x, case.domain, query=query, **queries_of(case))

    try:
        out, moved = torch.func.jvp(function, (u,), (tangent,))
    except NotImplementedError:
        # The library's DerivativeError, or torch's error for an operation without the rule.
        return None
    leaf = u.clone().requires_grad_()
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(u)
    (back,) = torch.autograd.grad(function(leaf), leaf, weight)
    moved = moved.detach()
    forward, backward = (weight * moved).sum(), (back * tangent).sum()
    scale = float(weight.norm() * moved.norm() + back.norm() * tangent.norm()) + 1e-3
    found = float((forward - backward).abs()) / scale
    if not found <= EXACT:
        raise Wrong(f"forward and reverse mode differ by {found:.1e}, allowed {EXACT:.0e}")
    return found


def check_step(case: Case) -> float | None:
    """Compare steps and stretches of drawn lengths with one call; None without a causal order."""
    if not case.domain.causal or case.query is not None or case.query_domain is not None:
        return None
    draw, n = Draw(case.number), case.domain.size
    op, parts, t = case.operator, [], 0
    with torch.no_grad():
        expected = op(case.u, case.domain)
        state = op.init_state(case.u.shape[0], case.domain)
        while t < n:
            length = draw.randint(1, n - t)
            if length == 1 or draw.random() < 0.5:
                out, state = op.step(case.u[:, t], state)
                out, length = out[:, None], 1
            else:
                out, state = op.prefill(case.u[:, t : t + length], state)
            parts.append(out)
            t += length
    return close([("steps", torch.cat(parts, 1), expected)], EXACT)


FUNCTIONS = {
    "forward": check_forward,
    "gradient": check_gradient,
    "jvp": check_jvp,
    "step": check_step,
}


# --- the run --------------------------------------------------------------------------------------


@dataclass
class Tally:
    """Outcomes of one check of one operator, counted.

    ``missing`` counts cases without a forward-mode rule, or without an order to step along.
    """

    passed: int = 0
    refused: int = 0
    missing: int = 0
    failed: int = 0
    worst: float = 0.0


def run_case(number: int, names: list[str]) -> Iterator[tuple[str, str, float | str | None]]:
    """Yield each check with its outcome, one of ``OUTCOMES``, and a distance or a reason.

    The checks end at the first refusal by ``forward``: the operator does not take this domain.
    """
    try:
        case = make_case(number, names)
    except FredholmError as error:
        yield "forward", "refused", str(error)
        return
    for check, function in FUNCTIONS.items():
        try:
            found = function(case)
            yield check, "missing" if found is None else "passed", found
        except FredholmError as error:
            # A strategy named in the options may refuse where the definition does not.
            by_strategy = isinstance(error, StrategyError) and "strategy" in case.options
            if check == "forward" and not by_strategy and not both_refuse(case):
                yield check, "failed", f"{case}: forward or definition alone says: {error}"
                continue
            yield check, "refused", str(error)
            if check == "forward":
                return
        except Exception as error:
            yield check, "failed", f"{case}: {type(error).__name__}: {error}"


def both_refuse(case: Case) -> bool:
    """Return whether the operator and its definition both refuse the case."""
    for answer in (lambda: evaluate(case, case.operator), lambda: define(case)):
        try:
            answer()
            return False
        except FredholmError:
            pass
    return True


def run(
    seed: int, minutes: float | None, count: int | None, names: list[str]
) -> tuple[int, dict[str, dict[str, Tally]], list[dict[str, Any]]]:
    """Run cases until the minutes are over or ``count`` is reached.

    Returns:
        The number of cases, tallies by operator and check, and the failures.
    """
    end = None if minutes is None else time.monotonic() + 60 * minutes
    tallies: dict[str, dict[str, Tally]] = defaultdict(lambda: {c: Tally() for c in CHECKS})
    failures, done = [], 0
    while (end is None or time.monotonic() < end) and (count is None or done < count):
        number = seed * 1_000_000 + done
        name = Draw(number).choice(names)
        for check, outcome, detail in run_case(number, names):
            tally = tallies[name][check]
            setattr(tally, outcome, getattr(tally, outcome) + 1)
            if outcome == "passed":
                tally.worst = max(tally.worst, float(detail or 0.0))
            if outcome == "failed":
                failures.append({"case": number, "check": check, "what": str(detail)})
                print(f"python -m evidence fuzz --case {number}  # {check}: {detail}", flush=True)
        done += 1
    return done, dict(sorted(tallies.items())), failures


def show(tallies: dict[str, dict[str, Tally]]) -> None:
    """Print the tallies as a table."""
    print(
        f"{'operator':18}{'check':10}{'passed':>8}{'refused':>8}{'missing':>8}{'failed':>8}  worst"
    )
    for name, checks in tallies.items():
        for check, t in checks.items():
            counts = f"{t.passed:8}{t.refused:8}{t.missing:8}{t.failed:8}"
            print(f"{name:18}{check:10}{counts}  {t.worst:.0e}")


def page() -> str:
    """Return the page of the committed result."""
    found = load(OUT.name)
    rows = []
    for name, checks in found["operators"].items():
        for check, tally in checks.items():
            counts = [f"{tally[outcome]:,}" for outcome in OUTCOMES]
            rows.append((name, check, *counts, f"{tally['worst']:.0e}"))
    command = f"`python -m evidence fuzz --minutes {found['minutes']:g} --seed {found['seed']}`"
    return (
        head("Random operators on random domains", "fuzz", OUT.name)
        + f"{TEXT}\n{found['cases']:,} cases, {len(found['failures'])} failures; {command} on "
        f"one thread of {found['machine']['processor']}, torch {found['machine']['torch']}.\n\n"
        + table(("operator", "check", *OUTCOMES, "worst"), rows)
        + "\n"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; return 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m evidence fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cases", type=int, help="this many instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--operator", action="append", help="only these")
    parser.add_argument("--case", type=int, help="repeat one case")
    parser.add_argument("--out", type=Path, help=f"write the result as JSON, such as {OUT}")
    args = parser.parse_args(argv)
    names = args.operator or list_operators()
    # CKConv beyond its extent extrapolates with a warning; here this is meant to happen.
    warnings.filterwarnings("ignore", "displacements of")
    if args.case is not None:
        for check, outcome, detail in run_case(args.case, names):
            print(f"{check:10}{outcome:8}  {detail}")
        return 0
    start = time.monotonic()
    minutes = None if args.cases else args.minutes
    done, tallies, failures = run(args.seed, minutes, args.cases, names)
    show(tallies)
    print(f"{done} cases, {len(failures)} failures")
    if args.out:
        operators = {}
        for name, checks in tallies.items():
            operators[name] = {check: vars(tally) for check, tally in checks.items()}
        result = {
            "machine": describe(),
            "seed": args.seed,
            "minutes": round((time.monotonic() - start) / 60, 1),
            "cases": done,
            "operators": operators,
            "failures": failures,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(failures))
