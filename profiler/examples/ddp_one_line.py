"""Record from inside the training script: one ``with`` block, one call of ``step``.

torchrun --standalone --nproc-per-node 2 ddp_one_line.py runs/one-line
rankscope analyze runs/one-line
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rankscope.profiler.step import StepProfiler


def main(run_dir: str) -> None:
    """Train a small network for one epoch."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    samples = torch.randn(512, 32)
    dataset = TensorDataset(samples, samples.sum(dim=1, keepdim=True))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))

    with StepProfiler(run_dir, window_first=10, window_every=0) as prof:
        for inputs, targets in prof.data(loader):
            optimizer.zero_grad()
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
            optimizer.step()
            prof.step(samples=len(inputs))

    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
