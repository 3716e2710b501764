"""Linear attention's Triton kernels, with features as tensors or computed from a bank in registers,
equal the dense density.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fredholm.domain import Domain
from fredholm.errors import BackendError, StrategyError
from fredholm.ops.feature_map import Bank, scalar_bank_naive
from fredholm.ops.linear_attention import (
    Banks,
    banked_attention,
    linear_attention,
    linear_attention_naive,
)

from ..tolerances import assert_close
from .triton_device import devices, poisoned  # noqa: F401

pytest.importorskip("triton")
pytestmark = [pytest.mark.usefixtures("poisoned"), devices]

B, H, N, D = 2, 2, 37, 5  # a block and a part of one
FLOOR = 1e-6
NETWORKS = {"separate": (3, 1), "shared": (1, 3), "both": (2, 2), "one": (1, 1)}


def quadrature_of(name, device, n=N, queries=None):
    """Build the quadrature on the CPU: cumulative sums on a GPU are not deterministic."""
    g = torch.Generator().manual_seed(5)
    valid = torch.rand(B, n, generator=g) < 0.7
    line, points = Domain.line(n), Domain.points(torch.rand(B, n, 1, generator=g), valid=valid)
    domain = {
        "uniform": line,
        "masses": line.with_masses(torch.rand(B, n, generator=g)),
        "padded": points,
        "causal": Domain.line(n, causal=True),
        "causal padded": points.replace(causal=True),
        "pairs": line.replace(pairs=torch.ones(n, n).bool()),
    }[name]
    return placed(domain.quadrature(None if queries is None else Domain.line(queries)), device)


def placed(quadrature, device):
    tensors = {k: v.to(device) for k, v in vars(quadrature).items() if isinstance(v, torch.Tensor)}
    return dataclasses.replace(quadrature, **tensors)


def draw(device, *sizes, positive=False):
    found = [torch.randn(size) for size in sizes]
    return [(x.exp() if positive else x).to(device).requires_grad_() for x in found]


def bank(device, groups, outputs, sets=1, hidden=2):
    shapes = (
        (sets, groups, hidden),
        (sets, groups, hidden),
        (sets, groups, outputs, hidden),
        (sets, groups, outputs),
    )
    parts = [x.detach() for x in draw(device, *shapes)]
    parts[2] *= 0.3
    parts[3] += 2.0  # features mostly positive, so that no denominator is a small difference
    return Bank(*(x.requires_grad_() for x in parts))


def features(u, parts, **options):
    b, h, m, n = u.shape
    sets = parts.weight.shape[0]
    u = u.reshape(b, h, m * n) if sets > 1 else u.reshape(b * h, 1, m * n)
    return scalar_bank_naive(u, parts, **options).reshape(b, h, -1, n).mT


def assert_same(actual, expected, leaves, doubles):
    """Compare values and gradients of float32 leaves with those of their float64 copies."""
    assert actual.dtype == torch.float32
    assert_close(actual.double(), expected, dtype=torch.float32)
    direction = torch.rand_like(expected)
    found = torch.autograd.grad(actual, leaves, direction.float())
    for i, (g, e) in enumerate(zip(found, torch.autograd.grad(expected, doubles, direction))):
        assert_close(g.double(), e, f"gradient {i}", torch.float32)


def doubled(tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


@pytest.mark.parametrize(
    ("name", "floor"),
    [("masses", None), ("padded", FLOOR), ("causal", FLOOR), ("causal padded", None)],
)
def test_features_as_tensors_equal_the_density(device, name, floor):
    leaves = [*draw(device, (B, H, N, 6), (B, H, N, 6), positive=True), *draw(device, (B, H, N, D))]
    quadrature = quadrature_of(name, device)
    doubles = doubled(leaves)
    found = linear_attention(*leaves, quadrature, floor=floor, backend="triton")
    assert_same(
        found,
        linear_attention_naive(*doubles, quadrature.weights().double(), floor),
        leaves,
        doubles,
    )


def assert_banked(
    device, parts, name="masses", *, directions=3, queries=None, other=None, n=N, b=B, **options
):
    """Compare two banks, or one for both sides, with the literal networks and the dense density.

    There is no denominator and values are positive, so that no gradient is a small difference of
    large sums.
    """
    query, key = draw(device, (b, H, directions, queries or n), (b, H, directions, n))
    value = draw(device, (b, H, n, D), positive=True)
    leaves = [query, key, *value, *parts, *(other or ())]
    count = len(parts)
    doubles = doubled(leaves)
    banks = parts, other or parts
    exact = Bank(*doubles[3 : 3 + count]), Bank(*doubles[3 + count :] or doubles[3:])
    quadrature = quadrature_of(name, device, n, queries)
    found = banked_attention(
        *leaves[:3], quadrature, Banks(*banks, **options), floor=None, backend="triton"
    )
    phi = [features(u, p, **options) for u, p in zip(doubles, exact)]
    assert_same(
        found,
        linear_attention_naive(*phi, doubles[2], quadrature.weights().double(), None),
        leaves,
        doubles,
    )


@pytest.mark.parametrize(
    ("networks", "name"),
    [
        ("separate", "causal padded"),
        ("shared", "masses"),
        ("shared", "causal"),
        ("both", "masses"),
        ("one", "causal"),
    ],
)
def test_features_of_a_bank_equal_the_literal_networks(device, networks, name):
    parts = bank(device, *NETWORKS[networks], sets=H if networks == "both" else 1)
    assert_banked(device, parts, name, b=1 if name == "causal" else B)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "silu", "tanh", "sin"])
def test_every_activation_equals_the_literal_networks(device, activation):
    parts = bank(device, 2, 1, hidden=3)
    assert_banked(device, parts, activation=activation, nonneg=False, name="uniform", n=20, b=1)


def test_other_queries_and_other_banks_equal_the_literal_networks(device):
    banks = [bank(device, 3, 1), bank(device, 1, 3)]
    assert_banked(device, banks[0], "padded", queries=11, other=banks[1])


def test_many_features_in_smaller_blocks_equal_the_literal_networks(device):
    assert_banked(device, bank(device, 16, 1, hidden=1), "causal", directions=8, n=20, b=1)


def test_gradients_of_the_measure_agree_with_torch(device):
    q, k = (x.detach() for x in draw(device, (1, 1, N, 6), (1, 1, N, 6), positive=True))
    leaves = [q, k, *draw(device, (1, 1, N, D))]
    for causal in (False, True):
        # The second floor is above every denominator, so the scale never cancels.
        for floor in (None, 1e3):
            mass = torch.rand(N, requires_grad=True)
            found = Domain.line(N, causal=causal).with_masses(mass, normalised=True).quadrature()
            expected = linear_attention(
                *(x.cpu() for x in leaves), found, floor=floor, backend="torch"
            )
            actual = linear_attention(
                *leaves, placed(found, device), floor=floor, backend="triton"
            ).cpu()
            assert_close(actual, expected)
            direction = torch.randn_like(expected)
            both = [
                torch.autograd.grad(y, [mass, leaves[2]], direction, retain_graph=True)
                for y in (actual, expected)
            ]
            for a, b in zip(*both):
                assert_close(a, b, f"gradient, causal={causal}, floor={floor}")


def test_zero_features_give_zero(device):
    q, k, v = draw(device, (B, H, N, 6), (B, H, N, 6), (B, H, N, D))
    out = linear_attention(
        0 * q, k, v, quadrature_of("causal", device), floor=FLOOR, backend="triton"
    )
    assert (out == 0).all()
    (g,) = torch.autograd.grad(out.sum(), q)
    assert g.isfinite().all()


def test_no_feature_is_saved_for_the_backward(device):
    saved = []
    parts = bank(device, 8, 1)
    u, v = draw(device, (1, 1, 8, N), (1, 1, N, D))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: saved.append(t.numel()) or t, lambda t: t
    ):
        banked_attention(
            u,
            u,
            v,
            quadrature_of("uniform", device),
            Banks(parts, parts),
            floor=FLOOR,
            backend="triton",
        )
    assert max(saved) == 8 * N


def test_the_custom_op_passes_opcheck(device):
    import fredholm.ops.linear_attention.triton  # noqa: F401  registers the op

    u, v = draw(device, (1, 1, 2, 5), (1, 1, 5, 3))
    parts = bank(device, 2, 1, hidden=2)
    mass = torch.rand(1, 5, device=device, requires_grad=True)
    scale = torch.rand(1, 1, 5, device=device, requires_grad=True)
    options = FLOOR, True, "relu", True
    torch.library.opcheck(
        torch.ops.fredholm.linear_attention_triton,
        (u, u, v, mass, scale, list(parts), list(parts), True, *options),
    )
    quick = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.fredholm.linear_attention_triton,
        (v, v, v, mass, None, [], [], False, *options),
        test_utils=quick,
    )


def test_flops_are_counted(device):
    import fredholm.ops.linear_attention.triton  # noqa: F401  a counter knows the formulas that are there when it starts

    u, v = draw(device, (1, 1, 3, 8), (1, 1, 8, 4))
    parts = bank(device, 2, 1, hidden=5)
    here = quadrature_of("uniform", device, 8)
    with FlopCounterMode(display=False) as counter:
        out = banked_attention(u, u, v, here, Banks(parts, parts), floor=FLOOR, backend="triton")
    moment, scalar = 8 * 6 * 5, 16 * 3 * (10 + 10)
    assert counter.get_total_flops() == 2 * (2 * moment + scalar)
    with FlopCounterMode(display=False) as counter:
        out.sum().backward()
    assert counter.get_total_flops() == 2 * (5 * moment + 16 * 3 * 70)


def test_the_kernel_agrees_with_the_same_call_in_torch(device):
    u, v = draw("cpu", (B, H, 3, N), (B, H, N, D))
    parts = bank("cpu", 3, 1)
    expected = banked_attention(
        u, u, v, quadrature_of("causal padded", "cpu"), Banks(parts, parts), floor=FLOOR
    )
    u = u.to(device)
    v = v.to(device)
    parts = Bank(*(x.to(device) for x in parts))
    quadrature = quadrature_of("causal padded", device)
    assert_close(
        banked_attention(
            u, u, v, quadrature, Banks(parts, parts), floor=FLOOR, backend="triton"
        ).cpu(),
        expected,
    )


def test_unsupported_sizes_dtypes_and_pairs_are_refused(device):
    u, v = draw(device, (1, 1, 300, 4), (1, 1, 4, 2))
    quadrature = quadrature_of("uniform", device, 4)
    parts = bank(device, 1, 1)
    with pytest.raises(
        BackendError, match="up to 128 features and 128 columns of a value, got 512 and 2"
    ):
        banked_attention(u, u, v, quadrature, Banks(parts, parts), floor=FLOOR, backend="triton")
    double = v.double()
    with pytest.raises(BackendError, match="linear attention: its sums are in float32"):
        linear_attention(double, double, double, quadrature, floor=FLOOR, backend="triton")
    pairs = quadrature_of("pairs", device, 4)
    with pytest.raises(StrategyError, match="pair weights"):
        banked_attention(u, u, v, pairs, Banks(parts, parts), floor=FLOOR, backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_agree_with_float32(device, dtype):
    if device == "cpu":
        pytest.skip("the interpreter's bfloat16 is wrong")
    parts = bank(device, 8, 1, hidden=64)
    quadrature = quadrature_of("causal", device, 300)
    u, v = (x.detach().to(dtype) for x in draw(device, (B, H, 8, 300), (B, H, 300, 64)))
    found = [
        banked_attention(*points, quadrature, Banks(parts, parts), floor=FLOOR, backend="triton")
        for points in ((u.float(), u.float(), v.float()), (u, u, v))
    ]
    assert_close(found[1].double(), found[0].double(), dtype=torch.bfloat16)
