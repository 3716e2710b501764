"""Series at irregular times: their tasks, the models that read them, and how they are compared."""

from __future__ import annotations

import pytest
import torch
from evidence.ckconv.irregular import claims, contest, models, page
from evidence.ckconv.irregular.tasks import (
    LAG,
    SHARE,
    TASKS,
    Series,
    bursts,
    lagged,
    standardised,
)
from evidence.kit.answers import pack
from evidence.kit.contest import EQUAL_STEPS, EQUAL_TIME, parameters
from evidence.performance.peers import peer
from torch.nn import functional

from ..tolerances import assert_close

NETWORKS = [
    models.CKCNN,
    models.GRU_D,
    models.TCN,
    pytest.param(
        models.NCDE,
        marks=pytest.mark.skipif(peer("torchcde") is None, reason="torchcde is not installed"),
    ),
]


def some(channels=2):
    """Return three series, of 12 points each, with an observation at the fifth."""
    torch.manual_seed(0)
    observed = bursts((3, 12, channels), SHARE, 3, seed=1)
    observed[:, 4] = True
    values = torch.where(observed, torch.randn(3, 12, channels), torch.nan)
    times = (0.1 + torch.rand(3, 12)).cumsum(1)
    return Series(times, values, torch.zeros(3))


def network(name, setting=None, task="lag"):
    torch.manual_seed(0)
    setting = setting or next(iter(models.SETTINGS[name]))
    return models.make_model(models.Design(name, setting, 6, TASKS[task])).eval()


# --- tasks ----------------------------------------------------------------------------------------


def test_bursts_have_their_mean_length():
    observed = bursts((200, 400, 1), SHARE, 8, seed=0)[..., 0]
    assert float(observed.float().mean()) == pytest.approx(SHARE, abs=0.01)
    begins = observed[:, 1:] & ~observed[:, :-1]
    assert float(observed.sum() / begins.sum()) == pytest.approx(8, rel=0.05)


def test_the_label_is_what_was_observed_a_lag_before_the_last():
    series = lagged("test")
    observed = (~series.values.isnan()).any(-1)
    rows = torch.arange(len(observed))
    end = series.times[rows, observed.sum(1) - 1]
    apart = (series.times - (end - LAG)[:, None]).abs().masked_fill(~observed, torch.inf)
    assert float(apart.min(1).values.max()) < 1e-4
    event = series.values[rows, apart.argmin(1)]
    channel = (~event.isnan()).long().argmax(1)
    bit = event.gather(1, channel[:, None])[:, 0]
    assert torch.equal(2 * channel + (bit > 0).long(), series.labels)
    # Only one of the channels is observed at a time.
    assert int((~series.values.isnan()).sum(-1).max()) == 1


def test_series_are_scaled_by_their_observed_values():
    nan = torch.nan
    found = standardised(torch.tensor([[[1.0], [nan], [3.0]], [[5.0], [nan], [nan]]]))
    assert_close(found[:, [0, 2], 0].nan_to_num(9.0), torch.tensor([[-1.0, 1.0], [0.0, 9.0]]))
    assert found[:, 1].isnan().all()


def test_a_batch_ends_at_its_last_observation():
    values = torch.full((2, 9, 1), torch.nan)
    values[0, 3] = values[1, 5] = 1.0
    series = Series(torch.arange(9.0).expand(2, 9), values, torch.zeros(2))
    assert series.batch(torch.tensor([0])).values.shape == (1, 4, 1)
    assert series.batch(torch.tensor([0, 1])).times.shape == (2, 6)


# --- models ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("number", [0, 3])
def test_padding_does_not_change_a_model(name, number):
    series, model = some(), network(name, list(models.SETTINGS[name])[number])
    alone = series.batch(torch.tensor([1]))
    values = torch.cat([series.values, torch.full((3, 4, 2), torch.nan)], 1)
    times = torch.cat([series.times, series.times[:, -1:].expand(3, 4)], 1)
    assert_close(model(times, values)[1:2], model(alone.times, alone.values))


def test_a_ckcnn_on_a_clock_sums_as_at_real_times():
    """FFTs over the ticks and sums over pairs are one convolution, with either weights."""
    series = some()
    ticks = torch.arange(12.0).expand(3, 12)
    for setting in models.SETTINGS[models.CKCNN]:
        model = network(models.CKCNN, setting, "plaid")
        other = network(models.CKCNN, setting, "plaid")
        other.clock = False
        other.model.encoder.timed = True
        values = series.values[..., :1].clone()
        values[:, 4] = 1.0
        assert_close(other(ticks, values), model(ticks, values))


@pytest.mark.parametrize("name", NETWORKS)
def test_models_have_equal_sizes(name):
    for task in TASKS.values():
        target = parameters(
            models.make_model(models.sized(models.CKCNN, "equal weights, smaller ω", task))
        )
        assert target == pytest.approx(models.PARAMETERS, rel=0.07)
        for setting in models.SETTINGS[name]:
            design = models.sized(name, setting, task)
            assert parameters(models.make_model(design)) == pytest.approx(target, rel=0.05)


