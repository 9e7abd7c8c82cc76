"""Counts the Python functions of the recorder that are called in a step of a usual DDP loop.

Arguments: the folder to record into, and ``device`` for marks on a simulated device in every step, or ``host``.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from rankscope.profiler.rank.recorder import StepRecorder
from rankscope.profiler.rank.wrappers import attach
from rankscope.profiler.settings import RecorderSettings

STEPS = 160
"""A multiple of the steps from one measurement of the model's input to the next."""


class Clock:
    """Simulated device on which everything takes no time. Its functions do not count."""

    def usable(self) -> bool:
        return True

    def mark(self) -> object:
        return object()

    def again(self, mark: object) -> None:
        pass

    def follow(self) -> bool:
        return False

    def leave(self) -> bool:
        return False

    def ready(self, mark: object) -> bool:
        return True

    def elapsed_us(self, earlier: object, later: object) -> float:
        return 0.0


def batches() -> Iterator[Tensor]:
    while True:
        for (batch,) in DataLoader(TensorDataset(torch.ones(8000, 64)), batch_size=8):
            yield batch


def main(folder: str, where: str) -> None:
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    settings = RecorderSettings(
        run_dir=folder, run_id="r", name="r", start_unix_ns=time.time_ns(), window_steps=0, exporter_url=None
    )
    recorder = StepRecorder(settings, device=lambda _: Clock() if where == "device" else None)
    recorder._sampling._share = 1e9  # every step gets marks, however short it is
    # What is due after a time would be due in every step of a busy machine.
    sys.modules["rankscope.profiler.rank.step_ends"].__dict__["READ_EVERY_NS"] = 10**15
    attach.use(recorder)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = batches()

    def step() -> None:
        batch = next(loader)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    for _ in range(64):
        step()
    functions: Counter[str] = Counter()

    def trace(frame: Any, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and ("rankscope" in code.co_filename or code.co_name == "is_dynamo_compiling"):
            functions[code.co_qualname] += code.co_filename != __file__

    marked = 0
    sys.settrace(trace)
    for _ in range(STEPS):
        step()
        marked += recorder._marks is not None
    sys.settrace(None)
    assert not recorder.off
    assert recorder.step_number == 64 + STEPS
    assert marked == (STEPS if where == "device" else 0)
    print(sum(functions.values()) / STEPS)
    print(*(f"{count / STEPS:6.2f} {name}" for name, count in functions.most_common()), sep="\n", flush=True)
    os._exit(0)


main(*sys.argv[1:])
