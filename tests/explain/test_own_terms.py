"""Reports on a user's files: names of columns, units, timestamps, truth beside the prediction."""

from __future__ import annotations

import base64
import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fredholm.errors import ShapeError
from fredholm.explain import ReportOptions, RunFacts, Samples, report
from fredholm.lab.data.files.source import open_files
from fredholm.lab.data.files.terms import Column, Terms
from fredholm.lab.data.kinds.fields import PointFieldDataset
from fredholm.lab.data.kinds.sequences import SEQUENCES, _signal
from fredholm.lab.report.examples.fields import FieldSample, draw_field, field_samples
from fredholm.lab.report.importance import column_importance
from fredholm.lab.report.results.scores import score_head
from fredholm.lab.report.style import LIGHT
from fredholm.lab.report.subject import Subject
from fredholm.lab.training.evaluation import read_fields
from fredholm.models import create_model

SMALL = ReportOptions(samples=4, quality=0)


def written(dataset, folder, evaluation=None):
    """Return the page of an untrained model on a data set, and the tables that its figures link."""
    torch.manual_seed(0)
    outputs = len(dataset.classes) if dataset.task == "classification" else 1
    model = create_model(
        "backbone_nano",
        data=dataset.encoder(),
        body={"dim": 8, "heads": 2, "operator": "softmax"},
        head=dataset.head() | {"outputs": outputs},
    ).eval()
    model.extra = dataset.describe()
    every = torch.arange(len(dataset))
    given = {"labels": dataset.labels[every]}
    if dataset.task != "classification":
        given = {"targets": dataset.in_units(dataset.raw(every)[1])}
    given["names"] = dataset.origins
    samples = Samples(kind=dataset.kind, **given, **dataset.shown(every))
    run = RunFacts(evaluation=evaluation)
    text = report(model, samples, out_dir=folder, options=SMALL, run=run).read_text("utf-8")
    found = re.findall(r'download="([\w-]+)\.csv" href="data:text/csv[^,]*,([^"]*)"', text)
    decoded = {name: base64.b64decode(encoded).decode() for name, encoded in found}
    return text, {name: list(csv.DictReader(io.StringIO(it))) for name, it in decoded.items()}


@pytest.fixture(scope="module")
def houses(tmp_path_factory):
    """Return rows of numbers and words, and a price."""
    draw = np.random.default_rng(0)
    lines = ["area,district,price"]
    for i in range(60):
        area = draw.uniform(30, 200)
        lines.append(f"{area:.1f},{('north', 'the <south>')[i % 2]},{3 * area + 50 * (i % 2):.1f}")
    path = tmp_path_factory.mktemp("houses") / "houses.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_have_the_names_and_cells_of_their_file(houses, tmp_path):
    dataset = open_files(houses).dataset("test")
    text, tables = written(dataset, tmp_path)
    sections = re.findall(r'<section id="(\w+)"', text)
    assert sections[:3] == ["agreement", "examples", "importance"]
    assert "<th>error</th><th>area</th><th>district</th>" in text
    assert "<td>the &lt;south&gt;</td>" in text
    assert "<the " not in text
    assert "<south" not in text
    with houses.open() as file:
        cells = {(float(row["area"]), row["district"]) for row in csv.DictReader(file)}
    shown = re.findall(r"off by [^<]*</td>\s*<td>([\d.]+)</td><td>([^<]*)</td></tr>", text)
    assert len(shown) == 8
    assert {(float(a), d.replace("&lt;", "<").replace("&gt;", ">")) for a, d in shown} <= cells
    assert [row["column"] for row in tables["importance"]] in (
        ["area", "district"],
        ["district", "area"],
    )
    prices = dataset.in_units(dataset.labels).tolist()
    told = [float(row["true"]) for row in tables["agreement"]]
    assert told == pytest.approx(prices, rel=1e-4)
    assert {row["name"] for row in tables["map-1"]} == {
        "area",
        "district=north",
        "district=the <south>",
    }


def test_the_largest_errors_are_listed_with_their_rows(houses, tmp_path):
    dataset = open_files(houses).dataset("test")
    text, _ = written(dataset, tmp_path)
    number = r'<td class="number">'
    shown = re.findall(rf"{number}houses\.csv, row (\d+)</td>{number}([\d.]+)</td>", text)
    lines = houses.read_text().splitlines()
    assert len(shown) == 8
    for row, price in shown:
        # The first line of the file has the names, and rows count from it.
        assert float(lines[int(row) - 1].split(",")[-1]) == pytest.approx(float(price), rel=1e-3)


def test_samples_in_files_are_named_with_their_folder(tmp_path):
    for number in range(20):
        path = tmp_path / "notes" / "ab"[number % 2] / f"{number // 2}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"note {number} of {number % 2}")
    origins = open_files(tmp_path / "notes").dataset("test").origins
    assert origins
    assert all(re.fullmatch(r"[ab]/\d\.txt", each) for each in origins)


