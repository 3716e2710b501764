"""Graphs: molecules, TU's layout, and a package's surroundings."""

from __future__ import annotations

import pytest
import torch
from evidence.datasets import debian_graph

from fredholm.data import Graph, GraphDataset, Network, NodeDataset
from fredholm.errors import DataError, OptionError, ShapeError
from fredholm.lab import data
from fredholm.models import create_model

MOLECULE = """ethanol-ish
     RDKit          2D

  3  2  0  0  0  0  0  0  0  0999 V2000
    0.2606    0.1503    0.0000 C   0  0  0  0  0  0  0  0  0  0  0  0
    1.3000    0.7500    0.0000 C   0  0  0  0  0  0  0  0  0  0  0  0
    2.6000    0.0000    0.0000 {element}   0  0  0  0  0  0  0  0  0  0  0  0
  1  2  1  0
  2  3  2  0
M  CHG  1   3  -1
M  END
>  <SOL_classification>  (1)
({letter}) {name}

$$$$
"""


def write_molecules(folder, n: int = 12):
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        records = [
            MOLECULE.format(
                element="ON"[i % 2], letter="ABC"[i % 3], name=("low", "medium", "high")[i % 3]
            )
            for i in range(n)
        ]
        (folder / f"solubility.{part}.sdf").write_text("".join(records))
    return folder


def test_molecules_are_read(tmp_path):
    train = data.create_dataset(
        "solubility",
        "train",
        path=write_molecules(tmp_path),
        val_fraction=0,
        options={"eigenvectors": 2},
    )
    assert (len(train), train.task, train.channels) == (12, "classification", 15)
    inputs, labels = train.batch([0, 1])
    assert labels.tolist() == [0, 1]
    assert inputs["edges"][0].int().tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    oxygen = inputs["features"][0, 2]
    assert oxygen.nonzero().flatten().tolist() == [2, 10, 12], (
        "its element, its charge, one double bond"
    )
    assert oxygen[10] == -1
    broken = (tmp_path / "solubility.test.sdf").read_text().replace("  2  3  2  0\n", "", 1)
    (tmp_path / "solubility.test.sdf").write_text(broken)
    with pytest.raises(DataError, match="molecule 1: expected a V2000 record"):
        data.create_dataset("solubility", "test", path=tmp_path)
    text = (write_molecules(tmp_path) / "solubility.test.sdf").read_text()
    (tmp_path / "solubility.test.sdf").write_text(text.replace("<SOL_classification>", "<SOL>", 1))
    with pytest.raises(DataError, match=r"'SOL_classification', got another \(no such data"):
        data.create_dataset("solubility", "test", path=tmp_path)


def write_tu(folder, name="TOY"):
    """Write twenty graphs of three nodes, paths or triangles."""
    edges, owner = [], []
    for graph in range(20):
        first = 3 * graph + 1
        pairs = [(0, 1), (1, 2)] + ([(2, 0)] if graph % 2 else [])
        edges += [f"{first + a}, {first + b}" for a, b in pairs] + [
            f"{first + b}, {first + a}" for a, b in pairs
        ]
        owner += [str(graph + 1)] * 3
    texts = {
        "A": edges,
        "graph_indicator": owner,
        "graph_labels": ["-1", "1"] * 10,
        "node_labels": ["0", "4", "7"] * 20,
    }
    for what, lines in texts.items():
        (folder / f"{name}_{what}.txt").write_text("\n".join(lines) + "\n")


def test_the_tu_layout_is_read(tmp_path):
    write_tu(tmp_path)
    train = data.create_dataset("tu-folder", "train", path=tmp_path)
    test = data.create_dataset("tu-folder", "test", path=tmp_path)
    assert (len(test), train.classes, train.channels) == (2, ("-1", "1"), 3)
    inputs, labels = test.batch([0, 1])
    assert inputs["edges"].sum((1, 2)).tolist() == [4 + 2 * int(label) for label in labels]
    (tmp_path / "TOY_node_labels.txt").write_text("0\n" * 59)
    with pytest.raises(DataError, match="do not fit"):
        data.create_dataset("tu-folder", "train", path=tmp_path)
    (tmp_path / "TOY_node_labels.txt").unlink()
    assert data.create_dataset("tu-folder", "train", path=tmp_path).channels == 1
    (tmp_path / "TOY_A.txt").write_text("1, 4\n")
    with pytest.raises(DataError, match="edges between graphs"):
        data.create_dataset("tu-folder", "train", path=tmp_path)
    with pytest.raises(OptionError, match="expected path"):
        data.create_dataset("tu-folder", "train")


