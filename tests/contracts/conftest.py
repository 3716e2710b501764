"""Parametrise the suite over cases (registered operators, families, files of --import) and, for
tests with a ``where``, over the domains that a case accepts. ``@pytest.mark.on("causal*",
of="domains")`` selects domains and names the method that lists them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from .. import sizes


def pytest_generate_tests(metafunc):
    if "case" not in metafunc.fixturenames:
        return
    from fredholm.operators import import_file

    from .cases import cases

    for path in metafunc.config.getoption("user_files"):
        import_file(path)
    found = cases(metafunc.config.getoption("operator"))
    if "where" not in metafunc.fixturenames:
        metafunc.parametrize("case", found, ids=[case.label for case in found])
        return
    marker = metafunc.definition.get_closest_marker("on")
    patterns = marker.args if marker else ("*",)
    pairs = [
        (case, where)
        for case in found
        for where in getattr(case, marker.kwargs.get("of", "domains") if marker else "domains")()
        if any(fnmatchcase(where, pattern) for pattern in patterns)
    ]
    metafunc.parametrize(
        ("case", "where"), pairs, ids=[f"{case.label}-{where}" for case, where in pairs]
    )


@pytest.fixture(params=["few", "many"])
def side(request, monkeypatch) -> str:
    """Both sides of the crossovers between forms: cases have few points, and the forms for many run
    on them as well.
    """
    if request.param == "many":
        sizes.many(monkeypatch)
    return request.param
