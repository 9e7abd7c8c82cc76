"""With the wrappers in place torch behaves as before: tested in one process, which they change permanently."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]

SCRIPT = """
import pickle, sys
from datetime import timedelta
import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict_saver as saver
from torch.autograd import profiler, profiler_legacy
from torch._dynamo.testing import CompileCounter
from rankscope.profiler.step import StepProfiler

def pickles(thing):
    try:
        return pickle.loads(pickle.dumps(thing)) is thing
    except Exception as error:
        return repr(error)

PUBLIC = [
    (torch, "save"), (torch.autograd, "backward"), (torch.nn.Module, "eval"), (torch.nn.Module, "train"),
    (torch.amp.GradScaler, "step"), (profiler.profile, "__exit__"), (profiler.emit_itt, "__enter__"),
    (torch.nn.parallel.DistributedDataParallel, "__init__"), (saver, "save"), (saver, "async_save"),
]
before = [(getattr(owner, name), pickles(getattr(owner, name))) for owner, name in PUBLIC]

class Mine(dist.Work):
    def wait(self, timeout=timedelta(0)):
        self.asked = getattr(self, "asked", 0) + 1
        return super().wait(timeout)

def waited():
    work = Mine()
    try:
        work.wait(timedelta(milliseconds=1))
    except Exception as error:
        return work.asked, type(error).__name__
    return work.asked, None

alone = waited()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=.1)

with StepProfiler(sys.argv[1], window_first=2, window_every=0, window_steps=50, exporter_url=None) as prof:
    def step():
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        prof.step()
    assert all(getattr(owner, name) is not was for (owner, name), (was, _) in zip(PUBLIC, before))
    print("pickles", [name for (owner, name), (_, did) in zip(PUBLIC, before) if pickles(getattr(owner, name)) != did])
    print("waits", alone[0] == 1, waited() == alone)
    for _ in range(3):
        step()
    print("window", prof._recorder._windows.active)
    with profiler.emit_itt():
        step()
    with profiler_legacy.profile():
        step()
    print("window", prof._recorder._windows.active, "off", prof._recorder.off)

    counter = CompileCounter()
    part = torch.nn.Dropout()
    @torch.compile(backend=counter)
    def evaluated(x):
        part.train()
        return part(x)
    for sign in (False, True, False, True):
        prof._recorder.may_evaluate = sign
        evaluated(torch.ones(2))
    print("compiled", counter.frame_count)
"""


def test_torch_does_what_it_did(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    completed = subprocess.run(
        torch_ranks.command(0, "-c", SCRIPT, tmp_path / "run"), capture_output=True, text=True, check=False, timeout=120
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.splitlines() == [
        "pickles []",
        "waits True True",
        "window True",
        "window False off False",
        "compiled 1",
    ], completed.stderr
