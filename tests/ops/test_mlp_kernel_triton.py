"""The Triton kernels of the MLP kernel equal its definition, in values and gradients, from buffers
full of NaN.

Without a GPU they run through Triton's interpreter, in float32; ``pytest -m gpu`` runs the same on
a GPU, and half precisions.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

from fredholm.domain import Domain
from fredholm.errors import BackendError, OptionError, StrategyError
from fredholm.families.itnet.hidden_first import ACTIVATIONS, mlp_kernel, mlp_kernel_naive
from fredholm.families.itnet.hidden_first.terms import PAIR_TENSORS
from fredholm.families.itnet.triton import launch as triton_launch
from fredholm.families.itnet.triton.launch import Sizes, _bounds, fit_tiles
from fredholm.operators import Exact, ITNetOperator, SoftmaxAttention
from tests.ops.test_mlp_kernel import flat, inputs
from tests.ops.triton_device import devices, poisoned  # noqa: F401
from tests.tolerances import assert_close


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Make tiles so small that few rows and keys, as the interpreter can afford, fill several."""
    monkeypatch.setitem(triton_launch.INTERPRETED, "rows", 32)
    monkeypatch.setitem(triton_launch.INTERPRETED, "keys", 16)


CONSTANT = ("density", "query_positions", "key_positions")  # whose gradients are not supported
EVERY = ("second", "key_bias", "table", "distance", "density", "time")


def evaluate(function, arguments, **options):
    """Return the output, and the gradients of a fixed random functional of the supported inputs."""
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in arguments.items()
        if x is not None and x.is_floating_point() and name not in CONSTANT and "time" not in name
    }
    out = function(**{**arguments, **leaves}, **options)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    grads = torch.autograd.grad(out, list(leaves.values()), weight.to(out.device, out.dtype))
    return {"out": out.detach(), **dict(zip(leaves, grads))}


def assert_same(arguments, device, dtype=torch.float32, **options):
    """Compare the kernels in ``dtype`` with the definition of the same numbers in float64."""
    moved = {n: x if x is None else x.to(device) for n, x in arguments.items()}
    ready = {
        n: x.to(dtype) if x is not None and x.is_floating_point() else x for n, x in moved.items()
    }
    exact = {
        n: x.double() if x is not None and x.is_floating_point() else x for n, x in ready.items()
    }
    activation = {"activation": options["activation"]} if "activation" in options else {}
    expected = evaluate(mlp_kernel_naive, exact, **activation)
    found = evaluate(mlp_kernel, ready, backend="triton", **options)
    for name, value in expected.items():
        assert found[name].dtype == dtype
        assert_close(found[name], value, name, dtype)


def small(*terms, **sizes):
    return inputs(*terms, **{"b": 1, "h": 2, "q": 5, "k": 18, "dtype": torch.float32, **sizes})


@devices
@pytest.mark.parametrize(
    ("terms", "sizes"),
    [
        ((), {}),
        (("product",), {"q": 9}),
        (("product", "key_bias", "table"), {}),
        (("second", "table"), {"f": 4}),
        (EVERY, {"b": 2}),
        (EVERY, {"b": 2, "share": "BH"}),
        (EVERY, {"b": 2, "h": 1, "share": "H", "q": 1, "k": 1}),
    ],
    ids=lambda x: (
        "+".join(x) if isinstance(x, tuple) else "-".join(f"{k}{v}" for k, v in x.items())
    ),
)
@pytest.mark.usefixtures("poisoned")
def test_the_kernel_equals_the_definition(device, terms, sizes):
    assert_same(small(*terms, **sizes), device)


@devices
@pytest.mark.usefixtures("poisoned")
def test_sizes_that_fill_no_block_equal_the_definition(device):
    """Two blocks of hidden units, ragged in every dimension."""
    assert_same(small("second", "key_bias", h=1, q=3, k=17, e=18, f=3, d=17, o=5, w=33), device)


@devices
@pytest.mark.usefixtures("poisoned")
def test_moments_of_several_launches_equal_the_definition(device):
    """One batch entry at a time, its queries in parts: keys' gradients are summed over launches."""
    assert_same(small("product", "key_bias", "table", b=2, q=6, k=5), device, memory=600)


@devices
@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.usefixtures("poisoned")
def test_every_activation_equals_the_definition(device, activation):
    assert_same(small("product", h=1, k=5), device, activation=activation)


@devices
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.usefixtures("poisoned")
def test_causal_times_of_every_dtype_equal_the_definition(device, dtype):
    arguments = small("product", "key_bias", "time", h=1, q=12, k=20)
    arguments["query_time"] = (torch.arange(12) + 3).to(dtype)
    arguments["key_time"] = torch.arange(20).to(dtype)
    assert_same(arguments, device)


