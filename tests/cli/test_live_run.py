"""Polling of a live run: its interval, and reading of new records only."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest
from tests.played_ranks import append, breakdown, two_ranks

from rankscope.cli.live import live_run
from rankscope.cli.live.live_run import LiveRun
from rankscope.cli.live.profile_progress import ProfileProgress
from rankscope.runs.paths import rank_dir
from rankscope.runs.segments import read_blocks


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Run of two ranks that train."""
    return two_ranks(tmp_path / "run")


def test_many_ranks_are_looked_at_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    for ranks, longest in ((8, 0.5), (100, 1.0), (1024, 5.0)):
        clock[0] = 0.0
        pauses.clear()
        assert live_run.poll(lambda: None, until=120.0, ranks=ranks) is None
        assert (pauses[0], max(pauses)) == (0.5, longest)
        assert clock[0] == 120.0


def test_only_what_is_new_of_the_profiles_is_read(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a rank with a history
    append(run, 0, "windows", *(breakdown(step) for step in range(60)))
    progress = ProfileProgress(LiveRun(run), 0, range(70, 72))
    assert progress.missing_steps() == [70, 71]
    read: list[bytes] = []

    def counted(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
        for block, length in read_blocks(file):
            read.append(block)
            yield block, length

    monkeypatch.setattr("rankscope.runs.follow.read_blocks", counted)
    # when it continues, in the same segment, in the middle of a line, and in the next
    rows = [msgspec.json.encode(breakdown(step)) + b"\n" for step in range(69, 72)]
    path = next(rank_dir(run, 0, 0).glob("windows-*"))
    with path.open("ab") as file:
        file.write(rows[0] + rows[1] + rows[2][:20])
    assert progress.missing_steps() == [71]
    with path.open("ab") as file:
        file.write(rows[2][20:])
    append(run, 0, "windows", breakdown(72))
    # then that is read, and nothing twice
    assert progress.missing_steps() == []
    assert read == [rows[0] + rows[1], rows[2][:20], rows[2], msgspec.json.encode(breakdown(72)) + b"\n"]


def test_profiles_that_move_while_one_waits_are_found(run: Path) -> None:
    append(run, 0, "windows", breakdown(60))
    append(run, 0, "windows", breakdown(70))
    progress = ProfileProgress(LiveRun(run), 0, range(70, 72))
    assert progress.missing_steps() == [71]
    # when the segments are replaced
    for path in rank_dir(run, 0, 0).glob("windows-*"):
        path.unlink()
    (rank_dir(run, 0, 0) / "windows-000009.jsonl").write_bytes(msgspec.json.encode(breakdown(71)) + b"\n")
    assert progress.missing_steps() == []
