"""The checkout around the package: data sets, recipes and tasks of the papers' tables.

They lie in ``evidence/``, beside ``src/``, and are not installed with the wheel. In a checkout they
are found by name like the package's own; from an installed package the name is refused with where
to get it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

DATASETS = (
    "aan",
    "adding",
    "cifar-mosaic",
    "copy-memory",
    "darcy",
    "darcy-generated",
    "debian-graph",
    "fashion-canvas",
    "glue",
    "imdb",
    "kicad",
    "kjv-web",
    "listops",
    "lra-listops",
    "lra-pathfinder",
    "modelnet40",
    "mosaics-qa",
    "nlvr2",
    "pathfinder",
    "physionet-2019",
    "ptb",
    "scanobjectnn",
    "solubility",
    "speech-commands",
    "stamps-canvas",
    "tree-crowns",
    "tu-folder",
    "verses",
    "voice-prompts",
    "vqa-v2",
)
RECIPES = (
    "ckcnn-adding",
    "ckcnn-character-trajectories",
    "ckcnn-copy-memory",
    "ckcnn-japanese-vowels",
    "ckcnn-physionet",
    "ckcnn-plaid",
    "ckcnn-pmnist",
    "ckcnn-pmnist-big",
    "ckcnn-ptb",
    "ckcnn-scifar10",
    "ckcnn-scifar10-big",
    "ckcnn-smnist",
    "ckcnn-smnist-big",
    "ckcnn-speech",
    "ckcnn-speech-raw",
    "ckcnn-voices",
    "infvit-linear-canvas",
    "infvit-linear-cifar10",
    "infvit-linear-imagenet",
    "infvit-pure-canvas",
    "infvit-pure-cifar10",
    "infvit-pure-imagenet",
    "infvit-softmax-canvas",
    "infvit-softmax-cifar10",
    "infvit-softmax-imagenet",
    "itnet-darcy",
    "itnet-debian-graph",
    "itnet-glue",
    "itnet-glue-mlm",
    "itnet-graphs",
    "itnet-kicad",
    "itnet-mlm",
    "itnet-modelnet40",
    "itnet-mosaics-qa",
    "itnet-nlvr2",
    "itnet-paraphrase",
    "itnet-vqa-v2",
    "lra-image",
    "lra-image-full",
    "lra-image-official",
    "lra-listops",
    "lra-listops-full",
    "lra-listops-official",
    "lra-pathfinder",
    "lra-pathfinder-full",
    "lra-pathfinder-official",
    "lra-retrieval",
    "lra-retrieval-full",
    "lra-retrieval-official",
    "lra-text",
    "lra-text-full",
    "lra-text-official",
)
TASKS = (
    "adding",
    "copy-memory",
    "darcy",
    "debian-graph",
    "japanese-vowels",
    "kicad",
    "listops",
    "plaid",
)


def evidence_folder() -> Path | None:
    """Return the folder ``evidence/`` of the checkout that the package is imported from, if any.

    Example:
        >>> folder = evidence_folder()
        >>> folder is None or folder.name == "evidence"
        True
    """
    folder = ROOT / "evidence"
    return folder if (folder / "datasets" / "__init__.py").is_file() else None


def import_evidence(module: str) -> None:
    """Import ``evidence.<module>``, which registers what it has; nothing outside a checkout."""
    if evidence_folder() is None:
        return

    # Appended, so that nothing of the checkout hides an installed package.
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    import_module(f"evidence.{module}")


def where_to_get(name: str, names: tuple[str, ...]) -> str:
    """Return the rest of an error for a name that only a checkout has, else nothing.

    Example:
        >>> where_to_get("mine", ("kicad",))
        ''
    """
    if name not in names or evidence_folder() is not None:
        return ""
    return (
        "; it belongs to the papers' tables, which are not installed with the package: "
        "run the command in a checkout of the project, installed by pip install -e ."
    )
