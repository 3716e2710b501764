"""The report: one self-contained page about a trained model or a single operator."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import Tensor, nn

from ...domain import Domain
from ...errors import CheckpointError, OptionError, ShapeError, require
from ...explain.vision import Traced, traced
from ...files import write_text
from ...models import Model
from ...modes import evaluating
from ...progress import working
from ..data.files.terms import Terms
from ..data.kinds.images import IMAGES
from ..data.kinds.kind import SAMPLES, Kind, Page, kind_of
from ..data.kinds.sequences import SEQUENCES, TABLES
from ..data.vocabulary import Vocabulary
from .attention import choose_marked, quality_sections
from .evolution import evolution_section
from .explore import explore_section
from .given import ReportOptions, RunFacts, Samples
from .kernels import profile_section, share_section
from .layers import PLAIN, Axis, Layer, plain
from .maps import map_section
from .page import Section, folded, preformatted, render_page
from .results import curve_section, read_history, result_sections
from .samples import choose_samples, encoder_config, padded_queries, trace_layers

PAGE, NUMBERS = "index.html", "numbers.json"
USUAL, UNKNOWN = ReportOptions(), RunFacts()


def report(
    model: Any,
    samples: Samples,
    *,
    out_dir: str | Path,
    domain: Domain | None = None,
    title: str | None = None,
    options: ReportOptions = USUAL,
    run: RunFacts = UNKNOWN,
) -> Path:
    r"""Write ``index.html``, its PNGs and ``numbers.json`` into ``out_dir``; returns the page's
    path.

    For a model the page shows its accuracy and size, training curves, what its operators learned,
    and its mistakes; for an operator, which obeys the contract (``kernel_matrix``, ``weights``),
    what it does with the samples on ``domain``. The page holds its pictures inside and
    loads nothing; its only script is that of the interactive figure. Calls with the same arguments write the same pictures.

    Args:
        model: a model with ``trace(images)`` (every registered model has it), a vision transformer
            of torch, timm or transformers (:func:`fredholm.explain.traced`), or an operator.
        samples: what it is shown with.
        out_dir: a folder, made where it is missing; files of an earlier report there are replaced.
        domain: where an operator's features live, default a line.
        title: the page's heading.
        options: how much is looked at.
        run: curves, scores and recipe of the training.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OptionError: neither a model nor an operator, or no samples.
        ShapeError: inputs, labels or classes that do not fit.

    Example:
        >>> import tempfile
        >>> from fredholm import create_operator
        >>> operator, samples = create_operator("softmax", 8, heads=2), Samples(torch.randn(4, 9, 8))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report(operator, samples, out_dir=folder).name
        'index.html'
    """
    require("matplotlib", "train", "a report")
    if isinstance(model, nn.Module) and not hasattr(model, "kernel_matrix"):
        model = traced(model)
    if hasattr(model, "trace"):
        content = _of_model(model, samples, options, run)
    elif hasattr(model, "kernel_matrix") and isinstance(samples.inputs, Tensor):
        content = _of_operator(model, samples.inputs, domain, options)
    else:
        raise OptionError(
            "report takes a model with trace(images) or an operator with kernel_matrix, got "
            f"{type(model).__name__}"
        )
    named = model.model if isinstance(model, Traced) else model
    heading = title or f"What {type(named).__name__} learned"
    return write_report(Path(out_dir), heading, content, options.seed)


def report_run(
    run: str | Path,
    samples: Samples,
    *,
    model: nn.Module | None = None,
    out_dir: str | Path | None = None,
    options: ReportOptions = USUAL,
    counted: str | None = None,
) -> Path:
    """The report of a run folder, by default into ``run/report``: its model, ``metrics.csv``,
    ``evaluation.json``, ``recipe.yaml``.

    Args:
        run: a folder that ``fredholm train`` made.
        samples: of the split that was evaluated.
        model: the run's model where the caller has loaded it (operators of the user's own files
            must be imported for that); by default ``run/model``.
        options: how much is looked at.
        counted: see :class:`RunFacts`.

    Raises:
        CheckpointError: no such folder, or no model in it.
        FredholmError: an ``evaluation.json`` that cannot be read.
    """
    from ...models import from_pretrained

    run = Path(run)
    if not run.is_dir():
        raise CheckpointError(f"no run folder {str(run)!r}; give one that fredholm train made")
    return report(
        from_pretrained(run / "model") if model is None else model,
        samples,
        out_dir=out_dir or run / "report",
        title=run.resolve().name,
        options=options,
        run=RunFacts.of(run, counted),
    )


# --- what is on the page --------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """All of a page but its heading; ``numbers`` are those of the figures."""

    lead: str
    head: list[tuple[str, str, str]]
    sections: list[Section]
    numbers: dict[str, Any]


def _of_operator(
    operator: Any, inputs: Tensor, domain: Domain | None, options: ReportOptions
) -> Content:
    shown = inputs[: options.samples]
    place = domain or Domain.line(inputs.shape[1], device=inputs.device)
    layer = Layer(type(operator).__name__, operator, shown, place)
    sections, numbers = kernel_sections([layer], None, options)
    return Content(f"One operator on {inputs.shape[1]} points", [], sections, numbers)


def _of_model(model: Any, samples: Samples, options: ReportOptions, run: RunFacts) -> Content:
    samples, normal, pictures = _completed(model, samples)
    sections = []
    if run.metrics is not None:
        sections.append(curve_section(read_history(run.metrics)))
    with evaluating(model):
        head, results = result_sections(model, samples, normal, pictures, run, options.seed)
        kernel, numbers = _learned(model, samples, normal, pictures, options)
    head += _size_head(model, _kind(samples), normal)
    sections += [*results, *kernel]
    if run.recipe:
        text = folded("Show the recipe", preformatted(run.recipe))
        sections.append(Section("recipe", "Recipe", "", after=text))
    lead, skipped = _lead(model, _kind(samples)), numbers["attention"].get("skipped")
    if isinstance(model, Traced) and isinstance(skipped, str):
        lead += f". No attention maps: {skipped}"
    return Content(lead, head, sections, numbers)


def _completed(model: Any, samples: Samples) -> tuple[Samples, Any, list[Any] | None]:
    """Complete samples with the facts of a model, and prepare their inputs.

    Returns:
        The samples with their kind and, where the caller gave none, the mean, the deviation and the
        names of classes that the model was saved with; the inputs as the model reads them; and a
        picture, text or signal of each sample to draw, or None if their kind has none.

    Raises:
        ShapeError: no samples.
    """
    facts = getattr(model, "extra", None) or {}
    encoder = encoder_config(model)
    mean = samples.mean or facts.get("mean")
    std = samples.std or facts.get("std")
    kind = samples.kind or kind_of(samples.inputs, getattr(encoder, "data", ""))
    if not len(samples.inputs):
        raise ShapeError(f"a report needs at least one {kind.one}, got none")

    timed = bool(getattr(encoder, "timed", False))
    normal, pictures = kind.prepare(samples.inputs, Page(mean, std, samples.texts, timed))
    given = samples.classes or facts.get("classes")
    names = _class_names(given, model, samples.labels, len(normal))
    return replace(samples, mean=mean, std=std, kind=kind, classes=names), normal, pictures


def _kind(samples: Samples) -> Kind:
    """Of samples that are prepared."""
    assert samples.kind is not None
    return samples.kind


def _learned(
    model: Any, samples: Samples, normal: Any, pictures: list[Any] | None, options: ReportOptions
) -> tuple[list[Section], dict[str, Any]]:
    """Kernels, attention maps, steps: what the operators of a model do with some samples."""
    kind, seed = _kind(samples), options.seed
    chosen = choose_samples(len(normal), options.samples, seed, options.picture)
    layers = trace_layers(model, normal, chosen)
    image: Any = pictures[chosen[0]] if pictures is not None and kind.pictured else None
    if image is None and options.map_queries is None:
        options = replace(options, map_queries=padded_queries(layers))
    # A pretrained model's value matrices are large: of its layers one page each (report_module).
    look_at = map_sections if isinstance(model, Traced) else kernel_sections
    axis = _axis(model, samples, chosen[0])
    sections, numbers = look_at(layers, image, options, kind, axis) if layers else ([], {})
    marked = samples.masks if samples.boxes is None else samples.boxes
    judged = options.quality if kind.judged else 0
    look = choose_marked(len(normal), judged, seed, options.picture, marked)
    with working("explain: attention maps"):
        quality, numbers["attention"] = quality_sections(
            model, normal, pictures or [], layers, look, samples, seed=seed
        )
    evolution, numbers["steps"] = evolution_section(model, normal[chosen], seed=seed)
    # Of a pretrained model the first question is where it looks.
    shown = [*quality, *sections] if isinstance(model, Traced) else [*sections, *quality]
    return [*shown, *([evolution] if evolution else [])], numbers


def _axis(model: Any, samples: Samples, chosen: int) -> Axis:
    """Return the names of a sample's points: words, columns, or times of its clock."""
    facts = getattr(model, "extra", None) or {}
    terms, kind = Terms.of(facts), _kind(samples)
    if kind is TABLES:
        return Axis(terms.channels, "column")
    if kind is SEQUENCES and terms.clock:
        encoder = encoder_config(model)
        return Axis((), terms.clock, terms.step * encoder.length)
    inputs = samples.inputs
    if samples.texts is None or "vocabulary" not in facts or not isinstance(inputs, Tensor):
        return PLAIN
    vocabulary = Vocabulary.from_dict(facts["vocabulary"])
    numbers = [number for number in inputs[chosen].tolist() if number]
    return Axis(tuple(vocabulary.decode(numbers)), "the text, word by word")


