"""Tables of objects for notebooks: Jupyter shows them in place of ``repr``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from html import escape

from torch import Tensor, nn


class NotebookTable:
    """A mixin for dataclasses and modules: a table of what the object holds, above its ``repr``.

    Only shapes and dtypes of tensors are read, never their values, so that a table costs the same
    for any number of points, on any device.

    Example:
        >>> from fredholm import Domain
        >>> Domain.grid(2, 3)._repr_html_()[:31]
        '<table><caption>Domain</caption'
    """

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Return a table in HTML, in which all text is escaped."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in _rows(self)
        )
        title = escape(type(self).__name__)
        details = f"<details><summary>repr</summary><pre>{escape(repr(self))}</pre></details>"
        return f"<table><caption>{title}</caption>{rows}</table>{details}"


def _rows(shown: object) -> Iterator[tuple[str, str]]:
    """Yield the rows of the table: name and value."""
    if isinstance(shown, nn.Module):
        yield from _rows_of_module(shown)
    elif dataclasses.is_dataclass(shown):
        yield from _rows_of_fields(shown)


def _rows_of_module(module: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the options, the parameters and the parts of a module."""
    yield "options", module.extra_repr()

    trained, fixed = 0, 0
    for parameter in module.parameters():
        if parameter.requires_grad:
            trained += parameter.numel()
        else:
            fixed += parameter.numel()
    parameters = f"{trained:,}"
    if fixed:
        parameters += f" trained, {fixed:,} fixed"
    yield "parameters", parameters

    for name, part in module.named_children():
        yield name, type(part).__name__


def _rows_of_fields(record: object) -> Iterator[tuple[str, str]]:
    """Yield the fields of a dataclass that are set, neither None, False nor empty."""
    for field in dataclasses.fields(record):  # pyright: ignore[reportArgumentType]
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            sizes = " × ".join(map(str, value.shape))
            yield field.name, f"{sizes}, {value.dtype}".replace("torch.", "")
        elif value is not None and value is not False and value != "":
            yield field.name, str(value)
