"""The page: all pictures, self-contained, right numbers, and errors that help."""

from __future__ import annotations

import ast
import base64
import csv
import inspect
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from evidence.itnet import two_streams  # noqa: F401  registers the body

from fredholm import Domain, create_operator, explain
from fredholm.convert import as_operator
from fredholm.data import Graph, GraphDataset
from fredholm.encoders import Inputs
from fredholm.errors import (
    CheckpointError,
    DataError,
    FredholmError,
    MissingExtraError,
    OptionError,
    ShapeError,
)
from fredholm.explain import ReportOptions, RunFacts, Samples, kernel_map, report, report_run
from fredholm.lab.data.kinds.images import prepare_pictures
from fredholm.lab.data.kinds.kind import SAMPLES
from fredholm.lab.report.attention.draw import draw_removals
from fredholm.lab.report.examples.samples import draw_examples
from fredholm.lab.report.examples.texts import Answer
from fredholm.lab.report.maps import draw
from fredholm.lab.report.report import _size_facts
from fredholm.lab.report.results.curves import draw_curves
from fredholm.lab.report.style import ALONE, LIGHT, NARROW, panels
from fredholm.models import create_model
from tests.parts import parts

from .conftest import CLASSES, HISTORY, MEAN, STD, tiny_images, tiny_model
from .known import GRID, POSITION

KERNELS = ReportOptions(quality=0)  # attention quality has tests of its own
QUALITY = {"overlays", "removal", "alignment"}
PICTURES = {
    "curves",
    "profile",
    "shares",
    "map-1",
    "map-2",
    "map-3",
    "confusion",
    "wrong",
    "right",
} | QUALITY


class Reader(HTMLParser):
    """Tags that stay open, and every address the page names."""

    VOID = ("meta", "img", "source", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.alt, self.text = [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)
        values = dict(attrs)
        self.addresses += [values[key] for key in ("src", "srcset", "href") if key in values]
        self.alt += [values.get("alt", "")] if tag == "img" else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1:] not in (["style"], ["script"]):  # nobody reads these
            self.text += data


def test_page_has_all_pictures_inside_and_beside(page):
    text = page.read_text(encoding="utf-8")
    reader = Reader(text)
    assert reader.open == []
    figures = re.findall(r'<figure id="([\w-]+)"', text)
    assert set(figures) == PICTURES
    for name in figures:
        beside = (page.parent / f"{name}.png").read_bytes()
        assert beside.startswith(b"\x89PNG")
        assert base64.b64encode(beside).decode() in text
    assert len(reader.alt) == len(figures) + 1  # the interactive figure has a picture too
    assert all(len(alt) > 20 for alt in reader.alt)


def test_page_loads_nothing_and_runs_one_script(page):
    text = page.read_text(encoding="utf-8")
    allowed = ("data:image/png;base64,", "data:text/csv;charset=utf-8;base64,", "#")
    assert all(a.startswith(allowed) for a in Reader(text).addresses)
    assert text.count("<script") == 1, "that of the interactive figure, see test_explore"
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"https?://", text)


def test_every_figure_links_its_numbers(page):
    text = page.read_text(encoding="utf-8")
    found = {}
    for name, encoded in re.findall(
        r'download="([\w-]+)\.csv" href="data:text/csv[^,]*,([^"]*)"', text
    ):
        found[name] = list(csv.reader(io.StringIO(base64.b64decode(encoded).decode())))
    assert set(found) == PICTURES
    assert found["curves"][1:] == [[f"{value:.6g}" for value in row.values()] for row in HISTORY]
    numbers = json.loads((page.parent / "numbers.json").read_text())["maps"]["layer 2"]
    rows = [row for row in found["map-1"][1:] if row[:2] == ["layer 2", "1"]]
    weights = [float(row[-1]) for row in rows]
    assert weights == pytest.approx(numbers["weights"][0][0], rel=1e-4)


