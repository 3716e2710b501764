"""Training warns how many denominators of features that may be negative are not positive."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.convert import replace_attention
from fredholm.edges import Edges
from fredholm.integral.denominators import counted_denominators, denominators
from fredholm.kernels import FEATURE_MAPS
from fredholm.linearization import LinearHeads
from fredholm.linearization.heads import Seen
from fredholm.quadrature import compact_order

from ..linearize import models
from ..tolerances import assert_close

WORDS = r"expected positive denominators, got ([\d,]+) of ([\d,]+)"


def rff(dim: int = 16, **options):
    torch.manual_seed(0)
    options = {"feature_map": "rff", "feature_options": {"features": 8}} | options
    return create_operator("linear_attention", dim, heads=2, **options)


def counted(caught) -> tuple[int, int]:
    [message] = [str(one.message) for one in caught if "denominators" in str(one.message)]
    found = re.search(WORDS, message)
    assert found
    vanished, count = (int(part.replace(",", "")) for part in found.groups())
    return vanished, count


@pytest.mark.parametrize("causal", [False, True])
def test_the_warning_counts_non_positive_denominators_of_the_definition(causal):
    operator = rff().double()
    domain = Domain.line(40, causal=causal)
    u = 3 * torch.randn(2, 40, 16, dtype=torch.float64)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        operator(u, domain)
        operator(u, domain)  # counted at the first call, and not again at the second
    kernel = operator.kernel
    query, key = kernel._heads(u[:, None], 0), kernel._heads(u[:, None], 1)
    raw = kernel.feature_map(query) @ kernel.feature_map(key).mT
    expected = (raw * domain.quadrature().weights()).sum(-1)
    assert counted(caught) == (int((expected <= 0).sum()), expected.numel())
    assert 0 < counted(caught)[0] < expected.numel()
    found = denominators(kernel.feature_map(query), kernel.feature_map(key), domain.quadrature())
    assert_close(found, expected)


def test_denominators_respect_padding_and_pairs():
    query, key = torch.randn(2, 1, 2, 6, 4, dtype=torch.float64)
    valid = torch.ones(1, 6, dtype=torch.bool)
    valid[:, 4:] = False
    pairs = torch.rand(6, 6) > 0.3
    positions = torch.rand(1, 6, 2, dtype=torch.float64)
    for domain in (Domain.points(positions, valid=valid), Domain.points(positions, pairs=pairs)):
        quadrature = domain.quadrature()
        expected = (query @ key.mT * quadrature.weights()).sum(-1)
        assert_close(denominators(query, key, quadrature), expected)


def sparse_domains() -> dict[str, Domain]:
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(2, 6, 6, generator=generator, dtype=torch.float64)
    bias = torch.where(weights > 0.4, weights.log(), -torch.inf)
    valid = torch.tensor([[True, False, True, True, True, True], [True] * 4 + [False] * 2])
    line = Domain.line(6, reach=1, dtype=torch.float64)
    points = Domain.points(torch.rand(6, 2, generator=generator, dtype=torch.float64))
    return {
        "edges": points.replace(pairs=Edges.of_mask(weights[0] > 0.4)),
        "order": points.replace(pairs=Edges.of_mask(weights[0] > 0.4), causal=True),
        "weighted edges": points.replace(pairs=Edges.of_mask(bias[0])),
        "density by head": points.replace(pairs=Edges.of_mask(bias[None])),
        "graphs": points.replace(pairs=Edges.of_mask(bias), valid=valid),
        "reach": line,
        "causal reach": line.replace(causal=True, kind="counting"),
        "padded reach": line.replace(valid=valid),
    }


@pytest.mark.parametrize("name", list(sparse_domains()))
def test_denominators_of_few_neighbours_equal_those_of_the_pairs_written_out(name, monkeypatch):
    monkeypatch.setattr("fredholm.integral.denominators.NUMBERS_AT_ONCE", 50)
    domain = sparse_domains()[name]
    query, key = torch.randn(2, 2, 2, 6, 4, dtype=torch.float64)
    quadrature = domain.quadrature()
    expected = (query @ key.mT * quadrature.weights()).sum(-1)

    # Padded queries are answered by zeros, whatever their denominators are.
    real = torch.ones(2, 6, dtype=torch.bool)
    if domain.valid is not None:
        real = domain.valid
    found = denominators(query, key, quadrature)
    assert_close(found.movedim(1, 2)[real], expected.movedim(1, 2)[real])
    fading = quadrature.decayed(torch.rand(1, 2, 6, dtype=torch.float64))
    if domain.causal:
        expected = (query @ key.mT * fading.weights()).sum(-1)
        assert_close(denominators(query, key, fading), expected)


def test_the_warning_counts_the_denominators_of_neighbourhoods():
    operator = rff().double()
    domain = Domain.line(40, reach=3)
    u = 3 * torch.randn(2, 40, 16, dtype=torch.float64)
    counts = []
    for where in (domain, domain.dense()):
        operator.kernel.watch.calls = 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            operator(u, where)
        counts.append(counted(caught))
    assert counts[0] == counts[1]
    vanished, count = counts[0]
    assert 0 < vanished < count == 2 * 2 * 40


@pytest.mark.parametrize("name", ["isolated", "graphs", "reach", "order", "mask", "none real"])
def test_queries_that_are_padding_or_see_no_key_are_not_counted(name):
    """Their sums are over no keys: exactly zero, and no sign of a map that may be negative."""
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0, 3:] = False
    valid[1, 0] = False
    isolated = torch.eye(6, dtype=torch.bool)
    isolated[1] = False
    batch = torch.stack([isolated, torch.eye(6, dtype=torch.bool)])
    real = {"isolated": [5, 5], "graphs": [2, 5], "mask": [5, 5], "none real": [0, 6]}
    domain = {
        "isolated": Domain.line(6, pairs=Edges.of_mask(isolated)),
        "graphs": Domain.line(6, valid=valid, pairs=Edges.of_mask(batch & valid[:, None])),
        "reach": Domain.line(6, valid=valid, reach=1),
        "order": Domain.line(6, valid=valid, causal=True),
        "mask": Domain.line(6, pairs=isolated),
        "none real": Domain.line(6, valid=torch.tensor([[False] * 6, [True] * 6])),
    }[name]
    # Kernels of one feature 1: each denominator is the mass that its query sees.
    features = torch.ones(2, 1, 6, 1)
    found = counted_denominators(features, features, domain.quadrature(), domain.valid)
    assert found.numel() == sum(real.get(name, [3, 5]))
    assert (found > 0).all()


def test_keys_are_sorted_once_per_sample(monkeypatch):
    sizes = []

    def sorting(valid):
        sizes.append(tuple(valid.shape))
        return compact_order(valid)

    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[0, 4:] = False
    quadrature = Domain.line(6, valid=valid, reach=1).quadrature()
    monkeypatch.setattr("fredholm.quadrature.compact_order", sorting)
    denominators(*torch.randn(2, 2, 3, 6, 4), quadrature)
    assert sizes == [(2, 6)]


@pytest.mark.parametrize("name", sorted(FEATURE_MAPS))
def test_only_maps_that_may_be_negative_are_watched(name):
    positive = getattr(FEATURE_MAPS[name], "positive", True)
    operator = create_operator("linear_attention", 16, heads=2, feature_map=name)
    assert (operator.kernel.watch is None) == positive
    assert positive == (name != "rff")


def test_evaluation_and_unnormalised_sums_do_not_warn():
    u = 3 * torch.randn(2, 40, 16)
    plain = rff(normalised=False, bias=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rff().eval()(u)
        plain(u)


def test_transforms_and_meta_tensors_do_not_warn():
    u = 3 * torch.randn(2, 40, 16)
    operator = rff()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.func.vmap(lambda x: operator(x[None])[0])(u)
        operator.to("meta")(u.to("meta"))


@pytest.mark.parametrize("decay", ["head", "token"])
@pytest.mark.parametrize("seen", ["order", "pairs", "padding"])
def test_converted_heads_count_decayed_denominators(decay, seen):
    """They equal the definition's, with a causal order and where a mask of pairs has the order."""
    torch.manual_seed(0)
    options = {"feature_map": "rff", "options": {"features": 8}, "decay": decay, "groups": 2}
    heads = LinearHeads(4, 8, **options).double()
    with torch.no_grad():
        heads.decay.log_rate.add_(6)
    query, key, value = (2 * torch.randn(2, h, 30, 8, dtype=torch.float64) for h in (4, 2, 2))
    valid = torch.arange(30) >= torch.tensor([[0], [5]])
    order = torch.ones(30, 30).tril().bool()
    facts = {
        "order": Seen(causal=True),
        "pairs": Seen(pairs=order[None, None]),
        "padding": Seen(causal=True, valid=valid),
    }[seen]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        heads(query, key, value, facts)

    visible = (order & valid[:, None]) if seen == "padding" else order
    rates = heads.decay.exponents(value, facts.valid).repeat_interleave(2, 1)
    sums = rates.cumsum(-1)
    fading = (sums[..., None, :] - sums[..., :, None]).exp()
    phi = heads.feature_map(query), heads.feature_map(heads.share(key))
    pairs = torch.where(visible[..., None, :, :], phi[0] @ phi[1].mT, 0.0)
    # Padded queries are not counted.
    real = torch.ones(2, 4, 30, dtype=torch.bool)
    if facts.valid is not None:
        real = valid[:, None].expand_as(real)
    sums = (pairs * fading).sum(-1)[real]
    assert counted(caught) == (int((sums <= 0).sum()), int(real.sum()))
    plain = pairs.sum(-1)[real]
    assert int((sums <= 0).sum()) != int((plain <= 0).sum()), "the decay makes a difference"


def test_a_converted_model_warns():
    pytest.importorskip("transformers")
    replaced = replace_attention(models.bert(), "rff", options={"features": 8}, probe=False)
    model = replaced.model.train()
    with pytest.warns(UserWarning, match=WORDS):
        model(**models.padded())
