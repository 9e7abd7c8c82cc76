"""Files through which ranks coordinate: reports and announced windows, written rarely and never believed beyond their bounds."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

import msgspec
import pytest
from tests.profiler.handovers import plan_line

from rankscope.profiler.helper.coordination.reports import ReportReader, ReportWriter, report_file
from rankscope.profiler.helper.coordination.window_client import WindowClient, plan_file
from rankscope.profiler.plan import RankReport


def replace_by(kind: str, path: Path, target: Path) -> None:
    """Create a link to ``target``, a FIFO or a folder at ``path``."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()


REPORT = RankReport(rank=1, unix_ns=1, clock="h", step=10, step_us=100_000.0)


def times_written(
    folder: Path,
    seconds: int,
    *,
    world_size: int = 8,
    rank: int = 1,
    windows_at: tuple[int, ...] = (),
    after_windows: bool = True,
) -> list[int]:
    """Return the seconds at which a rank with steps of 100 ms writes its report; it has windows at some of them."""
    writer, seen = ReportWriter(folder, rank, world_size, after_windows=after_windows), list[int]()
    for second in range(seconds):
        report = msgspec.structs.replace(REPORT, step=second * 10, step_us=None if second < 3 else 100_000.0)
        report_file(folder, rank).unlink(missing_ok=True)
        writer.offer(report, sum(at <= second for at in windows_at), float(second))
        if report_file(folder, rank).exists():
            seen.append(second)
    return seen


def test_report_is_written_with_the_first_step_time_then_twice_a_minute(tmp_path: Path) -> None:
    written = times_written(tmp_path, 600)
    assert written[0] == 3
    assert len(written) <= 22
    assert [later - earlier for earlier, later in itertools.pairwise(written)][1:] == [30] * (len(written) - 2)


def test_report_follows_a_window_soon_but_is_rate_limited(tmp_path: Path) -> None:
    assert set(times_written(tmp_path, 40, windows_at=(15,))) & set(range(15, 20))
    assert not set(times_written(tmp_path, 30, windows_at=(15,), after_windows=False)) & set(range(15, 20))
    assert len(times_written(tmp_path, 60, windows_at=tuple(range(60)))) <= 20


def test_report_after_a_window_waits_for_the_full_window_cost(tmp_path: Path) -> None:
    writer, file = ReportWriter(tmp_path, 1, 8, after_windows=True), report_file(tmp_path, 1)
    writer.offer(REPORT, 0, 0.0)
    file.unlink()
    reported = list[int]()
    for step in range(11, 15):
        writer.offer(msgspec.structs.replace(REPORT, step=step), 1, 10.0)
        reported += [step] if file.exists() else []
    assert reported == [13, 14]


@pytest.mark.slow
def test_reports_of_a_large_job_are_spread_over_time(tmp_path: Path) -> None:
    writes = [second for rank in range(64) for second in times_written(tmp_path, 900, world_size=1024, rank=rank)]
    late = [writes.count(second) for second in range(600, 900)]
    # 64 of them write every 51 s: a little more than one a second.
    assert max(late) <= 3
    assert 1 <= sum(late) / len(late) <= 1.5


def test_reports_are_read_in_turn_and_a_removed_report_is_noticed_once(tmp_path: Path) -> None:
    for rank in range(1, 6):
        ReportWriter(tmp_path, rank, 6, after_windows=True).offer(msgspec.structs.replace(REPORT, rank=rank), 0, 0.0)
    messages = list[str]()
    reader = ReportReader(tmp_path, 6, messages.append)
    assert [rank for _ in range(4) for rank, _ in reader.read(2)] == [1, 2, 3, 4, 5, 1, 2, 3]
    report_file(tmp_path, 4).unlink()
    assert [rank for rank, report in reader.read(100) if report is None] == [4]
    assert sorted(rank for rank, _ in reader.read(100)) == [1, 2, 3, 5]
    assert messages == []


