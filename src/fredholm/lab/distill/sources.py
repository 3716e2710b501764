"""Conversion of a model in a folder, with a data set by name, as the command line needs it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
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
from .linearize import DISTIL, LENGTHEN, MATCH, TUNE, Conversion, by_rank, linearize
from .receipt import Documents
from .retrieval import Retrieval

# Defaults for language models: the data set, tokens per window, and validation windows.
TEXTS = "python-docs"
WINDOW = 512
VALIDATED = 16

# Held-out texts on which groups of heads are ranked.
PROBED = 24

# Half of a language model's windows lie anywhere below this position.
REACH = 4096

# The feature map of language models: beside a window of softmax, features must not outgrow its
# exponentials.
MAP = {
    "to": "hedgehog",
    "options": {"softmax": True},
    "tied": False,
}

# Stages of other models, and of language models: these learn the maps, then the teacher's logits,
# and have no other task.
ENCODER = {
    "distil": DISTIL,
    "match": MATCH,
    "lengthen": LENGTHEN,
    "tune": TUNE,
}
DECODER = {
    "distil": replace(
        DISTIL,
        lr=3e-2,
        batch_size=1,
        steps=60,
    ),
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


@dataclass(frozen=True)
class TextOptions:
    """The texts of a language model and its measurements, as keywords of
    :func:`linearize_source`.

    Attributes:
        max_length: tokens per text of a transformers model, for a language model per window;
            default as many as the model has positions for, for a language model 512 at most.
        reach: for a language model with rotary positions: half of its windows lie anywhere below
            this position, so that the maps learn positions beyond a window; default :data:`REACH`
            or as many as the model has; 0: all windows begin at the first position.
        longer: tokens per window of a further, short stage ``lengthen`` of a language model.
        exercises: share of a language model's training windows that ask for tokens far back, see
            :class:`fredholm.lab.distill.exercises.Exercises`; default none.
        samples: size of a random part of the training split, whatever its kind; default all.
        receipt: measure what a language model loses and saves.
        needles: number of needles in the receipt; default 100.
        unseen: a further data set of texts for the receipt, of a kind that was not trained on.
        ranked: rank the groups of heads of a language model by retrieval, whatever is kept.
    """

    max_length: int | None = None
    reach: int | None = None
    longer: int | None = None
    exercises: float | None = None
    samples: int | None = None
    receipt: bool = True
    needles: int | None = None
    unseen: str | None = None
    ranked: bool = False


def linearize_source(
    source: str | Path,
    to: str | None = None,
    *,
    out: str | Path,
    data: str | None = None,
    task: str | None = None,
    say: Callable[[str], None] | None = None,
    trust_code: bool = False,
    **options: Any,
) -> Conversion:
    """Convert a model in a folder, see :func:`linearize`.

    Args:
        source: a folder of transformers (``config.json`` with ``architectures``, its weights, and
            for texts its tokenizer), a folder with a GGUF file, the name of weights that
            :func:`fredholm.data.fetch` brings, or the folder of a run of ``fredholm train``, whose
            own data are used.
        to: see :func:`linearize`; default ``"luna"``, for a language model :data:`MAP`.
        data: name of a data set, see :func:`fredholm.data.list_datasets`; without one a model of
            transformers is not trained. A language model by name takes ``python-docs``.
        task: see :func:`linearize`; default that of a run's data, for a language model
            ``"tokens"``, for texts and a model with one answer ``"regression"``, otherwise
            ``"classification"``.
        out: folder of the conversion.
        say: see :func:`linearize`.
        trust_code: for a run, see :func:`fredholm.training.load_run`. Code in a folder of
            transformers is never executed.
        distil, match, lengthen, tune: the stages, or changes to their defaults, which are
            :data:`ENCODER`, for a language model :data:`DECODER`.
        options: the fields of :class:`TextOptions`, and further options of :func:`linearize`.

    Raises:
        TrustError: the run's recipe imports a file, and ``trust_code`` is not given.
        CheckpointError: no model there.
        OptionError: a data set that does not fit the model, or an option that this conversion does
            not read.
        ConversionError: a class that transformers does not know.
    """
    # Weights by name are fetched where they are not here yet.
    named = not Path(source).exists() and str(source) in list_datasets()
    if named:
        source = _fetched(str(source), say)
    source = Path(source)

    about_texts = {}
    for field in fields(TextOptions):
        if field.name in options:
            about_texts[field.name] = options.pop(field.name)
    texts = TextOptions(**about_texts)
    stages = {key: options.pop(key, None) for key in ENCODER}
    defaults = ENCODER
    processor: Any = None
    splits: Any = None
    usual_task = "classification"
    cuts_texts = False
    if (source / "recipe.yaml").is_file():
        if data is not None:
            raise OptionError(
                f"--data: expected none beside a run, which has its own data, got {data!r}; leave "
                "it out"
            )
        model, place = load_run(source, trust_code=trust_code)
        splits = tuple(run_dataset(model, place, split) for split in ("train", "val"))
        usual_task = splits[0].task
    else:
        if data is not None and Path(data).is_file():
            raise OptionError(
                f"--data: expected the name of a data set, got the file {data}; for texts of your "
                "own call fredholm.linearize in Python, see docs/linearize.md, 'Your own texts'"
            )
        model, processor = _transformers_model(source)
        decoder = is_decoder(model)
        if to is None and decoder:
            to = MAP["to"]
            given = options.get("options") or {}
            options["options"] = MAP["options"] | given
            options["tied"] = MAP["tied"]
        if data is None and named and decoder:
            data = TEXTS
        if decoder and data is not None:
            defaults = DECODER
            if task not in (None, "tokens"):
                raise OptionError(
                    "--task: expected tokens, which a language model learns from texts, got "
                    f"{task!r}; leave it out"
                )
            usual_task = "tokens"
            tokenizer = processor or _tokenizer(source)
            splits = _read_texts(data, tokenizer, model, texts, options)
            cuts_texts = True
        else:
            if data is not None:
                splits = _splits(model, source, data, texts.max_length)
                cuts_texts = model.main_input_name != "pixel_values"
            if model.main_input_name != "pixel_values" and model.config.num_labels == 1:
                usual_task = "regression"

    _refuse_unread(texts, options, defaults is DECODER, cuts_texts)
    if stages["lengthen"] and texts.longer is None:
        raise OptionError(
            "--lengthen-steps: expected --lengthen beside it, the tokens per window of that stage, "
            "got none; add it"
        )
    if splits is not None and texts.samples is not None:
        train, val = splits
        splits = (_some(train, texts.samples), val)
    if splits is None:
        _refuse_untrained(texts, stages, task, options.get("precision"))
    chosen = _stages(stages, defaults)
    if splits is not None:
        _refuse_skipped(stages, chosen)
    options |= chosen
    options["task"] = task or usual_task
    result = linearize(
        model,
        to or "luna",
        data=splits,
        folder=out,
        say=say,
        **options,
    )
    _save_processor(source, Path(out), processor)
    return result


def _read_texts(
    data: str,
    tokenizer: Any,
    model: Any,
    texts: TextOptions,
    options: dict[str, Any],
) -> tuple[Any, Any]:
    """Return the splits of a language model; add to ``options`` what else it reads of the data."""
    train, val = _windows(data, tokenizer, texts.max_length, model, texts.reach)
    if texts.longer is not None:
        options["longer"] = _longer(data, tokenizer, texts.longer, model, texts.reach)
    if texts.exercises is not None:
        train = Exercises(train, tokenizer, texts.exercises)
        if texts.longer is not None:
            options["longer"] = Exercises(options["longer"], tokenizer, texts.exercises)
    if texts.ranked or by_rank(options.get("keep")):
        probed = load_texts(data, "val")[:PROBED]
        options["retrieval"] = Retrieval(probed, tokenizer)
    if texts.receipt:
        options["documents"] = _documents(data, texts.unseen, tokenizer, texts.needles)
    return train, val


def _stages(
    given: Mapping[str, Any],
    defaults: Mapping[str, StageOptions],
) -> dict[str, StageOptions]:
    """Return the options of all stages. A mapping changes some fields of a stage's default."""
    stages = {}
    for key, stage in given.items():
        if not isinstance(stage, StageOptions):
            stage = replace(defaults[key], **(stage or {}))
        stages[key] = stage
    return stages


