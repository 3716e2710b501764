"""The operators beside other packages, with the same weights wherever both compute the same function.

The packages of evidence/peers.txt are imported from the environment, or from ``.peers`` beside this
folder, where ``make bench`` installs them. A missing package is left out with a message. Some packages
compute another function for the same purpose, such as Performer's random features; each of these is
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
    """Return a package's module, or None where it is not installed."""
    if PEERS.is_dir() and str(PEERS) not in sys.path:
        # The environment's own packages come first.
        sys.path.append(str(PEERS))
        # The compiler that KeOps starts reads the variable.
        paths = [*filter(None, [os.environ.get("PYTHONPATH")]), str(PEERS)]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(f"{name}: left out, {error}", file=sys.stderr)
        return None


def row_means(values: Tensor, splits: Tensor, **options: Any) -> Tensor:
    """Return the means of values (B, E, c) between ``splits`` (B, N + 1) or (N + 1,).

    It takes the place of neuraloperator's ``segment_csr``, which loops over rows in Python where
    torch-scatter is not installed. All signals of a batch have the same splits.
    """
    splits = splits.reshape(-1, splits.shape[-1])[0]
    counts = splits.diff()
    rows = torch.arange(len(counts), device=values.device).repeat_interleave(counts)
    total = values.new_zeros(values.shape[0], len(counts), values.shape[2])
    return total.index_add(1, rows, values) / counts.clamp(min=1)[:, None]


class Way(NamedTuple):
    """One way to compute a function, and the tensors to differentiate by; the signal comes first."""

    run: Callable[[], Tensor]
    inputs: list[Tensor]


def both(name: str, ways: dict[str, Way], *, trusted: Way, **options: Any) -> Iterator[Case]:
    """Yield a forward case and a forward + backward case of ways that compute the same function.

    The first of the ways is ours; answers are compared with those of ``trusted``.
    """
    for direction in ("forward", "forward+backward"):
        entries = {}
        for title, way in ways.items():
            entries[title] = Entry(_step(way, direction))
        tolerance = 1e-4 if direction == "forward" else 2e-3
        options |= {"tolerance": tolerance, "repeats": 5}
        yield Case(f"{name} {direction}", _step(trusted, direction), entries, **options)


def _step(way: Way, direction: str) -> Callable[[], Tensor]:
    """Return the forward alone, or a function that returns values and the signal's gradient.

    Gradients in weights are computed and not returned: packages lay out their weights differently.
    """
    if direction == "forward":
        return torch.no_grad()(way.run)
    if len(way.inputs) == 1:
        return lambda: with_gradients(way.run(), way.inputs)
    return lambda: _signal_gradient(way.run(), way.inputs)


def _signal_gradient(output: Tensor, inputs: list[Tensor]) -> Tensor:
    """Return values and the signal's gradient, after a backward pass through every parameter."""
    found = torch.autograd.grad(output.square().sum(), inputs, allow_unused=True)
    return torch.cat([output.detach().flatten(), found[0].flatten()])


# --- softmax attention ----------------------------------------------------------------------------


def attention_ways(operator: SoftmaxAttention, u: Tensor) -> dict[str, Way]:
    """Return our layer, torch's, and the packages' layers, with the same weights.

    Biases are zero, because some of the packages' layers have none.
    """
    kernel: Any = operator.kernel
    query, key, value, out = kernel.query, kernel.key, kernel.value, operator.projection
    assert out is not None
    dim, heads = operator.dim, operator.heads
    with torch.no_grad():
        for layer in (query, key, value, out):
            layer.bias.zero_()
    ways = {"fredholm": Way(lambda: operator(u), [u, *operator.parameters()])}
    torchs = nn.MultiheadAttention(dim, heads, batch_first=True).eval()
    with torch.no_grad():
        torchs.in_proj_weight.copy_(torch.cat([query.weight, key.weight, value.weight]))
        torchs.in_proj_bias.zero_()
        torchs.out_proj.weight.copy_(out.weight)
    ways["nn.MultiheadAttention"] = Way(
        lambda: torchs(u, u, u, need_weights=False)[0],
        [u, *torchs.parameters()],
    )
    published = _published_attention(operator, u)
    ways["as published"] = Way(published, [u, *operator.parameters()])
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
        ways["x-transformers"] = Way(lambda: theirs(u), [u, *theirs.parameters()])
    bert = _bert(dim, heads)
    if bert:
        with torch.no_grad():
            for mine, layer in ((query, bert.query), (key, bert.key), (value, bert.value)):
                layer.weight.copy_(mine.weight)
                layer.bias.zero_()
        ways["transformers BERT"] = Way(
            lambda: out(bert(u)[0]),
            [u, *bert.parameters(), *out.parameters()],
        )
    return ways


