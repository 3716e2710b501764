"""Every configuration of every classical layer equals its operator: outputs, input gradients,
weight gradients, explicit kernel.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from evidence.unification import FLOAT32, FLOAT64, configurations, measure

ALL = configurations()


@pytest.mark.parametrize("configuration", ALL, ids=str)
def test_every_layer_equals_its_operator(configuration):
    if configuration.requires and importlib.util.find_spec(configuration.requires) is None:
        pytest.skip(f"{configuration.requires} is not installed")
    double, single = measure(configuration), measure(configuration, torch.float32)
    assert double.worst <= FLOAT64, double
    assert single.worst <= FLOAT32, single
