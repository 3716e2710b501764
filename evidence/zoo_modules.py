"""The modules of the zoo: those of each library as expressions, and layers that a user changed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from fredholm.layers.encoder.readers import BERT_LAYERS, CLIP_LAYERS, VIT_LAYERS
from fredholm.layers.huggingface_attention import BART, BERT, CLIP, VIT
from fredholm.layers.huggingface_rotary import LLAMA, WINDOWED

from .unification.attention import timm_layers


@dataclass(frozen=True)
class Specimen:
    """One module of the zoo, and how it is converted.

    Attributes:
        library: its package.
        name: its name in the table.
        build: makes the module.
        encoder: :func:`fredholm.convert.from_encoder` instead of :func:`fredholm.as_operator`.
        options: of that function.
        training: convert it in training mode.
    """

    library: str
    name: str
    build: Callable[[], nn.Module]
    encoder: bool = False
    options: dict[str, Any] = field(default_factory=dict)
    training: bool = False


# --- torch ----------------------------------------------------------------------------------------

TORCH = """
Linear(4, 6) | Linear(4, 6, bias=False) | Bilinear(4, 4, 3) | Identity() | LazyLinear(4)
Embedding(9, 4) | EmbeddingBag(9, 4) | Flatten() | Unflatten(1, (2, 2))
Conv1d(4, 6, 3) | Conv1d(4, 6, 3, padding=1) | Conv1d(4, 6, 3, stride=2) | Conv1d(4, 6, 3, dilation=2)
Conv1d(4, 6, 3, groups=2) | Conv1d(4, 4, 3, groups=4) | Conv1d(4, 6, 3, bias=False)
Conv1d(4, 6, 4, padding="same") | Conv1d(4, 6, 3, padding="valid") | Conv1d(4, 6, 1)
Conv1d(4, 6, 3, padding=2, padding_mode="circular")
Conv1d(4, 6, 3, padding=2, padding_mode="reflect")
Conv1d(4, 6, 3, padding=2, padding_mode="replicate")
Conv2d(4, 6, 3) | Conv2d(4, 6, (3, 2), stride=(2, 1)) | Conv2d(4, 6, 3, padding="same", dilation=2)
Conv2d(4, 4, 3, groups=4, padding=1) | Conv2d(4, 6, 11, stride=4)
Conv2d(4, 6, 3, padding=1, padding_mode="circular") | Conv3d(2, 3, 2) | Conv3d(2, 3, 3, padding=1, stride=2)
ConvTranspose1d(4, 6, 3) | ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1)
ConvTranspose1d(4, 6, 3, groups=2, dilation=2) | ConvTranspose2d(4, 6, 2, stride=2)
ConvTranspose2d(4, 6, 3, padding=1) | ConvTranspose3d(2, 3, 2) | LazyConv1d(4, 3) | LazyConv2d(4, 3)
AvgPool1d(2) | AvgPool1d(3, stride=2, padding=1) | AvgPool2d(2) | AvgPool2d(3, 2, ceil_mode=True)
AvgPool2d(2, count_include_pad=False) | AvgPool2d(2, divisor_override=3) | AvgPool3d(2)
AdaptiveAvgPool1d(3) | AdaptiveAvgPool2d(1) | AdaptiveAvgPool2d((2, None)) | AdaptiveAvgPool3d(2)
MaxPool1d(2) | MaxPool2d(3, stride=2, padding=1) | MaxPool2d(2, dilation=2) | MaxPool3d(2)
MaxPool1d(2, return_indices=True) | AdaptiveMaxPool1d(2) | AdaptiveMaxPool2d(2) | LPPool1d(2, 2)
LPPool2d(2, 2) | FractionalMaxPool2d(2, output_size=2) | MaxUnpool1d(2) | MaxUnpool2d(2)
MultiheadAttention(8, 2) | MultiheadAttention(8, 2, batch_first=True) | MultiheadAttention(8, 1)
MultiheadAttention(8, 2, bias=False) | MultiheadAttention(8, 2, dropout=0.1)
MultiheadAttention(8, 2, kdim=4, vdim=4) | MultiheadAttention(8, 2, add_bias_kv=True)
MultiheadAttention(8, 2, add_zero_attn=True)
RNN(4, 6) | RNN(4, 6, nonlinearity="relu") | RNN(4, 6, 2, bidirectional=True) | RNN(4, 6, bias=False)
LSTM(4, 6) | LSTM(4, 6, 2, batch_first=True) | LSTM(4, 6, bidirectional=True) | LSTM(4, 6, proj_size=3)
LSTM(4, 6, 2, dropout=0.1) | GRU(4, 6) | GRU(4, 6, 3) | GRU(4, 6, 2, bidirectional=True, batch_first=True)
RNNCell(4, 6) | RNNCell(4, 6, nonlinearity="relu") | LSTMCell(4, 6) | GRUCell(4, 6, bias=False)
LayerNorm(4) | RMSNorm(4) | BatchNorm1d(4) | BatchNorm2d(4) | BatchNorm3d(4) | GroupNorm(2, 4)
InstanceNorm1d(4) | InstanceNorm2d(4) | LocalResponseNorm(2) | SyncBatchNorm(4) | CrossMapLRN2d(2)
ReLU() | ReLU6() | LeakyReLU() | PReLU() | RReLU() | ELU() | SELU() | CELU() | GELU() | SiLU() | Mish()
Sigmoid() | LogSigmoid() | Hardsigmoid() | Tanh() | Hardtanh() | Tanhshrink() | Hardswish() | Softplus()
Softsign() | Softshrink() | Hardshrink() | Threshold(0.1, 0.0) | GLU() | Softmax(-1) | LogSoftmax(-1)
Softmin(-1) | Softmax2d() | Dropout(0.1) | Dropout1d(0.1) | Dropout2d(0.1) | AlphaDropout(0.1)
PixelShuffle(2) | PixelUnshuffle(2) | ChannelShuffle(2) | Upsample(scale_factor=2) | Fold((4, 4), 2) | Unfold(2)
ZeroPad1d(1) | ZeroPad2d(1) | ReflectionPad1d(1) | ReplicationPad2d(1) | CircularPad1d(1) | ConstantPad1d(1, 0.0)
CosineSimilarity() | PairwiseDistance() | Transformer(8, 2, 1, 1, 16) | TransformerEncoderLayer(8, 2, 16)
TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1) | TransformerDecoderLayer(8, 2, 16)
Sequential(nn.Linear(4, 6), nn.Linear(6, 2)) | Sequential(nn.Conv2d(4, 6, 3), nn.MaxPool2d(2), nn.Conv2d(6, 2, 1))
Sequential(nn.Linear(4, 6), nn.GRU(6, 2, batch_first=True)) | Sequential(nn.Conv1d(4, 4, 3), nn.ReLU())
Sequential(nn.Conv1d(4, 4, 3), nn.Linear(4, 4)) | Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
ModuleList([nn.Linear(4, 4)]) | ModuleDict({"a": nn.Linear(4, 4)})
"""
ENCODERS = """
TransformerEncoderLayer(8, 2, 16) | TransformerEncoderLayer(8, 2, 16, batch_first=True)
TransformerEncoderLayer(8, 2, 16, norm_first=True) | TransformerEncoderLayer(8, 2, 16, activation="gelu")
TransformerEncoderLayer(8, 2, 16, bias=False) | TransformerEncoderLayer(8, 2, 16, layer_norm_eps=0.1)
TransformerEncoderLayer(8, 2, 16, activation=nn.Hardswish())
TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3)
TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, nn.LayerNorm(8))
TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, nn.RMSNorm(8))
ModuleList([nn.TransformerEncoderLayer(8, 2, 16), nn.TransformerEncoderLayer(8, 2, 16)])
TransformerDecoderLayer(8, 2, 16) | Transformer(8, 2, 1, 1, 16) | Linear(8, 8)
"""


def expressions(text: str) -> list[str]:
    """Split a text at its lines and at `` | ``."""
    return [part.strip() for line in text.strip().splitlines() for part in line.split(" | ")]


def torch_modules() -> Iterator[Specimen]:
    """Yield the modules of torch, some of them in training mode."""
    for name in expressions(TORCH):
        options = {"dim": 4} if name.split("(")[0].rstrip("123d") in POOLS else {}
        yield Specimen("torch", f"nn.{name}", partial(evaluate, f"nn.{name}"), options=options)
    for name in ("MultiheadAttention(8, 2, dropout=0.1)", "GRU(4, 6, 2, dropout=0.1)"):
        build = partial(evaluate, f"nn.{name}")
        yield Specimen("torch", f"nn.{name}, training", build, training=True)
    for name in expressions(ENCODERS):
        yield Specimen("torch", f"nn.{name}", partial(evaluate, f"nn.{name}"), encoder=True)
    training = "nn.TransformerEncoderLayer(8, 2, 16)"
    yield Specimen("torch", f"{training}, training", partial(evaluate, training), True, {}, True)


POOLS = ("AvgPool", "AdaptiveAvgPool", "MaxPool")


def evaluate(expression: str) -> Any:
    """Return the module that an expression of this file makes."""
    return eval(expression, {"nn": nn})


# --- layers that a user changed -------------------------------------------------------------------


class LowRank(nn.Linear):
    """An update beside the weight, as adapters add one."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.down, self.up = nn.Linear(inputs, 2), nn.Linear(2, outputs)

    def forward(self, u):
        return super().forward(u) + self.up(self.down(u))