def _refuse_unread(
    texts: TextOptions,
    options: Mapping[str, Any],
    decoder: bool,
    cuts_texts: bool,
) -> None:
    """Refuse flags that only a model with texts reads, most of them only a language model: an
    ignored flag would look like one that worked.

    Args:
        texts: the flags.
        options: further flags, and what a language model reads of its texts.
        decoder: whether a language model learns from texts.
        cuts_texts: whether this conversion cuts texts into tokens.

    Raises:
        OptionError: the first flag that is given.
    """
    if texts.max_length is not None and not cuts_texts:
        raise OptionError(
            "--max-length: expected a transformers model that learns from texts, got "
            f"{texts.max_length} without one; leave it out, or give --data with texts"
        )
    unread: list[tuple[str, Any, str]] = []
    leave_out = "give --data, or leave it out"
    if not decoder:
        unread += [
            ("lengthen", texts.longer, leave_out),
            ("reach", texts.reach, leave_out),
            ("exercises", texts.exercises, leave_out),
        ]
    if "retrieval" not in options:
        fix = "give --data, or name the groups as in --keep 18.2,17.1"
        keep = options.get("keep")
        if by_rank(keep):
            unread.append(("keep", keep, fix))
        unread.append(("probe", texts.ranked, leave_out))
    if "documents" not in options:
        fix = "give --data and no --no-receipt, or leave it out"
        unread += [
            ("needles", texts.needles, fix),
            ("unseen", texts.unseen, fix),
        ]
    for name, value, fix in unread:
        if value:
            raise OptionError(
                f"--{name}: expected a language model that learns from texts, got {value!r} "
                f"without one; {fix}"
            )


