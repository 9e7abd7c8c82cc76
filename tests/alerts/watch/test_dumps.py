"""Dumps that the watcher requests from the ranks of a stalled run, and what alerts wait for and say with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.alerts.watch.watched_world import PATIENCE_S, MakeWorld
from tests.dumped_job import DumpedJob
from tests.flight_dump_files import write

from rankscope.alerts.deliver.message import messages_about
from rankscope.alerts.watch.liveness.dumps import AGAIN_S, WAIT_S, Dumps
from rankscope.analysis.hang.diagnosis import analyze_hang
from rankscope.runs.control import ControlAnswer, answer
from rankscope.runs.paths import activity_file, control_dir, flight_dir
from rankscope.runs.records import RankActivity
from rankscope.runs.small_files import write_record


def hung(folder: Path) -> Any:
    """Return the analysis of the dumps of four ranks, of which rank 2 never entered the second all-reduce."""
    return analyze_hang([write(folder, DumpedJob.of_events({"0": (0, 1, 2, 3)}, ["0"] * 3, stops={2: 1}).dumps())])


def requests(run: Path) -> list[Path]:
    return [path for path in control_dir(run).glob("*.json") if not path.name.endswith(".answer.json")]


def test_dumps_of_a_hung_run_are_requested_once_and_name_the_culprit(make_quiet_world: MakeWorld, tmp_path: Path) -> None:
    world = make_quiet_world(ask_for_dumps=True)
    world.let_pass(PATIENCE_S)
    [request] = requests(world.run.path)
    # While dumps may still arrive, no incomplete alert is sent
    world.let_pass(15)
    assert world.event_names() == []
    write(flight_dir(world.run.path, 0), {})
    (flight_dir(world.run.path, 0) / f"rank-00000-{request.stem}-nccl.pickle").write_bytes(b"x")
    world.hung = hung(tmp_path / "dumps")
    for rank in range(4):
        answer(world.run.path, ControlAnswer(id=request.stem, accepted=rank != 2, answered_unix_ns=1), rank=rank)
    world.let_pass(20)
    assert world.firing() == ["TrainingHang"]
    annotations = world.annotations("TrainingHang")
    assert (annotations["culprit"], annotations["collective"]) == ("2", "all_reduce 2 of group 0")
    assert annotations["next"].startswith(f"rankscope hang {world.run.path}\npy-spy dump --pid 102   (rank 2, on node1)\n")
    assert "PID" not in annotations["next"]
    assert "rank" not in world.events[0].labels
    # And dumps are requested only once
    world.let_pass(10 * PATIENCE_S)
    assert requests(world.run.path) == [request]


def test_watcher_does_not_wait_for_a_dump_of_a_stopped_process(make_quiet_world: MakeWorld) -> None:
    # Given a stalled run whose rank 2 is a stopped process, which cannot write a dump
    world = make_quiet_world(ask_for_dumps=True, fire_after=3)
    world.let_pass(PATIENCE_S - 5)
    now_ns = int(world.now_s * 1e9)
    stopped = RankActivity(attempt=0, rank=2, phase="data", process="stopped", since_unix_ns=now_ns, updated_unix_ns=now_ns)
    write_record(activity_file(world.run.path, 0, 2), stopped)
    world.let_pass(5)
    [request] = requests(world.run.path)
    # When all others have answered
    for rank in (0, 1, 3):
        answer(world.run.path, ControlAnswer(id=request.stem, accepted=False, answered_unix_ns=1), rank=rank)
    world.let_pass(10)
    # Then the alert fires after as many evaluations as any other, and names it
    assert world.firing() == ["TrainingHang"]
    assert world.annotations("TrainingHang")["culprit"] == "2"


def test_evaluations_count_while_dumps_are_pending(make_quiet_world: MakeWorld) -> None:
    # Given a stalled run of which no rank answers
    world = make_quiet_world(ask_for_dumps=True, fire_after=6)
    world.let_pass(PATIENCE_S + WAIT_S - 5)
    assert world.firing() == []
    # When the time for dumps is over, then the alert fires at once
    world.let_pass(5)
    assert world.firing() == ["TrainingHang"]


def test_hang_that_ends_while_dumps_are_pending_is_not_reported(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(ask_for_dumps=True)
    world.let_pass(PATIENCE_S + 15)
    world.go_on(2 * WAIT_S)
    assert world.events == []
    assert world.watcher.ledger.entries == []


def test_late_dump_updates_the_text_of_a_firing_alert(make_quiet_world: MakeWorld, tmp_path: Path) -> None:
    world = make_quiet_world(ask_for_dumps=True)
    world.let_pass(PATIENCE_S + WAIT_S + 15)
    assert world.firing() == ["TrainingHang"]
    assert "culprit" not in world.annotations("TrainingHang")
    [before] = {entry.fingerprint for entry in world.watcher.ledger.entries}
    flight_dir(world.run.path, 0).mkdir(parents=True)
    (flight_dir(world.run.path, 0) / "rank-00000-end-nccl.pickle").write_bytes(b"x")
    world.hung = hung(tmp_path / "dumps")
    world.let_pass(10)
    assert world.annotations("TrainingHang")["culprit"] == "2"
    assert {entry.fingerprint for entry in world.watcher.ledger.entries} == {before}
    # The same alert is sent once more, to receivers that got the incomplete one
    world.let_pass(60)
    assert world.event_names() == ["firing", "firing"]
    first, second = world.receiver.calls
    assert [(call.alert.fingerprint, call.alert.starts_at) for call in first] == [
        (call.alert.fingerprint, call.alert.starts_at) for call in second
    ]
    assert [call.alert.annotations.get("culprit") for call in (*first, *second)] == [None, "2"]
    assert ["updated_at" in call.alert.annotations for call in (*first, *second)] == [False, True]
    assert messages_about("hook", first)[0].id != messages_about("hook", second)[0].id
    world.go_on(10)
    assert [call.alert.status for call in world.receiver.calls[2]] == ["resolved"]
    assert len(world.receiver.calls) == 3


def test_repeated_dump_request_is_delayed(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(ask_for_dumps=True)
    world.let_pass(PATIENCE_S)
    world.go_on(10)
    world.let_pass(2 * PATIENCE_S)
    assert len(requests(world.run.path)) == 1
    assert world.annotations("TrainingHang")["evidence"].startswith("dumps ")
    world.let_pass(AGAIN_S)
    assert len(requests(world.run.path)) == 2


def test_disabled_dump_requests_write_nothing(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(ask_for_dumps=False)
    world.let_pass(2 * PATIENCE_S)
    assert world.firing() == ["TrainingHang"]
    assert not control_dir(world.run.path).exists()


def test_hang_of_an_unwritable_run_is_reported_without_dumps(make_quiet_world: MakeWorld) -> None:
    world = make_quiet_world(ask_for_dumps=True, moved=False)
    control_dir(world.run.path).write_text("")
    world.go_on(20)
    world.let_pass(2 * PATIENCE_S)
    assert world.firing() == ["TrainingHang"]
    assert len([line for line in world.reports if "dumps cannot be requested" in line]) == 1


def test_incomplete_dumps_are_not_read(tmp_path: Path) -> None:
    report = hung(tmp_path / "dumps")
    dumps = Dumps(lambda _run, _fresh: report, ask=False, report=print)
    dump = flight_dir(tmp_path, 0) / "rank-00000-request-nccl.pickle"
    dump.parent.mkdir(parents=True)
    for second in range(3):
        dump.write_bytes(b"x" * (second + 1))
        assert dumps.look(tmp_path, 0, [0], float(second)) == (None, None)

    assert dumps.look(tmp_path, 0, [0], 4.0) == (report, "")


def test_only_dumps_requested_by_the_watcher_are_fresh(tmp_path: Path) -> None:
    fresh = list[bool]()
    dumps = Dumps(lambda _run, is_fresh: fresh.append(is_fresh), ask=True, report=print)
    write(flight_dir(tmp_path, 0), {})
    (flight_dir(tmp_path, 0) / "rank-00000-earlier-nccl.pickle").write_bytes(b"x")
    for second in range(3):
        dumps.look(tmp_path, 0, [0], float(second))
    assert fresh == [False]

    [request] = requests(tmp_path)
    (flight_dir(tmp_path, 0) / f"rank-00000-{request.stem}-nccl.pickle").write_bytes(b"x")
    for second in range(3, 6):
        dumps.look(tmp_path, 0, [0], float(second))
    assert fresh == [False, True]