def test_blocks_without_a_visible_pair_are_skipped():
    """Bounds for sorted, shuffled and batched times equal their definition; sorted skip half."""
    g = torch.Generator().manual_seed(0)
    line = torch.arange(64.0)[None]
    shuffled = torch.randn(3, 64, generator=g)
    for query, key in (
        (line, line),
        (shuffled, line),
        (line[:, :50], shuffled[:, :41]),
        (shuffled, shuffled.flip(0)),
    ):
        stop, start = _bounds((query, key), 4, 8)
        seen = key[:, None, :] <= query[:, :, None]
        seen = torch.nn.functional.pad(seen, (0, -key.shape[1] % 8, 0, -query.shape[1] % 4))
        blocks = seen.unflatten(1, (-1, 4)).unflatten(3, (-1, 8)).any(4).any(2)
        index = torch.arange(blocks.shape[2]) + 1
        assert torch.equal(stop.data, torch.where(blocks, index, 0).amax(2).int())
        first = torch.where(blocks, torch.arange(blocks.shape[1])[:, None], blocks.shape[1]).amin(1)
        assert torch.equal(start.data, first.int())
    assert _bounds((line, line), 8, 8)[0].data.sum() == 8 * 9 // 2


@devices
@pytest.mark.usefixtures("poisoned")
def test_a_boolean_density_and_strided_tensors_equal_the_definition(device):
    arguments = small("product", "key_bias", b=2, k=7)
    arguments["density"] = torch.rand(2, 1, 5, 7, generator=torch.Generator().manual_seed(3)) < 0.5
    # Strides of heads that were cut from a wider tensor.
    for name in ("query", "key", "value", "key_bias"):
        arguments[name] = arguments[name].transpose(1, 2).contiguous().transpose(1, 2)
    arguments["scale"] = arguments["scale"].mT.contiguous().mT
    assert_same(arguments, device)


@devices
@pytest.mark.usefixtures("poisoned")
def test_two_runs_give_identical_bits(device):
    arguments = {
        n: x if x is None else x.to(device) for n, x in small("product", "table", h=1).items()
    }
    first, second = (evaluate(mlp_kernel, arguments, backend="triton") for _ in range(2))
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@devices
def test_each_gradient_alone_equals_all_together(device):
    """The buffers of the other gradients are then not allocated."""
    arguments = {
        n: x if x is None else x.to(device)
        for n, x in small("second", "key_bias", h=1, k=5).items()
    }
    whole = evaluate(mlp_kernel, arguments, backend="triton")
    for name in ("value", "query", "scale2", "readout"):
        leaf = arguments[name].clone().requires_grad_()
        out = mlp_kernel(**{**arguments, name: leaf}, backend="triton")
        weight = torch.randn(
            out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64
        )
        (found,) = torch.autograd.grad(out, leaf, weight.to(out))
        assert torch.equal(found, whole[name])


@devices
@pytest.mark.parametrize("empty", [{"k": 0}, {"q": 0}, {"b": 0}])
def test_empty_sizes_equal_the_definition(device, empty):
    assert_same(small("product", "key_bias", "time", **empty), device)


@devices
def test_the_custom_op_passes_opcheck(device):
    x = flat(small("second", "table", "time", h=1, q=2, k=3))
    moved = {n: t if (t := getattr(x, n)) is None else t.to(device) for n in PAIR_TENSORS}
    for name, tensor in moved.items():
        differentiable = name not in CONSTANT and "time" not in name
        if differentiable and tensor is not None and tensor.is_floating_point():
            tensor.requires_grad_()
    arguments = (*moved.values(), "gelu", 10_000)
    torch.library.opcheck(torch.ops.fredholm.mlp_kernel_triton, arguments)


@devices
@pytest.mark.parametrize("place", ["grid", "points", "causal"])
@pytest.mark.usefixtures("poisoned")
def test_the_operator_agrees_with_the_torch_backend(device, place):
    """ITNet's operator on a displacement table, appended columns, a causal order and padding."""
    torch.manual_seed(1)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[1, 4:] = False
    domain = {
        "grid": lambda: Domain.grid(2, 3),
        "points": lambda: Domain.points(torch.rand(2, 6, 2), valid=valid),
        "causal": lambda: Domain.line(6, causal=True),
    }[place]().to(device)
    p = domain.positions.shape[-1]
    op = ITNetOperator(8, 2, position_dim=p, width=8, frequencies=4, sigma=1.0).to(device)
    torch.nn.init.normal_(op.kernel.weight2)
    u = torch.randn(2, 6, 8, device=device)

    def run(backend):
        op.strategy = Exact(backend=backend)
        leaf = u.clone().requires_grad_()
        out = op(leaf, domain)
        return [out, *torch.autograd.grad(out.square().sum(), [leaf, *op.parameters()])]

    for found, expected in zip(run("triton"), run("torch")):
        assert_close(found, expected, dtype=torch.float32)


