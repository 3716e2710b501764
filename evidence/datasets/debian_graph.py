"""Debian's packages and their dependencies, as the package lists of this machine describe them: the
section of each is to be told.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.clients import DEBIAN_ONLY, apt_options
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.formats import read_bytes
from fredholm.lab.data.kinds.graphs import GRAPHS, Network, NodeDataset
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Client, Package
from fredholm.lab.data.splits import place_of, split_at
from fredholm.lab.data.vocabulary import Vocabulary

NODES, EDGES = "packages.json", "dependencies.npy"
CLASSES, WORDS = 20, 12  # the most frequent sections; words kept of a synopsis
_NAME = re.compile(r"^\s*([a-z0-9][a-z0-9+.-]+)")


@dataclass(frozen=True)
class DebianOptions:
    """``size``: nodes of a package's surroundings, 1 for the package alone; ``eigenvectors`` of
    their positions.

    Raises:
        OptionError: a number below 1.
    """

    size: int = 16
    eigenvectors: int = 4

    def __post_init__(self) -> None:
        for name in ("size", "eigenvectors"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise OptionError(f"{name}: received {value!r}; needs an integer of 1 or more")


def _dump(package: str, version: str | None, folder: Path) -> list[str]:
    return ["apt-cache", *apt_options(folder), "dumpavail"]


# What apt knows of every available package, as one file.
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


def parse(text: str) -> tuple[list[tuple[str, str, str, str]], np.ndarray]:
    """Packages (name, source, section, synopsis) in the order of their names, and (2, E)
    dependencies (who, on what).

    The text is that of ``apt-cache dumpavail``: fields ``Key: value`` a line, packages divided by
    empty lines. All alternatives of Depends and Pre-Depends count where a package of that name
    exists; of a name given twice the first is kept.

    Raises:
        DataError: a text without a package.
    """
    packages: dict[str, tuple[str, str, str, str]] = {}
    needs: dict[str, list[str]] = {}
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
        packages[name] = (
            name,
            source,
            section,
            fields.get("Description", fields.get("Description-en", "")),
        )
        listed = f"{fields.get('Depends', '')},{fields.get('Pre-Depends', '')}"
        needs[name] = [
            result[1] for part in re.split(r"[,|]", listed) if (result := _NAME.match(part))
        ]
    if not packages:
        raise DataError(
            "the package lists name no package; run `apt-get update` once, then fetch again"
        )
    order = {name: place for place, name in enumerate(sorted(packages))}
    pairs = sorted(
        {
            (order[who], order[what])
            for who in needs
            for what in needs[who]
            if what in order and what != who
        }
    )
    return [packages[name] for name in order], np.array(pairs, np.int32).reshape(-1, 2).T


def derive(archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """``packages.json`` and ``dependencies.npy`` of what apt said."""
    packages, edges = parse(archive.read_text(encoding="utf-8", errors="replace"))
    (folder / NODES).write_text(
        json.dumps(packages, ensure_ascii=False, indent=0), encoding="utf-8"
    )
    np.save(folder / EDGES, edges)
    advance(edges.nbytes)


def read(folder: Path) -> tuple[list[list[str]], Tensor]:
    """The packages and dependencies that :func:`derive` wrote.

    Raises:
        DataError: files that do not belong together.
    """
    try:
        packages = json.loads(read_bytes(folder / NODES))
        edges = np.load(folder / EDGES)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{folder}: no dependency graph ({error}); fetch debian-graph again with --force"
        ) from error
    if edges.ndim != 2 or edges.shape[0] != 2 or (edges.size and edges.max() >= len(packages)):
        raise DataError(
            f"{folder}: dependencies of packages that do not exist; fetch debian-graph again with "
            "--force"
        )
    return packages, torch.from_numpy(edges.astype(np.int64))


def create(request: Request) -> NodeDataset:
    """The data set of a request: packages of one source are in one split, whose place follows from
    the source's name.
    """
    packages, edges = read(source_folder(request, lambda file: True))
    frequent = Counter(section for _, _, section, _ in packages if section).most_common()
    classes = sorted(sorted(frequent, key=lambda item: (-item[1], item[0]))[:CLASSES])
    sections = {name: place for place, (name, _) in enumerate(classes)}
    fraction = float(request.share)
    nodes: dict[str, list[int]] = {"train": [], "val": [], "test": []}
    for place, (_, source, section, _) in enumerate(packages):
        if section in sections:
            nodes[split_at(place_of(source), fraction, 0.2)].append(place)
    vocabulary = Vocabulary.of_words([packages[i][3] for i in nodes["train"]], 3)
    tokens = torch.zeros(len(packages), WORDS, dtype=torch.long)
    for row, (_, _, _, synopsis) in enumerate(packages):
        numbers = [number for number in vocabulary.encode(synopsis) if number > 1][:WORDS]
        tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.long)
    chosen = torch.tensor(nodes[request.split], dtype=torch.long)
    labels = torch.tensor(
        [sections[packages[i][2]] for i in nodes[request.split]], dtype=torch.long
    )
    return NodeDataset(
        request.entry.name,
        request.split,
        Network(edges, len(packages)),
        tokens,
        chosen,
        labels,
        [name for name, _ in classes],
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
