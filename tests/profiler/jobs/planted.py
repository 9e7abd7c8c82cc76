"""DDP over gloo with a planted cause of slowness. Arguments: its name, the number of steps."""

from __future__ import annotations

import cProfile
import gc
import io
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

PAUSE = 0.03
CAUSE, STEPS = sys.argv[1], int(sys.argv[2])
SIZE = 8 if CAUSE == "profiler" else 48


class Model(nn.Module):
    """Convolutions, run several times over where asked."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.block = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 2)
        self.repeats = repeats

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the scores of a batch."""
        for _ in range(self.repeats):
            batch = torch.relu(self.block(batch))
        scores: torch.Tensor = self.head(batch.mean((2, 3)))
        return scores


class SlowData(IterableDataset[torch.Tensor]):
    """One batch, late."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        time.sleep(PAUSE)
        yield torch.randn(8, 4, SIZE, SIZE)


def dispatch(batch: torch.Tensor) -> None:
    """Load a batch on rank 0 and send it to the others."""
    if dist.get_rank() == 0:
        batch.copy_(next(iter(DataLoader(SlowData(), batch_size=None))))
    dist.broadcast(batch, 0)


def save_scalar() -> None:
    """Pickle a scalar, which takes no time."""
    torch.save(torch.tensor(1.0), io.BytesIO())


def save_scalar_and_sleep() -> None:
    """Pickle a scalar, and pause."""
    save_scalar()
    time.sleep(PAUSE)


def evaluate(model: nn.Module, batch: torch.Tensor) -> None:
    """Evaluate for some 200 ms."""
    with torch.no_grad():
        model.eval()
        for _ in range(10):
            model(batch)
            time.sleep(0.02)
        model.train()


def call_functions() -> None:
    """Call many Python functions."""
    sum(map(lambda number: number + 1, range(40_000)))  # noqa: C417  # calls are what a profiler makes slow


def profiler() -> AbstractContextManager[object]:
    """Return the profiler of rank 0."""
    if CAUSE == "profiler":
        return torch.profiler.profile(with_stack=True, record_shapes=True, profile_memory=True)
    return cProfile.Profile() if CAUSE == "cprofile" else nullcontext()


def train(model: DistributedDataParallel, planted: bool) -> None:
    """Train; ``planted``: the cause is on this rank, where it is one of single ranks."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(8, 4, SIZE, SIZE)
    heap = [[number] for number in range(400_000)] if CAUSE == "gc" else []
    after_forward: dict[str, Callable[[], object]] = {"sleep": lambda: time.sleep(PAUSE), "cprofile": call_functions}
    after_step: dict[str, Callable[[], object]] = {
        "sleep": save_scalar,
        "sleep_between": save_scalar_and_sleep,
    }
    nothing = lambda: None  # noqa: E731
    for step in range(STEPS):
        if CAUSE == "dispatch":
            dispatch(batch)
        time.sleep(0.005)
        scores = model(batch)
        if planted or CAUSE == "cprofile":
            after_forward.get(CAUSE, nothing)()
        scores.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if planted:
            after_step.get(CAUSE, nothing)()
        if CAUSE == "evaluation" and step % 4 == 0:
            evaluate(model, batch)
        if heap and step % dist.get_world_size() == dist.get_rank():
            gc.collect()


def main() -> None:
    """Run the job."""
    torch.set_num_threads(1)
    gc.disable()
    dist.init_process_group("gloo")
    planted = dist.get_rank() == 0
    repeats = {"block": 10 if planted else 1, "profiler": 100}.get(CAUSE, 1)
    model = DistributedDataParallel(Model(repeats))
    with profiler() if planted else nullcontext():
        train(model, planted)
    destroy_group()


main()
