"""Random operators on random domains, until the minutes are over: ``python -m evidence fuzz
[--minutes 10] [--seed 0] [--operator NAME] [--case N] [--out FILE]``.

A case is a registered operator with options, a domain and features, all drawn from its number. Each
case passes through four checks, in float64 except for the second:

- ``forward`` equals the definition, ``dense``, in values and in all gradients;
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
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm import Domain
from fredholm.errors import FredholmError, StrategyError
from fredholm.operators import IntegralOperator, create_operator, list_operators

from .kit.machine import describe
from .kit.page import PAGES, RESULTS, head, load, table
from .kit.subject import Subject

OUT = RESULTS / "fuzz.json"
SUBJECT = Subject(__name__, pages={PAGES / "fuzz.md": ":page"})
CHECKS = ("forward", "gradient", "jvp", "step")
OUTCOMES = ("passed", "refused", "missing", "failed")
TEXT = """Each case is an operator with options, a domain and features, all drawn at random from the number of the case. Four checks are run:

| check | what is compared |
|---|---|
| forward | the fast form and the definition, in values and in all gradients, in float64 |
| gradient | the same in float32, with the definition in float64 as reference; where float32 cannot be more exact, up to ten times the definition's error in float32 is allowed |
| jvp | forward-mode derivatives and the transpose of the backward pass |
| step | a causal signal in one call, and any split of it into prefills and steps |

*Refused*: both forward and definition (or a strategy selected by the case) raised a named error. *Missing*: there is no causal order, so no steps. *Worst*: the largest difference
among the cases that passed, relative to the largest magnitude.
"""
# Allowed distances, as shares of the largest magnitude: in float64, and of float32 from float64.
EXACT, SINGLE = 1e-8, 2e-3
Draw = random.Random


# --- cases ----------------------------------------------------------------------------------------


@dataclass
class Case:
    """One operator on one domain; ``query_domain`` is the queries' domain where they have their
    own.
    """

    number: int
    name: str
    options: dict[str, Any]
    operator: IntegralOperator
    domain: Domain
    query_domain: Domain | None
    u: Tensor
    query: Tensor | None

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        words = f"{self.name}({options}) on {self.domain}"
        return words if self.query_domain is None else f"{words}, queries on {self.query_domain}"


def make_case(number: int, names: list[str]) -> Case:
    """Draw a case from its number alone.

    Raises:
        FredholmError: the operator or the domain refuses what was drawn.
    """
    draw = Draw(number)
    torch.manual_seed(number)
    name = draw.choice(names)
    heads = draw.choice([1, 1, 2, 3])
    options = draw_options(name, draw)
    dim = heads * draw.choice([1, 2, 4, 5])
    if options.get("feature_map") == "luna" or options.get("preset") == "paper-gated":
        dim = heads * 4
    batch = draw.choice([1, 2, 3])
    p = options.get("position_dim", draw.choice([1, 1, 2]))
    domain = draw_domain(draw, p, batch, heads)
    operator = create_operator(name, dim, heads, **options).double()
    # Away from the initial values every term counts.
    with torch.no_grad():
        for parameter in operator.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    target = query = None
    if draw.random() < 0.15:
        target = Domain.points(torch.rand(draw.randint(1, 6), p).double())
        target = target.replace(causal=domain.causal and draw.random() < 0.5)
        query = torch.randn(batch, target.size, dim).double()
        domain = domain.replace(pairs=None)
    u = torch.randn(batch, domain.size, dim).double()
    if domain.valid is not None and draw.random() < 0.3:
        # The values at padded points must not reach any result.
        u = torch.where(domain.valid[..., None], u, torch.nan)
    options = {"dim": dim, "heads": heads, **options}
    return Case(number, name, options, operator.eval(), domain, target, u, query)


def draw_some(draw: Draw, **choices: list[Any]) -> dict[str, Any]:
    """Draw values for about half of the options; the others stay at their defaults."""
    return {name: draw.choice(values) for name, values in choices.items() if draw.random() < 0.5}


def draw_options(name: str, draw: Draw) -> dict[str, Any]:
    """Draw options of a library's operator; an operator registered by a user gets none."""
    flags = [True, False]
    activations = ["gelu", "silu", "tanh", "sin", "relu"]
    position = {"position_dim": draw.choice([1, 1, 2, 3])}
    small = {"frequencies": draw.randint(1, 4), "sigma": 1.0, "width": draw.randint(1, 6)}
    tiles = {"strategy": [{"name": "exact", "memory": 300}, {"name": "exact", "memory": 20_000}]}
    chunks = {"strategy": [{"name": "linear", "chunk": n} for n in (1, 3, 5)]}
    if name == "itnet":
        groups = ["query", "key", "product", "relative", "distance", "query_position"]
        chosen = tuple(draw.sample(groups, draw.randint(1, len(groups))))
        further = {"depth": [2, 3], "groups": [chosen], "output": ["full", "compact"], **tiles}
        further |= {"per_head_hidden": flags, "learned_frequencies": flags}
        return position | small | draw_some(draw, activation=activations, rank=[1, 3], **further)
    if name == "itnet_low_rank":
        further = {"activation": activations, "learned_frequencies": flags, "strategy": ["exact"]}
        return position | small | {"rank": draw.randint(1, 5)} | draw_some(draw, **further)
    if name == "luna":
        sizes = {"channels": draw.randint(1, 4), "directions": draw.randint(1, 3), "hidden": 4}
        further = {"per_head": flags, "shared": flags, "envelope": [None, "channels"], **chunks}
        activation = {"activation": ["relu", "gelu", "tanh"]}
        return sizes | draw_some(draw, tied=flags, **activation, **further)
    if name == "linear_attention":
        maps = ["elu", "relu", "softplus", "performer", "hedgehog", "rff", "t2r"]
        return draw_some(draw, feature_map=maps, tied=flags, bias=flags, **chunks)
    if name == "ckconv":
        sizes = {"width": draw.randint(2, 6), "omega": 2.0, "length": draw.randint(2, 16)}
        further = {"origin": ["start", "centre"], "bias": flags, "horizon": [None, 3]}
        strategies = ["auto", "exact", "fft"]
        return position | sizes | draw_some(draw, strategy=strategies, **further)
    if name in ("infsa", "linear_infsa"):
        further: dict[str, list[Any]] = {"activation": ["relu", "gelu", "abs"], "bias": flags}
        further |= {"learned_decay": flags, "power": [0, 1, 2], "preset": ["paper", "released"]}
        if name == "infsa":
            return draw_some(draw, norm=["frobenius", "rows"], tied=flags, **further, **tiles)
        steps = {"steps": [1, 2], "centres": [1, 2, 3], "causal": ["exact", "streaming"]}
        return draw_some(draw, tied=flags, **steps, **further)
    if name == "softmax":
        return draw_some(draw, bias=flags, **tiles)
    return {}


