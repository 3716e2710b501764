"""Code blocks of the README and the docs, and examples in docstrings, run as tests."""

from __future__ import annotations

import pytest
import torch
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace):
    from fredholm.domain import Domain

    torch.manual_seed(0)
    doctest_namespace.update(torch=torch, Domain=Domain)


pytest_collect_file = Sybil(
    parsers=[SkipParser(), PythonCodeBlockParser()], patterns=["README.md", "docs/*.md"]
).pytest()
