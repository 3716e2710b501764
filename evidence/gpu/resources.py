"""What the Triton kernels of LUNA, InfSA and CKConv need of a GPU, without one.

Compiles every kernel, with the tiles it takes where none were measured, for compute capability 9.0,
and reads registers a thread, bytes spilled a thread and shared memory from the machine code. A
kernel that the interpreter runs may still fail to compile: this finds it.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
Case = tuple[
    str, Any, dict[str, str], dict[str, Any], dict[str, int]
]  # label, kernel, pointers in half precision, constants, tiles


def graph_cases() -> Iterator[Case]:
    """Widths 64 and 128, bfloat16 and float32, causal with a density."""
    kernels = [("forward", graph_forward.forward)]
    kernels += [
        ("backward", getattr(graph_backward, f"backward_{name}"))
        for name in ("queries", "keys", "density")
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
                yield f"infsa {dtype} d{width}", kernel, half, constants, tiles


def linear_cases() -> Iterator[Case]:
    """64 features and columns: of a bank 8 x 8 with 64 hidden units, and given; causal."""
    kernels = (
        linear_forward.moments,
        linear_forward.respond,
        linear_backward.query_gradient,
        linear_backward.key_gradient,
    )
    for dtype, precision in (("bf16", "tf32"), ("fp32", "tf32x3")):
        for given in (False, True):
            tiles = linear.default_tiles(64, precision == "tf32x3")
            bank = (
                {"L": 64, "M": 1, "BLOCK_L": 64, "BLOCK_M": 1}
                if given
                else {"L": 8, "M": 8, "BLOCK_L": 8, "BLOCK_M": 8}
            )
            constants = bank | {
                "D": 64, "BLOCK_D": 64, "H": 1 if given else 64, "C": 1, "Q_C": 1, "K_C": 1, "BLOCK_N": tiles["rows"],
                "SHARED": False, "ACTIVATION": "relu", "NONNEG": True, "GIVEN": given, "CAUSAL": True, "SCALED": True,
                "NORMALISED": True, "PRECISION": precision,
            }  # fmt: skip
            label = f"{'linear attention' if given else 'luna'} {dtype}"
            for kernel in kernels:
                yield label, kernel, {"value": dtype}, constants, tiles
            yield label, linear_backward.rates, {}, constants, tiles
    carry = {"WIDTH": 4096, "BLOCK": 256, "REVERSE": True}
    yield "luna, linear attention", linear_forward.carry, {}, carry, {"warps": 2, "stages": 1}


def spectrum_cases() -> Iterator[Case]:
    """32 hidden units and a constant."""
    for kernel in (spectra.multiply, spectra.hidden_gradient, spectra.readout_gradient):
        tiles = spectra.DEFAULT
        constants = {
            "WIDTH": 33, "BLOCK_W": 64, "BLOCK_F": tiles["frequencies"], "BLOCK_O": tiles["outputs"],
            "BLOCK_B": tiles["batch"], "ADJOINT": False, "PRECISION": "tf32x3",
        }  # fmt: skip
        yield "ckconv", kernel, {}, constants, tiles


def resources(
    kernel: Any, half: dict[str, str], constants: dict[str, Any], tiles: dict[str, int]
) -> dict[str, int]:
    """Registers and spilled bytes a thread, and shared memory a program, of the machine code."""
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    types = {
        n: "i32" if n in COUNTS else "fp32" if n == "floor" else f"*{half.get(n, 'fp32')}"
        for n in kernel.arg_names
    }
    source = ASTSource(
        fn=kernel,
        signature=types | dict.fromkeys(constants, "constexpr"),
        constexprs={(kernel.arg_names.index(name),): value for name, value in constants.items()},
    )
    options = {"num_warps": tiles["warps"], "num_stages": tiles["stages"]}
    built = triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=options)
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(built.asm["cubin"])
        file.flush()
        said = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        )
    found = re.search(r"REG:(\d+) STACK:(\d+)", said.stdout)
    assert found is not None, said.stdout
    return {
        "registers": int(found[1]),
        "spilled_bytes": int(found[2]),
        "shared_bytes": built.metadata.shared,
    }


def run(options: Options) -> None:
    """The cases whose label holds the text of ``--only``, or all."""
    rows, only = [], " ".join(options.only)
    for label, kernel, half, constants, tiles in [
        *graph_cases(),
        *linear_cases(),
        *spectrum_cases(),
    ]:
        if only in label:
            found = resources(kernel, half, constants, tiles)
            rows.append({"case": label, "kernel": kernel.__name__, **tiles, **found})
            print(rows[-1], flush=True)
    found = {"triton": triton.__version__, "capability": CAPABILITY, "rows": rows}
    save(found, "gpu-resources.json", options.results)
