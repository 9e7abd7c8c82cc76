"""Snapshot of a GPU's memory when the rank runs out of it: what is allocated there, and which lines of Python allocated it."""

from __future__ import annotations

import os
import pickle
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import torch

from rankscope.base.atomic_files import replacing
from rankscope.profiler.rank.guard import print_line
from rankscope.profiler.rank.identity import own_rank
from rankscope.runs.paths import memory_dir

ENTRIES: Final = 100_000
"""Number of latest allocations and frees that torch keeps, with the Python stack of each."""
INTERVAL_SECONDS: Final = 60.0
"""Least time between two snapshots: a script that looks for the largest batch catches the error again and again."""


def record_memory(run_dir: str) -> None:
    """Record allocations as soon as this process uses CUDA, and write a snapshot whenever memory runs out. Never raises.

    Each snapshot replaces the process's one before. Torch's functions for this have no public name, except in its documentation
    (https://docs.pytorch.org/docs/stable/torch_cuda_memory.html).
    """
    with suppress(Exception):
        # Not at once: it would initialise CUDA before the script has chosen its device, and before it forks.
        torch.cuda._lazy_call(lambda: _begin(Path(run_dir)))  # type: ignore[no-untyped-call]  # noqa: SLF001


def _begin(run_dir: Path) -> None:
    last = -INTERVAL_SECONDS

    def out_of_memory(_device: int, _wanted: int, _total: int, _free: int) -> None:
        nonlocal last
        if time.monotonic() - last >= INTERVAL_SECONDS:
            try:
                write_snapshot(run_dir)
            except Exception as error:  # noqa: BLE001  # the script is to see its own error
                print_line(f"no snapshot of GPU memory: {type(error).__name__}: {error}; training goes on")
            last = time.monotonic()

    try:
        torch.cuda.memory._record_memory_history(max_entries=ENTRIES, stacks="python")  # noqa: SLF001
        torch._C._cuda_attach_out_of_memory_observer(out_of_memory)  # type: ignore[attr-defined]  # noqa: SLF001
    except Exception as error:  # noqa: BLE001  # an error here would be raised by the script's first use of CUDA
        print_line(f"GPU memory is not recorded: {type(error).__name__}: {error}; training goes on")


def write_snapshot(run_dir: Path) -> None:
    """Write torch's snapshot as ``memory/rank-RRRRR-PID.pickle``. Raises ``OSError`` if the folder cannot be written."""
    snapshot = torch.cuda.memory._snapshot()  # noqa: SLF001
    folder = memory_dir(run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{own_rank():05d}-{os.getpid()}.pickle"
    with replacing(path, shared=True) as file:
        pickle.dump(snapshot, file)
