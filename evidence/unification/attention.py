"""Configurations of attention: PyTorch's, timm's, Hugging Face's, and plain implementations of
rotary positions and linear attention.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fredholm.convert import register_converter
from fredholm.domain import Domain
from fredholm.kernels import LinearAttentionKernel, Rotary, SoftmaxKernel
from fredholm.operators import IntegralOperator

from .measure import Configuration
from .state_space import uncast

B, N, M, DIM, HEADS = 2, 5, 4, 8, 2
FAMILY = "attention"


def signal(n: int = N, dim: int = DIM) -> tuple[Tensor, ...]:
    return (torch.randn(B, n, dim),)


# --- masks, as fields of a domain and as arguments of a module ------------------------------------

_GENERATOR = torch.Generator().manual_seed(0)
FUTURE = torch.ones(N, N).triu(1).bool()
SEEN = (torch.rand(N, N, generator=_GENERATOR) > 0.4) | torch.eye(N).bool()
BIAS = torch.randn(N, N, generator=_GENERATOR)
HEAD_BIAS = torch.randn(B, HEADS, N, N, generator=_GENERATOR)
VALID = torch.tensor([[True] * N, [True, True, True, False, False]])
BAND = (torch.arange(N)[:, None] - torch.arange(N)).abs() <= 1
SLOPES = torch.tensor([0.5, 0.25])
ALIBI = -SLOPES[:, None, None] * (torch.arange(N)[:, None] - torch.arange(N)).abs()


def line(u: Tensor, **options: Any) -> Domain:
    """Return a line with as many points as u, and masks in u's precision."""
    causal = options.pop("causal", False)
    domain = Domain.line(u.shape[1], dtype=u.dtype, causal=causal)
    return domain.replace(**in_precision(options, u.dtype))


def in_precision(options: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Cast the floating-point tensors among some options."""
    found = dict(options)
    for name, value in options.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            found[name] = value.to(dtype)
    return found


def real(y: Tensor, valid: Tensor | None) -> Tensor:
    """Set outputs at padded points to zero, as the operator does and the module does not."""
    if valid is None:
        return y
    return torch.where(valid[..., None], y, torch.zeros((), dtype=y.dtype))


# --- plain modules --------------------------------------------------------------------------------


def _heads(u: Tensor) -> Tensor:
    return u.unflatten(-1, (HEADS, -1)).transpose(1, 2)


class RotaryAttention(nn.Module):
    """Attention with queries and keys rotated as complex numbers (Su et al. 2021, Eq. 14)."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))

    def forward(self, u: Tensor, times: Tensor) -> Tensor:
        q, k, v = (_heads(f(u)) for f in (self.query, self.key, self.value))
        angle = times[:, None] * 100.0 ** -(torch.arange(0, 4, 2, dtype=u.dtype) / 4)
        q, k = (self.turned(x, angle) for x in (q, k))
        scores = q @ k.mT / (DIM // HEADS) ** 0.5
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))

    @staticmethod
    def turned(x: Tensor, angle: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


@register_converter(
    f"{__name__}.RotaryAttention", call=lambda m, u, domain: m(u, domain.positions[:, 0])
)
def rotary_attention(module: Any) -> IntegralOperator:
    layers = (module.query, module.key, module.value)
    kernel = SoftmaxKernel(
        DIM, HEADS, projections=layers, rotary=Rotary(4, base=100.0, interleaved=True)
    )
    return IntegralOperator(DIM, HEADS, kernel=kernel, residual=False, projection=module.out)


class LinearAttention(nn.Module):
    """Linear attention with a feature map, which evaluates the weights of all pairs."""

    def __init__(self, feature_map: Callable[[Tensor], Tensor], causal: bool = False):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(DIM, DIM) for _ in range(4))
        self.feature_map, self.causal = feature_map, causal

    def forward(self, u: Tensor) -> Tensor:
        q, k, v = (_heads(f(u)) for f in (self.query, self.key, self.value))
        weight = self.feature_map(q) @ self.feature_map(k).mT
        if self.causal:
            weight = weight.tril()
        weight = weight / weight.sum(-1, keepdim=True)
        return self.out((weight @ v).transpose(1, 2).flatten(2))


