"""The report: one self-contained page about a trained model or a single operator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from ...domain import Domain
from ...errors import CheckpointError, OptionError, require
from ...explain.kernels import default_domain
from ...explain.vision import Traced, traced
from ...files import write_text
from ...models import Model
from ...modes import evaluating
from ..data.kinds.kind import Kind
from ..numbers import plural
from .attention.sections import quality_sections
from .given import ReportOptions, RunFacts, Samples
from .kernels import evolution_section, profile_section, share_section
from .layers import Layer, View, plain
from .maps.explore import explore_section
from .maps.queries import map_section
from .page import Fact, Numbers, Section, folded, render_page, words
from .results.curves import curve_section, read_history
from .results.sections import result_sections
from .subject import Subject, choose_samples, trace_layers

PAGE = "index.html"
NUMBERS = "numbers.json"
USUAL = ReportOptions()
UNKNOWN = RunFacts()


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
    r"""Write ``index.html``, its PNGs and ``numbers.json`` into ``out_dir``, and return the page's
    path.

    For a model the page shows its accuracy and size, training curves, what its operators learned,
    and its mistakes; for an operator, which obeys the contract (``kernel_matrix``, ``weights``),
    what it does with the samples on ``domain``. The page contains its pictures and loads nothing;
    its only script is that of the interactive figure. Calls with the same arguments write the same
    pictures.

    Args:
        model: a model with ``trace(images)`` (every registered model has it), a vision transformer
            of torch, timm or transformers (:func:`fredholm.explain.traced`), or an operator.
        samples: the samples to show it with.
        out_dir: a folder, made where it is missing; files of an earlier report there are replaced.
        domain: where an operator's features live, by default where it puts them without one.
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
        content = _of_model(Subject.of(model, samples, options.seed), options, run)
    elif hasattr(model, "kernel_matrix") and isinstance(samples.inputs, Tensor):
        content = _of_operator(model, samples.inputs, domain, options)
    else:
        raise OptionError(
            "report takes a model with trace(images) or an operator with kernel_matrix, got "
            f"{type(model).__name__}"
        )
    heading = title or f"What {type(_unwrapped(model)).__name__} learned"
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
    """Write the report of a run folder, by default into ``run/report``: its model, ``metrics.csv``,
    ``evaluation.json``, ``calibration.json``, ``recipe.yaml``.

    Args:
        run: a folder that ``fredholm train`` made.
        samples: of the split that was evaluated.
        model: the run's model where the caller has loaded it (operators of the user's own files
            must be imported for that); by default ``run/model``.
        options: how much is looked at.
        counted: see :class:`RunFacts`.

    Raises:
        CheckpointError: no such folder, or no model in it.
        FredholmError: an ``evaluation.json`` or a ``calibration.json`` that cannot be read.
    """
    from ...models import from_pretrained

    run = Path(run)
    if not run.is_dir():
        raise CheckpointError(f"no run folder {str(run)!r}; give one that fredholm train made")
    if model is None:
        model = from_pretrained(run / "model")
    return report(
        model,
        samples,
        out_dir=out_dir or run / "report",
        title=run.resolve().name,
        options=options,
        run=RunFacts.of(run, counted),
    )


# --- what is on the page --------------------------------------------------------------------------


@dataclass(frozen=True)
class Content:
    """Everything on a page except its heading.

    Attributes:
        lead: a line below the heading.
        facts: the numbers at the top.
        sections: in their order.
        numbers: of the figures, by section; the content of ``numbers.json``.
    """

    lead: str
    facts: list[Fact]
    sections: list[Section]
    numbers: dict[str, Any]


def _of_operator(
    operator: Any,
    inputs: Tensor,
    domain: Domain | None,
    options: ReportOptions,
) -> Content:
    place = domain
    if place is None:
        place = default_domain(operator, inputs)
    layer = Layer(type(operator).__name__, operator, inputs[: options.samples], place)
    sections, numbers = kernel_sections(View([layer]), options.seed)
    return Content(f"One operator on {inputs.shape[1]} points", [], sections, numbers)


def _of_model(subject: Subject, options: ReportOptions, run: RunFacts) -> Content:
    model = subject.model
    sections = []
    if run.metrics is not None:
        sections.append(curve_section(read_history(run.metrics)))
    # Dropout and running statistics would blur what the operators do.
    with evaluating(model):
        facts, results = result_sections(subject, run)
        learned, numbers = _learned(subject, options)
    facts += _size_facts(model, subject.kind, subject.inputs)
    sections += [*results, *learned]
    if run.recipe:
        text = folded("Show the recipe", words("preformatted", text=run.recipe))
        sections.append(Section("recipe", "Recipe", after=text))

    # A pretrained model may have been chosen for its maps; the page says why it has none.
    lead = _lead(model, subject.kind)
    skipped = numbers["attention"].get("skipped")
    if isinstance(model, Traced) and isinstance(skipped, str):
        lead += f". No attention maps: {skipped}"
    return Content(lead, facts, sections, numbers)


