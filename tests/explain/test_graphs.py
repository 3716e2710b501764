"""Drawings of kernels over graphs and meshes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.data import Graph, GraphDataset
from fredholm.explain import ReportOptions, Samples, kernel_map, report
from fredholm.explain.kernels import take_samples
from fredholm.lab.report.layers import MAX_HEADS, Layer, View
from fredholm.lab.report.maps import graphs
from fredholm.lab.report.maps.queries import map_section
from fredholm.lab.report.style import LIGHT
from fredholm.meshes import Mesh
from fredholm.models import create_model

pytest.importorskip("matplotlib")


def ring(n: int) -> torch.Tensor:
    node = torch.arange(n)
    return torch.cat([torch.stack([node, (node + 1) % n]), torch.stack([(node + 1) % n, node])], -1)


def lattice(n: int) -> Mesh:
    """Return a square of 2 n² triangles."""
    axis = torch.linspace(0, 1, n + 1)
    index = torch.arange((n + 1) ** 2).view(n + 1, n + 1)
    a, b, c, d = index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]
    cells = torch.cat([torch.stack(t, -1).reshape(-1, 3) for t in ((a, b, c), (a, c, d))])
    return Mesh(torch.cartesian_prod(axis, axis), cells)


def operator():
    torch.manual_seed(0)
    return create_operator("softmax", 8, heads=2)


def test_a_neighbourhood_of_a_node_has_its_edges():
    part = graphs.part_around(Domain.graph(ring(12), 12, sparse=True), 3, limit=5)
    assert part.nodes[0] == 3
    assert sorted(part.nodes.tolist()) == [1, 2, 3, 4, 5]
    pairs = {(int(part.nodes[s]), int(part.nodes[t])) for s, t in part.edges.T}
    assert pairs == {(i, j) for i in range(1, 6) for j in range(1, 6) if abs(i - j) == 1}
    assert len(part.cells) == 0


def test_a_graph_without_positions_is_laid_out_in_the_plane():
    part = graphs.part_around(Domain.graph(ring(12), 12, sparse=True), 0)
    apart = torch.cdist(*[torch.tensor(part.places)] * 2) + 9 * torch.eye(12)
    assert float(apart.min()) > 0.01
    # Neighbours along the ring are nearest in the picture.
    for source, target in part.edges.T:
        assert apart[source, target] < apart[source].median()


def test_nodes_of_equal_degree_are_not_told_apart():
    chosen = graphs.choose_nodes(Domain.graph(ring(12), 12, sparse=True))
    assert {label for label, _ in chosen} == {"a node like the others"}


def test_triangles_of_a_mesh_are_its_cells():
    mesh = lattice(4)
    domain = Domain.mesh(mesh.vertices, mesh.cells, adjacent=True)
    part = graphs.part_around(domain, 12)
    found = {tuple(sorted(part.nodes[cell].tolist())) for cell in part.cells}
    assert found == {tuple(sorted(cell)) for cell in mesh.cells.tolist()}


def test_a_cloud_of_many_neighbours_has_no_cells():
    pytest.importorskip("scipy")
    domain = Domain.points(torch.rand(40, 2), radius=0.6)
    assert len(graphs.part_around(domain, 0).cells) == 0


def test_colours_are_the_values_of_the_kernel():
    """Lines, nodes and triangles of a panel have the values of the operator."""
    mesh = lattice(3)
    domain = Domain.mesh(mesh.vertices, mesh.cells, adjacent=True)
    u = torch.randn(1, domain.size, 8)
    op = operator()
    part = graphs.part_around(domain, 5)
    kernel = graphs.kernel_on_part(Layer("layer", op, u, domain), part).numpy()
    figure = graphs.draw_graphs(LIGHT, part, ["layer"], [kernel])
    every = kernel_map(op, u, domain, queries=list(range(domain.size)))[0]
    for head, axes in enumerate(figure.axes[:2]):
        cells, lines, nodes = axes.collections[:3]
        row = every[head, 5, part.nodes].numpy()
        order = np.argsort(row, kind="stable")
        np.testing.assert_allclose(nodes.get_array(), row[order])
        np.testing.assert_allclose(nodes.get_offsets(), part.places[order])
        np.testing.assert_allclose(cells.get_array(), row[part.cells].mean(1))
        source, target = (part.nodes[x] for x in part.edges)
        along = every[head, target, source].numpy()
        np.testing.assert_allclose(lines.get_array(), sorted(along))


def test_one_graph_of_a_batch_is_drawn_alone():
    sizes = (3, 5, 4)
    batch = Domain.collate([Domain.graph(ring(n), n, sparse=True) for n in sizes])
    u = torch.randn(3, 5, 8)
    op = operator()
    every = op.weights(u, batch)
    for b, n in enumerate(sizes):
        own = take_samples(batch, slice(b, b + 1))
        found = op.weights(u[b : b + 1], own)[:, :, :n, :n]
        torch.testing.assert_close(found, every[b : b + 1, :, :n, :n])


@pytest.mark.parametrize("kind", ["graph", "cloud", "mesh"])
def test_an_operator_on_a_graph_has_a_report(kind, tmp_path):
    pytest.importorskip("scipy")
    mesh = lattice(5)
    domain = {
        "graph": lambda: Domain.graph(ring(30), 30, sparse=True),
        "cloud": lambda: Domain.points(torch.rand(30, 3), radius=0.4),
        "mesh": lambda: Domain.mesh(mesh.vertices, mesh.cells, adjacent=True),
    }[kind]()
    page = report(
        operator(),
        Samples(torch.randn(4, domain.size, 8)),
        out_dir=tmp_path,
        domain=domain,
        options=ReportOptions(quality=0),
    )
    assert "One node at a time" in page.read_text(encoding="utf-8")
    assert (tmp_path / "map-1.png").is_file()
    numbers = json.loads((tmp_path / "numbers.json").read_text(encoding="utf-8"))
    (layer,) = numbers["maps"].values()
    assert len(layer["nodes"]) == len(layer["queries"])


def test_the_numbers_of_a_graph_can_be_read_back(monkeypatch):
    """They name the nodes that they cover, and have every head."""
    monkeypatch.setattr(graphs, "NODES", 5)
    torch.manual_seed(0)
    op = create_operator("softmax", 16, heads=8)
    # A lonely edge beside a ring: its ends reach two nodes, all others five.
    edges = torch.cat([ring(12), torch.tensor([[12, 13], [13, 12]])], 1)
    domain = Domain.graph(edges, 14, sparse=True)
    u = torch.randn(2, 14, 16)
    section, numbers = map_section(View([Layer("layer", op, u, domain)]))
    assert len(section.pictures[0].data.head) == 2 + MAX_HEADS

    found = json.loads(json.dumps(numbers))["layer"]
    expected = kernel_map(op, u[:1], domain, queries=found["queries"])[0]
    assert {len(nodes) for nodes in found["nodes"]} == {2, 5}
    assert len(found["weights"]) == 8
    for head, queries in enumerate(found["weights"]):
        for query, weights in enumerate(queries):
            nodes = found["nodes"][query]
            assert nodes[0] == found["queries"][query]
            assert weights == pytest.approx(expected[head, query, nodes].tolist(), rel=1e-4)


def test_a_model_on_graphs_has_a_report(tmp_path):
    torch.manual_seed(0)
    known = [Graph(torch.randn(n, 3), ring(n)) for n in (8, 10, 12)]
    data = GraphDataset("rings", "test", known, torch.tensor([0, 1, 0]), ["a", "b"], eigenvectors=2)
    model = create_model(
        "itnet_nano",
        encoder={**data.encoder(), "off_edges": "none"},
        body={"dim": 8, "depth": 1, "heads": 2, "operator": "softmax", "operator_options": {}},
        head={**data.head(), "outputs": 2},
    )
    inputs, labels = data.batch([0, 1, 2])
    page = report(
        model,
        Samples(inputs, labels=labels),
        out_dir=tmp_path,
        options=ReportOptions(quality=0, picture=0),
    )
    text = page.read_text(encoding="utf-8")
    assert "One node at a time" in text
    # The first graph has 8 nodes; the batch pads all to 12.
    assert "; 8 of 8 nodes" in text


def test_negative_weights_have_a_different_colour():
    """For a kernel of signs, negative values must not look like zero."""
    part = graphs.part_around(Domain.graph(ring(6), 6, sparse=True), 0)
    kernel = np.zeros((1, 6, 6))
    kernel[0, 0, :3] = 1.0, -2.0, 0.0
    figure = graphs.draw_graphs(LIGHT, part, ["layer"], [kernel])
    _, nodes = figure.axes[0].collections[:2]
    figure.draw_without_rendering()
    negative, zero, positive = (nodes.to_rgba([value])[0].tolist() for value in (-2.0, 0.0, 1.0))
    assert negative != zero != positive
    assert (nodes.norm.vmin, nodes.norm.vmax) == (-2.0, 2.0), "zero is the middle"
    assert figure.axes[0].get_xlabel() == "-2 – 1"
