"""The page: sections become one self-contained HTML file. It loads nothing, and runs no script but
that of the interactive figure.

Its look is in ``templates/``: ``page.html``, ``parts.html``, ``style.css`` and ``explore.js``. Its
prose is in one template per kind of page: ``run.html``, ``comparison.html``, ``conversion.html``.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

# Templates whose macros :func:`words` looks up.
PROSE = ("run.html", "comparison.html", "conversion.html", "parts.html")

# Of the pictures. A page has 96 units per inch, so that they are sharp on dense screens too.
DPI = 150


class Fact(NamedTuple):
    """A number at the top of a page: its name, how it is written, and a note below it."""

    name: str
    value: str
    note: str


class Data(NamedTuple):
    """The numbers of a figure as a table: names of its columns, and rows of cells."""

    head: Sequence[str]
    rows: Sequence[Sequence[Any]]

    @classmethod
    def of(cls, columns: Mapping[str, Iterable[Any]]) -> Data:
        """Return the table of columns of equal length, by name.

        Example:
            >>> Data.of({"epoch": (1, 2), "loss": (0.5, 0.25)}).rows
            [(1, 0.5), (2, 0.25)]
        """
        return cls(list(columns), list(zip(*columns.values())))

    def csv(self) -> str:
        """Return the table as CSV. Real numbers have six digits; NaN becomes an empty cell.

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
    # NaN is the only number that differs from itself.
    if value != value:
        return ""
    return f"{value:.6g}"


@dataclass(frozen=True)
class Picture:
    """One figure of a page.

    Attributes:
        name: of its files, and its address within the page.
        alt: what it shows, for readers who cannot see it.
        caption: HTML.
        png: the picture by theme, from :func:`.style.render`.
        data: its numbers, linked below the caption.
    """

    name: str
    alt: str
    caption: str
    png: dict[str, bytes]
    data: Data | None = None

    def size(self, theme: str = "light") -> tuple[int, int]:
        """Return width and height on the page, from the header of the PNG."""
        head = self.png[theme]
        width, height = (int.from_bytes(head[start : start + 4], "big") for start in (16, 20))
        return round(width * 96 / DPI), round(height * 96 / DPI)


@dataclass(frozen=True)
class Section:
    """A part of the page.

    Attributes:
        key: its address within the page.
        heading: in plain text.
        text: HTML above the figures.
        pictures: its figures.
        after: HTML that follows the figures.
        beside: whether that stands beside the figures where the page is wide enough.
        explorer: the content of the interactive figure, see :mod:`.explore`.
    """

    key: str
    heading: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    after: str = ""
    beside: bool = False
    explorer: dict[str, Any] | None = None


Numbers = dict[str, Any]
"""The numbers of a section's figures by name, for numbers.json; of no section, why there is none."""

Numbered = tuple[Section | None, Numbers]


def render_page(
    title: str,
    lead: str,
    facts: Sequence[tuple[str, str, str]],
    sections: Sequence[Section],
    foot: str,
) -> str:
    """Return the HTML of a page; title, ``lead``, facts and ``foot`` are plain text.

    Example:
        >>> page = render_page("Digits", "1 < 2", [], [Section("maps", "Maps", "<p>None</p>")], "End")
        >>> "<p class=\\"lead\\">1 &lt; 2</p>" in page, "<h2>Maps</h2>" in page
        (True, True)
    """
    script = ""
    if any(section.explorer for section in sections):
        script = script_source()
    return _template("page.html").render(
        title=title,
        lead=lead,
        facts=facts,
        sections=sections,
        foot=foot,
        script=Markup(script),
        policy=Markup(policy(script)),
    )


def render_figure(title: str, found: dict[str, Any]) -> str:
    """Return the interactive figure as a page of its own; ``found`` is a section's ``explorer``."""
    script = script_source()
    return _template("figure.html").render(
        title=title,
        found=found,
        script=Markup(script),
        policy=Markup(policy(script)),
    )


def script_source() -> str:
    """Return the script of the interactive figure, the only one that a page may run."""
    return files("fredholm.lab.report").joinpath("templates/explore.js").read_text("utf-8").strip()


def policy(script: str) -> str:
    """Return the page's Content-Security-Policy: nothing is loaded, and only the given script runs,
    identified by its SHA-256.

    Example:
        >>> policy("")
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        >>> policy("1").partition("script-src ")[2]
        "'sha256-a4ayc/80/OGda4BO/1o/V0etpOqiLx1JwB5S3beHW0s='"
    """
    rules = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    if not script:
        return rules
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    return f"{rules}; script-src 'sha256-{_base64(digest)}'"


def words(name: str, /, **values: Any) -> str:
    """Return the HTML of the macro ``name``, filled in with ``values``. They are escaped, except
    where the macro itself marks one as safe, such as the content of ``folded``.

    The macro is looked up in the templates :data:`PROSE`, and the first that has one of this name
    provides it.

    Raises:
        LookupError: no template has such a macro. The name comes from code, not from users.

    Example:
        >>> words("mistakes", wrong=1, count=9, what="<b>")
        '<p>1 of 9 &lt;b&gt; were classified wrongly.</p>'
    """
    for page in PROSE:
        macro = getattr(_template(page).module, name, None)
        if macro is not None:
            return str(macro(**values))
    raise LookupError(
        f"words: expected a macro of {', '.join(PROSE)}, got {name!r}; define it there"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table that scrolls sideways where the page is narrower; cells are escaped.

    Example:
        >>> table(["N"], [["<4"]])
        '<div class="scroll"><table><thead><tr><th>N</th></tr></thead><tbody><tr><td>&lt;4</td></tr></tbody></table></div>'
    """
    return words("table", head=head, rows=rows)


def folded(title: str, html: str) -> str:
    """Return HTML folded away below a title that opens it."""
    return words("folded", title=title, html=html)


# --- templates ------------------------------------------------------------------------------------


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
    """Return a picture as a data: address."""
    return Markup("data:image/png;base64,") + _base64(png)


def _csv_uri(data: Data) -> Markup:
    """Return a table as a data: address."""
    return Markup("data:text/csv;charset=utf-8;base64,") + _base64(data.csv().encode("utf-8"))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