@register_converter(f"{__name__}.LinearAttention", domain=lambda m: Domain.line(6, causal=m.causal))
def linear_attention(module: Any) -> IntegralOperator:
    layers = (module.query, module.key, module.value)
    kernel = LinearAttentionKernel(DIM, HEADS, projections=layers, feature_map=module.feature_map)
    return IntegralOperator(DIM, HEADS, kernel=kernel, residual=False, projection=module.out)


class Exponential(nn.Module):
    """The feature map exp(±Ax) with a learned A."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(DIM // HEADS, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.mix(x)
        return torch.cat([x.exp(), (-x).exp()], -1)


def elu_features(x: Tensor) -> Tensor:
    return nn.functional.elu(x) + 1


# --- configurations -------------------------------------------------------------------------------


def configuration(
    label: str,
    build: Callable[[], nn.Module],
    domain: Callable[[Tensor], Domain] | None = None,
    **rest: Any,
):
    """Return a self attention whose operator is called on ``domain(u)`` or the default domain."""

    def apply(call: Callable[..., Tensor], u: Tensor) -> Tensor:
        if domain is None:
            return call(u)
        return call(u, domain(u))

    rest = {"inputs": signal, "apply": apply, "reference": lambda m, u: m(u)} | rest
    return Configuration(FAMILY, label, build, **rest)


def torch_attention(
    label: str,
    masks: dict[str, Any] | None = None,
    *,
    heads: int = HEADS,
    bias: bool = True,
    **domain: Any,
):
    """Return ``nn.MultiheadAttention`` with its mask arguments, and the equivalent domain."""
    masks, valid = masks or {}, domain.get("valid")

    def reference(module: nn.Module, u: Tensor) -> Tensor:
        output, _ = module(u, u, u, need_weights=False, **in_precision(masks, u.dtype))
        return real(output, valid)

    return configuration(
        label,
        lambda: nn.MultiheadAttention(DIM, heads, bias=bias, batch_first=True),
        (lambda u: line(u, **domain)) if domain else None,
        reference=reference,
    )


def sequence_first(module: nn.Module, u: Tensor) -> Tensor:
    v = u.transpose(0, 1)
    return module(v, v, v)[0].transpose(0, 1)


def across(label: str, valid: Tensor | None = None) -> Configuration:
    """Return a cross attention, with queries at other points."""
    padding = None if valid is None else ~valid
    return configuration(
        label,
        lambda: nn.MultiheadAttention(DIM, HEADS, batch_first=True),
        inputs=lambda: (*signal(), *signal(M)),
        reference=lambda m, u, query: m(query, u, u, key_padding_mask=padding)[0],
        apply=lambda call, u, query: call(u, line(u, valid=valid), query=query),
    )


_TIMM: list[torch.library.Library] = []


def timm_layers() -> Any:
    """Import ``timm.layers``.

    If torchvision does not have compiled operators for this torch, two schemas that timm needs are
    declared first.
    """
    try:
        return importlib.import_module("timm.layers")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _TIMM.append(library)
        return importlib.import_module("timm.layers")


def hugging_face(model: str, kind: str, **options: Any) -> Callable[..., nn.Module]:
    """Return a function that builds an attention layer of a tiny random configuration."""

    def build() -> nn.Module:
        package = importlib.import_module(f"transformers.models.{model}")
        code = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
        wanted = options.get("config", model) + "config"
        config = next(getattr(package, name) for name in dir(package) if name.lower() == wanted)
        arguments = {name: options[name] for name in ("is_causal", "layer_idx") if name in options}
        sizes = {"hidden_size": DIM, "num_attention_heads": HEADS, "attn_implementation": "sdpa"}
        rest = {n: v for n, v in options.items() if n not in arguments and n != "config"}
        return getattr(code, kind)(config(**sizes | rest), **arguments)

    return build


def hugging_face_part(model: str, kind: str, *sizes: int, **options: Any) -> nn.Module:
    """Build a layer whose sizes are arguments, with a configuration for its backend."""
    package = importlib.import_module(f"transformers.models.{model}")
    code = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    name = next(name for name in dir(package) if name.lower() == f"{model}config")
    config = getattr(package, name)
    return getattr(code, kind)(*sizes, config=config(attn_implementation="sdpa"), **options)


def first(module: nn.Module, u: Tensor) -> Tensor:
    return module(u)[0]


def llama(module: Any, u: Tensor) -> Tensor:
    """Call Llama's layer with cosines, sines and a mask, which its model usually computes."""
    width = module.head_dim
    frequency = 1e4 ** -(torch.arange(0, width, 2, dtype=u.dtype) / width)
    angle = torch.arange(u.shape[1], dtype=u.dtype)[:, None] * frequency
    angle = torch.cat([angle, angle], -1)[None]
    seen = torch.ones(u.shape[1], u.shape[1], dtype=torch.bool).tril()
    window = getattr(module.config, "sliding_window", None)
    if window is not None:
        seen = seen.triu(1 - window)
    mask = torch.zeros_like(seen, dtype=u.dtype).masked_fill(~seen, -torch.inf)
    return module(u, (angle.cos(), angle.sin()), attention_mask=mask[None, None])[0]


