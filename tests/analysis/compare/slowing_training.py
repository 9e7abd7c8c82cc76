"""DistributedDataParallel over gloo that becomes slower at a step. It knows nothing of rankscope.

Arguments: steps, the step from which on it is slower, the slow rank (-1: all of them), phase, pause in seconds.
"""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Model(nn.Module):
    """Two layers, with a pause in the forward pass on request."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 8))
        self.pause = 0.0

    def forward(self, rows: Tensor) -> Tensor:
        """Return scores [batch, 8]."""
        time.sleep(self.pause)
        scores: Tensor = self.layers(rows)
        return scores


def main() -> None:
    """Train."""
    steps, slow_from, slow_rank = map(int, sys.argv[1:4])
    phase, pause = sys.argv[4], float(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    is_slow = slow_rank in (-1, dist.get_rank())
    model = Model()
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    for step, (rows,) in enumerate(DataLoader(TensorDataset(torch.randn(steps * 16, 128)), batch_size=16)):
        slow = is_slow and step >= slow_from
        model.pause = pause if slow and phase == "forward" else 0.0
        optimizer.zero_grad()
        parallel(rows).sum().backward()
        optimizer.step()
        if slow and phase == "between_steps":
            time.sleep(pause)
    # Gloo may hang when it is destroyed while a thread of its own still holds the last gradients (pytorch issue 190489).
    dist.barrier()
    time.sleep(0.2)
    dist.destroy_process_group()


main()
