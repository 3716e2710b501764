"""Gated linear attention of transformers equals linear attention with a decay:
lightning attention of MiniMax (one rate per head, as in RetNet) and Mamba-2's mixer (one rate per
token and head).
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fredholm.domain import Domain
from fredholm.operators import LinearAttention

from ..tolerances import assert_close

models = pytest.importorskip("transformers")

N = 37


def selection(columns: Tensor, width: int) -> nn.Linear:
    """Return a linear map that selects columns of its input."""
    layer = nn.Linear(width, len(columns), bias=False)
    layer.weight.data = F.one_hot(columns, width).to(layer.weight.dtype)
    return layer


def gated(
    width: int, heads: int, columns: tuple[Tensor, Tensor, Tensor], decay: str
) -> LinearAttention:
    """Return an unnormalised operator whose input contains queries, keys and values."""
    operator = LinearAttention(
        width,
        heads,
        feature_map=lambda x: x,
        normalised=False,
        decay=decay,
        projections=tuple(selection(of, width) for of in columns),
        out_dim=len(columns[2]),
    )
    nn.init.eye_(operator.projection.weight)
    nn.init.zeros_(operator.projection.bias)
    return operator


def sums(n: int) -> Domain:
    """Return a causal line whose integrals are sums."""
    return Domain.line(n, causal=True, measure="counting")


def stepped(operator: LinearAttention, u: Tensor) -> Tensor:
    """Return the outputs of a prefill of half the points and of single steps for the rest."""
    half = u.shape[1] // 2
    out, state = operator.prefill(u[:, :half], operator.init_state(len(u), sums(u.shape[1])))
    outs = [out]
    for t in range(half, u.shape[1]):
        y, state = operator.step(u[:, t], state)
        outs.append(y[:, None])
    return torch.cat(outs, 1)


@pytest.mark.parametrize("form", ["forward", "steps"])
@torch.no_grad()
def test_lightning_attention_of_minimax_equals_decayed_attention(form):
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    heads, width = 4, 6
    config = models.MiniMaxConfig(
        hidden_size=heads * width,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=width,
        num_hidden_layers=3,
        layer_types=["linear_attention"] * 3,
        block_size=8,
    )
    torch.manual_seed(0)
    layer = MiniMaxLightningAttention(config, 1).eval()
    u = torch.randn(2, N, heads * width)
    theirs = layer(u, None, None)[0]

    # The layer's projection has the queries, keys and values of each head side by side.
    columns = torch.arange(3 * heads * width).view(heads, 3, width)
    parts = tuple(columns[:, i].flatten() for i in range(3))
    operator = gated(3 * heads * width, heads, parts, "head")
    operator.kernel.decay.log_rate.copy_(layer.slope_rate.flatten().log())
    signal = layer.act_fn(layer.qkv_proj(u))
    attention = operator(signal, sums(N)) if form == "forward" else stepped(operator, signal)

    ours = layer.out_proj(layer.output_gate(u).sigmoid() * layer.norm(attention))
    assert float((ours - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())


@pytest.mark.parametrize("form", ["forward", "steps"])
@torch.no_grad()
def test_mamba_2_equals_decayed_attention(form):
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    heads, width, states, dim = 4, 6, 5, 12
    config = models.Mamba2Config(
        hidden_size=dim,
        num_heads=heads,
        head_dim=width,
        state_size=states,
        n_groups=1,
        expand=2,
        chunk_size=8,
        num_hidden_layers=1,
    )
    torch.manual_seed(0)
    mixer = Mamba2Mixer(config, 0).eval()
    mixer.D.normal_()
    u = torch.randn(2, N, dim)
    theirs = mixer(u)

    # The projections, convolution and step sizes of the mixer.
    inner = heads * width
    gate, convolved, raw_step = mixer.in_proj(u).split([inner, inner + 2 * states, heads], -1)
    convolved = mixer.act(mixer.conv1d(convolved.mT)[..., :N].mT)
    x, into, out_of = convolved.split([inner, states, states], -1)
    step = F.softplus(raw_step + mixer.dt_bias)

    # The key of each head is B times the head's step.
    key = (step[..., None] * into[:, :, None]).flatten(2)
    signal = torch.cat([out_of, key, x, raw_step], -1)
    query_at = torch.arange(states).repeat(heads)
    key_at = states + torch.arange(heads * states)
    value_at = states + heads * states + torch.arange(inner)
    operator = gated(signal.shape[-1], heads, (query_at, key_at, value_at), "token")
    decay = operator.kernel.decay
    decay.log_rate.copy_(mixer.A_log)
    decay.weight.zero_()
    decay.weight[:, -heads:] = torch.eye(heads)
    decay.bias.copy_(mixer.dt_bias)

    attention = operator(signal, sums(N)) if form == "forward" else stepped(operator, signal)
    skip = x * mixer.D.repeat_interleave(width)
    ours = mixer.out_proj(mixer.norm(attention + skip, gate))
    assert float((ours - theirs).abs().max()) < 1e-5 * float(theirs.abs().max())
    assert_close(operator.dense(signal, sums(N)), operator(signal, sums(N)), dtype=torch.float32)
