"""Large cases with few neighbours: a million points, a large graph, the search."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from fredholm.data import Graph, GraphDataset
from fredholm.domain import Domain
from fredholm.lab.training.machine import peak_megabytes, process_megabytes
from fredholm.models import create_model
from fredholm.operators import SoftmaxAttention, create_operator

from ..kit.memory import alone, exponent
from ..kit.page import load, save
from ..kit.subject import Options
from . import FILE
from .layers import random_edges
from .speed import alternated

POINTS = (100_000, 300_000, 1_000_000)
NEIGHBOURS = 16


def time_sizes(options: Options) -> None:
    """Measure all cases, each in a fresh process."""
    points, searched = POINTS, 100_000
    graph = {"nodes": 100_000, "edges": 1_000_000}
    packages = {"nodes": 63_436, "edges": 272_121}
    if options.small:
        points, searched = (200, 400), 500
        graph = {"nodes": 500, "edges": 2000}
        packages = {"nodes": 1500, "edges": 6000}

    found: dict[str, Any] = {"points": [alone(f"{__name__}:points_forward", n=n) for n in points]}
    for what in ("seconds", "megabytes"):
        found[f"{what}_exponent"] = exponent(found["points"], what)
    found["graphs"] = [
        alone(f"{__name__}:graph_step", operator=name, **graph) for name in ("softmax", "itnet")
    ]
    found["search"] = alone(f"{__name__}:search", n=searched)
    found["nodes"] = alone(f"{__name__}:node_training", **packages)
    for name, value in found.items():
        print(f"{name}: {value}", flush=True)
    before = load(FILE, options.results) or {"cases": []}
    save(before | {"sizes": found}, FILE, options.results)


def points_forward(n: int) -> dict[str, Any]:
    """Measure a forward over the nearest neighbours of n points, without search and inputs."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    operator = SoftmaxAttention(32, 2)
    domain, u = Domain.points(torch.rand(n, 2), neighbours=NEIGHBOURS), torch.randn(1, n, 32)
    seconds = []

    @torch.no_grad()
    def forward() -> None:
        begin = time.process_time()
        operator(u, domain)
        seconds.append(time.process_time() - begin)

    megabytes = peak_megabytes(forward)
    for _ in range(2):
        forward()
    return {"n": n, "seconds": statistics.median(seconds), "megabytes": megabytes}


def graph_step(operator: str, nodes: int, edges: int) -> dict[str, Any]:
    """Measure a forward and backward on a random graph: seconds, and memory of the process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    options = {"width": 32, "frequencies": 8} if operator == "itnet" else {}
    layer = create_operator(operator, 64, 2, **options)
    graph = Domain.graph(random_edges(nodes, edges), nodes, sparse=True)
    u = torch.randn(1, nodes, 64, requires_grad=True)
    begin = time.process_time()
    layer(u, graph).square().mean().backward()
    seconds = time.process_time() - begin
    return {"operator": operator, "seconds": seconds, "process_megabytes": process_megabytes()}


def search(n: int) -> dict[str, Any]:
    """Time the search of all pairs within a radius, beside scipy's as a CSR matrix."""
    from scipy.sparse import coo_matrix
    from scipy.spatial import KDTree

    torch.set_num_threads(1)
    # In float64 a distance within rounding of the radius is rarer than any draw: in float32 the
    # search counts some 300 such pairs as neighbours, and scipy's comparison does not.
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(n, 2, dtype=torch.float64, generator=generator)
    radius = (31 / (torch.pi * n)) ** 0.5

    def ours() -> Tensor:
        pairs: Any = Domain.points(points, radius=radius).pairs
        return pairs.source

    def theirs() -> Tensor:
        tree = KDTree(points.double().numpy(), balanced_tree=False, compact_nodes=False)
        pairs = torch.from_numpy(tree.query_pairs(radius, output_type="ndarray"))
        # Each pair in both orders, and every point with itself.
        diagonal = torch.arange(n)
        row = torch.cat([pairs[:, 0], pairs[:, 1], diagonal]).numpy()
        column = torch.cat([pairs[:, 1], pairs[:, 0], diagonal]).numpy()
        ones = torch.ones(len(row)).numpy()
        matrix = coo_matrix((ones, (row, column)), (n, n)).tocsr()
        matrix.sort_indices()
        return torch.from_numpy(matrix.indices).long()

    if not ours().equal(theirs()):
        raise RuntimeError("search: expected scipy's pairs, got others; refusing to time it")
    seconds = alternated({"ours": ours, "theirs": theirs})
    ratios = [a / b for a, b in zip(seconds["ours"], seconds["theirs"])]
    return {"n": n, "edges": len(ours()), "ratio": statistics.median(ratios)}


def node_training(nodes: int, edges: int, classes: int = 20, steps: int = 20) -> dict[str, Any]:
    """Measure node classification on one large graph.

    Most edges are within a class. One node has very many edges, like a package that all others
    depend on. Half of the nodes have labels in the training; ``right`` is the accuracy on the
    others.
    """
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(classes, (nodes,), generator=generator)
    order = torch.argsort(label)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(nodes)
    source = torch.randint(nodes, (edges,), generator=generator)
    near = torch.randint(nodes // (2 * classes), (edges,), generator=generator)
    target = order[(rank[source] + near).clamp(max=nodes - 1)]
    hub = torch.rand(edges, generator=generator) < 0.08
    target = torch.where(hub, 0, target)
    features = torch.nn.functional.one_hot(label, classes)
    features = features + 2.0 * torch.randn(nodes, classes, generator=generator)
    trained = torch.where(torch.rand(nodes, generator=generator) < 0.5, label, -100)

    begin = time.process_time()
    graph = Graph(features, torch.stack([source, target]))
    names = [str(i) for i in range(classes)]
    data = GraphDataset("packages", "train", [graph], [trained], names, eigenvectors=4)
    inputs, labels = data.batch([0])
    preparation = time.process_time() - begin

    torch.manual_seed(0)
    model = create_model(
        "itnet_nano",
        encoder={**data.encoder(), "off_edges": "none"},
        body={"dim": 32, "depth": 2, "heads": 2, "operator": "softmax", "operator_options": {}},
        head={**data.head(), "outputs": classes},
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    seconds = []
    for _ in range(steps):
        begin = time.process_time()
        logits = model(inputs).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.process_time() - begin)
    with torch.no_grad():
        right = (model.eval()(inputs)[0].argmax(-1) == label)[trained < 0].float().mean()
    degrees = torch.bincount(torch.cat([source, target]))
    return {
        "nodes": nodes,
        "edges": edges,
        "longest": int(degrees.max()),
        "preparation": preparation,
        "seconds": statistics.median(seconds),
        "process_megabytes": process_megabytes(),
        "right": float(right),
    }
