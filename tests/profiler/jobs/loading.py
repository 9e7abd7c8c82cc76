"""Training on gloo that knows nothing of rankscope. ``KIND RANK SECONDS``: how batches are loaded, and the slow rank."""

from __future__ import annotations

import multiprocessing
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import torch
import torch.distributed as dist
from group_end import destroy_group
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, IterableDataset

PAUSE_SECONDS = 0.015
BATCH = 4
KIND, RANK, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


class Waiting(Protocol):
    """Queue of batches, of threads or processes."""

    def put(self, item: Tensor, /) -> None:
        """Add a batch."""

    def get(self) -> Tensor:
        """Return the next batch."""
        ...


class SimpleQueue:
    """Queue whose ``get`` is not Python code."""

    def __init__(self) -> None:
        self.items: queue.SimpleQueue[Tensor] = queue.SimpleQueue()

    def put(self, item: Tensor, /) -> None:
        """Add a batch when there is room."""
        while self.items.qsize() > BATCH:
            time.sleep(0.001)
        self.items.put(item)

    def get(self) -> Tensor:
        """Return the next batch."""
        return self.items.get()


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


def fill(batches: Iterator[Tensor], waiting: Waiting) -> None:
    """Load ahead on another thread or in another process."""
    for batch in batches:
        waiting.put(batch)


def limit_life(_worker: int = 0) -> None:
    """End this process after some minutes: a rank that is killed cannot end the processes that load its batches."""
    signal.alarm(400)


def fill_in_process(slow: bool, waiting: Waiting) -> None:
    """Load ahead in a process of the script's own."""
    limit_life()
    fill(own_batches(slow), waiting)


def in_thread(batches: Iterator[Tensor], waiting: Waiting) -> Iterator[Tensor]:
    """Yield batches that a background thread loads."""
    threading.Thread(target=fill, args=(batches, waiting), daemon=True).start()
    while True:
        yield waiting.get()


def with_event(batches: Iterator[Tensor]) -> Iterator[Tensor]:
    """Yield batches that a background thread loads, one ahead, and announces by an event."""
    loaded, wanted = threading.Event(), threading.Event()
    coming: list[Tensor] = []

    def run() -> None:
        for batch in batches:
            coming.append(batch)
            loaded.set()
            wanted.wait()
            wanted.clear()

    threading.Thread(target=run, daemon=True).start()
    while True:
        loaded.wait()
        loaded.clear()
        batch = coming.pop()
        wanted.set()
        yield batch


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


def loaded(slow: bool, **options: Any) -> Iterator[Tensor]:
    """Yield batches of torch's data loader."""
    return iter(DataLoader(Samples(slow), BATCH, worker_init_fn=limit_life, **options))


BATCHES: dict[str, Callable[[bool], Iterator[Tensor]]] = {
    "plain": loaded,
    "workers": lambda slow: loaded(slow, num_workers=2),
    "persistent": lambda slow: loaded(slow, num_workers=1, persistent_workers=True, prefetch_factor=4),
    "spawn": lambda slow: loaded(slow, num_workers=1, multiprocessing_context="spawn"),
    "forkserver": lambda slow: loaded(slow, num_workers=1, multiprocessing_context="forkserver"),
    "stream": lambda slow: iter(DataLoader(Stream(slow), BATCH, num_workers=1)),
    "thread": lambda slow: in_thread(loaded(slow), queue.Queue(4)),
    "simple_queue": lambda slow: in_thread(loaded(slow), SimpleQueue()),
    "thread_workers": lambda slow: in_thread(loaded(slow, num_workers=1), queue.Queue(4)),
    "own_thread": lambda slow: in_thread(own_batches(slow), queue.Queue(4)),
    "pool": lambda slow: in_pool(loaded(slow)),
    "event": lambda slow: with_event(loaded(slow)),
    "own_process": in_process,
    # No slow loading: the host stalls
    "lock": lambda _: in_thread(loaded(False), queue.Queue(4)),
    "log": lambda _: in_thread(loaded(False), queue.Queue(4)),
}


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
    for step, batch in enumerate(BATCHES[KIND](slow), 1):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        host.step()
        if step % 20 == 0:
            over = torch.tensor([float(time.time() > end)])
            dist.broadcast(over, 0)
            if over.item():
                break
    destroy_group()


if __name__ == "__main__":
    main()