def _refuse_untrained(
    texts: TextOptions,
    stages: Mapping[str, Any],
    task: str | None,
    precision: str | None,
) -> None:
    """Refuse the flags of a training if there are no data to train on.

    Raises:
        OptionError: the first flag that is given.
    """
    unread: dict[str, Any] = {"samples": texts.samples, "task": task}
    if precision not in (None, "32"):
        unread["precision"] = precision
    for key, stage in stages.items():
        if isinstance(stage, StageOptions):
            unread[key] = stage
            continue
        for field, value in (stage or {}).items():
            unread[_flag(key, field)] = value

    # No epochs are what happens.
    for name, value in unread.items():
        if value:
            raise OptionError(
                f"--{name}: expected data to train on, got {value!r} without any; give --data, or "
                "leave it out"
            )


def _refuse_skipped(stages: Mapping[str, Any], chosen: Mapping[str, StageOptions]) -> None:
    """Refuse flags that only stages without an epoch would read.

    Args:
        stages: the flags, as mappings.
        chosen: the options of all stages.

    Raises:
        OptionError: the first flag that no stage reads.
    """
    read = set()
    skipped: dict[str, tuple[str, Any]] = {}
    for key, stage in stages.items():
        if isinstance(stage, StageOptions):
            continue
        for field, value in (stage or {}).items():
            name = _flag(key, field)
            if chosen[key].epochs:
                read.add(name)
            elif value:
                skipped.setdefault(name, (key, value))

    for name, (key, value) in skipped.items():
        if name not in read:
            raise OptionError(
                f"--{name}: expected an epoch or more of the stage that reads it, got {value!r} "
                f"and none; give --{_flag(key, 'epochs')}, or leave it out"
            )


def _flag(stage: str, field: str) -> str:
    """Return the name of the flag that sets a field of a stage.

    Example:
        >>> _flag("match", "lr"), _flag("tune", "lr"), _flag("match", "batch_size")
        ('match-lr', 'lr', 'batch-size')
    """
    name = field.replace("_", "-")
    shared = field in ("batch_size", "vary_window", "lora")
    if shared or stage == "tune":
        return name
    return f"{stage}-{name}"


