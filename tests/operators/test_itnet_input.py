"""ITNet's three modes: unusual input, and options as a recipe writes them."""

from __future__ import annotations

import pytest
import torch

from fredholm.domain import Domain
from fredholm.errors import OptionError, ShapeError
from fredholm.families.itnet import compress
from fredholm.integral.strategy import read_strategy
from fredholm.kernels import Proposal, auxiliary_loss
from fredholm.models import create_model
from fredholm.operators import Exact, MonteCarlo, create_operator
from fredholm.ops.anchors import Mixture

from ..tolerances import assert_close

SMALL = {"width": 4, "frequencies": 2, "sigma": 1.0}
SAMPLED = {"name": "monte_carlo", "samples": 3, "loss_queries": 2}


@pytest.mark.parametrize("training", [True, False])
def test_more_samples_than_points_are_refused(training):
    operator = create_operator("itnet", 8, 2, **SMALL, strategy=SAMPLED).train(training)
    with pytest.raises(OptionError, match="has points, 2, got samples=3"):
        operator(torch.randn(1, 2, 8))


def test_a_rank_above_the_width_or_the_points_equals_the_definition():
    """The rank bounds that of the matrix over a domain: above d_h it adds directions, above N·d_h
    nothing.
    """
    operator = create_operator("itnet_low_rank", 8, 2, rank=20, **SMALL).double()
    u = torch.randn(1, 3, 8, dtype=torch.float64)
    assert_close(operator(u), operator.dense(u))
    exact = create_operator("itnet", 8, 2, **SMALL)
    with pytest.raises(OptionError, match=r"at most N·d_h = 12.*got 20"):
        compress(exact, 20, [(u.float(), Domain.line(3))], held_out=[(u.float(), Domain.line(3))])


@pytest.mark.parametrize(
    "options", [{}, {"strategy": SAMPLED}, {"strategy": SAMPLED, "proposal": True}]
)
@pytest.mark.parametrize("training", [True, False])
def test_nan_features_reach_their_own_sample_only(options, training):
    operator = create_operator("itnet", 8, 2, **SMALL, **options).train(training)
    u = torch.randn(2, 5, 8)
    u[0, 3, 1] = torch.nan
    out = operator(u)
    assert out[0, 3].isnan().any(), "the point itself"
    assert not out[1].isnan().any(), "the other signal"
    padded = Domain.line(5).replace(
        valid=torch.tensor([[True, True, True, False, True], [True] * 5])
    )
    assert not operator(u, padded).isnan().any(), "padding may hold anything"


def test_nan_features_reach_every_point_of_low_rank():
    operator = create_operator("itnet_low_rank", 8, 2, **SMALL)
    u = torch.randn(1, 5, 8)
    u[0, 3, 1] = torch.nan
    assert operator(u)[0].isnan().any(-1).all(), "every point reads every other"


def test_strategies_are_read_with_their_options():
    assert read_strategy(SAMPLED) == MonteCarlo(samples=3, loss_queries=2)
    assert read_strategy(SAMPLED | {"anchors": True}).anchors is True
    assert read_strategy("auto") == "auto"
    assert read_strategy("exact") == Exact()
    assert read_strategy({"name": "exact", "memory": 1 << 20}) == Exact(memory=1 << 20)
    with pytest.raises(OptionError, match="no option 'sample'; did you mean 'samples'"):
        read_strategy({"name": "monte_carlo", "sample": 3})
    with pytest.raises(OptionError, match="did you mean 'monte_carlo'"):
        read_strategy({"name": "monte-carlo"})
    with pytest.raises(OptionError, match="1 or more"):
        create_operator("itnet", 8, 2, **SMALL, strategy={"name": "monte_carlo", "samples": 0})


def test_a_proposal_is_an_option_of_the_operator():
    operator = create_operator(
        "itnet", 8, 2, position_dim=2, **SMALL, strategy=SAMPLED, proposal={"components": 3}
    )
    assert isinstance(operator.kernel.proposal, Proposal)
    assert operator.kernel.proposal.components == 3
    operator(torch.randn(1, 6, 8), Domain.grid(2, 3))
    loss = auxiliary_loss(operator)
    assert loss is not None
    assert loss > 0
    with pytest.raises(
        OptionError,
        match=r"proposal: expected true, or options among components.*got \{'parts': 2\}",
    ):
        create_operator("itnet", 8, 2, **SMALL, proposal={"parts": 2})