def test_page_tells_the_run_s_numbers(written):
    model, page = written
    text = Reader(page.read_text(encoding="utf-8")).text
    assert "77.78%" in text
    assert "on 9 test images; 95% interval 45.3% to 93.7%" in text
    assert "name: tiny  # <not a tag>" in text
    assert "<one>" in text
    assert "2 of 9 test images were classified wrongly" in text
    assert "6 samples" in text
    assert f"with the {model.config.body.operator} operator: 2 layers of 2 heads" in text
    assert f"{sum(p.numel() for p in model.parameters()):,}" in text


def test_numbers_are_those_of_the_model(written):
    model, page = written
    numbers = json.loads((page.parent / "numbers.json").read_text())
    assert set(numbers["profile"]) == {"layer 1", "layer 2"}
    assert 0 < numbers["variance"]["layer 1"]["share"] <= 1.05
    inputs, _ = prepare_pictures(tiny_images()[0], MEAN, STD)
    first = torch.randperm(20, generator=torch.Generator().manual_seed(0))[:1]
    operator, u, domain = model.trace(inputs[first])[1]
    found = numbers["maps"]["layer 2"]
    expected = kernel_map(operator, u, domain, queries=found["queries"])[0]
    torch.testing.assert_close(
        torch.tensor(found["weights"], dtype=torch.float64), expected, rtol=1e-3, atol=1e-6
    )
    assert (0 in found["queries"]) or model.config.pool == "mean"  # the class token has a map


def test_maps_say_what_they_are_made_of(written):
    model, page = written
    words = page.read_text(encoding="utf-8")
    scalar = model.body.blocks[0].operator.has_weights
    assert ("attention probability" in words) == scalar
    assert ("norm of its kernel matrix times" in words) != scalar


@pytest.mark.slow
@pytest.mark.parametrize("written", ["itnet"], indirect=True)
def test_a_folder_alone_gives_the_same_page(page, tmp_path):
    """The model is loaded from the folder, in a process as a user's: without the shape-checking
    hook.
    """
    code = f"""
import torch
torch.set_num_threads(1)
from fredholm.explain import ReportOptions, Samples, report_run
from tests.explain.conftest import tiny_images
from tests.parts import parts
report_run({str(page.parent.parent)!r}, Samples(*tiny_images()), out_dir={str(tmp_path)!r}, options=ReportOptions(6))
"""
    subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=200, cwd=Path(__file__).parents[2]
    )
    same = (json.loads((folder / "numbers.json").read_text()) for folder in (page.parent, tmp_path))
    assert_close(*same)
    assert Reader((tmp_path / "index.html").read_text()).text == Reader(page.read_text()).text


