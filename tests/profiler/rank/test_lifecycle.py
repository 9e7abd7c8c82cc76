"""Scripts that record, in processes of their own: their helpers, children and files, and many recordings in one process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.profiler.ranks import PreloadedTorch
from tests.profiler.recorded_runs import info_of
from tests.waiting import wait_until

from rankscope.runs.reader import RunReader
from rankscope.runs.records import PHASES

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("require_torch")]


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
    from rankscope.profiler.rank.wrappers.ddp import PassEnd
    from rankscope.profiler.ring import RingWriter
    for where in ("spare", "hook"):
        pass_end = PassEnd(recorder.gradients.mark, RingWriter().ready)
        pass_end.ready_mark = recorder.gradients.mark()
        if where == "spare":
            recorder.gradients._spare = pass_end
        else:
            recorder.gradients._hooks[0] = pass_end.hook
    del pass_end
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


def test_forked_child_destroys_no_device_marks(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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


def test_repeated_recordings_leave_no_resources_behind(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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


def test_a_helper_killed_at_the_end_is_replaced_and_every_step_is_written(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    # As Ray kills the children of a worker before the worker ends
    (tmp_path / "spool").mkdir()
    command = torch_ranks.command(0, "-c", HELPER_KILLED, tmp_path / "run", tmp_path / "spool", "1")
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert ended.stderr == ""
    run = RunReader(tmp_path / "run")
    info = info_of(run)
    assert (info.end_reason, info.disabled_reason) == ("exit", None)
    assert len(list(run.steps(0, 0))) == int(ended.stdout)
    assert not list((tmp_path / "spool").iterdir())


def test_repeatedly_killed_helper_disables_the_recorder(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    command = torch_ranks.command(0, "-c", HELPER_KILLED, tmp_path / "run", tmp_path / "spool", "4")
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    # Then that is reported once (the helpers share the captured stderr, so they are done when that is closed)
    reason = "its helper process ended"
    assert ended.stderr.splitlines() == [
        "rankscope: rank 0: its helper process was killed; another one goes on",
        f"rankscope: rank 0: the recorder switched itself off ({reason}); training goes on",
    ]
    # And the run holds every step of before, between and after, once
    run = RunReader(tmp_path / "run")
    info = info_of(run)
    assert (info.end_reason, info.disabled_reason) == ("disabled", reason)
    assert [step.step for step in run.steps(0, 0)] == list(range(int(ended.stdout)))
    assert not list((tmp_path / "spool").iterdir())


def test_ring_uses_no_space_of_the_scratch_filesystem(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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


def test_waiting_for_all_children_ignores_the_helper(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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


def test_script_that_closes_all_files_keeps_files_opened_later(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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


def test_step_with_thousands_of_events_is_recorded_completely(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
    ended = subprocess.run(torch_ranks.command(0, "-c", MANY_BATCHES, tmp_path), capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    run = ended_run(tmp_path)
    steps = list(run.steps(0, 0))
    assert [(step.samples, step.input_elements) for step in steps] == [(2 * n, 6 * n) for n in (1, 300, 2000, 1)]
    assert [step.tags for step in steps] == [["other"], ["eval"], ["other"], ["other"]]
    for step in steps:
        assert step.phases_us.data
        assert sum(step.phases_us.get(phase) or 0 for phase in PHASES) == pytest.approx(step.wall_us)


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


def test_activities_are_timed_and_foreign_profilers_are_tagged(torch_ranks: PreloadedTorch, tmp_path: Path) -> None:
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
