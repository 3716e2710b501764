"""The registers and memory that the Triton kernels of LUNA, InfSA and CKConv use; needs no GPU.

Every kernel is compiled for compute capability 9.0, with its default tiles. Registers and spilled
bytes per thread and shared memory are read from the machine code. This also finds kernels that run
in the interpreter and fail to compile.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fredholm.families.ckconv.triton import op as spectra
from fredholm.families.infsa.triton import backward as graph_backward
from fredholm.families.infsa.triton import forward as graph_forward
from fredholm.families.infsa.triton import op as graph_op
from fredholm.ops.linear_attention import triton as linear
from fredholm.ops.linear_attention import triton_backward as linear_backward
from fredholm.ops.linear_attention import triton_forward as linear_forward

from ..kit.page import save
from ..kit.subject import Options

CAPABILITY = 90
COUNTS = [
    "batch", "heads", "queries", "keys", "count", "sets", "tiles", "slots", "shared_b",
    "shared_h", "d_in", "d_out", "blocks", "mass_b", "mass_k", "mass_n", "rate_b", "rate_h",
    "rate_n", "scale_b", "scale_h", "scale_n", "density_b", "density_h", "density_q",
    "density_k", "stride_h", "stride_i", "stride_o",
]  # fmt: skip


class Case(NamedTuple):
    """One kernel to compile.

    Attributes:
        label: names the case in the result.
        kernel: the Triton kernel.
        types: types of the pointers that are not float32.
        constants: values of its constants.
        tiles: sizes of its tiles, with ``warps`` and ``stages``.
    """

    label: str
    kernel: Any
    types: dict[str, str]
    constants: dict[str, Any]
    tiles: dict[str, int]


def graph_cases() -> Iterator[Case]:
    """Yield pure InfSA, causal with a density, at widths 64 and 128, in bfloat16 and float32."""
    kernels = [
        ("forward", graph_forward.forward),
        ("backward", graph_backward.backward_queries),
        ("backward", graph_backward.backward_keys),
        ("backward", graph_backward.backward_density),
    ]
    for dtype, itemsize, precision in (("bf16", 2, "tf32"), ("fp32", 4, "tf32x3")):
        for width in (64, 128):
            for direction, kernel in kernels:
                tiles = graph_op.default_tiles(direction, width, itemsize)
                constants = {
                    "E": width, "D": width, "BLOCK_E": width, "BLOCK_D": width, "BLOCK_Q": tiles["rows"],
                    "BLOCK_K": tiles["keys"], "ACTIVATION": "relu", "STATISTIC": "squares", "CAUSAL": True, "DENSITY": True,
                    "PRECISION": precision,
                }  # fmt: skip
                half = dict.fromkeys(("query", "key", "value", "grad"), dtype)
                yield Case(f"infsa {dtype} d{width}", kernel, half, constants, tiles)


def linear_cases() -> Iterator[Case]:
    """Yield causal linear attention with 64 features and columns.

    The features come from LUNA's bank of 8 × 8 with 64 hidden units, or are inputs.
    """
    kernels = (
        linear_forward.moments,
        linear_forward.respond,
        linear_backward.query_gradient,
        linear_backward.key_gradient,
    )
    for dtype, precision in (("bf16", "tf32"), ("fp32", "tf32x3")):
        for given in (False, True):
            tiles = linear.default_tiles(64, precision == "tf32x3")
            bank = {"L": 8, "M": 8, "BLOCK_L": 8, "BLOCK_M": 8}
            if given:
                bank = {"L": 64, "M": 1, "BLOCK_L": 64, "BLOCK_M": 1}
            constants = bank | {
                "D": 64, "BLOCK_D": 64, "H": 1 if given else 64, "C": 1, "Q_C": 1, "K_C": 1, "BLOCK_N": tiles["rows"],
                "SHARED": False, "ACTIVATION": "relu", "NONNEG": True, "GIVEN": given, "CAUSAL": True, "SCALED": True,
                "NORMALISED": True, "PRECISION": precision,
            }  # fmt: skip
            label = f"{'linear attention' if given else 'luna'} {dtype}"
            for kernel in kernels:
                yield Case(label, kernel, {"value": dtype}, constants, tiles)
            yield Case(label, linear_backward.rates, {}, constants, tiles)
    carry = {"WIDTH": 4096, "BLOCK": 256, "REVERSE": True}
    tiles = {"warps": 2, "stages": 1}
    yield Case("luna, linear attention", linear_forward.carry, {}, carry, tiles)


def spectrum_cases() -> Iterator[Case]:
    """Yield CKConv's kernels with 32 hidden units and a constant."""
    for kernel in (spectra.multiply, spectra.hidden_gradient, spectra.readout_gradient):
        tiles = spectra.DEFAULT
        constants = {
            "WIDTH": 33, "BLOCK_W": 64, "BLOCK_F": tiles["frequencies"], "BLOCK_O": tiles["outputs"],
            "BLOCK_B": tiles["batch"], "ADJOINT": False, "PRECISION": "tf32x3",
        }  # fmt: skip
        yield Case("ckconv", kernel, {}, constants, tiles)


def resources(case: Case) -> dict[str, int]:
    """Compile a case; return registers and spilled bytes per thread, and shared memory."""
    kernel, signature, values = case.kernel, {}, {}
    for index, name in enumerate(kernel.arg_names):
        if name in case.constants:
            signature[name] = "constexpr"
            values[index,] = case.constants[name]
        elif name in COUNTS:
            signature[name] = "i32"
        elif name == "floor":
            signature[name] = "fp32"
        else:
            signature[name] = f"*{case.types.get(name, 'fp32')}"
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    options = {"num_warps": case.tiles["warps"], "num_stages": case.tiles["stages"]}
    built = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    assert found is not None, usage
    return {
        "registers": int(found[1]),
        "spilled_bytes": int(found[2]),
        "shared_bytes": built.metadata.shared,
    }


def run(options: Options) -> None:
    """Compile and save the cases whose label contains the text of ``--only``, or all."""
    rows, only = [], " ".join(options.only)
    for case in [*graph_cases(), *linear_cases(), *spectrum_cases()]:
        if only in case.label:
            names = {"case": case.label, "kernel": case.kernel.__name__}
            rows.append({**names, **case.tiles, **resources(case)})
            print(rows[-1], flush=True)
    found = {"triton": triton.__version__, "capability": CAPABILITY, "rows": rows}
    save(found, "gpu-resources.json", options.results)
