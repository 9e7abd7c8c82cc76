"""Training on gloo that prints digests of what it computed. ``ACCUMULATED``: number of batches of a step."""

from __future__ import annotations

import hashlib
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ACCUMULATED = int(sys.argv[1])

torch.manual_seed(1)
torch.set_num_threads(1)
dist.init_process_group("gloo")
# Dropout and the shuffled data take random numbers: one that is taken elsewhere would change all results.
network = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Tanh(), nn.Dropout(0.2), nn.Linear(32, 1))
model = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(model.parameters())
numbers = torch.randn(640, 16)
dataset = TensorDataset(numbers, numbers.sum(dim=1, keepdim=True))
sampler: DistributedSampler[object] = DistributedSampler(dataset)
losses = hashlib.sha256()
for epoch in range(2):
    sampler.set_epoch(epoch)
    for number, (inputs, targets) in enumerate(DataLoader(dataset, batch_size=8, sampler=sampler), 1):
        ends = number % ACCUMULATED == 0
        with nullcontext() if ends else model.no_sync():
            loss = (model(inputs) - targets).square().mean()
            loss.backward()
        losses.update(loss.detach().numpy().tobytes())
        if ends:
            optimizer.step()
            optimizer.zero_grad()
parameters = hashlib.sha256()
for value in model.state_dict().values():
    parameters.update(value.numpy().tobytes())
# One write, which those of other ranks do not interrupt.
sys.stdout.write(f"rank {dist.get_rank()} losses {losses.hexdigest()} parameters {parameters.hexdigest()}\n")
sys.stdout.flush()
destroy_group()
