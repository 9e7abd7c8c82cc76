"""Rules of the recorder, with events from the test; nothing is trained."""

from __future__ import annotations

import gc
import subprocess
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_words import current_step
from tests.waiting import wait_until

from rankscope.profiler.ring import RingWriter
from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES

pytestmark = pytest.mark.usefixtures("require_torch")


def test_only_waits_after_the_last_gradient_are_inside_the_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.profiler.phases import BACKWARD
    from rankscope.profiler.rank import guard
    from rankscope.profiler.rank import recorder as recorder_module
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.rank.wrappers.ddp import Tail
    from rankscope.profiler.settings import RecorderSettings

    class Gradients:
        present, on_host, closed, lasting = True, True, False, None
        tail = Tail(None, RingWriter().ready)

        def watch(self, roots: object) -> Tail:
            assert roots == "the loss"
            return self.tail

        def passed(self, tail: Tail) -> None:
            assert tail is self.tail

        def close(self) -> None:
            self.closed = True

    at = 1
    monkeypatch.setattr(guard, "now", lambda: at)
    monkeypatch.setattr(recorder_module, "now", lambda: at)
    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    gradients = Gradients()
    recorder.gradients = gradients  # type: ignore[assignment]
    assert recorder.enter_backward()
    tail = recorder.enter_pass("the loss")
    assert tail is gradients.tail
    # Given a wait from 20 to 30, the last gradient at 40, a wait from 50 to 60
    for started, ended in ((20, 30), (50, 60)):
        at = started
        begun = recorder.enter_wait()
        at = ended
        recorder.leave_wait(begun)
    tail.stamps.append(40)
    # When backward returns at 100
    at = 100
    recorder.leave_pass(tail)
    recorder.leave_backward()
    # Then the tail of 60 and the first wait of 10 are blocked, and nothing is counted twice
    step = current_step(recorder, at)
    assert step.blocked_ns is not None
    assert step.blocked_ns[BACKWARD] == 70
    # And when the recorder is switched off, the models are released
    recorder.disable("the test is over")
    assert gradients.closed


def test_the_model_counts_gradients_outside_backward_and_fails_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    from rankscope.profiler.rank import recorder as recorder_module
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    x = torch.ones(4, 3)
    recorder.enter_model((x,), {})
    assert recorder.enter_data(), "a forward pass alone is no sign of training"
    recorder.leave_data()
    recorder.enter_model((x,), {})
    recorder.enter_model(([x, {"y": x}], "text"), {"mask": torch.ones(4)})
    with torch.no_grad():
        recorder.enter_model((x,), {})
    assert recorder.enter_backward()
    recorder.enter_model((x,), {})  # recomputed by a checkpoint
    assert current_step(recorder).work.work == (None, None, 12 + 28)
    # When the recorder itself fails, training goes on and one line says so
    recorder.leave_backward()
    monkeypatch.setattr(recorder_module, "measure", None)
    for _ in range(2):
        recorder.enter_model((x,), {})
    assert recorder.off
    assert capsys.readouterr().err.count("switched itself off (TypeError") == 1


def test_claiming_a_thread_never_raises(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    monkeypatch.delattr(threading, "_DummyThread")  # private: other Python versions may lack it
    recorder.claim()
    assert recorder.off
    assert capsys.readouterr().err.count("switched itself off (AttributeError") == 1


def test_what_is_off_stays_off() -> None:
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    recorder.disable("the test is over")
    recorder.claim()
    recorder.forked()
    recorder.before_optimizer(object())
    assert (recorder.thread, recorder.listening, recorder._begun) == (0, 0, 0)


def test_what_ends_without_a_step_is_off_and_lets_go() -> None:
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.ring import End
    from rankscope.profiler.settings import RecorderSettings

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1), explicit=True)
    callbacks = len(gc.callbacks)
    recorder.begin()
    recorder.close(End.EXIT)
    assert (recorder.off, recorder.listening, recorder._begun) == (True, 0, 0)
    assert len(gc.callbacks) == callbacks


