"""Conversion refuses layers whose forward differs from the code that the converter supports."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from fredholm.convert import as_operator
from fredholm.domain import Domain
from fredholm.errors import ConversionError, DomainError

from ..tolerances import assert_close


def attention() -> nn.MultiheadAttention:
    return nn.MultiheadAttention(8, 2, batch_first=True)


class LoRA(nn.Linear):
    """A linear map with a low-rank update of its weight, as in PEFT."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.down, self.up = nn.Linear(sizes[0], 2), nn.Linear(2, sizes[1])

    def forward(self, u):
        return super().forward(u) + self.up(self.down(u))


class Shifted(nn.Conv1d):
    """A convolution that overrides a method called by torch's forward."""

    def _conv_forward(self, u, weight, bias):
        return super()._conv_forward(u, weight, bias) + 1.0


class Called(nn.Conv1d):
    def __call__(self, u):
        return 2 * super().__call__(u)


def test_a_replaced_forward_is_refused():
    layer = nn.Conv1d(2, 3, 3)
    layer.forward = lambda u: 2 * nn.Conv1d.forward(layer, u)  # what accelerate's hooks do
    with pytest.raises(ConversionError, match=r"Conv1d has its forward replaced.*unwrap"):
        as_operator(layer)


def test_a_replaced_forward_of_a_submodule_is_refused():
    layer = attention()
    layer.out_proj.forward = lambda u: u
    with pytest.raises(ConversionError, match=r"at 'out_proj' has its forward replaced"):
        as_operator(layer)


@pytest.mark.parametrize(
    ("kind", "name"), [(Shifted, "_conv_forward"), (Called, "__call__")], ids=lambda x: str(x)
)
def test_overriding_what_forward_calls_is_refused(kind, name):
    with pytest.raises(ConversionError, match=f"overrides {name} of Conv1d"):
        as_operator(kind(2, 3, 3))


def test_a_subclass_that_computes_the_same_is_converted():
    class Mine(nn.Conv1d):
        def extra_repr(self):
            return "mine"

    layer, u = Mine(2, 3, 3, padding=1).double(), torch.randn(2, 7, 2).double()
    assert_close(as_operator(layer)(u), layer(u.mT).mT)


@pytest.mark.parametrize(
    "register",
    [
        lambda m: m.register_forward_hook(lambda *a: None),
        lambda m: m.register_forward_pre_hook(lambda *a: None),
        lambda m: m.register_full_backward_hook(lambda *a: None),
        lambda m: m.register_full_backward_pre_hook(lambda *a: None),
    ],
    ids=["forward", "pre-forward", "backward", "pre-backward"],
)
@pytest.mark.parametrize("inside", [False, True])
def test_hooks_are_refused(register, inside):
    layer = attention()
    register(layer.out_proj if inside else layer)
    with pytest.raises(ConversionError, match="has hooks"):
        as_operator(layer)


def test_parametrised_and_pruned_weights_are_refused():
    layer = nn.RNN(3, 4, batch_first=True)
    parametrizations.weight_norm(layer, "weight_hh_l0")
    with pytest.raises(ConversionError, match="parametrised"):
        as_operator(layer)
    mixed = attention()
    mixed.out_proj = parametrizations.spectral_norm(nn.Linear(8, 8))
    with pytest.raises(ConversionError, match="at 'out_proj' has parametrised"):
        as_operator(mixed)
    pruned = prune.l1_unstructured(nn.Conv1d(2, 3, 3), "weight", 0.5)
    with pytest.raises(ConversionError, match="has hooks"):
        as_operator(pruned)


def test_a_low_rank_update_of_a_map_is_refused():
    bert = pytest.importorskip("transformers.models.bert.modeling_bert")
    from transformers import BertConfig

    config = BertConfig(hidden_size=8, num_attention_heads=2, attn_implementation="eager")
    layer = bert.BertSelfAttention(config).eval()
    layer.query = LoRA(8, 8)
    with pytest.raises(ConversionError, match="LoRA at 'query' overrides forward"):
        as_operator(layer)


def test_graph_layers_with_overridden_messages_are_refused():
    geometric = pytest.importorskip("torch_geometric.nn")

    class Louder(geometric.GCNConv):
        def message(self, x_j, edge_weight):
            return 2 * super().message(x_j, edge_weight)

    class Updated(geometric.GATConv):
        def update(self, inputs):
            return inputs + 1

    class Sent(geometric.GCNConv):
        def propagate(self, *args, **kwargs):
            return 2 * super().propagate(*args, **kwargs)

    class Same(geometric.GCNConv):
        pass

    for kind, name in ((Louder, "message"), (Updated, "update"), (Sent, "propagate")):
        with pytest.raises(ConversionError, match=f"overrides .*{name}.* of G"):
            as_operator(kind(3, 2))
    as_operator(Same(3, 2))


