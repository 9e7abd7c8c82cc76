"""Helper's task that records durations of collectives, from logs of NCCL Inspector as a plugin writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.profiler.timed_collectives import BASE_US, PID, Helper

from rankscope.profiler.helper.collectives import collective_times
from rankscope.profiler.helper.collectives import log_follower as follow
from rankscope.profiler.helper.collectives.collective_times import MOST_WAITING
from rankscope.runs.paths import inspector_dir


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


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Helper]:
    """Helper of a rank with the plugin, which writes into the folder of the run."""
    environment = {
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_DIR": str(inspector_dir(tmp_path / "run")),
        "NCCL_PROFILER_PLUGIN": "/plugin.so",
    }
    helper = Helper(tmp_path, monkeypatch, environment)
    yield helper
    helper.requests.close()


def test_every_record_is_read_once_despite_partial_writes(helper: Helper) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("has_holes", [True, False])
def test_disk_space_of_read_records_is_released(helper: Helper, monkeypatch: pytest.MonkeyPatch, *, has_holes: bool) -> None:
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


def test_log_in_a_user_chosen_folder_is_left_unchanged(helper: Helper, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
def test_damaged_record_costs_no_other_record(helper: Helper, hostile: bytes) -> None:
    helper.log.write_bytes(record(0) + hostile + record(2))
    helper.look()
    with helper.log.open("ab") as file:
        file.write(record(3))
    helper.look()
    assert helper.numbers == [0, 2, 3]
    assert sum(block.damaged for block in helper.blocks) >= 1
    assert helper.reported == []


def test_records_dropped_by_the_plugin_are_counted_and_logged_once(helper: Helper) -> None:
    stats = json.loads(record(0)) | {"dump_stats": {"coll_dropped_since_last_dump": 9}}
    del stats["coll_perf"]
    for number in range(2):
        with helper.log.open("ab") as file:
            file.write(json.dumps(stats).encode() + b"\n" + record(number))
        helper.look()
    assert [block.lost for block in helper.blocks] == [9, 9]
    assert len(helper.reported) == 1
    assert "9 durations" in helper.reported[0]


def test_log_that_was_removed_and_recreated_is_followed(helper: Helper) -> None:
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


def test_replacement_of_a_killed_helper_continues_in_the_log(helper: Helper) -> None:
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


def test_links_and_pipes_are_not_read_as_logs(helper: Helper, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(record(0))
    helper.log.symlink_to(tmp_path / "elsewhere")
    for _ in range(collective_times.PATIENCE + 2):
        helper.look()
    assert helper.numbers == []
    assert len(helper.reported) == 1


def test_log_is_not_read_while_the_disk_is_blocked(helper: Helper) -> None:
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


def test_failure_disables_only_the_log_reader(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr(follow.LogFollower, "read", fail)
    helper.log.write_bytes(record(0))
    for _ in range(3):
        helper.look()
    helper.end()
    assert len(helper.reported) == 1
    assert "oops" in helper.reported[0]


def test_task_without_a_source_does_nothing(helper: Helper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_INSPECTOR_PROM_DUMP", "1")
    helper.look(100.0)
    assert helper.task is not None
    assert helper.task._worker is None
    assert helper.requests.received() == []