HF = "transformers"
CONFIGURATIONS = [
    torch_attention("nn.MultiheadAttention, 1 head", heads=1),
    torch_attention("nn.MultiheadAttention, 2 heads"),
    torch_attention("nn.MultiheadAttention, no bias", bias=False),
    torch_attention("causal", {"attn_mask": FUTURE}, causal=True),
    torch_attention("boolean mask", {"attn_mask": ~SEEN}, pairs=SEEN),
    torch_attention("float mask", {"attn_mask": BIAS}, pairs=BIAS),
    torch_attention(
        "float mask, one a head and sample", {"attn_mask": HEAD_BIAS.flatten(0, 1)}, pairs=HEAD_BIAS
    ),
    torch_attention("key padding", {"key_padding_mask": ~VALID}, valid=VALID),
    torch_attention(
        "causal, key padding",
        {"attn_mask": FUTURE, "key_padding_mask": ~VALID},
        causal=True,
        valid=VALID,
    ),
    torch_attention("window of 3", {"attn_mask": ~BAND}, pairs=BAND),
    torch_attention("causal window of 2", {"attn_mask": ~BAND | FUTURE}, pairs=BAND, causal=True),
    torch_attention(
        "causal ALiBi",
        {"attn_mask": ALIBI.masked_fill(FUTURE, -torch.inf).repeat(B, 1, 1)},
        pairs=ALIBI[None],
        causal=True,
    ),
    configuration(
        "sequence first", lambda: nn.MultiheadAttention(DIM, HEADS), reference=sequence_first
    ),
    configuration(
        "attention of nn.TransformerEncoderLayer",
        lambda: (
            nn.TransformerEncoderLayer(DIM, HEADS, dim_feedforward=4, batch_first=True).self_attn
        ),
        reference=lambda m, u: m(u, u, u)[0],
    ),
    across("cross attention"),
    across("cross attention, key padding", VALID),
    configuration(
        "rotary positions, written out, at irregular times",
        RotaryAttention,
        inputs=lambda: (*signal(), torch.rand(N).cumsum(0)),
        reference=lambda m, u, times: m(u, times),
        apply=lambda call, u, times: call(u, Domain.points(times[:, None])),
    ),
    configuration("linear attention, elu + 1", lambda: LinearAttention(elu_features)),
    configuration("linear attention, learned exponentials", lambda: LinearAttention(Exponential())),
    configuration(
        "causal linear attention",
        lambda: LinearAttention(elu_features, True),
        lambda u: line(u, causal=True),
    ),
    configuration(
        "timm Attention",
        lambda: timm_layers().Attention(DIM, HEADS, qkv_bias=True),
        requires="timm",
    ),
    configuration(
        "timm Attention, normalised queries and keys",
        lambda: timm_layers().Attention(
            DIM, HEADS, qk_norm=True, norm_layer=nn.LayerNorm, attn_head_dim=3
        ),
        requires="timm",
    ),
    configuration("BERT", hugging_face("bert", "BertSelfAttention"), reference=first, requires=HF),
    configuration(
        "BERT as decoder",
        hugging_face("bert", "BertSelfAttention", is_causal=True),
        reference=first,
        requires=HF,
    ),
    configuration(
        "BERT, cross attention",
        hugging_face("bert", "BertCrossAttention"),
        inputs=lambda: (*signal(), *signal(M)),
        reference=lambda m, u, query: m(query, encoder_hidden_states=u)[0],
        apply=lambda call, u, query: call(u, query=query),
        requires=HF,
    ),
    configuration(
        "ViT", hugging_face("vit", "ViTAttention", qkv_bias=False), reference=first, requires=HF
    ),
    configuration("GPT-2", hugging_face("gpt2", "GPT2Attention"), reference=first, requires=HF),
    configuration(
        "GPT-2, scaled by layer",
        hugging_face("gpt2", "GPT2Attention", scale_attn_by_inverse_layer_idx=True, layer_idx=2),
        reference=first,
        requires=HF,
    ),
    *(
        configuration(name, hugging_face(*source, **options), reference=first, requires=HF)
        for name, source, options in (
            ("RoBERTa", ("roberta", "RobertaSelfAttention"), {}),
            ("ELECTRA", ("electra", "ElectraSelfAttention"), {}),
            ("DistilBERT", ("distilbert", "DistilBertSelfAttention"), {}),
            ("DeiT", ("deit", "DeiTAttention"), {}),
            ("CLIP, vision", ("clip", "CLIPAttention"), {"config": "clipvision"}),
        )
    ),
    configuration(
        "BART, of a decoder",
        lambda: hugging_face_part("bart", "BartAttention", DIM, HEADS, is_causal=True),
        reference=first,
        requires=HF,
    ),
    *(
        configuration(
            label,
            hugging_face(*source, num_key_value_heads=1, layer_idx=0, head_dim=4, **options),
            reference=llama,
            requires=HF,
        )
        for label, source, options in (
            ("Mistral", ("mistral", "MistralAttention"), {"sliding_window": None}),
            ("Mistral, window of 3", ("mistral", "MistralAttention"), {"sliding_window": 3}),
            ("Qwen2", ("qwen2", "Qwen2Attention"), {}),
            ("Gemma", ("gemma", "GemmaAttention"), {}),
        )
    ),
    configuration(
        "Qwen3, normalised queries and keys",
        hugging_face("qwen3", "Qwen3Attention", num_key_value_heads=1, layer_idx=0, head_dim=4),
        reference=lambda m, u: uncast(partial(llama, m), u),
        apply=lambda call, u: uncast(call, u),
        requires=HF,
    ),
    configuration(
        "Llama, shared keys and values",
        hugging_face("llama", "LlamaAttention", num_key_value_heads=1, layer_idx=0),
        reference=llama,
        requires=HF,
    ),
]


def _speed(
    label: str,
    build: Callable[[], nn.Module],
    shape: tuple[int, int, int],
    reference: Callable[..., Tensor] = first,
):
    return label, build, lambda: torch.randn(shape), reference, lambda call, u: call(u)


# Rows of :mod:`.speed`, timed against the layer itself.
SPEED = [
    _speed(
        f"nn.MultiheadAttention {d}, H={heads}, B={batch}, N={n}",
        lambda d=d, heads=heads: nn.MultiheadAttention(d, heads, batch_first=True),
        (batch, n, d),
        lambda m, u: m(u, u, u, need_weights=False)[0],
    )
    for batch, n, d, heads in ((4, 197, 384, 6), (1, 1024, 512, 8))
] + [
    _speed(
        f"{name} 384, H=6, B=2, N=256",
        hugging_face(*source, hidden_size=384, num_attention_heads=6),
        (2, 256, 384),
    )
    for name, source in (
        ("ViT (transformers)", ("vit", "ViTAttention")),
        ("GPT-2 (transformers)", ("gpt2", "GPT2Attention")),
    )
]