class Shifted(nn.Conv1d):
    """Overrides the method that its base's forward calls."""

    def _conv_forward(self, u, weight, bias):
        return super()._conv_forward(u, weight, bias) + 1.0


def _hooked(register: str) -> nn.Module:
    layer = nn.MultiheadAttention(8, 2)
    getattr(layer.out_proj, register)(lambda *_: None)
    return layer


def _patched() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = lambda u: 2 * nn.Linear.forward(layer, u)  # type: ignore[method-assign]
    return layer


def _adapted() -> nn.Module:
    layer = nn.MultiheadAttention(8, 2)
    layer.out_proj = LowRank(8, 8)  # type: ignore[assignment]
    return layer


def _quantised() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(nn.LSTM(4, 6), {nn.LSTM})


def _scripted() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Linear(4, 4))


CHANGED: dict[str, Callable[[], nn.Module]] = {
    "Linear with its forward replaced": _patched,
    "MultiheadAttention with a forward hook inside": lambda: _hooked("register_forward_hook"),
    "MultiheadAttention with a forward pre-hook inside": lambda: _hooked(
        "register_forward_pre_hook"
    ),
    "MultiheadAttention with a backward hook inside": lambda: _hooked(
        "register_full_backward_hook"
    ),
    "MultiheadAttention with a low-rank update inside": _adapted,
    "Linear with a low-rank update": lambda: LowRank(4, 4),
    "Conv1d with _conv_forward overridden": lambda: Shifted(4, 4, 3),
    "Conv1d, weight norm": lambda: parametrizations.weight_norm(nn.Conv1d(4, 4, 3)),
    "Linear, spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
    "Linear, orthogonal": lambda: parametrizations.orthogonal(nn.Linear(4, 4)),
    "Conv1d, pruned": lambda: prune.l1_unstructured(nn.Conv1d(4, 4, 3), "weight", 0.5),
    "LSTM, quantised": _quantised,
    "Linear, scripted": _scripted,
    "Linear, compiled": lambda: torch.compile(nn.Linear(4, 4)),  # type: ignore[return-value]
}


