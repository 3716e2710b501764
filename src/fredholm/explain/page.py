"""The page: sections to one self-contained HTML file. It has no script and loads nothing."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from html import escape

CSS = """
:root { --ink: #1d2430; --faint: #5b6573; --rule: #d9dee5; --paper: #ffffff; --ground: #f5f6f8; --link: #0061a1; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e8ee; --faint: #9aa4b2; --rule: #2f3742; --paper: #14181f; --ground: #0d1015; --link: #6cbcf2; }
}
* { box-sizing: border-box; }
html { color-scheme: light dark; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, "Segoe UI", Roboto,
  "Helvetica Neue", Arial, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.25rem; margin: 0 0 .6rem; }
p { margin: 0 0 .8rem; max-width: 46rem; }
p.note { color: var(--faint); font-size: .88rem; max-width: 52rem; }
.lead { color: var(--faint); margin-bottom: 1.4rem; }
nav { margin: 0 0 1.6rem; font-size: .92rem; }
nav a { color: var(--link); margin-right: 1.1rem; text-decoration: none; white-space: nowrap; }
nav a:hover { text-decoration: underline; }
dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: 1px; margin: 0 0 1.4rem;
  background: var(--rule); border: 1px solid var(--rule); border-radius: 8px; overflow: hidden; }
dl div { background: var(--paper); padding: .7rem .9rem; }
dt { color: var(--faint); font-size: .8rem; }
dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
dd small { display: block; font-size: .78rem; color: var(--faint); }
section { background: var(--paper); border: 1px solid var(--rule); border-radius: 8px; padding: 1.4rem 1.5rem 1rem;
  margin: 0 0 1.25rem; }
figure { margin: 1rem 0 1.2rem; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { color: var(--faint); font-size: .88rem; line-height: 1.5; margin-top: .5rem; max-width: 52rem; }
figcaption b { color: var(--ink); font-weight: 600; }
.beside { display: flex; flex-wrap: wrap; gap: 0 2.5rem; align-items: flex-start; }
.beside figure { flex: 0 1 29rem; min-width: 0; }
.beside > div { padding-top: 1rem; }
.formula { font-family: "STIX Two Math", "Cambria Math", Georgia, serif; font-size: 1.05em; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem 1rem .25rem 0; border-bottom: 1px solid var(--rule); }
details { margin: 0 0 .6rem; }
summary { cursor: pointer; color: var(--link); }
pre { overflow-x: auto; font-size: .82rem; line-height: 1.45; background: var(--ground); padding: .8rem 1rem; border-radius: 6px; }
footer { color: var(--faint); font-size: .85rem; }
@media print { body { background: none; } section { break-inside: avoid; border: 0; padding: 0; } nav { display: none; } }
"""


@dataclass(frozen=True)
class Picture:
    """One figure: PNG by theme, its file name, what it shows for those who cannot see it, and its
    caption (HTML).
    """

    name: str
    alt: str
    caption: str
    png: dict[str, bytes]


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
    """The whole page. ``facts`` are (name, value, note); ``lead`` and ``foot`` are plain text."""
    links = "\n".join(f'<a href="#{s.key}">{escape(s.heading)}</a>' for s in sections)
    cells = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
        for name, value, note in facts
    )
    body = "\n".join(_section(section) for section in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p class="lead">{escape(lead)}</p>
{f"<dl>{cells}</dl>" if facts else ""}
<nav aria-label="Contents">{links}</nav>
{body}
<footer><p>{escape(foot)}</p></footer>
</main>
</body>
</html>
"""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A plain table; cells are escaped."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def folded(title: str, html: str) -> str:
    """Something long, folded away under its title."""
    return f"<details><summary>{escape(title)}</summary>{html}</details>"


def _section(section: Section) -> str:
    figures = "\n".join(_figure(picture) for picture in section.pictures)
    side = ' class="beside"' if section.beside else ""
    body = f"<div{side}>\n{figures}\n<div>{section.after}</div>\n</div>"
    return f'<section id="{section.key}">\n<h2>{escape(section.heading)}</h2>\n{section.text}\n{body}\n</section>'


def _figure(picture: Picture) -> str:
    width, height = _size(picture.png["light"])
    dark = (
        f'<source media="(prefers-color-scheme: dark)" srcset="{_uri(picture.png["dark"])}">'
        if "dark" in picture.png
        else ""
    )
    image = f'<img src="{_uri(picture.png["light"])}" alt="{escape(picture.alt)}" width="{width}" height="{height}">'
    return f'<figure id="{picture.name}"><picture>{dark}{image}</picture><figcaption>{picture.caption}</figcaption></figure>'


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode("ascii")


def _size(png: bytes) -> tuple[int, int]:
    """Width and height on the page: half the pixels, so that pictures are sharp on dense screens
    (150 dpi at 96 a unit).
    """
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (16, 20))
    return round(width * 96 / 150), round(height * 96 / 150)