def _save_processor(source: Path, out: Path, processor: Any) -> None:
    """Put the tokenizer, or another processor, beside the converted model.

    Files of a tokenizer are copied: what it would write itself may differ.
    """
    with storing(out):
        if processor is not None:
            processor.save_pretrained(out / "model")
        for name in PROCESSOR:
            if (source / name).is_file():
                shutil.copyfile(source / name, out / "model" / name)


def _fetched(
    name: str,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Return the folder of a data set or of weights; fetch it if it is not here yet."""
    folder = dataset_path(name)
    if not folder.is_dir():
        if say is not None:
            say(f"{name}: fetching it")
        fetch(name)
    return folder


def _windows(
    name: str,
    tokenizer: Any,
    max_length: int | None,
    model: Any,
    reach: int | None,
) -> tuple[Any, Any]:
    """Return a data set's training and validation split as windows of tokens."""
    limit = positions_of(model)
    if not max_length:
        max_length = min(WINDOW, limit or WINDOW)
    length = _placed(model, max_length, "--max-length")
    begins = _reach(model, reach, length, limit)
    texts = load_texts(name, "train")
    train = TokenWindows(
        name,
        "train",
        texts,
        tokenizer,
        length,
        reach=begins,
    )
    texts = load_texts(name, "val")
    val = TokenWindows(name, "val", texts, tokenizer, length)
    return train, _some(val, min(len(val), VALIDATED))


def _reach(
    model: Any,
    reach: int | None,
    length: int,
    limit: int | None,
) -> int | None:
    """Return the position below which windows of ``length`` tokens end, or None if all of them
    begin at the first position.
    """
    rotary = getattr(model.config, "rope_parameters", None) is not None
    if reach is None:
        farthest = min(REACH, limit or REACH)
        if rotary and farthest > length:
            return farthest
        return None
    if reach == 0:
        return None
    if not rotary:
        # With learned positions a window means something else at every place.
        raise OptionError(
            f"--reach: expected a model with rotary positions, got {type(model).__name__}; leave "
            "it out"
        )
    return _placed(model, reach, "--reach")


def _longer(
    name: str,
    tokenizer: Any,
    length: int,
    model: Any,
    reach: int | None,
) -> Any:
    """Return the training split as longer windows."""
    length = _placed(model, length, "--lengthen")
    if reach:
        reach = max(reach, length)
    reach = _reach(model, reach, length, positions_of(model))
    return TokenWindows(
        name,
        "train",
        load_texts(name, "train"),
        tokenizer,
        length,
        reach=reach,
    )


def _placed(model: Any, length: int, option: str) -> int:
    """Return a number of tokens if the model has positions for them.

    Raises:
        OptionError: it has fewer; ``option`` names the flag.
    """
    limit = positions_of(model)
    if limit is not None and length > limit:
        raise OptionError(
            f"{option}: expected at most {limit}, the positions of the model, got {length}; lower "
            "it"
        )
    return length


def load_texts(name: str, split: str) -> list[str]:
    """Return the documents of a data set's split, or its texts.

    Raises:
        OptionError: a data set of another kind.
    """
    _fetched(name)
    source = create_dataset(name, split)
    result = getattr(source, "documents", None) or getattr(source, "texts", None)
    if not result:
        raise OptionError(
            f"--data: expected a data set of texts, got {name}, which has {source.kind.name}; "
            f"choose another, such as {TEXTS}"
        )
    return list(result)


def _documents(
    data: str,
    unseen: str | None,
    tokenizer: Any,
    needles: int | None,
) -> Documents:
    """Return the held-out texts of the receipt: of the kind trained on, and of another."""
    kinds = {data: load_texts(data, "test")}
    if unseen is not None:
        kinds[unseen] = load_texts(unseen, "test")
    if needles is None:
        return Documents(kinds, tokenizer)
    return Documents(
        kinds,
        tokenizer,
        needles=needles,
        lists=min(needles, Documents.lists),
    )


def _some(dataset: Any, samples: int) -> Any:
    """Return a random part of a split, with ``samples`` samples.

    The shuffle has a fixed seed: every conversion that asks for as many samples gets the same ones,
    whatever its own seed is.

    Raises:
        OptionError: no samples, or more than the split has.
    """
    if not 0 < samples <= len(dataset):
        raise OptionError(
            f"--samples: expected 1 to {len(dataset)}, the samples of the training split, got "
            f"{samples}; lower it"
        )
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(dataset), generator=generator)
    return Part(dataset, order[:samples])


