"""Ranks that train in one process group and coordinate in another, started by torchrun or by srun alone."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 24
LATE_S = 0.03


def main(store: str) -> None:
    """Train; rank 1 is late to the second group's operations between the steps."""
    by_slurm = "RANK" not in os.environ
    rank = int(os.environ["SLURM_PROCID" if by_slurm else "RANK"])
    size = int(os.environ["SLURM_NTASKS" if by_slurm else "WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    control = dist.new_group(backend="gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()
        if rank == 1:
            time.sleep(LATE_S)
        stop = torch.zeros(1)
        dist.all_reduce(stop, group=control)
        dist.barrier(group=control)
        dist.monitored_barrier(group=control)
    destroy_group()


if __name__ == "__main__":
    main(sys.argv[1])
