"""Operators exported with edges as inputs, in a process without the hook that checks shapes, which
``torch.export`` does not follow.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
from dataclasses import replace
import torch
from torch.export import Dim
from fredholm import Domain
from fredholm.edges import Edges
from fredholm.operators import create_operator

class OnAGraph(torch.nn.Module):
    def __init__(self, name, **options):
        super().__init__()
        self.operator = create_operator(name, 8, 2, **options)

    def forward(self, u, positions, edges):
        return self.operator(u, Domain.points(positions, pairs=edges))

def graph(seed):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(10, (2, 30 + 7 * seed), generator=generator)
    # The longest row is static: graphs of one export share a bound.
    return replace(Edges.of_index(index, 10), longest=16)

torch.manual_seed(0)
options = {"itnet": {"position_dim": 2, "width": 5, "frequencies": 2},
           "ckconv": {"position_dim": 2, "width": 4, "length": 6}}
for name in ("softmax", "linear_attention", "itnet", "ckconv", "infsa"):
    model = OnAGraph(name, **options.get(name, {})).eval()
    u, positions = torch.randn(1, 10, 8), torch.rand(10, 2)
    count = Dim("edges")
    shapes = None, None, [None, {0: count}, {0: count}, None, None, None, None]
    exported = torch.export.export(model, (u, positions, graph(0)), dynamic_shapes=shapes)
    for seed in (0, 1, 2):
        edges = graph(seed)
        expected = model(u, positions, edges)
        torch.testing.assert_close(exported.module()(u, positions, edges), expected)
    print(name, "exported")
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_exported_operator_accepts_any_graph_of_its_size():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("exported") == 5
