"""Exported to ONNX and through onnxscript's optimiser, which `torch.onnx.export` runs unless told
otherwise, linear InfSA is itself.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

onnxscript = pytest.importorskip("onnxscript", minversion="0.7")

# A process of its own: the shape-checking hook has no place in what is exported.
SCRIPT = """
import torch
from onnx.reference import ReferenceEvaluator
from fredholm import Domain
from fredholm.operators import create_operator


class OnAGrid(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        self.operator = operator

    def forward(self, u):
        return self.operator(u, Domain.grid(2, 4))


for options in ({}, {"centres": 3, "steps": 2}):
    # As many samples as heads: what the optimiser of 0.7.2 took for one another.
    model = OnAGrid(create_operator("linear_infsa", 16, 2, **options)).eval()
    u = torch.randn(2, 8, 16)
    exported = torch.onnx.export(model, (u,), dynamo=True, optimize=True, verbose=False).model_proto
    name = exported.graph.input[0].name
    (out,) = ReferenceEvaluator(exported).run(None, {name: u.numpy()})
    torch.testing.assert_close(torch.from_numpy(out), model(u).detach(), rtol=1e-5, atol=1e-5)
    print("equal")
"""


@pytest.mark.slow
@pytest.mark.compile
def test_linear_infsa_survives_the_optimiser():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.stdout.count("equal") == 2, done.stdout + done.stderr[-2000:]