def test_wrong_graphs_are_refused():
    edges = torch.tensor([[0], [1]])
    with pytest.raises(DataError, match="got NaN or infinity at node 1"):
        Graph(torch.tensor([[0.0], [torch.nan]]), edges)
    with pytest.raises(DataError, match="expected nodes 0 to 0"):
        Graph(torch.zeros(1, 1), edges)
    with pytest.raises(DataError, match="one node or more"):
        Graph(torch.zeros(0, 1), torch.zeros(2, 0, dtype=torch.long))
    with pytest.raises(DataError, match="expected graphs of one width"):
        GraphDataset(
            "x",
            "train",
            [Graph(torch.zeros(2, 1), edges), Graph(torch.zeros(2, 2), edges)],
            torch.zeros(2),
            ("a",),
        )


def test_graphs_without_edges_and_classes_of_nodes_are_read():
    lone = Graph(torch.rand(2, 3), torch.zeros(2, 0, dtype=torch.long))
    path = Graph(torch.rand(3, 3), torch.tensor([[0, 1], [1, 2]]))
    found = GraphDataset(
        "x",
        "train",
        [lone, path],
        [torch.tensor([0, 1]), torch.tensor([1, -100, 0])],
        ("a", "b"),
        eigenvectors=2,
    )
    inputs, labels = found.batch([0, 1])
    assert found.task == "steps"
    assert labels.tolist() == [[0, 1, -100], [1, -100, 0]]
    assert inputs["valid"].tolist() == [[True, True, False], [True] * 3]
    assert inputs["positions"][0].abs().max() == 0


def test_labels_of_nodes_need_one_per_node():
    path = Graph(torch.rand(3, 3), torch.tensor([[0, 1], [1, 2]]))
    with pytest.raises(DataError, match="expected one label per node, got 4 for 3 nodes"):
        GraphDataset("x", "train", [path], [torch.tensor([0, 1, 0, 1])], ("a", "b"))


def test_splits_share_a_vocabulary():
    graphs = [Graph(torch.tensor([[1], [n]]), torch.tensor([[0], [1]])) for n in (2, 5)]

    def split(part, **options):
        return GraphDataset("x", part, graphs[:1], torch.tensor([0]), ("a",), **options)

    assert split("train").encoder()["vocabulary"] == 3
    assert split("train", vocabulary=6).encoder()["vocabulary"] == 6
    with pytest.raises(DataError, match="a vocabulary of 3 or more for tokens up to 2, got 2"):
        split("train", vocabulary=2)
    model = create_model("itnet_nano", data=split("train").encoder()).eval()
    test = GraphDataset("x", "test", graphs, torch.tensor([0, 0]), ("a",))
    with pytest.raises(ShapeError, match="tokens: expected 0 to 2, got 5; give all"):
        model(test.batch([1])[0])


def test_surroundings_are_sampled_around_a_node():
    """A star with a hub, and a chain attached to it."""
    edges = torch.tensor([[0] * 10 + [10, 11], [*range(1, 11), 11, 12]])
    network = Network(edges, 14)
    assert network.around(12, 3) == [12, 11, 10]
    assert network.around(12, 4) == [12, 11, 10, 0]
    assert network.around(13, 4) == [13]
    assert network.around(0, 3)[0] == 0
    nodes = torch.tensor([[0, 1, 10, -1], [13, -1, -1, -1]])
    linked = network.linked(nodes)
    assert linked.nonzero().tolist() == [[0, 0, 1], [0, 0, 2], [0, 1, 0], [0, 2, 0]]
    assert not Network(torch.zeros(2, 0, dtype=torch.long), 3).linked(torch.tensor([[0, 1]])).any()
    with pytest.raises(DataError, match="each of 14 nodes"):
        NodeDataset(
            "x", "train", network, torch.rand(3, 2), torch.tensor([0]), torch.tensor([0]), ("a",)
        )
    with pytest.raises(OptionError, match="size: expected 1 node or more, got 0"):
        NodeDataset(
            "x",
            "train",
            network,
            torch.rand(14, 2),
            torch.tensor([0]),
            torch.tensor([0]),
            ("a",),
            size=0,
        )


def available(n: int = 300) -> str:
    """Return a list in apt's format: libraries and the games that need them."""
    blocks = []
    for i in range(n):
        game = i % 2
        needs = f"Depends: lib{i - 1} (>= 1.0) | missing, lib{max(i - 3, 0)}:any\n" if game else ""
        name = f"lib{i}"
        section = "universe/libs"
        words = "shared library file"
        if game:
            name = f"game{i}"
            section = "games"
            words = "play a strategy game"
        blocks.append(
            f"Package: {name}\nSource: src{i}\n{needs}Section: {section}\nDescription: {words}\n "
            "more text: of it\n"
        )
    return "\n".join(blocks)


