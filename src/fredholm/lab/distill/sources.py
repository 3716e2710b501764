"""Conversions by name: a folder of transformers or of a run, and a data set, as the command line
gives them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ...errors import CheckpointError, ConversionError, OptionError, require
from ...files import storing
from ...linearization.description import ADAPTER
from ...linearization.positions import positions_of
from ...linearization.transformers_folder import load_gguf, load_local, picture_scale
from ..data import create_dataset, dataset_path, fetch, list_datasets
from ..training.evaluation import load_run, run_dataset
from .data import Part, TokenTexts, TokenWindows, is_decoder
from .exercises import Exercises
from .fit import StageOptions
from .linearize import DISTIL, LENGTHEN, MATCH, TUNE, Conversion, linearize
from .receipt import Documents
from .retrieval import Retrieval

TEXTS, WINDOW, VALIDATED = "python-docs", 512, 16  # of language models: data, tokens, windows
PROBED = 24  # held-out texts on which groups of heads are ranked
REACH = 4096  # positions that half of a language model's windows are spread over
ENCODER = {"distil": DISTIL, "match": MATCH, "lengthen": LENGTHEN, "tune": TUNE}
# Of a language model, whose window needs features that cannot outgrow softmax's exponentials.
MAP = {"to": "hedgehog", "options": {"softmax": True}, "tied": False}
# Of a language model: the maps, then the teacher's logits, which are all that it has to learn.
DECODER = {
    "distil": replace(DISTIL, lr=3e-2, batch_size=1, steps=60),
    "match": replace(MATCH, epochs=1, steps=400),
    "lengthen": replace(LENGTHEN, epochs=1, steps=60),
    "tune": replace(TUNE, epochs=0),
}
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
    to: str | None = None,
    *,
    data: str | None = None,
    task: str | None = None,
    out: str | Path,
    max_length: int | None = None,
    reach: int | None = None,
    longer: int | None = None,
    exercises: float | None = None,
    samples: int | None = None,
    distil: StageOptions | Mapping[str, Any] | None = None,
    match: StageOptions | Mapping[str, Any] | None = None,
    lengthen: StageOptions | Mapping[str, Any] | None = None,
    tune: StageOptions | Mapping[str, Any] | None = None,
    receipt: bool = True,
    needles: int | None = None,
    unseen: str | None = None,
    ranked: bool = False,
    say: Callable[[str], None] | None = None,
    trust_code: bool = False,
    **options: Any,
) -> Conversion:
    """:func:`linearize` for a model in a folder.

    Args:
        source: a folder of transformers (``config.json`` with ``architectures``, its weights, and
            of texts its tokenizer), one with a model in a GGUF file, the name of weights that
            :func:`fredholm.data.fetch` brings, or the folder of a run of ``fredholm train``, whose
            own data are used.
        to: see :func:`linearize`; default ``"luna"``, of a language model :data:`MAP`.
        say, options: see :func:`linearize`.
        data: name of a data set, see :func:`fredholm.data.list_datasets`; without one a model of
            transformers is replaced, not trained. Weights by name that are a language model's take
            ``python-docs``.
        task: see :func:`linearize`; default that of a run's data, of a language model ``"tokens"``,
            of texts for a model with one answer ``"regression"``, otherwise ``"classification"``.
        out: folder of the conversion.
        max_length: tokens kept of a text, of a language model those of a window; default what the
            model can place, of a language model 512 at most.
        reach: of a language model with rotary positions: half of its windows begin at any position
            from which they end below it, so that the maps see positions beyond a window; default
            :data:`REACH` or all that the model has, 0 for windows that all begin at the first.
        longer: tokens of the windows of a further, short stage ``lengthen`` of a language model.
        exercises: of a language model, the share of its training windows that ask for what lies
            far back, see :class:`fredholm.lab.distill.exercises.Exercises`; default none.
        samples: of the training split, the first so many after a fixed shuffle; default all.
        distil, match, lengthen, tune: the stages, or changes to their defaults, which are
            :data:`DISTIL`, :data:`MATCH`, :data:`LENGTHEN` and :data:`TUNE`, of a language model
            :data:`DECODER`.
        receipt: measure what a language model lost and saves.
        needles: how many numbers the receipt hides and asks for; default 100.
        unseen: a further data set of texts for the receipt, of a kind that was not trained on.
        ranked: rank the groups of heads of a language model by retrieval, whatever is kept.
        trust_code: of a run, see :func:`fredholm.training.load_run`. Code in a folder of
            transformers is never executed.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        CheckpointError: no model there.
        OptionError: a data set that does not fit the model.
        ConversionError: a class that transformers does not know.
    """
    source, named = _folder_of(source, say)
    asked = {"distil": distil, "match": match, "lengthen": lengthen, "tune": tune}
    defaults = ENCODER
    processor: Any = None
    if (source / "recipe.yaml").is_file():
        if data is not None:
            raise OptionError("--data belongs to models of transformers; a run has data of its own")
        model, place = load_run(source, trust_code=trust_code)
        splits: Any = tuple(run_dataset(model, place, split) for split in ("train", "val"))
        task = task or splits[0].task
    else:
        model, processor = _transformers_model(source)
        decoder = is_decoder(model)
        if to is None and decoder:
            options |= MAP | {"options": MAP["options"] | (options.get("options") or {})}
            to = options.pop("to")
        if data is None and named and decoder:
            data = TEXTS
        if decoder and data is not None:
            defaults = DECODER
            tokenizer = processor or _tokenizer(source)
            splits = _windows(data, tokenizer, max_length, model, reach)
            if longer is not None:
                options["longer"] = _longer(data, tokenizer, longer, model, reach)
            if exercises is not None:
                splits = Exercises(splits[0], tokenizer, exercises), splits[1]
                if longer is not None:
                    options["longer"] = Exercises(options["longer"], tokenizer, exercises)
            task = "tokens"
            if ranked or isinstance(options.get("keep"), int) or options.get("keep") == "probe":
                texts = load_texts(data, "val")
                options["retrieval"] = Retrieval(texts[:PROBED], tokenizer)
            if receipt:
                options["documents"] = _documents(data, unseen, tokenizer, needles)
        else:
            splits = None if data is None else _splits(model, source, data, max_length)
            numbers = model.main_input_name != "pixel_values" and model.config.num_labels == 1
            task = task or ("regression" if numbers else None)
    if defaults is ENCODER and (longer or reach):
        raise OptionError("--lengthen and --reach are of a language model that learns from texts")
    if defaults is ENCODER and exercises is not None:
        raise OptionError(
            f"--exercises {exercises}: expected a language model that learns from texts, got "
            f"{type(model).__name__}; leave it out"
        )
    if lengthen and longer is None:
        raise OptionError(
            "--lengthen-steps: needs --lengthen, the tokens of the windows of that stage"
        )
    keep = options.get("keep")
    if "retrieval" not in options and (isinstance(keep, int) or keep == "probe"):
        raise OptionError(
            f"--keep {keep}: expected a language model and texts on which its groups of heads are "
            "ranked, got none; give --data, or name the groups as in --keep 18.2,17.1"
        )
    if ranked and "retrieval" not in options:
        raise OptionError(
            "--probe: expected a language model and texts on which its groups of heads are ranked, "
            "got none; give --data, or leave it out"
        )
    if needles is not None and "documents" not in options:
        raise OptionError(
            "--needles is of the receipt of a language model that learns from texts; leave it out"
        )
    if unseen is not None and "documents" not in options:
        raise OptionError(
            "--unseen is of the receipt of a language model that learns from texts; leave it out"
        )
    if splits is not None and samples is not None:
        splits = (_some(splits[0], samples), splits[1])
    stages = {key: _stage(defaults[key], given) for key, given in asked.items()}
    options |= {"task": task or "classification", **stages}
    result = linearize(model, to or "luna", data=splits, folder=out, say=say, **options)
    if processor is not None:
        with storing(Path(out)):
            processor.save_pretrained(Path(out) / "model")
    for name in PROCESSOR:  # a tokenizer as it is: what it would write anew may differ
        if (source / name).is_file():
            with storing(Path(out)):
                shutil.copyfile(source / name, Path(out) / "model" / name)
    return result


def _stage(default: StageOptions, given: StageOptions | Mapping[str, Any] | None) -> StageOptions:
    """A stage as it was given, or the default with what was given in the place of its fields."""
    return given if isinstance(given, StageOptions) else replace(default, **(given or {}))


def _folder_of(source: str | Path, say: Callable[[str], None] | None) -> tuple[Path, bool]:
    """The folder of a source, and whether it is one that was fetched by name."""
    name = str(source)
    if Path(name).exists() or name not in list_datasets():
        return Path(name), False
    return _fetched(name, say), True


def _fetched(name: str, say: Callable[[str], None] | None = None) -> Path:
    """The folder of a data set or of weights, brought where it is not there yet."""
    folder = dataset_path(name)
    if not folder.is_dir():
        if say is not None:
            say(f"{name}: fetching it")
        fetch(name)
    return folder


def _windows(
    name: str, tokenizer: Any, max_length: int | None, model: Any, reach: int | None
) -> tuple[Any, Any]:
    """A data set's training and validation split in windows of tokens."""
    limit = positions_of(model)
    length = _placed(model, max_length or min(WINDOW, limit or WINDOW), "--max-length")
    train = TokenWindows(
        name,
        "train",
        load_texts(name, "train"),
        tokenizer,
        length,
        reach=_reach(model, reach, length, limit),
    )
    val = TokenWindows(name, "val", load_texts(name, "val"), tokenizer, length)
    return train, _some(val, min(len(val), VALIDATED))


