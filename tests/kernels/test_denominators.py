"""Training warns how many denominators of features that may be negative are not positive."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from fredholm import Domain, create_operator
from fredholm.convert import replace_attention
from fredholm.integral.denominators import denominators
from fredholm.kernels import FEATURE_MAPS
from fredholm.linearization import LinearHeads
from fredholm.linearization.heads import Seen

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
    kept = (pairs * fading).sum(-1) <= 0
    assert counted(caught) == (int(kept.sum()), kept.numel())
    assert int(kept.sum()) != int((pairs.sum(-1) <= 0).sum()), "the decay makes a difference"


def test_a_converted_model_warns():
    pytest.importorskip("transformers")
    replaced = replace_attention(models.bert(), "rff", options={"features": 8}, probe=False)
    model = replaced.model.train()
    with pytest.warns(UserWarning, match=WORDS):
        model(**models.padded())
