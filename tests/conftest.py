"""Shape checks for every test, and options that add a user's operator to the contract suite."""

from __future__ import annotations

import gc
import os
import re
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec

import numpy as np
import pytest
import torch

# Without a GPU, Triton kernels run on the CPU. Triton reads this variable when a kernel is defined,
# so it is set before.
if torch.cuda.is_available():
    # Deterministic matrix products need this.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
else:
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests of several processes connect often, and name resolution must not delay them: torch resolves
# every peer, even 127.0.0.1, and waits five seconds for a lost answer; gloo resolves this machine.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:2")
if sys.platform == "linux":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

# jaxtyping checks shapes and dtypes at every call of the package. The hook breaks torch.compile, so
# tests that compile or export run a script in a separate process.
# A bare GPU machine, which tests kernels, may lack the checker.
if find_spec("beartype"):
    from tests import typechecker

    typechecker.install()


class TritonKernels(MetaPathFinder):
    """Import Triton kernels without checks, because Triton compiles them from their source."""

    def find_spec(self, fullname, path=None, target=None):
        if not re.search(r"^fredholm\.(ops|families)\..*\.triton", fullname):
            return None
        return PathFinder.find_spec(fullname, path, target)


sys.meta_path.insert(0, TritonKernels())
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 1)))

# torch.manual_seed records the caller's stack for each device kind that may be initialised later,
# which takes half a millisecond, several times per test.
if not torch.cuda.is_available():
    for device in (torch.cuda, torch.xpu, torch.mtia):
        device.manual_seed_all = lambda seed: None


def pytest_addoption(parser):
    parser.addoption(
        "--ranks",
        type=int,
        default=3,
        help="processes of the tests of sharded domains that take three by default",
    )
    parser.addoption(
        "--import",
        action="append",
        default=[],
        dest="user_files",
        help="Python files whose operators join the contract suite",
    )
    parser.addoption(
        "--operator",
        action="append",
        default=[],
        help="run the contract suite for these operators only",
    )


@pytest.fixture(autouse=True)
def _seed(request):
    torch.manual_seed(0)
    module = getattr(request.node, "module", None)  # a doctest has none
    if isinstance(getattr(module, "RNG", None), np.random.Generator):
        module.RNG = np.random.default_rng(0)


def pytest_collection_finish():
    """Exclude tests and modules, which live until the end, from later garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config, items):
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)
