"""Training with DDP on gloo in which rank 1 stands still from step 12 on. ``FAULT``: where it does."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FAULT, STEP = sys.argv[1], 12
RANK = int(os.environ["RANK"])


def stands(fault: str, step: int) -> None:
    """Never return on rank 1, where this is the fault."""
    while fault == FAULT and RANK == 1 and step >= STEP:
        time.sleep(1)


class Items(Dataset[Tensor]):
    """Items whose loading may never end."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> Tensor:
        stands("data", index // 2)
        return torch.ones(8)


class Model(nn.Module):
    """A layer whose forward may never end."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls = 0

    def forward(self, batch: Tensor) -> Tensor:
        """Return the loss."""
        self.calls += 1
        stands("forward", self.calls)
        result: Tensor = self.layer(batch).square().mean()
        return result


class Slow:
    """Object that a checkpoint never ends writing."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        stands("checkpoint", STEP)
        return Slow, ()


def batches() -> Iterator[Tensor]:
    """Yield batches."""
    yield from DataLoader(Items(), batch_size=2)


dist.init_process_group("gloo")
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for number, batch in enumerate(batches()):
    if number == STEP and FAULT == "checkpoint" and RANK == 1:
        torch.save(Slow(), os.devnull)
    if number == STEP and FAULT == "stopped" and RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if number >= STEP and FAULT == "gather" and RANK != 1:
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    if number >= STEP and FAULT == "gather":
        stands("gather", number)
    if number >= STEP and FAULT == "all":
        # Each waits for the message of the next, and none sends.
        dist.recv(torch.ones(1), (RANK + 1) % dist.get_world_size())
    loss = model(batch)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
