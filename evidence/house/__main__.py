"""Print the tables of this folder. ``--write`` puts them into ``docs/architecture.md``; ``--draw
ROOM`` names ten functions for a reader instead.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from pathlib import Path

from .draw import draw
from .imports import circles, exports, import_graph
from .sources import GROUPS, Counts, count_rooms
from .walk import OPTIONS, PACKAGE, files_of_one_forward, hops, visits_before_the_form

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"
BEGIN, END = "<!-- measured -->", "<!-- end of measured -->"
HEADER = """\
| room | files | tokens of code | tokens per line | comments | conditionals | local imports |
|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evidence.house", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write the tables into {PAGE.name}")
    parser.add_argument("--draw", metavar="ROOM", help="name functions of a room at random")
    parser.add_argument("--count", type=int, default=10, help="how many (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    arguments = parser.parse_args()

    if arguments.draw:
        for function in draw(PACKAGE, arguments.draw, arguments.count, arguments.seed):
            print(function)
        return
    text = "\n\n".join([room_table(), import_lines(), walk_table()])
    print(text)
    if arguments.write:
        write(text)


def room_table() -> str:
    """Return a Markdown table with one row per room, then one per group of rooms."""
    rooms = count_rooms(PACKAGE)
    groups: defaultdict[str, Counts] = defaultdict(Counts)
    for room, counts in rooms.items():
        groups[GROUPS[room.split("/")[0]]] += counts
    total = sum(rooms.values(), Counts())

    rows = [_row(f"`{room}`", counts) for room, counts in rooms.items()]
    rows += [_row(f"*{group}*", counts) for group, counts in sorted(groups.items())]
    rows.append(_row("**all**", total))
    return "\n".join([HEADER, *rows])


def import_lines() -> str:
    """Return the number of exports of ``fredholm.integral`` and the circles of imports."""
    found = circles(import_graph(PACKAGE))
    lines = [
        f"`fredholm.integral` exports {exports(PACKAGE, 'integral')} names.",
        f"Circles among modules that import each other when loaded: {len(found)}.",
    ]
    lines += [f"A circle: {', '.join(circle)}." for circle in found]
    return "\n".join(lines)


def walk_table() -> str:
    """Return a Markdown table of the files that one forward of each paper's operator enters."""
    rows = ["| operator | files | before its paper's folder | visits before the form |"]
    rows.append("|---|---|---|---|")
    for name in OPTIONS:
        files = files_of_one_forward(name)
        visits = max(visits_before_the_form(name).values())
        rows.append(f"| `{name}` | {len(files)} | {hops(files)} | {visits} |")
    return "\n".join(rows)


def write(text: str) -> None:
    """Replace what stands between the two marks in the page."""
    page = PAGE.read_text(encoding="utf-8")
    block = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not block.search(page):
        raise SystemExit(f"{PAGE}: expected the marks {BEGIN} and {END}, got neither; add both")
    PAGE.write_text(block.sub(lambda _: f"{BEGIN}\n\n{text}\n\n{END}", page), encoding="utf-8")
    print(f"\nwritten to {PAGE}")


def _row(name: str, counts: Counts) -> str:
    cells = [
        name,
        f"{counts.files}",
        f"{counts.tokens:,}",
        f"{counts.tokens_per_line:.1f}",
        f"{counts.comments_per_thousand:.1f}",
        f"{counts.conditionals_per_thousand:.1f}",
        f"{counts.local_imports}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
