"""Record a custom training loop with Accelerate: ``accumulate`` decides when a step ends.

accelerate launch --multi_gpu --num_processes 2 accelerate_loop.py runs/accelerate
rankscope analyze runs/accelerate

(``--multi_gpu`` starts one process per rank, also on machines without a GPU.)
"""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from rankscope.profiler.step import StepProfiler


def main(run_dir: str) -> None:
    """Train a small network for one epoch, two batches to a step, then validate."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    numbers = torch.randn(320, 32)
    dataset = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(dataset, batch_size=8))

    steps = 0
    with StepProfiler(run_dir, window_first=5, window_every=0) as prof:
        for inputs, targets in prof.data(loader):
            with accelerator.accumulate(model):
                loss = (model(inputs) - targets).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                prof.step()
            steps += accelerator.sync_gradients

    with torch.no_grad():
        accelerator.gather_for_metrics((model(numbers[:8]) - numbers[:8].sum(dim=1, keepdim=True)).square().mean())
    accelerator.end_training()
    print(f"{steps} steps")


if __name__ == "__main__":
    main(sys.argv[1]) if len(sys.argv) > 1 else sys.exit(__doc__)
