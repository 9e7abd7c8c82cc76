"""Two ranks of DistributedDataParallel over gloo on one GPU. They know nothing of rankscope.

--side-stream   train on a stream of their own, from data that comes on the default stream
--waits N       wait N times more in each step for the other rank
--capture STEP  capture that step with its optimizer in a CUDA graph, without DistributedDataParallel
--workers N     load data in N processes that are forked while training goes on
--late          rank 1 is late in each backward pass
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

WIDTH = 512
LATE_SECONDS = 0.02

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--device", default="cuda:0")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--side-stream", action="store_true")
parser.add_argument("--waits", type=int, default=0)
parser.add_argument("--capture", type=int, default=-1)
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--late", action="store_true")
args = parser.parse_args()
device = torch.device(args.device)
made: list[int] = []


def count_events() -> None:
    """Count the CUDA events that this process makes."""
    make = torch.cuda.Event.__new__

    def counted(kind: type[torch.cuda.Event], *arguments: object, **named: object) -> torch.cuda.Event:
        event: torch.cuda.Event = make(kind, *arguments, **named)  # type: ignore[no-untyped-call]
        made.append(1)
        return event

    torch.cuda.Event.__new__ = counted  # type: ignore[method-assign,assignment]


def batches() -> Iterator[Tensor]:
    data = TensorDataset(torch.ones(64 * 8, WIDTH))
    while True:
        for (batch,) in DataLoader(data, batch_size=64, num_workers=args.workers):
            yield batch.to(device, non_blocking=True)


def captured(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
    """Capture a whole step, with its optimizer, and run it once."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        model(batch).square().mean().backward()
        optimizer.step()
    graph.replay()


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, WIDTH, device=device) for _ in range(8)]
    if args.late and dist.get_rank() == 1:
        # The gradient of the first layer is the last to be ready.
        layers[0].weight.register_hook(lambda _gradient: time.sleep(LATE_SECONDS))  # type: ignore[no-untyped-call]
    model: nn.Module = nn.Sequential(*layers)
    if args.capture < 0:
        model = DistributedDataParallel(model)
    on_cuda = device.type == "cuda"
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, capturable=on_cuda)
    if on_cuda:
        count_events()
    side = torch.cuda.Stream(device) if args.side_stream and on_cuda else None  # type: ignore[no-untyped-call]
    small, losses = torch.ones(8), []
    loss: Tensor | None = None
    for step, batch in zip(range(args.steps), batches(), strict=False):
        on_side_stream: AbstractContextManager[object] = nullcontext() if side is None else torch.cuda.stream(side)
        if side is not None:
            side.wait_stream(torch.cuda.default_stream(device))
        with on_side_stream:
            if step == args.capture and on_cuda:
                # The loss keeps the graph of the step before, whose gradients are accumulated on another stream.
                loss = None
                captured(model, optimizer, batch)
                continue
            optimizer.zero_grad(set_to_none=args.capture < 0)
            loss = model(batch).square().mean()
            for _ in range(args.waits):
                dist.all_reduce(small, async_op=True).wait()
            loss.backward()
            optimizer.step()
        losses.append(loss.detach())
    result = json.dumps({"rank": dist.get_rank(), "loss": float(losses[-1]), "cuda_events": len(made)})
    # In one write: ranks share the pipe, and unbuffered output would write the end of the line by itself.
    os.write(sys.stdout.fileno(), f"{result}\n".encode())
    dist.barrier()
    dist.destroy_process_group()


main()
