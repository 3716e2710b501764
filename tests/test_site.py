"""README, pages and gallery: links resolve, and pictures have alternative texts."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "results").glob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("plot_*.py"))
BUILT = {DOCS / "gallery" / "index.rst"}  # written when the site is built
FENCE = re.compile(r"^```(?!\{).*?^```", re.DOTALL | re.MULTILINE)
LONGEST = 130  # lines of an example


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path = target.partition("#")[0]
        if not path or re.match(r"\w+:", target):
            continue
        place = (page.parent / path).resolve()
        assert place.exists() or place in BUILT, f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_have_alternative_texts(page):
    text = prose(page)
    assert not re.findall(r"!\[\s*\]", text)
    for block in re.findall(r"^```\{image\}.*?^```", text, re.DOTALL | re.MULTILINE):
        assert re.search(r"^:alt: \w", block, re.MULTILINE), block


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_examples_of_the_gallery_are_short_and_draw(example):
    source = example.read_text(encoding="utf-8")
    title, rule, *_ = (ast.get_docstring(ast.parse(source)) or "").splitlines()
    assert rule == "=" * len(title)
    assert "plt.show()" in source
    assert len(source.splitlines()) <= LONGEST


def test_the_gallery_has_an_order():
    order = runpy.run_path(str(DOCS / "gallery_order.py"))["ORDER"]
    assert sorted(order) == [example.stem for example in EXAMPLES]


def test_every_page_is_in_one_table_of_contents():
    listed = []
    for page in (DOCS / "index.md", DOCS / "results" / "index.md"):
        blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(), re.DOTALL | re.M)
        names = [line for block in blocks for line in block.split() if line[0] not in ":"]
        names = [name for name in names if re.fullmatch(r"[\w/-]+", name)]
        listed += [(page.parent / f"{name}.md").resolve() for name in names]
    pages = [page for page in PAGES if page.parent != ROOT and page != DOCS / "index.md"]
    for page in pages:
        assert listed.count(page) == 1, page
