"""Conversions by name: a folder of transformers or of a run, and a data set, as the command line
gives them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ...convert.linearize.description import ADAPTER
from ...convert.transformers_folder import load_local
from ...data import create_dataset
from ...errors import CheckpointError, ConversionError, OptionError, require
from ...files import storing
from ..build import build_dataset
from ..evaluation import load_run
from .data import Part, TokenTexts
from .fit import StageOptions
from .linearize import DISTIL, TUNE, Conversion, linearize

# Files of tokenizers, of image and of sound processors, as transformers writes them.
PROCESSOR = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "preprocessor_config.json",
    "processor_config.json",
    "sentencepiece.bpe.model",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


def linearize_source(
    source: str | Path,
    to: str = "luna",
    *,
    data: str | None = None,
    out: str | Path,
    max_length: int | None = None,
    samples: int | None = None,
    distil: StageOptions = DISTIL,
    tune: StageOptions = TUNE,
    say: Callable[[str], None] | None = None,
    trust_code: bool = False,
    **options: Any,
) -> Conversion:
    """:func:`linearize` for a model in a folder.

    Args:
        source: a folder of transformers (``config.json`` with ``architectures``, its weights, and
            of texts its tokenizer), or the folder of a run of ``fredholm train``, whose own data
            are used.
        to, distil, tune, say, options: see :func:`linearize`.
        data: name of a data set, see :func:`fredholm.data.list_datasets`; without one a model of
            transformers is replaced, not trained.
        out: folder of the conversion.
        max_length: tokens kept of a text; default what the model can place.
        samples: of the training split, the first so many after a fixed shuffle; default all.
        trust_code: of a run, see :func:`fredholm.training.load_run`. Code in a folder of
            transformers is never executed.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        CheckpointError: no model there.
        OptionError: a data set that does not fit the model.
        ConversionError: a class that transformers does not know.
    """
    source = Path(source)
    if (source / "recipe.yaml").is_file():
        if data is not None:
            raise OptionError("--data belongs to models of transformers; a run has data of its own")
        model, place = load_run(source, trust_code=trust_code)
        splits: Any = tuple(build_dataset(place.load_recipe(), split) for split in ("train", "val"))
    else:
        model = _transformers_model(source)
        splits = None if data is None else _splits(model, source, data, max_length)
    if splits is not None and samples is not None:
        splits = (_some(splits[0], samples), splits[1])
    result = linearize(
        model, to, data=splits, folder=out, distil=distil, tune=tune, say=say, **options
    )
    for name in PROCESSOR:  # a tokenizer as it is: what it would write anew may differ
        if (source / name).is_file():
            with storing(Path(out)):
                shutil.copyfile(source / name, Path(out) / "model" / name)
    return result


def _some(dataset: Any, samples: int) -> Any:
    if not 0 < samples <= len(dataset):
        raise OptionError(f"--samples: received {samples}; the training split has {len(dataset)}")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    return Part(dataset, order[:samples])


def _transformers_model(folder: Path) -> Any:
    """The model that a folder's configuration names."""
    library: Any = require("transformers", "hf", "converting a transformers model")
    if not (folder / "config.json").is_file():
        raise CheckpointError(
            f"no config.json in {str(folder)!r}; give a folder of transformers, or of a run of "
            "fredholm train"
        )
    if (folder / ADAPTER).is_file():
        raise ConversionError(
            f"{folder} holds a model that was converted already; convert its source"
        )
    try:
        config = load_local(library.AutoConfig, folder)
        kind = getattr(library, (config.architectures or [""])[0], None)
        # The name comes from the folder: a model's class, and no other thing that the library has.
        if not (isinstance(kind, type) and issubclass(kind, library.PreTrainedModel)):
            raise ConversionError(
                f"{folder}: config.json names no class of transformers (architectures: "
                f"{config.architectures})"
            )
        model, info = load_local(kind, folder, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder}: transformers cannot read it ({error})") from error
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        raise CheckpointError(
            f"{folder}: weights are missing, which would start at random: {', '.join(missing[:8])}"
        )
    return model.eval()


def _splits(model: Any, folder: Path, name: str, max_length: int | None) -> tuple[Any, Any]:
    """A data set's training and validation split as the model reads them."""
    if model.main_input_name == "pixel_values":
        size = model.config.image_size
        return tuple(create_dataset(name, split, image_size=size) for split in ("train", "val"))  # type: ignore[return-value]
    library: Any = require("transformers", "hf", "reading texts")
    try:
        tokenizer = load_local(library.AutoTokenizer, folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: has no tokenizer ({error})") from error
    limit = getattr(model.config, "max_position_embeddings", None)
    length = max_length or limit or 512
    if limit is not None and length > limit:
        raise OptionError(
            f"--max-length: received {length}; the model has positions for {limit} tokens"
        )
    result = []
    for split in ("train", "val"):
        source = create_dataset(name, split)
        texts, labels = source.texts_and_targets(numbers=model.config.num_labels == 1)
        result.append(TokenTexts(name, split, texts, labels, tokenizer, length, source.classes))
    return result[0], result[1]
