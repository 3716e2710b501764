"""ViT and BERT layers of the package transformers as evolutions: tiny random models, float64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fredholm.errors import ConversionError
from fredholm.layers.encoder import correspondence, encoder_domain, from_encoder, to_encoder

from ...tolerances import assert_close

pytest.importorskip("transformers")

N, D = 6, 8
SIZES = {
    "hidden_size": D,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def vit(**options):
    from transformers import ViTConfig, ViTModel

    model = ViTModel(
        ViTConfig(image_size=4, patch_size=2, **SIZES, **options), add_pooling_layer=False
    )
    return _spread(model).eval()


def bert(**options):
    from transformers import BertConfig, BertModel

    return _spread(
        BertModel(BertConfig(vocab_size=11, **SIZES, **options), add_pooling_layer=False)
    ).eval()


def _spread(model):
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.double()


def _same_gradients(layers, evolution):
    for source, target in correspondence(layers):
        number, _, name = source.partition(".")
        theirs = layers[int(number)].get_parameter(name).grad
        assert_close(evolution.get_parameter(target).grad, theirs, source)


@pytest.mark.parametrize(
    "options", [{}, {"qkv_bias": False}, {"hidden_act": "gelu_new"}, {"layer_norm_eps": 0.1}]
)
def test_vit_layers_equal_an_evolution(options):
    model = vit(**options)
    images = torch.randn(3, 3, 4, 4, dtype=torch.float64)
    tokens = model.embeddings(images).detach()
    evolution = from_encoder(model.layers, norm=model.layernorm)
    theirs = model(images).last_hidden_state
    ours = evolution(tokens)
    assert_close(ours, theirs)
    probe = torch.randn_like(ours)
    ours.backward(probe)
    theirs.backward(probe)
    _same_gradients(model.layers, evolution)
    assert_close(evolution.norm.weight.grad, model.layernorm.weight.grad)
    if options.get("hidden_act") != "gelu_new":
        assert_close(to_encoder(evolution)(tokens), theirs)


def test_the_papers_steps_end_on_s1_and_layers_of_the_published_vit_do_not():
    """A step of (16) to (21) ends on S1, where all tokens have one deviation."""
    model = vit()
    tokens = model.embeddings(torch.randn(3, 3, 4, 4, dtype=torch.float64)).detach()
    post_norm = nn.TransformerEncoderLayer(D, 2, 16, dropout=0.0, batch_first=True).double()
    for layer, same in ((post_norm, True), (model.layers[0], False)):
        deviations = layer(tokens).std(-1)
        assert (deviations.max() < 1.01 * deviations.min()) == same


@pytest.mark.parametrize("options", [{}, {"hidden_act": "relu"}])
@pytest.mark.parametrize("scheme", ["lie", "relaxed"])
def test_padded_bert_layers_equal_an_evolution(options, scheme):
    model = bert(**options)
    words = torch.randint(0, 11, (3, N))
    kept = torch.arange(N) < torch.tensor([[6], [4], [1]])
    tokens = model.embeddings(words).detach()
    evolution = from_encoder(model.encoder, scheme=scheme)
    domain = encoder_domain(N, key_padding_mask=~kept, dtype=torch.float64)
    theirs = model(words, attention_mask=kept.long()).last_hidden_state
    ours = evolution(tokens, domain)
    theirs = torch.where(kept[..., None], theirs, 0.0)
    assert_close(ours, theirs)
    probe = torch.randn_like(ours)
    ours.backward(probe)
    theirs.backward(probe)
    _same_gradients(model.encoder.layer, evolution)
    back = to_encoder(evolution)(tokens, src_key_padding_mask=~kept)
    assert_close(torch.where(kept[..., None], back, 0.0), theirs)


def test_decoders_and_active_dropout_are_refused():
    with pytest.raises(ConversionError, match="decoder"):
        from_encoder(bert(is_decoder=True).encoder)
    with pytest.raises(ConversionError, match="training mode with dropout"):
        from_encoder(bert().train().encoder)
    with pytest.raises(ConversionError, match="ViTEmbeddings is not an encoder layer"):
        from_encoder(vit().embeddings)
