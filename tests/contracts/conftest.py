"""One run of the suite for every case: registered operators, and those of files given with --import."""

from __future__ import annotations


def pytest_generate_tests(metafunc):
    if "case" not in metafunc.fixturenames:
        return
    from fredholm.operators import import_file

    from .cases import cases

    for path in metafunc.config.getoption("user_files"):
        import_file(path)
    found = cases(metafunc.config.getoption("operator"))
    metafunc.parametrize("case", found, ids=[case.label for case in found])
