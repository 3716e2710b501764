"""Pools of two and of three processes, each started by the first test that uses it."""

from __future__ import annotations

import pytest

from .pool import Pool


@pytest.fixture(scope="package")
def two():
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="package")
def three(request):
    pool = Pool(request.config.getoption("--ranks"))
    yield pool
    pool.close()