def test_graph_layers_with_replaced_or_hooked_maps_are_refused():
    geometric = pytest.importorskip("torch_geometric.nn")
    layer = geometric.GATv2Conv(3, 2)
    layer.lin_l = nn.Sequential(layer.lin_l)
    with pytest.raises(ConversionError, match=r"lin_l=torch\.nn\.modules\.container\.Sequential"):
        as_operator(layer)
    layer = geometric.GCNConv(3, 2)
    layer.lin.register_forward_hook(lambda *a: None)
    with pytest.raises(ConversionError, match="Linear at 'lin' has hooks"):
        as_operator(layer)


def test_uninitialised_lazy_layers_are_refused():
    with pytest.raises(ConversionError, match="LazyConv1d has seen no input yet"):
        as_operator(nn.LazyConv1d(3, 2))


# --- the measure ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "domain"),
    [
        (nn.Conv1d(2, 2, 3, padding=1), Domain.line(6)),
        (nn.Conv2d(2, 2, 3, padding=1), Domain.grid(2, 3)),
        (nn.Conv3d(2, 2, 1), Domain.grid(1, 2, 3)),
        (nn.ConvTranspose1d(2, 2, 3, padding=1), Domain.line(6)),
        (nn.AvgPool1d(3, 1, 1), Domain.line(6)),
        (nn.AdaptiveAvgPool1d(6), Domain.line(6)),
        (nn.MaxPool2d(1), Domain.grid(2, 3)),
        (nn.Linear(2, 2), Domain.points(torch.rand(6, 2))),
    ],
    ids=["convolution", "image", "volume", "transposed", "pooling", "parts", "maximum", "linear"],
)
def test_sums_refuse_normalised_measures(layer, domain):
    options = {"dim": 2} if "Pool" in type(layer).__name__ else {}
    operator = as_operator(layer, **options)
    u = torch.randn(1, 6, 2)
    for call in (lambda: operator(u, domain), lambda: operator.plan(domain)):
        with pytest.raises(DomainError, match=r"mass of one each.*measure='counting'"):
            call()
    operator.layer = None  # an integral over this measure
    assert_close(operator(u, domain), operator.dense(u, domain), dtype=torch.float32)


EDGES = torch.tensor([[0, 0, 1, 2, 2, 3, 3], [1, 1, 2, 3, 0, 3, 3]])


def test_sums_over_neighbours_refuse_normalised_measures():
    geometric = pytest.importorskip("torch_geometric.nn")
    u = torch.randn(1, 4, 3)
    graph = Domain.graph(EDGES, 4)
    for layer in (
        geometric.GCNConv(3, 2),
        geometric.GCNConv(3, 2, normalize=False),
        geometric.SAGEConv(3, 2, aggr="sum"),
    ):
        with pytest.raises(DomainError, match=r"mass of one each.*measure='counting'"):
            as_operator(layer)(u, graph)
    for layer in (geometric.SAGEConv(3, 2), geometric.GATConv(3, 2), geometric.GATv2Conv(3, 2)):
        loops = not isinstance(layer, geometric.SAGEConv)
        # Means accept every measure.
        domain = Domain.graph(EDGES, 4, self_loops=loops)
        assert_close(as_operator(layer)(u, domain)[0], layer(u[0], EDGES), str(layer))


def test_repeated_edges_count_twice():
    geometric = pytest.importorskip("torch_geometric.nn")
    edges = EDGES
    u = torch.randn(4, 3).double()
    for layer in (
        geometric.GCNConv(3, 2),
        geometric.GATConv(3, 2, heads=2),
        geometric.GATv2Conv(3, 2, heads=2),
        geometric.SAGEConv(3, 2),
        geometric.SAGEConv(3, 2, aggr="sum"),
    ):
        layer = layer.double().eval()
        domain = Domain.graph(
            edges,
            4,
            positions=torch.zeros(4, 1).double(),
            measure="counting",
            self_loops=getattr(layer, "add_self_loops", False),
        )
        assert_close(as_operator(layer)(u[None], domain)[0], layer(u, edges), str(layer))
