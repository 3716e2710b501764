"""The edge product's Triton kernels equal its definition: values, row statistics and every
gradient.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from fredholm.errors import BackendError
from fredholm.families.infsa.graph import EdgeOptions, edge_product
from fredholm.families.infsa.naive import edge_product_naive

from ..tolerances import assert_close
from .triton_device import devices, poisoned  # noqa: F401

pytest.importorskip("triton")
pytestmark = [pytest.mark.usefixtures("poisoned"), devices]

B, H, E, D = 2, 2, 5, 6
DENSITIES = {"none": None, "shared": (1, 1), "heads": (1, H), "batch": (B, 1), "own": (B, H)}


def inputs(device, density="none", *, equal=False, queries=37, keys=37, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(B, H, n, e, generator=g) for n, e in ((queries, E), (keys, E), (keys, D))
    ]
    tensors.append(torch.rand(B, 1 if equal else keys, generator=g) + 0.1)
    shape = DENSITIES[density]
    if shape is not None:
        tensors.append(torch.rand(*shape, queries, keys, generator=g))
    return [x.to(device, dtype).requires_grad_() for x in tensors]


def assert_same(x, dtype=torch.float32, **options):
    """Compare values and gradients with the definition in float64."""
    exact = [t.detach().double().requires_grad_() for t in x]
    found = edge_product(*x, options=EdgeOptions(**options), backend="triton")
    expected = edge_product_naive(*exact, **options)
    assert all(y.dtype == torch.float32 for y in found)
    weight = [torch.randn_like(y) for y in expected]
    total = sum((y * w).sum() for y, w in zip(expected, weight))
    for what, a, b in zip(("product", "statistic"), found, expected):
        assert_close(a.double(), b, what, dtype)
    both = (
        torch.autograd.grad(found, x, [w.float() for w in weight], allow_unused=True),
        torch.autograd.grad(total, exact, allow_unused=True),
    )
    for name, a, b, t in zip(("query", "key", "value", "mass", "density"), *both, x):
        a, b = (torch.zeros_like(t) if g is None else g for g in (a, b))
        assert_close(a.double(), b.double(), f"gradient of {name}", dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("activation", "statistic"), [("relu", "squares"), ("gelu", "sums"), ("abs", "none")]
)
def test_the_kernel_equals_the_definition(device, activation, statistic, causal):
    assert_same(inputs(device), activation=activation, statistic=statistic, causal=causal)


@pytest.mark.parametrize("density", ["shared", "heads", "batch", "own"])
def test_densities_of_every_shape_equal_the_definition(device, density):
    x = inputs(device, density, equal=density == "heads")
    assert_same(x, causal=density == "shared", activation="gelu" if density == "own" else "relu")


def test_sizes_that_fill_no_tile_equal_the_definition(device):
    assert_same(inputs(device, queries=70, keys=3))
    assert_same(inputs(device, queries=1, keys=150, equal=True))
    assert_same(inputs(device, queries=133, keys=133), causal=True)


def test_row_statistics_without_values_equal_the_definition(device):
    q, k, v, m = inputs(device)
    out, row = edge_product(q, k, v[..., :0], m, backend="triton")
    assert out.shape == (B, H, 37, 0)
    assert_close(row, edge_product_naive(q, k, v, m)[1])


def test_each_gradient_alone_equals_all_together(device):
    x = inputs(device, "own")
    whole = torch.autograd.grad(edge_product(*x, backend="triton")[0].square().sum(), x[:3])
    for i, expected in enumerate(whole):
        alone = [t if i == j else t.detach() for j, t in enumerate(x)]
        out = edge_product(*alone, backend="triton")[0].square().sum()
        assert torch.equal(torch.autograd.grad(out, alone[i])[0], expected)


def test_the_custom_op_passes_opcheck(device):
    import fredholm.families.infsa.triton.op  # noqa: F401  registers the op

    x = [t[:1, :1] if t.dim() == 4 else t[:1] for t in inputs(device, "shared", queries=5, keys=5)]
    torch.library.opcheck(torch.ops.fredholm.affinity_product_triton, (*x, True, "gelu", "squares"))


def test_tensors_of_any_strides_give_the_same_result(device):
    x = inputs(device)
    turned = [t.detach().transpose(1, 2).contiguous().transpose(1, 2) for t in x[:3]]
    expected = edge_product(*x, backend="triton")
    for a, b in zip(edge_product(*turned, x[3].expand(B, 37), backend="triton"), expected):
        assert torch.equal(a, b)


def test_flops_are_counted(device):
    import fredholm.families.infsa.triton.op  # noqa: F401  a counter knows the formulas that are there when it starts

    x = inputs(device)
    with FlopCounterMode(display=False) as counter:
        out, row = edge_product(*x, backend="triton")
    assert counter.get_total_flops() == 2 * B * H * 37 * 37 * (E + D)
    with FlopCounterMode(display=False) as counter:
        (out.sum() + row.sum()).backward()
    assert counter.get_total_flops() == 2 * B * H * 37 * 37 * (4 * E + 3 * D)


def test_unsupported_dtypes_and_widths_are_refused(device):
    with pytest.raises(BackendError, match="edge product: its sums are in float32"):
        edge_product(*inputs(device, dtype=torch.float64), backend="triton")
    wide = torch.zeros(1, 1, 2, 300, device=device)
    with pytest.raises(BackendError, match=r"up to 256 columns .* got 300 and 300"):
        edge_product(wide, wide, wide, torch.ones(1, 1, device=device), backend="triton")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precisions_agree_with_float64(device, dtype):
    if device == "cpu":
        pytest.skip("the interpreter's bfloat16 is wrong")
    x = inputs(device, queries=133, keys=133)
    q, k, v, m = (t.detach().to(dtype).float() for t in x)
    options = EdgeOptions(causal=True, half=dtype)
    found = edge_product(q, k, v, m, options=options, backend="triton")
    for a, b in zip(found, edge_product_naive(*(t.double() for t in (q, k, v, m)), causal=True)):
        assert_close(a.double(), b, dtype=torch.bfloat16)
