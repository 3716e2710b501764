"""Where a model and its inputs come from: folders, a user's own function, files, data sets, chance."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import CheckpointError, DataError, OptionError, TrustError, require
from ...linearization.transformers_folder import load_local, picture_scale
from ..data.kinds.images import IMAGES, read_as_trained
from ..data.numpy_files import read_npy, read_npz
from ..data.vocabulary import Vocabulary
from .samples import encoder_config

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
TOKENS = 32  # of a random text


def load_model(
    source: str, state: str | Path | None = None, *, classifier: bool = False
) -> nn.Module:
    """A model in evaluation mode from a run's or model's folder, a Hugging Face folder, or
    ``package.module:factory``.

    Args:
        source: a folder (nothing is downloaded), or an importable callable without arguments, or a
            module object; the working directory is searched as well.
        state: weights for it, ``.safetensors`` or a ``torch.save`` file that holds tensors only.
        classifier: whether a Hugging Face folder of an image classifier is read with its
            classifier, else as a backbone; of pictures with texts (CLIP) the vision tower is.

    Raises:
        CheckpointError: a folder without a model, or weights that do not fit.
        TrustError: a Hugging Face folder that needs code of its own, which is never executed.
        OptionError: nothing of that name, or what it gives is no module.
        MissingExtraError: a Hugging Face folder without transformers.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        model = _from_folder(folder, classifier)
    elif ":" in source:
        model = _from_code(source)
    else:
        raise OptionError(
            f"no model {source!r}: give a run's folder, a model's folder, or package.module:factory"
        )
    if state is not None:
        load_state(model, Path(state))
    return model.eval()


def load_state(model: nn.Module, path: Path) -> None:
    """Weights into a model, every name and shape accounted for. No code in the file is run.

    Raises:
        CheckpointError: no such file, another format, or names and shapes that do not fit.
    """
    if not path.is_file():
        raise CheckpointError(f"no weights at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors: dict[str, Any] = load_file(path)
        else:
            tensors = dict(torch.load(path, map_location="cpu", weights_only=True))
        model.load_state_dict(tensors.get("state_dict", tensors), strict=True)
    except Exception as error:  # safetensors, pickle and torch each have their own
        raise CheckpointError(f"{path} does not fit {type(model).__name__}: {error}") from error


def load_inputs(
    model: nn.Module,
    *,
    inputs: str | Path | None = None,
    data: str | None = None,
    shape: tuple[int, ...] | None = None,
    samples: int = 8,
    seed: int = 0,
) -> tuple[Any, str]:
    """(what the model takes, a phrase that says where it came from).

    Args:
        model: it says which size of image or which vocabulary fits, and how images are normalised.
        inputs: an image, ``.npy``, ``.npz`` or ``.safetensors``; several named tensors become
            keyword arguments.
        data: a data set of :func:`fredholm.data.list_datasets`; the first ``samples`` of its test
            split.
        shape: of random normal numbers, batch first. Without any of the three the model's
            configuration decides.
        seed: of random inputs.

    Raises:
        OptionError: more than one source, or none and a model that does not say what it takes.
        DataError: a file that cannot be read.
    """
    if sum(x is not None for x in (inputs, data, shape)) > 1:
        raise OptionError("inputs, data and shape exclude one another; give one of them")
    if inputs is not None:
        path = Path(inputs).expanduser()
        return _from_file(path, model), f"inputs from {path.name}{_assumed(path, model)}"
    if data is not None:
        from ..data import create_dataset, get_entry

        entry, given = get_entry(data), _reading(model)
        given = {k: v for k, v in given.items() if k in entry.needs or k in entry.kind.takes}
        dataset = create_dataset(data, "test", **given)
        count = min(samples, len(dataset))
        result, _ = dataset.batch(torch.arange(count))
        return result, f"the first {count} test samples of {data}"
    generator = torch.Generator().manual_seed(seed)
    if shape is not None:
        return torch.randn(
            shape, generator=generator
        ), f"random normal numbers {tuple(shape)}, seed {seed}"
    return _random(model, samples, generator), f"random inputs, seed {seed}"


# --- models ---------------------------------------------------------------------------------------


def _from_folder(folder: Path, classifier: bool) -> nn.Module:
    folder = folder / "model" if (folder / "model" / "config.json").is_file() else folder
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"no config.json in {folder}; give a run's folder, a model's folder or "
            "package.module:factory"
        )
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path} is no JSON ({error})") from error
    if "model_type" not in config:
        from ...models import from_pretrained

        return from_pretrained(folder)
    transformers = require("transformers", "hf", "a Hugging Face folder")
    try:
        named = (config.get("architectures") or [""])[0]
        whole = classifier and "ForImageClassification" in named
        kind = transformers.AutoModelForImageClassification if whole else transformers.AutoModel
        model = load_local(kind, folder)
    except TrustError:
        raise
    except (
        Exception
    ) as error:  # transformers, safetensors and the operating system each have their own
        raise CheckpointError(f"transformers cannot load {folder}: {error}") from error
    if classifier and "vision_config" in config and hasattr(model, "vision_model"):
        model = model.vision_model  # of pictures with texts that which looks at the pictures
    model.extra = picture_scale(folder)  # as a model of this library has what it was saved with
    return model


