"""The page of a pretrained vision transformer: where it looks, and whether the object is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import OptionError
from ...explain.vision import Traced, traced
from .given import ReportOptions, Samples
from .report import report
from .sources import ASSUMED, home_of, load_inputs, load_model, open_data_set
from .subject import choose_samples, saved_facts

# Pictures whose maps of single queries are read, at most.
MAPPED = 24


def explain_pictures(
    source: str,
    out_dir: str | Path | None = None,
    *,
    state: str | Path | None = None,
    inputs: str | Path | None = None,
    data: str | None = None,
    shape: tuple[int, ...] | None = None,
    samples: int = 16,
    seed: int = 0,
) -> Path:
    """Write :func:`fredholm.explain.report` of a named model that reads pictures, as ``fredholm
    explain SOURCE`` does. A Hugging Face folder of a classifier is read with its classifier.

    Args:
        source, state: see :func:`fredholm.lab.report.sources.load_model`.
        out_dir: by default ``report`` in the model's folder, else in the working directory.
        inputs, data, shape: see :func:`fredholm.lab.report.sources.load_inputs`. Pictures of a data
            set are read at the model's size, scaled as the model says, and the positions of their
            objects, where it knows them, are compared with the maps.
        samples: pictures that are looked at, at most.
        seed: of everything drawn at random.

    Raises:
        OptionError: a model whose attention cannot be read.
    """
    model = traced(load_model(source, state, classifier=True))
    inner: nn.Module = model
    if isinstance(model, Traced):
        inner = model.model
    if data is not None and inputs is None and shape is None:
        found, phrase = _of_data_set(inner, data, samples, seed)
    else:
        loaded, phrase = load_inputs(
            inner,
            inputs=inputs,
            data=data,
            shape=shape,
            samples=samples,
            seed=seed,
        )
        found = _of_inputs(inner, loaded)

    home = home_of(source)
    name = source
    if Path(source).expanduser().is_dir():
        name = home.resolve().name
    return report(
        model,
        found,
        out_dir=out_dir or home / "report",
        title=f"Where {name} looks: {phrase}",
        options=ReportOptions(min(samples, MAPPED), quality=samples, seed=seed),
    )


def _of_inputs(model: nn.Module, inputs: Any) -> Samples:
    """Return pictures with the model's normalisation.

    Raises:
        OptionError: inputs that are not pictures.
    """
    if not isinstance(inputs, Tensor) or inputs.dim() != 4:
        got = tuple(inputs.shape) if isinstance(inputs, Tensor) else "several tensors"
        raise OptionError(
            f"{type(model).__name__}: its page is one of pictures (N, C, H, W), got {got}; of "
            "another model name a layer with --module"
        )
    facts = saved_facts(model)
    if "mean" not in facts:
        return Samples(inputs)
    channels = inputs.shape[1]
    mean, std = (_per_channel(facts[name], channels) for name in ("mean", "std"))
    return Samples(inputs, mean=mean, std=std)


def _of_data_set(
    model: nn.Module,
    data: str,
    samples: int,
    seed: int,
) -> tuple[Samples, str]:
    """Return pictures of a data set with what it knows of their objects, and a phrase about them.

    Raises:
        OptionError: a data set without pictures, or of other channels than the model's.
    """
    from ..data import get_entry

    if len(get_entry(data).shape or ()) != 3:
        raise OptionError(
            f"data: {data!r} has no pictures of its own; needs a data set of images, or a picture "
            "by --inputs"
        )
    # Pictures are read at the model's size, in the order of the data set.
    dataset = open_data_set(data, model)
    chosen = torch.tensor(sorted(choose_samples(len(dataset), samples, seed, None)))
    shown: dict[str, Any] = dataset.shown(chosen)
    channels = shown["inputs"].shape[1]
    wanted = getattr(getattr(model, "config", None), "num_channels", channels)
    if wanted != channels:
        raise OptionError(
            f"data: pictures of {data} have {channels} channels; {type(model).__name__} needs "
            f"{wanted}"
        )

    facts = saved_facts(model)
    phrase = f"{len(chosen)} test pictures of {data}"
    if "mean" not in facts:
        phrase += ", scaled by a mean and a deviation of 0.5, which are assumed"
    mean, std = (_per_channel(facts.get(name, ASSUMED), channels) for name in ("mean", "std"))
    return Samples(mean=mean, std=std, **shown), phrase


def _per_channel(value: float | Sequence[float], channels: int) -> list[float]:
    """Return one number per channel."""
    if isinstance(value, float | int):
        return [float(value)] * channels
    return list(value)
