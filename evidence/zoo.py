"""Conversion of hundreds of modules: each is converted and compared, or refused with an error."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch

from fredholm.convert import as_operator, from_encoder
from fredholm.errors import ConversionError
from fredholm.integral.conversion import compare
from fredholm.integral.probe import BATCH, probe
from fredholm.layers.encoder.stacks import read_stack

from .kit.machine import describe
from .kit.page import PAGES, head, load, rounded, save, table
from .kit.subject import Options, Subject
from .zoo_modules import Specimen, modules

FILE = "conversions.json"
SUBJECT = Subject(
    __name__, runs={"modules": ":run_modules"}, pages={PAGES / "conversions.md": ":page"}
)

PACKAGES = ("transformers", "torch_geometric", "timm", "neuralop", "mambapy")
OUTCOMES = {
    "operator": "an operator with the layer's output and gradient",
    "evolution": "an evolution with the encoder's output and gradient",
    "refused": "refused by name",
}


def examine(specimen: Specimen) -> dict[str, Any]:
    """Convert a module in float64; return a row with the result and its error."""
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
            # Suggestions are cut off, since they depend on the registered layers.
            suggestion = "; fredholm.convert.convertible|; parts of it may|; did you mean"
            message = re.split(suggestion, str(error))[0]
            return row | {"outcome": "refused", "says": message}


def _operator(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert a layer and compare it."""
    operator = as_operator(module, probe=False, **options)
    error = compare(module, operator, **options)
    return {"outcome": "operator", "says": type(operator.kernel).__name__, "error": error}


def _evolution(module: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Convert an encoder and compare it."""
    evolution = from_encoder(module, probe=False, **options)
    shape = (BATCH, 6, evolution.dim or 0)
    error = probe(module, read_stack(module).call, evolution, shape, advice="")
    terms = ", ".join(type(term).__name__ for term in evolution.terms)
    return {"outcome": "evolution", "says": terms, "error": error}


def run(specimens: Iterable[Specimen]) -> list[dict[str, Any]]:
    """Examine modules and return a row for each, printing them one by one."""
    rows = []
    for specimen in specimens:
        row = examine(specimen)
        rows.append(row)
        print(f"{row['library']:16} {row['module'][:72]:72} {row['outcome']}", flush=True)
    return rows


def page() -> str:
    """Return the text of docs/results/conversions.md."""
    found = load(FILE)
    rows, machine = found["modules"], found["machine"]
    summary = _summary(Counter(row["outcome"] for row in rows))
    parts = [
        head("Results: what is converted and what is refused", "zoo", FILE)
        + f"{len(rows)} modules through `as_operator` and `from_encoder`: {summary}.\n"
        "The error is the larger of those of output and input gradient on a small random signal,\n"
        "in float64 and relative to the layer's norm. Errors above 1e-13 are those of modules that compute a part in float32 whatever their dtype,\n"
        "such as the cosines of rotary positions or Mamba's scan; [layers](unification.md) has such modules with cosines in float64. A refusal is a `ConversionError`."
    ]
    for library in dict.fromkeys(row["library"] for row in rows):
        title = f"## {library}"
        version = found["versions"].get(library)
        if version:
            title += f" {version}"
        lines = [_line(row) for row in rows if row["library"] == library]
        parts.append(title)
        parts.append(table(("module", "by", "becomes", "error"), lines))
    command = "`python -m evidence run zoo`"
    parts.append(f"{machine['processor']}, torch {machine['torch']}. Command: {command}.")
    return "\n\n".join(parts) + "\n"


def _summary(counts: Counter[str]) -> str:
    parts = [f"{counts[name]} {text}" for name, text in OUTCOMES.items() if counts[name]]
    absent = sum(n for name, n in counts.items() if name.startswith("needs "))
    if absent:
        parts.append(f"{absent} of packages that were not there")
    return "; ".join(parts)


def _line(row: dict[str, Any]) -> tuple[str, ...]:
    """Return a module's cells in the table."""
    result = row.get("says", "")
    if row["outcome"] == "refused":
        result = f"refused: {result}"
    elif row["outcome"].startswith("needs "):
        result = row["outcome"]

    size = ""
    if "error" in row:
        size = f"{row['error']:.0e}" if row["error"] else "0"
    # A bar would end the cell of a Markdown table.
    return f"`{row['module']}`", f"`{row['by']}`", result.replace("|", "\\|"), size


def versions() -> dict[str, str]:
    """Return the versions of the installed packages."""
    distributions = ("transformers", "torch-geometric", "timm", "neuraloperator", "mambapy")
    found = {}
    for package, name in zip(PACKAGES, distributions):
        if importlib.util.find_spec(package) is not None:
            found[package] = importlib.metadata.version(name)
    return found


def run_modules(options: Options) -> None:
    """Examine all modules and save the rows.

    With ``--only`` the modules whose name has the text are only printed.
    """
    if options.only:
        text = " ".join(options.only)
        run(specimen for specimen in modules() if text in specimen.name)
        return
    found = {"machine": describe(), "versions": versions(), "modules": run(modules())}
    save(rounded(found), FILE, options.results)
