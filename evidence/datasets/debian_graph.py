"""The graph of Debian's packages and their dependencies; the task is to classify their sections.

The data come from the package lists of this machine.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fredholm.errors import DataError
from fredholm.lab.data.clients import DEBIAN_ONLY, apt_options
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.graphs import GRAPHS, Network, NodeDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Client, Package
from fredholm.lab.data.splits import place_of, split_at
from fredholm.lab.data.vocabulary import Vocabulary

from .checks import check_integers

NODES, EDGES = "packages.json", "dependencies.npy"
CLASSES = 20
"""Number of sections, the most frequent ones."""
WORDS = 12
"""Number of words that are read of a synopsis."""
_NAME = re.compile(r"^\s*([a-z0-9][a-z0-9+.-]+)")


@dataclass(frozen=True)
class DebianOptions:
    """Options of the data set.

    Attributes:
        size: number of nodes of a package's neighbourhood; 1 for the package alone.
        eigenvectors: number of Laplacian eigenvectors in the nodes' positions.

    Raises:
        OptionError: a number below 1.
    """

    size: int = 16
    eigenvectors: int = 4

    def __post_init__(self) -> None:
        check_integers(self, 1, "size", "eigenvectors")


def _dump(package: str, version: str | None, folder: Path) -> list[str]:
    return ["apt-cache", *apt_options(folder), "dumpavail"]


# One file that describes all packages known to apt.
LISTS = Client(
    "apt-lists",
    "package lists of apt:",
    programs=("apt-cache",),
    command=_dump,
    pattern="available.txt",
    gone=r"(?!)",
    hint="run `apt-get update` once (the package lists may be empty)",
    install=DEBIAN_ONLY,
    output="available.txt",
)


class DebianPackage(NamedTuple):
    """A package as ``packages.json`` has it."""

    name: str
    source: str
    section: str
    synopsis: str


def parse(text: str) -> tuple[list[tuple[str, str, str, str]], np.ndarray]:
    """Parse the output of ``apt-cache dumpavail``.

    It has a field ``Key: value`` per line, and empty lines between packages. All alternatives of
    Depends and Pre-Depends count if a package of that name exists. If a name occurs twice, the
    first package counts.

    Returns:
        Packages (name, source, section, synopsis) in the order of their names, and dependencies
        (2, E): indices of the dependent packages and of their dependencies.

    Raises:
        DataError: the text has no package.
    """
    packages: dict[str, tuple[str, str, str, str]] = {}
    dependencies: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        fields = {}
        for line in block.splitlines():
            key, colon, value = line.partition(": ")
            if colon and not line.startswith(" "):
                fields.setdefault(key.strip(), value.strip())
        name = fields.get("Package")
        if not name or name in packages:
            continue
        source = fields.get("Source", name).partition(" ")[0]
        section = fields.get("Section", "").rpartition("/")[2]
        synopsis = fields.get("Description", fields.get("Description-en", ""))
        packages[name] = (name, source, section, synopsis)
        listed = f"{fields.get('Depends', '')},{fields.get('Pre-Depends', '')}"
        matches = [_NAME.match(part) for part in re.split(r"[,|]", listed)]
        dependencies[name] = [match[1] for match in matches if match]
    if not packages:
        raise DataError(
            "package lists: expected packages, got none; run `apt-get update` once, then fetch "
            "again"
        )

    index = {name: number for number, name in enumerate(sorted(packages))}
    pairs: set[tuple[int, int]] = set()
    for name, targets in dependencies.items():
        for target in targets:
            if target in index and target != name:
                pairs.add((index[name], index[target]))
    edges = np.array(sorted(pairs), np.int32).reshape(-1, 2).T
    return [packages[name] for name in index], edges


def derive(archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Write ``packages.json`` and ``dependencies.npy`` from the output of apt."""
    packages, edges = parse(archive.read_text(encoding="utf-8", errors="replace"))
    (folder / NODES).write_text(
        json.dumps(packages, ensure_ascii=False, indent=0), encoding="utf-8"
    )
    np.save(folder / EDGES, edges)
    advance(edges.nbytes)


def read(folder: Path) -> tuple[list[list[str]], Tensor]:
    """Read the packages and dependencies that :func:`derive` wrote.

    Raises:
        DataError: a file is missing or damaged, or the files do not belong together.
    """
    try:
        packages = json.loads(read_bytes(folder / NODES))
        edges = np.load(folder / EDGES)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{folder}: expected a dependency graph, got none ({error}); fetch debian-graph again "
            "with --force"
        ) from error
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.size and edges.max() >= len(packages)):
        raise DataError(
            f"{folder}: expected dependencies of {len(packages)} packages, got others; fetch "
            "debian-graph again with --force"
        )
    return packages, torch.from_numpy(edges.astype(np.int64))


def create(request: Request) -> NodeDataset:
    """Return the data set of a request.

    All packages of one source are in the same split, which depends on the source's name.
    """
    rows, edges = read(source_folder(request, lambda file: True))
    packages = [DebianPackage(*row) for row in rows]
    counts = Counter(package.section for package in packages if package.section)
    # Sections of equal counts are ordered by their names.
    frequent = sorted(counts, key=lambda section: (-counts[section], section))
    classes = sorted(frequent[:CLASSES])
    class_of = {name: number for number, name in enumerate(classes)}

    fraction = float(request.share)
    nodes: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for node, package in enumerate(packages):
        if package.section in class_of:
            nodes[split_at(place_of(package.source), fraction, 0.2)].append(node)

    vocabulary = Vocabulary.of_words([packages[i].synopsis for i in nodes["train"]], 3)
    tokens = torch.zeros(len(packages), WORDS, dtype=torch.long)
    for node, package in enumerate(packages):
        # Tokens 0 and 1 are padding and the unknown word.
        numbers = [number for number in vocabulary.encode(package.synopsis) if number > 1][:WORDS]
        tokens[node, : len(numbers)] = torch.tensor(numbers, dtype=torch.long)
    chosen = torch.tensor(nodes[request.split], dtype=torch.long)
    numbers = [class_of[packages[i].section] for i in nodes[request.split]]
    labels = torch.tensor(numbers, dtype=torch.long)
    return NodeDataset(
        request.entry.name,
        request.split,
        Network(edges, len(packages)),
        tokens,
        chosen,
        labels,
        classes,
        size=request.options.size,
        eigenvectors=request.options.eigenvectors,
        vocabulary=len(vocabulary),
    )


ENTRY = Entry(
    name="debian-graph",
    title="Debian's packages and their dependencies: the section of a package from its synopsis "
    "and its surroundings",
    source="this machine's current package lists (apt-cache dumpavail); they drift with the "
    "distribution",
    licence_package="none needed",
    licence_data="the packages' own descriptions, under the packages' licences",
    read=create,
    sources=(
        Package(
            client=LISTS,
            name="available",
            version="current",
            archive_bytes=80_000_000,
            archive_sha256="",
            derive=derive,
            derived_bytes=2_000_000,
        ),
    ),
    official="packages.json and dependencies.npy of another machine",
    val_fraction=0.125,
    notes="20 largest sections; packages of one source are in one split, 70 / 10 / 20% by a hash "
    "of its name; options: size (16), "
    "eigenvectors (4)",
    kind=GRAPHS,
    options=DebianOptions,
)
register_dataset(ENTRY)
