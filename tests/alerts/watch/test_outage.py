"""Ranks that fall silent before the others crash, as on a host that lost power: which ranks are reported, and when."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.alerts.conftest import START_NS
from tests.alerts.watch.watched_world import PATIENCE_S, MakeWorld, World, past_of
from tests.step_files import add_damaged, add_rows, change, rows_of, tear

from rankscope.alerts.watch.conditions.step_past import StepPast
from rankscope.alerts.watch.liveness.outage import WAITED_S
from rankscope.alerts.watch.run_snapshots import RESTART_GRACE_S
from rankscope.runs.control import ControlAnswer, answer
from rankscope.runs.paths import control_dir, rank_dir
from rankscope.runs.records import AttemptInfo, EndReason, RankInfo, StepRecord
from rankscope.runs.small_files import create_attempt, write_record

LOST = ["TrainingRankLost 2", "TrainingRankLost 3"]
SURVIVORS = range(2)


class PoweredOff:
    """A run of two hosts, of which node1 (ranks 2 and 3) loses power after ``STEPS`` steps, and its watcher."""

    STEPS = 64

    def __init__(self, watched: World) -> None:
        self.run = watched.run
        self.watched = watched
        assert self.run.steps == self.STEPS
        self.off_s = watched.now_s

    def let_pass(self, seconds: float) -> None:
        """Evaluate every 5 s until ``seconds`` have passed since the last step."""
        while self.watched.now_s < self.off_s + seconds:
            self.watched.evaluate()

    def crash(self, *, after_s: float, ranks: range = SURVIVORS, reason: EndReason = "crash", clock_off_s: float = 0.0) -> None:
        """End ranks ``after_s`` after their last step; ``clock_off_s`` is the error of their host's clock."""
        self.let_pass(after_s)
        end_unix_ns = START_NS + self.run.steps * 100_000_000 + int(after_s * 1e9)
        self.run.end(reason, ranks=ranks, end_unix_ns=end_unix_ns + int(clock_off_s * 1e9))


@pytest.fixture
def powered_off(make_quiet_world: MakeWorld) -> Callable[..., PoweredOff]:
    """Factory of runs whose node1 has lost power; options as of ``make_quiet_world``."""

    def make(path: str = ".", *, past: StepPast | None = None, **options: Any) -> PoweredOff:
        watched = make_quiet_world(path, **options)
        watched.steps = past or watched.steps
        return PoweredOff(watched)

    return make


def fired(watched: World) -> list[str]:
    """Return the alerts that have fired so far, each with its rank."""
    events = [event for event in watched.events if event.event == "firing"]
    return sorted({f"{event.labels['alertname']} {event.labels.get('rank', '')}".rstrip() for event in events})


@pytest.mark.parametrize("reason", ["crash", "killed"])
@pytest.mark.parametrize("after_s", [WAITED_S, PATIENCE_S - 5, PATIENCE_S], ids=["soon", "just before silence", "at silence"])
def test_only_ranks_that_fell_silent_before_the_others_ended_are_reported(
    powered_off: Callable[..., PoweredOff], after_s: float, reason: EndReason
) -> None:
    job = powered_off()
    job.crash(after_s=after_s, reason=reason)
    job.let_pass(after_s + PATIENCE_S + RESTART_GRACE_S)
    assert job.watched.firing() == fired(job.watched) == LOST
    events = {event.labels["rank"]: event for event in job.watched.events if event.event == "firing"}
    assert {event.labels["host"] for event in events.values()} == {"node1"}
    lost = events["2"].annotations
    assert (lost["cause"], lost["last_step"], lost["consequence"]) == ("silent", str(job.STEPS - 1), "0,1")
    # By the clock of its host: the step began 6.3 s after the run and took 41 ms
    assert lost["last_heard"] == "2023-11-14T22:13:26.341Z"
    for fact in ("Rank 2 on node1", f"step {job.STEPS - 1}", "ranks 0, 1", "node0", f"{after_s:.0f} s"):
        assert fact in events["2"].summary
    assert "node1" in lost["next"]


def test_crash_of_the_survivors_ends_the_hang_alert(powered_off: Callable[..., PoweredOff]) -> None:
    job = powered_off()
    job.let_pass(PATIENCE_S + 15)
    assert job.watched.firing() == ["TrainingHang"]
    job.crash(after_s=10 * PATIENCE_S)
    job.let_pass(10 * PATIENCE_S + RESTART_GRACE_S - 5)
    assert job.watched.firing() == ["TrainingHang"]
    job.let_pass(10 * PATIENCE_S + 2 * RESTART_GRACE_S)
    assert job.watched.firing() == LOST
    assert fired(job.watched) == ["TrainingHang", *LOST]


