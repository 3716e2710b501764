"""The interactive figure: its numbers, its policy, and its use with keyboard and mouse."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fredholm import Domain, as_operator, create_operator
from fredholm.errors import OptionError, ShapeError
from fredholm.explain import ReportOptions, Samples, explore, kernel_map, report
from fredholm.lab.report.layers import PLAIN, Axis, Layer, View
from fredholm.lab.report.maps.explore import explore_section, quantised
from fredholm.lab.report.maps.queries import map_section
from fredholm.lab.report.page import Section, render_page

from .chromium import BROWSER, open_page
from .conftest import MEAN, STD, tiny_images, tiny_model
from .devtools import opened
from .known import GRID, POSITION

browser = pytest.mark.skipif(
    BROWSER is None, reason="no Chromium on this machine: apt-get install chromium"
)


def kernel_of(text):
    """Return the data of a page's figure."""
    found = re.search(r'data-kernel="([^"]*)"', text)
    assert found
    kernel = json.loads(html.unescape(found[1]))
    count = len(kernel["names"])
    shape = len(kernel["layers"]), kernel["heads"], count, count
    encoded = np.frombuffer(base64.b64decode(kernel["weights"]), np.int8).reshape(shape)
    scales = np.array(kernel["scales"]).reshape(*shape[:3], 1)
    return kernel, encoded / 127 * scales


@pytest.fixture(scope="module")
def explored(tmp_path_factory):
    """Return a page of pictures, and the input of the first layer for its sample."""
    from fredholm.lab.report import style

    model = tiny_model("softmax")
    folder = tmp_path_factory.mktemp("explored")
    images, _ = tiny_images()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "THEMES", (style.LIGHT,))
        page = report(
            model,
            Samples(images, mean=MEAN, std=STD),
            out_dir=folder,
            options=ReportOptions(samples=4, picture=5, quality=0),
        )
    normal = (images[5:6] / 255 - MEAN[0]) / STD[0]
    return page, model.trace(normal)


def test_the_figure_contains_every_row_of_the_kernel(explored):
    page, layers = explored
    kernel, weights = kernel_of(page.read_text("utf-8"))
    assert kernel["layers"] == ["layer 1", "layer 2"]
    assert (kernel["layout"], kernel["columns"], len(kernel["places"])) == ("grid", 4, 16)
    for place, (operator, u, domain) in enumerate(layers):
        expected = kernel_map(operator, u, domain, queries=list(range(16)))[0].numpy()
        rounding = expected.max(-1, keepdims=True) / 254 + 1e-6
        assert (np.abs(weights[place] - expected) <= rounding).all()


