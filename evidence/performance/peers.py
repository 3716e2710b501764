"""The operators beside what users would pick instead, with the same weights wherever both compute
the same function.

The packages of evidence/peers.txt are looked for in the environment and in ``.peers`` beside this
folder, where ``make bench`` puts them; a peer that is not there is left out, and the runner says
so. A peer that computes another function for the same job (Performer's random features, say) is
checked against its own formula, written out here.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fredholm.domain import Domain
from fredholm.kernels import HiddenKernel
from fredholm.layers import Convolution, Recurrence
from fredholm.operators import IntegralOperator, LinearAttention, SoftmaxAttention

from ..kit.clock import Case, Entry, with_gradients

PEERS = Path(__file__).parents[2] / ".peers"
DIM, HEADS, BATCH = 128, 4, 2


def peer(name: str) -> Any | None:
    """A peer's module, or None where it is not installed."""
    if PEERS.is_dir() and str(PEERS) not in sys.path:
        sys.path.append(str(PEERS))  # last: the environment's own packages come first
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(PEERS)]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for the compiler that KeOps starts
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(f"{name}: left out, {error}", file=sys.stderr)
        return None


def both(
    name: str, ways: dict[str, tuple[Callable[[], Tensor], list[Tensor]]], **case: Any
) -> Iterator[Case]:
    """A forward case and a forward + backward case of ways that compute the same; the first is ours
    and the reference.
    """
    for direction in ("forward", "forward+backward"):
        entries = {}
        for way, (run, inputs) in ways.items():
            entries[way] = Entry(_step(run, inputs, direction))
        trusted = case["trusted"]
        reference = _step(trusted[0], trusted[1], direction)
        extra = {key: value for key, value in case.items() if key != "trusted"}
        tolerance = 1e-4 if direction == "forward" else 2e-3
        yield Case(
            f"{name} {direction}", reference, entries, tolerance=tolerance, repeats=5, **extra
        )


def _step(run: Callable[[], Tensor], inputs: list[Tensor], direction: str) -> Callable[[], Tensor]:
    """Forward alone, or values and the gradient in the signal: weights of peers are laid out
    differently.
    """
    if direction == "forward":
        return torch.no_grad()(run)
    return lambda: with_gradients(run(), inputs[:1]) if len(inputs) == 1 else _all(run(), inputs)


def _all(output: Tensor, inputs: list[Tensor]) -> Tensor:
    """Values and the signal's gradient, after a backward pass through every parameter."""
    found = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True)
    return torch.cat([output.detach().flatten(), found[0].flatten()])


# --- softmax attention ----------------------------------------------------------------------------


def attention_ways(
    operator: SoftmaxAttention, u: Tensor
) -> dict[str, tuple[Callable[[], Tensor], list[Tensor]]]:
    """Our layer, torch's, and the peers', with its weights (biases are zero: not all peers have
    them).
    """
    kernel: Any = operator.kernel
    query, key, value, out = kernel.query, kernel.key, kernel.value, operator.projection
    assert out is not None
    dim, heads = operator.dim, operator.heads
    with torch.no_grad():
        for layer in (query, key, value, out):
            layer.bias.zero_()
    ways: dict[str, Any] = {"fredholm": (lambda: operator(u), [u, *operator.parameters()])}
    torchs = nn.MultiheadAttention(dim, heads, batch_first=True).eval()
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
        torchs.in_proj_bias.zero_()
        torchs.out_proj.weight.copy_(out.weight)
    ways["nn.MultiheadAttention"] = (
        lambda: torchs(u, u, u, need_weights=False)[0],
        [u, *torchs.parameters()],
    )
    published = _published_attention(operator, u)
    ways["as published"] = (published, [u, *operator.parameters()])
    x_transformers = peer("x_transformers.x_transformers")
    if x_transformers:
        theirs = x_transformers.Attention(
            dim, dim_head=dim // heads, heads=heads, flash=True
        ).eval()
        with torch.no_grad():
            for mine, layer in (
                (query, theirs.to_q),
                (key, theirs.to_k),
                (value, theirs.to_v),
                (out, theirs.to_out),
            ):
                layer.weight.copy_(mine.weight)
        ways["x-transformers"] = (lambda: theirs(u), [u, *theirs.parameters()])
    bert = _bert(dim, heads)
    if bert:
        with torch.no_grad():
            for mine, layer in ((query, bert.query), (key, bert.key), (value, bert.value)):
                layer.weight.copy_(mine.weight)
                layer.bias.zero_()
        ways["transformers BERT"] = (
            lambda: out(bert(u)[0]),
            [u, *bert.parameters(), *out.parameters()],
        )
    return ways


