"""Shape checks for every test, and the options that bring a user's operator into the contract suite."""

from __future__ import annotations

import os

import pytest

# jaxtyping checks shapes and dtypes at every call of the package. The hook breaks torch.compile, so what compiles or exports is
# tested by a script in a process of its own.
from jaxtyping import install_import_hook

import tests.typechecker  # noqa: F401  the hook looks it up as an attribute of its package

install_import_hook("fredholm", "tests.typechecker.checked")

import torch  # noqa: E402

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))


def pytest_addoption(parser):
    parser.addoption(
        "--import",
        action="append",
        default=[],
        dest="user_files",
        help="Python files whose operators join the contract suite",
    )
    parser.addoption("--operator", action="append", default=[], help="run the contract suite for these operators only")


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pytest_collection_modifyitems(config, items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
