"""KiCad's 3-D models of electronic parts as point clouds: 26 kinds of part, split by families of
similar parts.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fredholm.errors import DataError, OptionError
from fredholm.lab.data.clients import APT, tar_stream
from fredholm.lab.data.create import source_folder
from fredholm.lab.data.kinds.points import POINTS, PointDataset
from fredholm.lab.data.meshes import sample_surface
from fredholm.lab.data.registry import Entry, Request, register_dataset
from fredholm.lab.data.sources import Package
from fredholm.lab.data.splits import SPLITS, split_at

from .kicad_wrl import parse_vrml

STORED = 1024
"""Number of points of a stored cloud."""
LEAST = 60
"""Smallest number of models of a class."""
CLOUDS, NAMES = "clouds.npy", "names.txt"
_PITCH = re.compile(r"_\d+(\.\d+)?mm$")
_LENGTH = re.compile(r"\d+(\.\d+)?(?=mm)")
_NUMBER = re.compile(r"\d+(\.\d+)?")


@dataclass(frozen=True)
class KicadOptions:
    """Options of the data set.

    Attributes:
        points: number of points that a model reads of a cloud, at most 1,024.
        split: ``family``, or ``random`` for comparison.

    Raises:
        OptionError: an impossible number of points, or another split.
    """

    points: int = 256
    split: str = "family"

    def __post_init__(self) -> None:
        if not isinstance(self.points, int) or not 1 <= self.points <= STORED:
            raise OptionError(f"points: expected 1 to {STORED}, got {self.points!r}")
        if self.split not in ("family", "random"):
            raise OptionError(f"split: expected family or random, got {self.split!r}")


def kind_of(folder: str) -> str:
    """Return the class of a model: its folder's name without the pitch.

    All series of Phoenix connectors are one class.

    Example:
        >>> kind_of("Connector_PinHeader_2.54mm"), kind_of("Connector_Phoenix_MC_HighVoltage")
        ('Connector_PinHeader', 'Connector_Phoenix')
    """
    if folder.startswith("Connector_Phoenix"):
        return "Connector_Phoenix"
    return _PITCH.sub("", folder)


def family_of(name: str) -> str:
    """Return the family of a part: its name without all numbers except the first length.

    Parts of a family differ mostly in counts, such as that of pins.

    Example:
        >>> names = "DIP-14_W7.62mm_Socket", "DIP-28_W7.62mm_Socket", "DIP-14_W10.16mm_Socket"
        >>> few, more, wider = map(family_of, names)
        >>> few == more != wider
        True
    """
    first = _LENGTH.search(name)
    if first is None:
        return _NUMBER.sub("#", name)
    before = _NUMBER.sub("#", name[: first.start()])
    after = _NUMBER.sub("#", name[first.end() :])
    return before + first.group() + after


def _hash(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def derive(archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Sample every model of the classes with enough models, sorted by name.

    Writes ``clouds.npy`` (float16) and ``names.txt``.
    """
    rows: dict[str, np.ndarray] = {}
    with tar_stream(archive, APT) as tar:
        for member in tar:
            path = Path(member.name)
            if path.suffix != ".wrl" or not member.isfile():
                continue
            name = f"{path.parent.name.removesuffix('.3dshapes')}/{path.stem}"
            stream = tar.extractfile(member)
            content = b"" if stream is None else stream.read()
            key = int.from_bytes(_hash(name)[:7], "big")
            # Models of nested transforms and empty ones are skipped.
            try:
                vertices, triangles = parse_vrml(content, name)
                cloud = sample_surface(vertices, triangles, STORED, key)
            except DataError:
                continue
            rows[name] = cloud.astype(np.float16)
            advance(rows[name].nbytes)

    kinds = defaultdict(list)
    for name in sorted(rows):
        kinds[kind_of(name.partition("/")[0])].append(name)
    names: list[str] = []
    for of_kind in kinds.values():
        if len(of_kind) >= LEAST:
            names += of_kind
    names.sort()
    if not names:
        raise DataError(
            f"{archive}: expected folders of {LEAST} models or more, got none; it is another "
            f"package"
        )
    np.save(folder / CLOUDS, np.stack([rows[name] for name in names]))
    (folder / NAMES).write_text("\n".join(names) + "\n", encoding="utf-8")


