"""Cases of silent errors: each is reported, refused or read correctly."""

from __future__ import annotations

import csv
import io
import random
import shutil
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from fredholm.errors import DataError, OptionError
from fredholm.estimators import FredholmClassifier
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.reading import Reading
from fredholm.lab.data.files.standard_input import _suffix
from fredholm.lab.data.files.unlabelled import read_unlabelled
from fredholm.lab.data.kinds.texts import read_lines
from fredholm.lab.training.build import build_model
from fredholm.lab.training.tasks import task_of
from fredholm.training import load_recipe


def write(path, rows, head=("a", "b", "label"), **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file, **how).writerows([head, *rows])
    return path


def samples(count, shift=0.0):
    rng = random.Random(count)
    return [[round(rng.gauss(shift, 1), 3), i % 7, "xy"[i % 2]] for i in range(count)]


def test_folders_called_train_and_test_are_the_splits_of_tables(tmp_path):
    write(tmp_path / "train" / "part1.csv", samples(60))
    write(tmp_path / "test" / "deep" / "part1.csv", samples(40, shift=100.0))
    source = open_files(tmp_path)
    assert [int((source.parts == part).sum()) for part in (0, 1, 2)] == [48, 12, 40]
    held = source.collection.samples[source.parts == 2, 0]
    assert held.min() > 50 > source.collection.samples[source.parts != 2, 0].max()
    write(tmp_path / "more.csv", samples(5))
    with pytest.raises(DataError, match=r"more.csv: expected only files \(or folders of files\)"):
        open_files(tmp_path)


def test_folders_called_train_and_test_are_the_splits_of_arrays(tmp_path):
    for name, count in (("train", 30), ("test", 20)):
        (tmp_path / name).mkdir()
        x = np.full((count, 9, 1), float(count))
        np.savez(tmp_path / name / "x.npz", x=x + np.arange(9)[:, None], y=np.arange(count) % 2)
    source = open_files(tmp_path)
    assert int((source.parts == 2).sum()) == 20
    assert {sample[0, 0] for sample in map(np.asarray, source.collection.samples)} == {30.0, 20.0}


def test_files_in_hidden_folders_are_ignored(tmp_path):
    file = write(tmp_path / "data.csv", samples(60))
    hidden = tmp_path / ".ipynb_checkpoints"
    hidden.mkdir()
    shutil.copy(file, hidden / "data-checkpoint.csv")
    assert len(open_files(tmp_path).collection) == 60


def test_a_word_in_a_column_of_numbers_is_reported(tmp_path):
    rows = [[i % 5 + 1, i, "xy"[i % 2]] for i in range(60)]
    rows[7][0] = "3o"
    source = open_files(write(tmp_path / "a.csv", rows))
    (line,) = source.collection.remarks
    assert line == "column 'a' is read as 6 words, not as numbers: row 9 has '3o'"
    words = [["low" if i % 3 else 1, i, "xy"[i % 2]] for i in range(60)]
    assert not open_files(write(tmp_path / "b.csv", words)).collection.remarks, "mostly words"


def test_few_different_decimal_commas_are_refused(tmp_path):
    rows = [[f"36,{i % 9}", i, "xy"[i % 2]] for i in range(60)]
    with pytest.raises(DataError, match="decimal commas are written as points"):
        open_files(write(tmp_path / "a.csv", rows, delimiter=";"))


def test_labels_far_from_zero_are_reported_and_set_the_offset(tmp_path):
    torch.manual_seed(0)
    x = torch.randn(12, 1, 8, 8).numpy()
    for name, shift in (("near", 0.0), ("far", 300.0)):
        np.savez(tmp_path / f"{name}.npz", x=x, y=2 * x + np.float32(shift))
    near, far = (
        open_files(tmp_path / f"{name}.npz", {"kind": "fields"}).dataset("train")
        for name in ("near", "far")
    )
    assert not near.notes
    assert "answering the mean everywhere has a relative error of about 0.0071" in far.notes[0]
    recipe = load_recipe("itnet-darcy", ["model.body.dim=8", "operator=linear_attention"])
    for dataset, expected in ((near, 1.0), (far, 0.0071)):
        inputs, answers = dataset.batch(range(len(dataset)))
        task = task_of(dataset)
        model = build_model(recipe, dataset)
        error = task.loss(model(inputs), answers)
        assert float(error) == pytest.approx(expected, rel=0.1)
        half = model.to(torch.bfloat16)(inputs.bfloat16())
        rounded = task.loss(half, answers)
        assert float(rounded) == pytest.approx(float(error), rel=0.01)


def test_fields_far_from_zero_set_the_offset(tmp_path):
    rng = np.random.default_rng(0)
    places, inputs = rng.random((12, 9, 2)), rng.normal(size=(12, 9, 1))
    np.savez(tmp_path / "f.npz", coordinates=places, inputs=inputs, outputs=inputs + 50.0)
    dataset = open_files(tmp_path / "f.npz", {"kind": "fields"}).dataset("train")
    assert dataset.head()["pool"] == "every"
    (offset,) = dataset.head()["offset"]
    assert offset * float(dataset.scale) == pytest.approx(50.0, abs=0.5)


@pytest.mark.parametrize("first", [np.uint8, float])
def test_new_images_need_the_fitted_type_of_numbers(first):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 2, (16, 8, 8, 1))
    labels = np.arange(16) % 2
    model = FredholmClassifier(dim=8, depth=1, epochs=1, random_state=0)
    model.fit(images.astype(first), labels)
    assert model.predict(images.astype(first)).shape == (16,)
    with pytest.raises(OptionError, match="give numbers of the same type"):
        model.predict(images.astype(float if first is np.uint8 else np.uint8))


# --- rows, numbers and scales ---------------------------------------------------------------------


