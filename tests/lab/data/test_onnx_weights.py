"""Weights inside an ONNX file."""

from __future__ import annotations

import numpy as np
import pytest

from fredholm.errors import DataError
from fredholm.lab.data.catalogue.weights_onnx import read_onnx_tensors

onnx = pytest.importorskip("onnx")


def onnx_file(path):
    """Write a linear layer as exporters do, with an unnamed transposed weight."""
    from onnx import helper, numpy_helper

    weight = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensors = [
        numpy_helper.from_array(weight, "onnx::MatMul_1"),
        numpy_helper.from_array(np.ones(3, np.float32), "layer.bias"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "onnx::MatMul_1"], ["y"]),
        helper.make_node("Add", ["layer.bias", "y"], ["z"]),
    ]
    onnx.save(helper.make_model(helper.make_graph(nodes, "layer", [], [], tensors)), path)
    return path


def test_weights_are_named_after_their_bias(tmp_path):
    found = read_onnx_tensors(onnx_file(tmp_path / "m.onnx"))
    assert set(found) == {"layer.weight", "layer.bias"}
    assert found["layer.weight"].tolist() == [[0, 3], [1, 4], [2, 5]]


def test_files_that_are_not_models_are_refused(tmp_path):
    good = onnx_file(tmp_path / "m.onnx").read_bytes()
    for content in (good[:-7], b"not a model at all", b""):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(DataError):
            read_onnx_tensors(tmp_path / "bad.onnx")
    with pytest.raises(DataError):
        read_onnx_tensors(tmp_path / "none.onnx")