def _learned(subject: Subject, options: ReportOptions) -> tuple[list[Section], Numbers]:
    """Return the sections on kernels, attention maps and steps: what a model's operators do with
    some samples; and the numbers of each.
    """
    count = len(subject.inputs)
    kind = subject.kind
    chosen = choose_samples(count, options.samples, options.seed, options.picture)
    layers = trace_layers(subject, chosen)
    image = None
    if subject.things is not None and kind.pictured:
        image = subject.things[chosen[0]]

    view = View(layers, image, kind, subject.axis(chosen[0]))
    pretrained = isinstance(subject.model, Traced)
    sections: list[Section] = []
    numbers: dict[str, dict[str, Any]] = {}
    if layers and pretrained:
        # Its value matrices are large; report_module makes a page of each of its layers.
        maps, numbers["maps"] = map_section(view)
        sections = _present(maps)
    elif layers:
        sections, numbers = kernel_sections(view, options.seed)

    quality, numbers["attention"] = quality_sections(subject, layers, options)
    steps, numbers["steps"] = evolution_section(
        subject.model,
        subject.inputs[chosen],
        seed=options.seed,
    )
    if pretrained:
        # The first question is where it looks.
        return [*quality, *sections, *_present(steps)], numbers
    return [*sections, *quality, *_present(steps)], numbers


def kernel_sections(view: View, seed: int, queries: int = 32) -> tuple[list[Section], Numbers]:
    """Return the sections about what the operators of some layers learned, and their numbers.

    Args:
        seed: of all that is drawn at random.
        queries: query points of a signal from which the profile is read.
    """
    profile, profiles = profile_section(view, seed=seed, queries=queries)
    share, shares = share_section(view, seed=seed)
    maps, weights = map_section(view)
    explorer = explore_section(view)
    numbers = {
        "profile": profiles,
        "variance": shares,
        "maps": weights,
    }
    return _present(explorer, maps, profile, share), numbers


def _present(*sections: Section | None) -> list[Section]:
    return [section for section in sections if section is not None]


# --- parts ----------------------------------------------------------------------------------------


def _unwrapped(model: Any) -> Any:
    if isinstance(model, Traced):
        return model.model
    return model


def _size_facts(model: Any, kind: Kind, inputs: Any) -> list[Fact]:
    """Return the number of parameters, and the work per sample where its shape determines it."""
    from ...models.counting import UNCOUNTED, count

    size = parameter_fact(model)
    if not isinstance(inputs, Tensor):
        return [size]
    try:
        _, flops = count(_unwrapped(model), (1, *inputs.shape[1:]))
    except UNCOUNTED:
        return [size]
    note = f"matrix products and transforms at {kind.size(inputs)}"
    return [size, Fact(f"FLOPs per {kind.one}", units(flops), note)]


def parameter_fact(model: nn.Module) -> Fact:
    """Return the number of a module's parameters."""
    count = sum(parameter.numel() for parameter in model.parameters())
    return Fact("Parameters", units(count), f"{count:,}")


def _lead(model: Any, kind: Kind) -> str:
    """Return a line about the architecture of a model."""
    if isinstance(model, Traced):
        layers = plural(len(model.paths), "layer")
        return f"{type(model.model).__name__}, {layers} of softmax attention"
    if not isinstance(model, Model):
        return type(model).__name__

    body = cast(Any, model.config.body)
    name = f"{body.kind} model"
    operator = getattr(body, "operator", None)
    if operator:
        name += f" with the {operator} operator"
    depth = getattr(body, "depth", None)
    if depth is None:
        return name

    layers = plural(depth, "layer")
    heads = getattr(body, "heads", None)
    if heads:
        layers += f" of {heads} heads"
    return f"{name}: {layers}, width {body.width}, {kind.made_of(model.config.encoder)}"


def units(number: int) -> str:
    """Return a count with three significant digits and the prefix k, M, G or T; below 1,000 as it
    is.

    Example:
        >>> units(999), units(1234), units(5_600_000), units(999_600)
        ('999', '1.23 k', '5.6 M', '1 M')
    """
    if number < 1000:
        return str(number)
    # Rounded first: 999,600 has the prefix of 1,000,000.
    rounded = float(f"{number:.3g}")
    prefixes = (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")
    factor, prefix = next(pair for pair in prefixes if rounded >= pair[0])
    return f"{rounded / factor:.3g} {prefix}"


def write_report(
    folder: Path,
    heading: str,
    content: Content,
    seed: int,
) -> Path:
    """Write pictures and numbers first, and the page last and in one step, so that a page that
    exists is complete. Return its path.
    """
    foot = (
        f"Written by fredholm explain; {NUMBERS} beside this page has the numbers of all figures. "
        f"Seed {seed}."
    )
    page = render_page(heading, content.lead, content.facts, content.sections, foot)
    folder.mkdir(parents=True, exist_ok=True)
    for section in content.sections:
        for picture in section.pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png["light"])
    numbers: Mapping[str, Any] = {
        "title": heading,
        "seed": seed,
        **content.numbers,
    }
    (folder / NUMBERS).write_text(json.dumps(plain(numbers), indent=1) + "\n", encoding="utf-8")
    return write_text(folder / PAGE, page)
