"""Convolutions along the tokens against plain loops and against a CvT; monitors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.domain import Domain
from fredholm.errors import DomainError, OptionError
from fredholm.families.continuous.splitting import (
    ConvolutionalAttention,
    ConvolutionalEmbedding,
    ConvolutionTerm,
    Evolution,
    FeedForwardTerm,
    OperatorTerm,
    SubstepError,
)

from ...tolerances import assert_close

D = 4


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@pytest.mark.parametrize("depthwise", [True, False])
def test_a_convolution_along_the_tokens_equals_its_sum(depthwise):
    term = ConvolutionTerm(D, 3, axes=2, depthwise=depthwise).double()
    u = draw(2, 12, D)
    shape = (3, 4)
    weight, bias = term.convolution.weight, term.convolution.bias
    if depthwise:
        weight = torch.diag_embed(weight[:, 0].permute(1, 2, 0)).permute(2, 3, 0, 1)
    grid = u.unflatten(1, shape)
    out = torch.zeros(2, *shape, D, dtype=u.dtype) + bias
    for i in range(3):
        for j in range(4):
            for a in range(3):
                for b in range(3):
                    y, x = i + a - 1, j + b - 1
                    if 0 <= y < 3 and 0 <= x < 4:
                        out[:, i, j] = out[:, i, j] + grid[:, y, x] @ weight[:, :, a, b].T
    assert_close(term.rate(u, Domain.grid(*shape)), out.flatten(1, 2))


def test_a_causal_convolution_reads_earlier_tokens_and_zero_padding():
    term = ConvolutionTerm(D, 5, axes=1, norm=nn.LayerNorm(D)).double()
    u = draw(1, 7, D)
    causal = Domain.line(7, causal=True)
    changed = u.clone()
    changed[:, 4:] += 1.0
    rate = term.rate(u, causal)
    assert term.rate(changed, causal)[:, :4].equal(rate[:, :4])
    assert not term.rate(changed, causal)[:, 4:].equal(rate[:, 4:])
    valid = torch.arange(7)[None] < 5
    padded = term.rate(u, Domain.line(7).replace(valid=valid))
    assert_close(padded[:, :5], term.rate(u[:, :5], Domain.line(5)))


def test_convolutional_attention_equals_its_formula():
    operator = ConvolutionalAttention(D, 2, stride=2).double()
    u = draw(3, 16, D)
    for module in operator.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    out = operator(u, Domain.grid(4, 4))
    maps = {}
    for name in ("query", "key", "value"):
        filters, norm = operator.filters[name]
        x = filters(u.mT.reshape(3, D, 4, 4))
        mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), correction=0, keepdim=True)
        x = (x - mean) / (var + norm.eps).sqrt() * norm.weight.view(-1, 1, 1) + norm.bias.view(
            -1, 1, 1
        )
        maps[name] = getattr(operator, name)(x.flatten(2).mT)
    heads = []
    for h in range(2):
        q, k, v = (maps[name][..., 2 * h : 2 * h + 2] for name in ("query", "key", "value"))
        heads.append((q @ k.mT / 2**0.5).softmax(-1) @ v)
    assert maps["key"].shape == (3, 4, D)
    assert_close(out, operator.projection(torch.cat(heads, -1)))


def test_a_whole_cvt_is_embeddings_and_evolutions():
    """Two stages of the package's CvT without class token: each is an embedding and a Lie evolution
    of pre-norm terms at Δt = 1.
    """
    transformers = pytest.importorskip("transformers")
    config = transformers.CvtConfig(
        num_channels=3,
        embed_dim=[8, 16],
        num_heads=[2, 4],
        depth=[2, 3],
        mlp_ratio=[2.0, 2.0],
        patch_sizes=[3, 3],
        patch_stride=[2, 2],
        patch_padding=[1, 1],
        cls_token=[False, False],
        drop_path_rate=[0.0, 0.0],
        drop_rate=[0.0, 0.0],
        attention_drop_rate=[0.0, 0.0],
        qkv_bias=[True, True],
        qkv_projection_method=["dw_bn", "dw_bn"],
        kernel_qkv=[3, 3],
        padding_kv=[1, 1],
        padding_q=[1, 1],
        stride_kv=[2, 2],
        stride_q=[1, 1],
    )
    model = transformers.CvtModel(config).double().eval()
    for tensor in [
        *model.parameters(),
        *(b for n, b in model.named_buffers() if "running_mean" in n),
    ]:
        nn.init.normal_(tensor, std=0.3)
    images = draw(2, 3, 16, 16)
    u = images.flatten(2).mT
    domain = Domain.grid(16, 16)
    width = 3
    for number, stage in enumerate(model.encoder.stages):
        dim, heads = config.embed_dim[number], config.num_heads[number]
        embedding = ConvolutionalEmbedding(width, dim, 3, stride=2, padding=1).double()
        source = stage.embedding.convolution_embeddings
        embedding.convolution.load_state_dict(source.projection.state_dict())
        embedding.norm.load_state_dict(source.normalization.state_dict())
        evolution = Evolution([_cvt_terms(layer, dim, heads) for layer in stage.layers]).eval()
        u, domain = embedding(u, domain)
        u = evolution(u, domain)
        width = dim
    assert domain.shape == (4, 4)
    assert_close(u, model(images).last_hidden_state.flatten(2).mT)


def _cvt_terms(layer, dim, heads):
    """Return the terms of one CvtLayer, whose scores are scaled by the full width."""
    operator = ConvolutionalAttention(dim, heads, stride=2, scale=dim**-0.5).double()
    attention = layer.attention.attention
    for name in ("query", "key", "value"):
        source = getattr(attention, f"convolution_projection_{name}").convolution_projection
        operator.filters[name][0].load_state_dict(source.convolution.state_dict())
        operator.filters[name][1].load_state_dict(source.normalization.state_dict())
        getattr(operator, name).load_state_dict(
            getattr(attention, f"projection_{name}").state_dict()
        )
    operator.projection.load_state_dict(layer.attention.output.dense.state_dict())
    network = FeedForwardTerm(dim, 2 * dim, activation="gelu", norm=layer.layernorm_after).double()
    network.layers[0].load_state_dict(layer.intermediate.dense.state_dict())
    network.layers[1].load_state_dict(layer.output.dense.state_dict())
    return [OperatorTerm(operator, norm=layer.layernorm_before), network]


def test_gradients_pass_gradcheck():
    attention = ConvolutionalAttention(D, 2, batch_norm=False).double()
    term = ConvolutionTerm(D).double()
    u = draw(1, 4, D).requires_grad_()
    grid = Domain.grid(2, 2)
    for call in (
        lambda v: attention(v, grid),
        lambda v: term(v, grid, 0.5, "midpoint"),
    ):
        assert torch.autograd.gradcheck(call, (u,))


def test_convolutions_refuse_unsuitable_domains_and_options():
    u = torch.zeros(1, 4, D)
    line = Domain.line(4)
    for make in (ConvolutionTerm, ConvolutionalAttention):
        with pytest.raises(OptionError, match="odd taps"):
            make(D, kernel_size=2)
    with pytest.raises(DomainError, match=r"grid of 2 axes.*got Domain\(4 points.*line 4"):
        ConvolutionTerm(D).rate(u, line)
    with pytest.raises(DomainError, match="expected a regular grid"):
        ConvolutionalAttention(D)(u, Domain.points(torch.rand(4, 2)))
    with pytest.raises(DomainError, match="without pairs"):
        ConvolutionTerm(D).rate(u, Domain.grid(2, 2, causal=True))
    padded = Domain.grid(2, 2).replace(valid=torch.tensor([[True, True, True, False]]))
    with pytest.raises(DomainError, match="equal masses without padding"):
        ConvolutionalAttention(D)(u, padded)
    with pytest.raises(DomainError, match="without padding"):
        ConvolutionalEmbedding(D, D)(u, padded)
    with pytest.raises(SubstepError, match="couples all tokens"):
        ConvolutionTerm(D, substep="implicit")


def test_periodic_attention_is_translation_equivariant():
    torch.manual_seed(0)
    grid = Domain.grid(3, 4, dtype=torch.float64)
    u = draw(2, 12, D)

    def rolled(x):
        return x.unflatten(1, (3, 4)).roll((1, 2), (1, 2)).flatten(1, 2)

    for periodic in (True, False):
        operator = ConvolutionalAttention(D, 2, periodic=periodic, batch_norm=False).double()
        apart = (operator(rolled(u), grid) - rolled(operator(u, grid))).abs().max()
        assert bool(apart < 1e-12) is periodic


@pytest.mark.parametrize(
    "call",
    [
        lambda u, domain: ConvolutionTerm(D, axes=1).rate(u, domain),
        lambda u, domain: ConvolutionalAttention(D, axes=1)(u, domain),
        lambda u, domain: ConvolutionalEmbedding(D, D, axes=1)(u, domain),
    ],
)
def test_convolutions_refuse_a_reach(call):
    """They would read points that the domain hides."""
    with pytest.raises(DomainError, match=r"pairs or reach.*got Domain\(8 points.*reach 1"):
        call(torch.zeros(1, 8, D), Domain.line(8, reach=1))


@pytest.mark.parametrize("make", [ConvolutionTerm, ConvolutionalAttention])
@pytest.mark.parametrize("options", [{"axes": 4}, {"kernel_size": -1}])
def test_convolutions_refuse_unknown_sizes(make, options):
    with pytest.raises(OptionError, match="expected a convolution of 1 to 3 axes"):
        make(D, **options)


@pytest.mark.parametrize("options", [{"axes": 4}, {"kernel_size": 0}, {"stride": 0}])
def test_an_embedding_refuses_unknown_sizes(options):
    with pytest.raises(OptionError, match="expected a convolution of 1 to 3 axes"):
        ConvolutionalEmbedding(D, D, **options)