def assert_close(a, b):
    """Nested numbers that agree up to rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        a, b = list(a.values()), list(b.values())
    if isinstance(a, list):
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert_close(x, y)
    else:
        assert a == (pytest.approx(b, rel=1e-3, abs=1e-6) if isinstance(b, float) else b)


def test_same_arguments_same_page(tmp_path):
    model, (images, labels) = tiny_model("softmax"), tiny_images()
    pages = [
        report(
            model,
            Samples(images, labels, mean=MEAN, std=STD),
            out_dir=tmp_path / name,
            options=ReportOptions(samples=4, quality=0),
            run=RunFacts(metrics=HISTORY),
        ).read_text()
        for name in "ab"
    ]
    assert pages[0] == pages[1]


def test_accuracy_is_computed_where_none_is_given(tmp_path):
    model, (images, labels) = tiny_model("softmax"), tiny_images()
    inputs, _ = prepare_pictures(images, MEAN, STD)
    right = int((model(inputs).argmax(-1) == labels).sum())
    model.train()
    text = report(
        model,
        Samples(inputs, labels, classes=CLASSES, mean=MEAN, std=STD),
        out_dir=tmp_path,
        options=ReportOptions(samples=4, quality=0),
    ).read_text()
    assert f"{right / 20:.2%}" in text
    assert "on 20 images" in text
    assert model.training
    assert 'id="training"' not in text


def test_images_alone_give_the_kernels_alone(tmp_path):
    page = report(
        tiny_model("softmax"),
        Samples(tiny_images()[0]),
        out_dir=tmp_path,
        options=ReportOptions(samples=4, picture=5, quality=0),
    )
    text = page.read_text()
    assert re.findall(r'<section id="(\w+)"', text) == [
        "explore",
        "maps",
        "profile",
        "shares",
    ]


def test_operator_on_a_line(tmp_path):
    op = create_operator("itnet", 8, heads=2, width=8)
    page = report(
        op,
        Samples(torch.randn(5, 12, 8)),
        domain=Domain.line(12, causal=True),
        out_dir=tmp_path,
        title="A <line>",
        options=KERNELS,
    )
    assert set(re.findall(r'<figure id="([\w-]+)"', page.read_text())) == {
        "profile",
        "profile-weights",
        "shares",
        "map-1",
        "map-2",
        "map-3",
    }
    assert "A &lt;line&gt;" in page.read_text()


def test_an_operator_without_a_domain_is_read_on_its_own(tmp_path):
    """A recurrence refuses a line without order."""
    recurrence = as_operator(torch.nn.LSTM(8, 8, batch_first=True))
    page = report(recurrence, Samples(torch.randn(3, 6, 8)), out_dir=tmp_path, options=KERNELS)
    assert '<figure id="profile"' in page.read_text()


def test_any_operator_that_obeys_the_contract(tmp_path):
    """No nn.Module, no kernel attribute: just kernel_matrix and weights."""
    page = report(
        POSITION, Samples(torch.randn(5, 25, 1)), domain=GRID, out_dir=tmp_path, options=KERNELS
    )
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert numbers["variance"]["KnownOperator"]["share"] == pytest.approx(1, abs=1e-5)
    assert "KnownOperator" in page.read_text()


def test_work_that_values_decide_is_not_counted():
    class Reads(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x) if x.sum().item() >= 0 else x[x > 0]

    rows = _size_facts(Reads(3, 3), SAMPLES, torch.zeros(2, 3))
    assert rows == [("Parameters", "12", "12")]
    plain = _size_facts(torch.nn.Linear(3, 3), SAMPLES, torch.zeros(2, 3))
    assert [plain[0], plain[1][1]] == [rows[0], "18"]


def test_a_user_s_operator_in_a_model(tmp_path):
    from fredholm.operators import SoftmaxAttention, register_operator

    @register_operator("tests-explain-plain")
    class Plain(SoftmaxAttention):
        pass

    page = report(
        tiny_model("tests-explain-plain"),
        Samples(*tiny_images()),
        out_dir=tmp_path,
        options=ReportOptions(samples=4, quality=0),
    )
    assert "tests-explain-plain operator" in page.read_text()


def test_point_clouds_of_their_own_places(tmp_path):
    """Different positions a sample: a profile, no shares (said so), weights over the scattered
    points.
    """
    op = create_operator("itnet", 8, heads=1, width=8, position_dim=3)
    valid = torch.arange(9) < torch.tensor([[9], [5], [7]])
    domain = Domain.points(torch.rand(3, 9, 3), valid=valid)
    text = report(
        op, Samples(torch.randn(3, 9, 8)), domain=domain, out_dir=tmp_path, options=KERNELS
    ).read_text()
    figures = re.findall(r'<figure id="([\w-]+)"', text)
    assert figures[-2:] == ["profile", "profile-weights"]
    assert figures[:-2] == [f"map-{i + 1}" for i in range(len(figures) - 2)] != []
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    assert 'id="shares"' not in text, "no section without a figure"
    assert numbers["variance"]["skipped"]
    op = create_operator("itnet", 8, heads=1, width=8, position_dim=4)
    text = report(
        op,
        Samples(torch.randn(2, 9, 8)),
        domain=Domain.points(torch.rand(9, 4)),
        out_dir=tmp_path,
        options=KERNELS,
    ).read_text()
    assert "map-" not in text, "four coordinates are not drawn"


@pytest.mark.parametrize(
    ("name", "options", "shape", "words"),
    [
        (
            "ckcnn_small",
            {"channels": 2, "length": 12, "num_classes": 3, "widths": (6, 6)},
            (8, 12, 2),
            "sequences",
        ),
        (
            "ckcnn_small",
            {"channels": 1, "length": 12, "num_classes": 3, "widths": (6, 6), "timed": True},
            (8, 9, 2),
            "sequences",
        ),
        (
            "itnet_micro",
            {"encoder": "points", "channels": 3, "neighbours": 4, "num_classes": 3},
            (8, 10, 3),
            "point clouds",
        ),
    ],
)
def test_sequences_and_clouds_are_drawn(name, options, shape, words, tmp_path):
    """Lines and points for examples, whatever is missing of them; the head's numbers; all sections
    but those on patches.
    """
    model = create_model(name, **parts(**options))
    inputs, labels = torch.randn(shape).cumsum(1), torch.randint(3, shape[:1])
    if words == "sequences":
        inputs[..., :1] = inputs[..., :1].abs().cumsum(1)
        inputs[0, 5:] = torch.nan
    text = report(
        model,
        Samples(inputs, labels),
        out_dir=tmp_path,
        options=ReportOptions(samples=4, quality=0),
    ).read_text()
    accuracy = float((model.eval()(inputs).argmax(-1) == labels).double().mean())
    assert f"{accuracy:.2%}" in text
    assert f"on 8 {words}" in text
    assert {"profile", "maps", "confusion", "examples"} <= set(
        re.findall(r'<section id="(\w+)"', text)
    )
    assert f"of 8 {words}." in text
    said = Reader(text).text.lower()
    assert not re.search(r"\b(image|pixel|patch|token)", said), "words of another kind"


def test_layers_on_points_of_their_own(tmp_path):
    """A picture's and a text's: the maps are of the layers on the first one's points."""
    encoder = {"kind": "multimodal", "image_size": 8, "patch": 4, "vocabulary": 9}
    model = create_model(
        "itnet_nano", encoder=encoder | {"max_length": 9}, body={"kind": "two_streams", "depth": 2}
    )
    pair = Inputs(image=torch.rand(3, 1, 8, 8), tokens=torch.randint(1, 9, (3, 9)))
    options = ReportOptions(quality=0)
    report(model, Samples(pair), out_dir=tmp_path, options=options)
    maps = json.loads((tmp_path / "numbers.json").read_text())["maps"]
    assert list(maps) == ["picture 1", "picture 2"]
    weights = torch.tensor(maps["picture 2"]["weights"])
    assert weights.shape[-1] == 4, "patches, no words"


