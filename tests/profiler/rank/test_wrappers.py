"""Wrappers of torch, checkpoints, groups and optimizers; torch does what it did, which one process shows that they change."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch
from tests.profiler.ranks import PreloadedTorch

from rankscope.profiler.rank.recorder import StepRecorder
from rankscope.profiler.rank.wrappers import checkpoints
from rankscope.profiler.rank.wrappers.ddp import PassEnd
from rankscope.profiler.rank.wrappers.groups import EVERY, OtherGroups
from rankscope.profiler.rank.wrappers.optimizers import StepBoundary
from rankscope.profiler.ring import RingWriter
from rankscope.profiler.settings import RecorderSettings

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


@pytest.mark.slow
def test_torch_behaviour_is_unchanged_by_the_wrappers(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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


JOB = Path(__file__).parents[1] / "jobs" / "frames.py"


@pytest.mark.slow
@pytest.mark.parametrize(("where", "most"), [("host", 24), ("device", 90)])
def test_typical_step_calls_few_recorder_functions(tmp_path: Path, where: str, most: int) -> None:
    command = [sys.executable, str(JOB), str(tmp_path / "run"), where]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    job = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert job.returncode == 0, job.stderr
    assert float(job.stdout.split()[0]) <= most, job.stdout


class CheckpointCounter:
    """Recorder that counts checkpoints."""

    written = 0

    def enter_checkpoint(self) -> bool:
        return True

    def leave_checkpoint(self) -> None:
        self.written += 1


def test_finding_a_module_spec_does_not_import_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "saves_things.py").write_text("def save(): return 'saved'")
    monkeypatch.syspath_prepend(tmp_path)
    recorder = CheckpointCounter()
    finder = checkpoints._Finder({"saves_things": ("save",)}, lambda: recorder)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.util.find_spec("saves_things") is not None
    assert importlib.util.find_spec("saves_things") is not None
    try:
        assert importlib.import_module("saves_things").save() == "saved"
    finally:
        sys.modules.pop("saves_things", None)
    assert recorder.written == 1


def test_pickling_a_tensor_does_not_count_as_a_checkpoint(tmp_path: Path) -> None:
    # As object collectives, Ray and joblib do
    recorder = CheckpointCounter()
    save = checkpoints._reported(torch.serialization.save, lambda: recorder)
    saved_by = torch.storage.UntypedStorage.__reduce__.__globals__["torch"]
    original, saved_by.save = saved_by.save, save
    try:
        assert torch.equal(pickle.loads(pickle.dumps(torch.ones(3))), torch.ones(3))
        assert recorder.written == 0
        torch.save({"weights": torch.ones(3)}, tmp_path / "model.pt")
        assert recorder.written == 1
    finally:
        saved_by.save = original


@dataclass
class Group:
    """Process group that counts its collectives."""

    group_name: str
    issued: int = 0

    def _get_sequence_number_for_group(self) -> int:
        return self.issued


def test_communication_in_other_groups_is_detected_periodically() -> None:
    data, tensor, host = Group("0"), Group("1"), Group("2")
    others = OtherGroups(lambda: [(data, "nccl"), (tensor, "nccl"), (host, "gloo")])
    assert others.communicate(0, [data]), "one look tells nothing"
    data.issued, host.issued = 5, 7
    assert not others.communicate(1, [data]), "DDP's own group, and one in which the host waits"
    tensor.issued = 1
    assert not others.communicate(2, [data]), "it is not looked at in every step"
    assert others.communicate(1 + EVERY, [data])
    assert not others.communicate(1 + 2 * EVERY, [data]), "a checkpoint's collectives need not last"


def test_groups_without_counters_communicate_only_in_the_first_step() -> None:
    others = OtherGroups(lambda: [(object(), "nccl")])
    assert [others.communicate(step, []) for step in range(3)] == [True, False, False]
    none = OtherGroups()
    assert [none.communicate(step, []) for step in range(3)] == [True, False, False]


def test_groups_are_assumed_to_communicate_when_torch_does_not_list_groups() -> None:
    def missing() -> list[tuple[object, str]]:
        raise AttributeError("module has no attribute _world")

    others = OtherGroups(missing)
    assert all(others.communicate(step, []) for step in range(3 * EVERY))


def test_device_own_time_requires_a_pass_that_reduced_gradients() -> None:
    """A replayed CUDA graph runs none, and its waits are inside the graph."""
    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    recorder._others = OtherGroups(list)
    recorder._others.communicate(0, [])
    recorder.step_number = 1
    recorder.gradients.present = True
    assert not recorder._is_signalled()
    pass_end = PassEnd(None, RingWriter().ready)
    pass_end.stamps.append(40)
    assert recorder.enter_backward()
    recorder.leave_backward(pass_end)
    assert recorder._is_signalled()
    recorder.disable("the test is over")


class Optimizer:
    """Simulated optimizer."""


def closings(boundary: StepBoundary, events: Iterable[Optimizer | str]) -> list[int]:
    """Feed events ("backward", or an optimizer that steps); return the positions after which, or before which, steps closed."""
    closed = []
    for position, source in enumerate(events):
        if isinstance(source, str):
            boundary.backward_seen = boundary.backward_since_close = boundary.backward_since_step = True
            continue
        if boundary.before_optimizer(source):
            closed.append(position)
        if boundary.after_optimizer(source):
            closed.append(position)
    return closed


def test_single_optimizer_ends_a_step_at_each_step_call() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", adam] * 3) == [1, 3, 5]


def test_gradient_accumulation_is_one_step() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", "backward", "backward", adam] * 2) == [3, 7]


def test_optimizer_stepping_its_groups_in_turn_makes_one_step() -> None:
    adam = Optimizer()
    assert closings(StepBoundary(), ["backward", adam, adam, adam] * 3) == [1, 5, 9]


def test_chained_optimizers_make_one_step() -> None:
    muon, adam = Optimizer(), Optimizer()
    # In the first cycle the second optimizer is unknown; from then on the last one ends the step.
    assert closings(StepBoundary(), ["backward", muon, adam] * 3) == [1, 5, 8]


def test_gan_step_is_one_cycle_of_both_optimizers() -> None:
    critic, generator = Optimizer(), Optimizer()
    cycle: list[Optimizer | str] = ["backward", critic, "backward", generator]
    assert closings(StepBoundary(), cycle * 3) == [1, 7, 11]


def test_critic_that_steps_again_first_ends_the_current_step() -> None:
    critic, generator = Optimizer(), Optimizer()
    boundary = StepBoundary()
    closings(boundary, ["backward", critic, "backward", generator] * 2)
    assert closings(boundary, ["backward", critic, "backward", critic, "backward", critic, "backward", generator]) == [3, 5, 7]


def test_replacement_optimizer_continues_to_end_steps() -> None:
    boundary = StepBoundary()
    for _ in range(3):  # a new optimizer per epoch, the old one deleted
        optimizer = Optimizer()
        assert closings(boundary, ["backward", optimizer] * 2) == [1, 3]
        del optimizer


def test_training_without_backward_passes_has_steps() -> None:
    evolution = Optimizer()
    assert closings(StepBoundary(), [evolution, evolution]) == [0, 1]
