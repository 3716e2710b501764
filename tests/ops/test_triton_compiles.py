"""Every Triton kernel compiles for Hopper in bfloat16, and fits it: the compiler needs no GPU.

A process of its own, because this one interprets kernels. In it a launch compiles the kernel and
runs nothing.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

ROOT = Path(__file__).parents[2]
CASES = ("itnet_table", "itnet_columns")  # together every kernel and every branch of ITNet's
SHARED = 227 * 1024  # bytes that a program may have
SCRIPT = """
import json, os, sys
os.environ["TRITON_INTERPRET"] = "0"
sys.path[:0] = ["src", "."]
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction
from fredholm.ops import backend

class Hopper:
    def get_current_target(self): return GPUTarget("cuda", 90, 32)
    def get_current_device(self): return 0
    def get_current_stream(self, device=None): return 0

triton.runtime.driver.set_active(Hopper())
backend.machine_refusal = lambda device: None
run, found = JITFunction.run, []

def compile_only(self, *arguments, grid, warmup, **options):
    kernel = run(self, *arguments, grid=grid, warmup=True, **options)
    facts, wgmma = kernel.metadata, kernel.asm["ptx"].count("wgmma.mma")
    found.append({"kernel": facts.name, "shared": facts.shared, "wgmma": wgmma})

JITFunction.run = compile_only
from evidence.gpu.cases import KERNELS, move
for name in sys.argv[1:]:
    case = KERNELS[name]
    sizes = next(iter(case.sizes.values())) | {"b": 1, "n": 64}
    x = move(case.make(**sizes), "cpu", torch.bfloat16)
    out = case.run(x, "triton")
    torch.autograd.grad(out, [t for t in x.values() if t.requires_grad], out.detach())
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU tests run what is compiled")
def test_every_kernel_compiles_for_hopper():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *CASES],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = json.loads(done.stdout.splitlines()[-1])
    assert {k["kernel"] for k in kernels} >= {
        "moments_kernel",
        "rows_kernel",
        "keys_kernel",
        "table_kernel",
    }
    for kernel in kernels:
        assert kernel["shared"] <= SHARED, kernel
        assert kernel["wgmma"] > 0, f"{kernel['kernel']} does not use Hopper's matrix units"
