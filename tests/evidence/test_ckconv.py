"""The benchmark of continuous convolutions: all timed ways compute one function."""

from __future__ import annotations

import torch
from evidence.ckconv import claims, rates, resampled, series, speed
from evidence.kit.clock import check

from ..tolerances import assert_close


def test_all_ways_compute_one_convolution():
    operator, u, domain = speed.make(12)
    expected = operator.dense(u, domain)
    for way in (speed.whole_kernel, speed.direct):
        assert_close(way(operator, u), expected)
    for case in speed.ckconv(lengths=(9,), crossover=(5,)):
        assert all(error < case.tolerance for error in check(case).values())


def test_padding_does_not_change_the_peers():
    torch.manual_seed(0)
    for body, width in ((series.Recurrent(4, 6), 6), (series.Dilated(4, 6), 6)):
        model = series.Prepared(body, width, 3, gaps=True).eval()
        sequences = torch.cat([torch.arange(5.0)[None, :, None], torch.randn(1, 5, 2)], -1)
        longer = torch.cat([sequences, torch.full((1, 3, 3), torch.nan)], 1)
        assert_close(model(longer), model(sequences))


def test_resampling_gives_the_series_of_the_other_rate():
    """Every other sample of a series and its padding; and straight lines the other way round."""
    torch.manual_seed(0)
    times = torch.arange(7.0)[None, :, None]
    full = torch.cat([times, torch.randn(1, 7, 2)], -1)
    padded = torch.cat([full, torch.full((1, 3, 3), torch.nan)], 1)
    half = resampled.Resampled(torch.nn.Identity(), 2)(padded)
    assert_close(half, full[:, ::2])

    # With a longer series in the batch.
    longer = torch.cat([padded, full.repeat(1, 2, 1)[:, :10]])
    back = resampled.Resampled(torch.nn.Identity(), 0.5)(longer)
    assert back.shape[1] == 19
    assert_close(back[0, :13:2], full[0])
    assert_close(back[0, 1:12:2], (full[0, :-1] + full[0, 1:]) / 2)
    assert back[0, 13:].isnan().all()


def test_models_and_resampled_peers_are_compared_at_each_seed():
    def row(model, seed, accuracy):
        where = {"drop": 0.0, "trained": 2, "tested": 1}
        return {"model": model, "seed": seed, "accuracy": accuracy, **where}

    rows = [
        row(model, seed, score + seed / 10)
        for seed in (0, 1)
        for model, score in (("ckcnn gaps", 0.6), *zip(resampled.MODELS, (0.5, 0.7)), ("gru", 0.9))
    ]
    found = rates.ahead_at("plaid", rates.DOUBLE, resampled.MODELS)({"plaid": rows})
    assert [round(x, 6) for x in found] == [-0.1, -0.1]
    assert rates.ahead_at("plaid", rates.HALF, resampled.MODELS)({"plaid": rows}) == []


def test_the_table_shows_what_was_run():
    rows = [
        {
            "model": "gru",
            "drop": d,
            "trained": 1,
            "tested": 1,
            "seed": s,
            "accuracy": 0.5 + s / 10,
            "parameters": 9,
        }
        for d, s in ((0.0, 0), (0.0, 1), (0.3, 0))
    ]
    assert "| gru | 9 | 55.0 ± 7.1 | 50.0 | 2 |" in series.table(rows)


def test_losses_are_compared_seed_by_seed():
    def row(model, seed, drop, accuracy):
        rates = {"trained": 1, "tested": 1}
        return {"model": model, "seed": seed, "drop": drop, "accuracy": accuracy, **rates}

    rows = [
        row(model, seed, drop, 0.9 - lost * (drop > 0))
        for seed in (0, 1)
        for model, lost in (("ckcnn gaps", 0.1), *zip(series.PEERS, (0.2, 0.3 + seed, 0.4, 0.5)))
        for drop in (0.0, 0.7)
    ]
    # This seed has not finished.
    rows.append(row("gru", 2, 0.0, 0.5))
    found = claims.spared("plaid", claims.LOST)({"plaid": rows[:-1]})
    assert [round(x, 6) for x in found] == [0.1, 0.1]
    assert claims.spared("plaid", claims.LOST)({"plaid": rows[:-3]}) == found[:1]
    assert claims.pairs(rows, claims.LOST)[0]["ckcnn gaps"].lost > 0


def test_a_variant_is_compared_with_the_best_of_others():
    rows = [
        {"variant": v, "seed": s, "accuracy": x}
        for s, scores in enumerate(({"sine": 0.9, "relu": 0.5, "gelu": 0.6}, {"sine": 0.9}))
        for v, x in scores.items()
    ]
    found = claims.ahead("activation", "sine", ("relu", "gelu"))({"activation": rows})
    assert [round(x, 6) for x in found] == [0.3]


def test_spread_knots_are_judged_by_the_activation_they_help_least():
    uniform = {"relu": 1e-3, "leaky_relu": 1e-4, "silu": 1e-2, "gelu": 1e-1}
    rows = [
        {"seed": 0, "network": f"{name}, knots {knots}", "target": target, "error": error}
        for target, factor in (("step", 0.1), ("random", 10.0))
        for name in claims.RECTIFIED
        for knots, error in (("zero", 1e-2), ("uniform", factor * uniform[name]))
    ]
    found = claims.spreading({"kernels": rows})[0]
    assert [round(found[name], 9) for name in claims.RECTIFIED] == [1.0, 2.0, 0.0, -1.0]
    assert "gelu 0.1" in claims.spread_ratios({"kernels": rows})
