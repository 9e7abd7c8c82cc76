"""Ranks of which the last never comes to a collective: the others wait for it, inside C++, until the job is ended."""

from __future__ import annotations

import argparse
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from shared_gpu import cuda_device  # type: ignore[import-not-found]  # beside this script
from torch.distributed import distributed_c10d

STEPS = 3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds that a collective may take, at the end")
    args = parser.parse_args()
    device = cuda_device() if args.backend == "nccl" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(args.backend)
    model = torch.nn.Linear(4, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4, device=device)).sum()
        loss.backward()
        if step == STEPS:
            # Only now: on a busy machine the rendezvous takes a while.
            distributed_c10d._set_pg_timeout(timedelta(seconds=args.timeout))  # there is no public one
        if step == STEPS and dist.get_rank() == dist.get_world_size() - 1:
            threading.Event().wait()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        # On a device this is where the host waits for the collectives.
        loss.item()
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
