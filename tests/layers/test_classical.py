"""The folder of classical layers: a new kind of layer is one new file."""

from __future__ import annotations

import sys
from importlib import import_module
from pkgutil import iter_modules

import pytest
import torch
from torch import nn

from fredholm import layers as classical
from fredholm.convert import as_operator, convertible
from fredholm.integral.conversion import CONVERTERS

FILE = '''
from torch import nn

from fredholm.layers.linear import PointwiseKernel
from fredholm.integral import IntegralOperator
from fredholm.integral.conversion import register_converter


class Doubling(nn.Linear):
    pass


@register_converter("fredholm.layers.doubling.Doubling")
def doubling(module):
    """The same map at every point."""
    kernel = PointwiseKernel(module)
    return IntegralOperator(
        module.in_features, kernel=kernel, residual=False, projection=False
    )
'''


@pytest.fixture
def new_file(tmp_path, monkeypatch):
    """Add ``doubling.py`` to the folder, and remove every trace of it afterwards."""
    (tmp_path / "doubling.py").write_text(FILE)
    monkeypatch.setattr(classical, "__path__", [*classical.__path__, str(tmp_path)])
    yield "fredholm.layers.doubling"
    sys.modules.pop("fredholm.layers.doubling", None)
    CONVERTERS._entries.pop("fredholm.layers.doubling.Doubling", None)
    vars(classical).pop("doubling", None)


def test_a_new_file_registers_its_converter(new_file):
    name = f"{new_file}.Doubling"
    assert name not in convertible()
    classical._import_every_kind()
    assert name in convertible()
    layer = import_module(new_file).Doubling(3, 3)
    u = torch.randn(2, 5, 3)
    torch.testing.assert_close(as_operator(layer)(u), layer(u))


def test_every_file_is_imported():
    names = [kind.name for kind in iter_modules(classical.__path__)]
    assert "convolution" in names
    assert all(f"{classical.__name__}.{name}" in sys.modules for name in names)


def test_converters_are_defined_beside_their_kernels():
    """Converters of torch's layers are in the module that defines the kernel they build."""
    for layer in (nn.Linear(2, 2), nn.Conv1d(2, 2, 3), nn.GRU(2, 2)):
        operator = as_operator(layer)
        source = f"{type(layer).__module__}.{type(layer).__qualname__}"
        assert CONVERTERS[source].convert.__module__ == type(operator.kernel).__module__
