"""The measures of legibility, on small packages whose numbers are counted by hand."""

from __future__ import annotations

import pytest
from evidence.house import __main__ as command
from evidence.house.imports import circles, exports, import_graph
from evidence.house.sources import GROUPS, Counts, count, count_rooms
from evidence.house.walk import PACKAGE

SOURCE = '''"""A module."""

import os  # not on a line of its own


# above a function
def size(path, unit=None):
    """Return a size."""
    from math import log

    factor = 1 if unit is None else unit
    return log(os.stat(path).st_size) * factor
'''


def test_docstrings_and_comments_do_not_count_as_code():
    counts = count(SOURCE)
    assert counts.lines == 5
    assert counts.comments == 1
    assert counts.statements == 5
    assert counts.conditionals == 1
    assert counts.local_imports == 1
    assert counts.tokens == count(SOURCE.replace("above a function", "")).tokens
    assert counts.tokens < count(SOURCE + "x = 1\n").tokens


def test_an_import_in_a_nested_function_counts_once():
    source = (
        "def outer():\n    def inner():\n        import os\n        return os\n    return inner\n"
    )
    assert count(source).local_imports == 1


def test_counts_of_packages_add_up(package):
    rooms = count_rooms(package)
    assert list(rooms) == ["ground", "lab/data", "ops"]
    assert rooms["ops"].files == 2
    assert sum(rooms.values(), Counts()).files == 5


def test_every_package_of_the_library_has_a_group():
    assert {room.split("/")[0] for room in count_rooms(PACKAGE)} == set(GROUPS)


def test_an_import_cycle_is_listed_with_all_its_modules(package):
    graph = import_graph(package)
    assert graph["small.ops.tiles"] == {"small.base"}
    assert graph["small.base"] == {"small.lab.data"}
    assert circles(graph) == [["small.base", "small.lab.data", "small.ops", "small.ops.tiles"]]


def test_only_imports_at_module_level_form_a_cycle(package):
    (package / "base.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    from .lab.data import read\n"
        "def late():\n"
        "    from .lab.data import read\n"
        "    return read\n"
    )
    assert circles(import_graph(package)) == []


def test_exports_are_counted_or_listed_as_missing(package):
    assert exports(package, "ops") == 1
    with pytest.raises(ValueError, match="expected a list __all__"):
        exports(package, "lab/data")


def test_a_page_without_markers_stays_unchanged(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("nothing to replace\n")
    monkeypatch.setattr(command, "PAGE", page)
    with pytest.raises(SystemExit, match="expected the marks"):
        command.write("| a table |")
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    command.write("| a table |")
    assert "old" not in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")


@pytest.fixture
def package(tmp_path):
    """Write a package of three subpackages whose modules import each other in a cycle."""
    root = tmp_path / "small"
    (root / "ops").mkdir(parents=True)
    (root / "lab" / "data").mkdir(parents=True)
    (root / "__init__.py").write_text("")
    (root / "base.py").write_text("import os\nfrom .lab.data import read\n")
    (root / "ops" / "__init__.py").write_text('from .tiles import tile\n\n__all__ = ["tile"]\n')
    (root / "ops" / "tiles.py").write_text("from ..base import os\n\ntile = os\n")
    (root / "lab" / "data" / "__init__.py").write_text("from ...ops import tile\n\nread = tile\n")
    return root