def test_a_model_is_known_whichever_thread_makes_it(capsys: pytest.CaptureFixture[str]) -> None:
    from torch import nn

    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    model: Any = nn.Module()
    model.module = nn.Linear(1, 1)
    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))

    def train() -> None:
        recorder.adopt(model)
        recorder.claim()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert recorder.thread == thread.ident
    assert recorder.gradients.present
    # And for a model that cannot be watched the recorder switches off, else it would count its waiting as own time.
    recorder.adopt(object())  # type: ignore[arg-type]
    assert recorder.off
    assert capsys.readouterr().err.count("switched itself off (AttributeError") == 1


def test_what_cannot_be_written_down_does_not_keep_a_rank_from_recording() -> None:
    from rankscope.profiler.rank.identity import identify
    from rankscope.profiler.settings import RecorderSettings, from_environment

    odd = "caf\udce9"  # a command-line argument that is not UTF-8
    settings = from_environment(
        RecorderSettings(run_dir="/r", run_id=odd, name=odd, launcher=odd, start_unix_ns=1).environment(),
    )
    assert settings is not None
    hello = identify(settings)
    assert msgspec.json.decode(msgspec.json.encode(hello), type=type(hello)) == hello
    assert (hello.run.run_id, hello.run.name, hello.run.launcher) == ("caf?", "caf?", "caf?")


