"""A DistributedDataParallel training on gloo that keeps its own log: step, loss, wall time and resident memory, a line per step.

``--fault KIND`` plants a fault in the script itself; see ``FAULTS``. The script does not use rankscope.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import profiler
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FAULTS = ("none", "exception", "keyboard", "sigterm", "oom", "fork", "profiler_raises", "foreign_profiler")


def resident_kib() -> int:
    """Return the resident memory of this process in KiB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def strike(kind: str, step: int, at: int) -> None:
    """Plant the fault ``kind`` once, before the optimizer of step ``at``."""
    if step != at:
        return
    if kind == "exception":
        raise RuntimeError("planted")
    if kind == "keyboard":
        os.kill(os.getpid(), signal.SIGINT)
    if kind == "sigterm":
        os.kill(os.getpid(), signal.SIGTERM)
    if kind == "oom":
        with contextlib.suppress(RuntimeError):
            torch.empty(1 << 60)
    if kind == "fork":
        for leave in (os._exit, sys.exit):  # sys.exit also runs the atexit handlers
            child = os.fork()
            if child == 0:
                with contextlib.suppress(SystemExit):
                    leave(0)
                os._exit(0)
            os.waitpid(child, 0)


def broken(*_args: object, **_kwargs: object) -> None:
    """Stand-in for torch's profiler that always raises ``RuntimeError``."""
    raise RuntimeError("no profiler today")


def main() -> None:
    """Train with the planted fault."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.01, help="seconds of every step")
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--at", type=int, default=100)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if args.fault == "profiler_raises":
        for name in ("_enable_profiler", "_disable_profiler"):
            setattr(profiler, name, broken)
            setattr(torch.autograd, name, broken)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = DataLoader(TensorDataset(torch.randn(8 * args.steps, 64)), batch_size=8)
    foreign = torch.profiler.profile() if args.fault == "foreign_profiler" else contextlib.nullcontext()
    log = os.open(args.journal / f"rank-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    batch: Tensor
    with foreign:
        mark = time.perf_counter()
        for step, (batch,) in enumerate(batches):
            time.sleep(args.pause)
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            if rank == 1:
                strike(args.fault, step, args.at)
            optimizer.step()
            now = time.perf_counter()
            os.write(log, f"{step} {loss.item().hex()} {(now - mark) * 1e6:.0f} {resident_kib()} {os.getpid()}\n".encode())
            mark = now
    # Gloo may hang when it is destroyed while a thread of its own still holds the last gradients (pytorch issue 190489).
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