def test_blank_rows_before_a_header_are_skipped(tmp_path):
    rows = "a,b,label\n" + "".join(f"{i}.5,{i % 7},{'xy'[i % 2]}\n" for i in range(40))
    (tmp_path / "plain.csv").write_text(rows)
    (tmp_path / "blank.csv").write_text("\n  \n\n" + rows.replace("\n20.5", "\n\n20.5"))
    plain, blank = (open_files(tmp_path / name).collection for name in ("plain.csv", "blank.csv"))
    assert np.array_equal(plain.samples, blank.samples)
    assert plain.where(0).endswith("row 2")
    assert blank.where(0).endswith("row 5")
    assert [blank.place(row)["row"] for row in (19, 20, 39)] == [24, 26, 45]
    rows = rows.replace("\n10.5", "\n\n\n10.5")
    (tmp_path / "bad.csv").write_text("\n\n" + rows.replace("\n20.5", "\ninf"))
    with pytest.raises(
        DataError, match=r"bad.csv, row 26, column .a.: expected a finite number.*, got 'inf'"
    ):
        open_files(tmp_path / "bad.csv")
    (tmp_path / "bad.csv").write_text("\n\n" + rows.replace("\n20.5", "\n1,2,3,4"))
    with pytest.raises(DataError, match=r"bad.csv, row 26: expected 3 cells, .*, got 6"):
        open_files(tmp_path / "bad.csv")


def test_underscores_in_later_rows_are_not_numbers(tmp_path):
    rows = samples(2500)
    rows[2400][0] = "1_2"
    path = write(tmp_path / "data.csv", rows)
    with pytest.raises(DataError, match=r"row 2402, column 'a': expected a number.*, got '1_2'"):
        open_files(path, {"strict": True})
    found = open_files(path).collection
    assert len(found) == 2499
    assert "row 2402, column 'a': '1_2'" in " ".join(found.remarks)


@pytest.mark.parametrize(("scale", "refused"), [("file", 0), ("none", 0), ("sample", 1)])
def test_an_unsupported_scale_is_refused(tmp_path, scale, refused):
    path = write(tmp_path / "data.csv", samples(40))
    if refused:
        with pytest.raises(
            DataError, match="scale: expected file or none, got 'sample', which rows do"
        ):
            open_files(path, {"scale": scale})
    else:
        source = open_files(path, {"scale": scale})
        numbers = torch.as_tensor(source.collection.samples[:, 0]).float()
        assert torch.equal(source.prepared[:, 0, 0], numbers) is (scale == "none")


def test_other_scales_of_fields_and_texts_are_refused(tmp_path):
    fields = np.random.default_rng(0).normal(size=(2, 30, 4, 4))
    np.savez(tmp_path / "fields.npz", x=fields[0], y=fields[1])
    with pytest.raises(DataError, match="scale: expected file, got 'none', which fields do not"):
        open_files(tmp_path / "fields.npz", {"scale": "none", "kind": "fields"})
    texts = [[f"the words of sample {i} are {i % 7}", "xy"[i % 2]] for i in range(40)]
    path = write(tmp_path / "texts.csv", texts, head=("text", "label"))
    with pytest.raises(DataError, match="expected no scale, got 'none', which texts do not have"):
        open_files(path, {"scale": "none", "kind": "texts", "text": "text", "label": "label"})


def test_a_number_of_points_is_refused_for_other_data_than_clouds(tmp_path):
    path = write(tmp_path / "data.csv", samples(40))
    with pytest.raises(
        DataError, match="points: expected none, got 3, which rows do not have; leave"
    ):
        open_files(path, {"points": 3})


# --- arrays of one task ---------------------------------------------------------------------------


def test_the_training_arrays_determine_the_task(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 9, 1))
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(40) / 4)
    np.savez(tmp_path / "test.npz", x=x[:20], y=np.arange(20) % 3)  # integers by chance
    source = open_files(tmp_path)
    assert source.collection.task == "regression"
    assert source.collection.labels.tolist() == [*(np.arange(40) / 4), *(np.arange(20) % 3)]
    np.savez(tmp_path / "test.npz", x=x[:20], y=np.array(["a", "b"] * 10))
    with pytest.raises(DataError, match=r"test.npz: 'y': expected numbers .*could not convert"):
        open_files(tmp_path)
    np.savez(tmp_path / "train.npz", x=x, y=np.arange(360).reshape(40, 9) % 2)
    np.savez(tmp_path / "test.npz", x=x[:20], y=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"test.npz: 'y': expected a class at every .*\(20,\)"):
        open_files(tmp_path)


# --- tables of other programs ---------------------------------------------------------------------


def test_the_first_row_of_a_file_without_header_is_a_sample(tmp_path):
    rows = [f"{5 + i / 10},{i % 7},{['setosa', 'virginica'][i % 2]}" for i in range(40)]
    (tmp_path / "iris.csv").write_text("\n".join(rows))
    found = open_files(tmp_path / "iris.csv")
    assert len(found.collection) == 40
    assert found.collection.channels == ("column 1", "column 2")
    assert found.classes == ("setosa", "virginica")
    assert found.collection.where(0).endswith("row 1")
    rows = [",".join([row.split(",")[-1], *(f"{n % 5}" for n in range(9))]) for row in rows]
    (tmp_path / "ucr.csv").write_text("\n".join(rows))
    found = open_files(tmp_path / "ucr.csv")
    assert found.collection.kind == "series"
    assert found.reading.label == "column 1"
    assert len(found.collection) == 40
    # a name among numbers that no cell repeats is a header
    (tmp_path / "wide.csv").write_text("\n".join(["class,0,1,2,3,4,5,6,7,8", *rows]))
    assert len(open_files(tmp_path / "wide.csv").collection) == 40


