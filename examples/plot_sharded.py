"""
One integral over several processes
===================================

An integral over a domain is the sum of the integrals over its parts. So a signal too long for one
process can lie in several, each of which holds a stretch of the points, and an operator answers as
if it had seen them all. What has to travel depends on the kernel: keys for softmax, one small
moment for linear attention.
"""

import json
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from matplotlib import pyplot as plt

# %%
# A program for ``torchrun``, which every process executes. The lines that matter are
# ``line.shard(mesh)``, this process's stretch of the domain, and ``operator(mine, part)``.

worker = Path("sharded_worker.py")
lines = worker.read_text().partition("rows = []\n")[2].partition("    if dist.get_rank")[0]
print(textwrap.dedent(lines))

# %%
# Three processes on this machine:

path = Path(tempfile.mkdtemp()) / "found.json"
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
subprocess.run([*torchrun, str(worker), str(path)], check=True, capture_output=True)
found = json.loads(path.read_text())

for row in found[2::3]:
    print(f"{row['operator']:8s} {row['plan'].partition('between ranks: ')[2]}")
print("largest difference from the whole:", max(row["difference"] for row in found))

# %%
# How many numbers one process sent, against the length of the signal:

figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
for name in ("softmax", "luna", "ckconv"):
    rows = [row for row in found if row["operator"] == name]
    axis.loglog([r["points"] for r in rows], [r["numbers"] for r in rows], "o-", label=name)
axis.set_xticks([256, 512, 1024], [256, 512, 1024])
axis.minorticks_off()
axis.set(xlabel="points", ylabel="numbers sent by a process")
axis.grid(alpha=0.3)
axis.legend()
plt.show()

# %%
# LUNA sends the same at any length: the moment of its features. Softmax passes its keys and values
# around a ring, and CKConv transposes the signal. Gradients go the same ways back, see
# :doc:`/parallel`.