def _published_attention(operator: SoftmaxAttention, u: Tensor) -> Callable[[], Tensor]:
    """Return attention by Vaswani et al., Eq. 1: the matrix of weights, then its product with values."""

    def run() -> Tensor:
        q, k, v = _project(operator, u)
        weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
        assert operator.projection is not None
        return operator.projection((weights @ v).transpose(1, 2).flatten(2))

    return run


def _project(operator: SoftmaxAttention | LinearAttention, u: Tensor) -> list[Tensor]:
    """Return queries, keys and values with heads before points."""
    kernel: Any = operator.kernel
    maps = kernel.query, kernel.key, kernel.value
    return [layer(u).unflatten(-1, (operator.heads, -1)).transpose(1, 2) for layer in maps]


def _bert(dim: int, heads: int) -> Any | None:
    """Return BERT's self attention, or None where transformers is not installed."""
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
    """Yield softmax attention by every package."""
    for n in lengths:
        torch.manual_seed(0)
        operator, u = SoftmaxAttention(dim, heads), torch.randn(BATCH, n, dim, requires_grad=True)
        ways = attention_ways(operator, u)
        dense = partial(operator.dense, u, Domain.line(n))
        trusted = Way(dense, [u, *operator.parameters()])
        if n > 256:
            # The dense definition needs N² e² numbers.
            trusted = ways["as published"]
        note = f"B={BATCH} N={n} d={dim} H={heads}"
        yield from both(f"softmax N={n}", ways, trusted=trusted, note=note)


# --- linear attention -----------------------------------------------------------------------------


def quadratic(query: Tensor, key: Tensor, value: Tensor, *, normalised: bool = True) -> Tensor:
    """Return linear attention by its definition, from N × N products of features.

    ``normalised`` divides each row by its sum.
    """
    pairs = query @ key.mT
    if normalised:
        pairs = pairs / pairs.sum(-1, keepdim=True)
    return pairs @ value


def linear(
    lengths: tuple[int, ...] = (1024, 4096), dim: int = DIM, heads: int = HEADS
) -> Iterator[Case]:
    """Yield linear attention of the same width by every package.

    Each package has other features and is checked against its own formula.
    """
    e = dim // heads
    for n in lengths:
        torch.manual_seed(0)
        operator, u = LinearAttention(dim, heads), torch.randn(1, n, dim, requires_grad=True)
        assert operator.projection is not None
        project = operator.projection
        split = partial(_project, operator, u)

        def joined(x, project=project):
            return project(x.transpose(1, 2).flatten(2))

        def elu(split=split, joined=joined):
            q, k, v = split()
            return joined(quadratic(functional.elu(q) + 1, functional.elu(k) + 1, v))

        parameters = [u, *operator.parameters()]
        # Each way with the formula that it is checked against.
        ways: dict[str, tuple[Any, Any]] = {"fredholm (elu + 1)": (partial(operator, u), elu)}
        performer = peer("performer_pytorch")
        lat = peer("linear_attention_transformer.linear_attention_transformer")
        if performer:
            fast = performer.FastAttention(e, nb_features=e, generalized_attention=True)

            def relu(fast=fast, split=split, joined=joined, e=e):
                q, k, v = split()
                q = functional.relu(e**-0.25 * q @ fast.projection_matrix.mT) + 1e-3
                k = functional.relu(e**-0.25 * k @ fast.projection_matrix.mT) + 1e-3
                return joined(quadratic(q, k, v))

            ways["performer-pytorch (random ReLU)"] = (
                lambda f=fast, s=split, j=joined: j(f(*s())),
                relu,
            )
        if lat:

            def shares(split=split, joined=joined, e=e):
                q, k, v = split()
                q, k = q.softmax(-1) * e**-0.5, k.softmax(-2)
                return joined(quadratic(q, k, v, normalised=False))

            run = lambda f=lat.linear_attn, s=split, j=joined: j(f(*s()))  # noqa: E731
            ways["linear-attention-transformer (softmaxes)"] = (run, shares)
        ways["as published (N × N)"] = (elu, elu)
        for direction in ("forward", "forward+backward"):
            entries = {}
            for name, (run, formula) in ways.items():
                reference = _step(Way(formula, parameters), direction)
                entries[name] = Entry(_step(Way(run, parameters), direction), reference=reference)
            trusted = _step(Way(elu, parameters), direction)
            note = f"B=1 N={n} d={dim} H={heads}, {e} features"
            yield Case(
                f"linear N={n} {direction}", trusted, entries, tolerance=2e-3, note=note, repeats=5
            )


# --- convolution and recurrence -------------------------------------------------------------------