@pytest.mark.parametrize("clock_off_s", [-7200.0, 7200.0])
def test_clocks_of_hosts_that_are_hours_apart_do_not_matter(powered_off: Callable[..., PoweredOff], clock_off_s: float) -> None:
    job = powered_off()

    def shift(rows: Any) -> Any:
        rows["start_unix_ns"] += int(clock_off_s * 1e9)
        return np.append(rows, rows[-1:])  # the watcher reads a file again only if it has grown

    for rank in SURVIVORS:
        for file in rank_dir(job.run.path, 0, rank).glob("steps-*"):
            change(file, shift)
    job.crash(after_s=30, clock_off_s=clock_off_s)
    job.let_pass(PATIENCE_S + RESTART_GRACE_S)
    assert job.watched.firing() == fired(job.watched) == LOST


def test_ranks_that_crash_within_a_step_are_reported_lost(powered_off: Callable[..., PoweredOff]) -> None:
    job = powered_off()
    job.crash(after_s=1)
    job.let_pass(RESTART_GRACE_S + 15)
    assert job.watched.firing() == ["TrainingRankLost 0", "TrainingRankLost 1"]
    assert "consequence" not in job.watched.events[0].annotations


def test_rank_that_crashed_within_a_step_is_reported_with_later_crashes(powered_off: Callable[..., PoweredOff]) -> None:
    """Rank 0 fails, the others wait without a launcher that ends them, and rank 1 crashes at its time-out."""
    job = powered_off()
    job.crash(after_s=1, ranks=range(1))
    job.crash(after_s=40, ranks=range(1, 2))
    job.let_pass(40 + RESTART_GRACE_S + 15)
    assert [item for item in job.watched.firing() if item != "TrainingHang"] == ["TrainingRankLost 0", "TrainingRankLost 1"]


def test_ranks_ahead_of_the_crashed_ranks_are_not_reported_lost(powered_off: Callable[..., PoweredOff]) -> None:
    job = powered_off()
    job.watched.advance(times=6, ranks=[2, 3])
    job.crash(after_s=30)
    job.let_pass(30 + RESTART_GRACE_S + 15)
    assert fired(job.watched) == ["TrainingRankLost 0", "TrainingRankLost 1"]


def test_ranks_that_crash_before_they_count_as_silent_are_not_lost(powered_off: Callable[..., PoweredOff]) -> None:
    """Time-outs differ between hosts: node1 crashes after the restart grace and before it counts as silent."""
    job = powered_off()
    job.crash(after_s=WAITED_S)
    job.crash(after_s=PATIENCE_S - 5, ranks=range(2, 4))
    job.let_pass(PATIENCE_S + RESTART_GRACE_S + 15)
    assert fired(job.watched) == ["TrainingCrashed"]


def test_crash_of_all_ranks_raises_one_alert_about_the_run(powered_off: Callable[..., PoweredOff]) -> None:
    job = powered_off("..")
    job.crash(after_s=30, ranks=range(4))
    job.let_pass(30 + RESTART_GRACE_S + 15)
    assert job.watched.firing() == ["TrainingCrashed"]


@pytest.mark.parametrize("end", ["before the alert", "while it fires"])
def test_elastic_restart_without_the_host_ends_the_lost_alerts(powered_off: Callable[..., PoweredOff], end: str) -> None:
    job = powered_off()
    job.crash(after_s=30, reason="killed")
    if end == "while it fires":
        job.let_pass(2 * PATIENCE_S)
        assert job.watched.firing() == LOST
    create_attempt(job.run.path, AttemptInfo(attempt=1, start_unix_ns=START_NS, world_size=2))
    for rank in SURVIVORS:
        info = RankInfo(rank=rank, world_size=2, host="node0", pid=200 + rank, attempt=1, start_unix_ns=START_NS)
        write_record(rank_dir(job.run.path, 1, rank) / "rank.json", info)
    job.let_pass(3 * PATIENCE_S)
    assert job.watched.firing() == []
    assert fired(job.watched) == ([] if end == "before the alert" else LOST)


