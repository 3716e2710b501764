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
from ..data.kinds.images import IMAGES
from ..data.kinds.picture_files import read_as_trained
from ..data.numpy_files import read_npy, read_npz
from ..data.vocabulary import Vocabulary
from .subject import encoder_config, saved_facts

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")

# Tokens of a random text.
TOKENS = 32

# Mean and deviation of pictures for a model that was saved with none.
ASSUMED = 0.5


def home_of(source: str) -> Path:
    """Return the folder that a report on a model is written into: the model's own folder, or the
    working directory for a model that a function makes.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    return Path()


# --- models ---------------------------------------------------------------------------------------


def load_model(
    source: str,
    state: str | Path | None = None,
    *,
    classifier: bool = False,
) -> nn.Module:
    """Return a model in evaluation mode from a run's or model's folder, a Hugging Face folder, or
    ``package.module:factory``.

    Args:
        source: a folder (nothing is downloaded), or an importable callable without arguments, or a
            module object; the working directory is searched as well.
        state: weights for it, ``.safetensors`` or a ``torch.save`` file that holds tensors only.
        classifier: whether a Hugging Face folder of an image classifier is read with its
            classifier, else as a backbone. For pictures with texts (CLIP) it selects the vision
            tower.

    Raises:
        CheckpointError: a folder without a model, or weights that do not fit.
        TrustError: a Hugging Face folder that needs code of its own, which is never executed.
        OptionError: nothing of that name, or it does not lead to a module.
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
    """Load weights into a model, every name and shape accounted for. No code in the file is run.

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
    # Errors of safetensors, pickle and torch have no common base.
    except Exception as error:
        raise CheckpointError(f"{path} does not fit {type(model).__name__}: {error}") from error


def _from_folder(folder: Path, classifier: bool) -> nn.Module:
    if (folder / "model" / "config.json").is_file():
        folder = folder / "model"
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
    if "model_type" in config:
        return _from_transformers(folder, config, classifier)

    from ...models import from_pretrained

    return from_pretrained(folder)


def _from_transformers(
    folder: Path,
    config: dict[str, Any],
    classifier: bool,
) -> nn.Module:
    transformers = require("transformers", "hf", "a Hugging Face folder")
    architecture = (config.get("architectures") or [""])[0]
    try:
        loader = transformers.AutoModel
        if classifier and "ForImageClassification" in architecture:
            loader = transformers.AutoModelForImageClassification
        model = load_local(loader, folder)
    except TrustError:
        raise
    # Errors of transformers, safetensors and the operating system have no common base.
    except Exception as error:
        raise CheckpointError(f"transformers cannot load {folder}: {error}") from error
    if classifier and "vision_config" in config and hasattr(model, "vision_model"):
        model = model.vision_model
    # A model of this library has the facts it was saved with; these are its counterpart.
    model.extra = picture_scale(folder)
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


def load_inputs(
    model: nn.Module,
    *,
    inputs: str | Path | None = None,
    data: str | None = None,
    shape: tuple[int, ...] | None = None,
    samples: int = 8,
    seed: int = 0,
) -> tuple[Any, str]:
    """Return inputs of a model, and a phrase that says where they came from.

    Args:
        model: determines the size of images or the vocabulary, and how images are normalised.
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
    if sum(source is not None for source in (inputs, data, shape)) > 1:
        raise OptionError("inputs, data and shape exclude one another; give one of them")
    if inputs is not None:
        path = Path(inputs).expanduser()
        return _from_file(path, model), f"inputs from {path.name}{_assumed(path, model)}"
    if data is not None:
        dataset = open_data_set(data, model)
        count = min(samples, len(dataset))
        found, _ = dataset.batch(torch.arange(count))
        return found, f"the first {count} test samples of {data}"
    generator = torch.Generator().manual_seed(seed)
    if shape is not None:
        numbers = torch.randn(shape, generator=generator)
        return numbers, f"random normal numbers {tuple(shape)}, seed {seed}"
    return _random(model, samples, generator), f"random inputs, seed {seed}"


