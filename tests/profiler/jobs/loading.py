"""Training on gloo that knows nothing of rankscope. ``KIND RANK SECONDS``: how batches are loaded, and the rank that loads slowly."""

from __future__ import annotations

import multiprocessing
import queue
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

PAUSE_SECONDS = 0.015
BATCH = 4
KIND, RANK, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


def read(slow: bool) -> Tensor:
    """Return a sample, late if ``slow``."""
    if slow:
        time.sleep(PAUSE_SECONDS)  # stall: sample
    return torch.ones(256)


class Samples(Dataset[Tensor]):
    """Samples of a map-style dataset."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return read(self.slow)


class Stream(IterableDataset[Tensor]):
    """Samples of a dataset that only iterates."""

    def __init__(self, slow: bool) -> None:
        self.slow = slow

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield read(self.slow)


def own_batches(slow: bool) -> Iterator[Tensor]:
    """Yield batches without torch's data loader."""
    while True:
        yield torch.stack([read(slow) for _ in range(BATCH)])


def fill(batches: Iterator[Tensor], waiting: queue.Queue[Tensor]) -> None:
    """Load ahead on another thread or in another process."""
    for batch in batches:
        waiting.put(batch)


def fill_in_process(slow: bool, waiting: queue.Queue[Tensor]) -> None:
    """Load ahead in a process of the script's own."""
    fill(own_batches(slow), waiting)


def in_thread(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield batches that a background thread loads."""
    waiting: queue.Queue[Tensor] = queue.Queue(4)
    threading.Thread(target=fill, args=(batches, waiting), daemon=True).start()
    while True:
        yield waiting.get()


def in_pool(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield batches that a thread of a pool loads, one ahead."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches)
        while True:
            batch = coming.result()
            coming = pool.submit(next, batches)
            yield batch


def in_process(slow: bool) -> Iterator[Tensor]:
    """Yield batches of a process of the script's own."""
    context = multiprocessing.get_context("fork")
    waiting = context.Queue(4)
    context.Process(target=fill_in_process, args=(slow, waiting), daemon=True).start()
    while True:
        yield waiting.get()


def batches_of(kind: str, slow: bool) -> Iterator[Tensor]:
    """Return the batches of one kind of loading."""
    samples = Samples(slow)
    if kind == "plain":
        return iter(DataLoader(samples, BATCH))
    if kind == "workers":
        return iter(DataLoader(samples, BATCH, num_workers=2))
    if kind == "persistent":
        return iter(DataLoader(samples, BATCH, num_workers=1, persistent_workers=True, prefetch_factor=4))
    if kind == "spawn":
        return iter(DataLoader(samples, BATCH, num_workers=1, multiprocessing_context="spawn"))
    if kind == "forkserver":
        return iter(DataLoader(samples, BATCH, num_workers=1, multiprocessing_context="forkserver"))
    if kind == "stream":
        return iter(DataLoader(Stream(slow), BATCH, num_workers=1))
    if kind == "thread":
        return in_thread(iter(DataLoader(samples, BATCH)))
    if kind == "thread_workers":
        return in_thread(iter(DataLoader(samples, BATCH, num_workers=1)))
    if kind == "own_thread":
        return in_thread(own_batches(slow))
    if kind == "pool":
        return in_pool(iter(DataLoader(samples, BATCH)))
    if kind == "own_process":
        return in_process(slow)
    return iter(DataLoader(Samples(False), BATCH))


class Host:
    """Stalls of the host that are no loading: a lock that another thread holds, and a log that acknowledges each line."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.lock = threading.Lock()
        self.requests: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.answers: queue.Queue[str] = queue.Queue()
        if kind in ("lock", "log"):
            threading.Thread(target=self.hold if kind == "lock" else self.write, daemon=True).start()

    def hold(self) -> None:
        """Hold the lock most of the time."""
        while True:
            with self.lock:
                time.sleep(4 * PAUSE_SECONDS)
            time.sleep(0.001)

    def write(self) -> None:
        """Acknowledge each line."""
        while True:
            line = self.requests.get()
            time.sleep(4 * PAUSE_SECONDS)
            self.answers.put(line)

    def step(self) -> None:
        """Stall."""
        if self.kind == "lock":
            with self.lock:  # stall: lock
                pass
        if self.kind == "log":
            self.requests.put("step")
            self.answers.get()  # stall: log


def main() -> None:
    """Train."""
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    slow = dist.get_rank() == RANK
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    host = Host(KIND if slow else "none")
    end = time.time() + SECONDS
    for step, batch in enumerate(batches_of(KIND, slow), 1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        host.step()
        if step % 20 == 0:
            over = torch.tensor([float(time.time() > end)])
            dist.broadcast(over, 0)
            if over.item():
                break
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
