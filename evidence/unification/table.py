"""Tables of errors: of families in docs/unification.md, of all configurations in
docs/results/unification.md.
"""

from __future__ import annotations

from typing import Any

from ..kit.page import DOCS, head, insert, load, table, with_block

FILE = "unification.json"
COLUMNS = ("output", "inputs", "weights", "kernel")

# Formulas of the families' kernels, with a mass of 1 per point (for attention as a density).
FORMULAS = {
    "linear": r"$A\,\delta(x-y)$",
    "convolution": r"$\kappa(x-y)$, the tap at $x-y$; strided: queries on a sub-grid",
    "pooling": r"$1/\lvert\text{window}\rvert$ in the window; maximum: 1 at the largest",
    "spectral": r"$\sum_k \hat\kappa_k\,e^{2\pi i k (x-y)}$",
    "attention": r"$Z(x)^{-1} e^{\langle W_Q u(x), W_K u(y)\rangle/\sqrt d}\,W_V$",
    "graph": r"$\alpha(u(x), u(y))\,W$ on the edges",
    "recurrence": r"$G_t\,\big[\prod_{r=s+1}^{t} A_r\big]\,D_s W$, $s \le t$",
    "state space": r"$C_t\,\big[\prod_{r=s+1}^{t} \bar A_r\big]\,\bar B_s$, $s \le t$",
}


def families(rows: list[dict[str, Any]]) -> list[str]:
    """Return the families in the order of the formulas, then others."""
    found = list(dict.fromkeys(row["family"] for row in rows))
    order = list(FORMULAS)
    return sorted(found, key=lambda name: order.index(name) if name in order else len(order))


def overview(found: dict[str, Any]) -> str:
    """Return a table with a family per row: its formula, number of configurations, worst errors."""
    heads = ("family", "kernel", "measured", "output", "gradients", "explicit kernel", "float32")
    lines = []
    for name in families(found["configurations"]):
        rows = [row for row in found["configurations"] if row["family"] == name]
        done = [row for row in rows if "float64" in row]
        count = str(len(rows))
        if len(done) < len(rows):
            count = f"{len(done)} of {len(rows)}"

        def worst(*names: str, done: list[dict[str, Any]] = done) -> str:
            found = (row["float64"][column] for row in done for column in names)
            return _number(max(found, default=None))

        single = _number(max((max(row["float32"].values()) for row in done), default=None))
        errors = worst("output"), worst("inputs", "weights"), worst("kernel")
        lines.append((name, FORMULAS.get(name, ""), count, *errors, single))
    return f"{table(heads, lines)}\n\n{_machine(found)}"


def page() -> str:
    """Return the text of docs/results/unification.md, with every configuration."""
    found = load("unification.json")
    parts = [
        head("Results: classical layers as integral operators", "unification", FILE)
        + "The largest difference between operator and layer, relative to the largest value, on random weights "
        "and inputs: of the output, of the input\n"
        "gradients, of the weight gradients, and of output and all gradients through the explicit "
        "kernel, in float64. The last column is the worst\n"
        "of the four in float32. [Other modules](conversions.md) are refused by name."
    ]
    heads = ("layer", "output", "input gradient", "weight gradient", "explicit kernel", "float32")
    for name in families(found["configurations"]):
        rows = [row for row in found["configurations"] if row["family"] == name]
        lines = [(row["label"], *_cells(row)) for row in rows]
        parts += [f"## {name.capitalize()}", table(heads, lines)]
    return "\n\n".join([*parts, _machine(found)]) + "\n"


def blocks() -> str:
    """Return the text of docs/unification.md with new tables of errors and times."""
    from . import speed

    text = with_block(DOCS / "unification.md", "unification", overview(load(FILE)))
    return insert(text, "speed", speed.table(load("unification-speed.json")))


def _cells(row: dict[str, Any]) -> list[str]:
    if "float64" not in row:
        return [f"needs {row['requires']}", "", "", "", ""]
    return [*(_number(row["float64"][c]) for c in COLUMNS), _number(max(row["float32"].values()))]


def _number(value: float | None) -> str:
    """Format an error."""
    if value is None:
        return ""
    if value == 0:
        return "0"
    return f"{value:.0e}"


def _machine(found: dict[str, Any]) -> str:
    machine = found["machine"]
    return f"{machine['processor']}, torch {machine['torch']}. Command: `python -m evidence run unification`."
