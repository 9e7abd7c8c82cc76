"""Silent ranks and stalled runs, detected from files that stop growing, by the watcher's own clock."""

from __future__ import annotations

import shutil
from typing import Any

import msgspec
import pytest
from tests.alerts.watch.watched_world import PATIENCE_S, MakeWorld, analysis_of, past_of

from rankscope.alerts.watch.liveness.monitor import Patience
from rankscope.alerts.watch.run_snapshots import RESTART_GRACE_S
from rankscope.alerts.watch.watcher import CRASH_FIRING_S, FORGET_AFTER_S, FORGET_LIVENESS_AFTER_S
from rankscope.runs.paths import activity_file, attempt_dir, rank_dir
from rankscope.runs.records import AttemptInfo, EndReason, RankActivity, RankInfo
from rankscope.runs.small_files import create_attempt, write_record


def test_run_without_new_steps_fires_hang_and_resolves_on_recovery(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.let_pass(PATIENCE_S)
    assert world.event_names() == []
    world.let_pass(10)
    assert world.firing() == ["TrainingHang"]
    [event] = world.events
    assert event.labels == {"alertname": "TrainingHang", "severity": "critical", "run_id": "llama-1", "run": "llama"}
    assert "No rank of run llama has finished a step for 65 s (usually 100 ms each)" in event.summary
    assert "py-spy dump --pid 100   (rank 0, on node0)" in event.annotations["next"]
    world.go_on(10)
    assert world.event_names() == ["firing", "resolved"]


def test_hang_alert_shows_the_activity_of_the_ranks(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.let_pass(PATIENCE_S - 20)
    for rank in range(4):
        seen_ns = int(world.now_s * 1e9)
        doing = RankActivity(
            attempt=0,
            rank=rank,
            step=40,
            phase="data" if rank == 2 else "backward",
            waiting=rank != 2,
            since_unix_ns=seen_ns - 50 * 10**9,
            updated_unix_ns=seen_ns,
        )
        write_record(activity_file(world.run.path, 0, rank), doing)
    world.let_pass(30)
    [event] = world.events
    assert event.labels["alertname"] == "TrainingHang"
    annotations = event.annotations
    for fact in ("Rank 2", "loading data", "3 ranks wait for other ranks in backward"):
        assert fact in event.summary
    assert (annotations["culprit"], annotations["culprit_host"], annotations["cause"]) == ("2", "node1", "not_arrived")
    assert annotations["confidence"] == "probable"
    assert "dump" in annotations["evidence"]
    assert "py-spy dump --pid 102" in annotations["next"]


def test_outdated_activity_is_ignored(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    old = RankActivity(attempt=0, rank=2, phase="data", waiting=False, since_unix_ns=1, updated_unix_ns=2)
    write_record(activity_file(world.run.path, 0, 2), old)
    world.let_pass(PATIENCE_S + 10)
    [event] = world.events
    assert "culprit" not in event.annotations
    assert "loading data" not in event.summary


def test_silent_rank_among_running_ranks_is_reported_lost(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.go_on(PATIENCE_S + 10, ranks=[0, 1, 3])
    assert world.firing() == ["TrainingRankLost 2"]
    assert world.events[0].labels["host"] == "node1"
    # The process may be dead: the py-spy step first checks that it exists
    [stack] = [step for step in world.events[0].annotations["next"].splitlines() if "py-spy" in step]
    assert "ps -p 102" in stack
    world.go_on(10)
    assert world.event_names() == ["firing", "resolved"]


def test_ranks_that_stop_in_turn_raise_one_hang_alert(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.go_on(15, ranks=[0, 1, 3])  # a file server may show other ranks' files with such a delay
    world.let_pass(2 * PATIENCE_S)
    assert world.firing() == ["TrainingHang"]
    assert world.event_names() == ["firing"]


def test_the_time_a_watcher_was_suspended_does_not_count(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    for _ in range(3):  # a laptop that was closed for an hour, with nothing new at the first evaluation
        world.now_s += 3600
        world.evaluate()
        world.go_on(10)
    assert world.event_names() == []


def test_clock_offset_of_hours_raises_no_alert(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(moved=False)
    world.now_s += 10 * 3600
    world.go_on(4 * PATIENCE_S)
    assert world.event_names() == []


@pytest.mark.parametrize(
    "past",
    [
        past_of([12.0] * 50),
        past_of([0.1] * 200 + [50.0] + [0.1] * 200, tags={"checkpoint": [200]}),
        past_of(([0.1] * 100 + [50.0]) * 2 + [0.1]),
    ],
    ids=["long steps", "a step with a checkpoint", "intermittent long steps"],
)
def test_patience_covers_the_known_long_steps(make_quiet_world: MakeWorld, past: Any) -> None:
    world = make_quiet_world(moved=False)
    world.steps = past
    world.go_on(20)
    world.let_pass(95)
    assert world.event_names() == []
    world.let_pass(40)
    assert world.firing() == ["TrainingHang"]


def test_single_unexplained_long_step_does_not_extend_patience() -> None:
    assert Patience().seconds(past_of([0.1] * 50 + [900.0] + [0.1] * 50)) == Patience().silent_after_s


def test_no_hang_is_reported_before_the_first_step(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(moved=False)
    world.steps = None
    world.go_on(20)
    world.let_pass(10 * PATIENCE_S)
    assert world.event_names() == []


def test_a_run_that_ends_is_not_stalled(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.let_pass(PATIENCE_S - 10)
    world.run.end()
    assert world.evaluate()
    assert world.event_names() == ["verdict"]


def test_run_dead_before_the_folder_watch_is_not_reported(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world("..", moved=False)
    world.let_pass(3 * PATIENCE_S)
    assert world.event_names() == []


def test_hang_of_a_directly_watched_run_is_reported(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(moved=False)
    world.let_pass(2 * PATIENCE_S)
    assert world.firing() == ["TrainingHang"]


@pytest.mark.parametrize("before_s", [10, PATIENCE_S + 10], ids=["before it fired", "while it fired"])
def test_restarted_watcher_keeps_the_hang_alert(make_quiet_world: MakeWorld, before_s: float) -> None:
    first = make_quiet_world("..")
    first.let_pass(before_s)
    fired = first.event_names()
    second = first.restarted()
    second.let_pass(30)
    assert second.event_names() == []
    second.let_pass(PATIENCE_S)
    assert [*fired, *second.event_names()] == ["firing"]
    second.go_on(10)
    assert second.event_names()[-1] == "resolved"
    assert second.firing() == []


def test_unreadable_rank_counts_as_unknown(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    folder = rank_dir(world.run.path, 0, 2)
    hidden = folder.rename(folder.with_name("hidden"))
    folder.write_text("")
    world.go_on(2 * PATIENCE_S, ranks=[0, 1, 3])
    assert world.firing() == []
    folder.unlink()
    hidden.rename(folder)
    world.go_on(2 * PATIENCE_S, ranks=[0, 1, 3])
    assert world.firing() == ["TrainingRankLost 2"]


def test_rank_killed_while_others_run_is_reported_lost(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.run.end("killed", ranks=range(2, 3))
    world.go_on(RESTART_GRACE_S - 5, ranks=[0, 1, 3])
    assert world.event_names() == []
    world.go_on(15, ranks=[0, 1, 3])
    assert world.firing() == ["TrainingRankLost 2"]
    annotations = world.annotations("TrainingRankLost")
    assert "was killed" in annotations["summary"]
    # The process is dead: there is no stack to dump
    assert "py-spy" not in annotations["next"]
    assert "dmesg" in annotations["next"]


@pytest.mark.parametrize("reason", ["killed", "crash"])
def test_a_rank_that_died_before_the_watcher_started_is_reported(make_quiet_world: MakeWorld, reason: EndReason) -> None:
    world = make_quiet_world(moved=False)
    world.run.end(reason, ranks=range(2, 3))
    world.go_on(RESTART_GRACE_S + 15, ranks=[0, 1, 3])
    assert world.firing() == ["TrainingRankLost 2"]


def test_rank_dead_before_the_watch_is_lost_only_if_others_continue(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world("..", moved=False)
    world.run.end("killed", ranks=range(2, 3))
    world.let_pass(3 * RESTART_GRACE_S)
    assert world.event_names() == []
    world.go_on(15, ranks=[0, 1, 3])
    assert world.firing() == ["TrainingRankLost 2"]


def test_rank_with_a_disabled_recorder_is_not_lost(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    file = rank_dir(world.run.path, 0, 1) / "rank.json"
    info = msgspec.json.decode(file.read_bytes(), type=RankInfo)
    write_record(file, msgspec.structs.replace(info, disabled_reason="the ring cannot be mapped"))
    world.go_on(2 * PATIENCE_S, ranks=[0, 2, 3])
    assert world.firing() == []


def test_new_attempt_clears_pending_alerts(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.let_pass(PATIENCE_S)
    assert [entry.track.state for entry in world.watcher.ledger.entries] == ["pending"]
    create_attempt(world.run.path, AttemptInfo(attempt=1, start_unix_ns=1, world_size=4))
    info = msgspec.json.decode((rank_dir(world.run.path, 0, 0) / "rank.json").read_bytes(), type=RankInfo)
    write_record(rank_dir(world.run.path, 1, 0) / "rank.json", info)
    world.let_pass(30)
    assert (world.event_names(), world.watcher.ledger.entries) == ([], [])
    assert attempt_dir(world.run.path, 1).is_dir()


def test_liveness_alerts_expire_later_than_step_alerts(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(moved=False)
    world.answer = analysis_of(2)
    world.go_on(20)
    world.let_pass(PATIENCE_S + 10)
    assert world.firing() == ["TrainingHang", "TrainingStraggler 2"]
    world.now_s += FORGET_AFTER_S
    world.evaluate()
    assert world.firing() == ["TrainingHang"]
    world.now_s += FORGET_LIVENESS_AFTER_S
    world.evaluate()
    assert world.firing() == []


# The end -----------------------------------------------------------------------------------------------------------------------


def test_crash_alert_fires_and_is_not_resolved_at_once(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world("..", moved=False)
    world.answer = analysis_of(3)
    world.go_on(20)
    end = int(world.now_s * 1e9)
    world.run.end("crash", ranks=range(1, 2), end_unix_ns=end)
    for others in (range(1), range(2, 4)):
        world.run.end("killed", ranks=others, end_unix_ns=end + 2 * 10**9)
    world.let_pass(RESTART_GRACE_S + 10)
    assert world.firing() == ["TrainingCrashed"]
    annotations = world.annotations("TrainingCrashed")
    assert (annotations["culprit"], annotations["culprit_host"], annotations["cause"]) == ("1", "node0", "crash")
    assert "error output of rank 1 on node0" in annotations["next"]
    heard = [(item.alert.labels["alertname"], item.alert.status) for call in world.receiver.calls for item in call]
    assert heard == [("TrainingStraggler", "firing"), ("TrainingCrashed", "firing"), ("TrainingStraggler", "resolved")]
    assert world.receiver.calls[-1][0].alert.annotations["ended_because"] == "the run ended early"
    world.let_pass(CRASH_FIRING_S)
    assert world.firing() == []
    assert world.events[-1].annotations["ended_because"].endswith("10 min")
    # Receivers that get only changes receive no resolution of a crash
    assert sum(map(len, world.receiver.calls)) == len(heard)
    assert world.watcher.ledger.entries == []
    assert [event.labels["alertname"] for event in world.events if event.event == "firing"] == [
        "TrainingStraggler",
        "TrainingCrashed",
    ]


def test_crash_is_reported_despite_host_clocks_running_ahead(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world("..")
    world.run.end("crash", end_unix_ns=int(world.now_s * 1e9) + 3600 * 10**9)
    world.let_pass(RESTART_GRACE_S)
    assert world.firing() == []
    world.let_pass(10)
    assert world.firing() == ["TrainingCrashed"]


@pytest.mark.parametrize("days", [-2, 2])
def test_clock_change_ends_no_alert(make_quiet_world: MakeWorld, days: int) -> None:
    world = make_quiet_world()
    world.let_pass(PATIENCE_S + 10)
    world.clock_off_s = days * 86_400.0
    world.let_pass(10)
    assert world.firing() == ["TrainingHang"]
    assert world.reports == []


def test_cancelled_job_is_not_reported_as_crashed(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world()
    world.run.end("killed", end_unix_ns=int(world.now_s * 1e9))
    world.let_pass(RESTART_GRACE_S + 10)
    assert world.event_names() == ["verdict"]


def test_ended_run_is_evaluated_again_after_a_new_attempt(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world("..")
    world.run.end()
    world.let_pass(30)
    assert world.event_names() == ["verdict"]
    create_attempt(world.run.path, AttemptInfo(attempt=1, start_unix_ns=1, world_size=4))
    shutil.copytree(rank_dir(world.run.path, 0, 0), rank_dir(world.run.path, 1, 0))
    world.let_pass(5)
    assert world.event_names() == ["verdict", "verdict"]


def test_invalid_rank_metadata_does_not_prevent_the_hang_alert(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(moved=False)
    info = rank_dir(world.run.path, 0, 3) / "rank.json"
    lie = {**msgspec.json.decode(info.read_bytes()), "device_kind": "cuda", "host": "a\n\x1b[2Jb"}
    written = msgspec.json.encode(lie).replace(b'"world_size":4', b'"world_size":' + b"9" * 400)
    info.write_bytes(written)
    world.go_on(20)
    world.let_pass(2 * PATIENCE_S)
    assert world.firing() == ["TrainingHang"]
    assert world.reports == []
