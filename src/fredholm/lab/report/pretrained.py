"""The page of a pretrained vision transformer: where it looks, and whether that is where the object
is.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import OptionError
from ...explain.vision import Traced, traced
from .given import ReportOptions, Samples
from .report import report
from .samples import choose_samples
from .sources import input_size, load_inputs, load_model

ASSUMED = 0.5  # mean and deviation of pictures, where a model does not say


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
    """:func:`fredholm.explain.report` of a model that is named and looks at pictures:
    ``fredholm explain SOURCE``. A Hugging Face folder of a classifier is read with its classifier.

    Args:
        source, state: see :func:`fredholm.lab.report.sources.load_model`.
        out_dir: by default ``report`` in the model's folder, else in the working directory.
        inputs, data, shape: see :func:`fredholm.lab.report.sources.load_inputs`. Pictures of a data
            set are read at the model's size, scaled as the model says, and their objects' places,
            where it knows them, are compared with the maps.
        samples: pictures that are looked at, at most.
        seed: of what is drawn at random.

    Raises:
        OptionError: a model whose attention cannot be read.
    """
    model = traced(load_model(source, state, classifier=True))
    found, phrase = _samples(model, inputs, data, shape, samples, seed)
    home = Path(source).expanduser() if Path(source).expanduser().is_dir() else Path()
    return report(
        model,
        found,
        out_dir=out_dir or home / "report",
        title=f"Where {home.resolve().name if home != Path() else source} looks: {phrase}",
        options=ReportOptions(min(samples, 24), quality=samples, seed=seed),
    )


def _samples(
    model: nn.Module, inputs: Any, data: str | None, shape: Any, samples: int, seed: int
) -> tuple[Samples, str]:
    inner: Any = model.model if isinstance(model, Traced) else model
    if data is None or inputs is not None or shape is not None:
        given: dict[str, Any] = {"inputs": inputs, "data": data, "shape": shape}
        found, phrase = load_inputs(inner, samples=samples, seed=seed, **given)
        if not isinstance(found, Tensor) or found.dim() != 4:
            got = tuple(found.shape) if isinstance(found, Tensor) else "several tensors"
            raise OptionError(
                f"{type(inner).__name__}: its page is one of pictures (N, C, H, W), got {got}; of "
                "another model name a layer with --module"
            )
        facts = getattr(inner, "extra", None) or {}
        if "mean" not in facts:
            return Samples(found), phrase
        mean, std = (_each(facts[name], found.shape[1]) for name in ("mean", "std"))
        return Samples(found, mean=mean, std=std), phrase
    from ..data import create_dataset, get_entry

    entry = get_entry(data)
    if len(entry.shape or ()) != 3:
        raise OptionError(
            f"data: {data!r} has no pictures of its own; needs a data set of images, or a picture "
            "by --inputs"
        )
    size = input_size(inner)
    dataset = create_dataset(data, "test", image_size=size)
    chosen = torch.tensor(sorted(choose_samples(len(dataset), samples, seed, None)))
    shown: dict[str, Any] = dataset.shown(chosen)
    facts, channels = getattr(inner, "extra", None) or {}, shown["inputs"].shape[1]
    wanted = getattr(getattr(inner, "config", None), "num_channels", channels)
    if wanted != channels:
        raise OptionError(
            f"data: pictures of {data} have {channels} channels; {type(inner).__name__} needs "
            f"{wanted}"
        )
    mean, std = (_each(facts.get(name, ASSUMED), channels) for name in ("mean", "std"))
    said = "" if "mean" in facts else ", scaled by a mean and a deviation of 0.5, which are assumed"
    found = Samples(mean=mean, std=std, **shown)
    return found, f"{len(chosen)} test pictures of {data}{said}"


def _each(value: Any, channels: int) -> list[float]:
    """One number a channel."""
    return [float(value)] * channels if isinstance(value, float | int) else list(value)
