"""Evolutions compile without graph breaks and export with a free number of tokens, and stages of
pictures compile for free sides, in a process without the shape-checking hook.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import torch
from fredholm.families.continuous.splitting import Evolution, encoder_terms

torch.manual_seed(0)
u = torch.randn(2, 6, 8, dtype=torch.float64)
knots = [encoder_terms(8, 2, 16, norm="pre") for _ in range(2)]
evolution = Evolution(knots, controls="linear", scheme="parallel").double()
for steps in (2, 3):
    torch._dynamo.reset()
    evolve = lambda v: evolution(v, steps=steps)
    compiled = torch.compile(evolve, backend="aot_eager", fullgraph=True)
    assert (compiled(u) - evolution(u, steps=steps)).abs().max() < 1e-12
shapes = {"u": {1: torch.export.Dim("n", min=2, max=64)}}
exported = torch.export.export(evolution, (u,), dynamic_shapes=shapes).module()
v = torch.randn(2, 9, 8, dtype=torch.float64)
assert (exported(v) - evolution(v)).abs().max() < 1e-12
print("done")
"""

PICTURES = """
import torch
from fredholm import Domain
from fredholm.families.continuous.splitting import ConvolutionalAttention, ConvolutionalEmbedding

torch.manual_seed(0)
embedding = ConvolutionalEmbedding(1, 4, 7, stride=4)
attention = ConvolutionalAttention(4, 1, batch_norm=False).eval()

@torch.no_grad()
def stage(picture):
    u, domain = embedding(picture.flatten(2).mT, Domain.grid(*picture.shape[2:]))
    return attention(u, domain)

compiled = torch.compile(stage, fullgraph=True, dynamic=True)
for sides in ((24, 32), (57, 40)):
    picture = torch.randn(3, 1, *sides)
    assert (compiled(picture) - stage(picture)).abs().max() < 1e-5
print("done")
"""


@pytest.mark.slow
@pytest.mark.compile
@pytest.mark.parametrize("script", [SCRIPT, PICTURES], ids=["evolutions", "stages"])
def test_compiled_and_exported_evolutions_agree_with_eager_ones(script):
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]
