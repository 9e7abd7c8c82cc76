"""Data-parallel training that continues until a file appears; knows nothing of rankscope."""

from __future__ import annotations

import argparse
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel

ASK_EVERY = 20


def main() -> None:
    """Train, and let the first rank decide every few steps whether to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("stop", type=Path)
    parser.add_argument("--pause", type=float, default=0.003, help="seconds of each step that nobody computes in")
    parser.add_argument("--width", type=int, default=32, help="of the hidden layer: 72 bytes of gradients each")
    parser.add_argument("--timeout", type=float, help="seconds after which a collective fails, once all ranks are there")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, args.width), nn.ReLU(), nn.Linear(args.width, 1)))
    if args.timeout is not None:
        dist.distributed_c10d._set_pg_timeout(timedelta(seconds=args.timeout))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, enough = 0, torch.zeros(1)
    while not enough.item():
        optimizer.zero_grad()
        model(torch.ones(4, 16)).square().mean().backward()
        time.sleep(args.pause)
        optimizer.step()
        step += 1
        if step % ASK_EVERY == 0:
            enough.fill_(args.stop.exists())
            dist.broadcast(enough, 0)
    print(f"steps {step}", flush=True)
    destroy_group()


if __name__ == "__main__":
    main()
