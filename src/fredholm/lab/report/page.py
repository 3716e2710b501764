"""The page: sections to one self-contained HTML file. It loads nothing, and runs no script but that
of the interactive figure, where it has one.

What it looks like stands in ``templates/``: ``page.html``, ``parts.html``, ``style.css`` and
``explore.js``; what it says in ``run.html``,
``comparison.html`` and ``conversion.html``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

PROSE = ("run.html", "comparison.html", "conversion.html")  # templates of what pages say
DPI = 150  # of the pictures; a page has 96 units an inch, so that they are sharp on dense screens


class Data(NamedTuple):
    """The numbers of a figure as a table: names of its columns, and rows of cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def csv(self) -> str:
        """Return the table as CSV; real numbers have six digits, and what is not there is empty.

        Example:
            >>> Data(["distance", "norm"], [[0, 1 / 3], [1, float("nan")]]).csv()
            'distance,norm\\n0,0.333333\\n1,\\n'
        """
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(self.head)
        table.writerows([_cell(cell) for cell in row] for row in self.rows)
        return text.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return "" if value != value else f"{value:.6g}"


@dataclass(frozen=True)
class Picture:
    """One figure: PNG by theme, its file name, what it shows for those who cannot see it, its
    caption (HTML), and its numbers.
    """

    name: str
    alt: str
    caption: str
    png: dict[str, bytes]
    data: Data | None = None

    def size(self, theme: str = "light") -> tuple[int, int]:
        """Width and height on the page, from the head of the PNG."""
        head = self.png[theme]
        width, height = (int.from_bytes(head[start : start + 4], "big") for start in (16, 20))
        return round(width * 96 / DPI), round(height * 96 / DPI)


@dataclass(frozen=True)
class Section:
    """A part of the page: heading, text (HTML), figures, and HTML that follows them, below or
    beside; ``explorer`` is what the interactive figure is made of.
    """

    key: str
    heading: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    after: str = ""
    beside: bool = False
    explorer: dict[str, Any] | None = None


def render_page(
    title: str, lead: str, facts: list[tuple[str, str, str]], sections: list[Section], foot: str
) -> str:
    """The whole page. ``facts`` are (name, value, note); ``lead`` and ``foot`` are plain text.

    Example:
        >>> page = render_page("Digits", "1 < 2", [], [Section("maps", "Maps", "<p>None</p>")], "End")
        >>> "<p class=\\"lead\\">1 &lt; 2</p>" in page, "<h2>Maps</h2>" in page
        (True, True)
    """
    content: dict[str, Any] = {"title": title, "lead": lead, "facts": facts, "foot": foot}
    script = script_source() if any(section.explorer for section in sections) else ""
    return _template("page.html").render(
        **content, sections=sections, script=Markup(script), policy=Markup(policy(script))
    )


def render_figure(title: str, found: dict[str, Any]) -> str:
    """Return the interactive figure as a page of its own; ``found`` is a section's ``explorer``."""
    script = script_source()
    return _template("figure.html").render(
        title=title, found=found, script=Markup(script), policy=Markup(policy(script))
    )


def script_source() -> str:
    """The script of the interactive figure, the only one that a page may run."""
    return files("fredholm.lab.report").joinpath("templates/explore.js").read_text("utf-8").strip()


def policy(script: str) -> str:
    """The page's Content-Security-Policy: nothing is loaded, and no script runs but the given one,
    known by its SHA-256.

    Example:
        >>> policy("")
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        >>> policy("1").partition("script-src ")[2]
        "'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    rules = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if not script:
        return rules
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return f"{rules}; script-src 'sha256-{digest}'"


def table(head: list[str], rows: list[list[str]]) -> str:
    """A plain table; cells are escaped.

    Example:
        >>> table(["N"], [["<4"]])
        '<table><thead><tr><th>N</th></tr></thead><tbody><tr><td>&lt;4</td></tr></tbody></table>'
    """
    return str(_template("parts.html").module.table(head, rows))  # pyright: ignore[reportAttributeAccessIssue]


def example_table(
    title: str, label: str, names: Sequence[str], rows: Sequence[Any], left_out: int
) -> str:
    """Rows of a user's table under the names of its columns, what was said of each in front."""
    macros: Any = _template("parts.html").module
    return str(macros.example_table(title, label, names, rows, left_out))


def marked_texts(title: str, rows: Sequence[Any]) -> str:
    """Texts whose words are marked by a level, below what was said of each."""
    macros: Any = _template("parts.html").module
    return str(macros.marked_texts(title, rows))


def words(name: str, /, **values: Any) -> str:
    """The prose of a section or a caption, a macro of one of :data:`PROSE`; values are escaped.

    Example:
        >>> words("mistakes", wrong=1, count=9, what="<b>")
        '<p>1 of 9 &lt;b&gt; were classified wrongly.</p>'
    """
    modules = [_template(page).module for page in PROSE]
    macro = next(getattr(module, name) for module in modules if hasattr(module, name))
    return str(macro(**values))


def folded(title: str, html: str) -> str:
    """Something long, folded away under its title."""
    return str(_template("parts.html").module.folded(title, html))  # pyright: ignore[reportAttributeAccessIssue]


def preformatted(text: str) -> str:
    """Text as it is written, in letters of one width."""
    return str(_template("parts.html").module.preformatted(text))  # pyright: ignore[reportAttributeAccessIssue]


# --- parts ----------------------------------------------------------------------------------------


@cache
def _template(name: str) -> Template:
    environment = Environment(
        loader=PackageLoader("fredholm.lab.report"),
        autoescape=lambda name: name is not None and name.endswith(".html"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["data_uri"] = _data_uri
    environment.filters["csv_uri"] = _csv_uri
    return environment.get_template(name)


def _data_uri(png: bytes) -> Markup:
    """A picture as its own address."""
    return Markup("data:image/png;base64,") + base64.b64encode(png).decode("ascii")


def _csv_uri(data: Data) -> Markup:
    """A table as its own address."""
    encoded = base64.b64encode(data.csv().encode("utf-8")).decode("ascii")
    return Markup("data:text/csv;charset=utf-8;base64,") + encoded