def test_every_picture_has_a_narrow_version_for_a_phone_with_ticks(tmp_path, every_theme):
    """As wide as the phone, with the letters of the wide one."""
    model = create_model(
        "ckcnn_small", **parts(channels=1, length=12, num_classes=3, widths=(6, 6))
    )
    samples = Samples(torch.randn(8, 9, 1), torch.randint(3, (8,)))
    text = report(
        model, samples, out_dir=tmp_path, options=ReportOptions(samples=4, quality=0)
    ).read_text()
    figures = text.count("<figure id=")
    narrow = re.findall(r'<source media="\(max-width: 600px\)" srcset="[^"]*" width="(\d+)"', text)
    assert len(narrow) == figures
    assert all(int(width) <= 346 for width in narrow)
    assert 'class="wide"' not in text


@pytest.mark.parametrize("theme", [LIGHT, NARROW[0]], ids=["wide", "narrow"])
def test_panels_have_ticks_of_their_own(theme):
    from fredholm.lab.data.kinds.kind import Signal

    x, rng = np.linspace(0, 1, 9), np.random.default_rng(0)
    line = draw.Line(x, [0.5, 0.5], "time")
    line = draw.draw_lines(theme, line, ["a", "b"], [rng.random((2, 9))] * 2)
    points = rng.random((9, 2))
    scattered = draw.draw_clouds(theme, points, ["a"], [rng.random((4, 9))], 2)
    said = Answer(0, "", "p", "p", "50%", False)
    signals = draw_examples(theme, [Signal(x, rng.random((9, 2)))] * 3, [said] * 3)
    for figure in (line, scattered, signals):
        figure.draw_without_rendering()
        used = [axes for axes in figure.axes if axes.axison]
        for axes in used:
            assert any(
                t.label1.get_visible() and t.label1.get_text() for t in axes.xaxis.majorTicks
            )
            assert any(
                t.label1.get_visible() and t.label1.get_text() for t in axes.yaxis.majorTicks
            )
        assert figure.get_figwidth() <= theme.width + 0.01


