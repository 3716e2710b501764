"""Random operators on random domains, until the minutes are over: ``python -m evidence fuzz
[--minutes 10] [--seed 0] [--operator NAME] [--case N] [--out FILE]``.

A case is a registered operator with options, a domain and features, all drawn from its number. Four
checks, in float64 unless said otherwise:

- ``forward`` is the definition, ``dense``, in values and in all gradients;
- ``gradient``: values and gradients in float32 are those of the definition in float64;
- ``jvp``: forward-mode derivatives are the transpose of the backward's;
- ``step``: in causal order, any split into stretches and steps is ``forward``.

What an operator refuses by name is counted; any other error is a failure, and so is a refusal by one
of forward and definition alone, but where a strategy was asked for. A failure says the command that repeats it.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
TEXT = """A case is an operator with options, a domain and features, all drawn from its number. *Forward* compares the fast form with the
definition, in values and in all gradients (float64); *gradient* the same in float32, beside the definition in float64, and where float32
cannot do better, beside ten times the definition's own error in it; *jvp* says that forward-mode derivatives are the transpose of the
backward's; *step* that any split of a causal signal into stretches and steps gives what the whole gives. *Refused*: by a named error, of forward and definition
alike (or of a strategy that was asked for). *Missing*: no order to step along. *Worst*: the largest difference over the largest magnitude
among those that passed.
"""
EXACT, SINGLE = 1e-8, 2e-3  # of the largest magnitude: float64, and float32's beside float64's
Draw = random.Random


# --- cases ----------------------------------------------------------------------------------------


@dataclass
class Case:
    """One operator on one domain. ``query_domain`` is another one for the queries, or None."""

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
    """Everything about a case follows from its number. Raises what construction refuses."""
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
    with torch.no_grad():  # off the initial values, so that every term counts
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
        u = torch.where(domain.valid[..., None], u, torch.nan)  # what padding holds is no one's
    options = {"dim": dim, "heads": heads, **options}
    return Case(number, name, options, operator.eval(), domain, target, u, query)


def some(draw: Draw, **values: list[Any]) -> dict[str, Any]:
    """Each option with a value drawn, or left at its default half of the time."""
    return {name: draw.choice(of) for name, of in values.items() if draw.random() < 0.5}


def draw_options(name: str, draw: Draw) -> dict[str, Any]:
    """Options of a library's operator; none of one that a user registered."""
    flags = [True, False]
    activations = ["gelu", "silu", "tanh", "sin", "relu"]
    place = {"position_dim": draw.choice([1, 1, 2, 3])}
    small = {"frequencies": draw.randint(1, 4), "sigma": 1.0, "width": draw.randint(1, 6)}
    tiles = {"strategy": [{"name": "exact", "memory": 300}, {"name": "exact", "memory": 20_000}]}
    chunks = {"strategy": [{"name": "linear", "chunk": n} for n in (1, 3, 5)]}
    if name == "itnet":
        groups = ["query", "key", "product", "relative", "distance", "query_position"]
        chosen = tuple(draw.sample(groups, draw.randint(1, len(groups))))
        further = {"depth": [2, 3], "groups": [chosen], "output": ["full", "compact"], **tiles}
        further |= {"per_head_hidden": flags, "learned_frequencies": flags}
        return place | small | some(draw, activation=activations, rank=[1, 3], **further)
    if name == "itnet_low_rank":
        further = {"activation": activations, "learned_frequencies": flags, "strategy": ["exact"]}
        return place | small | {"rank": draw.randint(1, 5)} | some(draw, **further)
    if name == "luna":
        sizes = {"channels": draw.randint(1, 4), "directions": draw.randint(1, 3), "hidden": 4}
        further = {"per_head": flags, "shared": flags, "envelope": [None, "channels"], **chunks}
        activation = {"activation": ["relu", "gelu", "tanh"]}
        return sizes | some(draw, tied=flags, **activation, **further)
    if name == "linear_attention":
        maps = ["elu", "relu", "softplus", "performer", "hedgehog", "rff", "t2r"]
        return some(draw, feature_map=maps, tied=flags, bias=flags, **chunks)
    if name == "ckconv":
        sizes = {"width": draw.randint(2, 6), "omega": 2.0, "length": draw.randint(2, 16)}
        further = {"origin": ["start", "centre"], "bias": flags, "horizon": [None, 3]}
        return place | sizes | some(draw, strategy=["auto", "exact", "fft"], **further)
    if name in ("infsa", "linear_infsa"):
        further: dict[str, list[Any]] = {"activation": ["relu", "gelu", "abs"], "bias": flags}
        further |= {"learned_decay": flags, "power": [0, 1, 2], "preset": ["paper", "released"]}
        if name == "infsa":
            return some(draw, norm=["frobenius", "rows"], tied=flags, **further, **tiles)
        steps = {"steps": [1, 2], "centres": [1, 2, 3], "causal": ["exact", "streaming"]}
        return some(draw, tied=flags, **steps, **further)
    return some(draw, bias=flags, **tiles) if name == "softmax" else {}


