"""A tiny DistributedDataParallel training on gloo that knows nothing of rankscope. ``--fault KIND:RANK`` plants one fault."""

from __future__ import annotations

import argparse
import os
import signal
import time

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset


class Noise(Dataset[Tensor]):
    """Reproducible samples, each with the requested delay."""

    def __init__(self, pause: float) -> None:
        self.pause = pause

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.pause)
        return torch.full((16,), float(index % 7))


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--fault", default="none:0")
    parser.add_argument("--pause", type=float, default=0.02)
    args = parser.parse_args()
    kind, _, target = args.fault.partition(":")

    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    own_fault = kind if rank == int(target) else "none"
    first = nn.Linear(16, 32)
    model = nn.Sequential(first, nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    if own_fault == "backward":
        # The first layer's gradient is the last to be ready.
        first.weight.register_hook(lambda _gradient: time.sleep(args.pause))  # type: ignore[no-untyped-call]
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    loader = DataLoader(Noise(args.pause / 4 if own_fault == "data" else 0.0), batch_size=4)
    for step, batch in enumerate(loader):
        if step == args.steps:
            break
        optimizer.zero_grad()
        loss = parallel(batch).square().mean()
        loss.backward()
        optimizer.step()
        if step == args.steps // 2 and own_fault == "kill":
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
    print(f"rank {rank} {loss.item():.6f}", flush=True)
    destroy_group()


if __name__ == "__main__":
    main()
