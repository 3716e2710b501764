"""The page: sections to one self-contained HTML file. It has no script and loads nothing.

What it looks like and says stands in ``templates/``: ``page.html``, ``words.html`` and ``style.css``.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

DPI = 150  # of the pictures; a page has 96 units an inch, so that they are sharp on dense screens


@dataclass(frozen=True)
class Picture:
    """One figure: PNG by theme, its file name, what it shows for those who cannot see it, and its
    caption (HTML).
    """

    name: str
    alt: str
    caption: str
    png: dict[str, bytes]

    def size(self, theme: str = "light") -> tuple[int, int]:
        """Width and height on the page, from the head of the PNG."""
        head = self.png[theme]
        width, height = (int.from_bytes(head[start : start + 4], "big") for start in (16, 20))
        return round(width * 96 / DPI), round(height * 96 / DPI)


@dataclass(frozen=True)
class Section:
    """A part of the page: heading, text (HTML), figures, and HTML that follows them, below or
    beside.
    """

    key: str
    heading: str
    text: str = ""
    pictures: list[Picture] = field(default_factory=list)
    after: str = ""
    beside: bool = False


def render_page(
    title: str, lead: str, facts: list[tuple[str, str, str]], sections: list[Section], foot: str
) -> str:
    """The whole page. ``facts`` are (name, value, note); ``lead`` and ``foot`` are plain text.

    Example:
        >>> page = render_page("Digits", "1 < 2", [], [Section("maps", "Maps", "<p>None</p>")], "End")
        >>> "<p class=\\"lead\\">1 &lt; 2</p>" in page, "<h2>Maps</h2>" in page
        (True, True)
    """
    return _template("page.html").render(
        title=title, lead=lead, facts=facts, sections=sections, foot=foot
    )


def table(head: list[str], rows: list[list[str]]) -> str:
    """A plain table; cells are escaped.

    Example:
        >>> table(["N"], [["<4"]])
        '<table><thead><tr><th>N</th></tr></thead><tbody><tr><td>&lt;4</td></tr></tbody></table>'
    """
    return str(_template("parts.html").module.table(head, rows))  # pyright: ignore[reportAttributeAccessIssue]


def words(name: str, /, **values: Any) -> str:
    """The prose of a section or a caption, a macro of ``words.html``; values are escaped.

    Example:
        >>> words("mistakes", wrong=1, count=9, what="<b>")
        '<p>1 of 9 &lt;b&gt; were given a wrong class.</p>'
    """
    return str(getattr(_template("words.html").module, name)(**values))


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
    return environment.get_template(name)


def _data_uri(png: bytes) -> Markup:
    """A picture as its own address."""
    return Markup("data:image/png;base64,") + base64.b64encode(png).decode("ascii")
