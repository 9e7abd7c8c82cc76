"""Helper's task that records durations of collectives: logs of NCCL Inspector as a plugin writes them, and dumps of a rank."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.profiler.handovers import context_of, handover_of, step
from tests.waiting import wait_until

from rankscope.base.atomic_files import replace_file
from rankscope.profiler.flight_files import DURATIONS, done_file, dump_file
from rankscope.profiler.helper.collectives import collective_times, flight_times, inspector_log
from rankscope.profiler.helper.collectives import log_follower as follow
from rankscope.profiler.helper.collectives.collective_times import MOST_WAITING, CollectiveTimes
from rankscope.runs.durations import PART, TRANSFER, DurationBlock
from rankscope.runs.paths import inspector_dir

PID = 4321
BASE_US = 1_790_000_000_000_000


def record(number: int, **changes: Any) -> bytes:
    """Return a verbose record of the log; ``changes`` replace parts of it."""
    at = BASE_US + 1000 * number
    document = {
        "header": {"id": "0xabc", "comm_name": "unknown", "rank": 0, "n_ranks": 2, "nnodes": 1},
        "metadata": {"dump_timestamp_us": at + 500, "hostname": "h", "pid": PID},
        "coll_perf": {
            "coll": "AllReduce",
            "coll_sn": number,
            "coll_msg_size_bytes": 1 << 20,
            "coll_exec_time_us": 100,
            "coll_timing_source": "kernel_gpu",
            "event_trace_ts": {"coll_start_ts": at, "coll_stop_ts": at + 5, "kernel_events": [{"kernel_stop_ts": at + 200}]},
        },
    }
    return json.dumps(document | changes).encode() + b"\n"


class Helper:
    """Helper of rank 0 of two, which has taken three steps. Its clocks stand still."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self.scratch = folder / "run", folder / "scratch"
        inspector_dir(self.run).mkdir(parents=True)
        self.scratch.mkdir()
        self.log = inspector_dir(self.run) / f"h-pid{PID}.log"
        self.blocks: list[DurationBlock] = []
        self.reported: list[str] = []
        self.waiting = 0
        self.begun = True
        self.now = 1_000_000.0
        for module in (collective_times, inspector_log, flight_times):
            monkeypatch.setattr(module, "time", self)
        for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_ENABLE_TIMING"):
            monkeypatch.delenv(name, raising=False)
        self.request_reader, self.request_writer = os.pipe()
        os.set_blocking(self.request_reader, False)
        monkeypatch.setattr(flight_times, "_REQUESTS", self.request_writer)
        self.task: CollectiveTimes | None = None

    def time(self) -> float:
        return self.now

    monotonic = time

    @staticmethod
    def time_ns() -> int:
        return time.time_ns()

    def look(self, seconds: float = 2.0) -> None:
        """Let the time of the next look come, and wait for its end."""
        if self.task is None:
            handover = handover_of(self.run, pid=PID, world_size=2)
            context = context_of(handover, self.scratch, self.reported.append, begun=lambda: self.begun)
            self.task = CollectiveTimes(context, self.blocks.append, lambda: self.waiting)
            for number in range(3):
                self.task.step(step(number))
        self.now += seconds
        self.task.tick()
        wait_until(lambda task=self.task: not task._busy)

    def replace(self) -> None:
        """Kill the helper; the next look is that of another one."""
        self.task = None

    def end(self) -> None:
        """End the rank."""
        assert self.task is not None
        self.task.finish()

    @property
    def numbers(self) -> list[int]:
        """Numbers of the recorded operations."""
        return [number for block in self.blocks for number in block.number]

    def requests_received(self) -> list[str]:
        """Return the requests that the rank has received."""
        try:
            return os.read(self.request_reader, 1000).decode().split()
        except BlockingIOError:
            return []

    def dump(self, entries: list[dict[str, Any]], *, took_us: int = 1000) -> None:
        """Answer the request for a dump."""
        assert self.requests_received() == [DURATIONS]
        config = {"0": {"name": "0", "desc": "", "ranks": "[0, 1]"}}
        document = {"version": "2.10", "nccl_version": "2.28", "pg_config": config, "pg_status": {}, "entries": entries}
        replace_file(dump_file(self.scratch, DURATIONS, "nccl"), pickle.dumps(document))
        replace_file(done_file(self.scratch, DURATIONS), f"{took_us} us".encode())


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    for name, value in {"ENABLE": "1", "DUMP_DIR": str(inspector_dir(tmp_path / "run"))}.items():
        monkeypatch.setenv(f"NCCL_INSPECTOR_{name}", value)
    monkeypatch.setenv("NCCL_PROFILER_PLUGIN", "/plugin.so")
    played = Helper(tmp_path, monkeypatch)
    yield played
    os.close(played.request_reader)
    os.close(played.request_writer)


