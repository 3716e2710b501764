"""Tiny random models of every convertible kind, and a batch for each."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.parts import parts

VOCABULARY, N = 40, 10


def tokens(batch: int = 3, n: int = N) -> Tensor:
    return torch.randint(1, VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(0))


def padded(batch: int = 3, n: int = N) -> dict[str, Tensor]:
    """Return token numbers, with four tokens of padding in the last row."""
    mask = torch.ones(batch, n, dtype=torch.long)
    mask[-1, n - 4 :] = 0
    return {"input_ids": tokens(batch, n), "attention_mask": mask}


def bert(**options):
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=32, **sizes, **options)
    return spread(BertForSequenceClassification(config))


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    return spread(ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes)))


def dinov2():
    from transformers import Dinov2Config, Dinov2ForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2}
    return spread(Dinov2ForImageClassification(Dinov2Config(image_size=8, patch_size=4, **sizes)))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    ends = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return spread(
        GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2, n_positions=32, **ends
            )
        )
    )


def llama(**options):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    return spread(
        LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCABULARY, intermediate_size=24, **sizes, **options)
        )
    )


def spread(model):
    """Return the model with reproducible weights that make attention far from uniform."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 or name.endswith("bias"):
            nn.init.normal_(
                parameter, std=0.02 if "embed" in name else 0.35 if parameter.dim() > 1 else 0.1
            )
    return model.eval()


class Attention(nn.Module):
    """The submodules and names of timm's ``Attention``."""

    def __init__(self, dim: int, num_heads: int = 2, qk_norm: bool = False):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, 3 * dim)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.attn_drop = nn.Dropout(0.1)
        self.norm = nn.Identity()
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(0.2)

    def forward(self, x, attn_mask=None, is_causal=False):
        b, n, c = x.shape
        q, k, v = (
            self.qkv(x)
            .reshape(b, n, 3, self.num_heads, self.head_dim)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        x = nn.functional.scaled_dot_product_attention(
            self.q_norm(q),
            self.k_norm(k),
            v,
            attn_mask,
            self.attn_drop.p if self.training else 0.0,
            is_causal,
        )
        return self.proj_drop(self.proj(x.transpose(1, 2).reshape(b, n, c)))


class Block(nn.Module):
    def __init__(self, dim: int, **options):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, **options)

    def forward(self, x):
        return x + self.attn(self.norm1(x))


def timm_like(**options) -> nn.Module:
    """Return a stack of timm's blocks without their networks."""
    return spread(nn.Sequential(Block(16, **options), Block(16, **options)))


def torch_encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 24, batch_first=True)
    return spread(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


def own(**options):
    from fredholm import create_model

    built = create_model(
        "itnet_nano",
        **parts(operator="softmax", dim=16, heads=2, depth=2, image_size=(8, 8), **options),
    )
    nn.init.normal_(built.head.weight)
    return spread(built)