def test_restarted_watcher_keeps_the_lost_alerts(powered_off: Callable[..., PoweredOff]) -> None:
    job = powered_off("..")
    job.crash(after_s=30)
    job.let_pass(2 * PATIENCE_S)
    first = job.watched
    assert first.firing() == LOST
    job.watched = first.restarted()
    job.let_pass(5 * PATIENCE_S)
    assert job.watched.firing() == LOST
    assert fired(job.watched) == []


# The recorders of waiting ranks answer the watcher -----------------------------------------------------------------------------


def answers(job: PoweredOff, *ranks: int) -> None:
    """Answer the watcher's request for dumps."""
    [request] = [path for path in control_dir(job.run.path).glob("*.json") if "answer" not in path.name]
    for rank in ranks:
        answer(job.run.path, ControlAnswer(id=request.stem, accepted=False, answered_unix_ns=1), rank=rank)


@pytest.mark.parametrize(("answering", "lost"), [((2,), [3]), ((2, 3), [0, 1])])
def test_rank_with_an_answering_recorder_is_not_reported_lost(
    powered_off: Callable[..., PoweredOff], answering: tuple[int, ...], lost: list[int]
) -> None:
    """Rank 2 waits for rank 3, which is alone on its host; without a silent rank those that crashed are reported."""
    job = powered_off(ask_for_dumps=True)
    job.crash(after_s=40)
    job.let_pass(PATIENCE_S + 5)
    answers(job, *answering)
    job.let_pass(3 * PATIENCE_S)
    assert job.watched.firing() == ["TrainingHang", *(f"TrainingRankLost {rank}" for rank in lost)]


def test_ranks_vanishing_during_a_crash_are_reported_with_the_others(powered_off: Callable[..., PoweredOff]) -> None:
    """All processes vanish together, as when their container is killed: the first one is unknown."""
    job = powered_off(ask_for_dumps=True)
    job.crash(after_s=1)
    job.let_pass(RESTART_GRACE_S + 15)
    crashed = ["TrainingRankLost 0", "TrainingRankLost 1"]
    assert job.watched.firing() == crashed
    job.let_pass(3 * PATIENCE_S)
    assert job.watched.firing() == fired(job.watched) == [*crashed, *LOST]
    lost = next(event.annotations for event in job.watched.events if event.labels["rank"] == "3")
    assert (lost["cause"], lost["last_step"]) == ("silent", str(job.STEPS - 1))
    assert "consequence" not in lost


@pytest.mark.parametrize(
    ("asked", "named"), [(True, LOST), (False, ["TrainingHang", "TrainingRankLost 0", "TrainingRankLost 1"])]
)
def test_crash_in_a_checkpoint_may_come_from_a_silent_rank(
    powered_off: Callable[..., PoweredOff], asked: bool, named: list[str]
) -> None:
    past = past_of([0.1] * 200 + [25.0] + [0.1] * 200, tags={"checkpoint": [200]})
    job = powered_off(ask_for_dumps=asked, past=past)
    job.crash(after_s=20)
    job.let_pass(3 * PATIENCE_S)
    assert job.watched.firing() == named


# Damage ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm",
    [
        tear,
        add_damaged,
        lambda file: add_rows(file, impossible_row()),
        lambda file: file.write_bytes(file.read_bytes() + b"\0" * 100_000),
    ],
    ids=["torn", "damaged", "impossible", "zeros"],
)
def test_damaged_last_row_is_skipped(powered_off: Callable[..., PoweredOff], harm: Callable[[Path], object]) -> None:
    job = powered_off()
    harm(max(rank_dir(job.run.path, 0, 2).glob("steps-*")))
    job.crash(after_s=40)
    job.let_pass(2 * PATIENCE_S)
    assert job.watched.firing() == LOST


def impossible_row() -> Any:
    row = rows_of(StepRecord(step=99, start_unix_ns=1, wall_us=1.0))
    row["wall_us"] = -1.0
    return row


def test_unreadable_ranks_postpone_the_lost_alerts(powered_off: Callable[..., PoweredOff]) -> None:
    job = powered_off()
    job.crash(after_s=40)
    folders = [rank_dir(job.run.path, 0, rank) for rank in (2, 3)]
    hidden = [folder.rename(folder.with_suffix(".hidden")) for folder in folders]
    for folder in folders:
        folder.write_text("")
    job.let_pass(3 * PATIENCE_S)
    assert job.watched.firing() == []
    for folder, was in zip(folders, hidden, strict=True):
        folder.unlink()
        was.rename(folder)
    job.let_pass(5 * PATIENCE_S)
    assert job.watched.firing() == LOST
