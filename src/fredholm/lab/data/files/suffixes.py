"""File formats, by the end of a file's name."""

from __future__ import annotations

from pathlib import Path

LINES = (".jsonl", ".ndjson")  # one object per line
TEXT_TABLES = (".csv", ".tsv", *LINES)


def is_compressed(path: Path) -> bool:
    """Whether a file is a compressed table."""
    # Other compressed files, such as walks.npz.gz, have readers that do not decompress them.
    inner = Path(path.stem).suffix.lower()
    return path.suffix.lower() == ".gz" and inner in TEXT_TABLES


def suffix_of(path: Path) -> str:
    """Return the suffix in lower case; of a compressed table, that of the table.

    Example:
        >>> suffix_of(Path("Walks.CSV.gz")), suffix_of(Path("walks.npz.gz"))
        ('.csv', '.gz')
    """
    if is_compressed(path):
        path = Path(path.stem)
    return path.suffix.lower()


def stem_of(path: Path) -> str:
    """Return the name without its suffix; of a compressed table, without both suffixes.

    Example:
        >>> stem_of(Path("data/walks.csv.gz")), stem_of(Path("walks.csv"))
        ('walks', 'walks')
    """
    if is_compressed(path):
        path = Path(path.stem)
    return path.stem
