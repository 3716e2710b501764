"""Objects have tables as representations in notebooks."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import fredholm
from fredholm import Domain, as_operator
from fredholm.integral.strategy import Plan


class Table(HTMLParser):
    """The caption, rows and tags of a page; unbalanced tags are an error."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.open[-1], []).append(data)

    @property
    def rows(self) -> dict[str, str]:
        return dict(zip(self.texts["th"], self.texts["td"], strict=True))


def table(shown: object) -> Table:
    return Table(shown._repr_html_())  # pyright: ignore[reportAttributeAccessIssue]


def test_a_domain_shows_its_set_fields():
    shown = table(Domain.grid(2, 3, measure="counting"))
    assert shown.texts["caption"] == ["Domain"]
    assert shown.rows == {
        "positions": "6 × 2, float32",
        "measure": "6, float32",
        "shape": "(2, 3)",
        "kind": "counting",
    }
    assert table(Domain.line(4, causal=True, reach=0)).rows["reach"] == "0"


def test_an_operator_shows_its_options_parameters_and_parts():
    operator = fredholm.LunaAttention(8, heads=2)
    shown, kernel = table(operator).rows, table(operator.kernel).rows
    assert shown["options"] == operator.extra_repr()
    assert shown["parameters"] == f"{sum(p.numel() for p in operator.parameters()):,}"
    assert shown["kernel"] == "LunaKernel"
    assert kernel["options"] == operator.kernel.extra_repr()

    operator.kernel.requires_grad_(False)
    assert re.fullmatch(r"[\d,]+ trained, [\d,]+ fixed", table(operator).rows["parameters"])


def test_a_converted_layer_shows_the_layer():
    operator = as_operator(nn.LSTM(2, 3, batch_first=True))
    assert table(operator.kernel).rows["layer"] == "LSTM"


def test_a_plan_shows_the_form_and_its_reason():
    plan = fredholm.SoftmaxAttention(8, heads=2).plan(Domain.line(4))
    shown = table(plan).rows
    assert shown == {"strategy": plan.strategy, "path": plan.path, "reason": plan.reason}


def test_html_is_escaped():
    shown = table(Plan("<script>", "a & b", "x < 'y'"))
    assert shown.tags == {"table", "caption", "tr", "th", "td", "details", "summary", "pre"}
    assert shown.rows == {"strategy": "<script>", "path": "a & b", "reason": "x < 'y'"}


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_no_value_of_a_tensor_is_read(device):
    # A tensor of the meta device has none.
    valid = torch.ones(2, 6, dtype=torch.bool, device=device)
    domain = Domain.line(6, device=device, valid=valid)
    assert table(domain).rows["valid"] == "2 × 6, bool"