def _reach(model: Any, reach: int | None, length: int, limit: int | None) -> int | None:
    """Below which position windows of ``length`` tokens end; None where all begin at the first."""
    rotary = getattr(model.config, "rope_parameters", None) is not None
    if reach is None:
        reach = min(REACH, limit or REACH) if rotary else 0
        return reach if reach > length else None
    if reach and not rotary:
        raise OptionError(
            f"--reach: {type(model).__name__} has no rotary positions, by which alone a window "
            "means the same wherever it begins; leave it out"
        )
    return _placed(model, reach, "--reach") if reach else None


def _longer(name: str, tokenizer: Any, length: int, model: Any, reach: int | None) -> Any:
    """The training split in longer windows."""
    length, limit = _placed(model, length, "--lengthen"), positions_of(model)
    reach = _reach(model, max(reach, length) if reach else reach, length, limit)
    return TokenWindows(name, "train", load_texts(name, "train"), tokenizer, length, reach=reach)


def _placed(model: Any, length: int, option: str) -> int:
    """A number of tokens that the model has positions for."""
    limit = positions_of(model)
    if limit is not None and length > limit:
        raise OptionError(
            f"{option}: received {length}; the model has positions for {limit} tokens"
        )
    return length


def load_texts(name: str, split: str) -> list[str]:
    """The documents of a data set's split, or its texts.

    Raises:
        OptionError: a data set of something else.
    """
    _fetched(name)
    source = create_dataset(name, split)
    result = getattr(source, "documents", None) or getattr(source, "texts", None)
    if not result:
        raise OptionError(
            f"--data: {name} holds {source.kind.name}; a language model needs texts, such as "
            f"{TEXTS}"
        )
    return list(result)


