"""The claims of the continuous transformer's paper, and remarks with further numbers.

"Costs little" means at most one point.
"""

from __future__ import annotations

import statistics
from typing import Any

from ..kit.claims import Claim, Sample
from ..kit.page import load
from ..kit.statistics import paired

Found = dict[str, list[dict[str, Any]]]
# Numbers of steps: that of the training, and others.
OWN, LEAST, FEW, MOST = 4, 1, 2, 16


def result_at(row: dict[str, Any], steps: int, control: str = "constant") -> dict[str, Any]:
    """Return the results of a run at a number of steps."""
    return next(one for one in row["steps"][control] if one["steps"] == steps)


def score(runs: Found, name: str, steps: int = OWN, control: str = "constant") -> float:
    """Return the mean test accuracy in percent at a number of steps."""
    accuracies = [result_at(row, steps, control)["accuracy"] for row in runs[name]]
    return 100 * statistics.mean(accuracies)


def error(runs: Found, name: str, steps: int = OWN) -> float:
    """Return the mean relative error of u(T) at a number of steps."""
    return statistics.mean(result_at(row, steps)["error"] for row in runs[name])


def lost(runs: Found, name: str, kind: str, level: int) -> float:
    """Return the mean points of accuracy lost under a kind and level of noise."""
    return 100 * statistics.mean(row["accuracy"] - row["noise"][kind][level] for row in runs[name])


def growth(runs: Found, name: str, steps: int = OWN) -> float:
    """Return the mean growth of a difference from time 0 to T."""
    return statistics.mean(row["monitors"][str(steps)]["growth"][-1] for row in runs[name])


def calls(runs: Found, name: str, steps: int = OWN) -> int:
    """Return the number of attention evaluations of a forward pass."""
    return result_at(runs[name][0], steps)["calls"]


def rows_at(runs: Found, name: str, steps: int) -> list[dict[str, Any]]:
    """Return a row per seed with a variant's accuracy at a number of steps."""
    found = []
    for row in runs[name]:
        at = result_at(row, steps)
        scores = {key: at[key] for key in ("accuracy", "answers") if key in at}
        found.append({"variant": f"{name} {steps}", "seed": row["seed"], **scores})
    return found


def better(a: str, b: str, steps_a: int = OWN, steps_b: int = OWN) -> Sample:
    """Return a sample: accuracy of ``a`` at its steps minus that of ``b`` at its, per seed."""

    def sample(runs: Found) -> list[float]:
        rows = rows_at(runs, a, steps_a) + rows_at(runs, b, steps_b)
        return paired(rows, f"{a} {steps_a}", f"{b} {steps_b}")

    return sample


def orders() -> str:
    """Print the measured orders of the schemes on smooth terms."""
    found = {row["scheme"]: row["order"] for row in load("splitting.json")["orders"]}
    first = _list(("Lie", "parallel"), found.get, ".2f")
    second = _list(("Strang",), found.get, ".2f")
    return f"{first} and {second} on smooth terms ([splitting](../splitting.md))"


CLAIMS = [
    Claim(
        f"depth is a numerical parameter: {MOST} steps instead of {OWN} cost the pre-norm model little",
        "§1, §3",
        better("pre", "pre", OWN, MOST),
        below=0.01,
        digits=1,
    ),
    Claim(
        "other schemes make better models: Strang against Lie",
        "§1, §7",
        better("strang", "pre"),
        digits=1,
    ),
    Claim(
        "the same of parallel splitting",
        "§1, §7",
        better("parallel", "pre"),
        digits=1,
    ),
    Claim(
        "the equation suggests new architectures: penalties instead of projections gain",
        "§7",
        better("soft", "pre"),
        digits=1,
    ),
    Claim(
        "projecting on S1 twice improves accuracy: post-norm against pre-norm",
        "Remark 1",
        better("post", "pre"),
        digits=1,
    ),
    *(
        Claim(text, "§1, §3", better(name, name, OWN, steps), below=0.01, digits=1)
        for text, name, steps in (
            (f"{FEW} steps cost the pre-norm model little", "pre", FEW),
            (f"{MOST} steps cost the post-norm model little", "post", MOST),
            (f"{FEW} steps cost the post-norm model little", "post", FEW),
            (f"{MOST} steps cost the soft model little", "soft", MOST),
            (f"{FEW} steps cost the soft model little", "soft", FEW),
        )
    ),
    Claim(
        f"one control for all times serves in {FEW} steps, where separate ones are skipped",
        "§3",
        better("shared", "pre", FEW, FEW),
        digits=1,
    ),
    Claim(
        "a step of the split equation is exactly an encoder layer; ViT and CvT are such schemes too",
        "§4 to §6",
        shown=lambda runs: (
            "outputs and gradients equal those of `torch.nn.TransformerEncoder` and of ViT and BERT "
            "layers to rounding, the pre-norm ones in a scheme of their own: "
            "`pytest tests/layers/encoder tests/models/test_continuous.py`"
        ),
    ),
    Claim(
        "the splittings are of first order, Strang's of second",
        "App. C, Remark 1",
        shown=lambda runs: orders(),
    ),
    Claim(
        "control theory may bring new optimisation methods and insight into training",
        "§7",
        untestable="the paper proposes none",
    ),
]


