"""What a file holds, by the end of its name."""

from __future__ import annotations

from pathlib import Path

LINES = (".jsonl", ".ndjson")  # an object a line
TEXT_TABLES = (".csv", ".tsv", *LINES)
COMPRESSED = ".gz"


def is_compressed(path: Path) -> bool:
    """Whether it is a compressed table."""
    inner = Path(path.stem).suffix.lower()
    return path.suffix.lower() == COMPRESSED and inner in TEXT_TABLES


def suffix_of(path: Path) -> str:
    """Its suffix in small letters; of a compressed table that of the table.

    Example:
        >>> suffix_of(Path("Walks.CSV.gz")), suffix_of(Path("walks.npz.gz"))
        ('.csv', '.gz')
    """
    return (Path(path.stem) if is_compressed(path) else path).suffix.lower()


def stem_of(path: Path) -> str:
    """Its name without the suffix; of a compressed table without both.

    Example:
        >>> stem_of(Path("data/walks.csv.gz")), stem_of(Path("walks.csv"))
        ('walks', 'walks')
    """
    return Path(path.stem).stem if is_compressed(path) else path.stem