def split_families(names: Sequence[str], shares: tuple[float, float]) -> list[int]:
    """Return 0 (train), 1 (val) or 2 (test) for each name; a family is in one part.

    ``shares`` of each class go to val and test, as nearly as families allow, in an order of the
    families that is fixed by their hashes. The largest family is always in train.
    """
    families: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, name in enumerate(names):
        folder, _, part = name.partition("/")
        families[kind_of(folder)][family_of(part)].append(index)

    parts = [0] * len(names)
    for kind, groups in families.items():
        total = sum(map(len, groups.values()))
        largest = max(sorted(groups), key=lambda family: len(groups[family]))
        order = sorted(groups, key=lambda family: _hash(f"{kind}/{family}"))
        filled = [0, 0, 0]
        for family in order:
            size = len(groups[family])
            # A family goes to a part if at least half of it fits.
            room = [part for part in (2, 1) if filled[part] + size / 2 <= shares[part - 1] * total]
            part = room[0] if room and family != largest else 0
            filled[part] += size
            for index in groups[family]:
                parts[index] = part
    return parts


def create(request: Request) -> PointDataset:
    """Return the data set of a request, with classes in alphabetical order."""
    folder = source_folder(request, lambda file: True)
    try:
        clouds = np.load(folder / CLOUDS)
        names = (folder / NAMES).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError, EOFError) as error:
        raise DataError(
            f"{folder}: expected sampled clouds, got none ({error}); fetch kicad again with --force"
        ) from error
    shape = (len(names), STORED, 3)
    if clouds.shape != shape:
        raise DataError(
            f"{folder}: expected clouds {shape}, got {clouds.shape}; fetch kicad again with --force"
        )
    kinds = [kind_of(name.partition("/")[0]) for name in names]
    classes = sorted(set(kinds))
    fraction = float(request.share)
    options = request.options
    if options.split == "family":
        parts = split_families(names, (0.8 * fraction, 0.2))
    else:
        # Six bytes of the hash are a uniform number in [0, 1).
        uniform = [int.from_bytes(_hash(name)[7:13], "big") / 2**48 for name in names]
        parts = [SPLITS.index(split_at(number, fraction, 0.2)) for number in uniform]
    chosen = [i for i, part in enumerate(parts) if part == SPLITS.index(request.split)]
    labels = torch.tensor([classes.index(kinds[i]) for i in chosen])
    stored = torch.from_numpy(clouds[chosen])
    return PointDataset(request.entry.name, request.split, stored, labels, classes, options.points)


ENTRY = Entry(
    name="kicad",
    title="KiCad's 3-D models of electronic parts as point clouds, 26 kinds of part",
    licence_package="CC-BY-SA-4.0, with an exception for designs",
    licence_data="CC-BY-SA-4.0 (KiCad library contributors); pictures of them must say so",
    read=create,
    sources=(
        Package(
            client=APT,
            name="kicad-packages3d",
            version="6.0.10-1",
            archive_bytes=379092288,
            archive_sha256="e4ee3179c3935885a262e41543a675208ad5b3077d348728cac46f534d01109a",
            derive=derive,
            derived_bytes=38_000_000,
        ),
    ),
    official="the .wrl files of gitlab.com/kicad/libraries/kicad-packages3D have to be sampled "
    "first, which only fetch does; use "
    "modelnet40 for other clouds",
    val_fraction=0.125,
    notes="1,024 points sampled from each surface once, in the unit ball; 26 kinds with 60 models "
    "or more. No official split: about "
    "70 / 10 / 20%, by families of parts that differ in counts only; options: points (default "
    "256), split (family or random)",
    kind=POINTS,
    options=KicadOptions,
)
register_dataset(ENTRY)