def remarks(runs: Found) -> str:
    """Return a list of further numbers that aren't differences of two variants."""
    lines = (_orders, _depth, _schemes, _designs, _normalisation, _shared)
    return "\n".join(f"- {line(runs)}." for line in lines)


def _list(names: tuple[str, ...], number: Any, style: str = ".1f", last: str = ", ") -> str:
    """Format ``number(name)`` for each name."""
    return last.join(format(number(name), style) for name in names)


def _orders(runs: Found) -> str:
    off = _list(("pre", "parallel", "strang", "soft"), lambda n: error(runs, n), ".0%")
    return (
        f"Trained models do not resolve their equations: with the {OWN} steps of training, the relative error of u(T) "
        f"of the pre-norm, parallel, Strang and soft models is {off}"
    )


def _depth(runs: Found) -> str:
    names = ("post", "pre", "soft")
    more = _list(names, lambda n: score(runs, n) - score(runs, n, MOST))
    fewer = _list(names, lambda n: score(runs, n) - score(runs, n, FEW))
    return (
        f"With {MOST} steps instead of {OWN} and no retraining, the post-norm, pre-norm and soft "
        f"models lose {more} points; with {FEW} steps {fewer}. Accuracy survives although u(T) "
        "changes much, so it does not show that the equation was resolved"
    )


def _schemes(runs: Found) -> str:
    names = ("strang", "parallel")
    clean = _list(names, lambda n: score(runs, n), last=" and ")
    words = _list(names, lambda n: lost(runs, n, "tokens", 1), last=" and ")
    grown = _list(names, lambda n: growth(runs, n), last=" and ")
    dear = calls(runs, "strang") // calls(runs, "pre")
    return (
        f"Strang and parallel splitting reach {clean}%, Lie {score(runs, 'pre'):.1f}%. With a fifth "
        f"of the words unknown they lose {words} points, Lie {lost(runs, 'pre', 'tokens', 1):.1f}. A "
        f"perturbation grows by a factor of {grown}, with Lie {growth(runs, 'pre'):.1f}. Strang evaluates "
        f"attention {dear} times as often"
    )


def _designs(runs: Found) -> str:
    return (
        "Penalties instead of projections, which the equation needs to have a solution, reach "
        f"{score(runs, 'soft'):.1f}%, the post-norm and pre-norm encoders "
        f"{score(runs, 'post'):.1f} and {score(runs, 'pre'):.1f}%, at the same cost. In a single "
        f"step they reach {score(runs, 'soft', LEAST):.1f}%, the encoders "
        f"{score(runs, 'post', LEAST):.1f} and {score(runs, 'pre', LEAST):.1f}%"
    )


def _normalisation(runs: Found) -> str:
    names = ("post", "soft", "pre")
    grown = _list(names, lambda n: growth(runs, n))
    words = _list(names, lambda n: lost(runs, n, "tokens", 1))
    return (
        f"A perturbation grows by a factor of {grown} with hard projections, soft ones, and norms "
        f"inside the terms only. With a fifth of the words unknown the three lose {words} points. "
        "The relaxation cannot be tested separately: at Δt = 1 it is the network's skip connection"
    )


def _shared(runs: Found) -> str:
    saved = 1 - runs["shared"][0]["evolution_parameters"] / runs["pre"][0]["evolution_parameters"]
    return (
        f"One control for all times has {saved:.0%} fewer parameters in the evolution and reaches "
        f"{score(runs, 'shared'):.1f}%, separate ones {score(runs, 'pre'):.1f}%. In {FEW} steps it "
        f"reaches {score(runs, 'shared', FEW):.1f}%. Separate controls, half of which are then skipped, "
        f"reach {score(runs, 'pre', FEW):.1f}%, and {score(runs, 'pre', FEW, 'linear'):.1f}% if "
        "interpolated"
    )
