"""The report of one classical layer: what it computes, as an integral operator on what it sees
inside its model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ...convert import as_operator
from ...domain import Domain
from ...errors import OptionError, require
from ...explain.calls import Call, capture, check_output, difference, find_layer
from ...explain.kernels import BUDGET, image_grid, output_points, take_samples
from ...integral import IntegralOperator
from ...modes import evaluating
from . import kernel_plots
from .given import ReportOptions
from .layers import Layer, plain
from .page import Data, Picture, Section, words
from .report import Content, kernel_sections, units, write_report
from .sources import load_inputs, load_model
from .style import render

WORK = 2**29  # kernel entries read for one picture
SHOWN = 12  # entries of a kernel's row that are drawn


def report_module(
    model: nn.Module,
    path: str,
    inputs: Any,
    out_dir: str | Path,
    *,
    samples: int = 8,
    queries: int = 16,
    map_queries: list[int] | None = None,
    seed: int = 0,
    title: str | None = None,
    source: str = "",
    **options: Any,
) -> Path:
    r"""The kernel report of one layer of any model, through :func:`fredholm.as_operator`; returns
    the page's path.

    The model runs once in evaluation mode; what the layer is given and answers is noted. The
    converted layer must answer the same, and the page states the difference, of the fast form and
    of the explicit kernel.

    Args:
        model: any ``nn.Module``; parameters are shared, nothing is changed.
        path: of the layer, as ``model.named_modules()`` has it: ``"layer1.0.conv1"``.
        inputs: what the model takes: a tensor, a sequence of arguments, or a dictionary of keyword
            arguments.
        out_dir: a folder for ``index.html``, its PNGs and ``numbers.json``.
        samples: signals that are read, at most, the first of the batch; the share of content needs
            three. All are compared, and where the kernel is large fewer (at least three) are drawn,
            from fewer queries.
        queries: query points from which the profile is read.
        map_queries: indices of the points whose maps are drawn.
        title, source: heading of the page, and where the model came from.
        options: of :func:`fredholm.as_operator`.

    Raises:
        OptionError: no such layer; the message lists those that can be converted.
        ShapeError: the model does not take these inputs.
        ConversionError: the layer is not understood, was called in a way that is not, or its
            operator answers otherwise.
        MissingExtraError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> model = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1), nn.Flatten())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report_module(model, "0", torch.randn(4, 1, 6), folder).name
        'index.html'
    """
    require("matplotlib", "train", "a report")
    if samples < 1 or queries < 1:
        raise OptionError(
            f"a report needs at least one sample and query, got samples={samples} and "
            f"queries={queries}"
        )
    layer = find_layer(model, path)
    if isinstance(layer, IntegralOperator):
        raise OptionError(
            f"{path} is an operator already; fredholm.explain.report shows it, or fredholm explain "
            "RUN"
        )
    with evaluating(model):
        pools = type(layer).__module__.endswith(".pooling") and "dim" not in options
        operator = (
            None if pools else as_operator(layer, **options)
        )  # refusals come before the model runs
        call = capture(model, path, inputs).first(samples)
        operator = operator or as_operator(layer, dim=call.u.shape[-1], **options)
        domain = call.domain(operator.kernel)
        error = check_output(operator, call, domain, path)
        kernel_error = check_kernel(operator, call, domain)
        row = operator.heads * operator.kernel.d_out * operator.kernel.d_in * domain.size
        read = min(len(call.u), max(3, WORK // (8 * row)))
        result = Layer(path, operator, call.u[:read], take_samples(domain, slice(0, read)))
        count = max(1, min(queries, WORK // (row * read)))
        look = ReportOptions(samples, count, map_queries, seed=seed)
        sections, numbers = kernel_sections([result], _picture(result), look)
        entries, numbers["entries"] = entry_section(result)
        sections = [
            replace(s, text=s.text + words("layer_note")) if s.key == "maps" and call.grid else s
            for s in sections
        ]
        sections = [_identity(path, layer, operator, call, domain, options), *sections]
        sections += [entries] if entries else []
    kind = type(layer).__name__
    numbers = {
        "module": path,
        "class": kind,
        "error": error,
        "kernel error": kernel_error,
        **numbers,
    }
    head = _head(layer, operator, call, domain, error, kernel_error)
    lead = f"{kind} of {type(model).__name__}{f' from {source}' if source else ''}, as an integral operator"
    return write_report(Path(out_dir), title or path, Content(lead, head, sections, numbers), seed)


def explain_module(
    source: str,
    path: str,
    out_dir: str | Path | None = None,
    *,
    state: str | Path | None = None,
    inputs: str | Path | None = None,
    data: str | None = None,
    shape: tuple[int, ...] | None = None,
    samples: int = 8,
    seed: int = 0,
) -> Path:
    """:func:`report_module` of a model that is named: ``fredholm explain SOURCE --module PATH``.

    Args:
        source, state: see :func:`fredholm.lab.report.sources.load_model`.
        path: of the layer.
        out_dir: by default ``report-PATH`` in the run's or model's folder, else in the working
            directory.
        inputs, data, shape: see :func:`fredholm.lab.report.sources.load_inputs`.
        samples, seed: see :func:`report_module`; the seed also draws random inputs.
    """
    model = load_model(source, state)
    given, phrase = load_inputs(
        model, inputs=inputs, data=data, shape=shape, samples=samples, seed=seed
    )
    home = Path(source).expanduser() if Path(source).expanduser().is_dir() else Path()
    return report_module(
        model,
        path,
        given,
        out_dir or home / f"report-{path}",
        samples=samples,
        seed=seed,
        source=f"{source}; {phrase}",
    )


@torch.no_grad()
def check_kernel(operator: IntegralOperator, call: Call, domain: Domain) -> float | None:
    """The same difference for the explicit kernel, K and offset, on one sample; None where it does
    not fit in memory.
    """
    kernel, target = operator.kernel, output_points(operator, domain)
    entries = operator.heads * kernel.d_out * kernel.d_in * domain.size * target.size
    if entries * call.u.element_size() > 2 * BUDGET:
        return None
    answer = operator.dense(call.u[:1], take_samples(domain, slice(0, 1)))
    return difference(answer, call.output[:1], None if call.valid is None else call.valid[:1])


# --- parts ----------------------------------------------------------------------------------------


def _picture(layer: Layer) -> np.ndarray | None:
    """The size of the layer's first input over its grid, in [0, 1]."""
    grid = image_grid(layer.domain)
    if grid is None:
        return None
    size = layer.u[0].detach().double().cpu().norm(dim=-1)[grid]
    low, high = size.min(), size.max()
    return ((size - low) / (high - low).clamp(min=1e-12))[..., None].numpy()


