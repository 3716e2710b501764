"""The King James Bible (1611), read from the compressed file of its package."""

from __future__ import annotations

import re
import struct
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from ....errors import DataError
from ..formats import read_bytes

# The books in their order, by their OSIS names; the King James file has other names, in the same
# order.
BOOKS: list[str] = re.findall(
    r"\w+",
    "Gen Exod Lev Num Deut Josh Judg Ruth 1Sam 2Sam 1Kgs 2Kgs 1Chr 2Chr Ezra Neh Esth Job Ps Prov "
    "Eccl Song Isa Jer Lam Ezek Dan Hos "
    "Joel Amos Obad Jonah Mic Nah Hab Zeph Hag Zech Mal Matt Mark Luke John Acts Rom 1Cor 2Cor Gal "
    "Eph Phil Col 1Thess 2Thess 1Tim "
    "2Tim Titus Phlm Heb Jas 1Pet 2Pet 1John 2John 3John Jude Rev",
)
KJV_FILE = "bible.data"

Place = tuple[int, int, int]
"""Book, counted from 0, chapter and verse."""
_VERSE = re.compile(r"(\d?[A-Za-z]+)(\d+):(\d+) (.*)")


@lru_cache(maxsize=2)
def read_kjv(path: Path) -> dict[Place, str]:
    """Return the verses of ``bible.data`` in their order.

    The file holds windows of 64 KiB, each compressed by itself with LZW as the Unix program
    *compress* does.

    Raises:
        DataError: the file is missing, or is something else.
    """
    data = read_bytes(path)
    try:
        size, count = struct.unpack_from(">II", data, 0x54)
        starts = [*struct.unpack_from(f">{count}I", data, 0x5C), len(data)]
        windows = [expand_lzw(data[a:b]) for a, b in pairwise(starts)]
        # All windows but the last are full.
        if not data.startswith(b"EC02Compressed") or {len(w) for w in windows[:-1]} - {size}:
            raise ValueError("no windows of the size in its header")
        lines = b"".join(windows).decode("ascii").splitlines()[1:]
    except (struct.error, ValueError, IndexError) as error:
        raise DataError(
            f"{path}: expected the text of bible-kjv-text, got another file, or a corrupt one "
            f"({error}); fetch it again"
        ) from error
    verses: dict[Place, str] = {}
    names: list[str] = []
    for number, line in enumerate(lines, 2):
        result = _VERSE.fullmatch(line)
        if result is None:
            raise DataError(
                f"{path}: line {number}: expected a book, chapter:verse and a text, got "
                f"{line[:60]!r}; fetch the file again"
            )
        if result[1] not in names:
            names.append(result[1])
        verses[names.index(result[1]), int(result[2]), int(result[3])] = result[4].strip()
    return verses


def expand_lzw(data: bytes) -> bytes:
    """Expand data of the Unix program *compress* in block mode, with or without its header of three
    bytes.

    Codes grow from 9 to 16 bits, low bits first; where their width changes, the rest of eight
    codes is padding.

    Raises:
        ValueError: a code that no entry has.

    Example:
        >>> expand_lzw(bytes([0x61, 0xC4, 0x04, 0x04]))
        b'abab'
    """
    position = start = 24 if data[:2] == b"\x1f\x9d" else 0
    width = 9
    before = b""
    out = []
    end = 8 * len(data)
    # Code 256 stands for no bytes; it clears the table.
    table = [bytes([i]) for i in range(256)] + [b""]
    while position + width <= end:
        byte = position >> 3
        # A code of up to 16 bits lies in three bytes.
        bits_here = int.from_bytes(data[byte : byte + 4], "little") >> (position & 7)
        code = bits_here & ((1 << width) - 1)
        position += width
        if code == 256:
            del table[257:]
            position = start = _next_group(start, position, width)
            width = 9
            before = b""
            continue
        if code > len(table) or (code == len(table) and not before):
            raise ValueError(f"code {code} of {len(table)} entries")
        # A code may be used one step before its entry is known; then it repeats its first byte.
        entry = before + before[:1]
        if code < len(table):
            entry = table[code]
        if before and len(table) < 1 << 16:
            table.append(before + entry[:1])
        out.append(entry)
        before = entry
        if len(table) >= 1 << width and width < 16:
            position = start = _next_group(start, position, width)
            width += 1
    return b"".join(out)


def _next_group(start: int, position: int, width: int) -> int:
    """Return the bit behind the current group of eight codes; groups began at bit ``start``."""
    group = 8 * width
    return start - (start - position) // group * group
