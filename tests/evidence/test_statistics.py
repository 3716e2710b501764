"""The test over seeds and samples: its two limits, its errors and its uses."""

from __future__ import annotations

import numpy as np
import pytest
from evidence.kit.answers import pack
from evidence.kit.claims import (
    COLLAPSE,
    EXPLORED,
    REPRODUCED,
    UNDECIDED,
    Claim,
    better,
    claims_section,
    judge,
    openness,
)
from evidence.kit.statistics import (
    Scores,
    beyond_best,
    crossed_interval,
    crossed_p,
    differences,
    paired,
    summarise,
)
from scipy.stats import ttest_1samp


def drawn(rng, seeds, samples, of_seeds, of_samples, rest, mean=0.0):
    """Draw from the mixed model with these standard deviations."""
    return (
        mean
        + of_seeds * rng.normal(size=(seeds, 1))
        + of_samples * rng.normal(size=(1, samples))
        + rest * rng.normal(size=(seeds, samples))
    )


def test_p_equals_students_over_seeds_where_samples_agree():
    seeds = np.array([0.1, 0.3, 0.2, 0.25, -0.1])
    numbers = np.repeat(seeds[:, None], 40, axis=1)
    assert crossed_p(numbers) == pytest.approx(ttest_1samp(seeds, 0).pvalue)
    assert crossed_p(numbers, 0.15) == pytest.approx(ttest_1samp(seeds, 0.15).pvalue)


def test_p_equals_students_over_samples_where_seeds_agree():
    samples = np.random.default_rng(0).normal(0.2, 1, 60)
    numbers = np.repeat(samples[None], 5, axis=0)
    assert crossed_p(numbers) == pytest.approx(ttest_1samp(samples, 0).pvalue)


def test_equal_numbers_have_p_0_or_1():
    assert crossed_p(np.full((5, 9), 0.1)) == 0.0
    assert crossed_p(np.full((5, 9), 0.1), 0.1) == 1.0
    assert crossed_p(np.zeros((5, 9))) == 1.0


@pytest.mark.parametrize(
    ("of_seeds", "of_samples", "rest"),
    [(0.05, 0.3, 0.5), (0.0, 0.3, 0.5), (0.0, 1.0, 0.2), (0.2, 0.0, 0.3)],
)
def test_p_is_below_5_percent_in_one_of_twenty_draws_without_a_difference(
    of_seeds, of_samples, rest
):
    """On 600 draws without a difference: two standard errors above 5% are 6.8%."""
    rng = np.random.default_rng(1)
    draws = [drawn(rng, 5, 100, of_seeds, of_samples, rest) for _ in range(600)]
    wrong = np.mean([crossed_p(numbers) < 0.05 for numbers in draws])
    assert wrong < 0.068
    seeds_alone = np.mean([ttest_1samp(numbers.mean(1), 0).pvalue < 0.05 for numbers in draws])
    if of_samples:
        assert seeds_alone > 2 * wrong, "seeds alone do not see that another test set differs"


def test_p_is_below_1_percent_in_one_of_a_hundred_draws_without_a_difference():
    """The error over seeds and samples alone would be too small here, in 1.5% of 2,000 draws."""
    rng = np.random.default_rng(4)
    draws = [drawn(rng, 5, 200, 0.1, 1.0, 0.1) for _ in range(2_000)]
    assert np.mean([crossed_p(numbers) < 0.01 for numbers in draws]) < 0.0145


@pytest.mark.parametrize("of_seeds", [0.02, 0.2])
def test_p_is_at_least_that_over_the_seeds_and_that_over_the_samples(of_seeds):
    rng = np.random.default_rng(5)
    for _ in range(50):
        numbers = drawn(rng, 5, 60, of_seeds, 0.4, 0.5, mean=0.2)
        p = crossed_p(numbers)
        assert p >= ttest_1samp(numbers.mean(1), 0).pvalue * (1 - 1e-9)
        assert p >= ttest_1samp(numbers.mean(0), 0).pvalue * (1 - 1e-9)


def test_p_finds_a_true_difference_in_nine_of_ten_draws():
    rng = np.random.default_rng(2)
    draws = [drawn(rng, 5, 400, 0.01, 0.1, 0.4, mean=0.05) for _ in range(100)]
    assert np.mean([crossed_p(numbers) < 0.05 for numbers in draws]) > 0.9


@pytest.mark.parametrize("of_seeds", [0.0, 0.1, 1.0])
def test_an_interval_ends_where_p_is_5_percent(of_seeds):
    numbers = drawn(np.random.default_rng(3), 6, 50, of_seeds, 0.3, 0.5)
    low, high = crossed_interval(numbers)
    assert low < numbers.mean() < high
    assert crossed_p(numbers, low) == pytest.approx(0.05)
    assert crossed_p(numbers, high) == pytest.approx(0.05)


def test_an_interval_of_equal_numbers_is_a_point():
    assert crossed_interval(np.full((5, 9), 0.25)) == (0.25, 0.25)