def _transformers_model(folder: Path) -> tuple[Any, Any]:
    """Load the model that a folder's configuration names, or its GGUF file, with the tokenizer that
    only the latter contains.
    """
    library: Any = require("transformers", "hf", "converting a transformers model")
    if not (folder / "config.json").is_file():
        if any(folder.glob("*.gguf")):
            return load_gguf(folder)
        raise CheckpointError(
            f"{folder}: expected a folder with config.json, got none; give a folder of "
            "transformers, or of a run of fredholm train"
        )
    if (folder / ADAPTER).is_file():
        raise ConversionError(
            f"{folder}: expected a model with softmax attention, got one that was converted "
            "already; convert its source"
        )
    try:
        config = load_local(library.AutoConfig, folder)
        kind = getattr(library, (config.architectures or [""])[0], None)
        # The folder chooses the name: it must not be anything else in the library.
        if not (isinstance(kind, type) and issubclass(kind, library.PreTrainedModel)):
            raise ConversionError(
                f"{folder}: expected the class of a model in config.json, got architectures "
                f"{config.architectures}; update transformers, or correct the file"
            )
        model, info = load_local(kind, folder, output_loading_info=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"{folder}: expected a model that transformers can read, got {error}; fetch it again"
        ) from error
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        # transformers would fill them with random numbers.
        raise CheckpointError(
            f"{folder}: expected all weights of the model, got none for {', '.join(missing[:8])}; "
            "fetch it again, or load it with the class it was saved with"
        )
    return model.eval(), None


def _tokenizer(folder: Path) -> Any:
    """Load a folder's tokenizer.

    Raises:
        CheckpointError: there is none.
    """
    library: Any = require("transformers", "hf", "reading texts")
    try:
        return load_local(library.AutoTokenizer, folder)
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder}: expected a tokenizer, got {error}; save one there"
        ) from error


def _scaled(
    pictures: Any,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
) -> Any:
    """Return a data set normalised by the model's mean and deviation instead of its own, which the
    model's weights do not know.

    Args:
        pictures: the data set.
        mean, std: per channel, or one for all of them; None: the model has none.

    Raises:
        OptionError: the pictures have another number of channels.
    """
    if mean is None or std is None:
        return pictures
    count = pictures.shape[0]
    result = copy.copy(pictures)
    result.mean = _per_channel(mean, count)
    result.std = _per_channel(std, count)
    if not len(result.mean) == len(result.std) == count:
        raise OptionError(
            f"--data: expected pictures with {len(result.mean)} channels, as the model's image "
            f"processor normalises, got {pictures.name} with {count}; choose another data set"
        )
    return result


def _per_channel(
    value: float | Sequence[float],
    count: int,
) -> tuple[float, ...]:
    if isinstance(value, int | float):
        return (float(value),) * count
    return tuple(value)


def _splits(
    model: Any,
    folder: Path,
    name: str,
    max_length: int | None,
) -> tuple[Any, Any]:
    """Return a data set's training and validation split as the model reads them."""
    if model.main_input_name == "pixel_values":
        facts = picture_scale(folder)
        size = model.config.image_size
        train = create_dataset(name, "train", image_size=size)
        val = create_dataset(name, "val", image_size=size)
        mean = facts.get("mean")
        std = facts.get("std")
        return _scaled(train, mean, std), _scaled(val, mean, std)

    tokenizer = _tokenizer(folder)
    if not max_length:
        max_length = positions_of(model) or 512
    length = _placed(model, max_length, "--max-length")
    numbers = model.config.num_labels == 1

    def read(split: str) -> TokenTexts:
        source = create_dataset(name, split)
        texts, labels = source.texts_and_targets(numbers=numbers)
        return TokenTexts(
            name,
            split,
            texts,
            labels,
            tokenizer,
            length,
            source.classes,
        )

    return read("train"), read("val")