def kernel_sections(
    layers: Sequence[Layer],
    image: np.ndarray | None,
    options: ReportOptions,
    kind: Kind | None = None,
    axis: Axis = PLAIN,
) -> tuple[list[Section], dict[str, Any]]:
    """What the operators of some layers learned: (sections, numbers by section), in the words of
    their ``kind`` of data.
    """
    kind = kind or (SAMPLES if image is None else IMAGES)
    seed, queries = options.seed, options.queries
    profile, profile_numbers = profile_section(layers, seed=seed, queries=queries, kind=kind)
    share, share_numbers = share_section(layers, seed=seed, kind=kind)
    maps, numbers = map_sections(layers, image, options, kind, axis)
    with working("explain: all queries"):
        explorer = explore_section(layers, image, kind, axis)
    sections = [
        *([explorer] if explorer else []),
        *maps,
        *(each for each in (profile, share) if each is not None),
    ]
    return sections, {"profile": profile_numbers, "variance": share_numbers} | numbers


def map_sections(
    layers: Sequence[Layer],
    image: np.ndarray | None,
    options: ReportOptions,
    kind: Kind,
    axis: Axis = PLAIN,
) -> tuple[list[Section], dict[str, Any]]:
    """Of these what one query takes from all points alone."""
    chosen = None if options.map_queries is None else list(options.map_queries)
    with working("explain: one query at a time"):
        maps, numbers = map_section(layers, image, chosen, kind, axis)
    return [maps] if maps else [], {"maps": numbers}