def test_the_policy_allows_this_script_and_nothing_else(explored):
    text = explored[0].read_text("utf-8")
    policy = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.S)
    assert len(policy) == len(scripts) == text.count("<script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    expected = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    assert html.unescape(policy[0]) == f"{expected}script-src 'sha256-{digest}'"
    for word in ("eval", "Function(", "fetch", "XMLHttp", "import", "innerHTML", "http"):
        assert word not in scripts[0]
    assert not re.search(r"\son\w+=", text), "no handler beside the script"
    plain = render_page("t", "l", [], [Section("a", "A")], "f")
    assert "<script" not in plain
    assert "script-src" not in plain


def test_the_documentation_of_security_names_the_policy():
    said = " ".join((Path(__file__).parents[2] / "docs" / "security.md").read_text().split())
    for part in ("`default-src 'none'`", "`script-src 'sha256-…'`", "`templates/explore.js`"):
        assert part in said
    assert "beside which it allows none" in said


def section_of(domain, axis=PLAIN, dim=8):
    operator = create_operator("softmax", dim, heads=2)
    layer = Layer("one", operator, torch.randn(2, domain.size, dim), domain)
    return explore_section(View([layer], axis=axis))


def test_points_are_laid_out_at_their_positions():
    words = section_of(Domain.line(5), Axis(("<a>", "b", "c", "d", "e"), "text"))
    line = section_of(Domain.line(6), Axis((), "seconds", 12.0))
    cloud = section_of(Domain.points(torch.rand(1, 9, 3)))
    found = [json.loads(section.explorer["kernel"]) for section in (words, line, cloud)]
    assert [each["layout"] for each in found] == ["words", "line", "points"]
    assert found[0]["names"] == ["<a>", "b", "c", "d", "e"]
    assert found[1]["names"][1] == "point 2, at 2"
    assert np.array(found[2]["places"]).min() >= 0
    assert np.array(found[2]["places"]).max() <= 1
    page = render_page("t", "l", [], [words], "f")
    assert "<a>" not in page
    assert section_of(Domain.points(torch.rand(1, 9, 4))) is None, "four coordinates"
    assert section_of(Domain.line(2000)) is None, "too many to point at"


def test_padding_cannot_be_selected():
    valid = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
    domain = Domain.line(7).replace(valid=valid)
    assert len(json.loads(section_of(domain).explorer["kernel"])["names"]) == 4


def test_the_figure_opens_at_a_real_point():
    valid = torch.tensor([[True, True, True, False, False, False, True]])
    domain = Domain.line(7).replace(valid=valid)
    section = section_of(domain, Axis(tuple("abcdefg"), "column"))
    assert json.loads(section.explorer["kernel"])["query"] == 2


def test_queries_are_counted_up_to_the_last_real_point():
    """Gaps count, padding at the end does not: no query is "7 of 4"."""
    valid = torch.tensor([[True, True, True, False, False, False, True, False]])
    domain = Domain.line(8).replace(valid=valid)
    layer = Layer("one", create_operator("softmax", 8, heads=2), torch.randn(1, 8, 8), domain)
    section, _ = map_section(View([layer], axis=Axis(tuple("abcdefgh"), "column")))
    captions = [picture.caption for picture in section.pictures]
    assert "1 of 7." in captions[0]
    assert "7 of 7." in captions[-1] or "3 of 7." in captions[-1]


def test_weights_are_rounded_to_two_digits_with_sign():
    weights = torch.randn(3, 4, 50, dtype=torch.float64)
    encoded, scales = quantised(weights)
    again = torch.from_numpy(encoded).double() / 127 * scales[..., None]
    assert ((again - weights).abs() <= scales[..., None] / 254 + 1e-9).all()
    assert quantised(torch.zeros(2, 3))[0].tolist() == [[0] * 3] * 2


@browser
@pytest.mark.slow
@pytest.mark.chromium
def test_keyboard_and_mouse_select_queries_layers_and_heads(explored, tmp_path):
    page, _ = explored
    kernel, weights = kernel_of(page.read_text("utf-8"))
    read = "[...document.querySelectorAll('.point')].map(p => +p.style.getPropertyValue('--w'))"
    told = "document.querySelector('.told').textContent"
    focused = "document.activeElement.name || document.activeElement.className"

    def shows(tab, layer, head, query):
        row = np.abs(weights[layer, head, query])
        np.testing.assert_allclose(tab.value(read), row / row.max(), atol=1e-3)
        assert tab.value(told).startswith(f"{kernel['names'][query]} takes most from ")
        most = kernel["names"][int(row.argmax())]
        assert most in tab.value(told)

    with opened(page, tmp_path) as tab:
        assert tab.value("document.querySelector('.explore').hidden") is False
        shows(tab, 0, 0, 10)
        tab.value("document.querySelector('[name=layer]').focus()")
        tab.press("ArrowRight")
        shows(tab, 1, 0, 10)
        assert tab.value("document.querySelector('output').textContent") == "layer 2"
        tab.press("Tab")
        assert tab.value(focused) == "head"
        tab.press("ArrowRight")
        shows(tab, 1, 1, 10)
        tab.press("Tab")
        assert "point" in tab.value(focused)
        tab.press("ArrowRight")
        shows(tab, 1, 1, 11)
        tab.press("ArrowDown")
        shows(tab, 1, 1, 15)
        tab.press("ArrowDown")
        shows(tab, 1, 1, 15)
        tab.press("Home")
        shows(tab, 1, 1, 0)
        tab.press("End")
        shows(tab, 1, 1, 15)
        tab.point_at(".point", 6)
        shows(tab, 1, 1, 6)
        # The policy blocks a script that is added to the page.
        tab.value(
            "{ const s = document.createElement('script'); s.textContent = 'window.ran = 1';"
            " document.body.append(s); }"
        )
        assert tab.value("window.ran") is None
        entries = [entry["entry"]["text"] for entry in tab.log if "entry" in entry]
        assert len(entries) == len(tab.log) == 1
        assert "Content Security Policy" in entries[0]


@browser
@pytest.mark.chromium
@pytest.mark.parametrize("width", [1280, 500])
def test_the_figure_fits_its_page(explored, tmp_path, width):
    found, console = open_page(explored[0], tmp_path, width=width)
    assert console == []
    assert found["overflow"] == "false"


def test_nodes_without_positions_are_laid_out_as_a_graph():
    nodes = torch.arange(12)
    ring = torch.stack([nodes, (nodes + 1) % 12])
    section = section_of(Domain.graph(torch.cat([ring, ring.flip(0)], 1), 12, sparse=True))
    kernel = json.loads(section.explorer["kernel"])
    assert (kernel["layout"], kernel["names"][:2]) == ("points", ["point 1", "point 2"])
    places = torch.tensor(kernel["places"])
    apart = torch.cdist(places, places)
    along = apart[nodes, (nodes + 1) % 12]
    assert float(along.min()) > 0
    assert float(along.max()) < float(apart.median())


def test_a_figure_can_be_embedded_in_another_page(tmp_path):
    """In its own frame, with its own policy and layers on different domains."""
    layers = {"conv": torch.nn.Conv1d(4, 4, 3, padding=1), "gru": torch.nn.GRU(4, 4)}
    operators = {name: as_operator(layer) for name, layer in layers.items()}
    u = torch.randn(1, 6, 4)
    names = list("abcdef")
    figure = explore(operators, u, names=names)
    kernel, weights = kernel_of(figure.page)
    assert (kernel["layers"], kernel["names"]) == (list(operators), names)
    for place, operator in enumerate(operators.values()):
        domain = operator.default_domain(u)
        expected = kernel_map(operator, u, domain, queries=list(range(6)))[0].detach().numpy()
        assert np.abs(weights[place] - expected).max() <= expected.max() / 254 + 1e-6

    framed = re.fullmatch(r"<iframe title=.* srcdoc=\"(.*)\"></iframe>", figure._repr_html_(), re.S)
    assert framed
    assert html.unescape(framed[1]) == figure.page
    assert figure.page.count("<script") == 1
    assert figure.save(tmp_path / "kernels.html").read_text("utf-8") == figure.page


def test_a_figure_of_points_that_cannot_be_drawn_is_refused():
    operator = create_operator("softmax", 4)
    with pytest.raises(OptionError, match="2 to 600 points"):
        explore(operator, torch.randn(1, 601, 4))
    with pytest.raises(ShapeError, match="expected 5 names, one per point, got 2"):
        explore(operator, torch.randn(1, 5, 4), names=["a", "b"])
    with pytest.raises(OptionError, match="expected one operator or more"):
        explore({}, torch.randn(1, 5, 4))


def test_objects_other_than_operators_are_refused():
    operator = create_operator("softmax", 4)
    u = torch.randn(1, 5, 4)
    with pytest.raises(OptionError, match=r"dictionary of operators by name, got list; name each"):
        explore([operator], u)
    with pytest.raises(OptionError, match=r"operator for 'gru', got GRU; fredholm\.as_operator"):
        explore({"one": operator, "gru": torch.nn.GRU(4, 4)}, u)
    with pytest.raises(OptionError, match=r"dictionary of operators by name, got Linear"):
        explore(torch.nn.Linear(4, 4), u)


def test_any_operator_with_the_contract_can_be_explored():
    u = torch.randn(1, 25, 1)
    kernel, weights = kernel_of(explore(POSITION, u, GRID).page)
    assert (kernel["layers"], kernel["layout"]) == (["KnownOperator"], "grid")
    expected = kernel_map(POSITION, u, GRID, queries=list(range(25)))[0].numpy()
    assert np.abs(weights[0] - expected).max() <= expected.max() / 254 + 1e-6


@browser
def test_a_figure_in_a_frame_responds_to_keys(tmp_path):
    figure = explore(create_operator("softmax", 4), torch.randn(1, 5, 4), names=list("abcde"))
    page = tmp_path / "outer.html"
    page.write_text(f"<!doctype html><meta charset=utf-8><body>{figure._repr_html_()}")
    with opened(page, tmp_path / "profile") as tab:
        inner = "document.querySelector('iframe').contentDocument"
        assert tab.value(f"{inner}.querySelector('.explore').hidden") is False
        tab.value(f"{inner}.querySelector('[tabindex=\"0\"]').focus()")
        tab.press("End")
        assert tab.value(f"{inner}.querySelector('.told').textContent").startswith("e takes most")
        assert not tab.log
