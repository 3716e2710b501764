"""Operations that torch's exporter lacks: ONNX Runtime against torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fredholm.export.onnx import converted, onnx_forms, runner_of

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")


class Function(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.function(x, y)


def in_onnx(function: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    exported = torch.export.export(Function(function), (x, y), strict=False)
    exported = exported.run_decompositions(onnx_forms())
    content = converted(exported, ["x", "y"], ["out"], {})
    found: Any = runner_of(content, threads=1)({"x": x.numpy(), "y": y.numpy()})
    return torch.from_numpy(found[0])


@pytest.mark.compile
@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, math.inf])
def test_distances_of_every_norm_equal_torch(p):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, generator=draw)
    y = torch.randn(2, 4, 3, generator=draw)
    # Points that agree in one coordinate, and in all.
    y[:, 0, :1] = x[:, 0, :1]
    y[:, 1] = x[:, 1]
    expected = torch.cdist(x, y, p=p, compute_mode="donot_use_mm_for_euclid_dist")
    found = in_onnx(lambda x, y: torch.cdist(x, y, p=p), x, y)
    torch.testing.assert_close(found, expected)
    if p == 0:
        assert expected[0, 0, 0] == 2
        assert expected[0, 1, 1] == 0


@pytest.mark.compile
@pytest.mark.parametrize(
    "options", [{}, {"right": True}, {"side": "right"}, {"side": "left", "out_int32": True}]
)
def test_searchsorted_equals_torch(options):
    boundaries = torch.tensor([[0.0, 1.0, 1.0, 3.0], [-1.0, 0.0, 2.0, 5.0]])
    x = torch.tensor([[1.0, -2.0, 9.0], [2.0, 0.5, 0.0]])
    expected = torch.searchsorted(boundaries, x, **options)
    found = in_onnx(lambda a, b: torch.searchsorted(a, b, **options), boundaries, x)
    assert found.dtype == expected.dtype
    assert found.equal(expected)
