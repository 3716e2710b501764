"""The weights inside an ONNX file, read without the onnx package: names, shapes and numbers, no
graph.

An ONNX file is a protocol buffer. ``ModelProto.graph`` is field 7, ``GraphProto.initializer`` field
5; of a ``TensorProto`` dims are field 1, data_type 2, name 8, raw_data 9 and float_data 4; of a
``NodeProto`` inputs are field 1, outputs 2 and the operation 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .formats import read_bytes

Node = tuple[str, list[str], list[str]]  # operation, inputs, outputs
TYPES = {1: np.float32, 7: np.int64, 10: np.float16, 11: np.float64}


def read_onnx_tensors(path: Path) -> dict[str, Tensor]:
    """All stored tensors of the file's graph, by name.

    Exporters store the weight of a linear layer transposed and nameless, and keep its bias's name:
    where such a product is followed by the sum with ``NAME.bias``, the weight is given as
    ``NAME.weight``, transposed back.

    Raises:
        DataError: a file that is missing, truncated or no ONNX model, or a tensor of a type that is
            not read.
    """
    data = memoryview(read_bytes(path))
    try:
        graphs = [
            value for field, value in _fields(data) if field == 7 and isinstance(value, memoryview)
        ]
        found = [
            _tensor(value, path)
            for graph in graphs
            for field, value in _fields(graph)
            if field == 5
        ]
        nodes = [_node(value) for graph in graphs for field, value in _fields(graph) if field == 1]
    except (IndexError, ValueError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not an ONNX file, or truncated ({error})") from error
    if not found:
        raise DataError(
            f"{path}: holds no stored tensor; needs an ONNX model with its weights inside"
        )
    tensors = dict(found)
    for name, weight in _weights(nodes, tensors):
        tensors[name] = tensors.pop(weight).T.contiguous()
    return tensors


def _weights(nodes: list[Node], tensors: dict[str, Tensor]) -> Iterator[tuple[str, str]]:
    """(name that the bias tells, nameless tensor) of each linear layer."""
    products = {
        out: name
        for kind, given, (out, *_) in nodes
        if kind == "MatMul"
        for name in given
        if name in tensors
    }
    for kind, given, _ in nodes:
        bias = next((name for name in given if name in tensors and name.endswith(".bias")), None)
        weight = next((products[name] for name in given if name in products), None)
        if kind == "Add" and bias is not None and weight is not None:
            yield bias.removesuffix("bias") + "weight", weight


def _node(data: int | memoryview) -> Node:
    if isinstance(data, int):
        raise ValueError("a node that is a number")
    texts = [
        (field, bytes(value).decode("utf-8"))
        for field, value in _fields(data)
        if field in (1, 2, 4) and not isinstance(value, int)
    ]
    kind = next((text for field, text in texts if field == 4), "")
    return (
        kind,
        [text for field, text in texts if field == 1],
        [text for field, text in texts if field == 2],
    )


def _fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(field number, value) of a message: numbers as integers, the rest as bytes."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        field, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield field, value
            continue
        if wire == 2:
            size, place = _varint(data, place)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")
        if place + size > end:
            raise ValueError(f"a field of {size} bytes ends behind the file")
        yield field, data[place : place + size]
        place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            return value, place


def _tensor(data: int | memoryview, path: Path) -> tuple[str, Tensor]:
    if isinstance(data, int):
        raise ValueError("an initializer that is a number")
    shape: list[int] = []
    kind, name, raw = 0, "", b""
    for field, value in _fields(data):
        if field == 1:
            shape += [value] if isinstance(value, int) else _packed(value)
        elif field == 2 and isinstance(value, int):
            kind = value
        elif field == 8 and isinstance(value, memoryview):
            name = bytes(value).decode("utf-8")
        elif field in (4, 9) and isinstance(value, memoryview):
            raw = bytes(value)
    if kind not in TYPES:
        raise DataError(
            f"{path}: tensor {name!r} has type {kind}; read are {', '.join(map(str, TYPES))}"
        )
    return name, torch.from_numpy(np.frombuffer(raw, TYPES[kind]).reshape(shape).copy())


def _packed(data: memoryview) -> list[int]:
    numbers, place = [], 0
    while place < len(data):
        number, place = _varint(data, place)
        numbers.append(number)
    return numbers