def test_new_samples_for_files_without_header_need_none(tmp_path):
    facts = {
        "dataset": "iris", "task": "classification",
        "source": {
            "reading": {"kind": "rows", "label": "column 4", "channels": ["column 1", "column 3"]},
            "channels": ["column 1", "column 3"], "words": {},
            "scaling": {"mean": [0.0, 0.0], "std": [1.0, 1.0]},
        },
    }  # fmt: skip
    told = "5.5,a,1,setosa\n0.5,b,2,virginica\n"  # no word comes again: it might be a header
    (tmp_path / "new.csv").write_text(told)
    found = read_unlabelled([tmp_path / "new.csv"], facts, None)
    assert found.batch([0, 1])[:, :, 0].tolist() == [[5.5, 1.0], [0.5, 2.0]]
    assert [place["row"] for place in found.places] == [1, 2]
    (tmp_path / "new.csv").write_text("\n" + told.split("\n")[0])
    assert read_unlabelled([tmp_path / "new.csv"], facts, None).places[0]["row"] == 2
    (tmp_path / "new.csv").write_text("width,b,height,c\n" + told)
    with pytest.raises(DataError, match="has no column 'column 1', which the run was trained on"):
        read_unlabelled([tmp_path / "new.csv"], facts, None)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "__index_level_0__"])
def test_an_unnamed_index_is_not_a_feature(tmp_path, name):
    order = np.random.default_rng(0).permutation(40).tolist()
    rows = [[order[i], *row] for i, row in enumerate(samples(40))]
    head = (name, "a", "b", "label")
    found = open_files(write(tmp_path / "data.csv", rows, head=head)).collection
    assert found.channels == ("a", "b")
    assert any("is left out: it has no name, and another whole" in line for line in found.remarks)
    asked = {"channels": (name or "column 1", "a")}
    assert open_files(tmp_path / "data.csv", asked).collection.channels == asked["channels"]
    rows[3][0] = rows[4][0]  # a number that comes twice is no index
    found = open_files(write(tmp_path / "data.csv", rows, head=head)).collection
    assert found.channels == (name or "column 1", "a", "b")
    wide = [[i, "ab"[i % 2], *(f"{i * j % 7}" for j in range(9))] for i in range(20)]
    head = (name, "label", *(f"t{j}" for j in range(9)))
    found = open_files(write(tmp_path / "wide.csv", wide, head=head)).collection
    assert (found.kind, found.samples[0].shape) == ("series", (9, 1))