def _head(layer, operator, call, domain, error, kernel_error) -> list[tuple[str, str, str]]:
    points = " × ".join(str(n) for n in call.grid) if call.grid else str(domain.size)
    target = output_points(operator, domain)
    single = f"largest difference over largest output, {len(call.u)} samples"
    explicit = "not formed" if kernel_error is None else _tiny(kernel_error)
    note = "too large to hold at once" if kernel_error is None else "of sample 1"
    parameters = sum(p.numel() for p in layer.parameters())
    return [
        ("Error of the operator", _tiny(error), single),
        ("Error of the explicit kernel", explicit, note),
        ("Points", points, "in and out" if target is domain else f"in; {target.size} out"),
        (
            "Features",
            f"{operator.dim} → {operator.out_dim}",
            f"{operator.heads} head{'s' * (operator.heads > 1)}",
        ),
        ("Parameters", units(parameters), f"{parameters:,}"),
    ]


def _tiny(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def _identity(path, layer, operator, call, domain, options) -> Section:
    """Which operator the layer is: the equation, its kernel, how it is evaluated."""
    kernel = operator.kernel
    summary = (
        (type(kernel).__doc__ or "").strip().split("\n", 1)[0].split(":math:")[0].rstrip(" :.")
    )
    plan = operator.plan(domain)
    order = "causal, " if domain.causal else ""
    where = f"Domain: {order}{domain.kind} measure, positions of dimension {domain.dim}."
    text = words(
        "layer",
        path=path,
        kind=f"{type(layer).__module__}.{type(layer).__name__}",
        kernel=type(kernel).__name__,
        summary=summary,
        calls=call.calls,
        options=", ".join(f"{k}={v!r}" for k, v in options.items()),
        offset=_affine(operator, call, domain),
        projection=operator.projection is not None,
        plan=f"{where} Evaluated by {plan}.",
    )
    return Section("identity", "The operator", text)


@torch.no_grad()
def _affine(operator: IntegralOperator, call: Call, domain: Domain) -> bool:
    """Whether zero features are answered with something else than zero."""
    answer = operator(torch.zeros_like(call.u[:1]), take_samples(domain, slice(0, 1)))
    bias = None if operator.projection is None else operator.projection.bias
    return bool((answer - (0 if bias is None else bias)).abs().max() > 1e-12)


# --- entries of the kernel ------------------------------------------------------------------------


def entry_section(layer: Layer) -> tuple[Section | None, dict[str, Any]]:
    """The strongest entries K[o, i] of the middle query, each over the domain with its sign, for
    the first sample.

    Nothing where the domain is neither a line nor a grid.
    """
    target, grid = output_points(layer.operator, layer.domain), image_grid(layer.domain)
    if grid is None and layer.domain.dim > 1:
        return None, {}
    query = _middle(target)
    domain = take_samples(layer.domain, slice(0, 1))
    with torch.no_grad():
        row = (
            layer.operator.kernel_matrix(layer.u[:1], domain, rows=[query])[0, :, 0].double().cpu()
        )
        weights = domain.quadrature(
            None if target is layer.domain else take_samples(target, slice(0, 1))
        )
        mass = weights.weights([query])[0, :, 0].double().cpu()
    entries = (
        row * mass[..., None, None]
    )  # (H, N, o, i): what one unit of u_i at y adds to output o
    size = entries.pow(2).sum(1).flatten()
    chosen = size.topk(min(SHOWN, len(size))).indices[: max(1, int((size > 0).sum()))]
    heads, outputs, inputs = row.shape[0], row.shape[2], row.shape[3]
    names, values = [], []
    for index in chosen.tolist():
        head, o, i = index // (outputs * inputs), index // inputs % outputs, index % inputs
        names.append(f"{i + 1} → {o + 1}" + (f", head {head + 1}" if heads > 1 else ""))
        values.append(entries[head, :, o, i].numpy())
    share = float(size[chosen].sum() / size.sum().clamp(min=1e-300))
    at = target.positions.reshape(-1, target.size, target.dim)[0, query].double().cpu().numpy()
    place = domain.positions.reshape(-1, domain.size, domain.dim)[0, :, 0].double().cpu().numpy()
    if grid is None:
        drawn = render(lambda theme: kernel_plots.entry_lines(theme, names, values, place, at[0]))
    else:
        over = [value[grid.numpy()] for value in values]
        drawn = render(lambda theme: kernel_plots.entry_maps(theme, names, over, at))
    facts = {"chosen": len(chosen), "count": f"{len(size):,}", "query": query}
    shown = words("entries_caption", **facts, share=f"{share:.0%}", grid=grid is not None)
    alt = f"Signed entries of one kernel row: {', '.join(names)}"
    rows = [[i, *line] for i, line in enumerate(zip(*(v.tolist() for v in values)))]
    picture = Picture("entries", alt, shown, drawn, Data(["point", *names], rows))
    numbers = {
        "query": query,
        "entries": dict(zip(names, (plain(torch.from_numpy(v)) for v in values))),
    }
    return Section("entries", "Entries of the kernel", words("entries"), [picture]), numbers


def _middle(domain: Any) -> int:
    x = domain.positions.reshape(-1, domain.size, domain.dim)[0].double().cpu()
    if domain.dim == 1 and domain.causal:
        return domain.size - 1  # the last point sees everything
    return int((x - (x.amin(0) + x.amax(0)) / 2).norm(dim=-1).argmin())