@pytest.mark.parametrize("theme", [LIGHT, NARROW[0]], ids=["wide", "narrow"])
def test_a_panel_alone_is_no_wider_than_beside_another(theme):
    alone, _ = panels(theme, 1, 2.0)
    removal = draw_removals(theme, np.linspace(0, 1, 3), {"map": {"morf": np.ones((1, 3))}})
    curve = draw_curves(theme, {"epoch": [1.0, 2.0], "val_loss": [2.0, 1.0]})
    assert {each.get_figwidth() for each in (alone, removal, curve)} == {min(theme.width, ALONE)}


def test_graphs_of_a_batch(tmp_path):
    model = create_model(
        "itnet_micro", **parts(encoder="graph", channels=2, num_classes=2, eigenvectors=2)
    )
    graphs = [Graph(torch.rand(n, 2), torch.tensor([[0, 1], [1, 2]])) for n in (3, 4, 5)]
    inputs, labels = GraphDataset(
        "tiny", "test", graphs, torch.tensor([0, 1, 1]), ("a", "b"), eigenvectors=2
    ).batch([0, 1, 2])
    text = report(model, Samples(inputs, labels), out_dir=tmp_path, options=KERNELS).read_text()
    assert "on 3 graphs" in text
    assert {"profile", "confusion"} <= set(re.findall(r'<section id="(\w+)"', text))
    assert "FLOPs" not in text, "graphs differ in size"


def test_a_graph_has_no_distances(tmp_path):
    op = create_operator("softmax", 8)
    domain = Domain.graph(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3)
    text = report(
        op, Samples(torch.randn(4, 3, 8)), domain=domain, out_dir=tmp_path, options=KERNELS
    ).read_text()
    assert 'id="profile"' not in text, "no section without a figure"


def test_many_classes_are_a_table(tmp_path):
    confusion = (
        torch.eye(30, dtype=torch.long) * 5 + torch.eye(30, dtype=torch.long).roll(1, 0)
    ).tolist()
    evaluation = {
        "n": 180,
        "accuracy": 5 / 6,
        "confusion": confusion,
        "classes": [f"c{i}" for i in range(30)],
    }
    text = report(
        tiny_model("softmax"),
        Samples(tiny_images()[0]),
        out_dir=tmp_path,
        options=ReportOptions(samples=3, quality=0),
        run=RunFacts(evaluation=evaluation),
    ).read_text()
    assert "30 of 180 images were classified wrongly" in text
    assert "16.7%" in text
    assert 'id="confusion"><picture' not in text


