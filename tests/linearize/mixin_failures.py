"""Tests of transformers' mixins that converted models fail, with reasons."""

from __future__ import annotations

ARCHITECTURES = ("llama", "gpt2", "qwen2", "bert", "vit")
DECODERS = ("llama", "gpt2", "qwen2")
ENCODERS = ("bert", "vit")

STATE = "a layer keeps a state of fixed size, not keys and values: "
STATIC = STATE + "a StaticCache cannot hold it, and is refused by name"
PAST = STATE + "no keys can be asked of it, and the refusal says so"
WEIGHTS = STATE + "attention weights of tokens before the call are gone, and the refusal says so"
PAIRS = "linear attention has no pairs to mask: masks of pairs and packed sequences are refused"
BASES = "the test looks for GenerationMixin among the direct bases: here the source's class has it"
AGAIN = "the test starts pytest again on transformers' own file, where no model is converted"
LABELS = "the tester gives labels to BertForPreTraining itself, and the converted class is another"
CODE = "a folder brings code of its own, which the Auto classes run where it is trusted"
CHOSEN = "the conversion decides which function attends: another implementation is refused by name"
FOLDER = (
    "weights lie in fredholm_linear.safetensors, so that transformers alone cannot read softmax"
)
WHOLE = (
    "a folder is read whole, with every weight in its place: other shapes and missing are refused"
)
DYNAMIC = "the test reads the source file of a class that is made when a model is converted"
DEFINITION = "attention weights are answered from the definition, beside the path of the gradient"

REASONS: dict[str, dict[str, tuple[str, ...]]] = {
    WEIGHTS: {
        "test_assisted_decoding_matches_greedy_search_0_random": DECODERS,
        "test_assisted_decoding_matches_greedy_search_1_same": DECODERS,
        "test_assisted_decoding_sample": DECODERS,
        "test_beam_search_generate_dict_outputs_use_cache": DECODERS,
        "test_greedy_generate_dict_outputs_use_cache": DECODERS,
    },
    DYNAMIC: {
        "test_can_init_all_missing_weights": ARCHITECTURES,
    },
    WHOLE: {
        "test_can_load_ignoring_mismatched_shapes": ARCHITECTURES,
        "test_correct_missing_keys": ("llama", "qwen2", "bert", "vit"),
        "test_eager_matches_sdpa_inference_00_fp16_pad_left_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_01_fp16_pad_left": ("vit",),
        "test_eager_matches_sdpa_inference_02_fp16_pad_left_no_attn_mask_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_03_fp16_pad_left_no_attn_mask": ("vit",),
        "test_eager_matches_sdpa_inference_04_fp16_pad_right_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_05_fp16_pad_right": ("vit",),
        "test_eager_matches_sdpa_inference_06_fp16_pad_right_no_attn_mask_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_07_fp16_pad_right_no_attn_mask": ("vit",),
        "test_eager_matches_sdpa_inference_08_fp32_pad_left_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_09_fp32_pad_left": ("vit",),
        "test_eager_matches_sdpa_inference_10_fp32_pad_left_no_attn_mask_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_11_fp32_pad_left_no_attn_mask": ("vit",),
        "test_eager_matches_sdpa_inference_12_fp32_pad_right_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_13_fp32_pad_right": ("vit",),
        "test_eager_matches_sdpa_inference_14_fp32_pad_right_no_attn_mask_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_15_fp32_pad_right_no_attn_mask": ("vit",),
        "test_eager_matches_sdpa_inference_16_bf16_pad_left_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_17_bf16_pad_left": ("vit",),
        "test_eager_matches_sdpa_inference_18_bf16_pad_left_no_attn_mask_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_19_bf16_pad_left_no_attn_mask": ("vit",),
        "test_eager_matches_sdpa_inference_20_bf16_pad_right_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_21_bf16_pad_right": ("vit",),
        "test_eager_matches_sdpa_inference_22_bf16_pad_right_no_attn_mask_sdpa_kernels": ("vit",),
        "test_eager_matches_sdpa_inference_23_bf16_pad_right_no_attn_mask": ("vit",),
        "test_eager_matches_sdpa_inference_24_fp32_pad_left_output_attentions": ("vit",),
    },
    AGAIN: {
        "test_can_load_with_global_device_set": ARCHITECTURES,
    },
    CHOSEN: {
        "test_can_set_attention_dynamically": ARCHITECTURES,
        "test_sdpa_can_dispatch_non_composite_models": ARCHITECTURES,
    },
    PAIRS: {
        "test_custom_4d_attention_mask": DECODERS,
        "test_eager_padding_matches_padding_free_with_position_ids": DECODERS,
        "test_sdpa_padding_matches_padding_free_with_position_ids": DECODERS,
    },
    STATIC: {
        "test_generate_compilation_all_outputs": DECODERS,
        "test_generate_compile_model_forward_fullgraph": DECODERS,
        "test_generate_from_inputs_embeds_with_static_cache": DECODERS,
        "test_generate_with_static_cache": DECODERS,
        "test_static_cache_no_recompile_with_smaller_length": DECODERS,
    },
    PAST: {
        "test_generate_continue_from_inputs_embeds": DECODERS,
        "test_generate_continue_from_past_key_values": DECODERS,
        "test_past_key_values_format": DECODERS,
    },
    BASES: {
        "test_inherits_generation_mixin": ("llama", "gpt2", "qwen2", "bert"),
    },
    FOLDER: {
        "test_load_save_without_tied_weights": ARCHITECTURES,
        "test_model_weights_reload_no_missing_tied_weights": ARCHITECTURES,
        "test_reverse_loading_mapping": ("vit",),
    },
    CODE: {
        "test_load_with_mismatched_shapes": ("llama", "gpt2", "qwen2", "bert"),
    },
    DEFINITION: {
        "test_retain_grad_hidden_states_attentions": ARCHITECTURES,
    },
    LABELS: {
        "test_training": ("bert",),
        "test_training_gradient_checkpointing": ("bert",),
        "test_training_gradient_checkpointing_use_reentrant_false": ("bert",),
        "test_training_gradient_checkpointing_use_reentrant_true": ("bert",),
    },
}


def expected(architecture: str) -> dict[str, str]:
    """Return the tests that fail for an architecture, each with its reason."""
    result: dict[str, str] = {}
    for reason, tests in REASONS.items():
        for name, architectures in tests.items():
            if architecture in architectures:
                assert name not in result, name
                result[name] = reason
    return result
