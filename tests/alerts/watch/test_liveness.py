"""Silent ranks and stalled runs, detected from files that stop growing, by the watcher's own clock."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.alerts.watch.watched_world import RecordingWebhook, World, past_of
from tests.dumped_job import DumpedJob, write

from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.watch.ledger import AlertLedger
from rankscope.alerts.watch.liveness.dumps import AGAIN_S, WAIT_S
from rankscope.alerts.watch.liveness.monitor import Patience
from rankscope.alerts.watch.runs import RESTART_GRACE_S
from rankscope.alerts.watch.watcher import CRASH_FIRING_S, FORGET_AFTER_S, FORGET_LIVENESS_AFTER_S
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.runs.control import ControlAnswer, answer
from rankscope.runs.paths import activity_file, attempt_dir, control_dir, flight_dir, rank_dir
from rankscope.runs.records import AttemptInfo, RankActivity, RankInfo
from rankscope.runs.small_files import create_attempt, write_record

PATIENCE_S = 60.0


@pytest.fixture
def world(make_run: Any, make_analysis: Any) -> Callable[..., tuple[Any, World]]:
    """Factory ``world()`` of a run with steps of 0.1 s and a watcher with a patience of one minute."""

    def make(path: str = ".", **options: Any) -> tuple[Any, World]:
        run = make_run(slow=None)
        options = {"patience": Patience(silent_after_s=PATIENCE_S), "ask_for_dumps": False, **options}
        watched = World((run.path / path).resolve(), receiver=RecordingWebhook(), **options)
        watched.answer = make_analysis()
        watched.steps = past_of([0.1] * 100)
        return run, watched

    return make


def let_pass(world: World, seconds: float, run: Any = None, **grown: Any) -> None:
    """Evaluate every 5 s for ``seconds`` seconds; ``run``, if given, makes a step before each evaluation."""
    for _ in range(round(seconds / 5)):
        if run is not None:
            run.grow(1, **grown)
        world.evaluate()


def test_a_run_in_which_nobody_makes_a_step_is_told_and_its_recovery_too(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S)
    assert watched.said() == []
    let_pass(watched, 10)
    assert watched.firing() == ["TrainingHang"]
    [event] = watched.events
    assert event.labels == {"alertname": "TrainingHang", "severity": "critical", "run_id": "llama-1", "run": "llama"}
    assert "No rank of run llama has finished a step for 65 s (usually 100 ms each)" in event.summary
    assert "py-spy dump --pid 100   (rank 0, on node0)" in event.annotations["next"]
    let_pass(watched, 10, run)
    assert watched.said() == ["firing", "resolved"]


def test_the_alert_tells_what_the_ranks_are_doing(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S - 20)
    for rank in range(4):
        seen_ns = int(watched.now_s * 1e9)
        doing = RankActivity(
            attempt=0,
            rank=rank,
            step=40,
            phase="data" if rank == 2 else "backward",
            waiting=rank != 2,
            since_unix_ns=seen_ns - 50 * 10**9,
            updated_unix_ns=seen_ns,
        )
        write_record(activity_file(run.path, 0, rank), doing)
    let_pass(watched, 30)
    [event] = watched.events
    assert event.labels["alertname"] == "TrainingHang"
    annotations = event.annotations
    for fact in ("Rank 2", "loading data", "3 ranks wait for other ranks in backward"):
        assert fact in event.summary
    assert (annotations["culprit"], annotations["culprit_host"], annotations["cause"]) == ("2", "node1", "not_arrived")
    assert annotations["confidence"] == "probable"
    assert "dump" in annotations["evidence"]
    assert "py-spy dump --pid 102" in annotations["next"]


def test_an_old_activity_is_not_believed(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    old = RankActivity(attempt=0, rank=2, phase="data", waiting=False, since_unix_ns=1, updated_unix_ns=2)
    write_record(activity_file(run.path, 0, 2), old)
    let_pass(watched, PATIENCE_S + 10)
    [event] = watched.events
    assert "culprit" not in event.annotations
    assert "loading data" not in event.summary


def test_a_rank_that_is_silent_while_others_go_on_is_named(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S + 10, run, ranks=[0, 1, 3])
    assert watched.firing() == ["TrainingRankLost 2"]
    assert watched.events[0].labels["host"] == "node1"
    # The process may be dead: the py-spy step first checks that it exists
    [stack] = [step for step in watched.events[0].annotations["next"].splitlines() if "py-spy" in step]
    assert "ps -p 102" in stack
    let_pass(watched, 10, run)
    assert watched.said() == ["firing", "resolved"]


def test_ranks_that_stop_one_after_the_other_make_one_alert(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, 15, run, ranks=[0, 1, 3])  # a file server may show other ranks' files with such a delay
    let_pass(watched, 2 * PATIENCE_S)
    assert watched.firing() == ["TrainingHang"]
    assert watched.said() == ["firing"]


def test_the_time_a_watcher_was_suspended_does_not_count(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    for _ in range(3):  # a laptop that was closed for an hour, with nothing new at the first evaluation
        watched.now_s += 3600
        watched.evaluate()
        let_pass(watched, 10, run)
    assert watched.said() == []


def test_clocks_that_are_hours_apart_are_no_matter(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    watched.now_s += 10 * 3600
    let_pass(watched, 4 * PATIENCE_S, run)
    assert watched.said() == []


@pytest.mark.parametrize(
    "past",
    [
        past_of([12.0] * 50),
        past_of([0.1] * 200 + [50.0] + [0.1] * 200, tags={"checkpoint": [200]}),
        past_of(([0.1] * 100 + [50.0]) * 2 + [0.1]),
    ],
    ids=["long steps", "a step with a checkpoint", "intermittent long steps"],
)
def test_patience_is_as_long_as_steps_may_take(world: Callable[..., tuple[Any, World]], past: Any) -> None:
    run, watched = world()
    watched.steps = past
    let_pass(watched, 20, run)
    let_pass(watched, 95)
    assert watched.said() == []
    let_pass(watched, 40)
    assert watched.firing() == ["TrainingHang"]


def test_one_long_step_without_a_reason_is_no_excuse_for_the_next() -> None:
    assert Patience().seconds(past_of([0.1] * 50 + [900.0] + [0.1] * 50)) == Patience().silent_after_s


def test_before_the_first_step_nobody_knows_how_long_it_takes(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    watched.steps = None
    let_pass(watched, 20, run)
    let_pass(watched, 10 * PATIENCE_S)
    assert watched.said() == []


def test_a_run_that_ends_is_not_stalled(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S - 10)
    run.end()
    assert watched.evaluate()
    assert watched.said() == ["verdict"]


def test_in_a_folder_a_run_that_died_before_anybody_watched_is_no_news(world: Callable[..., tuple[Any, World]]) -> None:
    _, watched = world("..")
    let_pass(watched, 3 * PATIENCE_S)
    assert watched.said() == []


def test_a_run_that_is_watched_by_its_name_and_stands_still_is_told(world: Callable[..., tuple[Any, World]]) -> None:
    _, watched = world()
    let_pass(watched, 2 * PATIENCE_S)
    assert watched.firing() == ["TrainingHang"]


@pytest.mark.parametrize("before_s", [10, PATIENCE_S + 10], ids=["before it fired", "while it fired"])
def test_a_watcher_that_is_started_anew_neither_forgets_nor_resolves(
    world: Callable[..., tuple[Any, World]], before_s: float
) -> None:
    run, first = world("..")
    let_pass(first, 20, run)
    let_pass(first, before_s)
    fired = first.said()
    second = World(
        run.path.parent,
        receiver=first.receiver,
        ledger=msgspec.json.decode(first.saved[-1], type=AlertLedger),
        patience=Patience(silent_after_s=PATIENCE_S),
        ask_for_dumps=False,
    )
    second.now_s, second.answer, second.steps = first.now_s, first.answer, first.steps
    let_pass(second, 30)
    assert second.said() == []
    let_pass(second, PATIENCE_S)
    assert [*fired, *second.said()] == ["firing"]
    let_pass(second, 10, run)
    assert second.said()[-1] == "resolved"
    assert second.firing() == []


def test_what_cannot_be_looked_at_is_neither_silent_nor_well(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    folder = rank_dir(run.path, 0, 2)
    hidden = folder.rename(folder.with_name("hidden"))
    folder.write_text("")
    let_pass(watched, 2 * PATIENCE_S, run, ranks=[0, 1, 3])
    assert watched.firing() == []
    folder.unlink()
    hidden.rename(folder)
    let_pass(watched, 2 * PATIENCE_S, run, ranks=[0, 1, 3])
    assert watched.firing() == ["TrainingRankLost 2"]


def test_a_rank_that_was_killed_while_others_have_not_ended_is_reported(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    run.end("killed", ranks=range(2, 3))
    let_pass(watched, RESTART_GRACE_S - 5, run, ranks=[0, 1, 3])
    assert watched.said() == []
    let_pass(watched, 15, run, ranks=[0, 1, 3])
    assert watched.firing() == ["TrainingRankLost 2"]
    annotations = watched.annotations("TrainingRankLost")
    assert "was killed" in annotations["summary"]
    # The process is dead: there is no stack to dump
    assert "py-spy" not in annotations["next"]
    assert "dmesg" in annotations["next"]


@pytest.mark.parametrize("reason", ["killed", "crash"])
def test_a_rank_that_died_before_the_watcher_started_is_reported(world: Callable[..., tuple[Any, World]], reason: str) -> None:
    run, watched = world()
    run.end(reason, ranks=range(2, 3))
    let_pass(watched, RESTART_GRACE_S + 15, run, ranks=[0, 1, 3])
    assert watched.firing() == ["TrainingRankLost 2"]


def test_a_rank_that_died_before_the_watch_is_news_only_if_others_go_on(
    world: Callable[..., tuple[Any, World]],
) -> None:
    run, watched = world("..")
    run.end("killed", ranks=range(2, 3))
    let_pass(watched, 3 * RESTART_GRACE_S)
    assert watched.said() == []
    let_pass(watched, 15, run, ranks=[0, 1, 3])
    assert watched.firing() == ["TrainingRankLost 2"]


def test_a_rank_whose_recorder_switched_itself_off_is_not_lost(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    file = rank_dir(run.path, 0, 1) / "rank.json"
    info = msgspec.json.decode(file.read_bytes(), type=RankInfo)
    write_record(file, msgspec.structs.replace(info, disabled_reason="the ring cannot be mapped"))
    let_pass(watched, 2 * PATIENCE_S, run, ranks=[0, 2, 3])
    assert watched.firing() == []


def test_another_attempt_begins_anew(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S)  # pending, not firing
    create_attempt(run.path, AttemptInfo(attempt=1, start_unix_ns=1, world_size=4))
    info = msgspec.json.decode((rank_dir(run.path, 0, 0) / "rank.json").read_bytes(), type=RankInfo)
    write_record(rank_dir(run.path, 1, 0) / "rank.json", info)
    let_pass(watched, 30)
    assert watched.said() == []
    assert attempt_dir(run.path, 1).is_dir()


def test_alerts_about_silence_outlast_those_about_steps(world: Callable[..., tuple[Any, World]], make_analysis: Any) -> None:
    run, watched = world()
    watched.answer = make_analysis(2)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S + 10)
    assert watched.firing() == ["TrainingHang", "TrainingStraggler 2"]
    watched.now_s += FORGET_AFTER_S
    watched.evaluate()
    assert watched.firing() == ["TrainingHang"]
    watched.now_s += FORGET_LIVENESS_AFTER_S
    watched.evaluate()
    assert watched.firing() == []


# Flight Recorder dumps ---------------------------------------------------------------------------------------------------------


def hung(folder: Path) -> Any:
    """Return the analysis of the dumps of four ranks, of which rank 2 never entered the second all-reduce."""
    return analyze_hang([write(folder, DumpedJob.of_events({"0": (0, 1, 2, 3)}, ["0"] * 3, stops={2: 1}).dumps())])


def requests(run: Path) -> list[Path]:
    return [path for path in control_dir(run).glob("*.json") if not path.name.endswith(".answer.json")]


def test_ranks_of_a_stalled_run_are_asked_once_and_the_culprit_is_named(
    world: Callable[..., tuple[Any, World]], tmp_path: Path
) -> None:
    run, watched = world(ask_for_dumps=True)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S)
    [request] = requests(run.path)
    # While dumps may still arrive, no incomplete alert is sent
    let_pass(watched, 15)
    assert watched.said() == []
    write(flight_dir(run.path, 0), {})
    (flight_dir(run.path, 0) / f"rank-00000-{request.stem}-nccl.pickle").write_bytes(b"x")
    watched.hung = hung(tmp_path / "dumps")
    for rank in range(4):
        answer(run.path, ControlAnswer(id=request.stem, accepted=rank != 2, answered_unix_ns=1), rank=rank)
    let_pass(watched, 20)
    assert watched.firing() == ["TrainingHang"]
    annotations = watched.annotations("TrainingHang")
    assert (annotations["culprit"], annotations["collective"]) == ("2", "all_reduce 2 of group 0")
    assert annotations["next"].startswith(f"rankscope hang {run.path}\npy-spy dump --pid 102   (rank 2, on node1)\n")
    assert "PID" not in annotations["next"]
    assert "rank" not in watched.events[0].labels
    # And dumps are requested only once
    let_pass(watched, 10 * PATIENCE_S)
    assert requests(run.path) == [request]


def test_a_stopped_process_is_not_waited_for(world: Callable[..., tuple[Any, World]]) -> None:
    # Given a stalled run whose rank 2 is a stopped process, which cannot write a dump
    run, watched = world(ask_for_dumps=True, fire_after=3)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S - 5)
    now_ns = int(watched.now_s * 1e9)
    stopped = RankActivity(attempt=0, rank=2, phase="data", process="stopped", since_unix_ns=now_ns, updated_unix_ns=now_ns)
    write_record(activity_file(run.path, 0, 2), stopped)
    let_pass(watched, 5)
    [request] = requests(run.path)
    # When all others have answered
    for rank in (0, 1, 3):
        answer(run.path, ControlAnswer(id=request.stem, accepted=False, answered_unix_ns=1), rank=rank)
    let_pass(watched, 10)
    # Then the alert fires after as many evaluations as any other, and names it
    assert watched.firing() == ["TrainingHang"]
    assert watched.annotations("TrainingHang")["culprit"] == "2"


def test_evaluations_count_while_dumps_are_waited_for(world: Callable[..., tuple[Any, World]]) -> None:
    # Given a stalled run of which no rank answers
    run, watched = world(ask_for_dumps=True, fire_after=6)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S + WAIT_S - 5)
    assert watched.firing() == []
    # When the time for dumps is over, then the alert fires at once
    let_pass(watched, 5)
    assert watched.firing() == ["TrainingHang"]


def test_a_stall_that_ends_while_dumps_are_waited_for_is_not_reported(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world(ask_for_dumps=True)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S + 15)
    let_pass(watched, 2 * WAIT_S, run)
    assert watched.events == []
    assert watched.watcher.ledger.entries == []


def test_an_alert_does_not_wait_for_an_answer_that_changes_its_text_later(
    world: Callable[..., tuple[Any, World]], tmp_path: Path
) -> None:
    run, watched = world(ask_for_dumps=True)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S + WAIT_S + 15)
    assert watched.firing() == ["TrainingHang"]
    assert "culprit" not in watched.annotations("TrainingHang")
    [before] = {entry.fingerprint for entry in watched.watcher.ledger.entries}
    flight_dir(run.path, 0).mkdir(parents=True)
    (flight_dir(run.path, 0) / "rank-00000-end-nccl.pickle").write_bytes(b"x")
    watched.hung = hung(tmp_path / "dumps")
    let_pass(watched, 10)
    assert watched.annotations("TrainingHang")["culprit"] == "2"
    assert {entry.fingerprint for entry in watched.watcher.ledger.entries} == {before}
    # The same alert is sent once more, to receivers that got the incomplete one
    let_pass(watched, 60)
    assert watched.said() == ["firing", "firing"]
    first, second = watched.receiver.calls
    assert [(call.alert.fingerprint, call.alert.starts_at) for call in first] == [
        (call.alert.fingerprint, call.alert.starts_at) for call in second
    ]
    assert [call.alert.annotations.get("culprit") for call in (*first, *second)] == [None, "2"]
    assert ["updated_at" in call.alert.annotations for call in (*first, *second)] == [False, True]
    assert messages_about("hook", first)[0].id != messages_about("hook", second)[0].id
    let_pass(watched, 10, run)
    assert [call.alert.status for call in watched.receiver.calls[2]] == ["resolved"]
    assert len(watched.receiver.calls) == 3


def test_ranks_that_were_asked_a_short_while_ago_are_asked_again_later(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world(ask_for_dumps=True)
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S)
    let_pass(watched, 10, run)
    let_pass(watched, 2 * PATIENCE_S)
    assert len(requests(run.path)) == 1
    assert watched.annotations("TrainingHang")["evidence"].startswith("dumps ")
    let_pass(watched, AGAIN_S)
    assert len(requests(run.path)) == 2


def test_nobody_is_asked_who_is_not_to_be(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world(ask_for_dumps=False)
    let_pass(watched, 20, run)
    let_pass(watched, 2 * PATIENCE_S)
    assert watched.firing() == ["TrainingHang"]
    assert not control_dir(run.path).exists()


def test_a_run_that_may_not_be_written_to_is_told_of_without_dumps(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world(ask_for_dumps=True)
    control_dir(run.path).write_text("")
    let_pass(watched, 20, run)
    let_pass(watched, 2 * PATIENCE_S)
    assert watched.firing() == ["TrainingHang"]
    assert len([line for line in watched.reports if "dumps cannot be requested" in line]) == 1


# The end -----------------------------------------------------------------------------------------------------------------------


def test_that_a_run_crashed_is_told_and_not_taken_back_at_once(
    world: Callable[..., tuple[Any, World]], make_analysis: Any
) -> None:
    run, watched = world("..")
    watched.answer = make_analysis(3)
    let_pass(watched, 20, run)
    end = int(watched.now_s * 1e9)
    run.end("crash", ranks=range(1, 2), end_unix_ns=end)
    for others in (range(1), range(2, 4)):
        run.end("killed", ranks=others, end_unix_ns=end + 2 * 10**9)
    let_pass(watched, RESTART_GRACE_S + 10)
    assert watched.firing() == ["TrainingCrashed"]
    annotations = watched.annotations("TrainingCrashed")
    assert (annotations["culprit"], annotations["culprit_host"], annotations["cause"]) == ("1", "node0", "crash")
    assert "error output of rank 1 on node0" in annotations["next"]
    heard = [(item.alert.labels["alertname"], item.alert.status) for call in watched.receiver.calls for item in call]
    assert heard == [("TrainingStraggler", "firing"), ("TrainingCrashed", "firing"), ("TrainingStraggler", "resolved")]
    assert watched.receiver.calls[-1][0].alert.annotations["ended_because"] == "the run ended early"
    let_pass(watched, CRASH_FIRING_S)
    assert watched.firing() == []
    assert watched.events[-1].annotations["ended_because"].endswith("10 min")
    # Receivers that get only changes receive no resolution of a crash
    assert sum(map(len, watched.receiver.calls)) == len(heard)
    assert watched.watcher.ledger.entries == []
    assert [event.labels["alertname"] for event in watched.events if event.event == "firing"] == [
        "TrainingStraggler",
        "TrainingCrashed",
    ]


def test_a_run_whose_hosts_are_ahead_is_over_all_the_same(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world("..")
    let_pass(watched, 20, run)
    run.end("crash", end_unix_ns=int(watched.now_s * 1e9) + 3600 * 10**9)
    let_pass(watched, RESTART_GRACE_S)
    assert watched.firing() == []
    let_pass(watched, 10)
    assert watched.firing() == ["TrainingCrashed"]


@pytest.mark.parametrize("days", [-2, 2])
def test_a_clock_that_is_set_ends_no_alert(world: Callable[..., tuple[Any, World]], days: int) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    let_pass(watched, PATIENCE_S + 10)
    watched.clock_off_s = days * 86_400.0
    let_pass(watched, 10)
    assert watched.firing() == ["TrainingHang"]
    assert watched.reports == []


def test_a_job_that_was_cancelled_did_not_crash(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    let_pass(watched, 20, run)
    run.end("killed", end_unix_ns=int(watched.now_s * 1e9))
    let_pass(watched, RESTART_GRACE_S + 10)
    assert watched.said() == ["verdict"]


def test_a_run_that_is_over_wakes_up_by_another_attempt(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world("..")
    let_pass(watched, 20, run)
    run.end()
    let_pass(watched, 30)
    assert watched.said() == ["verdict"]
    create_attempt(run.path, AttemptInfo(attempt=1, start_unix_ns=1, world_size=4))
    shutil.copytree(rank_dir(run.path, 0, 0), rank_dir(run.path, 1, 0))
    let_pass(watched, 5)
    assert watched.said() == ["verdict", "verdict"]


def test_a_run_that_lies_about_itself_costs_only_itself(world: Callable[..., tuple[Any, World]]) -> None:
    run, watched = world()
    info = rank_dir(run.path, 0, 3) / "rank.json"
    lie = {**msgspec.json.decode(info.read_bytes()), "device_kind": "cuda", "host": "a\n\x1b[2Jb"}
    written = msgspec.json.encode(lie).replace(b'"world_size":4', b'"world_size":' + b"9" * 400)
    info.write_bytes(written)
    let_pass(watched, 20, run)
    let_pass(watched, 2 * PATIENCE_S)
    assert watched.firing() == ["TrainingHang"]
    assert watched.reports == []
