"""A loop with Accelerate that knows nothing of rankscope: two batches to a step, an evaluation after each epoch."""

from __future__ import annotations

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    """Train."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    numbers = torch.randn(9 * 4 * accelerator.num_processes, 16)
    loader = DataLoader(TensorDataset(numbers, numbers.sum(dim=1, keepdim=True)), batch_size=4)
    model, optimizer, train, test = accelerator.prepare(model, optimizer, loader, loader)
    steps = 0
    for _ in range(2):
        model.train()
        for inputs, targets in train:
            with accelerator.accumulate(model):
                accelerator.backward((model(inputs) - targets).square().mean())
                optimizer.step()
                optimizer.zero_grad()
            steps += accelerator.sync_gradients
        model.eval()
        with torch.no_grad():
            for inputs, _ in test:
                accelerator.gather_for_metrics(model(inputs))
    accelerator.end_training()
    print(f"{steps} steps", flush=True)


if __name__ == "__main__":
    main()
