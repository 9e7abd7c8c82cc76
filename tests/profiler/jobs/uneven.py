"""Trains with DistributedDataParallel, or without any group, so that ranks do not all do the same steps: ``uneven.py CASE``."""

import os
import sys
import time

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STEPS = 120
CASE = sys.argv[1]
RANK = int(os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, late_s: float = 0.0) -> None:
    """Do a step."""
    time.sleep(0.004 + late_s)
    model(torch.ones(8, 32)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def in_group() -> None:
    """Train all ranks together: rank 1 does steps of its own, has more inputs, or is paused."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if CASE == "join":
        for _ in range(4):
            with model.join():
                for _ in range(STEPS // 4 + 3 * RANK):
                    train(model, optimizer, 0.015 * (RANK == 1))
    else:
        for step in range(STEPS):
            train(model, optimizer, 0.015 * (RANK == 1) + 1.0 * (CASE == "pause" and RANK == 1 and step == 60))
            if CASE == "extra" and RANK == 1 and step % 25 == 20:
                with model.no_sync():
                    train(model, optimizer)
    destroy_group()


def alone(shared: nn.Module) -> None:
    """Train without a group, as ranks of MPI and processes of Hogwild do."""
    optimizer = torch.optim.SGD(shared.parameters(), lr=1e-3)
    for _ in range(STEPS):
        train(shared, optimizer, 0.01 * RANK)


if __name__ == "__main__":
    if CASE == "hogwild":
        import torch.multiprocessing as mp

        net.share_memory()
        processes = [mp.get_context("fork").Process(target=alone, args=(net,)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    elif CASE == "alone":
        alone(net)
    else:
        in_group()