def _from_code(source: str) -> nn.Module:
    """Return the ``torch.nn.Module`` that ``package.module:name`` names, or that a function of this
    name returns when it is called without arguments.

    The name may have dots. The working directory is searched as well, so that a user's file beside
    the command is found.

    Raises:
        OptionError: nothing of that name, or it does not lead to a ``torch.nn.Module``.
    """
    package, _, name = source.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        model: Any = importlib.import_module(package)
        for part in name.split("."):
            model = getattr(model, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise OptionError(
            f"no model {source!r}: {error}; give package.module:factory, importable from here"
        ) from error

    # A module is callable too, but is the model itself.
    if callable(model) and not isinstance(model, nn.Module):
        model = model()
    if not isinstance(model, nn.Module):
        raise OptionError(f"{source} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


# --- inputs ---------------------------------------------------------------------------------------


def _from_file(path: Path, model: nn.Module) -> Any:
    if not path.is_file():
        raise DataError(f"no inputs at {path}; give an image, .npy, .npz or .safetensors")
    suffix = path.suffix.lower()
    try:
        if suffix in PICTURES:
            return _image(path, model)
        if suffix == ".npy":
            return _number(torch.from_numpy(read_npy(path)))
        if suffix == ".npz":
            arrays = read_npz(path)
            tensors = {name: _number(torch.from_numpy(a)) for name, a in arrays.items()}
        elif suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors = load_file(path)
        else:
            raise DataError(
                f"{path.name}: inputs are images, .npy, .npz or .safetensors, not "
                f"{suffix or 'without suffix'}"
            )
    except DataError:
        raise
    except Exception as error:  # PIL, numpy and safetensors each have their own
        raise DataError(f"{path} cannot be read: {error}") from error
    return next(iter(tensors.values())) if len(tensors) == 1 else tensors


def _number(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def _image(path: Path, model: nn.Module) -> Tensor:
    """An image (1, C, H, W) of the size and channels that the model's configuration names, cut and
    normalised as those of its training were.
    """
    facts, channels = _facts(model), _channels(model)
    pixels = read_as_trained(path, facts, channels, input_size(model))
    mean, std = (torch.tensor(facts.get(name, 0.5)).view(-1, 1, 1) for name in ("mean", "std"))
    if {len(mean), len(std)} - {1, len(pixels)}:
        raise DataError(
            f"{path.name}: read with {len(pixels)} channels, as the model's configuration has it, "
            f"and {len(mean)} means and {len(std)} deviations; give its inputs as .npy instead"
        )
    return ((pixels - mean) / std)[None]


def _assumed(path: Path, model: nn.Module) -> str:
    """What is said of a picture for a model that does not say how its own were normalised."""
    if path.suffix.lower() not in PICTURES or "mean" in _facts(model):
        return ""
    return ", normalised by a mean and a deviation of 0.5, which are assumed: the model has none"


def _facts(model: nn.Module) -> Any:
    """What a model was saved with."""
    return getattr(model, "extra", None) or {}


def _channels(model: nn.Module) -> int:
    config: Any = encoder_config(model) or getattr(model, "config", None)
    return getattr(config, "channels", None) or getattr(config, "num_channels", None) or 3


def input_size(model: nn.Module) -> tuple[int, int] | None:
    """Height and width of the pictures that a model takes: what its image processor cuts them to,
    else what its configuration names.
    """
    if "picture_size" in _facts(model):
        return _facts(model)["picture_size"]
    config: Any = encoder_config(model) or getattr(model, "config", None)
    size = getattr(config, "image_size", None)
    return None if size is None else (size, size) if isinstance(size, int) else tuple(size)


def _reading(model: nn.Module) -> dict[str, Any]:
    """How samples are read for a model: its size of images, its vocabulary and how many tokens."""
    facts = _facts(model)
    given: dict[str, Any] = {"image_size": input_size(model), "max_length": facts.get("max_length")}
    words = facts.get("vocabulary")
    given["vocabulary"] = None if words is None else Vocabulary.from_dict(words)
    return {key: value for key, value in given.items() if value is not None}


def _random(model: nn.Module, samples: int, generator: torch.Generator) -> Any:
    encoder, config, size = encoder_config(model), getattr(model, "config", None), input_size(model)
    vocabulary = getattr(config, "vocab_size", None)
    if vocabulary and encoder is None:  # Hugging Face
        length = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
        return {"input_ids": torch.randint(vocabulary, (samples, length), generator=generator)}
    if size is not None and (encoder is None or encoder.data == IMAGES.encoder):
        return torch.randn(samples, _channels(model), *size, generator=generator)
    raise OptionError(
        f"{type(model).__name__} does not say what it takes; give inputs (--inputs FILE), data "
        "(--data NAME) or shape (--shape 4,3,32,32)"
    )
