"""A DeepSpeed loop that knows nothing of rankscope: ZeRO-3 whose optimizer steps one group of parameters after the other."""

from __future__ import annotations

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

CONFIG = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 3, "sub_group_size": 200},
    "steps_per_print": 1_000_000,
}


def main() -> None:
    """Train for two epochs, and evaluate after each."""
    deepspeed.init_distributed()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    numbers = torch.randn(80, 16)
    dataset = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
    loader = DataLoader(dataset, batch_size=4, sampler=DistributedSampler(dataset))
    for _ in range(2):
        engine.train()
        for inputs, targets in loader:
            engine.backward((engine(inputs) - targets).square().mean())
            engine.step()
        engine.eval()
        with torch.no_grad():
            for inputs, _ in loader:
                engine(inputs)
    print(f"{engine.global_steps} steps", flush=True)


if __name__ == "__main__":
    main()
