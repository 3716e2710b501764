"""The ways that the benchmark of continuous convolutions times are one function."""

from __future__ import annotations

import torch

from benchmarks import ckconv, ckconv_report, ckconv_series, runner

from ..tolerances import assert_close


def test_three_ways_of_one_convolution():
    operator, u, domain = ckconv.make(12)
    expected = operator.dense(u, domain)
    for way in (ckconv.whole_kernel, ckconv.direct):
        assert_close(way(operator, u), expected)
    for case in ckconv.ckconv(lengths=(9,), crossover=(5,)):
        assert all(error < case.tolerance for error in runner.check(case).values())


def test_the_peers_read_real_points_only():
    torch.manual_seed(0)
    for body, width in ((ckconv_series.Recurrent(4, 6), 6), (ckconv_series.Dilated(4, 6), 6)):
        model = ckconv_series.Prepared(body, width, 3).eval()
        sequences = torch.cat([torch.arange(5.0)[None, :, None], torch.randn(1, 5, 2)], -1)
        longer = torch.cat([sequences, torch.full((1, 3, 3), torch.nan)], 1)
        assert_close(model(longer), model(sequences))


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
    assert "| gru | 9 | 55.0 ± 7.1 | 50.0 | 2 |" in ckconv_series.table(rows)


def test_the_page_is_that_of_the_results():
    assert ckconv_report.PAGE.read_text(encoding="utf-8") == ckconv_report.page()
