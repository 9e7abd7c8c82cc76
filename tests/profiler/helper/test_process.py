"""Helper as a real process, fed through a real ring, without torch, and its tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.profiler.handovers import handover_of
from tests.profiler.recorded_runs import info_of
from tests.ring_step import put_step, ring_in
from tests.waiting import wait_until

from rankscope.analysis.engine import analyze
from rankscope.base.process import JOB_SIGNALS
from rankscope.profiler.handover import HANDOVER_FILE, Handover, MessageKind, ProfiledWindow
from rankscope.profiler.helper.tasks import HelperTask, HelperTasks
from rankscope.profiler.ring import CAPACITY, EVENT_NS, STEP_WORDS, TAIL, EndState
from rankscope.profiler.scratch import hold, recorded_ranks, spooled
from rankscope.runs.paths import rank_dir
from rankscope.runs.reader import RunReader

pytestmark = pytest.mark.slow  # each starts real processes


class Rank:
    """Simulated rank: a scratch folder, a ring, and a real helper."""

    def __init__(self, scratch: Path, handover: Handover) -> None:
        scratch.mkdir()
        self.scratch = scratch
        self.ring = ring_in(scratch / "ring")
        (scratch / HANDOVER_FILE).write_bytes(msgspec.json.encode(handover))
        with (scratch / "ring").open("r+b") as file:
            command = [sys.executable, "-P", "-m", "rankscope.profiler.helper", str(scratch), str(file.fileno())]
            self.helper = subprocess.Popen(
                command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, pass_fds=[file.fileno()]
            )

    def put(self, *numbers: int) -> None:
        """Record steps."""
        for number in numbers:
            assert put_step(self.ring, number)

    def put_empty_window(self, number: int) -> None:
        """Record a profiled window of one step without events."""
        trace = self.scratch / f"window-{number}.json"
        trace.write_text('{"traceEvents": []}')
        self.put_window(ProfiledWindow(str(trace), number, number))

    def put_window(self, window: ProfiledWindow) -> None:
        """Record a profiled window."""
        self.ring.put(MessageKind.WINDOW, msgspec.json.encode(window))
        self.ring.publish()

    def end(self) -> str:
        """End the rank; return the output of its helper."""
        _, output = self.helper.communicate(timeout=60)
        self.ring.close()
        assert self.helper.returncode == 0
        assert not self.scratch.exists()
        return output


@pytest.mark.parametrize(
    ("end", "reason"),
    [(EndState.EXIT, "exit"), (EndState.INTERRUPTED, "interrupted"), (EndState.CRASH, "crash"), (EndState.SILENT, "killed")],
)
def test_records_reach_the_disk_and_the_end_reason_is_recorded(tmp_path: Path, end: EndState, reason: str) -> None:
    (tmp_path / "spool").mkdir()
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run", spool=tmp_path / "spool"))
    rank.put(*range(50))
    rank.ring.set_cost(5000)
    rank.ring.set_end(end)
    words = rank.ring.at
    assert rank.end() == ""
    run = RunReader(tmp_path / "run")
    assert [row.step for row in run.steps(0, 0)] == list(range(50))
    info = info_of(run)
    assert (info.end_reason, info.dropped_records) == (reason, 0)
    assert info.recorder_cost_us == 5.0 + words * EVENT_NS / 1000
    # The last metrics of a vanished rank stay: an alert needs their age.
    assert len(list((tmp_path / "spool").iterdir())) == (end is EndState.SILENT)


RANK = "import subprocess, sys; subprocess.Popen(sys.argv[2:], stdin=int(sys.argv[1]), pass_fds=[int(sys.argv[-1])]); input()"


def test_a_helper_ends_with_its_rank_though_a_child_keeps_the_pipe(tmp_path: Path) -> None:
    scratch, (pipe, kept_by_child) = tmp_path / "scratch", os.pipe()
    scratch.mkdir()
    ring = ring_in(scratch / "ring")
    (scratch / HANDOVER_FILE).write_bytes(msgspec.json.encode(handover_of(tmp_path / "run")))
    with (scratch / "ring").open("r+b") as file:
        helper = [sys.executable, "-P", "-m", "rankscope.profiler.helper", str(scratch), str(file.fileno())]
        command, fds = [sys.executable, "-c", RANK, str(pipe), *helper], [pipe, file.fileno()]
        rank = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=fds)
    assert put_step(ring, 0)
    wait_until((rank_dir(tmp_path / "run", 0, 0) / "rank.json").exists)
    ring.set_end(EndState.EXIT)
    rank.communicate(b"\n")
    try:
        wait_until(lambda: not scratch.exists(), timeout=60)
    finally:
        for descriptor in (pipe, kept_by_child):
            os.close(descriptor)
    ring.close()
    assert info_of(tmp_path / "run").end_reason == "exit"


def test_helper_survives_signals_of_the_job(tmp_path: Path) -> None:
    # Slurm's --signal=USR1@90 reaches every process of the job
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run"))
    rank.put(0)
    wait_until((rank_dir(tmp_path / "run", 0, 0) / "rank.json").exists)
    for number in JOB_SIGNALS:
        rank.helper.send_signal(number)
    rank.put(1)
    rank.ring.set_end(EndState.EXIT)
    assert rank.end() == ""
    assert [row.step for row in RunReader(tmp_path / "run").steps(0, 0)] == [0, 1]


def test_a_live_rank_has_metrics_and_records(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run", spool=spool))
    rank.put(0, 1, 2)
    rank.ring.set_disabled("a reason")

    def published() -> bool:
        text = "".join(path.read_text() for path in spool.glob("*.prom"))
        values = {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}
        return values.get("rank_steps_total") == 3 and values["rank_recorder_disabled"] == 1

    wait_until(published)
    wait_until(lambda: len(list(RunReader(tmp_path / "run").steps(0, 0))) == 3)
    rank.end()


def test_unwritable_folder_is_logged_once_and_retried(tmp_path: Path) -> None:
    # Given a run folder whose path is taken by a file
    (tmp_path / "run").touch()
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run"))
    rank.put(0, 1)
    assert rank.helper.stderr is not None
    assert "cannot write to" in rank.helper.stderr.readline()
    # When the path becomes free
    (tmp_path / "run").unlink()
    rank.put(2)
    # Then nothing is missing, and nothing more was reported
    assert rank.end() == ""
    assert [row.step for row in RunReader(tmp_path / "run").steps(0, 0)] == [0, 1, 2]


def test_invalid_ring_entry_is_dropped_and_counted(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run", spool=spool))
    rank.put(0)
    for kind in 2 * (MessageKind.DEVICE, MessageKind.WINDOW):
        assert rank.ring.put(kind, b"\xc1")  # which are no times, and no JSON
    rank.put(1)
    wait_until(
        lambda: any(
            'rank_recorder_dropped_total{run="test",rank="0",slot="0"} 4' in path.read_text() for path in spool.glob("*.prom")
        )
    )
    rank.ring.set_end(EndState.EXIT)
    output = rank.end()
    assert output.count("\n") == 1
    assert "1 record(s) dropped" in output
    run = RunReader(tmp_path / "run")
    assert [row.step for row in run.steps(0, 0)] == [0, 1]
    info = info_of(run)
    assert (info.dropped_records, info.end_reason) == (4, "exit")


def test_end_of_a_rank_does_not_recreate_a_removed_run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run"))
    rank.put(0)
    wait_until((tmp_path / "run" / "attempts" / "000" / "ranks" / "00000" / "steps-000000.npy").exists)
    (tmp_path / "run").rename(tmp_path_factory.mktemp("gone") / "run")  # at once, as the helper may be writing
    rank.ring.set_end(EndState.EXIT)
    assert rank.end().count("was removed") == 1
    assert not any(tmp_path.iterdir())


def test_launcher_finds_recorded_ranks_and_spooled_files(tmp_path: Path) -> None:
    # Given a launcher's folder
    job, spool = tmp_path / "job", tmp_path / "spool"
    job.mkdir()
    spool.mkdir()
    handle = hold(job)
    try:
        assert (recorded_ranks(job), spooled(job)) == (frozenset(), [])
        # When a rank in it has a place in the run and vanishes
        rank = Rank(job / "rank0", handover_of(tmp_path / "run", spool=spool))
        rank.put(0)
        rank.end()
    finally:
        os.close(handle)
    # Then the launcher knows both
    assert recorded_ranks(job) == {(0, 0)}
    assert spooled(job) == [entry.name for entry in spool.iterdir()] != []


STUCK = """
import os, time
from pathlib import Path
from rankscope.runs import segment_writer
append = segment_writer.JsonLinesWriter.append
def stuck(self, *records):
    while not os.path.exists("GO"):
        time.sleep(0.02)
    append(self, *records)