def draw_domain(draw: Draw, p: int, batch: int, heads: int) -> Domain:
    """One of every kind of domain that positions of dimension p allow."""
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
    """Largest difference over largest magnitude, infinite where one is not finite."""
    if actual.shape != expected.shape:
        raise Wrong(f"shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    if not expected.numel():
        return 0.0
    size = scale or max(float(expected.abs().max()), 1e-3)
    difference = float((actual.double() - expected.double()).abs().max())
    return difference / size if difference == difference else float("inf")


def close(pairs: list[tuple[str, Tensor, Tensor]], allowed: float) -> float:
    """The worst distance; gradients are measured by the largest of them all."""
    scale = max([float(b.abs().max()) for _, _, b in pairs if b.numel()] + [1e-3])
    worst = 0.0
    for what, a, b in pairs:
        found = distance(a, b, scale)
        if not found <= allowed:
            raise Wrong(f"{what} differs by {found:.1e}, allowed {allowed:.0e}")
        worst = max(worst, found)
    return worst


def leaves(case: Case) -> dict[str, Tensor]:
    """What is differentiated by: features at real points, queries, parameters."""
    given = {"u": case.u} | ({} if case.query is None else {"query": case.query})
    given = {name: x.detach().clone().requires_grad_() for name, x in given.items()}
    return given | dict(case.operator.named_parameters())


def evaluate(case: Case, function: Callable[..., Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """Output, and gradients of a functional that depends on the case alone."""
    inputs = leaves(case)
    on = {} if case.query_domain is None else {"query_domain": case.query_domain}
    out = function(inputs["u"], case.domain, query=inputs.get("query"), **on)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(case.number)).to(out)
    gradients = torch.autograd.grad(out, list(inputs.values()), weight, allow_unused=True)
    found = {
        name: torch.zeros_like(x) if g is None else g
        for (name, x), g in zip(inputs.items(), gradients)
    }
    return out.detach(), found


def compare(case: Case, a: tuple, b: tuple, allowed: float) -> float:
    values = close([("output", a[0], b[0])], allowed)
    named = [(f"gradient of {name}", g, b[1][name]) for name, g in a[1].items()]
    return max(values, close(named, allowed))


def check_forward(case: Case) -> float:
    return compare(case, evaluate(case, case.operator), evaluate(case, case.operator.dense), EXACT)


def check_gradient(case: Case) -> float:
    """Where float32 cannot do better, the definition in float32 is no nearer: ten times its
    distance is allowed too.
    """
    exact = evaluate(case, case.operator.dense)
    to = {"u": case.u.float(), "query": None if case.query is None else case.query.float()}
    on = case.query_domain
    domain, other = case.domain.to(torch.float32), None if on is None else on.to(torch.float32)
    single = replace(case, **to, domain=domain, query_domain=other)
    try:
        found = evaluate(single, case.operator.float())
        try:
            return compare(case, found, exact, SINGLE)
        except Wrong:
            least = compare(case, evaluate(single, case.operator.dense), exact, float("inf"))
            return compare(case, found, exact, 10 * least)
    finally:
        case.operator.double()


def check_jvp(case: Case) -> float | None:
    on = {} if case.query_domain is None else {"query_domain": case.query_domain}
    u = case.u.nan_to_num()
    tangent = torch.randn(u.shape, generator=torch.Generator().manual_seed(1)).to(u)

    def function(x: Tensor) -> Tensor:
        return case.operator(x, case.domain, query=case.query, **on)

    try:
        out, moved = torch.func.jvp(function, (u,), (tangent,))
    except NotImplementedError:  # a DerivativeError, or torch's own of an op without the rule
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
    if not case.domain.causal or case.query_domain is not None:
        return None
    draw, n = Draw(case.number), case.domain.size
    op, state, parts, t = case.operator, None, [], 0
    with torch.no_grad():
        whole = op(case.u, case.domain)
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
    return close([("steps", torch.cat(parts, 1), whole)], EXACT)


FUNCTIONS = {
    "forward": check_forward,
    "gradient": check_gradient,
    "jvp": check_jvp,
    "step": check_step,
}


# --- the run --------------------------------------------------------------------------------------


@dataclass
class Tally:
    """What became of one check of one operator: ``missing`` counts cases without a forward-mode
    rule, or without an order to step along.
    """

    passed: int = 0
    refused: int = 0
    missing: int = 0
    failed: int = 0
    worst: float = 0.0


def run_case(number: int, names: list[str]) -> Iterator[tuple[str, str, float | str | None]]:
    """Check, outcome (``passed``, ``refused``, ``missing`` or ``failed``), and a distance or a
    reason; nothing where the domain is none of the operator's.
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
            # a strategy that was asked for may refuse where the definition does not
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
    """Cases until the minutes are over, or so many: how many, tallies by operator and check, and
    the failures.
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
    print(
        f"{'operator':18}{'check':10}{'passed':>8}{'refused':>8}{'missing':>8}{'failed':>8}  worst"
    )
    for name, checks in tallies.items():
        for check, t in checks.items():
            counts = f"{t.passed:8}{t.refused:8}{t.missing:8}{t.failed:8}"
            print(f"{name:18}{check:10}{counts}  {t.worst:.0e}")


def page() -> str:
    """The page of the committed result."""
    found = load(OUT.name)
    rows = [
        (name, check, *(f"{t[key]:,}" for key in OUTCOMES), f"{t['worst']:.0e}")
        for name, checks in found["operators"].items()
        for check, t in checks.items()
    ]
    command = f"`python -m evidence fuzz --minutes {found['minutes']:g} --seed {found['seed']}`"
    return (
        head("Random operators on random domains", "fuzz", OUT.name)
        + f"{TEXT}\n{found['cases']:,} cases, {len(found['failures'])} failures; {command} on "
        f"one thread of {found['machine']['processor']}, torch {found['machine']['torch']}.\n\n"
        + table(("operator", "check", *OUTCOMES, "worst"), rows)
        + "\n"
    )


def main(argv: list[str] | None = None) -> int:
    """The command; 1 where something failed."""
    parser = argparse.ArgumentParser(prog="python -m evidence fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--cases", type=int, help="this many instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other cases")
    parser.add_argument("--operator", action="append", help="only these")
    parser.add_argument("--case", type=int, help="repeat one case")
    parser.add_argument("--out", type=Path, help=f"write the result as JSON, such as {OUT}")
    args = parser.parse_args(argv)
    names = args.operator or list_operators()
    warnings.filterwarnings("ignore", "displacements of")  # CKConv beyond its extent: as meant
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
        result = {
            "machine": describe(),
            "seed": args.seed,
            "minutes": round((time.monotonic() - start) / 60, 1),
            "cases": done,
            "operators": {
                name: {check: vars(t) for check, t in c.items()} for name, c in tallies.items()
            },
            "failures": failures,
        }
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(bool(failures))