def draw_domain(draw: Draw, p: int, batch: int, heads: int) -> Domain:
    """Draw one of the kinds of domain that positions of dimension p allow."""
    n = draw.choice([1, 2, 3, 5, 8, 13, 21])
    kinds = ["points", "batch", "grid", "graph", "join"] + ["line", "line", "timestamps"] * (p == 1)
    kind = draw.choice(kinds)
    causal = draw.random() < 0.45
    options: dict[str, Any] = {"causal": causal}
    if kind == "graph":
        edges = torch.randint(n, (2, 2 * n))
        return Domain.graph(edges, n, positions=torch.rand(n, p).double(), **options)
    if kind == "join":
        parts = [Domain.points(torch.rand(k, p).double()) for k in (n, draw.randint(1, 4))]
        balance = draw.choice([None, (0.5, 0.5), (1.0, 3.0)])
        return Domain.join(*parts, balance=balance).replace(causal=causal)
    if kind == "grid":
        shape = tuple(draw.choice([1, 2, 3, 4]) for _ in range(p))
        n = torch.Size(shape).numel()
    if draw.random() < 0.3:
        lengths = torch.tensor([draw.randint(1, n) for _ in range(batch)])
        options["valid"] = torch.arange(n) < lengths[:, None]
    if draw.random() < 0.25:
        shape_of = draw.choice([(n, n), (batch, n, n), (batch, heads, n, n), (1, heads, n, n)])
        bias = torch.randn(shape_of).double()
        visible = (bias > -0.5) | torch.eye(n).bool()
        options["pairs"] = draw.choice([bias, visible, bias.masked_fill(~visible, -torch.inf)])
    if kind == "timestamps":
        rows = () if draw.random() < 0.5 else (batch,)
        return Domain.timestamps(torch.rand(*rows, n).double().cumsum(-1) + 0.1, **options)
    masses = [torch.rand(n).double() + 0.1, torch.rand(batch, n).double() + 0.1]
    options["measure"] = draw.choice(["uniform", "uniform", "counting", *masses])
    normalised = isinstance(options["measure"], Tensor) and draw.random() < 0.5
    if kind == "grid":
        domain = Domain.grid(*shape, dtype=torch.float64, **options)
    elif kind == "line":
        length = draw.choice([None, 16.0])
        domain = Domain.line(n, length=length, dtype=torch.float64, **options)
    else:
        rows = (batch,) if kind == "batch" else ()
        domain = Domain.points(torch.rand(*rows, n, p).double(), **options)
    return domain.with_masses(domain.measure, normalised=True) if normalised else domain


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


def check_forward(case: Case) -> float:
    """Compare the operator with its definition in float64."""
    return compare(evaluate(case, case.operator), evaluate(case, case.operator.dense), EXACT)


def check_gradient(case: Case) -> float:
    """Compare the operator in float32 with its definition in float64.

    Some cases are ill-conditioned in float32. There the definition in float32 is far off as well,
    and ten times its distance is allowed.
    """
    exact = evaluate(case, case.operator.dense)
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
            least = compare(evaluate(single, case.operator.dense), exact, float("inf"))
            return compare(found, exact, 10 * least)
    finally:
        case.operator.double()


def check_jvp(case: Case) -> float | None:
    """Compare forward mode with reverse mode; None where an operation lacks the forward rule."""
    u = case.u.nan_to_num()
    tangent = torch.randn(u.shape, generator=torch.Generator().manual_seed(1)).to(u)

    def function(x: Tensor) -> Tensor:
        return case.operator(x, case.domain, query=case.query, **queries_of(case))

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
    if not case.domain.causal or case.query_domain is not None:
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
    for function in (case.operator, case.operator.dense):
        try:
            evaluate(case, function)
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
