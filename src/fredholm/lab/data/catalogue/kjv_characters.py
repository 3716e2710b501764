"""The King James Bible as one text of 4,137,848 characters, 63 of them different."""

from __future__ import annotations

from ..clients import APT
from ..create import create_next_tokens, source_folder
from ..kinds.language import NextTokens
from ..kinds.texts import TEXTS
from ..registry import Entry, Request, register_dataset
from ..sources import Package, files_in
from ..splits import spans
from .kjv_lzw import KJV_FILE, read_kjv

TEST_FRACTION = 0.05


def create(request: Request) -> NextTokens:
    """Return the data set of a request: verses with line breaks between, the first 90% to train on,
    then 5% each for validation and test.
    """
    text = "\n".join(read_kjv(source_folder(request) / KJV_FILE).values())
    places = spans(len(text), request.share, TEST_FRACTION)
    parts = {split: [text[start:stop]] for split, (start, stop) in places.items()}
    return create_next_tokens(request, parts)


PACKAGE = Package(
    client=APT,
    name="bible-kjv-text",
    version="4.38",
    archive_bytes=2445000,
    archive_sha256="d61b6aad4c51ba9e2800b825325fa6a09e99a0d02a9bb6dc4724fcc4995a1b7a",
    files=files_in(
        "usr/lib",
        (KJV_FILE, 1740565, "6c746c2acc8a34bfded980883ff1701a5d68934a1c853ebf88a07b978fe0ae0e"),
    ),
)
ENTRY = Entry(
    name="kjv-characters",
    title="The King James Bible, character by character: what comes next",
    licence_package="free to copy, modify and distribute (Chapin); Debian's part GPL-2+",
    licence_data="public domain (in the United Kingdom the text is under the Crown's letters "
    "patent)",
    samples={"train": 14547, "val": 808, "test": 808},
    read=create,
    sources=(PACKAGE,),
    official=f"{KJV_FILE} of the Bible Retrieval System (1,740,565 bytes)",
    val_fraction=0.05,
    notes="windows of max_length characters (default 256) side by side; in the text's order 90 / 5 "
    "/ 5%; tokens may also be bytes or words",
    kind=TEXTS,
)
register_dataset(ENTRY)
