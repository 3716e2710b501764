"""Every annotation of the ops and of the families names something that is imported."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import typing

import pytest

import fredholm.families
import fredholm.ops

from ..test_house import for_checkers

# Triton's modules import its compiler
MODULES = sorted(
    module.name
    for package in (fredholm.ops, fredholm.families)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    if "triton" not in module.name
)


@pytest.mark.parametrize("name", MODULES)
def test_every_annotation_resolves(name):
    module = importlib.import_module(name)
    names = for_checkers(module)
    for value in vars(module).values():
        methods = vars(value).values() if inspect.isclass(value) else [value]
        for function in methods:
            if inspect.isfunction(function) and function.__module__ == name:
                typing.get_type_hints(function, localns=names)
