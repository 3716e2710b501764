"""Mamba mixers: refusals, internal casts, padding, steps. test_equality.py compares layer and
operator.
"""

from __future__ import annotations

import pytest
import torch
from evidence.unification.state_space import block, mixer, uncast

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError, ShapeError
from fredholm.kernels import MambaKernel

from ..tolerances import assert_close


@pytest.fixture
def mamba():
    pytest.importorskip("transformers")
    return mixer(6, state_size=3, conv_kernel=3, time_step_rank=2, use_bias=True)


def test_unsupported_options_are_refused_by_name():
    pytest.importorskip("transformers")
    with pytest.raises(ConversionError, match=r"MambaMixer\(hidden_act='gelu'\)"):
        as_operator(mixer(4, hidden_act="gelu"))
    pytest.importorskip("mambapy")
    with pytest.raises(ConversionError, match=r"MambaBlock\(inner_layernorms=True\)"):
        as_operator(block(4, inner_layernorms=True))


def test_unsupported_mixers_are_refused():
    models = pytest.importorskip("transformers")
    from transformers.models.falcon_mamba.modeling_falcon_mamba import FalconMambaMixer

    other = FalconMambaMixer(models.FalconMambaConfig(hidden_size=4, num_hidden_layers=1), 0, False)
    with pytest.raises(ConversionError, match="not understood"):
        as_operator(other)


def test_only_the_mixers_casts_differ_in_float64(mamba):
    """In float64 the mixer casts parts of its scan to float32; without the casts both are equal."""
    module = mamba.double()
    op = as_operator(module)
    u = torch.randn(2, 9, 6, dtype=torch.float64)
    with torch.no_grad():
        cast = module(u)
        exact = uncast(module, u)
        ours = op(u)
    assert_close(ours, exact)
    assert 1e-12 < float((cast - exact).abs().max() / exact.abs().max()) < 1e-5


def test_the_mixer_agrees_in_training_mode(mamba):
    u = torch.randn(2, 7, 6)
    op = as_operator(mamba.train())
    assert op.training
    assert_close(op(u), mamba(u), dtype=torch.float32)


def test_bfloat16_weights_agree_with_float32(mamba):
    u = torch.randn(2, 7, 6)
    expected = as_operator(mamba)(u)
    half = as_operator(mamba.bfloat16())(u.bfloat16())
    assert half.dtype == torch.bfloat16
    assert_close(half.float(), expected, dtype=torch.bfloat16)


def test_padding_anywhere_changes_no_output(mamba):
    """With left padding, as in batches of texts, a gap, or right padding, each sequence equals
    itself alone.
    """
    op = as_operator(mamba.double())
    n = 8
    valid = torch.ones(3, n).bool()
    valid[0, :3], valid[1, 2:5], valid[2, 6:] = False, False, False
    domain = Domain.line(n, causal=True, measure="counting", dtype=torch.float64).replace(
        valid=valid
    )
    u = torch.where(valid[..., None], torch.randn(3, n, 6, dtype=torch.float64), float("nan"))
    out = op(u, domain)
    for b in range(3):
        assert_close(out[b, valid[b]], op(u[b : b + 1, valid[b]])[0])
    assert_close(op.dense(u, domain), out)


def test_the_default_domain_is_causal_with_counting_measure(mamba):
    op = as_operator(mamba)
    u = torch.randn(1, 5, 6)
    domain = op.kernel.default_domain(5, device=u.device, dtype=u.dtype)
    assert domain.causal
    assert domain.kind == "counting"
    assert op.plan(domain).path == "scan over the states"
    with pytest.raises(DomainError, match="'counting'"):
        op(u, Domain.line(5, causal=True))
    with pytest.raises(ShapeError, match=r"\(B, N, 6\)"):
        op(torch.randn(1, 5, 12))


def test_steps_have_a_state_of_fixed_size(mamba):
    op = as_operator(mamba.double())
    u = torch.randn(2, 9, 6, dtype=torch.float64)
    state = op.init_state(2, op.kernel.default_domain(9, device=u.device, dtype=u.dtype))
    sizes = set()
    outs = []
    for t in range(9):
        y, state = op.step(u[:, t], state)
        outs.append(y)
        sizes.add(tuple(tuple(v.shape) for v in state.keys.values()))
    assert_close(torch.stack(outs, 1), op(u))
    assert len(sizes) == 1


def test_the_kernel_depends_on_its_input_and_is_causal(mamba):
    """K depends on u, and no pair lies in the future."""
    op = as_operator(mamba.double())
    u = torch.randn(1, 5, 6, dtype=torch.float64)
    first, second = op.kernel_matrix(u), op.kernel_matrix(2 * u)
    assert float((first - second).abs().max()) > 1e-3 * float(first.abs().max())
    future = torch.ones(5, 5).triu(1).bool()
    assert first[:, :, future].abs().max() == 0


def test_mismatched_layers_are_refused(mamba):
    m = mamba
    with pytest.raises(ShapeError, match="width 12 and state 3"):
        MambaKernel(m.x_proj, m.conv1d, m.x_proj, m.dt_proj, m.A_log, m.D)
