"""Tiny random models of transformers, one of every kind that `linearize` converts or refuses."""

from __future__ import annotations

import torch

from .models import VOCABULARY, spread

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
TOKENS = {"vocab_size": VOCABULARY, "max_position_embeddings": 32}
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
IMAGE = {"image_size": 8, "patch_size": 4}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "window_size": 2}
GEMMA = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4}
SOUND = {
    "conv_dim": (8, 8),
    "conv_kernel": (10, 3),
    "conv_stride": (5, 2),
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}
BOTH = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": VOCABULARY,
}
WINDOWS = ["sliding_attention", "full_attention"]
MODELS = {
    "swin": ("SwinModel", "SwinConfig", {**SWIN, "num_heads": [2, 2]}),
    "beit": ("BeitModel", "BeitConfig", {**IMAGE, **SIZES, "use_relative_position_bias": True}),
    "beit shared": (
        "BeitModel",
        "BeitConfig",
        {**IMAGE, **SIZES, "use_shared_relative_position_bias": True},
    ),
    "beit plain": ("BeitModel", "BeitConfig", {**IMAGE, **SIZES}),
    "albert": ("AlbertModel", "AlbertConfig", {**SIZES, **TOKENS, "embedding_size": 16}),
    "wav2vec2": ("Wav2Vec2Model", "Wav2Vec2Config", {**SOUND, **SIZES}),
    "whisper": (
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {
            **BOTH,
            **ENDS,
            "num_mel_bins": 8,
            "max_source_positions": 8,
            "max_target_positions": 16,
            "decoder_start_token_id": 1,
        },
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {**BOTH, **ENDS, "max_position_embeddings": 32, "decoder_start_token_id": 2},
    ),
    "modernbert": (
        "ModernBertModel",
        "ModernBertConfig",
        {**SIZES, **TOKENS, **ENDS, "local_attention": 4, "global_attn_every_n_layers": 2,
         "cls_token_id": 1, "sep_token_id": 2},
    ),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**SIZES, **TOKENS, **GEMMA}),
    "gemma2 uncapped": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**SIZES, **TOKENS, **GEMMA, "attn_logit_softcapping": None},
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**SIZES, **TOKENS, **GEMMA, "layer_types": WINDOWS},
    ),
    "qwen2": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**SIZES, **TOKENS, "num_key_value_heads": 2, "use_sliding_window": True,
         "sliding_window": 4, "max_window_layers": 1},
    ),
    "mistral": (
        "MistralForCausalLM",
        "MistralConfig",
        {**SIZES, **TOKENS, "num_key_value_heads": 2, "sliding_window": 4},
    ),
    "videomae": (
        "VideoMAEModel",
        "VideoMAEConfig",
        {**IMAGE, **SIZES, "num_frames": 2, "tubelet_size": 1},
    ),
}  # fmt: skip

GROUPED = {**SIZES, **TOKENS, **ENDS, "num_key_value_heads": 2}
DECODERS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**ENDS, "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4,
         "n_positions": 64},
    ),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": None}),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED),
    "gpt neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**SIZES, **TOKENS, **ENDS}),
}  # fmt: skip


def decoder(name: str):
    """Return a language model by its name in DECODERS."""
    import transformers

    model, config, chosen = DECODERS[name]
    return spread(getattr(transformers, model)(getattr(transformers, config)(**chosen)))


def library(name: str, **options):
    """Return a model by its name in MODELS, with weights that make attention far from uniform."""
    import transformers

    model, config, chosen = MODELS[name]
    return spread(getattr(transformers, model)(getattr(transformers, config)(**chosen, **options)))


def clip():
    from transformers import CLIPConfig, CLIPModel

    parts = {"text_config": {**SIZES, **TOKENS}, "vision_config": {**SIZES, **IMAGE}}
    return spread(CLIPModel(CLIPConfig(**parts, projection_dim=16)))


def inputs(name: str) -> dict[str, torch.Tensor]:
    """Return arguments of one call, for a model without a small example."""
    draw = torch.Generator().manual_seed(1)
    pixels = torch.randn(2, 3, 8, 8, generator=draw)
    ids = torch.randint(3, VOCABULARY, (2, 12), generator=draw)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    return {
        "clip": {"input_ids": ids, "attention_mask": mask, "pixel_values": pixels},
        "beit plain": {"pixel_values": pixels},
        "wav2vec2": {"input_values": torch.randn(2, 125, generator=draw)},
        "whisper": {"input_features": torch.randn(2, 8, 16, generator=draw)},
        "videomae": {"pixel_values": torch.randn(1, 2, 3, 8, 8, generator=draw)},
    }.get(name, {"input_ids": ids, "attention_mask": mask})
