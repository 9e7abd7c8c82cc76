"""What a helper tells of a rank that stands still."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.ring_step import SEEN, event, ring_in, step_words

from rankscope.profiler.helper.standstill import (
    FIRST_SECONDS,
    LEAST_SECONDS,
    REFRESH_SECONDS,
    ActivityFile,
    StandstillMonitor,
    process_state,
)
from rankscope.profiler.helper.step_assembler import StepAssembler
from rankscope.profiler.helper.step_time_baseline import StepTimeBaseline
from rankscope.profiler.phases import BACKWARD, DATA
from rankscope.profiler.ring import RingReader, RingWriter
from rankscope.profiler.words import AS_NOTED, CHECKPOINT_BEGINS, SECTION, UNSEEN_WAIT, WAIT, WAITING, detail
from rankscope.runs.records import RankActivity, RankInfo, StepRecord

SECOND = 10**9
START = 100 * SECOND
INFO = RankInfo(rank=3, world_size=8, host="vm", pid=2**30, attempt=1, start_unix_ns=1)


@dataclass
class Rank:
    """A ring with its reader, and a clock that the test sets."""

    writer: RingWriter
    reader: RingReader
    assembler: StepAssembler
    monitor: StandstillMonitor
    now_ns: int = START

    def step(self, number: int, *, seconds: float = 0.5, flags: int = SEEN | AS_NOTED << WAITING) -> None:
        """Make a step that ends now."""
        wall_ns = round(seconds * SECOND)
        self.writer.write(*step_words(number, start_ns=self.now_ns - wall_ns, wall_ns=wall_ns, flags=flags))
        self.writer.publish()
        self.assembler.add(self.reader.read())
        self.monitor.add(StepRecord(step=number, start_unix_ns=1, wall_us=seconds * 1e6))

    def activity_after(self, after_s: float) -> RankActivity | None:
        """Return the activity some seconds after ``START``."""
        self.now_ns = START + round(after_s * SECOND)
        return self.monitor.activity(INFO)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    """A rank whose last events are at ``START``."""
    writer = ring_in(tmp_path / "ring")
    with (tmp_path / "ring").open("r+b") as file:
        reader = RingReader(file.fileno())
    assembler = StepAssembler(reader.name, lose=lambda error: pytest.fail(str(error)))
    made: list[Rank] = []
    monitor = StandstillMonitor(
        reader, assembler, StepTimeBaseline(), clock_ns=lambda: made[0].now_ns, unix_ns=lambda: made[0].now_ns + 7 * SECOND
    )
    made.append(Rank(writer, reader, assembler, monitor))
    yield made[0]
    reader.close()
    writer.close()


def test_rank_loading_data_for_long_is_in_data_phase_and_not_waiting(rank: Rank) -> None:
    rank.step(4)
    rank.writer.write(*event(DATA, START + SECOND))
    assert rank.activity_after(LEAST_SECONDS + 0.9) is None
    assert rank.activity_after(LEAST_SECONDS + 2) == RankActivity(
        attempt=1, rank=3, step=5, phase="data", waiting=False, since_unix_ns=START + 8 * SECOND,
        updated_unix_ns=START + round((LEAST_SECONDS + 9) * SECOND),
    )  # fmt: skip


def test_progressing_rank_has_no_activity(rank: Rank) -> None:
    rank.step(4)
    rank.writer.write(*event(DATA, START))
    assert rank.activity_after(20) is not None
    rank.step(5)
    assert rank.activity_after(20.1) is None


def test_event_in_a_long_step_counts_as_progress(rank: Rank) -> None:
    rank.step(4)
    rank.writer.write(*event(DATA, START + 30 * SECOND))
    assert rank.activity_after(35) is None


@pytest.mark.parametrize(
    ("words", "ready_s", "expected"),
    [
        ([], 0, ("between_steps", None, False)),
        ([*event(BACKWARD, START), *event(WAIT, START + 1)], 0, ("backward", None, True)),
        (event(BACKWARD, START), 1, ("backward", None, True)),
        (event(BACKWARD, START), 0, ("backward", None, False)),
        ([*event(BACKWARD, START), *event(UNSEEN_WAIT, START)], 0, ("backward", None, None)),
        (event(CHECKPOINT_BEGINS, START), 0, ("between_steps", "checkpoint", False)),
        (event(SECTION, START, detail(0)), 0, ("between_steps", "sampling", False)),
    ],
)
def test_activity_has_the_phase_section_and_waiting_state(
    rank: Rank, words: list[int], ready_s: int, expected: tuple[str, str | None, bool | None]
) -> None:
    rank.writer.name("sampling")
    rank.step(4)
    if words:
        rank.writer.write(*words)
    rank.writer.ready[0][0] = ready_s and START + ready_s * SECOND
    activity = rank.activity_after(60)
    assert activity is not None
    assert (activity.phase, activity.section, activity.waiting) == expected
    assert activity.since_unix_ns // SECOND == START // SECOND + 7 + ready_s


def test_waiting_is_unknown_when_the_host_sees_no_waits(rank: Rank) -> None:
    rank.step(4, flags=SEEN)
    rank.writer.write(*event(DATA, START))
    activity = rank.activity_after(60)
    assert activity is not None
    assert activity.waiting is None


def test_activity_is_unknown_for_a_step_with_too_many_words(rank: Rank) -> None:
    rank.step(4)
    rank.writer.overflow()
    assert rank.activity_after(60) is None
    rank.writer.next_step()
    activity = rank.activity_after(120)
    assert activity is not None
    assert (activity.phase, activity.waiting) == ("between_steps", False)


def test_first_step_has_a_longer_limit_and_reports_waiting(rank: Rank) -> None:
    assert rank.activity_after(2 * FIRST_SECONDS) is None
    rank.writer.write(*event(BACKWARD, START), *event(WAIT, START))
    assert rank.activity_after(FIRST_SECONDS - 1) is None
    rank.now_ns += 2 * SECOND
    activity = rank.activity_after(3 * FIRST_SECONDS)
    assert activity is not None
    assert (activity.step, activity.phase, activity.waiting) == (None, "backward", True)


def test_standstill_limit_allows_for_long_steps_seen_twice(rank: Rank) -> None:
    for number in range(20):
        rank.step(number, seconds=40 if number in (3, 9) else 0.5)
    rank.writer.write(*event(DATA, START))
    assert rank.activity_after(55) is None
    assert rank.activity_after(65) is not None


def test_activity_file_is_written_refreshed_and_removed() -> None:
    class Context:
        @staticmethod
        def begun() -> bool:
            return True

        @staticmethod
        def activity() -> RankActivity | None:
            return activities[-1]

    written: list[RankActivity | None] = []
    activities: list[RankActivity | None] = [None]
    task = ActivityFile(Context, None, written.append)  # type: ignore[arg-type]

    def written_for(**changed: object) -> list[RankActivity | None]:
        about = {"attempt": 0, "rank": 0, "phase": "data", "since_unix_ns": 1, "updated_unix_ns": 10 * SECOND, **changed}
        activities.append(RankActivity(**about))  # type: ignore[arg-type]
        before = len(written)
        task.tick()
        return written[before:]

    # The file of a predecessor is removed, and a rank that goes on writes nothing.
    task.tick()
    task.tick()
    assert written == [None]
    assert len(written_for()) == 1
    assert written_for(updated_unix_ns=20 * SECOND) == []
    assert len(written_for(updated_unix_ns=(10 + int(REFRESH_SECONDS)) * SECOND)) == 1
    assert len(written_for(phase="forward", updated_unix_ns=42 * SECOND)) == 1
    assert written_for(phase="forward", process="disk", updated_unix_ns=43 * SECOND) == []
    activities.append(None)
    task.tick()
    task.tick()
    assert written[-1] is None
    assert written.count(None) == 2


@pytest.mark.parametrize(
    ("stat", "expected"),
    [("7 (py) S 1", None), ("7 (a) T) T 1", "stopped"), ("7 (x y) D 1", "disk"), ("", None), ("7 (py)", None)],
)
def test_process_state_is_read_from_proc_stat(tmp_path: Path, stat: str, expected: str | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)
    assert process_state(7, tmp_path) == expected
    assert process_state(8, tmp_path) is None
