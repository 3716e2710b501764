"""``python -m benchmarks.zoo``: hundreds of modules, each converted and compared, or refused by name;
writes docs/results/conversions.json and docs/results/conversions.md.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from fredholm.convert import as_operator, from_encoder
from fredholm.convert.encoder.stacks import read_stack
from fredholm.errors import ConversionError
from fredholm.integral.conversion import compare
from fredholm.integral.probe import BATCH, probe

from .machine import describe
from .theorems.drawing import RESULTS, save_numbers
from .zoo_modules import Specimen, modules

PACKAGES = ("transformers", "torch_geometric", "timm", "neuralop", "mambapy")
OUTCOMES = {
    "operator": "an operator with the layer's output and gradient",
    "evolution": "an evolution with the encoder's output and gradient",
    "refused": "refused by name",
}


def examine(specimen: Specimen) -> dict[str, Any]:
    """One row: what became of a module, and how far from it that is, in float64."""
    way = "from_encoder" if specimen.encoder else "as_operator"
    row: dict[str, Any] = {"library": specimen.library, "module": specimen.name, "by": way}
    if specimen.library in PACKAGES and importlib.util.find_spec(specimen.library) is None:
        return row | {"outcome": f"needs {specimen.library}"}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = specimen.build()
        if not isinstance(module, torch.jit.ScriptModule):
            module = module.double()
        module = module.train(specimen.training)
        convert = _evolution if specimen.encoder else _operator
        try:
            return row | convert(module, specimen.options)
        except ConversionError as error:
            # Suggestions depend on what else is registered.
            says = re.split("; known: |; did you mean", str(error))[0]
            return row | {"outcome": "refused", "says": says}


def _operator(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    operator = as_operator(module, probe=False, **options)
    error = compare(module, operator, **options)
    return {"outcome": "operator", "says": type(operator.kernel).__name__, "error": error}


def _evolution(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    evolution = from_encoder(module, probe=False, **options)
    shape = (BATCH, 6, evolution.dim or 0)
    error = probe(module, read_stack(module).call, evolution, shape, advice="")
    terms = ", ".join(type(term).__name__ for term in evolution.terms)
    return {"outcome": "evolution", "says": terms, "error": error}


def run(specimens: Iterable[Specimen]) -> list[dict[str, Any]]:
    """A row for each module, printed as it comes."""
    rows = []
    for specimen in specimens:
        row = examine(specimen)
        rows.append(row)
        print(f"{row['library']:16} {row['module'][:72]:72} {row['outcome']}", flush=True)
    return rows


def page(found: dict[str, Any]) -> str:
    """docs/results/conversions.md."""
    rows, machine = found["modules"], found["machine"]
    counts = Counter(row["outcome"] for row in rows)
    lines = [
        "# Results: what is converted and what is refused",
        "",
        "<!-- Written by `python -m benchmarks.zoo` from docs/results/conversions.json; edit that "
        "script, not this page. -->",
        "",
        f"{len(rows)} modules through `as_operator` and `from_encoder`: {_summary(counts)}.",
        "The error is the larger of those of output and input gradient on a small random signal,",
        "in float64 and relative to the layer's norm. A refusal is a `ConversionError`.",
    ]
    for library in dict.fromkeys(row["library"] for row in rows):
        version = found["versions"].get(library)
        lines += ["", f"## {library}{f' {version}' if version else ''}", ""]
        lines += ["| module | by | becomes | error |", "|---|---|---|---|"]
        lines += [_line(row) for row in rows if row["library"] == library]
    command = "`python -m benchmarks.zoo`"
    lines += ["", f"{machine['processor']}, torch {machine['torch']}. Command: {command}.", ""]
    return "\n".join(lines)


def _summary(counts: Counter[str]) -> str:
    parts = [f"{counts[name]} {text}" for name, text in OUTCOMES.items() if counts[name]]
    absent = sum(n for name, n in counts.items() if name.startswith("needs "))
    parts += [f"{absent} of packages that were not there"] if absent else []
    return "; ".join(parts)


def _line(row: dict[str, Any]) -> str:
    says, error = row.get("says", ""), row.get("error")
    if row["outcome"] == "refused":
        says = f"refused: {says}"
    elif row["outcome"].startswith("needs "):
        says = row["outcome"]
    size = "" if error is None else f"{error:.0e}" if error else "0"
    cells = (f"`{row['module']}`", f"`{row['by']}`", says.replace("|", "\\|"), size)
    return f"| {' | '.join(cells)} |"


def versions() -> dict[str, str]:
    """Of the packages that are there."""
    names = dict(zip(PACKAGES, ("transformers", "torch-geometric", "timm", "neuraloperator", "mambapy")))
    return {
        package: importlib.metadata.version(name)
        for package, name in names.items()
        if importlib.util.find_spec(package) is not None
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo", description=__doc__)
    parser.add_argument(
        "--write", action="store_true", help="only write the page from the results that are there"
    )
    parser.add_argument("--only", help="modules whose name contains this; nothing is written")
    args = parser.parse_args(arguments)
    numbers = RESULTS / "conversions.json"
    if args.only:
        run(specimen for specimen in modules() if args.only in specimen.name)
        return
    if not args.write:
        rows = run(modules())
        found = {"machine": describe(), "versions": versions(), "modules": rows}
        save_numbers(found, numbers)
    found = json.loads(numbers.read_text(encoding="utf-8"))
    (RESULTS / "conversions.md").write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
