"""The report: one self-contained page about a trained model or a single operator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from ..data.kinds.kind import Kind, Page, kind_of
from ..domain import Domain
from ..encoders import Inputs
from ..errors import CheckpointError, DataError, OptionError, ShapeError, require
from ..models import Model
from .evolution import evolution_section
from .page import Section, folded, render_page
from .quality_sections import choose_marked, quality_sections
from .results import (
    classify,
    confusion_section,
    curve_section,
    example_section,
    read_history,
    score_head,
    summarise,
)
from .samples import choose_samples, encoder_config, padded_queries, trace_layers
from .sections import Layer, _plain, map_section, profile_section, share_section
from .texts import text_section

PAGE, NUMBERS = "index.html", "numbers.json"


def report(
    model: Any,
    inputs: Tensor | Inputs,
    labels: Tensor | None = None,
    *,
    out_dir: str | Path,
    domain: Domain | None = None,
    title: str | None = None,
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    metrics: str | Path | Iterable[Mapping[str, Any]] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    recipe: str | None = None,
    samples: int = 24,
    queries: int = 32,
    map_queries: list[int] | None = None,
    picture: int | None = None,
    texts: Sequence[str] | None = None,
    boxes: Tensor | None = None,
    masks: Tensor | None = None,
    quality: int = 64,
    kind: Kind | None = None,
    counted: str | None = None,
    seed: int = 0,
) -> Path:
    r"""Write ``index.html``, its PNGs and ``numbers.json`` into ``out_dir``; returns the page's
    path.

    For a model the page shows its accuracy and size, training curves, what its operators learned,
    and its mistakes; for an operator, which obeys the contract (``kernel_matrix``, ``weights``),
    what it does with ``inputs`` on ``domain``. The page holds its pictures inside, has no script
    and loads nothing. Calls with the same arguments write the same pictures.

    Args:
        model: a model with ``trace(images)`` (every registered model has it), or an operator.
        inputs: for a model what it takes: images or fields (N, C, H, W), also as uint8 pixels to be
            normalised by ``mean`` and ``std``, token numbers (N, length) of texts, sequences (N,
            points, C) with NaN where nothing is, point clouds (N, points, p), or
            :class:`fredholm.encoders.Inputs`; for an operator its features (B, N, D).
        labels: the samples' classes (N,); without them the page computes no accuracy and has no
            examples.
        out_dir: a folder, made where it is missing; files of an earlier report there are replaced.
        domain: where an operator's features live, default a line.
        title: the page's heading.
        classes, mean, std: class names, and the per-channel normalisation of the inputs in units of
            [0, 1]; by default those that the model was saved with.
        metrics: a ``metrics.csv``, or rows of one, for the training curves.
        evaluation: an ``evaluation.json`` as a dictionary; its accuracy and confusion matrix then
            stand for the computed ones.
        recipe: text of the recipe.
        samples: signals from which kernels are read, drawn with ``seed``.
        queries: query points of a signal from which the profile is read.
        map_queries: indices of the points whose maps are drawn; by default chosen by contrast and
            place.
        picture: index of the sample whose maps are drawn, by default the first of those drawn.
        texts: the texts themselves, for the examples.
        boxes, masks: where the objects of the images are, (N, H, W) bool: filled boxes, and pixels;
            all False where that is unknown.
        kind: of the samples, which their data set knows; by default told by their shapes and the
            model's encoder.
        counted: what ``evaluation`` counts where that is not the samples: its tokens, or its
            points.
        quality: images whose attention maps are judged
            (:func:`fredholm.explain.attention_quality`), 0 for none.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: neither a model nor an operator, or no samples.
        ShapeError: inputs, labels or classes that do not fit.

    Example:
        >>> import tempfile
        >>> from fredholm import create_operator
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report(create_operator("softmax", 8, heads=2), torch.randn(4, 9, 8), out_dir=folder).name
        'index.html'
    """
    require("matplotlib", "train", "a report")
    if samples < 1:
        raise OptionError(f"a report needs at least one sample, got samples={samples}")
    options = {"seed": seed, "queries": queries, "map_queries": map_queries}
    if hasattr(model, "trace"):
        facts = getattr(model, "extra", None) or {}
        mean, std = mean or facts.get("mean"), std or facts.get("std")
        encoder = encoder_config(model)
        kind = kind or kind_of(inputs, getattr(encoder, "data", ""))
        if not len(inputs):
            raise ShapeError(f"a report needs at least one {kind.one}, got none")
        timed = bool(getattr(encoder, "timed", False))
        normal, pictures = kind.prepare(inputs, Page(mean, std, texts, timed))
        names = _class_names(classes or facts.get("classes"), model, labels, len(normal))
        was_training = model.training
        model.eval()
        try:
            head, sections = _results(
                model, kind, normal, pictures, labels, names, metrics, evaluation, counted
            )
            chosen = choose_samples(len(normal), samples, seed, picture)
            layers = trace_layers(model, normal, chosen)
            image: Any = pictures[chosen[0]] if pictures is not None and kind.pictured else None
            if image is None and map_queries is None:
                options["map_queries"] = padded_queries(layers)
            kernel, numbers = kernel_sections(layers, image, **options) if layers else ([], {})
            judgeable = quality if kind.judged else 0
            look = choose_marked(
                len(normal), judgeable, seed, picture, masks if boxes is None else boxes
            )
            where = {"boxes": boxes, "masks": masks, "labels": labels, "classes": names}
            judged, numbers["attention"] = quality_sections(
                model, normal, pictures or [], layers, look, seed=seed, **where
            )
            kernel += judged
            evolution, numbers["steps"] = evolution_section(model, normal[chosen], seed=seed)
            kernel += [evolution] if evolution else []
        finally:
            model.train(was_training)
        sections = (
            [*sections[:1], *kernel, *sections[1:]] if metrics is not None else [*kernel, *sections]
        )
        sections += (
            [
                Section(
                    "recipe",
                    "Recipe",
                    "",
                    after=folded("Show the recipe", f"<pre>{escape(recipe)}</pre>"),
                )
            ]
            if recipe
            else []
        )
        lead = _lead(model, kind)
    elif hasattr(model, "kernel_matrix") and isinstance(inputs, Tensor):
        layer = Layer(
            type(model).__name__,
            model,
            inputs[:samples],
            domain or Domain.line(inputs.shape[1], device=inputs.device),
        )
        sections, numbers = kernel_sections([layer], None, **options)
        head, lead = [], f"One operator on {inputs.shape[1]} points"
    else:
        raise OptionError(
            "report takes a model with trace(images) or an operator with kernel_matrix, got "
            f"{type(model).__name__}"
        )
    heading = title or f"What {type(model).__name__} learned"
    foot = f"Written by fredholm.explain; numbers of all figures are in {NUMBERS}, pictures beside this page. Seed {seed}."
    page = render_page(heading, lead, head, sections, foot)
    return _write(Path(out_dir), page, sections, {"title": heading, "seed": seed, **numbers})


def report_run(
    run: str | Path,
    inputs: Tensor | Inputs,
    labels: Tensor | None = None,
    *,
    model: nn.Module | None = None,
    out_dir: str | Path | None = None,
    **options: Any,
) -> Path:
    """The report of a run folder, by default into ``run/report``: its model, ``metrics.csv``,
    ``evaluation.json``, ``recipe.yaml``.

    Args:
        run: a folder that ``fredholm train`` made.
        inputs, labels: of the split that was evaluated, as :func:`report` takes them.
        model: the run's model where the caller has loaded it (operators of the user's own files
            must be imported for that); by default ``run/model``.
        options: further arguments of :func:`report`.

    Raises:
        CheckpointError: no such folder, or no model in it.
        DataError: an ``evaluation.json`` that is no JSON.
    """
    from ..models import from_pretrained

    run = Path(run)
    if not run.is_dir():
        raise CheckpointError(f"no run folder {str(run)!r}; give one that fredholm train made")
    model = from_pretrained(run / "model") if model is None else model
    result: dict[str, Any] = {"title": run.resolve().name}
    if (run / "metrics.csv").is_file():
        result["metrics"] = run / "metrics.csv"
    if (run / "evaluation.json").is_file():
        try:
            result["evaluation"] = json.loads((run / "evaluation.json").read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataError(
                f"{run / 'evaluation.json'} is no JSON ({error}); run fredholm evaluate again"
            ) from error
    if (run / "recipe.yaml").is_file():
        result["recipe"] = (run / "recipe.yaml").read_text(encoding="utf-8")
    return report(model, inputs, labels, out_dir=out_dir or run / "report", **{**result, **options})


def kernel_sections(
    layers: Sequence[Layer],
    image: np.ndarray | None,
    *,
    seed: int = 0,
    queries: int = 32,
    map_queries: list[int] | None = None,
) -> tuple[list[Section], dict[str, Any]]:
    """What the operators of some layers learned: (sections, numbers by section)."""
    profile, profile_numbers = profile_section(layers, seed=seed, queries=queries)
    share, share_numbers = share_section(layers, seed=seed)
    maps, map_numbers = map_section(layers, image, map_queries)
    sections = [profile, share] + ([maps] if maps else [])
    return sections, {"profile": profile_numbers, "variance": share_numbers, "maps": map_numbers}


# --- parts ----------------------------------------------------------------------------------------


def _results(
    model: Any,
    kind: Kind,
    inputs: Any,
    pictures: list[Any] | None,
    labels: Tensor | None,
    classes: Sequence[str],
    metrics: str | Path | Iterable[Mapping[str, Any]] | None,
    evaluation: Mapping[str, Any] | None,
    counted: str | None,
) -> tuple[list[tuple[str, str, str]], list[Section]]:
    """The head's numbers, and the sections training, confusion and examples, as far as there is
    something to show.
    """
    sections = [curve_section(read_history(metrics))] if metrics is not None else []
    head, examples = [], None
    if labels is not None:
        predicted, probability = classify(model, inputs)
        if pictures is not None:
            section = text_section if isinstance(pictures[0], str) else example_section
            examples = section(pictures, labels.cpu(), predicted, probability, classes, kind)
        evaluation = evaluation or summarise(labels.cpu(), predicted, classes)
    if evaluation is not None:
        what = counted or kind.many
        split = f"{evaluation['split']} {what}" if "split" in evaluation else what
        head += score_head(evaluation, split)
        if "confusion" in evaluation:
            sections.append(confusion_section(evaluation, classes, split))
    sections += [examples] if examples else []
    return head + _size_head(model, kind, inputs), sections


def _size_head(model: Any, kind: Kind, inputs: Any) -> list[tuple[str, str, str]]:
    """Parameters, and the work of one sample where its shape says it all."""
    from ..models import count

    if not isinstance(inputs, Tensor):
        parameters = sum(p.numel() for p in model.parameters())
        return [("Parameters", _units(parameters), f"{parameters:,}")]
    parameters, flops = count(model, (1, *inputs.shape[1:]))
    article = "an" if kind.one[0] in "aeiou" else "a"
    return [
        ("Parameters", _units(parameters), f"{parameters:,}"),
        (
            f"FLOPs {article} {kind.one}",
            _units(flops),
            f"matrix products and transforms at {kind.size(inputs)}",
        ),
    ]


def _class_names(classes, model, labels, size) -> list[str]:
    known = model.config.head.outputs if isinstance(model, Model) else None
    if labels is not None and labels.shape != (size,):
        raise ShapeError(
            f"labels must have shape ({size},), one an image, got {tuple(labels.shape)}"
        )
    need = known or (int(labels.max()) + 1 if labels is not None else 0)
    if labels is not None and (int(labels.min()) < 0 or int(labels.max()) >= need):
        raise ShapeError(
            f"labels must lie between 0 and {need - 1}, got {int(labels.min())} to "
            f"{int(labels.max())}"
        )
    if classes and len(classes) != need:
        raise ShapeError(f"there are {len(classes)} class names for {need} classes")
    return [str(name) for name in classes] if classes else [str(i) for i in range(need)]


def _lead(model: Any, kind: Kind) -> str:
    if not isinstance(model, Model):
        return type(model).__name__
    encoder, body = model.config.encoder, cast(Any, model.config.body)
    name = f"{body.kind} model with the {getattr(body, 'operator', '')} operator"
    depth = getattr(body, "depth", None)
    if depth is None:
        return name
    layers = (
        f"{depth} {'layer' if depth == 1 else 'layers'} of {body.heads} heads, width {body.dim}"
    )
    return f"{name}: {layers}, {kind.made_of(encoder)}"


def _units(number: int) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)


def _write(folder: Path, page: str, sections: Sequence[Section], numbers: dict[str, Any]) -> Path:
    """Pictures and numbers first, the page last and in one step: a page that is there is complete."""
    folder.mkdir(parents=True, exist_ok=True)
    for section in sections:
        for picture in section.pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png["light"])
    (folder / NUMBERS).write_text(json.dumps(_plain(numbers), indent=1) + "\n", encoding="utf-8")
    temporary = folder / f".{PAGE}.tmp"
    temporary.write_text(page, encoding="utf-8")
    os.replace(temporary, folder / PAGE)
    return folder / PAGE
