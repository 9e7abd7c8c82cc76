"""Training on gloo that knows nothing of rankscope. ``LAYOUT FAULT STEPS``.

Rank 1 has the fault: ``enlarged``, its batches grow after the loader; ``slower``, it computes several times on equal
batches. Every step accumulates two batches, and every fourth evaluates without gradients.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

LAYOUT, FAULT, STEPS = sys.argv[1], sys.argv[2], int(sys.argv[3])
WIDTH, ROWS, GROWTH = 128, 64, 4
"""GROWTH: of the faulty rank's batches, or of its computation."""


class Model(nn.Module):
    """A few layers, computed ``repeats`` times."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)) for _ in range(4))
        self.repeats = repeats

    def forward(self, inputs: list[Tensor], *, scale: Tensor) -> Tensor:
        """Return the loss of a batch."""
        loss = torch.zeros(())
        for _ in range(self.repeats):
            x = inputs[0] * scale
            for layer in self.layers:
                x = layer(x)
            loss = loss + x.square().mean()
        return loss


def wrapped(model: Model) -> nn.Module:
    """Return the model in the layout."""
    kind, _, compiled = LAYOUT.partition("+")
    if kind.startswith("fsdp"):
        for number, layer in enumerate(model.layers):
            if kind == "fsdp2":
                fully_shard(layer)
            else:
                model.layers[number] = FullyShardedDataParallel(layer, device_id=torch.device("cpu"))
        result: nn.Module = model
        if kind == "fsdp2":
            fully_shard(model)
        else:
            result = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        result = DistributedDataParallel(model)
    return torch.compile(result, backend="eager") if compiled else result  # type: ignore[return-value]


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    fault = FAULT if dist.get_rank() == 1 else "none"
    model = wrapped(Model(GROWTH if fault == "slower" else 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    scale = torch.ones(1)
    batches = iter(DataLoader(TensorDataset(torch.ones(ROWS * STEPS * 2, WIDTH)), batch_size=ROWS))
    for step in range(STEPS):
        optimizer.zero_grad()
        for last in (False, True):
            (batch,) = next(batches)
            if fault == "enlarged":
                batch = batch.repeat(GROWTH, 1)
            unsynced = LAYOUT == "ddp" and not last
            with model.no_sync() if unsynced else nullcontext():  # type: ignore[operator]
                model([batch], scale=scale).backward()
        if step % 4 == 0:
            with torch.no_grad():
                model([torch.ones(1, WIDTH)], scale=scale)
        optimizer.step()
    if "+" in LAYOUT:
        from torch._dynamo.utils import counters

        print(f"graphs {counters['stats']['unique_graphs']} breaks {sum(counters['graph_break'].values())}", flush=True)
    destroy_group()


if __name__ == "__main__":
    main()