def _documents(data: str, unseen: str | None, tokenizer: Any, needles: int | None) -> Documents:
    """Held-out texts of the receipt: of the kind trained on, and of another."""
    kinds = {data: load_texts(data, "test")}
    if unseen is not None:
        kinds[unseen] = load_texts(unseen, "test")
    if needles is None:
        return Documents(kinds, tokenizer)
    return Documents(kinds, tokenizer, needles=needles, lists=min(needles, Documents.lists))


def _some(dataset: Any, samples: int) -> Any:
    """Return a random part of a split, with ``samples`` samples.

    The shuffle has a fixed seed: every conversion that asks for as many samples gets the same ones,
    whatever its own seed is.

    Raises:
        OptionError: no samples, or more than the split has.
    """
    if not 0 < samples <= len(dataset):
        raise OptionError(f"--samples: received {samples}; the training split has {len(dataset)}")
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    return Part(dataset, order[:samples])


def _transformers_model(folder: Path) -> tuple[Any, Any]:
    """The model that a folder's configuration names, or that is in its GGUF file, with its
    tokenizer where that is inside as well.
    """
    library: Any = require("transformers", "hf", "converting a transformers model")
    if not (folder / "config.json").is_file() and any(folder.glob("*.gguf")):
        return load_gguf(folder)
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
    return model.eval(), None


def _tokenizer(folder: Path) -> Any:
    """A folder's tokenizer, or a CheckpointError."""
    library: Any = require("transformers", "hf", "reading texts")
    try:
        return load_local(library.AutoTokenizer, folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder}: has no tokenizer ({error})") from error


def _scaled(
    pictures: Any,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> Any:
    """A data set normalised by a model's own mean and deviation, where it has them, and not by
    those of the data, which its weights have never seen.

    Raises:
        OptionError: as many of them as the pictures do not have channels.
    """
    if mean is None or std is None:
        return pictures
    result, count = copy.copy(pictures), pictures.shape[0]
    result.mean, result.std = (
        (float(x),) * count if isinstance(x, int | float) else tuple(x) for x in (mean, std)
    )
    if not len(result.mean) == len(result.std) == count:
        raise OptionError(
            f"--data: the pictures of {pictures.name} have {count} channels, and the model's image "
            f"processor normalises {len(result.mean)}"
        )
    return result


def _splits(model: Any, folder: Path, name: str, max_length: int | None) -> tuple[Any, Any]:
    """A data set's training and validation split as the model reads them."""
    if model.main_input_name == "pixel_values":
        size, facts = model.config.image_size, picture_scale(folder)
        scale = {name: facts[name] for name in ("mean", "std") if name in facts}
        pictures = (create_dataset(name, part, image_size=size) for part in ("train", "val"))
        return tuple(_scaled(each, **scale) for each in pictures)  # type: ignore[return-value]
    tokenizer = _tokenizer(folder)
    length = _placed(model, max_length or positions_of(model) or 512, "--max-length")
    result = []
    for split in ("train", "val"):
        source = create_dataset(name, split)
        texts, labels = source.texts_and_targets(numbers=model.config.num_labels == 1)
        result.append(TokenTexts(name, split, texts, labels, tokenizer, length, source.classes))
    return result[0], result[1]
