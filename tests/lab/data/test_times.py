"""Times keep their digits: they are subtracted as integers, whatever their source."""

from __future__ import annotations

import numpy as np
import pytest

from fredholm.errors import DataError
from fredholm.lab.data.files import open_files
from fredholm.lab.data.files.times import ticks_of_array
from fredholm.lab.data.samples import collect_samples

START = 1_767_225_600  # 2026-01-01
POINTS, SERIES = 6, 20


def table(path, stamp):
    """Write series of six points, with times formatted by ``stamp(series, point)``."""
    rows = ["id,time,x,label"]
    for i in range(SERIES):
        rows += [f"{i},{stamp(i, k)},{(i + k) % 5},{'ab'[i % 2]}" for k in range(POINTS)]
    path.write_text("\n".join(rows) + "\n")
    return path


def check(source, step: float) -> None:
    scaling = source.dataset("train").source["scaling"]
    assert not scaling["timed"], "regular times are a plain sequence"
    assert scaling["step"] == pytest.approx(step, rel=1e-9)
    assert all(np.allclose(np.diff(t), step, rtol=1e-6) for t in source.collection.times)


WRITTEN = {
    "decimals": (lambda i, k: f"{START + i}.{k:04d}", 1e-4),
    "fine decimals": (lambda i, k: f"{START + i}.{500 * k:09d}", 5e-7),
    "nanoseconds": (lambda i, k: f"{START + i}{500 * k:09d}", 500.0),
    "dates": (lambda i, k: f"2026-01-01T00:{i:02d}:00.{100 * k:06d}", 1e-4),
    "fine dates": (lambda i, k: f"2026-01-01T00:{i:02d}:00.{500 * k:09d}", 5e-7),
    "zoned dates": (lambda i, k: f"2026-01-01T00:{i:02d}:00.{500 * k:09d}+01:00", 5e-7),
    "day first": (lambda i, k: f"13.03.2026 6:{i:02d}:00.{500 * k:09d}", 5e-7),
    "months": (lambda i, k: f"03/13/2026 06:{i:02d}:{k:02d} PM", 1.0),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_times_in_a_table_keep_their_digits(tmp_path, name):
    stamp, step = WRITTEN[name]
    check(open_files(table(tmp_path / "a.csv", stamp)), step)


@pytest.mark.parametrize(("unit", "step"), [("us", 1e-4), ("ns", 5e-7)])
def test_times_in_parquet_keep_their_digits(tmp_path, unit, step):
    arrow, parquet = (pytest.importorskip(n) for n in ("pyarrow", "pyarrow.parquet"))
    ticks = {"us": 100, "ns": 500}[unit]
    scale = {"us": 10**6, "ns": 10**9}[unit]
    times = [(START + i) * scale + ticks * k for i in range(SERIES) for k in range(POINTS)]
    columns = {
        "id": [i for i in range(SERIES) for _ in range(POINTS)],
        "time": arrow.array(times, arrow.timestamp(unit, "UTC")),
        "x": [(i + k) % 5 for i in range(SERIES) for k in range(POINTS)],
        "label": ["ab"[i % 2] for i in range(SERIES) for _ in range(POINTS)],
    }
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    check(open_files(tmp_path / "a.parquet"), step)


ARRAYS = {
    "int64": (START * 10**9 + 500 * np.arange(POINTS), 500.0),
    "datetime64": ((START * 10**9 + 500 * np.arange(POINTS)).astype("M8[ns]"), 5e-7),
    "float64": (START + 1e-4 * np.arange(POINTS), 1e-4),
    "days": (np.datetime64("2026-01-01") + np.arange(POINTS), 86400.0),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_times_in_arrays_keep_their_digits(tmp_path, name):
    times, step = ARRAYS[name]
    x = np.random.default_rng(0).normal(size=(SERIES, POINTS, 1))
    y = np.arange(SERIES) % 2
    np.savez(tmp_path / "a.npz", X=x, y=y, times=times)
    check(open_files(tmp_path / "a.npz"), step)
    samples = [(times, values) for values in x]
    found = collect_samples(samples, "series", "classification")
    assert found.times is not None
    assert np.allclose(np.diff(found.times[0]), step, rtol=1e-6)


def test_common_notations_of_times_are_read(tmp_path):
    path = table(tmp_path / "a.csv", lambda i, k: f"2026-01-01T00:{i:02d}:{k % 4:02d}")
    with pytest.raises(
        DataError, match=r"later time of '0' than 2026-01-01T00:.*, got 2026-01-01T00:00:00"
    ):
        open_files(path)
    path = table(tmp_path / "b.csv", lambda i, k: f"{START}.000{k // 2}")
    with pytest.raises(DataError, match=rf"later time of '0' than {START}, got {START}; sort"):
        open_files(path)
    source = open_files(table(tmp_path / "c.csv", lambda i, k: f"2026-01-01 00:{i:02d}:{k:02d}"))
    assert source.description["first"][0]["beginning"].startswith("2026-01-01T00:00:00: 0; +1: 1")
    assert ticks_of_array(np.array([0.1, 0.25])).text(1) == "0.25"


def test_repeated_times_of_clock_changes_are_named(tmp_path):
    hours = ["01:30", "02:00", "02:30", "02:00", "02:30", "03:00"]
    path = table(tmp_path / "a.csv", lambda i, k: f"2026-10-25 {hours[k]}")
    with pytest.raises(DataError, match=r"clocks were put back .* write times with their zone"):
        open_files(path)


def test_ambiguous_days_and_months_are_refused(tmp_path):
    path = table(tmp_path / "a.csv", lambda i, k: f"03/0{k + 1}/2026 06:00")
    with pytest.raises(DataError, match="--read dates=dayfirst or --read dates=monthfirst"):
        open_files(path)
    first, other = (
        open_files(path, {"read": {"dates": f"{order}first"}}) for order in ("month", "day")
    )
    assert np.diff(first.collection.times[0]).tolist() == [86400.0] * 5
    assert np.diff(other.collection.times[0]).min() > 86400.0
    mixed = table(tmp_path / "b.csv", lambda i, k: ("13/01/2026", "01/14/2026")[k % 2])
    with pytest.raises(DataError, match="some dates have the day first and some the month"):
        open_files(mixed)
    guessed = open_files(table(tmp_path / "c.csv", lambda i, k: f"{13 + k}.03.2026"))
    assert ("read", "dates=dayfirst", "guessed") in [entry[:3] for entry in guessed.schema]


def test_the_latest_samples_are_ordered_to_the_nanosecond(tmp_path):
    rows = [f"{START}.{i:09d},{i % 7},{'ab'[i % 2]}" for i in range(40)]
    path = tmp_path / "a.csv"
    path.write_text("time,x,label\n" + "\n".join(rows))
    found = open_files(path, {"split": "time", "time": "time"})
    assert found.parts[-8:].tolist() == [2] * 8


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("(2026-01-01 12:30:00,1.5),(2026-01-01 12:31:00,2.5):a", None),
        ("(0,1),(1,2):(0,3),(2,4):a", "expected dimensions of the same times"),
        ("(0,1),(1,2,3):a", r"line 4: expected stamps \(time,value\)"),
        ("(0,1),(1):a", r"line 4: expected stamps \(time,value\)"),
        ("(0,1) (1,2):a", r"line 4: expected stamps \(time,value\)"),
    ],
)
def test_timestamps_of_ts_files_are_read_exactly_or_refused(tmp_path, line, match):
    dimensions = line.count(":(") + 1 if match is None or "same" in match else 1
    plain = ":".join(["(0,1),(1,2)"] * dimensions)
    lines = [f"{plain}:{'ab'[i % 2]}" for i in range(20)]
    head = ["@problemName x", "@classLabel true a b", "@data"]
    path = tmp_path / "a.ts"
    path.write_text("\n".join([*head, line, *lines]))
    if match is None:
        assert open_files(path).collection.samples[0][:, 0].tolist() == [1.5, 2.5]
        return
    with pytest.raises(DataError, match=match):
        open_files(path)