def test_pictures_are_the_pixels():
    images, _ = tiny_images()
    inputs, pictures = prepare_pictures(images, MEAN, STD)
    assert abs(pictures[3] * 255 - images[3].permute(1, 2, 0).numpy()).max() < 1e-3
    torch.testing.assert_close(inputs, (images / 255 - MEAN[0]) / STD[0])
    same, again = prepare_pictures(inputs, MEAN, STD)
    assert same is inputs
    assert abs(again[3] - pictures[3]).max() < 1e-5
    _, stretched = prepare_pictures(inputs, None, None)
    assert (stretched[3].min(), stretched[3].max()) == (0, 1)


def test_errors(tmp_path):
    model, (images, labels) = tiny_model("softmax"), tiny_images()
    with pytest.raises(OptionError, match="trace"):
        report(torch.nn.Linear(2, 2), Samples(images), out_dir=tmp_path, options=KERNELS)
    with pytest.raises(ShapeError, match="labels must have shape"):
        report(model, Samples(images, labels[:3]), out_dir=tmp_path, options=KERNELS)
    with pytest.raises(ShapeError, match="between 0 and 2"):
        report(model, Samples(images, labels + 1), out_dir=tmp_path, options=KERNELS)
    with pytest.raises(ShapeError, match="2 class names"):
        report(
            model, Samples(images, labels, classes=["a", "b"]), out_dir=tmp_path, options=KERNELS
        )
    with pytest.raises(ShapeError, match=r"mean: expected .* got 3"):
        report(
            model,
            Samples(images, labels, mean=[0.0, 0.0, 0.0], std=STD),
            out_dir=tmp_path,
            options=KERNELS,
        )
    with pytest.raises(ShapeError, match="at least one image"):
        report(model, Samples(images[:0]), out_dir=tmp_path, options=KERNELS)
    with pytest.raises(OptionError, match="samples"):
        report(
            model, Samples(images), out_dir=tmp_path, options=ReportOptions(samples=0, quality=0)
        )
    with pytest.raises(OptionError, match="picture 20"):
        report(
            model, Samples(images), out_dir=tmp_path, options=ReportOptions(picture=20, quality=0)
        )
    with pytest.raises(DataError, match="metrics"):
        report(
            model,
            Samples(images, labels),
            out_dir=tmp_path,
            options=KERNELS,
            run=RunFacts(metrics=tmp_path / "metrics.csv"),
        )
    with pytest.raises(DataError, match="epoch"):
        report(
            model,
            Samples(images, labels),
            out_dir=tmp_path,
            options=KERNELS,
            run=RunFacts(metrics=[{"step": 1}]),
        )
    with pytest.raises(CheckpointError, match="no run folder"):
        report_run(tmp_path / "nowhere", Samples(images))
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(FredholmError, match=r"cannot be read .*run fredholm evaluate again"):
        report_run(tmp_path, Samples(images), model=model)
    assert not (tmp_path / "index.html").exists()


def test_missing_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"fredholm\[train\]"):
        report(
            POSITION, Samples(torch.randn(5, 25, 1)), domain=GRID, out_dir=tmp_path, options=KERNELS
        )


def test_nothing_global_is_left_behind(tmp_path):
    import matplotlib

    before = dict(matplotlib.rcParams)
    report(POSITION, Samples(torch.randn(5, 25, 1)), domain=GRID, out_dir=tmp_path, options=KERNELS)
    assert dict(matplotlib.rcParams) == before


def test_a_report_has_few_arguments():
    for function in (report, report_run):
        assert len(inspect.signature(function).parameters) <= 7
    with pytest.raises(TypeError):
        report(POSITION, torch.randn(5, 25, 1), out_dir="x", samples=3)


def test_html_lies_in_templates_alone():
    found = []
    for path in sorted(Path(explain.__file__).parent.glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
        first = {id(n.body[0].value) for n in ast.walk(tree) if isinstance(n, documented)
                 and n.body and isinstance(n.body[0], ast.Expr)}  # fmt: skip
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and id(n) not in first]
        tags = [n.lineno for n in texts if re.search("</?[a-z]+[^<]*>", str(n.value))]
        found += [f"{path.name}:{line}" for line in tags]
    assert not found