def test_gru_d_is_its_definition():
    """The equations of Che et al., one observation after the other."""
    model, series = network(models.GRU_D), some().batch(torch.tensor([0]))
    weight, bias = model.input_decay
    h = torch.zeros(1, 6)
    before = torch.zeros(1, 2)
    since = torch.zeros(1, 2)
    points = (~series.values[0].isnan()).any(-1).nonzero()[:, 0].tolist()
    for previous, point in zip([points[0], *points], points):
        since = since + (series.times[0, point] - series.times[0, previous]) / model.unit
        value = series.values[:, point]
        m = (~value.isnan()).float()
        decay = torch.exp(-functional.relu(weight * since + bias))
        # The mean of standardised values is zero.
        x = torch.where(m > 0, value, decay * before)
        h = torch.exp(-functional.relu(model.state_decay(since))) * h

        of_inputs = model.gates(torch.cat([x, m], -1)).chunk(3, -1)
        of_state = model.of_state(h).chunk(2, -1)
        z = torch.sigmoid(of_inputs[0] + of_state[0])
        r = torch.sigmoid(of_inputs[1] + of_state[1])
        h = (1 - z) * h + z * torch.tanh(of_inputs[2] + model.of_reset(r * h))
        before = torch.where(m > 0, value, before)
        since = torch.where(m > 0, 0.0, since)
    assert_close(model(series.times, series.values), model.head(h))


def test_every_parameter_of_gru_d_has_a_gradient():
    series, model = some(), network(models.GRU_D).train()
    model(series.times, series.values).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_minirocket_reads_straight_lines_between_observations():
    nan = torch.nan
    values = torch.tensor([[[nan, 1.0], [2.0, nan], [nan, nan], [8.0, nan]]])
    series = Series(torch.arange(4.0)[None], values, torch.zeros(1))
    grid = contest.on_grid(series, 1, cells=5)
    assert_close(grid[0, :4], torch.tensor([[2.0, 1.0], [2.0, 1.0], [5.0, 1.0], [8.0, 1.0]]))
    assert grid[0, 4].isnan().all()
    moved = contest.aligned(grid)
    assert_close(moved[0, 1:], grid[0, :4])
    assert_close(moved[0, 0], grid[0, 0])


# --- runs, claims and page ------------------------------------------------------------------------


def test_a_setting_is_chosen_by_accuracy_then_by_loss():
    tried = contest.tries("lag", [models.GRU_D])
    rows = [row | {"accuracy": 0.5, "loss": 1 + number} for number, row in enumerate(tried)]
    rows[2]["accuracy"] = rows[4]["accuracy"] = 0.6
    found = contest.best(rows, "lag", models.GRU_D)
    assert found == (tried[2]["rate"], tried[2]["setting"])
    with pytest.raises(SystemExit, match="expected 12 tried settings, got 11"):
        contest.best(rows[1:], "lag", models.GRU_D)


def test_equal_time_is_that_of_the_slowest(monkeypatch):
    paces = dict(zip(models.NAMES, (0.1, 0.05, 0.4, 0.2)))
    rows = [{"task": "lag", "variant": name, "step": pace} for name, pace in paces.items()]
    monkeypatch.setattr(contest.Table, "rows", lambda self, folder: rows)
    options = contest.Options()
    found = contest.steps_of("lag", EQUAL_TIME, 10, options)
    assert list(found.values()) == [40, 80, 10, 20]
    assert set(contest.steps_of("lag", EQUAL_STEPS, 10, options).values()) == {10}


def test_a_claim_compares_with_the_best_of_the_others():
    scores = {models.CKCNN: [1.0, 1.0], models.GRU_D: [1.0, 0.0], models.NCDE: [0.0, 0.0]}
    rows = [
        {"variant": name, "seed": seed, "accuracy": sum(right) / 2}
        | {"answers": {"accuracy": pack(right)}}
        for seed in (200, 201)
        for name, right in scores.items()
    ]
    runs = {("lag", EQUAL_TIME): rows}
    found = claims.ahead("lag", claims.NETWORKS, EQUAL_TIME)(runs)
    assert found == [0.5, 0.5]
    assert found.samples.shape == (2, 2)
    assert claims.ahead("lag", claims.NETWORKS, EQUAL_STEPS)(runs) == []


def test_the_table_shows_what_was_run():
    row = {
        "variant": models.GRU_D,
        "rate": 0.01,
        "setting": "dropout 0.3",
        "steps": 1_200,
        "seconds": 2.4,
    }
    row |= {"parameters": 20_001, "accuracy": 0.75}
    fitted = {"variant": models.MINIROCKET, "rate": None, "setting": "aligned", "steps": None}
    fitted |= {"parameters": None, "accuracy": 0.5, "seconds": 9.0}
    text = page.scores({("lag", EQUAL_STEPS): [row, fitted]}, EQUAL_STEPS)
    assert "| Lags | gru-d | 75.0 | 1 | 20,001 | 1,200 | 2 | 0.01 | dropout 0.3 |" in text
    assert "| Lags | minirocket | 50.0 | 1 |  |  | 9 |  | aligned |" in text
    assert page.scores({}, EQUAL_STEPS).startswith("Open: not run.")
