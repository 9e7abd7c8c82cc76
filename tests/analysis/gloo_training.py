"""DistributedDataParallel over gloo under the profiler; one trace per rank. Arguments: folder, late rank, pause in s, steps."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP = 4


def main() -> None:
    folder, late_rank, pause, steps = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 8)), bucket_cap_mb=1
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        if rank == late_rank:
            time.sleep(pause)
        optimizer.zero_grad()
        model(torch.randn(64, 128)).sum().backward()
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    with torch.autograd.profiler.profile(use_kineto=True) as profiler:
        for number in range(10, 10 + steps):
            with torch.autograd.profiler.record_function(f"ProfilerStep#{number}"):
                step()
    profiler.export_chrome_trace(str(folder / f"rank-{rank}.json"))
    # Gloo may hang when it is destroyed while a thread of its own still holds the last gradients (pytorch issue 190489).
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


main()