def test_an_empty_column_is_dropped(tmp_path):
    rows = [[*row[:2], "", *row[2:]] for row in samples(40)]
    head = ("a", "b", "c", "label")
    found = open_files(write(tmp_path / "data.csv", rows, head=head)).collection
    assert found.channels == ("a", "b")
    assert found.taken["columns"] == "a, b"
    assert any("'c' is left out: it is empty in every row" in line for line in found.remarks)
    rows[30][2] = "1.5"
    found = open_files(write(tmp_path / "data.csv", rows, head=head)).collection
    assert found.channels == ("a", "b", "c")
    rows = [[i // 5, i % 5, i % 3, "", "xy"[i // 5 % 2]] for i in range(100)]
    head = ("id", "time", "a", "c", "label")
    found = open_files(write(tmp_path / "long.csv", rows, head=head)).collection
    assert found.samples[0].shape == (5, 1)


def test_a_comment_above_the_header_is_refused(tmp_path):
    rows = "".join(f"{i},{i % 7},{'xy'[i % 2]}\n" for i in range(40))
    (tmp_path / "data.csv").write_text("# device 7\n\n# v2\na,b,label\n" + rows)
    with pytest.raises(
        DataError, match=r"row 4: expected 1 cells, .*, got 3; if the header is a line of remark"
    ):
        open_files(tmp_path / "data.csv")


# --- numbers beyond float32 -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e300, -1e39])
def test_numbers_beyond_float32_are_refused(tmp_path, value):
    words = r"expected (a )?finite numbers?, none beyond 3.4e\+38, got"
    x = np.random.default_rng(0).normal(size=(40, 12, 2))
    y = np.arange(40) % 2
    x[3, 4, 1] = value
    np.savez(tmp_path / "x.npz", X=x, y=y)
    with pytest.raises(DataError, match=rf"sample 3, 'channel 2': {words}"):
        open_files(tmp_path / "x.npz")
    rows = samples(40)
    rows[7][0] = value
    with pytest.raises(DataError, match=rf"row 9, column 'a': {words}"):
        open_files(write(tmp_path / "data.csv", rows))
    lines = [f"{1 if i != 4 else value},2,3:{i % 2}" for i in range(20)]
    head = ["@problemName x", "@classLabel true 0 1", "@data"]
    (tmp_path / "x.ts").write_text("\n".join([*head, *lines]))
    with pytest.raises(DataError, match=rf"'dimension 1': {words}"):
        open_files(tmp_path / "x.ts")
    places = np.random.default_rng(0).random((20, 9, 2))
    answers = np.ones((20, 9))
    places[5, 2, 0] = value
    np.savez(tmp_path / "p.npz", coordinates=places, inputs=answers, outputs=answers)
    with pytest.raises(DataError, match="sample 5"):
        open_files(tmp_path / "p.npz")
    with pytest.raises(OptionError, match=r"X, sample 3: expected finite .* 3.4e\+38, got"):
        FredholmClassifier(epochs=1).fit(x, y)
    if np.isfinite(value):
        targets = np.arange(40.0) ** 2
        targets[6] = value
        np.savez(tmp_path / "y.npz", X=np.ones((40, 9)) * targets[::-1, None] % 7, y=targets)
        with pytest.raises(DataError, match=r"sample 6, column 'y': expected a number, none"):
            open_files(tmp_path / "y.npz")


# --- names of columns -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["days", "hours", "time", "t", "id", "case"])
def test_declared_columns_are_not_guessed_as_time_or_id(tmp_path, name):
    rows = [[i % 7, i % 5, round(i * 7.3 % 11, 2), "xy"[i % 2]] for i in range(60)]
    path = write(tmp_path / "data.csv", rows, head=("a", "b", name, "z"))
    found = open_files(path, {"label": name, "channels": "a,b"}).collection
    assert (found.task, found.reading.label, found.remarks) == ("regression", name, [])
    found = open_files(path, {"label": name}).collection
    assert found.channels == ("a", "b", "z=x", "z=y")
    found = open_files(path, {"group": name}).collection
    assert (found.channels, found.reading.label) == (("a", "b"), "z")
    assert (found.reading.time, found.reading.id) == (None, None)


@pytest.mark.parametrize(
    ("cells", "what"),
    [
        (["01/14/2024", "02/03/2024"], "dates"),
        (["2024-01-14", ""], "dates"),
        (["full", "part"], ""),
    ],
)
def test_a_column_named_time_without_times_stays_a_feature(tmp_path, cells, what):
    rows = [[cells[i % 3 == 0], i % 7, "xy"[i % 2]] for i in range(40)]
    path = write(tmp_path / "rows.csv", rows, head=("date", "a", "label"))
    found = open_files(path).collection
    if what:
        assert found.channels == ("a",)
        assert f"'date' is left out: its cells are {what}" in found.remarks[0]
    else:
        assert found.channels == ("date=full", "date=part", "a")
    assert open_files(path, {"channels": "a"}).collection.channels == ("a",)
    asked = {"time": "date", "split": "time"}
    if cells[0] == "01/14/2024":  # no month is the 14th
        # A split by time needs three times.
        later = [["03/05/2024", i % 7, "xy"[i % 2]] for i in range(10)]
        path = write(tmp_path / "later.csv", [*rows, *later], head=("date", "a", "label"))
        assert open_files(path, asked).reading.writing.dates == "monthfirst"
    else:
        with pytest.raises(DataError, match=r"column 'date': expected a time.*|no time"):
            open_files(path, asked)
    rows = [[cells[i % 2], f"a fine film of {i} parts", "xy"[i % 2]] for i in range(40)]
    path = write(tmp_path / "texts.csv", rows, head=("date", "text", "label"))
    assert open_files(path).collection.kind == "texts"


def test_the_latest_rows_are_the_test_by_a_guessed_date(tmp_path):
    rows = [[f"2024-01-{i + 1:02d}", i % 7, "xy"[i % 2]] for i in range(30)]
    path = write(tmp_path / "rows.csv", rows, head=("date", "a", "label"))
    found = open_files(path, {"split": "time"})
    assert found.reading.time == "date"
    assert (found.parts[-6:] == 2).all()


def test_a_column_named_id_without_ids_stays_a_feature(tmp_path):
    def opened(cells, **reading):
        rows = [[cell, i % 7, "xy"[i % 2]] for i, cell in enumerate(cells)]
        path = write(tmp_path / "rows.csv", rows, head=("case", "a", "label"))
        return open_files(path, {"kind": "rows", **reading}).collection

    words = [("upper", "lower", "mixed")[i % 3] for i in range(40)]
    assert opened(words).channels == ("case=lower", "case=mixed", "case=upper", "a")
    with pytest.raises(DataError, match="the id 'upper' comes twice"):
        opened(words, id="case")
    found = opened([i // 2 for i in range(40)])
    assert found.channels == ("a",)
    assert "column 'case' is left out; so that no case is in two splits" in found.remarks[0]
    gap = [f"S{i}" if i != 4 else "" for i in range(40)]
    found = opened(gap)
    assert (found.ids, found.channels) == (None, ("a",))
    assert found.remarks[0].endswith("row 6, column 'case': is empty, so it is read as no id")
    with pytest.raises(DataError, match="row 6, column 'case': expected a value in every row"):
        opened(gap, id="case")
    rows = [[i // 2, f"a fine film of {i} parts", "xy"[i % 2]] for i in range(40)]
    path = write(tmp_path / "texts.csv", rows, head=("id", "text", "label"))
    found = open_files(path, {"kind": "texts"}).collection
    assert found.remarks == ["column 'id' is left out; so that no id is in two splits: --group id"]


# --- later rows -----------------------------------------------------------------------------------


def test_columns_of_few_words_only_in_the_first_rows_are_dropped(tmp_path):
    rows = [[i % 7, f"p{i // 200 if i < 2000 else i}", "xy"[i % 2]] for i in range(2500)]
    path = write(tmp_path / "a.csv", rows, head=("a", "place", "label"))
    found = open_files(path).collection
    assert (found.channels, found.words) == (("a",), {})
    remedy = "to read each of them as a column of its own: --channels a,place"
    assert found.remarks == [
        f"column 'place' is left out: its cells are words of 510 kinds; {remedy}"
    ]
    assert found.taken["columns"] == "a"
    source = open_files(path, {"channels": "a,place"})
    learned = {rows[number][1] for number in source.training}
    assert len(source.collection.channels) == 1 + len(learned)
    path = write(tmp_path / "b.csv", [row[1:] for row in rows], head=("place", "label"))
    with pytest.raises(DataError, match="no column is left for a model to read: column 'place'"):
        open_files(path)


def test_sorted_numbers_and_sorted_classes_are_distinguished(tmp_path):
    def rows(of):
        return [[i % 7, i % 5, of(i)] for i in range(6000)]

    path = write(tmp_path / "a.csv", rows(lambda i: i // 200 if i < 4000 else i // 4))
    found = open_files(path)
    assert (found.reading.task, found.collection.labels[-1]) == ("regression", 1499.0)
    (line,) = found.collection.remarks
    assert line.startswith("column 'label' is read as numbers: there are 520 different ones, of wh")
    asked = open_files(path, {"task": "classification"})
    assert (len(asked.classes), asked.collection.remarks) == (520, [])
    found = open_files(write(tmp_path / "a.csv", rows(lambda i: i // 60)))
    assert (found.reading.task, len(found.classes)) == ("classification", 100)


# --- notation of cells ----------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "odd"), [(40, 30), (40, 39), (2500, 1500), (2500, 2400)])
@pytest.mark.parametrize("first", [True, False])
def test_an_unclosed_quote_is_refused_with_its_row(tmp_path, count, odd, first):
    lines = [f"{'xy'[i % 2]},a fine film of {i} parts" for i in range(count)]
    lines[odd] = f'"{lines[odd]}' if first else f'x,"{lines[odd][2:]}'
    path = tmp_path / "data.csv"
    path.write_text("label,text\n" + "\n".join(lines) + "\n")
    with pytest.raises(DataError, match=f"row {odd + 2}: a cell begins with a quote that is not"):
        open_files(path)


def test_quotes_within_cells_and_cells_of_several_lines_are_read(tmp_path):
    lines = [f"{'xy'[i % 2]},a fine film of {i} parts" for i in range(2500)]
    lines[7] = 'y,"a fine" film of seven parts'
    lines[1999] = 'y,"a fine\n\nfilm of many\nparts"'
    lines[-1] = 'y,"a fine\nfilm of the most parts"'
    path = tmp_path / "data.csv"
    for end in ("", "\n", "\n\n"):
        path.write_text("label,text\n" + "\n".join(lines) + end)
        found = open_files(path).collection
        assert len(found) == 2500
        assert found.samples[7] == "a fine film of seven parts"
        assert found.samples[1999].count("\n") == 3
        assert found.place(2499)["row"] == 2501


@pytest.mark.parametrize(("name", "sign"), [("a.csv", ";"), ("a.tsv", "\t"), ("a.csv", "|")])
def test_decimal_commas_do_not_divide_a_file_without_names(tmp_path, name, sign):
    rows = [[f"{i % 7},{i % 3}", f"{i % 5},9", "xy"[i % 2]] for i in range(40)]
    (tmp_path / name).write_text("\n".join(sign.join(row) for row in rows))
    with pytest.raises(DataError, match="decimal commas are written as points"):
        open_files(tmp_path / name)


def test_files_named_tsv_are_divided_by_tabs(tmp_path):
    lines = [f"{i % 7},{i % 3}\t{i % 5},{i % 4}" for i in range(40)]
    path = tmp_path / "a.tsv"
    path.write_text("a,b\tc,d\n" + "\n".join(lines))
    with pytest.raises(DataError, match=r"column 'a,b': .*decimal commas.*, got '0,0'"):
        open_files(path)
    path.write_text("a,label\n" + "\n".join(f"{i % 7},{'xy'[i % 2]}" for i in range(40)))
    assert open_files(path).collection.channels == ("a",), "no tab in it"


def test_a_label_with_decimal_commas_is_refused(tmp_path):
    rows = [[i, i % 7, f"{i % 3},{i % 4}"] for i in range(60)]
    path = write(tmp_path / "a.csv", rows, delimiter=";")
    with pytest.raises(DataError, match=r"row 2, column 'label': .*decimal commas.*task class"):
        open_files(path)
    found = open_files(path, {"task": "classification"}).collection
    assert len(found.labels.names) == 12


# --- ambiguous arrays and dates -------------------------------------------------------------------


def test_dates_are_times_of_series_under_any_name(tmp_path):
    rows = [[i // 5, f"2024-03-0{i % 5 + 1} 12:00", i % 3, "xy"[i // 5 % 2]] for i in range(100)]
    head = ("id", "when", "a", "label")
    found = open_files(write(tmp_path / "one.csv", rows, head=head)).collection
    assert found.reading.time == "when"
    assert np.diff(found.times[0]).tolist() == [86400.0] * 4
    rows = [[*row[:2], row[1], *row[2:]] for row in rows]  # which of two is not known
    head = ("id", "when", "seen", "a", "label")
    found = open_files(write(tmp_path / "two.csv", rows, head=head)).collection
    assert found.times is None
    assert any("'when' is left out: its cells are dates" in line for line in found.remarks)
    rows = [[i // 5, "now", i % 3, "xy"[i // 5 % 2]] for i in range(100)]
    head = ("id", "time", "a", "label")
    with pytest.raises(DataError, match=r"row 2, column 'time': expected a time.*, got 'now'"):
        open_files(write(tmp_path / "now.csv", rows, head=head))


def test_dates_and_numeric_times_are_distinguished(tmp_path):
    rows = [[i // 5, i % 5, i % 3, "xy"[i // 5 % 2]] for i in range(100)]
    dates = [[row[0], f"2024-03-0{row[1] + 1}", *row[2:]] for row in rows]
    head = ("id", "time", "a", "label")
    for name, mine, other, needed in (
        ("numbers", rows, dates, "a time that is a number, .*, got '2024-03-01'"),
        ("dates", dates, rows, "a time that is a date, .*, got '0'"),
    ):
        same = write(tmp_path / f"{name}.csv", mine, head=head)
        facts = open_files(same).dataset("train").describe()
        new = write(tmp_path / "new.csv", other, head=head)
        encoder = SimpleNamespace(channels=1)
        assert len(read_unlabelled([same], facts, encoder)) == 20
        with pytest.raises(DataError, match=f"row 2, column 'time': expected {needed}"):
            read_unlabelled([new], facts, encoder)
        del facts["source"]["dated"]  # as of a run of an earlier version
        facts["source"]["scaling"]["clocked"] = False
        assert len(read_unlabelled([new], facts, encoder)) == 20
    many = rows * 30
    many = [[i // 5, *row[1:]] for i, row in enumerate(many)]
    many[2500][1] = "2024-03-01"
    with pytest.raises(DataError, match=r"row 2502, column 'time': .* a time that is a number"):
        open_files(write(tmp_path / "many.csv", many, head=head))


def test_ambiguous_arrays_are_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 12, 2))
    y = np.arange(40) % 2

    def opened(**arrays):
        np.savez(tmp_path / "x.npz", **arrays)
        return open_files(tmp_path / "x.npz").collection

    with pytest.raises(DataError, match=r"'X': expected real numbers, got .* of complex128"):
        opened(X=x + 1j, y=y)
    with pytest.raises(DataError, match=r"'X': expected samples, got shape \(0, 12, 2\)"):
        opened(X=x[:0], y=y[:0])
    with pytest.raises(DataError, match=r"file of its own: train.npz, test.npz"):
        opened(X_train=x, y_train=y, X_test=x, y_test=y)
    assert not opened(X=x, y=y).remarks
    (remark,) = opened(X=x.transpose(0, 2, 1), y=y).remarks
    assert "read as series of 2 points in 12 channels; if it is (series, channels" in remark
    (remark,) = opened(X=np.uint8(100 * np.abs(x)), y=y).remarks
    assert "holds bytes (40, 12, 2), as pictures do" in remark
    points = np.random.default_rng(0).normal(size=(40, 3, 9))
    (remark,) = opened(points=points, label=y).remarks
    assert "read as 3 points of 9 numbers; if they are (coordinates, points)" in remark
    assert not opened(points=points.transpose(0, 2, 1), label=y).remarks
    field = np.random.default_rng(0).normal(size=(40, 8, 8, 2))
    (remark,) = opened(inputs=field, outputs=field).remarks
    assert "read as 8 channels on a grid of 8 × 2; if its channels come last" in remark
    assert not opened(inputs=np.moveaxis(field, -1, 1), outputs=field[:, None, ..., 0]).remarks


def test_undeclared_timestamps_of_ts_files_are_reported(tmp_path):
    head = ["@problemName x", "@classLabel true 0 1", "@data"]
    lines = [f"(0,{i}),(1,2),(7,4):{i % 2}" for i in range(20)]
    (tmp_path / "x.ts").write_text("\n".join([*head, "", *lines]))
    (remark,) = open_files(tmp_path / "x.ts").collection.remarks
    assert "its time stamps are not read" in remark
    (tmp_path / "y.ts").write_text("\n".join([*head, *(f"{i},2,4:{i % 2}" for i in range(20))]))
    assert not open_files(tmp_path / "y.ts").collection.remarks


def test_mismatched_arrays_of_times_and_lengths_are_refused(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 6, 2))
    y = np.arange(20) % 2

    def opened(**arrays):
        np.savez(tmp_path / "a.npz", y=y, **arrays)
        return open_files(tmp_path / "a.npz").collection

    assert opened(X=x, times=np.arange(6.0)).times[3].tolist() == list(range(6))
    assert len(opened(X=x, times=np.tile(np.arange(6.0), (20, 1))).times) == 20
    with pytest.raises(
        DataError, match=r"'t': expected the times .*\(20,\) .*; it has one per sample"
    ):
        opened(X=x, t=np.arange(20.0))
    with pytest.raises(DataError, match=r"'times': expected the times of the points.*\(9,\)"):
        opened(X=x, times=np.arange(9.0))
    flat = x.reshape(120, 2)
    even = np.full(20, 6)
    assert opened(values=flat, lengths=even, times=np.tile(np.arange(6.0), 20)).times[3][5] == 5
    for lengths, why in (
        (even.astype(float), r"expected whole numbers \(N,\), got shape \(20,\) of float64"),
        (np.where(np.arange(20) == 4, 0, even), "of sample 4: expected 1 point or more, got 0"),
        (np.r_[even[:-2], 18, -6], "of sample 19: expected 1 point or more, got -6"),
    ):
        with pytest.raises(DataError, match=f"'lengths'.*{why}"):
            opened(values=flat, lengths=lengths)
    flat[6:12] = np.nan
    with pytest.raises(DataError, match="sample 1 of 'values' holds no number"):
        opened(values=flat, lengths=even)


def test_damaged_arrays_are_named(tmp_path):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.random.default_rng(0).normal(size=(20, 60)), y=np.arange(20) % 2)
    content = bytearray(path.read_bytes())
    content[400:440] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"not a valid .npz file .*; it is missing"):
        open_files(path)
    with path.open("wb") as file:
        np.save(file, np.zeros((20, 60)))
    with pytest.raises(DataError, match=r"got one array, as .npy files hold"):
        open_files(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.csv", "x,y\n1,2\n")
    with pytest.raises(DataError, match=r"expected only arrays .*, got 'a.csv' as well"):
        open_files(path)
    np.savez(path, data=np.float64(3), label=np.arange(20) % 2)
    with pytest.raises(DataError, match=r"'data': expected samples, got shape \(\)"):
        open_files(path)


# --- tasks and predictions ------------------------------------------------------------------------


def test_an_unsupported_task_is_refused(tmp_path):
    rows = [[i, k, i + k, "xy"[(i + (k > 2) * (i == 3)) % 2]] for i in range(20) for k in range(5)]
    long = write(tmp_path / "long.csv", rows, head=("id", "time", "a", "label"))
    with pytest.raises(DataError, match="row 17: task: expected steps, got 'classification'; the"):
        open_files(long, {"task": "classification"})
    assert open_files(long, {"task": "steps"}).collection.steps is not None
    rows = write(tmp_path / "rows.csv", samples(40))
    texts = [[f"a fine film of {i} parts", "xy"[i % 2]] for i in range(40)]
    texts = write(tmp_path / "texts.csv", texts, head=("text", "label"))
    lines = "\n".join(f"{i},2,3:{'xy'[i % 2]}" for i in range(20))
    (tmp_path / "a.ts").write_text("@classLabel true x y\n@data\n" + lines)
    for path in (rows, texts, tmp_path / "a.ts"):
        with pytest.raises(DataError, match="got 'steps'; there is one label per sample"):
            open_files(path, {"task": "steps"})
    np.savez(tmp_path / "f.npz", inputs=np.ones((20, 8, 8)), outputs=np.ones((20, 8, 8)))
    for task in ("classification", "steps"):
        with pytest.raises(DataError, match=f"got '{task}'; fields are predicted from fields"):
            open_files(tmp_path / "f.npz", {"task": task})
    for i in range(12):
        file = tmp_path / "pictures" / "ab"[i % 2] / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(file)
    with pytest.raises(DataError, match="got 'regression'; the names of the folders are"):
        open_files(tmp_path / "pictures", {"task": "regression"})


def test_numeric_labels_of_ts_files_may_be_missing(tmp_path):
    def opened(labels, **reading):
        lines = [f"{i},2,3:{label}" for i, label in enumerate(labels)]
        (tmp_path / "a.ts").write_text("\n".join(["@problemName x", "@data", *lines]))
        return open_files(tmp_path / "a.ts", reading)

    numbers = [f"{i / 7:.3f}" for i in range(20)]
    assert opened(numbers).collection.task == "regression"
    with pytest.raises(DataError, match="series 3, column 'label': has no label"):
        opened([*numbers[:2], "?", *numbers[2:]], strict=True)
    assert len(opened([*numbers[:2], "?", *numbers[2:]]).collection) == 20
    with pytest.raises(DataError, match="series 1: expected a number as the label of a regression"):
        opened(["x", "y"] * 10, task="regression")


def test_groups_across_split_files_are_reported(tmp_path):
    for name, first in (("train", 0), ("test", 5)):
        rows = [[i % 7, f"p{first + i % 8}", "xy"[i % 3 == 0]] for i in range(40)]
        write(tmp_path / f"{name}.csv", rows, head=("a", "patient", "label"))
    (line,) = open_files(tmp_path, {"group": "patient"}).collection.remarks
    assert line.startswith("3 of 13 values of 'patient' are in several parts, as the files are")
    remarks = open_files(tmp_path / "train.csv", {"group": "patient"}).collection.remarks
    assert not [remark for remark in remarks if "are in several parts" in remark]


def test_few_samples_of_each_class_are_divided_by_groups(tmp_path):
    rows = [[i, f"p{i}", "xy"[i % 2]] for i in range(8)]
    path = write(tmp_path / "a.csv", rows, head=("a", "patient", "label"))
    assert np.bincount(open_files(path, {"group": "patient"}).parts).min() > 0


def test_texts_are_read_from_files_and_standard_input(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes("\ufeffa fine film\na dull film\n".encode())
    assert [text for _, text in read_lines(tmp_path / "a.txt")] == ["a fine film", "a dull film"]
    rows = [[f"a {'fine' if i % 2 else 'dull'} film", "xy"[i % 2]] for i in range(40)]
    path = write(tmp_path / "a.csv", rows, head=("text", "label"))
    facts = open_files(path, {"text": "text"}).dataset("train").describe()
    for content, texts in (
        ("texture and context, fine\na dull film", ["texture and context, fine", "a dull film"]),
        ("id\ttext\n7\ta fine, long film", ["a fine, long film"]),
        ("\ufefftext\na fine film", ["a fine film"]),
    ):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content.encode())))
        assert list(read_unlabelled(["-"], facts, None).texts) == texts
    own = write(tmp_path / "stdin.csv", [["a fine film"]], head=("text",))  # a file of that name
    assert read_unlabelled([own], facts, None).places[0]["file"] == str(own)


def test_a_picture_may_be_predicted_twice(tmp_path):
    for i in range(12):
        Image.fromarray(np.full((8, 8, 3), i, np.uint8)).save(tmp_path / f"{i}.png")
    rows = [[f"{i}.png", "xy"[i % 2]] for i in range(12)]
    path = write(tmp_path / "a.csv", rows, head=("path", "label"))
    facts = open_files(path).dataset("train").describe()
    twice = [["3.png", ""], ["4.png", ""], ["3.png", ""]]
    new = write(tmp_path / "new.csv", twice, head=("path", ""))
    asked = read_unlabelled([new], facts, SimpleNamespace(input_shape=(3, 8, 8)))
    first, _, last = asked.batch([0, 1, 2])
    assert torch.equal(first, last)
    write(path, [*rows, rows[3]], head=("path", "label"))
    with pytest.raises(DataError, match=r"'3.png' comes twice"):
        open_files(path)


# --- padded arrays, times, channels, folders ------------------------------------------------------


def test_padded_samples_keep_their_lengths(tmp_path):
    x = np.pad(np.ones((20, 4, 2)), ((0, 0), (0, 6), (0, 0)))
    once = {"lengths": np.full(20, 4), "y": np.arange(20) % 2}
    for name, values in (("three", x), ("two", x[:, :, 0])):
        np.savez(tmp_path / f"{name}.npz", X=values, **once)
        found = open_files(tmp_path / f"{name}.npz").collection
        assert {len(sample) for sample in found.samples} == {4}
    wrong = {**once, "lengths": np.full(20, 11)}
    np.savez(tmp_path / "long.npz", X=x, **wrong)
    with pytest.raises(DataError, match=r"each at most 10, as 'X' has, .*the largest is 11"):
        open_files(tmp_path / "long.npz")
    np.savez(tmp_path / "flat.npz", X=x.reshape(-1, 2)[:80], **once)
    assert {len(sample) for sample in open_files(tmp_path / "flat.npz").collection.samples} == {4}


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_dates_in_arrays_are_seconds_in_any_unit(tmp_path, unit):
    days = np.datetime64("2024-01-01") + np.arange(5) * np.timedelta64(1, "D")
    x = np.random.default_rng(0).normal(size=(20, 5, 1))
    y = np.arange(20) % 2
    np.savez(tmp_path / "x.npz", x=x, times=days.astype(f"M8[{unit}]"), y=y)
    times = open_files(tmp_path / "x.npz").collection.times
    assert np.diff(times[0]).tolist() == [86400.0] * 4
    np.savez(tmp_path / "words.npz", x=x, times=days.astype(str), y=y)
    with pytest.raises(DataError, match="expected times: numbers, or numpy's dates"):
        open_files(tmp_path / "words.npz")


def test_non_finite_values_of_fields_are_refused(tmp_path):
    arrays = {"x": np.ones((8, 5, 1)), "positions": np.ones((8, 5, 1))}
    np.savez(tmp_path / "f.npz", y=np.array(list("ab" * 4)), **arrays)
    with pytest.raises(DataError, match=r"'y': expected numbers, got .* of <U1; .* name the kind"):
        open_files(tmp_path / "f.npz")


def test_clouds_and_fields_without_a_point_are_named(tmp_path):
    cloud = np.random.default_rng(0).normal(size=(8, 6, 4))
    cloud[3, :, 3] = np.nan  # a scan without intensities
    np.savez(tmp_path / "c.npz", points=cloud, label=np.arange(8) % 2)
    with pytest.raises(DataError, match="every point of sample 3 of 'points' has a NaN"):
        open_files(tmp_path / "c.npz")
    places = np.full((8, 6, 2), np.nan)
    places[:5] = 0.5
    np.savez(tmp_path / "f.npz", coordinates=places, inputs=cloud[..., :1], outputs=cloud[..., :1])
    with pytest.raises(DataError, match="sample 5 has no point whose coordinates are all there"):
        open_files(tmp_path / "f.npz")


def test_fields_on_points_and_on_grids_are_distinguished(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 9, 1))
    np.savez(tmp_path / "points.npz", coordinates=rng.random((12, 9, 2)), inputs=x, outputs=x)
    grid = rng.normal(size=(12, 1, 8, 8))
    np.savez(tmp_path / "grid.npz", inputs=grid, outputs=grid)
    for mine, other in (("points", "grid"), ("grid", "points")):
        facts = open_files(tmp_path / f"{mine}.npz").dataset("train").describe()
        with pytest.raises(
            DataError, match=r"expected fields on (points|a grid), .*, as the run was"
        ):
            read_unlabelled([tmp_path / f"{other}.npz"], facts, SimpleNamespace(channels=1))


def test_a_channel_is_not_the_label(tmp_path):
    rng = random.Random(0)
    rows = [[rng.random(), rng.random(), rng.random(), "ab"[i % 2]] for i in range(60)]
    file = write(tmp_path / "a.csv", rows, head=("x", "y", "z", "surface"))
    assert open_files(file, {"channels": ["x", "y", "z"]}).collection.reading.label == "surface"
    with pytest.raises(DataError, match="channels: 'y' is the label, which no model reads"):
        open_files(file, {"channels": ["x", "y"], "label": "y"})
    plain = tmp_path / "plain.csv"
    with plain.open("w", newline="") as out:
        csv.writer(out).writerows([i % 3, *row[:2], i % 2] for i, row in enumerate(rows))
    for channels, label in ((2, 3), "column 1"), ((1, 2, 3), "column 4"):
        reading = {"channels": [f"column {i}" for i in channels]}
        assert open_files(plain, reading).collection.reading.label == label


def test_pictures_outside_the_split_folders_are_named(tmp_path):
    def picture(*parts):
        path = tmp_path.joinpath(*parts)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (8, 8), len(parts)).save(path)
        return path

    for name in ("cat", "dog"):
        for part in ("train", "test"):
            for i in range(3):
                picture(name, part, f"{i}.png")
    assert (open_files(tmp_path).parts == 2).sum() == 6
    loose = picture("cat", "1.png")
    with pytest.raises(DataError, match=r"1.png: lies beside (test|train)/"):
        open_files(tmp_path)
    loose.unlink()
    odd = picture("cat", "more", "1.png")
    with pytest.raises(DataError, match=r"more: lies beside (test|train)/"):
        open_files(tmp_path)
    shutil.rmtree(odd.parent)
    picture("cow", "1.png")
    with pytest.raises(DataError, match="lies in no train/, val/ or test/, which other classes"):
        open_files(tmp_path)


def test_a_sample_without_time_is_refused_in_a_split_by_time(tmp_path):
    times = np.arange(20.0)
    times[4] = np.nan
    x = np.random.default_rng(0).normal(size=(20, 8, 3))
    y = np.arange(20) % 2
    np.savez(tmp_path / "c.npz", points=x, label=y, time=times)
    with pytest.raises(DataError, match="has no time, by which the samples are divided"):
        open_files(tmp_path / "c.npz", {"split": "time"})


def test_names_of_files_do_not_matter_without_a_split(tmp_path):
    x = np.random.default_rng(0).normal(size=(20, 5, 1))
    y = np.arange(20) % 2
    np.savez(tmp_path / "known.npz", x=x, y=y)
    facts = open_files(tmp_path / "known.npz").dataset("train").describe()
    for name in ("a", "test"):
        (tmp_path / "new").mkdir(exist_ok=True)
        np.savez(tmp_path / "new" / f"{name}.npz", x=x[:3])
    assert len(read_unlabelled([tmp_path / "new"], facts, SimpleNamespace(channels=1))) == 6


def test_unnamed_binary_files_are_recognised_by_their_signature():
    assert _suffix(b"PAR1\x15\rabc\n", Reading(kind="rows")) == ".parquet"
    assert _suffix(b"a fine film\ra dull one\r", Reading(kind="texts", text="said")) == ".txt"
    assert _suffix(b"said\ra fine film\r", Reading(kind="texts", text="said")) == ".csv"


def test_pictures_of_a_table_are_checked_before_training(tmp_path):
    names = [f"{i}.png" for i in range(12)]
    for i, name in enumerate(names):
        Image.new("L", (8, 8), i).save(tmp_path / name)
    file = write(
        tmp_path / "a.csv", [[n, "xy"[i % 2]] for i, n in enumerate(names)], ("path", "label")
    )
    assert len(open_files(file).collection) == 12
    (tmp_path / names[5]).write_bytes(b"no picture")
    file.touch()
    with pytest.raises(DataError, match=r"5.png: not a readable picture"):
        open_files(file, {"strict": True})
    found = open_files(file).collection
    assert len(found) == 11
    assert any("5.png" in remark for remark in found.remarks)
