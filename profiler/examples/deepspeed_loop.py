"""Record a DeepSpeed loop: the engine decides when a step ends.

deepspeed --num_gpus 2 deepspeed_loop.py runs/deepspeed
rankscope analyze runs/deepspeed

On CPUs: ``torchrun --standalone --nproc-per-node 2 deepspeed_loop.py runs/deepspeed``. DeepSpeed then compiles its
shared-memory communication at the first start, which takes a C++ compiler and a minute or two.
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from rankscope.profiler.step import StepProfiler

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
    "steps_per_print": 1_000_000,
}


def main(run_dir: str) -> None:
    """Train a small network for one epoch, two batches to a step."""
    deepspeed.init_distributed()
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    numbers = torch.randn(320, 32)
    dataset = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
    loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))

    with StepProfiler(run_dir, window_first=5, window_every=0) as prof:
        for batch in prof.data(loader):
            inputs, targets = (tensor.to(engine.device) for tensor in batch)
            loss = (engine(inputs) - targets).square().mean()
            engine.backward(loss)
            ends = engine.is_gradient_accumulation_boundary()  # before ``step``, which advances the counter
            engine.step()
            if ends:
                prof.step()

    print(f"{engine.global_steps} steps")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir")
    parser.add_argument("--local_rank", type=int, help="DeepSpeed's launcher adds this")
    main(parser.parse_args().run_dir)