def _from_file(path: Path, model: nn.Module) -> Any:
    if not path.is_file():
        raise DataError(f"no inputs at {path}; give an image, .npy, .npz or .safetensors")
    suffix = path.suffix.lower()
    try:
        if suffix in PICTURES:
            return _image(path, model)
        if suffix == ".npy":
            return _single(torch.from_numpy(read_npy(path)))
        tensors = _named_tensors(path, suffix)
    except DataError:
        raise
    # Errors of PIL, numpy and safetensors have no common base.
    except Exception as error:
        raise DataError(f"{path} cannot be read: {error}") from error
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    return tensors


def _named_tensors(path: Path, suffix: str) -> dict[str, Tensor]:
    if suffix == ".npz":
        arrays = read_npz(path)
        return {name: _single(torch.from_numpy(array)) for name, array in arrays.items()}
    if suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    raise DataError(
        f"{path.name}: inputs are images, .npy, .npz or .safetensors, not "
        f"{suffix or 'without suffix'}"
    )


def _single(tensor: Tensor) -> Tensor:
    """Return float64, numpy's usual type, as the float32 of most models."""
    if tensor.dtype == torch.float64:
        return tensor.float()
    return tensor


def _image(path: Path, model: nn.Module) -> Tensor:
    """Return an image (1, C, H, W) of the size and channels that the model's configuration names,
    cut and normalised as those of its training were.
    """
    facts = saved_facts(model)
    size = input_size(model)
    pixels = read_as_trained(path, facts, _channels(model), size)
    mean, std = (torch.tensor(facts.get(name, ASSUMED)).view(-1, 1, 1) for name in ("mean", "std"))
    # One mean for all channels fits any image.
    if {len(mean), len(std)} - {1, len(pixels)}:
        raise DataError(
            f"{path.name}: read with {len(pixels)} channels, as the model's configuration has it, "
            f"and {len(mean)} means and {len(std)} deviations; give its inputs as .npy instead"
        )
    return ((pixels - mean) / std)[None]


def _assumed(path: Path, model: nn.Module) -> str:
    """Return a warning about a picture for a model that does not say how its own were
    normalised.
    """
    if path.suffix.lower() not in PICTURES or "mean" in saved_facts(model):
        return ""
    return ", normalised by a mean and a deviation of 0.5, which are assumed: the model has none"


def open_data_set(data: str, model: nn.Module) -> Any:
    """Return the test split of a data set, read as a model needs it."""
    from ..data import create_dataset, get_entry

    entry = get_entry(data)
    facts = saved_facts(model)
    options: dict[str, Any] = {
        "image_size": input_size(model),
        "max_length": facts.get("max_length"),
    }
    if facts.get("vocabulary") is not None:
        options["vocabulary"] = Vocabulary.from_dict(facts["vocabulary"])
    taken = {
        name: value
        for name, value in options.items()
        if value is not None and (name in entry.needs or name in entry.kind.takes)
    }
    return create_dataset(data, "test", **taken)


def _random(model: nn.Module, samples: int, generator: torch.Generator) -> Any:
    """Return random tokens or pictures of the size that the model's configuration names."""
    encoder = encoder_config(model)
    config = getattr(model, "config", None)
    size = input_size(model)
    vocabulary = getattr(config, "vocab_size", None)
    # Only Hugging Face models have such a configuration and no encoder of ours.
    if vocabulary and encoder is None:
        length = min(TOKENS, getattr(config, "max_position_embeddings", None) or TOKENS)
        return {"input_ids": torch.randint(vocabulary, (samples, length), generator=generator)}
    if size is not None and (encoder is None or encoder.data == IMAGES.encoder):
        return torch.randn(samples, _channels(model), *size, generator=generator)
    raise OptionError(
        f"{type(model).__name__} does not say what it takes; give inputs (--inputs FILE), data "
        "(--data NAME) or shape (--shape 4,3,32,32)"
    )


def _channels(model: nn.Module) -> int:
    config: Any = encoder_config(model) or getattr(model, "config", None)
    return getattr(config, "channels", None) or getattr(config, "num_channels", None) or 3


def input_size(model: nn.Module) -> tuple[int, int] | None:
    """Return height and width of the pictures that a model takes: what its image processor cuts
    them to, else what its configuration names; None if neither is known.
    """
    facts = saved_facts(model)
    if "picture_size" in facts:
        return facts["picture_size"]
    config: Any = encoder_config(model) or getattr(model, "config", None)
    size = getattr(config, "image_size", None)
    if size is None:
        return None
    if isinstance(size, int):
        return size, size
    height, width = size
    return height, width
