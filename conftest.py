"""Code blocks of the docs and examples in docstrings, run as tests."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

# Kernels' modules import triton, which is an extra.
collect_ignore_glob = (
    []
    if find_spec("triton")
    else ["src/fredholm/ops/*/triton*.py", "src/fredholm/families/*/triton/*.py"]
)
# So is timm.
if not find_spec("timm"):
    collect_ignore_glob.append("src/fredholm/timm.py")


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    from fredholm.domain import Domain

    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, Domain=Domain)


if find_spec("sybil"):  # on a bare GPU machine, kernels are tested without it
    from sybil import Sybil
    from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

    pytest_collect_file = Sybil(
        parsers=[SkipParser(), PythonCodeBlockParser()], patterns=["docs/*.md"]
    ).pytest()
