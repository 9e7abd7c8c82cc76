"""Training on gloo that knows nothing of rankscope. ``KIND RANK SECONDS``: a stall planted on a rank, and how long all train."""

from __future__ import annotations

import random
import sys
import time
import zlib

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

PAUSE_SECONDS = 0.04
KIND, RANK, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
TEXT = random.Random(0).randbytes(1 << 21)


class Model(nn.Module):
    """Two layers, with a stall between them."""

    def __init__(self, stall: str) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(256, 256), nn.Linear(256, 1)
        self.stall = stall

    def forward(self, batch: Tensor) -> Tensor:
        """Return one number per sample."""
        hidden = self.first(batch).relu()
        if self.stall == "forward":
            time.sleep(PAUSE_SECONDS)  # stall: forward
        if self.stall == "extension":
            zlib.compress(TEXT)  # stall: extension
        result: Tensor = self.second(hidden)
        return result


def collate(samples: list[Tensor]) -> Tensor:
    """Return a batch."""
    return torch.stack(samples)


def stalling_collate(samples: list[Tensor]) -> Tensor:
    """Return a batch, late."""
    time.sleep(PAUSE_SECONDS)  # stall: collate
    return torch.stack(samples)


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    stall = KIND if dist.get_rank() == RANK else "none"
    model = DistributedDataParallel(Model(stall))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.ones(1_000_000, 1).expand(-1, 256)
    loader: DataLoader[Tensor] = DataLoader(data, batch_size=4, collate_fn=stalling_collate if stall == "collate" else collate)  # type: ignore[arg-type]
    end = time.time() + SECONDS
    for step, batch in enumerate(loader, 1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if step % 20 == 0:
            over = torch.tensor([float(time.time() > end)])
            dist.broadcast(over, 0)
            if over.item():
                break
    destroy_group()


if __name__ == "__main__":
    main()