# --- Hugging Face ---------------------------------------------------------------------------------

SIZES = {
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "vocab_size": 11,
    "image_size": 4,
    "patch_size": 2,
    "num_key_value_heads": 1,
    "attn_implementation": "sdpa",
    "pad_token_id": 0,
}
# Configurations whose class has another name than the folder, or that need other sizes.
SPECIAL = {
    "audio_spectrogram_transformer": {"config": "ASTConfig", "max_length": 32, "num_mel_bins": 16},
    "altclip": {"config": "AltCLIPVisionConfig"},
    "chinese_clip": {"config": "ChineseCLIPVisionConfig"},
    "clip": {"config": "CLIPVisionConfig"},
    "clipseg": {"config": "CLIPSegVisionConfig"},
    "metaclip_2": {"config": "MetaClip2VisionConfig"},
    "x_clip": {"config": "XCLIPVisionConfig"},
    "data2vec": {"config": "Data2VecTextConfig"},
    "vivit": {"num_frames": 2, "tubelet_size": [2, 2, 2]},
    "distilbert": {"dim": 8, "n_heads": 2},
    "gpt2": {"n_embd": 8, "n_head": 2},
    "time_series_transformer": {"prediction_length": 4},
    "mamba": {"state_size": 3, "time_step_rank": 2},
    "siglip": {"config": "SiglipVisionConfig"},
    "gemma3": {"config": "Gemma3TextConfig"},
    "bridgetower": {"config": "BridgeTowerTextConfig"},
    "yolos": {"image_size": [4, 4]},
    "flava": {"config": "FlavaTextConfig"},
    "diffllama": {"num_key_value_heads": 2},
    "ernie4_5": {"config": "Ernie4_5Config"},
    "xlnet": {"d_model": 8, "n_head": 2, "d_head": 4, "d_inner": 16},
    "mamba2": {"num_heads": 4, "head_dim": 4},
}
REFUSED = """
albert.AlbertAttention mpnet.MPNetSelfAttention layoutlm.LayoutLMSelfAttention
megatron_bert.MegatronBertSelfAttention rembert.RemBertSelfAttention tapas.TapasSelfAttention
esm.EsmSelfAttention vilt.ViltSelfAttention yolos.YolosSelfAttention videomae.VideoMAESelfAttention
flava.FlavaSelfAttention visual_bert.VisualBertSelfAttention splinter.SplinterSelfAttention
nystromformer.NystromformerSelfAttention convbert.ConvBertSelfAttention deberta.DisentangledSelfAttention
deberta_v2.DisentangledSelfAttention big_bird.BigBirdSelfAttention t5.T5Attention opt.OPTAttention
bloom.BloomAttention falcon.FalconAttention gpt_neox.GPTNeoXAttention gptj.GPTJAttention
codegen.CodeGenAttention phi.PhiAttention phi3.Phi3Attention gemma2.Gemma2Attention gemma3.Gemma3Attention
cohere.CohereAttention olmo.OlmoAttention olmo2.Olmo2Attention olmoe.OlmoeAttention
stablelm.StableLmAttention starcoder2.Starcoder2Attention glm.GlmAttention helium.HeliumAttention
persimmon.PersimmonAttention nemotron.NemotronAttention smollm3.SmolLM3Attention
diffllama.DiffLlamaAttention bitnet.BitNetAttention ernie4_5.Ernie4_5Attention gpt_oss.GptOssAttention
modernbert.ModernBertAttention siglip.SiglipAttention beit.BeitAttention dinov3_vit.DINOv3ViTAttention
xlnet.XLNetRelativeAttention mamba2.Mamba2Mixer rwkv.RwkvSelfAttention
bert.BertAttention bert.BertSelfOutput bert.BertLayer vit.ViTLayer gpt2.GPT2MLP llama.LlamaMLP
llama.LlamaRMSNorm llama.LlamaDecoderLayer
"""
ENCODERS_REFUSED = (
    "bert.BertForMaskedLM bert.BertPooler gpt2.GPT2Model llama.LlamaDecoderLayer albert.AlbertModel"
)


