"""Run pairs of gloo ranks that train a few steps and exit, one pair after the other; print the count of each exit status.

``exiting.py PAIRS FOLDER [--recorded]``. Each rank has its own processor. There gloo's threads run only when training does not
(SCHED_IDLE), as on an overloaded machine. If a gloo thread still holds tensors of the last collective when the interpreter
ends, torch aborts the process or waits for that thread for ever. The starvation makes this happen in about one of fifty
processes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rankscope.profiler.step import StepProfiler

RANKS = 2
PATIENCE_SECONDS = 15
"""Seconds after which SIGALRM ends a process that hangs."""


def starve(rank: int) -> None:
    """Let gloo's threads run only while this rank's own thread does not."""
    processors = sorted(os.sched_getaffinity(0))
    own_cpus = {processors[rank % len(processors)]}
    for folder in Path("/proc/self/task").iterdir():
        thread = int(folder.name)
        os.sched_setaffinity(thread, own_cpus)
        if "gloo" in (folder / "comm").read_text():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))


def train(rank: int, folder: Path, *, recorded: bool) -> None:
    """Train a few steps; the campaign then observes how the process exits."""
    signal.alarm(PATIENCE_SECONDS)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    profiler: Any = StepProfiler(run_dir=folder / "run") if recorded else nullcontext()
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    starve(rank)
    with profiler:
        for (batch,) in DataLoader(TensorDataset(torch.randn(16 * 12, 64)), batch_size=16):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            if recorded:
                profiler.step()
    dist.destroy_process_group()


def main() -> None:
    """Fork the pairs; a child exits through the end of the script, as user scripts do."""
    parser = argparse.ArgumentParser()
    parser.add_argument("pairs", type=int)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recorded", action="store_true")
    args = parser.parse_args()
    # A first step without ranks imports everything once, before the forks.
    torch.optim.SGD(nn.Linear(1, 1).parameters()).step()
    statuses: Counter[int] = Counter()
    for pair in range(args.pairs):
        folder = args.folder / str(pair)
        folder.mkdir(parents=True)
        children = []
        for rank in range(RANKS):
            child = os.fork()
            if not child:
                train(rank, folder, recorded=args.recorded)
                return
            children.append(child)
        statuses.update(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    print(json.dumps(statuses))


if __name__ == "__main__":
    main()