def test_selected_samples_keep_their_origin(houses):
    dataset = open_files(houses).dataset("test")
    few = dataset.select(torch.tensor([3, 1]))
    assert few.origins == (dataset.origins[3], dataset.origins[1])


def test_classified_rows_are_shown_as_a_table(houses, tmp_path):
    lines = houses.read_text().splitlines()
    rows = [
        line.rpartition(",")[0] + (",big" if i % 3 else ",small") for i, line in enumerate(lines)
    ]
    path = tmp_path / "sizes.csv"
    path.write_text("\n".join(["area,district,size", *rows[1:]]) + "\n")
    text, _ = written(open_files(path).dataset("test"), tmp_path / "report")
    assert "<th>size</th><th>predicted</th><th>confidence</th>" in text
    assert {"confusion", "examples", "importance"} <= set(re.findall(r'<section id="(\w+)"', text))


def test_the_decisive_column_has_the_largest_importance():
    class First(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.tensor(2.0))

        def forward(self, rows):
            return self.weight * rows[:, 0] + 0.1 * (rows[:, 1] + rows[:, 2])

    rows = torch.randn(50, 4, 1)
    model = First()
    truth = model(rows).detach()[:, 0]
    columns = [Column("none", (3,)), Column("words", (1, 2), ("a", "b")), Column("all", (0,))]

    def error(outputs):
        return float((outputs[:, 0] - truth).square().mean().sqrt())

    found = column_importance(model, rows, columns, error, seed=0)
    assert [each.name for each in found] == ["all", "words", "none"]
    assert found[0].mean == pytest.approx(2 * 2**0.5, rel=0.3)
    assert found[2] == ("none", 0.0, 0.0)
    assert found == column_importance(model, rows, columns, error, seed=0)
    assert column_importance(model, rows[:9], columns, error, seed=0) == [], "nine rows tell little"


def test_series_have_their_channels_units_and_clock(tmp_path):
    lines = ["machine,seconds,heat,noise,state"]
    for i in range(20):
        for k in range(6):
            lines.append(
                f"m{i},{0.5 * k + 0.1 * (k % 2)},{60 + k + i},{k * (1 + i % 2)},{'ab'[i % 2]}"
            )
    path = tmp_path / "machines.csv"
    path.write_text("\n".join(lines) + "\n")
    source = open_files(path, {"id": "machine", "time": "seconds"})
    dataset = source.dataset("test")
    terms = Terms.of(dataset.describe())
    assert (dataset.timed, terms.label, terms.clock) == (
        True,
        "state",
        "seconds since the first point",
    )
    signal = terms.signal(_signal(dataset.batch([0])[0][0].numpy(), True))
    np.testing.assert_allclose(signal.x, [0, 0.6, 1.0, 1.6, 2.0, 2.6], atol=1e-5)
    assert signal.names == ("heat", "noise")
    number = int(np.flatnonzero(source.parts == 2)[0])
    np.testing.assert_allclose(signal.values, source.collection.samples[number], atol=1e-4)
    text, tables = written(dataset, tmp_path / "report")
    assert "sequences" in text
    assert {row["truth"] for row in [*tables.get("wrong", ()), *tables.get("right", ())]} == {
        "a",
        "b",
    }


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        ("backbone_nano", {"kind": "sequence"}),
        ("backbone_nano", {"kind": "sequence", "patch": 2}),
        ("backbone_nano", {"kind": "sequence", "timed": True}),
        ("ckcnn_small", {"kind": "samples", "timed": True, "step": 0.25}),
    ],
    ids=["samples", "patches", "times", "times in another unit"],
)
def test_points_lie_at_times_of_the_clock(name, encoder):
    """An odd length fills half of the last patch, and must not move the patches before it."""
    patch = encoder.get("patch", 1)
    model = create_model(name, encoder={"channels": 1, "length": 65, **encoder})
    scaling = {"clocked": True, "step": 0.5}
    model.extra = {"source": {"reading": {"kind": "series"}, "scaling": scaling}}
    series = torch.randn(3, 65, 1)
    times = torch.arange(65.0)
    if encoder.get("timed"):
        times = torch.rand(65).cumsum(0)
        series = torch.cat([times.expand(3, 65)[..., None], series], -1)
    samples = Samples(series, kind=SEQUENCES)

    axis = Subject.of(model, samples, 0).axis(0)
    _, domain = model.encoder(series)
    found = domain.positions.reshape(-1, domain.size)[0] * axis.unit
    assert axis.label == "time since the first point"
    torch.testing.assert_close(found, 0.5 * times[::patch])


def test_without_files_series_have_numbered_channels():
    values = torch.randn(5, 2).numpy()
    signal = Terms().signal(_signal(values, False))
    assert (signal.names, signal.clock) == (("channel 1", "channel 2"), "step")
    assert (signal.values == values).all()
    assert SEQUENCES.legend.startswith(" One line per channel")


