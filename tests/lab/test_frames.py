"""Names and indices of data frames in estimators: matched or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, ClassVar

import numpy as np
import pyarrow
import pytest

from fredholm.errors import OptionError, ShapeError
from fredholm.estimators import FredholmClassifier, FredholmRegressor

TINY: dict[str, Any] = {"dim": 8, "depth": 1, "heads": 2, "epochs": 1, "random_state": 0}
NAMES = ("a", "b", "c")
LABELS = np.arange(12) % 2


def arrow(values: np.ndarray, names: tuple[str, ...] = NAMES) -> Any:
    return pyarrow.table({name: values[:, i] for i, name in enumerate(names)})


def pandas_frame(values: np.ndarray, names: tuple[str, ...] = NAMES) -> Any:
    return pytest.importorskip("pandas").DataFrame(values, columns=list(names))


def arrays(seed: int = 0, points: int = 9) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).normal(size=(12, points, 3)))


def permuted(frame: Any) -> Any:
    """Return the frame with its columns in another order."""
    names = ["c", "a", "b"]
    return frame.select(names) if hasattr(frame, "select") else frame[names]


def renamed(frame: Any) -> Any:
    names = ["a", "b", "d"]
    if hasattr(frame, "rename_columns"):
        return frame.rename_columns(names)
    return frame.set_axis(names, axis=1)


MAKERS = [pytest.param(arrow, id="pyarrow"), pytest.param(pandas_frame, id="pandas")]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", ["series", "clouds"])
def test_columns_are_matched_by_name(kind: str, make: Callable[..., Any], tmp_path):
    plain = arrays()
    frames = [make(values) for values in plain]
    model = FredholmClassifier(kind=kind, **TINY).fit(frames, LABELS)
    expected = FredholmClassifier(kind=kind, **TINY).fit(plain, LABELS).predict_proba(plain)
    np.testing.assert_array_equal(model.predict_proba(frames), expected)
    assert model.feature_names_in_.tolist() == list(NAMES)

    # Between fit and predict, in a saved estimator, and within one fit.
    turned = [permuted(frame) for frame in frames]
    np.testing.assert_array_equal(model.predict_proba(turned), expected)
    again = FredholmClassifier.load(model.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict_proba(turned), expected)
    mixed = [*frames[:5], *turned[5:]]
    both = FredholmClassifier(kind=kind, **TINY).fit(mixed, LABELS)
    np.testing.assert_array_equal(both.predict_proba(frames), expected)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("kind", ["series", "clouds"])
def test_other_columns_are_refused(kind: str, make: Callable[..., Any]):
    frames = [make(values) for values in arrays()]
    model = FredholmClassifier(kind=kind, **TINY).fit(frames, LABELS)
    needed = r"expected the columns 'a', 'b', 'c', which "
    with pytest.raises(
        OptionError, match=f"X, sample 2: {needed}the estimator was fitted on, got 'a', 'b', 'd'"
    ):
        model.predict([*frames[:2], renamed(frames[2])])
    with pytest.raises(OptionError, match=f"X, sample 11: {needed}sample 0 has, got 'a', 'b', 'd'"):
        FredholmClassifier(kind=kind, **TINY).fit([*frames[:11], renamed(frames[11])], LABELS)
    with pytest.raises(OptionError, match="X, sample 1: expected columns with names"):
        model.predict([frames[0], arrays()[1]])
    names = ["a", "a", "b"]
    twice = frames[0].rename_columns(names) if make is arrow else frames[0].set_axis(names, axis=1)
    with pytest.raises(OptionError, match="'a' twice"):
        model.predict([twice])


def test_names_on_one_side_only_give_a_warning():
    plain = arrays()
    frames = [arrow(values) for values in plain]
    with_names = FredholmClassifier(**TINY).fit(frames, LABELS)
    without = FredholmClassifier(**TINY).fit(plain, LABELS)
    with pytest.warns(UserWarning, match="X does not have valid feature names"):
        with_names.predict(plain)
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        without.predict(frames)
    assert not hasattr(with_names.fit(plain, LABELS), "feature_names_in_")


@pytest.mark.parametrize("make", MAKERS)
def test_columns_of_fields_are_matched_by_name(make: Callable[..., Any], tmp_path):
    plain = arrays()
    pairs = [(values[:, :2], values) for values in plain]
    answers = [2 * values[:, :2] for values in plain]
    expected = FredholmRegressor(kind="fields", **TINY).fit(pairs, answers)

    framed = [(make(x, ("x", "y")), make(v)) for x, v in pairs]
    named = [make(y, ("u", "v")) for y in answers]
    model = FredholmRegressor(kind="fields", **TINY).fit(framed, named)
    assert model.coordinate_names_in_.tolist() == ["x", "y"]
    turned = [(make(x[:, ::-1], ("y", "x")), permuted(make(v))) for x, v in pairs]
    for found, field in zip(model.predict(turned), expected.predict(pairs)):
        np.testing.assert_array_equal(found, field)

    swapped = [make(y[:, ::-1], ("v", "u")) for y in answers]
    score = expected.score(pairs, answers)
    again = FredholmRegressor.load(model.save(tmp_path / "model"))
    assert again.score(turned, swapped) == score
    mixed = FredholmRegressor(kind="fields", **TINY).fit(framed, [*named[:4], *swapped[4:]])
    assert mixed.score(pairs_as(make, pairs), named) == score
    with pytest.raises(OptionError, match="y, sample 0: expected the columns 'u', 'v'"):
        again.score(framed, [make(y, ("u", "w")) for y in answers])


def pairs_as(make: Callable[..., Any], pairs: list[Any]) -> list[Any]:
    return [(make(x, ("x", "y")), make(v)) for x, v in pairs]


def test_a_single_frame_is_refused():
    frame = arrow(arrays()[0])
    for kind in ("series", "clouds"):
        with pytest.raises(ShapeError, match="expected a list of frames, one per sample"):
            FredholmClassifier(kind=kind, **TINY).fit(frame, LABELS[:9])


def test_columns_of_dates_and_words_are_refused():
    start = datetime(2026, 3, 1)
    days = [start + timedelta(days=i) for i in range(9)]
    frames = [arrow(values).append_column("when", [days]) for values in arrays()]
    with pytest.raises(ShapeError, match="column 'when': expected numbers, got timestamp"):
        FredholmClassifier(**TINY).fit(frames, LABELS)
    words = [arrow(values).append_column("w", [["x"] * 9]) for values in arrays()]
    with pytest.raises(ShapeError, match="X, sample 0: expected columns of numbers"):
        FredholmClassifier(**TINY).fit(words, LABELS)


# --- times ----------------------------------------------------------------------------------------


def irregular() -> list[np.ndarray]:
    """Return irregular times in microseconds."""
    rng = np.random.default_rng(1)
    return [rng.integers(1, 5_000_000, 9).cumsum() for _ in range(12)]


def test_a_time_index_becomes_the_times():
    pandas = pytest.importorskip("pandas")
    plain = arrays()
    micros = irregular()
    start = np.datetime64("2026-03-29T00:30:00", "us")
    pairs = [(start + m.astype("timedelta64[us]"), v) for m, v in zip(micros, plain)]
    expected = FredholmClassifier(**TINY).fit(pairs, LABELS).predict_proba(pairs)

    def framed(times: list[Any]) -> list[Any]:
        return [pandas.DataFrame(v, index=t) for t, v in zip(times, plain)]

    dates = framed([pandas.DatetimeIndex(times) for times, _ in pairs])
    fitted = FredholmClassifier(**TINY).fit(dates, LABELS)
    np.testing.assert_array_equal(fitted.predict_proba(dates), expected)
    # With time zones: a change of the clock changes nothing.
    zoned = [frame.tz_localize("UTC").tz_convert("Europe/Berlin") for frame in dates]
    np.testing.assert_array_equal(fitted.predict_proba(zoned), expected)
    spans = framed([pandas.TimedeltaIndex(m.astype("timedelta64[us]")) for m in micros])
    np.testing.assert_array_equal(fitted.predict_proba(spans), expected)
    floats = framed([m / 1e6 for m in micros])
    seconds = FredholmClassifier(**TINY).fit(floats, LABELS)
    np.testing.assert_allclose(seconds.predict_proba(floats), expected, atol=1e-6)
    columns = [frame[0] for frame in dates]  # one column each, with the same index
    alone = FredholmClassifier(**TINY).fit(columns, LABELS)
    assert alone.facts_["source"]["scaling"]["timed"]


def test_an_ambiguous_index_is_refused():
    pandas = pytest.importorskip("pandas")
    frames = [pandas.DataFrame(values) for values in arrays()]
    model = FredholmClassifier(**TINY).fit(frames, LABELS)
    later = [frame.set_axis(range(40, 49)) for frame in frames]  # cut from one long table
    np.testing.assert_array_equal(model.predict_proba(later), model.predict_proba(frames))

    def refused(index: Any, match: str, error: type[Exception] = OptionError) -> None:
        odd = [*frames[:3], frames[3].set_axis(index)]
        for ask in (model.predict, lambda X: FredholmClassifier(**TINY).fit(X, LABELS[:4])):
            with pytest.raises(error, match=f"X, sample 3: {match}"):
                ask(odd)

    refused(range(0, 18, 2), "expected times or no index, got the whole numbers 0, 2, 4")
    refused(list("abcdefghi"), "expected an index of times, got 'a', 'b'")
    refused(pandas.period_range("2026", periods=9, freq="D"), "expected an index of times, got per")
    two = pandas.MultiIndex.from_product([["m"], range(9)])
    refused(two, "expected an index of one level")
    mixed = [frames[0].set_axis(np.arange(9) / 2), frames[1]]
    with pytest.raises(OptionError, match="X, sample 1: expected an index of times, as sample 0"):
        model.predict(mixed)


def test_rows_of_a_pair_must_have_one_order():
    pandas = pytest.importorskip("pandas")
    frames = [pandas.DataFrame(values) for values in arrays()]
    order = [8, 0, 1, 2, 3, 4, 5, 6, 7]
    times = pandas.Series(np.arange(9.0))
    with pytest.raises(OptionError, match="expected times and values with the same index"):
        FredholmClassifier(**TINY).fit([(times, frame.loc[order]) for frame in frames], LABELS)
    pairs = [(frame[[0, 1]], frame) for frame in frames]
    moved = [(frame[[0, 1]], frame.loc[order]) for frame in frames]
    model = FredholmRegressor(kind="fields", **TINY)
    with pytest.raises(OptionError, match="expected coordinates and values with the same index"):
        model.fit(moved, [frame[0] for frame in frames])
    with pytest.raises(OptionError, match="expected the field and its points in X with the same"):
        model.fit(pairs, [frame[0].loc[order] for frame in frames])
    model.fit(pairs, [frame[0] for frame in frames])


def test_grids_need_increasing_coordinates():
    pandas = pytest.importorskip("pandas")
    fields = [pandas.DataFrame(values) for values in arrays()]
    model = FredholmRegressor(kind="fields", **TINY).fit(fields, fields)
    plain = np.stack([frame.to_numpy() for frame in fields])
    np.testing.assert_array_equal(model.predict(fields), model.predict(plain))
    for turned, what in ((fields[3][[2, 0, 1]], "columns"), (fields[3].iloc[::-1], "rows")):
        with pytest.raises(OptionError, match=f"X, sample 3: expected {what} of a grid at numbers"):
            model.predict([*fields[:3], turned])
    turned = fields[1].iloc[::-1]
    with pytest.raises(OptionError, match="y, sample 1: expected the field and its points in X"):
        model.fit(fields, [fields[0], turned, *fields[2:]])
    with pytest.raises(OptionError, match="y, sample 1: expected rows of a grid at numbers"):
        model.fit(plain, [fields[0], turned, *fields[2:]])


def test_arrays_with_named_dimensions_are_refused():
    class Labelled:
        dims = ("times", "channels")
        coords: ClassVar[dict] = {}
        ndim = 2

    with pytest.raises(ShapeError, match="whose dimensions are not matched"):
        FredholmClassifier(kind="series", **TINY).fit([Labelled()] * 12, LABELS)


def test_dates_with_time_zones_are_times():
    plain = arrays()
    micros = irregular()
    start = datetime(2026, 3, 29, tzinfo=UTC)
    summer = timezone(timedelta(hours=2))
    utc = [[start + timedelta(microseconds=int(m)) for m in times] for times in micros]
    local = [[time.astimezone(summer) for time in times] for times in utc]
    words = [[time.isoformat() for time in times] for times in local]
    expected = None
    for clocks in (utc, local, words):
        pairs = list(zip(clocks, plain))
        found = FredholmClassifier(**TINY).fit(pairs, LABELS).predict_proba(pairs)
        expected = found if expected is None else expected
        np.testing.assert_array_equal(found, expected)


def test_dates_and_numbers_do_not_mix_as_times():
    plain = arrays()
    micros = irregular()
    dates = [(np.datetime64("2026-01-01", "us") + m, v) for m, v in zip(micros, plain)]
    numbers = [(m / 1e6, v) for m, v in zip(micros, plain)]
    with pytest.raises(OptionError, match=r"X, sample 1: expected times that are dates.*got num"):
        FredholmClassifier(**TINY).fit([dates[0], *numbers[1:]], LABELS)
    model = FredholmClassifier(**TINY).fit(dates, LABELS)
    with pytest.raises(OptionError, match="expected times that are dates, on which the estimator"):
        model.predict(numbers)
    with pytest.raises(OptionError, match="X, sample 0: expected times that are numbers, or dates"):
        model.predict([(["monday"] * 9, plain[0])])