segment_writer.JsonLinesWriter.append = stuck
"""


def test_hanging_filesystem_delays_only_the_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given a folder in which a write blocks until the test releases it
    (tmp_path / "sitecustomize.py").write_text(STUCK.replace("GO", str(tmp_path / "go")))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "spool").mkdir()
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run", spool=tmp_path / "spool"))
    # When more steps come than the ring holds, the ring is emptied all the same
    count = CAPACITY // 10
    for number in range(count):
        wait_until(lambda: rank.ring.at + 3 * STEP_WORDS - rank.ring.header[TAIL] <= CAPACITY)
        assert put_step(rank.ring, number)
    rank.ring.set_end(EndState.EXIT)
    # And when the disk answers again after the rank's end, everything is there
    assert rank.helper.stdin is not None
    rank.helper.stdin.close()
    (tmp_path / "go").touch()
    rank.helper.stdin = None
    assert rank.end() == ""
    run = RunReader(tmp_path / "run")
    assert [row.step for row in run.steps(0, 0)] == list(range(count))
    info = info_of(run)
    assert info.end_reason == "exit"


@pytest.mark.parametrize("keep", [1, -30])
def test_window_with_a_damaged_trace_is_dropped_and_logged_in_one_line(tmp_path: Path, keep: int) -> None:
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run"))
    rank.put(0)
    trace = rank.scratch / "window.json"
    trace.write_text(one_step_trace(5)[:keep])
    rank.put_window(ProfiledWindow(str(trace), 5, 7))
    rank.ring.set_end(EndState.EXIT)
    output = rank.end()
    assert output.count("\n") == 1
    assert "a profiler window was left out" in output
    assert not list(RunReader(tmp_path / "run").windows(0, 0))


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("import sys; sys.modules['numpy'] = None", "numpy"),
        (
            "import rankscope.analysis.trace.columns as t\ndef odd(_, **_options): raise KeyError('odd')\nt.read_trace = odd",
            "KeyError: 'odd'",
        ),
    ],
)
def test_irreducible_window_is_counted_as_missed_and_steps_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, reason: str
) -> None:
    # Given a helper that cannot reduce any trace
    (tmp_path / "sitecustomize.py").write_text(fault)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run"))
    # When two windows come between the steps
    rank.put(0)
    for number in (1, 2):
        rank.put_empty_window(number)
    rank.put(1)
    rank.ring.set_end(EndState.EXIT)
    # Then it reports that once, counts them, and continues to the end
    output = rank.end()
    assert output.count("\n") == 1
    assert reason in output
    run = RunReader(tmp_path / "run")
    assert [row.step for row in run.steps(0, 0)] == [0, 1]
    info = info_of(run)
    assert (info.end_reason, info.missed_windows) == ("exit", 2)


def one_step_trace(number: int) -> str:
    """Return a trace as torch writes it, of a step of 1 ms that is one operator."""
    base = {"ph": "X", "pid": 1, "tid": 1, "ts": 1000.0, "dur": 1000.0}
    events = [
        base | {"cat": "user_annotation", "name": f"ProfilerStep#{number}"},
        base | {"cat": "cpu_op", "name": "aten::mm"},
    ]
    return msgspec.json.encode({"traceEvents": events, "baseTimeNanoseconds": 0}).decode()


def test_window_with_a_too_long_step_keeps_the_trace_and_the_reason(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rank = Rank(tmp_path / "scratch", handover_of(run))
    # given steps of 1 ms, a profiled one of 1.5 ms, and then one of 9 ms
    rank.put(*range(30))
    for number, wall_ns in ((30, 1_500_000), (31, 9_000_000)):
        assert put_step(rank.ring, number, wall_ns=wall_ns, profiled=True)
        trace = rank.scratch / f"window-{number:09d}.json"
        trace.write_text(one_step_trace(number))
        rank.put_window(ProfiledWindow(str(trace), number, number))
    rank.ring.set_end(EndState.EXIT)
    assert rank.end() == ""
    # then the second alone is kept, its record gives the reason
    reader = RunReader(run)
    first, second = reader.windows(0, 0)
    assert first.looked_wrong is None
    assert second.looked_wrong is not None
    assert second.looked_wrong.startswith("it took 9.0 ms; steps around it 1.0 ms")
    assert [path.name for path in rank_dir(run, 0, 0).joinpath("traces").iterdir()] == ["window-000000031.json.gz"]
    # and the analysis reports it, and where it is
    (output,) = (text for text in analyze([run]).source.warnings if "looked wrong" in text)
    assert "step 31 of rank 0: it took 9.0 ms" in output
    assert output.endswith("raw traces are in attempts/000/ranks/00000/traces")


ENDLESS = """
import time
from rankscope.profiler.helper.writing import trace_reducer
finish = trace_reducer.TraceReducer.finish
trace_reducer.TraceReducer.finish = lambda self, _seconds: finish(self, 0.1)
trace_reducer._reduce = lambda _path: time.sleep(600)
"""


def test_windows_unreduced_at_the_end_are_counted_and_the_end_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(ENDLESS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    rank = Rank(tmp_path / "scratch", handover_of(tmp_path / "run"))
    rank.put(0)
    for number in (1, 2):
        rank.put_empty_window(number)
    rank.ring.set_end(EndState.EXIT)
    assert "gave up reducing 2 profiled windows" in rank.end()
    info = info_of(tmp_path / "run")
    assert (info.end_reason, info.missed_windows) == ("exit", 2)


def test_helper_never_loads_torch_and_loads_other_libraries_on_demand() -> None:
    script = (
        "import sys; import rankscope.profiler.helper.__main__;"
        "print([name for name in ('opentelemetry', 'http.client', 'numpy', 'torch') if name in sys.modules]);"
        "import rankscope.analysis.collectives.windows, rankscope.analysis.trace.columns;"
        "print([name for name in sys.modules if name.split('.')[0] == 'torch'])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "[]\n[]\n"


class Failing(HelperTask):
    """Task that fails at its first tick, and optionally at its end."""

    def __init__(self, *, at_end: bool) -> None:
        self.at_end = at_end
        self.ends = list[bool]()

    def tick(self) -> None:
        """Fail."""
        raise ValueError("bad day")

    def end(self, *, vanished: bool) -> None:
        """Record the end."""
        self.ends.append(vanished)
        if self.at_end:
            raise ValueError("worse")


def test_failing_task_is_stopped_and_logged_once_and_others_continue() -> None:
    text, ticks = list[str](), list[int]()

    class Other(HelperTask):
        def tick(self) -> None:
            ticks.append(1)

    failing = [Failing(at_end=False), Failing(at_end=True)]
    tasks = HelperTasks([*failing, Other()], text.append)
    for _ in range(2):
        tasks.each(lambda task: task.tick())
    tasks.each(lambda task: task.end(vanished=True))
    # The helper leaves nothing behind that would make the rank look vanished.
    assert [task.ends for task in failing] == [[False], [False]]
    assert len(ticks) == 2
    assert len(text) == 2
    assert all("Failing failed (ValueError: bad day)" in line for line in text)