def _published_attention(operator: SoftmaxAttention, u: Tensor) -> Callable[[], Tensor]:
    """Vaswani et al., Eq. 1: the matrix of weights, then its product with the values."""
    kernel: Any = operator.kernel

    def run() -> Tensor:
        q, k, v = (
            m(u).unflatten(-1, (operator.heads, -1)).transpose(1, 2)
            for m in (kernel.query, kernel.key, kernel.value)
        )
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        assert operator.projection is not None
        return operator.projection((weights @ v).transpose(1, 2).flatten(2))

    return run


def _bert(dim: int, heads: int) -> Any | None:
    modeling = peer("transformers.models.bert.modeling_bert")
    if modeling is None:
        return None
    from transformers import BertConfig

    config = BertConfig(
        hidden_size=dim, num_attention_heads=heads, num_hidden_layers=1, intermediate_size=dim, vocab_size=8,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    return modeling.BertSelfAttention(config).eval()


def attention(
    lengths: tuple[int, ...] = (196, 1024), dim: int = DIM, heads: int = HEADS
) -> Iterator[Case]:
    """Softmax attention: the same layer by everybody."""
    for n in lengths:
        torch.manual_seed(0)
        operator, u = SoftmaxAttention(dim, heads), torch.randn(BATCH, n, dim, requires_grad=True)
        ways = attention_ways(operator, u)
        trusted = (
            lambda op=operator, v=u, n=n: op.dense(v, Domain.line(n)),
            [u, *operator.parameters()],
        )
        if n > 256:  # the dense definition needs N² e² numbers
            trusted = ways["as published"]
        yield from both(
            f"softmax N={n}", ways, trusted=trusted, note=f"B={BATCH} N={n} d={dim} H={heads}"
        )


# --- linear attention -----------------------------------------------------------------------------


def quadratic(query: Tensor, key: Tensor, value: Tensor, *, normalised: bool = True) -> Tensor:
    """The definition of linear attention: N × N weights of features, their rows' sums, the product
    with the values.
    """
    pairs = query @ key.mT
    return (pairs / pairs.sum(-1, keepdim=True) if normalised else pairs) @ value


def linear(
    lengths: tuple[int, ...] = (1024, 4096), dim: int = DIM, heads: int = HEADS
) -> Iterator[Case]:
    """Linear attention of the same width by everybody; each peer has features of its own and is
    checked against its own formula.
    """
    e = dim // heads
    for n in lengths:
        torch.manual_seed(0)
        operator, u = LinearAttention(dim, heads), torch.randn(1, n, dim, requires_grad=True)
        kernel: Any = operator.kernel
        assert operator.projection is not None
        project = operator.projection
        maps = (kernel.query, kernel.key, kernel.value)

        def split(u=u, maps=maps, heads=heads):
            return [m(u).unflatten(-1, (heads, -1)).transpose(1, 2) for m in maps]

        def joined(x, project=project):
            return project(x.transpose(1, 2).flatten(2))

        def elu(split=split, joined=joined):
            q, k, v = split()
            return joined(quadratic(functional.elu(q) + 1, functional.elu(k) + 1, v))

        parameters = [u, *operator.parameters()]
        ways: dict[str, tuple[Any, Any]] = {
            "fredholm (elu + 1)": (lambda op=operator, v=u: op(v), elu)
        }
        performer, lat = (
            peer("performer_pytorch"),
            peer("linear_attention_transformer.linear_attention_transformer"),
        )
        if performer:
            fast = performer.FastAttention(e, nb_features=e, generalized_attention=True)

            def relu(fast=fast, split=split, joined=joined, e=e):
                q, k, v = split()
                q, k = (
                    functional.relu(e**-0.25 * x @ fast.projection_matrix.mT) + 1e-3 for x in (q, k)
                )
                return joined(quadratic(q, k, v))

            ways["performer-pytorch (random ReLU)"] = (
                lambda f=fast, s=split, j=joined: j(f(*s())),
                relu,
            )
        if lat:

            def shares(split=split, joined=joined, e=e):
                q, k, v = split()
                return joined(
                    quadratic(q.softmax(-1) * e**-0.5, k.softmax(-2), v, normalised=False)
                )

            run = lambda f=lat.linear_attn, s=split, j=joined: j(f(*s()))  # noqa: E731
            ways["linear-attention-transformer (softmaxes)"] = (run, shares)
        ways["as published (N × N)"] = (elu, elu)
        for direction in ("forward", "forward+backward"):
            entries = {
                name: Entry(
                    _step(run, parameters, direction), reference=_step(own, parameters, direction)
                )
                for name, (run, own) in ways.items()
            }
            trusted = _step(elu, parameters, direction)
            note = f"B=1 N={n} d={dim} H={heads}, {e} features"
            yield Case(
                f"linear N={n} {direction}", trusted, entries, tolerance=2e-3, note=note, repeats=5
            )


# --- convolution and recurrence -------------------------------------------------------------------


def classical(n: int = 1024, dim: int = 64) -> Iterator[Case]:
    """The baselines of a comparison beside torch's own layers, and a whole encoder layer beside
    torch's.
    """
    torch.manual_seed(0)
    u = torch.randn(BATCH, n, dim, requires_grad=True)
    convolution: Any = Convolution(dim)
    line = Domain.line(n, measure="counting")
    weight, bias = convolution.kernel.weight, convolution.kernel.bias
    theirs = lambda: functional.conv1d(u.mT, weight, bias, padding=3).mT  # noqa: E731
    inputs = [u, weight, bias]
    ways = {"fredholm": (lambda: convolution(u, line), inputs), "nn.Conv1d": (theirs, inputs)}
    yield from both(
        "convolution, 7 taps", ways, trusted=ways["nn.Conv1d"], note=f"B={BATCH} N={n} d={dim}"
    )
    for cell in ("gru", "lstm"):
        recurrence: Any = Recurrence(cell, dim, causal=True)
        inputs, causal = [u, *recurrence.parameters()], Domain.line(n, causal=True)
        layer, project = recurrence.kernel.layer, recurrence.projection
        ways = {
            "fredholm": (lambda r=recurrence, d=causal: r(u, d), inputs),
            f"nn.{cell.upper()}": (lambda l=layer, p=project: p(l(u)[0]), inputs),
        }
        yield from both(
            cell, ways, trusted=ways[f"nn.{cell.upper()}"], note=f"B={BATCH} N={n} d={dim}"
        )
    yield from _encoder(256, dim)


def _encoder(n: int, dim: int) -> Iterator[Case]:
    """nn.TransformerEncoder against the same weights as an evolution."""
    from fredholm.convert import from_encoder

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        dim, 4, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    evolution: Any = from_encoder(encoder)
    u = torch.randn(BATCH, n, dim, requires_grad=True)
    ways = {
        "fredholm": (lambda: evolution(u), [u, *evolution.parameters()]),
        "nn.TransformerEncoder": (lambda: encoder(u), [u, *encoder.parameters()]),
    }
    trusted = ways["nn.TransformerEncoder"]
    yield from both("encoder, 2 layers", ways, trusted=trusted, note=f"B={BATCH} N={n} d={dim} H=4")


# --- kernels of positions -------------------------------------------------------------------------


class DiagonalKernel(HiddenKernel):
    """A network of both positions, one weight a channel: the kernel of a graph neural operator."""

    reads_query = False

    def __init__(self, dim: int, position_dim: int, width: int):
        super().__init__(dim, 1)
        self.first, self.last = nn.Linear(2 * position_dim, width), nn.Linear(width, dim)

    def hidden(self, x: Tensor, y: Tensor, ux: Tensor, uy: Tensor) -> Tensor:
        # Columns in memory, so that a product of few rows makes their gradient.
        of_y, of_x = self.first.weight.mT.contiguous().split(x.shape[-1])
        return functional.gelu(y @ of_y + (x @ of_x + self.first.bias))

    def readout(self) -> tuple[Tensor, Tensor]:
        return self.last.weight[:, None, None], self.last.bias[:, None, None]


def graph_operator(n: int = 256, dim: int = 32, width: int = 64) -> Iterator[Case]:
    """Positions alone, all pairs, mean over points: neuraloperator's IntegralTransform and the same
    kernel here.
    """
    module = peer("neuralop.layers.integral_transform")
    torch.manual_seed(0)
    points, u = torch.rand(n, 2), torch.randn(1, n, dim, requires_grad=True)
    kernel, domain = DiagonalKernel(dim, 2, width), Domain.points(points)
    operator = IntegralOperator(dim, dim, kernel=kernel, residual=False, projection=False)
    inputs = [u, *operator.parameters()]
    literal = lambda: _whole_kernel(kernel, points, u)  # noqa: E731
    ways: dict[str, Any] = {
        "fredholm": (lambda: operator(u, domain), inputs),
        "whole kernel": (literal, inputs),
    }
    if module:
        layers = [4, width, dim]
        scatter = peer("torch_scatter") is not None
        theirs = module.IntegralTransform(
            channel_mlp_layers=layers, reduction="mean", use_torch_scatter=scatter
        )
        name = "neuraloperator" if scatter else "neuraloperator, a loop without torch-scatter"
        with torch.no_grad():
            for mine, layer in zip((kernel.first, kernel.last), theirs.channel_mlp.fcs):
                layer.weight.copy_(mine.weight)
                layer.bias.copy_(mine.bias)
        splits = torch.arange(0, n * n + 1, n)
        near = {"neighbors_index": torch.arange(n).repeat(n), "neighbors_row_splits": splits}
        ways[name] = (lambda: theirs(points, near, f_y=u), [u, *theirs.parameters()])
    note = f"B=1 N={n} d={dim}, kernel 4 → {width} → {dim}"
    yield from both("kernel of positions", ways, trusted=(literal, inputs), note=note)


def _whole_kernel(kernel: DiagonalKernel, points: Tensor, u: Tensor) -> Tensor:
    """Every entry of the kernel, then the mean over points."""
    n = len(points)
    pairs = torch.cat([points.expand(n, n, -1), points[:, None].expand(n, n, -1)], -1)
    entries = kernel.last(functional.gelu(kernel.first(pairs)))
    return torch.einsum("qkd,bkd->bqd", entries, u) / n


def keops(n: int = 4096, dim: int = 64, heads: int = 4) -> Iterator[Case]:
    """Softmax attention of memory O(N): KeOps' reduction between the same projections. The first
    call compiles it, which is not timed.
    """
    module = peer("pykeops.torch")
    if module is None:
        return
    torch.manual_seed(0)
    operator, u = SoftmaxAttention(dim, heads), torch.randn(1, n, dim)
    kernel: Any = operator.kernel

    def reduced() -> Tensor:
        q, k, v = (
            m(u).unflatten(-1, (heads, -1)).transpose(1, 2)[0].contiguous()
            for m in (kernel.query, kernel.key, kernel.value)
        )
        queries, keys = (
            module.LazyTensor(q[:, :, None] * q.shape[-1] ** -0.5),
            module.LazyTensor(k[:, None]),
        )
        out = (queries | keys).sumsoftmaxweight(module.LazyTensor(v[:, None]), axis=2)
        assert operator.projection is not None
        return operator.projection(out[None].transpose(1, 2).flatten(2))

    try:
        with torch.no_grad():
            reduced()
    except (ImportError, OSError, RuntimeError) as error:
        print(f"pykeops: left out, its reduction cannot be compiled here: {error}", file=sys.stderr)
        return
    literal = torch.no_grad()(_published_attention(operator, u))
    entries = {
        "fredholm": Entry(torch.no_grad()(lambda: operator(u))),
        "pykeops": Entry(torch.no_grad()(reduced)),
    }
    entries["as published"] = Entry(literal)
    yield Case(
        f"softmax N={n} forward, memory O(N)",
        literal,
        entries,
        note=f"B=1 N={n} d={dim} H={heads}",
        repeats=5,
    )