def test_the_proposal_learns_at_real_queries_only(monkeypatch):
    """Padded queries have no features to learn from and are not in the loss, whatever is drawn."""
    operator = create_operator(
        "itnet", 8, 2, **SMALL, strategy={**SAMPLED, "loss_queries": 50}, proposal=True
    )
    valid = torch.tensor([[True, True, True, False, False], [True] * 5])
    chosen = []
    density_at = Mixture.density_at
    monkeypatch.setattr(
        Mixture,
        "density_at",
        lambda self, b, r, i: (
            chosen.extend(zip(b.tolist(), r.tolist())) or density_at(self, b, r, i)
        ),
    )
    operator(torch.randn(2, 5, 8), Domain.line(5).replace(valid=valid))
    assert sorted(chosen) == [tuple(pair) for pair in valid.nonzero().tolist()]


def test_padding_alone_gives_zero_loss():
    operator = create_operator("itnet", 8, 2, **SMALL, strategy=SAMPLED, proposal=True)
    operator(
        torch.randn(1, 5, 8), Domain.line(5).replace(valid=torch.zeros(1, 5, dtype=torch.bool))
    )
    assert auxiliary_loss(operator) == 0


def test_a_sample_of_padding_alone_keeps_the_proposals_gradients_finite():
    operator = create_operator("itnet", 8, 2, **SMALL, strategy=SAMPLED, proposal=True)
    u = torch.randn(2, 5, 8)
    valid = torch.tensor([[True] * 5, [False] * 5])
    operator(u, Domain.line(5, valid=valid)).sum().backward(retain_graph=True)
    auxiliary_loss(operator).backward()
    gradients = [p.grad for p in operator.kernel.proposal.parameters() if p.grad is not None]
    assert gradients
    assert all(g.isfinite().all() for g in gradients)


def test_raw_coordinates_enter_the_network_unchanged():
    torch.manual_seed(0)
    operator = create_operator("itnet", 8, 2, position_dim=2, width=3, frequencies=0)
    kernel = operator.kernel
    assert kernel.sizes["relative"] == 2
    assert not any("fourier" in name for name in operator.state_dict())
    x = torch.rand(1, 1, 2, 1, 2)
    y = torch.rand(1, 1, 1, 3, 2)
    u = torch.zeros(1, 2, 1, 1, 4)
    z = torch.cat([*torch.broadcast_tensors(x, y, x - y), (x - y).norm(dim=-1, keepdim=True)], -1)
    first = kernel.weight1[0, :, :7]
    expected = torch.nn.functional.gelu(z @ first.mT)
    assert_close(kernel.hidden(x, y, u, u), expected.expand(1, 2, 2, 3, 3))


@pytest.mark.parametrize("groups", [None, ("relative",)])
def test_raw_coordinates_of_another_dimension_are_refused(groups):
    options = {} if groups is None else {"groups": groups}
    operator = create_operator("itnet", 8, 2, width=3, frequencies=0, **options)
    with pytest.raises(
        ShapeError, match="dimension 1, for which this kernel was built, got 2; pass"
    ):
        operator(torch.randn(2, 6, 8), Domain.grid(2, 3))


def test_epsilon_scales_the_second_layer_alone():
    torch.manual_seed(0)
    kernel = create_operator("itnet", 32, 2, width=64, frequencies=2, epsilon=0.1).kernel
    assert kernel.weight2.std().item() == pytest.approx(0.1 / 8, rel=0.03)
    assert torch.equal(kernel.bias2[0], torch.eye(16))


def test_a_start_of_zero_keeps_the_size_of_the_stream():
    """Twelve blocks of the paper's formula multiply the stream's size, since each adds W u = u."""

    def growth(start: float) -> float:
        torch.manual_seed(0)
        options = {"width": 16, "frequencies": 4, "sigma": 1.0, "start": start}
        sizes = {"dim": 64, "depth": 12, "heads": 4, "dropout": 0.0, "operator_options": options}
        model = create_model("itnet_micro", body=sizes).eval()
        u, domain = model.encoder(torch.rand(2, 1, 28, 28))
        # The stream has size one, as behind a layer norm.
        u = first = torch.nn.functional.layer_norm(u, u.shape[-1:])
        for block in model.body.blocks:
            u = block(u, domain)
        return (u.std() / first.std()).item()

    assert 10 < growth(1.0) < 25
    assert growth(0.0) < 2
    operator = create_operator("itnet", 8, 2, **SMALL, start=0.5)
    operator.reset_parameters()
    assert torch.equal(operator.residual.weight, torch.eye(8) / 2)
