"""One process of plot_sharded.py: it answers at its part of the points and counts what it sends."""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from fredholm import Domain, create_operator
from fredholm.distributed import count_traffic


def main(path: Path) -> None:
    """Compare operators on a sharded line with the same on the whole line; write what was found."""
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("domain",))

    rows = []
    for name in ("softmax", "luna", "ckconv"):
        for points in (256, 512, 1024):
            torch.manual_seed(0)  # the same operator and signal in every process
            operator = create_operator(name, 32, heads=2).eval()
            u, line = torch.randn(1, points, 32), Domain.line(points)

            part = line.shard(mesh)  # this process's stretch of the points
            first = part.shards.start
            mine = u[:, first : first + part.size]
            with count_traffic() as traffic, torch.no_grad():
                answers = operator(mine, part)

            with torch.no_grad():
                whole = operator(u, line)[:, first : first + part.size]
            row = {"operator": name, "points": points, "numbers": traffic.numbers}
            row["difference"] = float((answers - whole).abs().max())
            row["plan"] = str(operator.plan(part))
            rows.append(row)

    if dist.get_rank() == 0:
        path.write_text(json.dumps(rows))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
