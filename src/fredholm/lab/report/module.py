"""The report of one classical layer: what it computes, as an integral operator on its inputs inside
its model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
from ..data.kinds.images import IMAGES
from ..data.kinds.kind import SAMPLES
from .layers import Layer, View, first_sample
from .page import Fact, Section, words
from .report import Content, kernel_sections, parameter_fact, write_report
from .sources import home_of, load_inputs, load_model

# Kernel entries read for one picture.
WORK = 2**29

# Query points from which the profile is read, at most.
QUERIES = 16

# Signals that the share of content needs.
FEWEST = 3


def report_module(
    model: nn.Module,
    path: str,
    inputs: Any,
    out_dir: str | Path,
    *,
    samples: int = 8,
    seed: int = 0,
    title: str | None = None,
    source: str = "",
    **options: Any,
) -> Path:
    r"""Write the kernel report of one layer of any model, through :func:`fredholm.as_operator`;
    return the page's path.

    The model runs once in evaluation mode, and the layer's inputs and outputs are recorded. The
    converted layer must answer the same; the page states the difference, for the fast form and for
    the explicit kernel.

    Args:
        model: any ``nn.Module``; parameters are shared, nothing is changed.
        path: of the layer, as ``model.named_modules()`` has it: ``"layer1.0.conv1"``.
        inputs: what the model takes: a tensor, a sequence of arguments, or a dictionary of keyword
            arguments.
        out_dir: a folder for ``index.html``, its PNGs and ``numbers.json``.
        samples: signals that are read, at most, the first of the batch; the share of content needs
            three. All are compared, and where the kernel is large fewer (at least three) are drawn,
            from fewer queries.
        seed: of all that is drawn at random.
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
    if samples < 1:
        raise OptionError(f"a report needs at least one sample, got samples={samples}")
    if isinstance(find_layer(model, path), IntegralOperator):
        raise OptionError(
            f"{path} is an operator already; fredholm.explain.report shows it, or fredholm explain "
            "RUN"
        )
    with evaluating(model):
        converted = _convert(model, path, inputs, samples, options)
        view = converted.view()
        count = max(1, min(QUERIES, WORK // (converted.row * len(view.layers[0].u))))
        sections, numbers = kernel_sections(view, seed, count)
        sections = [_identity(converted, options), *sections]
        facts = _facts(converted)
    if converted.call.grid is not None:
        # The maps are laid over the size of the layer's input, which a note says.
        for index, section in enumerate(sections):
            if section.key == "maps":
                text = section.text + words("layer_note")
                sections[index] = replace(section, text=text)

    kind = type(converted.layer).__name__
    lead = f"{kind} of {type(model).__name__}"
    if source:
        lead += f" from {source}"
    known = {
        "module": path,
        "class": kind,
        "error": converted.error,
        "kernel error": converted.kernel_error,
    }
    content = Content(f"{lead}, as an integral operator", facts, sections, known | numbers)
    return write_report(Path(out_dir), title or path, content, seed)


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
    """Write :func:`report_module` for a named model, as ``fredholm explain SOURCE --module PATH``
    does.

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
        model,
        inputs=inputs,
        data=data,
        shape=shape,
        samples=samples,
        seed=seed,
    )
    return report_module(
        model,
        path,
        given,
        out_dir or home_of(source) / f"report-{path}",
        samples=samples,
        seed=seed,
        source=f"{source}; {phrase}",
    )


@dataclass(frozen=True, eq=False)
class _Converted:
    """A layer of a model and the operator that computes the same.

    Attributes:
        call: the layer's inputs and outputs, for the first samples.
        domain: of all of them.
        error: of the operator, the largest difference over the largest output.
        kernel_error: the same of the explicit kernel, see :func:`check_kernel`.
    """

    path: str
    layer: nn.Module
    operator: IntegralOperator
    call: Call
    domain: Domain
    error: float
    kernel_error: float | None

    @property
    def row(self) -> int:
        """Return the number of kernel entries of one query."""
        kernel = self.operator.kernel
        return self.operator.heads * kernel.d_out * kernel.d_in * self.domain.size

    def view(self) -> View:
        """Return the layer with as many signals as fit the work, on a grid with its input."""
        samples = slice(0, max(FEWEST, WORK // (8 * self.row)))
        u = self.call.u[samples]
        layer = Layer(self.path, self.operator, u, take_samples(self.domain, samples))
        image = _picture(layer)
        kind = SAMPLES
        if image is not None:
            kind = IMAGES
        return View([layer], image, kind)


def _convert(
    model: nn.Module,
    path: str,
    inputs: Any,
    samples: int,
    options: Mapping[str, Any],
) -> _Converted:
    """Convert a layer of a model and compare the operator with it."""
    layer = find_layer(model, path)
    operator = None
    pools = type(layer).__module__.endswith(".pooling") and "dim" not in options
    if not pools:
        # A layer that cannot be converted is refused before the model runs.
        operator = as_operator(layer, **options)
    call = capture(model, path, inputs).first(samples)
    if operator is None:
        # Only its inputs tell how many channels a pooling layer has.
        operator = as_operator(layer, dim=call.u.shape[-1], **options)
    domain = call.domain(operator.kernel)
    error = check_output(operator, call, domain, path)
    kernel_error = check_kernel(operator, call, domain)
    return _Converted(path, layer, operator, call, domain, error, kernel_error)


@torch.no_grad()
def check_kernel(operator: IntegralOperator, call: Call, domain: Domain) -> float | None:
    """Return the difference between a layer and the explicit kernel, K and offset, on one sample,
    over the largest output; None where the kernel does not fit in memory.
    """
    kernel = operator.kernel
    target = output_points(operator, domain)
    entries = operator.heads * kernel.d_out * kernel.d_in * domain.size * target.size
    if entries * call.u.element_size() > 2 * BUDGET:
        return None
    first = call.first(1)
    answer = operator.dense(first.u, first_sample(domain))
    return difference(answer, first.output, first.valid)


def _picture(layer: Layer) -> np.ndarray | None:
    """Return the size of the layer's first input over its grid, (rows, columns, 1) in [0, 1]."""
    grid = image_grid(layer.domain)
    if grid is None:
        return None
    size = layer.u[0].detach().double().cpu().norm(dim=-1)[grid]
    low = size.min()
    high = size.max()
    return ((size - low) / (high - low).clamp(min=1e-12))[..., None].numpy()


def _facts(converted: _Converted) -> list[Fact]:
    """Return the numbers at the top of the page: how exactly the operator reproduces the layer, and
    its points, features and parameters.

    Both errors are the largest difference over the largest output: that of the operator by its
    usual form, over all samples, and that of the explicit kernel, on the first sample. A layer that
    changes the grid, such as a convolution with stride, has other points at its output.
    """
    operator = converted.operator
    call = converted.call
    domain = converted.domain
    explicit = "not formed"
    note = "too large to hold at once"
    if converted.kernel_error is not None:
        explicit = _tiny(converted.kernel_error)
        note = "of sample 1"

    target = output_points(operator, domain)
    points = str(domain.size)
    where = "in and out"
    if call.grid:
        points = " × ".join(str(extent) for extent in call.grid)
    if target is not domain:
        where = f"in; {target.size} out"
    heads = f"{operator.heads} heads" if operator.heads > 1 else "1 head"
    compared = f"largest difference over largest output, {len(call.u)} samples"
    return [
        Fact("Error of the operator", _tiny(converted.error), compared),
        Fact("Error of the explicit kernel", explicit, note),
        Fact("Points", points, where),
        Fact("Features", f"{operator.dim} → {operator.out_dim}", heads),
        parameter_fact(converted.layer),
    ]


def _tiny(error: float) -> str:
    return f"{error:.0e}" if error else "0"


def _identity(converted: _Converted, options: Mapping[str, Any]) -> Section:
    """Return the section on which operator the layer is: the equation, its kernel, its form."""
    layer = converted.layer
    operator = converted.operator
    domain = converted.domain
    kernel = type(operator.kernel)
    # The first line of a docstring, without its formula.
    summary = (kernel.__doc__ or "").strip().partition("\n")[0].partition(":math:")[0]
    order = "causal, " if domain.causal else ""
    where = f"Domain: {order}{domain.kind} measure, positions of dimension {domain.dim}."
    text = words(
        "layer",
        path=converted.path,
        kind=f"{type(layer).__module__}.{type(layer).__name__}",
        kernel=kernel.__name__,
        summary=summary.rstrip(" :."),
        calls=converted.call.calls,
        options=", ".join(f"{name}={value!r}" for name, value in options.items()),
        offset=_has_offset(converted),
        projection=operator.projection is not None,
        plan=f"{where} Evaluated by {operator.plan(domain)}.",
    )
    return Section("identity", "The operator", text)


@torch.no_grad()
def _has_offset(converted: _Converted) -> bool:
    """Whether zero features get another answer than the bias of the output projection."""
    operator = converted.operator
    zero = torch.zeros_like(converted.call.u[:1])
    answer = operator(zero, first_sample(converted.domain))
    if operator.projection is not None and operator.projection.bias is not None:
        answer = answer - operator.projection.bias
    return bool(answer.abs().max() > 1e-12)