def classical(n: int = 1024, dim: int = 64) -> Iterator[Case]:
    """Yield the baselines of a comparison beside torch's layers, and an encoder beside torch's."""
    torch.manual_seed(0)
    u = torch.randn(BATCH, n, dim, requires_grad=True)
    convolution: Any = Convolution(dim)
    line = Domain.line(n, measure="counting")
    weight, bias = convolution.kernel.weight, convolution.kernel.bias
    inputs = [u, weight, bias]
    ways = {
        "fredholm": Way(partial(convolution, u, line), inputs),
        "nn.Conv1d": Way(lambda: functional.conv1d(u.mT, weight, bias, padding=3).mT, inputs),
    }
    note = f"B={BATCH} N={n} d={dim}"
    yield from both("convolution, 7 taps", ways, trusted=ways["nn.Conv1d"], note=note)
    for cell in ("gru", "lstm"):
        recurrence: Any = Recurrence(cell, dim, causal=True)
        inputs, causal = [u, *recurrence.parameters()], Domain.line(n, causal=True)
        layer, project = recurrence.kernel.layer, recurrence.projection
        torchs = Way(lambda layer=layer, project=project: project(layer(u)[0]), inputs)
        ways = {
            "fredholm": Way(partial(recurrence, u, causal), inputs),
            f"nn.{cell.upper()}": torchs,
        }
        yield from both(cell, ways, trusted=torchs, note=note)
    yield from _encoder(256, dim)


def _encoder(n: int, dim: int) -> Iterator[Case]:
    """Yield nn.TransformerEncoder beside an evolution with the same weights."""
    from fredholm.convert import from_encoder

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        dim, 4, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    evolution: Any = from_encoder(encoder)
    u = torch.randn(BATCH, n, dim, requires_grad=True)
    ways = {
        "fredholm": Way(partial(evolution, u), [u, *evolution.parameters()]),
        "nn.TransformerEncoder": Way(partial(encoder, u), [u, *encoder.parameters()]),
    }
    trusted = ways["nn.TransformerEncoder"]
    yield from both("encoder, 2 layers", ways, trusted=trusted, note=f"B={BATCH} N={n} d={dim} H=4")


# --- kernels of positions -------------------------------------------------------------------------


class DiagonalKernel(HiddenKernel):
    """A network of both positions with one weight per channel: a graph neural operator's kernel."""

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
    """Yield neuraloperator's IntegralTransform and the same kernel of positions here.

    It takes the mean over all points.
    """
    module = peer("neuralop.layers.integral_transform")
    torch.manual_seed(0)
    points, u = torch.rand(n, 2), torch.randn(1, n, dim, requires_grad=True)
    kernel, domain = DiagonalKernel(dim, 2, width), Domain.points(points)
    operator = IntegralOperator(dim, dim, kernel=kernel, residual=False, projection=False)
    inputs = [u, *operator.parameters()]
    literal = Way(partial(_whole_kernel, kernel, points, u), inputs)
    ways = {"fredholm": Way(partial(operator, u, domain), inputs), "whole kernel": literal}
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
        run = partial(theirs, points, near, f_y=u)
        ways[name] = Way(run, [u, *theirs.parameters()])
    note = f"B=1 N={n} d={dim}, kernel 4 → {width} → {dim}"
    yield from both("kernel of positions", ways, trusted=literal, note=note)


def _whole_kernel(kernel: DiagonalKernel, points: Tensor, u: Tensor) -> Tensor:
    """Compute every entry of the kernel, then the mean over points."""
    n = len(points)
    pairs = torch.cat([points.expand(n, n, -1), points[:, None].expand(n, n, -1)], -1)
    entries = kernel.last(functional.gelu(kernel.first(pairs)))
    return torch.einsum("qkd,bkd->bqd", entries, u) / n


def keops(n: int = 4096, dim: int = 64, heads: int = 4) -> Iterator[Case]:
    """Yield softmax attention in memory O(N): KeOps' reduction between the same projections.

    The first call compiles the reduction and is not timed.
    """
    module = peer("pykeops.torch")
    if module is None:
        return
    torch.manual_seed(0)
    operator, u = SoftmaxAttention(dim, heads), torch.randn(1, n, dim)

    def reduced() -> Tensor:
        q, k, v = (x[0].contiguous() for x in _project(operator, u))
        queries = module.LazyTensor(q[:, :, None] * q.shape[-1] ** -0.5)
        keys = module.LazyTensor(k[:, None])
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
        "as published": Entry(literal),
    }
    yield Case(
        f"softmax N={n} forward, memory O(N)",
        literal,
        entries,
        note=f"B=1 N={n} d={dim} H={heads}",
        repeats=5,
    )