def hugging_face(folder: str, file: str, kind: str) -> nn.Module:
    """Return a module of a tiny configuration, with random weights."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module(f"transformers.models.{folder}")
        code = importlib.import_module(f"transformers.models.{folder}.{file}")
        special = dict(SPECIAL.get(folder, {}))
        name = special.pop("config", None)
        if name is None:
            lower = f"{folder.replace('_', '')}config"
            name = next(name for name in dir(package) if name.lower() == lower)
        config = getattr(package, name)(**SIZES | special)
        module: Any = getattr(code, kind)
        parameters = inspect.signature(module.__init__).parameters
        values = {"config": config, "embed_dim": 8, "num_heads": 2, "layer_idx": 0, "layer_id": 0}
        values |= {"hidden_size": 8, "intermediate_size": 16}
        return module(**{name: values[name] for name in parameters if name in values})


def transformers_modules() -> Iterator[Specimen]:
    """Yield the attention and encoder modules of transformers."""

    def one(name: str, tail: str, encoder: bool = False) -> Specimen:
        folder, file, prefix = name.split(".")
        build = partial(hugging_face, folder, file, prefix + tail)
        return Specimen("transformers", f"{folder}.{prefix}{tail}", build, encoder)

    for names, tail in (
        (BERT, "SelfAttention"),
        (BERT, "CrossAttention"),
        (VIT, "Attention"),
        (CLIP, "Attention"),
        (BART, "Attention"),
        (LLAMA, "Attention"),
        (WINDOWED, "Attention"),
    ):
        yield from (one(name, tail) for name in names)
    for name in (
        "distilbert.modeling_distilbert.DistilBertSelfAttention",
        "gpt2.modeling_gpt2.GPT2Attention",
        "mamba.modeling_mamba.MambaMixer",
    ):
        yield one(name, "")
    for name in REFUSED.split():
        folder, kind = name.split(".")
        yield one(f"{folder}.modeling_{folder}.{kind}", "")
    for names, tails in (
        (BERT_LAYERS, ("Layer", "Encoder", "Model")),
        (VIT_LAYERS, ("Layer", "Model")),
        (CLIP_LAYERS, ("EncoderLayer", "Encoder", "VisionModel")),
    ):
        yield from (one(name, tail, True) for name in names for tail in tails)
    for name in ENCODERS_REFUSED.split():
        folder, kind = name.split(".")
        yield one(f"{folder}.modeling_{folder}.{kind}", "", True)


# --- other libraries ------------------------------------------------------------------------------

GRAPHS = """
GCNConv(4, 6) | GCNConv(4, 6, normalize=False) | GCNConv(4, 6, improved=True) | GCNConv(4, 6, cached=True)
GATConv(4, 6) | GATConv(4, 3, heads=2) | GATConv(4, 3, heads=2, concat=False) | GATConv(4, 6, edge_dim=2)
GATConv(4, 6, add_self_loops=False) | GATv2Conv(4, 6) | GATv2Conv(4, 3, heads=2, share_weights=True)
GATv2Conv(4, 6, residual=True) | SAGEConv(4, 6) | SAGEConv(4, 6, aggr="sum") | SAGEConv(4, 6, aggr="max")
SAGEConv(4, 6, root_weight=False) | SAGEConv(4, 6, normalize=True) | SAGEConv(-1, 6) | GraphConv(4, 6)
ChebConv(4, 6, 2) | TAGConv(4, 6) | SGConv(4, 6) | ARMAConv(4, 6) | TransformerConv(4, 6)
GINConv(torch_geometric.nn.Linear(4, 6)) | LEConv(4, 6) | ClusterGCNConv(4, 6) | ResGatedGraphConv(4, 6)
FeaStConv(4, 6) | SuperGATConv(4, 6) | AGNNConv() | APPNP(2, 0.1) | GatedGraphConv(4, 2) | MFConv(4, 6) | Linear(4, 6)
"""
TIMM = """
layers.Attention(8, 2) | layers.Attention(8, 2, qkv_bias=True, qk_norm=True, norm_layer=nn.LayerNorm)
layers.Attention(8, 2, attn_drop=0.1) | layers.Attention(8, 2, scale_norm=True, norm_layer=nn.LayerNorm)
layers.Mlp(8, 16) | layers.DropPath(0.1) | layers.PatchEmbed(4, 2, 3, 8) | layers.LayerNorm(8)
"""
TIMM_ENCODERS = """
vit.Block(8, 2) | vit.Block(8, 2, qkv_bias=True) | vit.Block(8, 2, init_values=0.1)
vit.Block(8, 2, qk_norm=True) | vit.ParallelScalingBlock(8, 2)
vit.VisionTransformer(img_size=4, patch_size=2, embed_dim=8, depth=2, num_heads=2)
vit.VisionTransformer(img_size=4, patch_size=2, embed_dim=8, depth=2, num_heads=2, init_values=0.1)
"""


def _timm(expression: str) -> Any:
    layers = timm_layers()
    vit = importlib.import_module("timm.models.vision_transformer")
    return eval(expression, {"nn": nn, "layers": layers, "vit": vit})


def _graph(expression: str) -> Any:
    geometric = importlib.import_module("torch_geometric")
    importlib.import_module("torch_geometric.nn")
    space = {"torch_geometric": geometric, **vars(geometric.nn)}
    return eval(expression, space)


def _spectral(modes: tuple[int, ...]) -> nn.Module:
    return importlib.import_module("neuralop.layers.spectral_convolution").SpectralConv(3, 3, modes)


def _mamba(**options: Any) -> nn.Module:
    library = importlib.import_module("mambapy.mamba")
    return library.MambaBlock(library.MambaConfig(d_model=4, n_layers=1, d_state=3, **options))


def modules() -> list[Specimen]:
    """Return all modules of the zoo, library by library."""
    if importlib.util.find_spec("torchvision") is not None:
        # This declares operations that torchvision may lack, which transformers imports as well.
        timm_layers()
    found = [*torch_modules()]
    found += [Specimen("changed layers", name, build) for name, build in CHANGED.items()]
    found += [*transformers_modules()]
    found += [Specimen("torch_geometric", x, partial(_graph, x)) for x in expressions(GRAPHS)]
    found += [Specimen("timm", x, partial(_timm, x)) for x in expressions(TIMM)]
    found += [Specimen("timm", x, partial(_timm, x), True) for x in expressions(TIMM_ENCODERS)]
    for modes in ((4,), (4, 4)):
        found.append(
            Specimen("neuralop", f"SpectralConv(3, 3, {modes})", partial(_spectral, modes))
        )
    found.append(Specimen("mambapy", "MambaBlock", _mamba))
    options = {"inner_layernorms": True}
    found.append(Specimen("mambapy", "MambaBlock, inner norms", partial(_mamba, **options)))
    return found
