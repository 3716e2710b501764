"""Node classification on the graph of Debian's packages, with all nodes in one step."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fredholm.data import Graph, GraphDataset, create_dataset
from fredholm.lab.training.machine import process_megabytes
from fredholm.models import create_model

from ..kit.memory import alone
from ..kit.page import load, save
from ..kit.subject import Options
from . import FILE

STEPS, SEEDS = 100, (0, 1, 2)
IGNORED = -100
"""The label that cross_entropy ignores by default."""


class Packages(NamedTuple):
    """Debian's packages: words of each synopsis, dependencies, and the section of each.

    Attributes:
        words: tokens of the synopses, (n, 12), 0 for none.
        edges: (2, E), two packages of which one depends on the other, in both orders.
        labels: by split, the section of each node of it, -100 elsewhere, (n,).
        sections: their names.
        vocabulary: number of tokens.
    """

    words: Tensor
    edges: Tensor
    labels: dict[str, Tensor]
    sections: list[str]
    vocabulary: int


def run(options: Options) -> None:
    """Train on the packages with and without their dependencies.

    It needs ``fredholm data fetch debian-graph``. All packages of one source are in the same split.
    """
    steps = 2 if options.small else STEPS
    seeds = SEEDS[:1] if options.small else SEEDS
    rows = []
    for edges in (True, False):
        for seed in seeds:
            row = alone(f"{__name__}:train", edges=edges, steps=steps, seed=seed)
            print(row, flush=True)
            rows.append(row)
    before = load(FILE, options.results) or {"cases": []}
    save(before | {"debian": rows}, FILE, options.results)


def packages() -> Packages:
    """Read what ``fredholm data fetch debian-graph`` stored."""
    labels = {}
    for split in ("train", "test"):
        nodes = create_dataset("debian-graph", split)
        every = torch.full((len(nodes.features),), IGNORED)
        every[nodes.nodes] = nodes.labels
        labels[split] = every
    network = nodes.network
    edges = torch.stack([network.sources, network.targets])
    return Packages(nodes.features, edges, labels, list(nodes.classes), nodes.vocabulary)


def train(edges: bool, steps: int, seed: int) -> dict[str, Any]:
    """Train on all nodes at once and test on those of the test split.

    Without ``edges`` each node attends only to itself.
    """
    torch.set_num_threads(1)
    found = packages()
    visible = found.edges if edges else found.edges[:, :0]
    data = GraphDataset(
        "packages",
        "train",
        [Graph(found.words, visible)],
        [found.labels["train"]],
        found.sections,
        eigenvectors=4 if edges else 1,
        vocabulary=found.vocabulary,
    )
    inputs, labels = data.batch([0])

    torch.manual_seed(seed)
    model = create_model(
        "itnet_nano",
        encoder={**data.encoder(), "off_edges": "none"},
        body={"dim": 32, "depth": 2, "heads": 2, "operator": "softmax", "operator_options": {}},
        head={**data.head(), "outputs": len(found.sections)},
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    begin = time.process_time()
    for _ in range(steps):
        logits = model(inputs).flatten(0, 1)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    seconds = (time.process_time() - begin) / steps

    test = found.labels["test"]
    tested = test != IGNORED
    with torch.no_grad():
        answers = model.eval()(inputs)[0].argmax(-1)
    degrees = torch.bincount(found.edges[0], minlength=len(test))
    return {
        "edges": edges,
        "seed": seed,
        "steps": steps,
        "nodes": len(test),
        "dependencies": found.edges.shape[1] // 2,
        "longest": int(degrees.max()),
        "right": float((answers == test)[tested].float().mean()),
        "commonest": float(torch.bincount(test[tested]).max() / tested.sum()),
        "seconds": seconds,
        "process_megabytes": process_megabytes(),
    }