REFUSED = {
    "mid": (
        {"mid": [(torch.ones(4, 6), torch.ones(4))], "readout": torch.ones(2, 2, 3, 4)},
        "further hidden layers",
    ),
    "double": ({"value": torch.ones(1, 2, 18, 3, dtype=torch.float64)}, "value is float64"),
    "density": ({"density": torch.ones(1, 1, 5, 18).requires_grad_()}, "gradients of density"),
    "wide": (
        {"value": torch.ones(1, 2, 18, 300), "readout": torch.ones(2, 2, 300, 6)},
        "300 columns, at most 256",
    ),
}


@pytest.mark.parametrize("case", list(REFUSED))
@pytest.mark.skipif(torch.cuda.is_available(), reason="refused on a GPU in the same words")
def test_unsupported_arguments_are_refused_by_name(case):
    wrong, match = REFUSED[case]
    with pytest.raises(BackendError, match=match):
        mlp_kernel(**{**small("product"), **wrong}, backend="triton")


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="the interpreter is for machines without a GPU"
)
def test_the_interpreter_refuses_half_precision():
    with pytest.raises(BackendError, match=r"bfloat16 wrongly.*float32"):
        mlp_kernel(**small("product", dtype=torch.bfloat16), backend="triton")
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(BackendError, match="bfloat16 wrongly"),
    ):
        mlp_kernel(**small("product"), backend="triton")


def test_a_strategy_checks_its_backend():
    with pytest.raises(OptionError, match="did you mean 'triton'"):
        Exact(backend="tritonn")
    with pytest.raises(StrategyError, match=r"fused attention.*no Triton kernel"):
        SoftmaxAttention(8, 2, strategy=Exact(backend="triton"))(torch.zeros(1, 3, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "terms", [("product", "key_bias", "table"), ("second", "key_bias", "distance", "time")]
)
@pytest.mark.usefixtures("poisoned")
def test_half_precisions_agree_with_float64(dtype, terms):
    arguments = inputs(
        *terms, b=2, h=2, q=50, k=70, e=64 + 32, f=32, d=64, o=64, w=128, dtype=torch.float32
    )
    scaled = {
        n: 0.1 * x if n in ("scale", "scale2", "table", "readout") else x
        for n, x in arguments.items()
    }
    for activation in ("gelu", "gelu_tanh"):
        assert_same_half(scaled, dtype, activation)


def assert_same_half(arguments, dtype, activation):
    """Compare relative to each result's norm: half precisions round every operand."""
    moved = {n: x if x is None else x.cuda() for n, x in arguments.items()}
    ready = {
        n: x.to(dtype) if x is not None and x.is_floating_point() else x for n, x in moved.items()
    }
    exact = {
        n: x.double() if x is not None and x.is_floating_point() else x for n, x in ready.items()
    }
    expected = evaluate(mlp_kernel_naive, exact, activation=activation)
    found = evaluate(mlp_kernel, ready, backend="triton", activation=activation)
    for name, value in expected.items():
        error = (found[name].double() - value).norm() / value.norm()
        assert error <= 2e-2, f"{name}: relative error {float(error):.2e}"


COMPILED = """
import torch
from fredholm.families.itnet.hidden_first import mlp_kernel

def run(u, w, r):
    return mlp_kernel(u, u, u, r, query_bias=u @ w[0].T, scale=w, backend="triton")

u, w, r = torch.randn(1, 2, 5, 3), torch.randn(1, 4, 3), torch.randn(2, 3, 3, 4)
compiled = torch.compile(run, fullgraph=True, backend="eager")
torch.testing.assert_close(compiled(u, w, r), run(u, w, r))
print("same")
"""


@pytest.mark.compile
@pytest.mark.skipif(torch.cuda.is_available(), reason="runs the interpreter")
def test_the_kernel_compiles_without_graph_breaks():
    """Dynamo traces the choice of the backend and the kernels' import; opcheck covers the rest."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED], capture_output=True, text=True, timeout=280
    )
    assert done.stdout.strip() == "same", done.stderr[-3000:]


def test_tiles_fit_the_shared_memory_of_the_gpu():
    """The usual sizes follow the rule; wide ones and small GPUs get smaller tiles, never below the
    matrix units' 16.
    """
    rule = {"rows": 128, "keys": 64, "stages": 3}
    assert fit_tiles("forward", rule, Sizes(W=128, A=64, F=0, D=64, P=0), 2, 200_000) == rule
    columns = fit_tiles("keys", rule, Sizes(W=128, A=64, F=128, D=64, P=2), 2, 200_000)
    assert columns == {"rows": 128, "keys": 64, "stages": 1}
    wide = fit_tiles("keys", rule, Sizes(W=128, A=256, F=256, D=256, P=2), 4, 90_000)
    assert wide["rows"] == 16
    assert wide["keys"] == 16