@pytest.fixture
def recorder(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> Helper:
    """Helper of a rank whose Flight Recorder keeps 100 operations, with timing, and that has no plugin."""
    monkeypatch.delenv("NCCL_PROFILER_PLUGIN")
    monkeypatch.setenv("TORCH_FR_BUFFER_SIZE", "100")
    monkeypatch.setenv("TORCH_NCCL_ENABLE_TIMING", "1")
    return helper


def test_every_record_is_taken_once_however_the_plugin_writes(helper: Helper) -> None:
    data = b"".join(map(record, range(50)))
    written = 0
    for end in (700, 701, 2000, 2001, len(data) // 2, len(data) - 1, len(data)):
        with helper.log.open("ab") as file:
            file.write(data[written:end])
        written = end
        helper.look()
    assert helper.numbers == list(range(50))
    first = helper.blocks[0]
    assert (first.source, first.start_unix_ns, first.issued_us[0], first.ended_us[0]) == (
        "nccl_inspector", 1000 * BASE_US, 0, 200,
    )  # fmt: skip
    assert first.duration_us[0] == 100.0
    assert (first.groups[0].name, first.groups[0].place, first.groups[0].size) == ("0xabc", 0, 2)
    assert sum(block.damaged for block in helper.blocks) == 0
    # and the log is removed, as the run made its folder
    helper.end()
    assert not helper.log.exists()
    assert helper.reported == []


@pytest.mark.parametrize("has_holes", [True, False])
def test_the_disk_space_of_what_was_read_is_released(helper: Helper, monkeypatch: pytest.MonkeyPatch, *, has_holes: bool) -> None:
    if not has_holes:
        monkeypatch.setattr(follow, "_punch_hole", lambda *_: False)
    count = 8 * (follow.RELEASE_BYTES // len(record(0)))
    # As the plugin: opened once, written at its own position
    with helper.log.open("wb", buffering=0) as plugin:
        for first in range(0, count, count // 8):
            plugin.write(b"".join(map(record, range(first, first + count // 8))))
            helper.look()
            assert helper.log.stat().st_blocks * 512 < 3 * follow.RELEASE_BYTES
        plugin.write(record(count))
        helper.look()
    assert helper.numbers == list(range(count + 1))
    assert sum(block.damaged for block in helper.blocks) == 0


def test_a_log_that_the_user_wants_elsewhere_is_left_alone(
    helper: Helper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("NCCL_INSPECTOR_DUMP_DIR", str(tmp_path / "mine"))
    log = tmp_path / "mine" / helper.log.name
    log.write_bytes(data := b"".join(map(record, range(5000))))
    helper.look()
    helper.end()
    assert helper.numbers == list(range(5000))
    assert log.read_bytes() == data


@pytest.mark.parametrize(
    "hostile",
    [
        b"x" * (3 << 20) + b"\n",
        b'{"header":' + b"[" * 200_000 + b"\n",
        b'{"header":{"id":"' + b"x" * (2 << 20) + b'"}}\n',
        record(1, header={"id": "0xabc", "rank": 5, "n_ranks": 2}),
        record(1, metadata={"dump_timestamp_us": -1, "hostname": "h", "pid": PID}),
        b"\xff\xfe\0\n",
    ],
)
def test_damage_costs_no_more_than_itself(helper: Helper, hostile: bytes) -> None:
    helper.log.write_bytes(record(0) + hostile + record(2))
    helper.look()
    with helper.log.open("ab") as file:
        file.write(record(3))
    helper.look()
    assert helper.numbers == [0, 2, 3]
    assert sum(block.damaged for block in helper.blocks) >= 1
    assert helper.reported == []


def test_what_the_plugin_dropped_is_counted_and_said_once(helper: Helper) -> None:
    stats = json.loads(record(0)) | {"dump_stats": {"coll_dropped_since_last_dump": 9}}
    del stats["coll_perf"]
    for number in range(2):
        with helper.log.open("ab") as file:
            file.write(json.dumps(stats).encode() + b"\n" + record(number))
        helper.look()
    assert [block.lost for block in helper.blocks] == [9, 9]
    assert len(helper.reported) == 1
    assert "9 durations" in helper.reported[0]


def test_a_log_that_disappears_is_found_again(helper: Helper) -> None:
    helper.log.write_bytes(record(0))
    helper.look()
    helper.log.unlink()
    helper.look()
    helper.look()
    helper.log.write_bytes(record(1))
    helper.look()
    helper.look()
    assert helper.numbers == [0, 1]
    assert helper.reported == []


def test_the_replacement_of_a_killed_helper_reads_on_in_the_log(helper: Helper) -> None:
    helper.log.write_bytes(record(0) + record(1))
    helper.look()
    helper.replace()
    with helper.log.open("ab") as log:
        log.write(record(2))
    helper.look()
    assert helper.numbers == [0, 1, 2]
    assert helper.reported == []


def test_a_rank_that_ends_before_its_first_record_keeps_its_durations(helper: Helper) -> None:
    helper.begun = False
    helper.log.write_bytes(record(0))
    helper.look()
    helper.end()
    assert helper.numbers == [0]


def test_a_plugin_that_writes_nothing_is_reported_once(helper: Helper) -> None:
    for _ in range(5):
        helper.look(40.0)
    helper.end()
    assert len(helper.reported) == 1
    assert str(inspector_dir(helper.run)) in helper.reported[0]
    (block,) = helper.blocks
    assert block.missing is not None
    assert not block.group


def test_a_log_of_another_process_is_not_read(helper: Helper) -> None:
    helper.log.write_bytes(record(0, metadata={"dump_timestamp_us": BASE_US, "hostname": "h", "pid": 99}))
    for _ in range(3):
        helper.look()
    assert helper.numbers == []
    assert len(helper.reported) == 1
    # and neither is what a link leads to
    assert helper.blocks[-1].missing is not None


def test_links_and_pipes_are_no_logs(helper: Helper, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(record(0))
    helper.log.symlink_to(tmp_path / "elsewhere")
    for _ in range(collective_times.PATIENCE + 2):
        helper.look()
    assert helper.numbers == []
    assert len(helper.reported) == 1


def test_nothing_is_read_while_the_disk_takes_nothing(helper: Helper) -> None:
    helper.log.write_bytes(record(0))
    helper.waiting = MOST_WAITING + 1
    helper.look()
    assert helper.numbers == []
    helper.waiting = 0
    helper.look()
    assert helper.numbers == [0]


def test_a_backlog_is_skipped_and_counted(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "BEHIND_BYTES", 100_000)
    monkeypatch.setattr(follow, "READ_BYTES", 20_000)
    helper.log.write_bytes(b"".join(map(record, range(1000))))
    helper.look()
    assert helper.numbers[-1] == 999
    assert len(helper.numbers) < 50
    assert helper.blocks[0].lost > 100
    assert len(helper.reported) == 1


def entry(number: int, *, ended: bool = True, **more: Any) -> dict[str, Any]:
    """Return an entry of the Flight Recorder."""
    return {
        "record_id": number,
        "process_group": ("0", ""),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1000 * (BASE_US + 1000 * number),
        "input_sizes": [[64]],
        "output_sizes": [[64]],
        "input_dtypes": ["Float"],
        "output_dtypes": ["Float"],
        "state": "completed" if ended else "started",
        "retired": ended,
        "is_p2p": False,
        **({"duration_ms": 0.1} if ended else {}),
        **more,
    }


def test_dumps_are_asked_for_and_give_each_operation_once(recorder: Helper) -> None:
    # given a first dump, in which one operation has not ended
    recorder.look()
    recorder.dump([entry(number) for number in range(9)] + [entry(9, ended=False), entry(10)])
    recorder.look(0.5)
    assert recorder.numbers == [*range(9), 10]
    # when the next one overlaps it
    recorder.look()
    recorder.dump([entry(number) for number in range(5, 30)])
    recorder.look(0.5)
    # then only what is new is recorded
    assert sorted(recorder.numbers) == list(range(30))
    assert recorder.blocks[-1].lost == 0
    assert recorder.blocks[0].groups[0].ranks == [0, 1]
    # and local memory is released
    assert list(recorder.scratch.glob("flight-*")) == []
    assert recorder.reported == []


def test_the_replacement_of_a_killed_helper_takes_what_no_dump_had(recorder: Helper) -> None:
    recorder.look()
    recorder.dump([entry(number) for number in range(9)] + [entry(9, ended=False)])
    recorder.look(0.5)
    recorder.replace()
    recorder.look()
    recorder.dump([entry(number) for number in range(12)])
    recorder.look(0.5)
    assert sorted(recorder.numbers) == list(range(12))
    assert recorder.reported == []


def test_overwritten_operations_are_counted_and_said_once(recorder: Helper) -> None:
    for first in (0, 150, 300):
        recorder.look(128.0)
        recorder.dump([entry(number) for number in range(first, first + 100)])
        recorder.look(0.5)
    assert [block.lost for block in recorder.blocks] == [0, 50, 50]
    assert len(recorder.reported) == 1


@pytest.mark.slow
def test_dumps_are_rarer_where_they_are_costly(recorder: Helper) -> None:
    number, dumped_at = 0, []
    for _ in range(2 * 300):
        recorder.look(0.5)
        if (received := recorder.requests_received()) == [DURATIONS]:
            dumped_at.append(recorder.now)
            os.write(recorder.request_writer, f"{DURATIONS}\n".encode())
            number += 10
            recorder.dump([entry(item) for item in range(max(0, number - 100), number)], took_us=100_000)
        else:
            assert received == []
    # 100 ms are half of 1 % of 20 s, and the next interval is 32 s, by the clock
    assert len(dumped_at) > 5
    assert {after - before for before, after in pairwise(dumped_at[3:])} == {32.0}
    assert all(at % 32 == 0 for at in dumped_at[3:])


def test_parts_of_a_batch_are_recorded_with_it(recorder: Helper) -> None:
    recorder.look()
    part = {"is_p2p": True, "profiling_name": "nccl:send 0->1", "retired": False, "state": "scheduled"}
    batch = entry(1, profiling_name="nccl:coalesced", is_p2p=True)
    recorder.dump([entry(0, ended=False, **part), batch, entry(2, ended=False, **part)])
    recorder.look(0.5)
    (block,) = recorder.blocks
    assert [block.ops[at] for at in block.op] == ["send", "coalesced"]
    assert block.flags == [TRANSFER | PART, TRANSFER]


def test_a_rank_that_does_not_answer_is_reported_once_and_not_asked_again(recorder: Helper) -> None:
    for _ in range(10):
        recorder.look(30.0)
    assert recorder.requests_received() == [DURATIONS]
    assert len(recorder.reported) == 1
    # when its dump comes after all, then it is recorded
    replace_file(
        dump_file(recorder.scratch, DURATIONS, "nccl"), pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [entry(0)]})
    )
    replace_file(done_file(recorder.scratch, DURATIONS), b"10 us")
    recorder.look()
    assert recorder.numbers == [0]


@pytest.mark.parametrize("damage", [b"", b"\x80\x04.", pickle.dumps({"version": "1", "entries": [1, {}], "pg_config": 3})])
def test_a_damaged_dump_is_reported_once(recorder: Helper, damage: bytes) -> None:
    for _ in range(3):
        recorder.look(32.0)
        assert recorder.requests_received() == [DURATIONS]
        replace_file(dump_file(recorder.scratch, DURATIONS, "nccl"), damage)
        replace_file(done_file(recorder.scratch, DURATIONS), b"10 us")
        recorder.look(0.5)
    assert len(recorder.reported) <= 1
    assert recorder.numbers == []


def test_a_failure_switches_only_this_off(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(follow.LogFollower, "read", fail)
    helper.log.write_bytes(record(0))
    for _ in range(3):
        helper.look()
    helper.end()
    assert len(helper.reported) == 1
    assert "oops" in helper.reported[0]


def test_without_a_source_nothing_happens(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_INSPECTOR_PROM_DUMP", "1")
    helper.look(100.0)
    assert helper.task is not None
    assert helper.task._worker is None
    assert helper.requests_received() == []
