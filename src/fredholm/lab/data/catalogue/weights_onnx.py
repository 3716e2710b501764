"""Weights inside an ONNX file, by the names that their layers had."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ....errors import DataError, require
from ..formats import read_bytes


def read_onnx_tensors(path: Path) -> dict[str, Tensor]:
    """All stored tensors of the file's graph, by name.

    Exporters store the weight of a linear layer transposed and nameless, and keep its bias's name:
    where such a product is followed by the sum with ``NAME.bias``, the weight is given as
    ``NAME.weight``, transposed back.

    Raises:
        MissingExtraError: onnx is not installed.
        DataError: a file that is missing, truncated or not an ONNX model, or one whose tensors lie
            in other files.
    """
    onnx: Any = require("onnx", "onnx", "reading weights of an ONNX file")
    numpy_helper: Any = require("onnx.numpy_helper", "onnx", "reading weights of an ONNX file")
    try:
        graph = onnx.load_model_from_string(read_bytes(path)).graph
        _refuse_external(graph.initializer, path)
        arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    except DataError:
        raise
    # protobuf has its own errors, and numpy another for a tensor with too few bytes.
    except Exception as error:
        raise DataError(
            f"{path}: expected an ONNX file, got another, or a truncated one ({error}); copy it "
            "again"
        ) from error
    if not arrays:
        raise DataError(
            f"{path}: expected an ONNX model with its weights inside, got no stored tensor; export "
            "it with weights"
        )
    tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
    for name, weight in _weights(graph.node, tensors):
        tensors[name] = tensors.pop(weight).T.contiguous()
    return tensors


def _refuse_external(tensors: Any, path: Path) -> None:
    """Refuse tensors that name another file for their values; it could be any of its reader's.

    Raises:
        DataError: naming the first.
    """
    for tensor in tensors:
        if tensor.data_location or tensor.external_data:
            raise DataError(
                f"{path}: expected tensors in the file itself, got {tensor.name!r}, whose values "
                "lie in another file, which is not read; save the model as one file"
            )


def _weights(nodes: Any, tensors: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """(name that the bias tells, nameless tensor) of each linear layer."""
    products = {
        node.output[0]: name
        for node in nodes
        if node.op_type == "MatMul"
        for name in node.input
        if name in tensors
    }
    for node in nodes:
        given = list(node.input)
        bias = next((name for name in given if name in tensors and name.endswith(".bias")), None)
        weight = next((products[name] for name in given if name in products), None)
        if node.op_type == "Add" and bias is not None and weight is not None:
            yield bias.removesuffix("bias") + "weight", weight