def test_a_share_of_the_other_row_is_subtracted_from_every_sample():
    one, other = [1.0, 1.0, 0.0, 1.0], [1.0, 0.0, 1.0, 0.0]
    pair = tuple(
        {"accuracy": sum(right) / 4, "answers": {"accuracy": pack(right)}} for right in (one, other)
    )
    found = differences([pair, pair], "accuracy", share=0.5)
    assert found == [0.5, 0.5]
    assert found.samples.tolist() == [[0.5, 1.0, -0.5, 1.0]] * 2


def runs(rng, share, samples, seeds=5, answers=True, **shares):
    """Rows of variants that answer rightly with these probabilities, of one test set."""
    rows = []
    for variant, p in {"a": share, **shares}.items():
        for seed in range(seeds):
            right = (rng.random(samples) < p).astype(float)
            row = {"variant": variant, "seed": seed, "accuracy": float(right.mean())}
            if answers:
                row["answers"] = {"accuracy": pack(right)}
            rows.append(row)
    return rows


def test_six_series_of_370_make_no_significant_difference():
    """All seeds of one model get the same six samples right that all of the other get wrong, and
    one of them differs by a seventh, so that the seeds are not equal.
    """
    rows = []
    for variant, right in (("a", 360), ("b", 354)):
        for seed in range(5):
            values = np.zeros(370)
            values[: right + (variant == "a" and seed == 0)] = 1
            # Elsewhere both err, each on four samples of its own.
            lost = range(300, 304) if variant == "a" else range(310, 314)
            values[list(lost)] = 0
            row = {"variant": variant, "seed": seed, "accuracy": float(values.mean())}
            rows.append(row | {"answers": {"accuracy": pack(values)}})
    alone = [{key: row[key] for key in ("variant", "seed", "accuracy")} for row in rows]
    assert summarise(paired(alone, "a", "b")).p < 0.001
    found = summarise(paired(rows, "a", "b"))
    assert found.samples == 370
    assert found.p > 0.05
    claim = Claim("a beats b", sample=better("s", "a", "b"), primary=True)
    assert judge([claim], {"s": alone})[0].verdict == REPRODUCED
    assert judge([claim], {"s": rows})[0].verdict == UNDECIDED


def test_samples_are_used_where_both_sides_have_them_and_pages_note_it():
    rng = np.random.default_rng(3)
    rows = runs(rng, 0.9, 500, b=0.7)
    claim = Claim("a beats b", sample=better("s", "a", "b"), primary=True)
    text = claims_section([claim], {"s": rows}, {"primary": [claim.text]})
    assert "(5 seeds, 500 samples) | seeds and samples | < 0.001 | reproduced |" in text

    older = [row for row in rows if row["variant"] == "a"] + runs(rng, 0.9, 500, answers=False)
    older += [{**row, "variant": "b"} for row in runs(rng, 0.7, 500, answers=False)]
    mixed = [row for row in rows if row["variant"] == "a"]
    mixed += [row for row in older if row["variant"] == "b"]
    text = claims_section([claim], {"s": mixed}, {"primary": [claim.text]})
    assert "(5 seeds) | seeds alone |" in text
    assert paired(mixed, "a", "b").samples is None


def test_the_best_of_others_is_chosen_by_seed_with_its_answers():
    rng = np.random.default_rng(4)
    rows = runs(rng, 0.9, 200, b=0.7, c=0.72)
    found = beyond_best(rows, "a", ("b", "c"))
    assert found.samples is not None
    assert found.samples.mean(1).tolist() == pytest.approx(list(found))


def test_test_sets_of_unequal_size_are_not_compared_by_sample():
    rng = np.random.default_rng(5)
    rows = runs(rng, 0.9, 200) + [{**row, "variant": "b"} for row in runs(rng, 0.7, 100)]
    assert paired(rows, "a", "b").samples is None
    assert len(paired(rows, "a", "b")) == 5


def test_an_exploratory_difference_beyond_its_error_is_called_so():
    sure = summarise(Scores([0.10, 0.11, 0.10, 0.11, 0.10]))
    assert openness(sure, primary=False) == EXPLORED
    assert openness(sure, primary=True) == UNDECIDED
    assert openness(summarise([0.1, -0.1, 0.05, 0.0, -0.02]), primary=False) == UNDECIDED


def test_losing_half_of_the_accuracy_above_chance_is_a_collapse():
    from evidence.ckconv.claims import HALF, WHOLE, lost_shares

    rows = [
        {"seed": 0, "model": name, "drop": at[0], "trained": at[1], "tested": at[2]}
        | {"accuracy": accuracy}
        for name, at, accuracy in (
            *(("gru", WHOLE, 0.9), ("gru", HALF, 0.5)),
            *(("other", WHOLE, 0.9), ("other", HALF, 0.3)),
        )
    ]
    found = lost_shares("d", HALF, ("gru", "other"), classes=10)({"d": rows})
    assert found == pytest.approx([0.5])
    assert COLLAPSE == 0.5