def test_fields_are_shown_beside_the_truth(tmp_path):
    draw = np.random.default_rng(0)
    inputs = draw.normal(5, 2, (20, 1, 4, 6)).astype(np.float32)
    answers = inputs[:, :, ::-1] * 3 - 10
    np.savez(tmp_path / "flow.npz", inputs=inputs, answers=answers)
    source = open_files(tmp_path / "flow.npz")
    dataset = source.dataset("test")
    text, tables = written(dataset, tmp_path / "report", {"n": 4, "loss": 0.5, "worst": 0.9})
    assert "Relative error" in text
    assert {"field-best", "field-median", "field-worst"} <= set(tables)
    worst = tables["field-worst"]
    assert [list(row) for row in worst[:1]] == [
        ["row", "column", "input", "truth", "prediction", "error"]
    ]
    truth = np.array([float(row["truth"]) for row in worst]).reshape(4, 6)
    number = int(np.abs(answers[:, 0] - truth).max((1, 2)).argmin())
    np.testing.assert_allclose(truth, answers[number, 0], rtol=1e-4)
    given = np.array([float(row["input"]) for row in worst]).reshape(4, 6)
    np.testing.assert_allclose(given, inputs[number, 0], rtol=1e-3)
    for row in worst:
        off = float(row["prediction"]) - float(row["truth"])
        assert float(row["error"]) == pytest.approx(off, abs=1e-3)


def test_a_field_with_nan_is_drawn():
    """NaN in the truth must not change the colours of the rest."""
    truth = np.array([[0.0, np.nan], [1.0, 2.0]])
    sample = FieldSample(truth, truth, truth + 1, None, 0.5)
    figure = draw_field(LIGHT, sample)
    limits = [axes.images[0].get_clim() for axes in figure.axes if axes.images]
    assert np.isfinite(limits).all()


def test_fields_on_points_have_the_units_of_the_files():
    inputs = torch.tensor([[[0.0, 0.5, 1.0], [1.0, 0.0, -1.0], [torch.nan] * 3]])
    scaling = {"low": [10.0, 20.0], "extent": 4.0, "mean": [7.0], "std": [2.0]}
    facts = {"scale": [3.0], "source": {"scaling": scaling}}
    targets = torch.tensor([[[3.0, 6.0, torch.nan]]])
    found = field_samples(inputs, torch.tensor([[[1.0], [1.0], [9.0]]]), targets, facts, 2)[0]
    assert found.places.tolist() == [[10.0, 22.0], [14.0, 20.0]]
    assert found.given.tolist() == [9.0, 5.0]
    assert found.answer.tolist() == [3.0, 3.0]
    assert found.error == pytest.approx(3 / 45**0.5)
    bare = field_samples(inputs[..., :2], torch.ones(1, 3, 1), targets, facts, 2)[0]
    assert list(bare.panels()) == ["truth", "prediction", "error"]


def test_fields_of_a_report_may_be_shorter_than_further_samples(tmp_path):
    """Only the first samples have targets, and the longest sample is not among them."""
    places = [torch.rand(points, 2) for points in (4, 3, 7)]
    answers = [place.sum(1, keepdim=True) for place in places]
    dataset = PointFieldDataset("sums", "test", places, answers, ("u",), coordinates=2)
    torch.manual_seed(0)
    model = create_model(
        "backbone_nano",
        data=dataset.encoder(),
        body={"dim": 8, "heads": 2, "operator": "softmax"},
        head=dataset.head() | {"outputs": 1},
    ).eval()
    shown = dataset.shown(torch.arange(3))
    targets = read_fields(dataset, torch.arange(2), shown["inputs"])
    samples = Samples(targets=targets, kind=dataset.kind, **shown)
    text = report(model, samples, out_dir=tmp_path, options=SMALL).read_text("utf-8")
    assert text.count("Input, truth, prediction and error of the") == 2

    cut = replace(samples, targets=targets[..., :4])
    with pytest.raises(ShapeError, match=r"targets: expected fields of 7 points.* got 4; pad both"):
        report(model, cut, out_dir=tmp_path, options=SMALL)


def test_a_constant_answer_is_named():
    found = {"n": 8, "loss": 4.0, "variance": 9.0, "label_mean": 12_345.6}
    (_, _, note) = score_head(found, "test rows")[-1]
    assert note == "root mean squared error; 3 for always answering 12,346, the mean"


def test_a_certainty_has_an_interval():
    ((_, value, note), *_) = score_head({"n": 60, "accuracy": 1.0}, "test rows")
    assert (value, note) == ("100.00%", "on 60 test rows; 95% interval 94.0% to 100.0%")
    ((_, _, note), *_) = score_head({"n": 60, "accuracy": 1.0}, "tokens", independent=False)
    assert "interval" not in note