def test_the_debian_graph_is_read(tmp_path):
    archive = tmp_path / "available.txt"
    archive.write_text(available())
    folder = tmp_path / "debian"
    folder.mkdir()
    debian_graph.derive(archive, folder, lambda count: None)
    parts = {
        split: data.create_dataset(
            "debian-graph", split, path=folder, options={"size": 6, "eigenvectors": 2}
        )
        for split in ("train", "val", "test")
    }
    assert sum(map(len, parts.values())) == 300
    assert parts["train"].classes == ("games", "libs")
    around = [set(part.nodes.tolist()) for part in parts.values()]
    assert not around[0] & around[1] | around[0] & around[2]
    inputs, labels = parts["train"].batch(torch.arange(len(parts["train"])))
    assert inputs["edges"].shape[1:] == (6, 6)
    assert inputs["valid"][:, 0].all()
    assert (inputs["edges"] == inputs["edges"].mT).all()
    words = {
        int(label): set(tokens[0].tolist()) - {0} for tokens, label in zip(inputs["tokens"], labels)
    }
    assert not words[0] & words[1], "the two synopses share no word"
    with pytest.raises(DataError, match="package lists: expected packages, got none"):
        debian_graph.parse("")
    (folder / "dependencies.npy").write_bytes(b"")
    with pytest.raises(DataError, match="fetch debian-graph again"):
        data.create_dataset("debian-graph", "train", path=folder)


def test_the_debian_graph_is_fetched_from_apt(tmp_path, monkeypatch):
    folder = tmp_path / "bin"
    folder.mkdir()
    (tmp_path / "list").write_text(available(60))
    (folder / "apt-cache").write_text(f"#!/bin/sh\ncat {tmp_path}/list\n")
    (folder / "apt-cache").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    place = data.fetch("debian-graph", tmp_path / "root", progress=False)
    assert data.describe("debian-graph", tmp_path / "root")["state"] == "fetched"
    assert len(data.create_dataset("debian-graph", "train", root=tmp_path / "root")) > 30
    (place / "packages.json").write_text("[]")
    assert data.describe("debian-graph", tmp_path / "root")["state"] == "damaged"
    with pytest.raises(DataError, match=r"packages\.json: truncated"):
        data.create_dataset("debian-graph", "train", root=tmp_path / "root")
    data.fetch("debian-graph", tmp_path / "root", progress=False, force=True)
    assert data.describe("debian-graph", tmp_path / "root")["state"] == "fetched"


def communities(n: int = 1500, classes: int = 3) -> GraphDataset:
    """Return a graph whose edges lie mostly within classes, with weak features."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    source = torch.randint(n, (4 * n,), generator=generator)
    away = classes * torch.randint(n // classes, (4 * n,), generator=generator)
    target = (source + away) % n
    features = torch.nn.functional.one_hot(labels, classes)
    noise = torch.randn(n, classes, generator=generator)
    graph = Graph(features + 1.5 * noise, torch.stack([source, target]))
    names = [str(i) for i in range(classes)]
    asked = torch.where(torch.rand(n, generator=generator) < 0.5, labels, -100)
    return GraphDataset("communities", "train", [graph], [asked], names, eigenvectors=2)


@pytest.mark.parametrize("operator", ["softmax", "itnet"])
def test_a_large_graph_trains_without_dense_pairs(operator, monkeypatch):
    """The pairs of its nodes are never materialised."""
    pytest.importorskip("scipy")
    monkeypatch.setattr("fredholm.edges.DENSE_PAIRS", 0)
    data = communities()
    inputs, labels = data.batch([0])
    assert "edges" not in inputs
    assert inputs["links"].shape == (1, 12000, 2)
    torch.manual_seed(0)
    options = {"width": 8, "frequencies": 2} if operator == "itnet" else {}
    model = create_model(
        "itnet_nano",
        encoder={**data.encoder(), "off_edges": "none"},
        body={"dim": 16, "depth": 1, "heads": 2, "operator": operator, "operator_options": options},
        head={**data.head(), "outputs": 3},
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for _ in range(25):
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.6 * losses[0]
    every = torch.arange(1500) % 3
    asked = labels[0] == -100
    right = (model.eval()(inputs)[0].argmax(-1) == every)[asked].float().mean()
    assert right > 0.8