def test_rank_0_of_world_size_1_reads_no_reports(tmp_path: Path) -> None:
    assert list(ReportReader(tmp_path, 1, lambda _: None).read(20)) == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[" * 4000,
        b"\xff",
        b"x" * 100_000,
        msgspec.json.encode(msgspec.structs.replace(REPORT, rank=2)),
        msgspec.json.encode(msgspec.structs.replace(REPORT, step=2**60)),
        msgspec.json.encode(msgspec.structs.replace(REPORT, step_us=0.0)),
        msgspec.json.encode(REPORT).replace(b"100000.0", b"1e999"),
        msgspec.json.encode(msgspec.structs.replace(REPORT, clock="c" * 300)),
        "link",
        "fifo",
        "folder",
    ],
    ids=[
        "empty",
        "nested",
        "no UTF-8",
        "too long",
        "another rank",
        "a step out of bounds",
        "no step time",
        "infinite",
        "a long name",
        "link",
        "FIFO",
        "folder",
    ],
)
def test_unusable_report_is_ignored_and_logged_once(tmp_path: Path, content: bytes | str) -> None:
    path = report_file(tmp_path, 1)
    (tmp_path / "secret").write_bytes(msgspec.json.encode(REPORT))
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        replace_by(content, path, tmp_path / "secret")
    messages = list[str]()
    reader = ReportReader(tmp_path, 2, messages.append)
    assert [list(reader.read(20)) for _ in range(3)] == [[], [], []]
    assert len(messages) == 1
    assert str(path) in messages[0]
    assert messages[0].isprintable()


@pytest.mark.slow
def test_reading_reports_of_a_thousand_ranks_takes_under_a_second(tmp_path: Path) -> None:
    for rank in range(1, 1024):
        ReportWriter(tmp_path, rank, 1024, after_windows=True).offer(msgspec.structs.replace(REPORT, rank=rank), 0, 0.0)
    reader = ReportReader(tmp_path, 1024, pytest.fail)
    used = time.thread_time()
    assert len(list(reader.read(1024))) == 1023
    # They are read over 51 s: this allows 2 % of a processor.
    assert time.thread_time() - used < 1.0


def test_invalid_plan_lines_are_ignored_and_logged_once(tmp_path: Path) -> None:
    messages = list[str]()
    client = WindowClient(tmp_path, messages.append)
    assert client.read() == []
    # Windows of impossible size or position, more of them than any planner announces, and endless nesting
    many = b"".join(plan_line(first) for first in range(1000, 3000, 10))
    invalid = plan_line(100, 10**9) + plan_line(110, 0) + plan_line(2**60) + b"[" * 5000 + b"\n" + b"\xff\n"
    plan_file(tmp_path).write_bytes(many + invalid + plan_line(500)[:-1])
    assert [window.first for window in client.read()] == list(range(2920, 3000, 10))
    with plan_file(tmp_path).open("ab") as file:
        file.write(b"\n")
    assert [window.first for window in client.read()] == [500]
    assert client.read() == []
    assert len(messages) == 1
    assert str(plan_file(tmp_path)) in messages[0]


def test_overlong_plan_line_hides_no_later_window(tmp_path: Path) -> None:
    client = WindowClient(tmp_path, lambda _: None)
    plan_file(tmp_path).write_bytes(b"x" * 2**20 + b"\n" + plan_line(500))
    assert [window.first for _ in range(3) for window in client.read()] == [500]


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_plan_that_is_not_a_regular_file_is_not_read(tmp_path: Path, kind: str) -> None:
    messages = list[str]()
    (tmp_path / "secret").write_bytes(plan_line(500))
    replace_by(kind, plan_file(tmp_path), tmp_path / "secret")
    client = WindowClient(tmp_path, messages.append)
    assert [client.read() for _ in range(2)] == [[], []]
    assert len(messages) == 1