def test_ranks_of_one_kernel_record_the_same_boot() -> None:
    from rankscope.profiler.rank.identity import identify
    from rankscope.profiler.settings import RecorderSettings

    hello = identify(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    assert hello.rank.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.mark.parametrize(
    ("variables", "ranks"),
    [
        ({"LOCAL_WORLD_SIZE": "4", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}, 4),
        ({"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "7"}, 4),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, 2),
        ({}, 8),
    ],
)
def test_the_ranks_of_a_host_are_counted_as_its_launcher_says(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], ranks: int
) -> None:
    from rankscope.profiler.rank.identity import ranks_on_host

    for name in ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert ranks_on_host(1024) == ranks


FORKED = """
import gc, os, sys
import torch
from rankscope.profiler.step import StepProfiler

class Event:
    def __del__(self):
        print("destroyed", flush=True)

class Clock:
    def usable(self): return True
    def mark(self): return Event()
    def again(self, mark): pass
    def follow(self): return False
    def leave(self): return False
    def ready(self, mark): return False
    def elapsed_us(self, earlier, later): return 1.0

from rankscope.profiler.rank.lifecycle import RecorderLifecycle
# Given a rank with marks on a device, some of a step and one of a backward pass
defaults = RecorderLifecycle.__init__.__kwdefaults__
defaults["device"] = lambda optimizer: Clock()
with StepProfiler(run_dir=sys.argv[1], window_steps=0, exporter_url=None) as prof:
    for _ in range(3):
        for batch in prof.data([torch.ones(2)]):
            pass
        prof.step()
    recorder = prof._recorder
    from rankscope.profiler.rank.wrappers.ddp import Tail
    from rankscope.profiler.ring import RingWriter
    for where in ("spare", "hook"):
        tail = Tail(recorder.gradients.mark, RingWriter().ready)
        tail.ready_mark = recorder.gradients.mark()
        if where == "spare":
            recorder.gradients._spare = tail
        else:
            recorder.gradients._hooks[0] = tail.hook
    del tail
    if not (child := os.fork()):
        # When a forked child goes on, and its interpreter ends
        del prof
        gc.collect()
        assert recorder.off
        print("child", flush=True)
        sys.exit()
    os.waitpid(child, 0)
    os._exit(0)
"""


@pytest.mark.slow
def test_no_mark_on_a_device_is_destroyed_in_a_forked_child(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    ended = subprocess.run(torch_ranks.command(0, "-c", FORKED, tmp_path / "run"), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "child\n", "")


MANY = """
import gc, sys, weakref
from rankscope.profiler.step import StepProfiler
hook = sys.excepthook
def left():
    rings = sum("rankscope-ring" in line for line in open("/proc/self/maps"))
    return rings, sys.excepthook is hook
recorders = weakref.WeakSet()
for number in range(3):
    with StepProfiler(run_dir=f"{sys.argv[1]}/{number}", window_steps=0) as prof:
        prof.step()
        prof.step()
        recorders.add(prof._recorder)
        during = left()
    gc.collect()
    print(*during, *left(), len(recorders))
"""


@pytest.mark.slow
def test_a_script_may_record_many_times_without_traces_of_earlier_ones(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    ended = subprocess.run(torch_ranks.command(0, "-c", MANY, tmp_path), capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    # A ring and its page with the exit status while recording; afterwards none, the script's own exception hook, and only the
    # last recorder.
    assert ended.stdout == "2 False 0 True 1\n" * 3


HELPER_KILLED = """
import os, sys, time
from pathlib import Path
from rankscope.profiler.step import StepProfiler
run, spool, times = sys.argv[1:]
with StepProfiler(run_dir=run, spool_dir=spool, window_steps=0) as prof:
    for _ in range(2):
        prof.step()
    recorder, spool = prof._recorder, Path(spool)
    for number in range(int(times)):
        while not list(spool.glob("*.prom")):
            time.sleep(0.05)
        time.sleep(0.5)
        helper = recorder.session._helper
        os.kill(helper.pid, 9)
        os.waitid(os.P_PID, helper.pid, os.WEXITED | os.WNOWAIT)
        if times == "1":
            break
        while recorder.session is not None and recorder.session._helper is helper and not recorder.off:
            prof.step()
            time.sleep(0.05)
    print(recorder.step_number, flush=True)
"""


@pytest.mark.slow
def test_a_helper_killed_at_the_end_is_replaced_and_every_step_is_written(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    # As Ray kills the children of a worker before the worker ends
    (tmp_path / "spool").mkdir()
    command = torch_ranks.command(0, "-c", HELPER_KILLED, tmp_path / "run", tmp_path / "spool", "1")
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ended.stderr == ""
    run = RunReader(tmp_path / "run")
    info = run.rank(0, 0)
    assert info is not None
    assert (info.end_reason, info.disabled_reason) == ("exit", None)
    assert len(list(run.steps(0, 0))) == int(ended.stdout)
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("times", "reason"), [pytest.param("3", None, marks=pytest.mark.full), ("4", "its helper process ended")]
)
def test_a_killed_helper_is_replaced_but_not_for_ever(
    torch_ranks: PreloadedTorch, tmp_path: Path, times: str, reason: str | None
) -> None:
    # When the helper of a rank is killed again and again
    (tmp_path / "spool").mkdir()
    command = torch_ranks.command(0, "-c", HELPER_KILLED, tmp_path / "run", tmp_path / "spool", times)
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    # Then that is reported once (the helpers share the captured stderr, so they are done when that is closed)
    lines = ended.stderr.splitlines()
    assert lines[0] == "rankscope: rank 0: its helper process was killed; another one goes on"
    assert lines[1:] == (
        [] if reason is None else [f"rankscope: rank 0: the recorder switched itself off ({reason}); training goes on"]
    )
    # And the run holds every step of before, between and after, once
    run = RunReader(tmp_path / "run")
    info = run.rank(0, 0)
    assert info is not None
    assert (info.end_reason, info.disabled_reason) == ("exit" if reason is None else "disabled", reason)
    assert [step.step for step in run.steps(0, 0)] == list(range(int(ended.stdout)))
    assert not list((tmp_path / "spool").iterdir())


@pytest.mark.slow
def test_the_ring_takes_nothing_of_the_memory_for_files(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from rankscope.profiler.step import StepProfiler\n"
        "with StepProfiler(run_dir=sys.argv[1], window_steps=0) as prof:\n"
        "    prof.step()\n"
        "    files = [file for file in prof._recorder.session.scratch.rglob('*') if file.is_file()]\n"
        "    print(sum(file.stat().st_size for file in files))\n"
    )
    ended = subprocess.run(torch_ranks.command(0, "-c", script, tmp_path), capture_output=True, text=True, check=True)
    assert int(ended.stdout) < 10_000


MANY_BATCHES = """
import sys
import torch
from rankscope.profiler.step import StepProfiler
with StepProfiler(run_dir=sys.argv[1], window_steps=0, exporter_url=None) as prof:
    for batches in (1, 300, 2000, 1):
        for _ in prof.data([torch.ones(2, 3)] * batches):
            prof.tag("eval" if batches == 300 else "other")
        prof.step()
"""


WAITS_FOR_ALL_CHILDREN = """
import os, subprocess, sys
import torch
from rankscope.profiler.step import StepProfiler
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
waits = {
    "wait": lambda: os.wait(),
    "waitpid": lambda: os.waitpid(-1, 0),
    "waitid": lambda: (os.waitid(os.P_ALL, 0, os.WEXITED).si_pid, 0),
}
with StepProfiler(sys.argv[1], window_steps=0, exporter_url=None) as prof:
    for step in range(20):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        prof.step()
    for name, wait in waits.items():
        children = {os.posix_spawn("/bin/true", ["true"], {}) for _ in range(2)}
        seen = set()
        try:
            while True:
                seen.add(wait()[0])
        except ChildProcessError:
            print(name, seen == children, flush=True)
"""


@pytest.mark.slow
def test_waiting_for_all_children_does_not_wait_for_the_helper(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    command = torch_ranks.command(0, "-c", WAITS_FOR_ALL_CHILDREN, tmp_path / "run")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "wait True\nwaitpid True\nwaitid True\n", "")


CLOSES_ALL_FILES = """
import os, sys
import torch
from rankscope.profiler.step import StepProfiler
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters())
with StepProfiler(sys.argv[1], window_steps=0, exporter_url=None) as prof:
    for step in range(400):
        if step == 3:
            os.closerange(3, 64)
            opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        prof.step()
        __import__("time").sleep(0.005)
for handle in opened:
    os.fstat(handle)
print("all open", flush=True)
"""


@pytest.mark.slow
def test_a_script_that_closes_all_files_keeps_those_that_it_opens_then(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    command = torch_ranks.command(0, "-c", CLOSES_ALL_FILES, tmp_path / "run")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "all open\n"), ended.stderr
    assert ended.stderr.count("the recorder switched itself off (the script has closed its files)") == 1


def ended_run(folder: Path) -> RunReader:
    """Wait until the helper has noted the end of the rank, and return the run."""

    def is_noted() -> bool:
        info = RunReader(folder).rank(0, 0)
        return info is not None and info.end_reason is not None

    wait_until(is_noted)
    return RunReader(folder)


@pytest.mark.slow
def test_a_step_with_thousands_of_events_is_recorded_as_any(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    ended = subprocess.run(torch_ranks.command(0, "-c", MANY_BATCHES, tmp_path), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    run = ended_run(tmp_path)
    steps = list(run.steps(0, 0))
    assert [(step.samples, step.input_elements) for step in steps] == [(2 * n, 6 * n) for n in (1, 300, 2000, 1)]
    assert [step.tags for step in steps] == [["other"], ["eval"], ["other"], ["other"]]
    for step in steps:
        assert step.phases_us.data
        assert sum(step.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(step.wall_us)


def test_a_backward_pass_whose_end_nobody_reported_does_not_last() -> None:
    from rankscope.profiler.rank.lifecycle import IN_BACKWARD
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    class Optimizer:
        """Simulated optimizer."""

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    optimizer = Optimizer()
    # Given a signal handler that raised between the pass and its report, twice
    assert recorder.enter_backward()
    assert recorder.enter_backward()
    # When the optimizer steps
    recorder.before_optimizer(optimizer)
    # Then it is not taken for one that steps inside the pass
    assert not recorder._inside & IN_BACKWARD
    assert not recorder._inner_optimizer
    assert recorder._optimizers.going_on
    recorder.disable("the test is over")


def test_what_is_noted_of_one_step_is_bounded() -> None:
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.ring import HEAD, STEP_WORDS
    from rankscope.profiler.settings import RecorderSettings

    class Optimizer:
        """Simulated optimizer."""

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1), explicit=True)
    recorder.begin()
    optimizer = Optimizer()
    # Given a script that never reports the end of its step
    for _ in range(2 * STEP_WORDS):
        recorder.before_optimizer(optimizer)
        recorder.after_optimizer(optimizer)
    assert recorder._ring.spilled
    assert recorder._ring.at - recorder._ring.header[HEAD] <= STEP_WORDS + 6
    recorder.disable("the test is over")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_batch_of_one_tensor_or_a_nested_one_is_noted_by_its_shape() -> None:
    torch = pytest.importorskip("torch")
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1), explicit=True)
    recorder.begin()
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    for batch in ([torch.ones(8, 3)], torch.ones(2, 5), (torch.ones(3, 1), "label"), [nested], None):
        recorder.enter_data()
        recorder.leave_data(batch)
    assert not recorder.off
    assert current_step(recorder).work.work == (8 + 2 + 3 + 2, 24 + 10 + 3 + 18, None)
    recorder.disable("the test is over")


ACTIVITIES = """
import cProfile, io, sys
import torch
from rankscope.profiler.step import StepProfiler
class Slow(io.BytesIO):
    def write(self, data):
        import time
        time.sleep(0.002)
        return super().write(data)
profile = torch.profiler.profile()
functions = cProfile.Profile()
with StepProfiler(run_dir=sys.argv[1], window_steps=0, exporter_url=None) as prof:
    for step in range(9):
        if step in (1, 2):
            torch.save(torch.ones(2), Slow())
        if step == 2:
            prof.tag("checkpoint")
        if step == 3:
            with torch.no_grad():
                model = torch.nn.Linear(1, 1).eval()
                sum(range(10**5))
                model.train()
        if step in (4, 6):
            profile.__enter__() if step == 4 else functions.enable()
        if step in (5, 7):
            profile.__exit__(None, None, None) if step == 5 else functions.disable()
        prof.step()
"""


@pytest.mark.slow
def test_activities_are_timed_and_the_scripts_own_profilers_tagged(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    ended = subprocess.run(torch_ranks.command(0, "-c", ACTIVITIES, tmp_path), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    run = ended_run(tmp_path)
    steps = list(run.steps(0, 0))
    # Each is on in a part of the step in which it ends, too.
    tags = [[], ["checkpoint"], ["checkpoint"], ["eval"], *[["profiler"]] * 4, []]
    assert [step.tags for step in steps] == tags
    # Only the recorder's own measurement counts: the script that tags a checkpoint may write more of it elsewhere.
    assert [list(step.sections_us) for step in steps] == [[], ["checkpoint"], [], ["eval"], [], [], [], [], []]
    assert 2_000 < steps[1].sections_us["checkpoint"] <= (steps[1].phases_us.between_steps or 0) + 1
    assert 0 < steps[3].sections_us["eval"] <= (steps[3].phases_us.between_steps or 0) + 1


def test_thousands_of_waits_take_few_words_and_their_time_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    from rankscope.profiler.rank import guard
    from rankscope.profiler.rank import recorder as recorder_module
    from rankscope.profiler.rank.recorder import StepRecorder
    from rankscope.profiler.settings import RecorderSettings

    at = 1_000
    monkeypatch.setattr(guard, "now", lambda: at)
    monkeypatch.setattr(recorder_module, "now", lambda: at)
    recorder = StepRecorder(RecorderSettings(run_dir="/r", run_id="r", name="r", start_unix_ns=1))
    assert recorder.enter_backward()
    # Given a step that waits 50,000 times in backward, for 3 ns every 10
    for _ in range(50_000):
        at += 7
        started = recorder.enter_wait()
        at += 3
        recorder.leave_wait(started)
    recorder.leave_backward()
    # Then its waits have become few words, and their time is all there
    step = current_step(recorder, at)
    assert recorder._ring.at < 1_000
    assert step.blocked_ns is not None
    assert sum(step.blocked_ns) == 150_000
    assert step.wall_ns == 500_000
    recorder.disable("the test is over")