# --- parts ----------------------------------------------------------------------------------------


def _size_head(model: Any, kind: Kind, inputs: Any) -> list[tuple[str, str, str]]:
    """Parameters, and the work of one sample where its shape says it all."""
    from ...models.counting import UNCOUNTED, count

    parameters = sum(p.numel() for p in model.parameters())
    size = [("Parameters", units(parameters), f"{parameters:,}")]
    if not isinstance(inputs, Tensor):
        return size
    try:
        whole = model.model if isinstance(model, Traced) else model
        _, flops = count(whole, (1, *inputs.shape[1:]))
    except UNCOUNTED:
        return size
    return [
        *size,
        (
            f"FLOPs per {kind.one}",
            units(flops),
            f"matrix products and transforms at {kind.size(inputs)}",
        ),
    ]


def _class_names(classes, model, labels, size) -> list[str]:
    known = model.config.head.outputs if isinstance(model, Model) else None
    if labels is not None and labels.shape != (size,):
        raise ShapeError(
            f"labels must have shape ({size},), one a sample, got {tuple(labels.shape)}"
        )
    seen = 0 if labels is None else int(labels.max()) + 1
    need = known or len(classes or ()) or seen
    if labels is not None and (int(labels.min()) < 0 or int(labels.max()) >= need):
        raise ShapeError(
            f"labels must lie between 0 and {need - 1}, got {int(labels.min())} to "
            f"{int(labels.max())}"
        )
    if classes and len(classes) != need:
        raise ShapeError(f"there are {len(classes)} class names for {need} classes")
    return [str(name) for name in classes] if classes else [str(i) for i in range(need)]


def _lead(model: Any, kind: Kind) -> str:
    if isinstance(model, Traced):
        count = len(model.paths)
        layers = f"{count} {'layer' if count == 1 else 'layers'}"
        return f"{type(model.model).__name__}, {layers} of softmax attention"
    if not isinstance(model, Model):
        return type(model).__name__
    encoder, body = model.config.encoder, cast(Any, model.config.body)
    operator, heads = getattr(body, "operator", None), getattr(body, "heads", None)
    name = f"{body.kind} model" + (f" with the {operator} operator" if operator else "")
    depth = getattr(body, "depth", None)
    if depth is None:
        return name
    layers = f"{depth} {'layer' if depth == 1 else 'layers'}"
    layers += f"{f' of {heads} heads' if heads else ''}, width {body.width}"
    return f"{name}: {layers}, {kind.made_of(encoder)}"


def units(number: int) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return str(number)


def write_report(folder: Path, heading: str, content: Content, seed: int) -> Path:
    """Pictures and numbers first, the page last and in one step: a page that is there is
    complete.
    """
    foot = (
        f"Written by fredholm explain; {NUMBERS} beside this page has the numbers of all figures. "
        f"Seed {seed}."
    )
    page = render_page(heading, content.lead, content.head, content.sections, foot)
    folder.mkdir(parents=True, exist_ok=True)
    for section in content.sections:
        for picture in section.pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png["light"])
    numbers = {"title": heading, "seed": seed, **content.numbers}
    (folder / NUMBERS).write_text(json.dumps(plain(numbers), indent=1) + "\n", encoding="utf-8")
    return write_text(folder / PAGE, page)
